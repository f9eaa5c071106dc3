#include "sim/engine/scheduler_options.h"

#include <algorithm>
#include <iterator>

#include "absl/strings/str_cat.h"

namespace kvblocks::sim {
namespace {

// In the order of SchedulingPolicy.
constexpr std::string_view kPolicyNames[] = {"fcfs",   "priority", "sjf",        "lof",
                                             "random", "lpm",      "dfs-weight", "max-no-evict"};

// Far beyond any engine, and small enough that sums of a few never leave 64 bits.
constexpr int64_t kMaxBatchedTokens = int64_t{1} << 31;
constexpr int64_t kMaxSeqs = 1 << 20;
constexpr int64_t kMaxDraftTokens = 1024;

absl::Status CheckRange(absl::string_view field, int64_t value, int64_t low, int64_t high) {
  if (value >= low && value <= high) return absl::OkStatus();
  return absl::InvalidArgumentError(
      absl::StrCat("scheduler.", field, " is ", value, ", expected ", low, " to ", high));
}

}  // namespace

std::string_view SchedulingPolicyName(SchedulingPolicy policy) {
  return kPolicyNames[static_cast<size_t>(policy)];
}

std::optional<SchedulingPolicy> ParseSchedulingPolicy(std::string_view name) {
  const auto found = std::find(std::begin(kPolicyNames), std::end(kPolicyNames), name);
  if (found == std::end(kPolicyNames)) return std::nullopt;
  return static_cast<SchedulingPolicy>(found - std::begin(kPolicyNames));
}

absl::Status Validate(const SchedulerOptions& options) {
  struct {
    absl::string_view field;
    int64_t value, low, high;
  } const ranges[] = {
      {"max_num_batched_tokens", options.max_num_batched_tokens, 1, kMaxBatchedTokens},
      {"max_num_scheduled_tokens", options.max_num_scheduled_tokens, 0,
       options.max_num_batched_tokens},
      {"num_draft_slots", options.num_draft_slots, 0, kMaxDraftTokens},
      {"max_num_seqs", options.max_num_seqs, 1, kMaxSeqs},
      {"max_num_active_seqs", options.max_num_active_seqs, 0, options.max_num_seqs},
      {"prefill_schedule_interval", options.prefill_schedule_interval, 1, kMaxBatchedTokens},
      {"long_prefill_token_threshold", options.long_prefill_token_threshold, 0, kMaxBatchedTokens},
      {"pipeline_stages", options.pipeline_stages, 1, kMostPipelineStages},
      {"num_draft_tokens", options.num_draft_tokens, 0, kMaxDraftTokens},
      {"num_lookahead_tokens", options.num_lookahead_tokens, 0, kMaxDraftTokens},
  };
  for (const auto& range : ranges) {
    absl::Status status = CheckRange(range.field, range.value, range.low, range.high);
    if (!status.ok()) return status;
  }
  // A step must have room for one request with its drafts.
  const int64_t tokens = options.num_draft_tokens + 1;
  if (tokens + options.num_draft_slots > options.max_num_batched_tokens) {
    return absl::InvalidArgumentError(absl::StrCat(
        "scheduler.num_draft_tokens is ", options.num_draft_tokens,
        ", expected less than max_num_batched_tokens",
        options.num_draft_slots > 0 ? " less num_draft_slots" : "", ", which is ",
        options.max_num_batched_tokens - options.num_draft_slots));
  }
  if (options.max_num_scheduled_tokens > 0 && tokens > options.max_num_scheduled_tokens) {
    return absl::InvalidArgumentError(
        absl::StrCat("scheduler.max_num_scheduled_tokens is ", options.max_num_scheduled_tokens,
                     ", expected 0 or at least ", tokens, ", a token and its drafts"));
  }
  return Validate(options.acceptance, options.num_draft_tokens);
}

}  // namespace kvblocks::sim
