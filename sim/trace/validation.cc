#include "sim/trace/validation.h"

#include <algorithm>
#include <memory>
#include <utility>

#include "absl/container/flat_hash_set.h"

namespace kvblocks::sim {
namespace {

constexpr int64_t kProgressInterval = 1000;  // rows

class Collector final : public TraceListener {
 public:
  Collector(int64_t max_messages, TraceValidation* out) : max_messages_(max_messages), out_(out) {}

  void OnProblem(const TraceProblem& problem) override {
    const size_t severity = static_cast<size_t>(problem.severity);
    ProblemCount& count = counts_[severity][static_cast<size_t>(problem.kind)];
    if (count.count++ == 0) {
      count.severity = problem.severity;
      count.kind = problem.kind;
      count.first_line = problem.line;
    }
    ++out_->totals[severity];
    if (count.count <= max_messages_) out_->problems.push_back(problem);
  }

  bool KeepsText(ProblemSeverity severity, ProblemKind kind) const override {
    return counts_[static_cast<size_t>(severity)][static_cast<size_t>(kind)].count < max_messages_;
  }

  void OnGoodRow(const TraceRequest& request) override {
    const bool is_first = out_->num_requests++ == 0;
    const int64_t arrival = request.arrival_ns;
    out_->first_arrival_ns = is_first ? arrival : std::min(out_->first_arrival_ns, arrival);
    out_->last_arrival_ns = std::max(out_->last_arrival_ns, arrival);
    out_->input_tokens += request.input_length;
    out_->output_tokens += request.output_length;
    out_->max_input = std::max(out_->max_input, request.input_length);
    out_->max_output = std::max(out_->max_output, request.output_length);
    out_->content_ids += static_cast<int64_t>(request.content_ids.size());
    if (!request.waits_for.empty()) ++out_->num_waiting;
    if (request.session != 0) sessions_.insert(request.session);
  }

  void Finish() {
    out_->num_sessions = static_cast<int64_t>(sessions_.size());
    for (const auto& by_kind : counts_) {
      for (const ProblemCount& count : by_kind) {
        if (count.count > 0) out_->counts.push_back(count);
      }
    }
  }

 private:
  const int64_t max_messages_;
  TraceValidation* const out_;
  std::array<std::array<ProblemCount, kNumProblemKinds>, kNumSeverities> counts_ = {};
  absl::flat_hash_set<uint64_t> sessions_;
};

// What a replay would select, spread or scale plays no part: the file is looked at as it is.
TraceReaderOptions ReaderOptions(const ValidationOptions& options, Collector* collector) {
  const TraceReaderOptions initial;
  TraceReaderOptions reader = options.reader;
  reader.spread = initial.spread;
  reader.start_ns = initial.start_ns;
  reader.end_ns = initial.end_ns;
  reader.sample = initial.sample;
  reader.limit = initial.limit;
  reader.rebase = initial.rebase;
  reader.speedup = initial.speedup;
  reader.skip_bad_rows = true;
  reader.check_ids = true;
  reader.max_errors = 0;
  reader.listener = collector;
  return reader;
}

using Opener =
    std::function<absl::StatusOr<std::unique_ptr<TraceReader>>(const TraceReaderOptions&)>;

absl::StatusOr<TraceValidation> Validate(const std::string& file, const Opener& open,
                                         const ValidationOptions& options) {
  TraceValidation out;
  out.file = file;
  Collector collector(options.max_messages, &out);
  TraceProblem last;
  auto reader = open(ReaderOptions(options, &collector));
  if (!reader.ok()) {
    if (!ParseProblem(file, reader.status(), &last)) return reader.status();
    collector.OnProblem(last);
    collector.Finish();
    return out;
  }
  TraceRequest request;
  absl::StatusOr<bool> more = true;
  for (int64_t n = 1; more.ok() && *more; ++n) {
    more = (*reader)->Next(request);
    if (options.progress && n % kProgressInterval == 0) {
      options.progress((*reader)->progress(), (*reader)->counters().rows, out.num_errors());
    }
  }
  out.is_complete = more.ok();
  if (!more.ok()) {
    if (!ParseProblem(file, more.status(), &last)) return more.status();
    last.kind = ProblemKind::kStream;
    collector.OnProblem(last);
  }
  out.info = (*reader)->info();
  out.dialect = (*reader)->dialect();
  const TraceReaderCounters& counters = (*reader)->counters();
  out.num_rows = counters.rows;
  out.num_bad_rows = counters.bad_rows;
  out.num_backwards = counters.backwards;
  collector.Finish();
  return out;
}

}  // namespace

absl::StatusOr<TraceValidation> ValidateTrace(const std::string& path,
                                              const ValidationOptions& options) {
  return Validate(
      path == "-" ? "<stdin>" : path,
      [&](const TraceReaderOptions& reader) { return OpenTrace(path, reader); }, options);
}

absl::StatusOr<TraceValidation> ValidateTraceString(std::string content, const std::string& name,
                                                    const ValidationOptions& options) {
  return Validate(
      name,
      [&](const TraceReaderOptions& reader) {
        return OpenTraceString(std::move(content), name, reader);
      },
      options);
}

}  // namespace kvblocks::sim
