// Workloads (sim/gen) read in place of a trace: the same requests and notes as from the native file
// that `kvsim gen` writes of them.

#include <algorithm>
#include <string>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "checks/status_macros.h"
#include "kvblocks/config_source.h"
#include "sim/gen/generator.h"
#include "sim/gen/workload_spec.h"
#include "sim/trace/row_source.h"

namespace kvblocks::sim {
namespace {

TraceInfo InfoOf(const workload::v1::Workload& workload) {
  TraceInfo info;
  info.format = "workload";
  info.name = workload.workload();
  info.source = "kvsim gen";
  info.block_tokens = BlockTokens(workload);
  info.sorted = true;
  info.notes["workload"] = PrintWorkload(workload);
  info.notes["seed"] = absl::StrCat(workload.has_seed() ? workload.seed() : 1);
  if (const auto facts = ExpectedFactsOf(workload)) {
    info.notes["expected_requests"] = absl::StrFormat("%.1f", facts->requests);
    info.notes["expected_input_tokens"] = absl::StrFormat("%.0f", facts->input_tokens);
    info.notes["expected_output_tokens"] = absl::StrFormat("%.0f", facts->output_tokens);
    if (facts->hit_rate) {
      info.notes["expected_hit_rate"] = absl::StrFormat("%.4f", *facts->hit_rate);
    }
  }
  return info;
}

class WorkloadReader final : public RowSource {
 public:
  WorkloadReader(workload::v1::Workload workload, ReadProgress progress, const RowLog* log)
      : log_(log),
        info_(InfoOf(workload)),
        progress_(progress),
        num_requests_(workload.requests()),
        generator_(MakeGenerator(workload)) {}

  absl::StatusOr<RowOutcome> Next(RawRow* row, std::vector<TraceProblem>*) override {
    const absl::StatusOr<bool> more = generator_->Next(&made_);
    if (!more.ok()) return StreamError(*log_, more.status(), "request", row_);
    if (!*more) return RowOutcome::kEnd;
    *row = RawRow();
    TraceRequest& to = row->request;
    to.row = row_++;
    to.line = row_;
    to.id = absl::StrCat(to.row);
    to.arrival_ns = made_.arrival_ns;
    to.input_length = made_.input_length;
    to.output_length = made_.output_length;
    to.content_ids.swap(made_.content_ids);
    to.ids_cover_output = made_.ids_cover_output;
    to.session = made_.session;
    to.turn = made_.turn;
    to.waits_for.swap(made_.waits_for);
    to.think_ns = made_.think_ns;
    to.tenant = made_.tenant;
    row->timestamp_ns = made_.arrival_ns;
    row->has_turn = true;
    return RowOutcome::kRow;
  }
  const TraceInfo& info() const override { return info_; }
  std::string dialect() const override { return "made as it is read"; }
  // Where their number is known, requests count in the place of bytes.
  ReadProgress progress() const override {
    if (num_requests_ == 0) return progress_;
    return {std::min(row_, num_requests_), num_requests_};
  }

 private:
  const RowLog* const log_;
  const TraceInfo info_;
  const ReadProgress progress_;
  const int64_t num_requests_;  // at most; 0: not known
  const std::unique_ptr<Generator> generator_;
  GeneratedRequest made_;
  int64_t row_ = 0;
};

}  // namespace

OpenedRows MakeWorkloadReader(RowInput& input) {
  const absl::StatusOr<std::string> text = ReadUpTo(kMaxConfigBytes, *input.source);
  if (!text.ok()) return StreamError(*input.log, text.status(), "line", 0);
  if (static_cast<int64_t>(text->size()) > kMaxConfigBytes) {
    return absl::InvalidArgumentError(
        RowError(*input.log, 1,
                 absl::StrCat("workload: got more than ", kMaxConfigBytes,
                              " bytes, expected at most so many")));
  }
  KVBLOCKS_ASSIGN_OR_RETURN(auto workload, ParseWorkload(*text, input.log->file));
  return std::make_unique<WorkloadReader>(std::move(workload),
                                          ReadProgress{input.source->bytes_read(), 0}, input.log);
}

}  // namespace kvblocks::sim
