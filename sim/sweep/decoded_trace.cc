#include "sim/sweep/decoded_trace.h"

#include <algorithm>
#include <string_view>
#include <utility>

#include "absl/container/flat_hash_map.h"
#include "absl/strings/str_cat.h"
#include "checks/status_macros.h"
#include "kvblocks/check.h"
#include "sim/commands/option_table.h"
#include "sim/commands/replay_input.h"
#include "sim/commands/replay_setup.h"
#include "sim/curve/order_curve.h"

namespace kvblocks::sim {

using ::kvblocks::config::v1::ReplayConfig;

namespace {

// The options that decide what a reader yields, as text.
std::string ReaderKey(const ReplayConfig& config) {
  std::string key;
  for (const ReplayOption& option : ReplayOptions()) {
    if (option.section != kWorkloadGroup || option.setting->of_run()) continue;
    if (option.name() == "speedup") continue;  // of times that are read already
    absl::StrAppend(&key, "\n", option.name(), "=", ValueText(config, option.field));
  }
  return key;
}

void CountConversations(DecodedTrace* trace) {
  absl::flat_hash_map<uint64_t, int64_t> of_session;
  absl::flat_hash_map<int64_t, int64_t> of_row;
  for (const TraceRequest& request : trace->requests) {
    int64_t number = -1;
    if (request.session != 0) {
      if (const auto it = of_session.find(request.session); it != of_session.end()) {
        number = it->second;
      }
    }
    if (number < 0 && !request.waits_for.empty()) {
      if (const auto it = of_row.find(request.waits_for.front()); it != of_row.end()) {
        number = it->second;
      }
    }
    if (number < 0) number = trace->num_conversations++;
    if (request.session != 0) of_session.try_emplace(request.session, number);
    of_row.emplace(request.row, number);
  }
}

}  // namespace

double DecodedTrace::arrival_seconds() const {
  if (requests.empty()) return 0;
  return static_cast<double>(requests.back().arrival_ns - requests.front().arrival_ns) * 1e-9;
}

absl::StatusOr<DecodedTrace> DecodeTrace(TraceReader* reader) {
  DecodedTrace trace;
  KVBLOCKS_ASSIGN_OR_RETURN(trace.requests, ReadAll(FeedFrom(reader), reader));
  trace.info = reader->info();
  trace.counters = reader->counters();
  trace.warnings = reader->warnings();
  trace.dialect = reader->dialect();
  trace.progress = reader->progress();
  CountConversations(&trace);
  return trace;
}

absl::StatusOr<bool> DecodedReader::Next(TraceRequest& out) {
  if (next_ == trace_->requests.size()) return false;
  out = trace_->requests[next_++];
  const __int128 arrival =
      static_cast<__int128>(out.arrival_ns) * speedup_.denominator / speedup_.numerator;
  if (arrival > INT64_MAX) {
    return InvalidArgument("line ", out.line,
                           ": arrival after --speedup: got more than 2^63 ns, expected less");
  }
  out.arrival_ns = static_cast<int64_t>(arrival);
  return true;
}

absl::Status DecodedReader::Restart() {
  next_ = 0;
  return absl::OkStatus();
}

absl::StatusOr<std::shared_ptr<const DecodedTrace>> DecodedTraces::Decode(
    const ReplayConfig& config) {
  KVBLOCKS_ASSIGN_OR_RETURN(auto options, MakeReaderOptions(config));
  options.speedup = {1, 1};
  KVBLOCKS_ASSIGN_OR_RETURN(const auto reader, OpenReplayTrace(config, options));
  KVBLOCKS_ASSIGN_OR_RETURN(auto trace, DecodeTrace(reader.get()));
  const std::lock_guard lock(mutex_);
  warnings_.insert(warnings_.end(), trace.warnings.begin(), trace.warnings.end());
  return std::make_shared<const DecodedTrace>(std::move(trace));
}

absl::StatusOr<std::shared_ptr<const DecodedTrace>> DecodedTraces::Get(const ReplayConfig& config) {
  std::unique_lock lock(mutex_);
  Entry& entry = entries_[ReaderKey(config)];
  lock.unlock();
  std::call_once(entry.once, [&] { entry.trace = Decode(config); });
  return entry.trace;
}

std::vector<std::string> DecodedTraces::TakeWarnings() {
  const std::lock_guard lock(mutex_);
  return std::exchange(warnings_, {});
}

}  // namespace kvblocks::sim
