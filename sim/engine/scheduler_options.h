// SchedulerOptions: the scheduler's knobs, under the names that serving engines give them.
//
// Plain data; Validate refuses what no schedule can be made from. Every message names the field,
// its value and the limit.

#ifndef KVBLOCKS_SIM_ENGINE_SCHEDULER_OPTIONS_H_
#define KVBLOCKS_SIM_ENGINE_SCHEDULER_OPTIONS_H_

#include <cstdint>
#include <optional>
#include <string_view>
#include <vector>

#include "absl/status/status.h"
#include "sim/engine/acceptance.h"
#include "sim/engine/retention_rules.h"
#include "sim/engine/scheduler_rules.h"

namespace kvblocks::sim {

// Which request is admitted next (SM-29). Unless said otherwise, ties go by arrival and then by
// submission index, also for preempted requests, and the request admitted last is preempted first.
enum class SchedulingPolicy {
  kFcfs,            // by arrival; preempted requests go to the front
  kPriority,        // by priority; the largest (priority, arrival, index) is preempted first
  kShortestPrompt,  // needs no knowledge of outputs
  kLongestOutput,   // as the trace says, which an engine cannot know
  kRandom,          // an order drawn once per request, by policy_seed
  // The longest cached prefix, looked up anew in each step; by arrival while more than 128 wait. Of
  // requests with hits of at most 32 tokens that begin with the same 32 or more tokens, the first
  // goes, and the others last: they will hit what it fills. As SGLang's lpm. Cost per step: a
  // look-up per waiting request.
  kLongestPrefix,
  // Along the tree of cached prefixes, depth first, where more requests wait first, and a node's
  // own requests after those below it. As SGLang's dfs-weight. Cost per step: a look-up per waiting
  // request, and sorting them by the blocks that they hit.
  kPrefixTree,
  // FCFS, but a request is admitted only if the pool holds all running requests at their longest,
  // sharing nothing: no request is ever preempted, unless a connector holds blocks. As
  // TensorRT-LLM's GUARANTEED_NO_EVICT.
  kNoEvict,
};

// "fcfs", "priority", "sjf", "lof", "random", "lpm", "dfs-weight", "max-no-evict".
std::string_view SchedulingPolicyName(SchedulingPolicy policy);
std::optional<SchedulingPolicy> ParseSchedulingPolicy(std::string_view name);

constexpr bool OrdersByPrefix(SchedulingPolicy policy) {
  return policy == SchedulingPolicy::kLongestPrefix || policy == SchedulingPolicy::kPrefixTree;
}

enum class TooBigRequest { kReject, kRun };

// What becomes of a request of which an asynchronous load brought less than asked for.
enum class LoadFailurePolicy {
  kRecompute,  // the rest is computed
  kFail,       // it ends with an error, and its blocks are free
};

inline constexpr int64_t kMostPipelineStages = 64;

struct SchedulerOptions {
  SchedulerRules rules;

  int64_t max_num_batched_tokens = 8192;  // T, per step
  // Tokens given to requests per step; 0: T. The engine keeps a second budget of T, of which each
  // request takes num_draft_slots more than its tokens (V-71).
  int64_t max_num_scheduled_tokens = 0;
  int64_t num_draft_slots = 0;
  int64_t max_num_seqs = 256;  // S, running at once
  // Nobody is admitted while so many run; 0: S (V-73).
  int64_t max_num_active_seqs = 0;
  // Longest prefill part of one request per step; 0: no limit (V-70).
  int64_t long_prefill_token_threshold = 0;
  // The threshold is at least T divided by the number of requests, running and waiting (V-70).
  bool adaptive_prefill_threshold = false;
  // At least so many steps from one that computes prompts to the next while something decodes, 1:
  // no limit (V-77).
  int64_t prefill_schedule_interval = 1;
  bool enable_chunked_prefill = true;
  SchedulingPolicy policy = SchedulingPolicy::kFcfs;
  uint64_t policy_seed = 0;  // of kRandom
  // Admit only what could hold all its known tokens at once.
  bool reserve_full_isl = true;
  // A step is scheduled while the one before it runs, without knowing its outputs.
  bool async = true;
  // p, each with a part of the layers. So many steps are under way at once, and one more with async
  // (SM-28, V-78).
  int64_t pipeline_stages = 1;

  int64_t num_draft_tokens = 0;      // K, proposed after each step that emits a token
  int64_t num_lookahead_tokens = 0;  // LA, slots that the drafter writes
  AcceptanceModel acceptance;

  // Of the encoder's input, of requests whose specs do not say; with cross attention.
  int64_t num_encoder_tokens = 0;

  // A request that the whole pool could not hold when it is longest.
  TooBigRequest too_big = TooBigRequest::kReject;

  LoadFailurePolicy load_failure_policy = LoadFailurePolicy::kRecompute;

  // What is retained when a request ends with all its output. Needs a manager whose
  // max_retained_share is above 0.
  std::vector<RetentionRule> retention;

  // Checks every request in every step. Asks the manager for each and for the head of the queue,
  // even if the answer is known. Changes no result; slower.
  bool exact_steps = false;
};

absl::Status Validate(const SchedulerOptions& options);

}  // namespace kvblocks::sim

#endif  // KVBLOCKS_SIM_ENGINE_SCHEDULER_OPTIONS_H_
