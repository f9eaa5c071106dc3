#include "sim/sweep/decoded_trace.h"

#include <algorithm>
#include <string_view>
#include <utility>

#include "absl/container/flat_hash_map.h"
#include "absl/strings/str_cat.h"
#include "checks/status_macros.h"
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

void NumberConversations(DecodedTrace* trace) {
  absl::flat_hash_map<uint64_t, int64_t> of_session;
  absl::flat_hash_map<int64_t, int64_t> of_row;
  trace->conversations.reserve(trace->requests.size());
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
    trace->conversations.push_back(number);
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
  NumberConversations(&trace);
  return trace;
}

DecodedReader::DecodedReader(const DecodedTrace* trace, Rational speedup, int64_t replicas,
                             int64_t replica)
    : trace_(trace), speedup_(speedup), replicas_(replicas), replica_(replica) {}

bool DecodedReader::IsMine(size_t request) const {
  return replicas_ == 0 || trace_->conversations[request] % replicas_ == replica_;
}

absl::StatusOr<bool> DecodedReader::Next(TraceRequest& out) {
  while (next_ < trace_->requests.size() && !IsMine(next_)) {
    const auto row = static_cast<size_t>(trace_->requests[next_++].row);
    if (left_out_.size() <= row) left_out_.resize(row + 1, false);
    left_out_[row] = true;
  }
  if (next_ == trace_->requests.size()) return false;
  out = trace_->requests[next_++];
  std::erase_if(out.waits_for, [&](int64_t row) {
    return static_cast<size_t>(row) < left_out_.size() && left_out_[static_cast<size_t>(row)];
  });
  if (out.waits_for.empty()) out.has_arrival = true;
  const __int128 arrival =
      static_cast<__int128>(out.arrival_ns) * speedup_.denominator / speedup_.numerator;
  if (arrival > INT64_MAX) {
    return absl::InvalidArgumentError(absl::StrCat(
        "line ", out.line, ": arrival after --speedup: got more than 2^63 ns, expected less"));
  }
  out.arrival_ns = static_cast<int64_t>(arrival);
  return true;
}

absl::Status DecodedReader::Restart() {
  next_ = 0;
  left_out_.clear();
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
