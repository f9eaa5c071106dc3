// Scheduler: continuous batching as in vLLM V1's core, for requests whose output lengths are known.
//
// One engine iteration is Schedule(), which gives tokens to requests, then ProcessOutputs(), which
// emits tokens and ends requests. There is no prefill and no decode phase: first every running
// request gets what its computed tokens lack, preempting others when blocks run out; then waiting
// requests are admitted in order, until one does not fit. Knows neither clock nor trace: `now` is
// passed on to the observer, and a request's content comes with it.
//
// With options.async a step is scheduled while the one before it is under way: each running request
// has placeholders for the tokens that are still to come, and computed tokens count drafts as if
// they will be accepted, until ProcessOutputs puts both right. Only known tokens are registered in
// the prefix table. A request that ends while a later step of it is under way wastes that step's
// tokens; one that is preempted keeps the token that arrives later, and waits for it.
//
// With p pipeline stages p steps are under way, and one more with options.async. Then a request
// whose token is in the pipeline is skipped until that token is known: it gets a token in every
// p-th call. Calls that schedule nothing while steps are under way count, as they do in the engine
// (V-78).
//
// With partial hits a step begins with copies of blocks. They hold their blocks until the step's
// outputs are processed. If a request runs alone and finds no block because of that, it waits for
// them. Where groups have page classes in chunks, it also waits for blocks that other steps free.
//
// A no-op step asks the manager for nothing (see Request::noop_slots). After EnableSkips, a step
// has no records of requests whose next steps are all no-ops. It still counts them, and everything
// else is as if it had the records (see SkippedDecodes).
//
// With cross attention a request takes the blocks of its encoder's input when it enters, again
// after a preemption, and the admissions of a step have no more of such inputs than the encoder
// computes in one (docs/simulator.md). A request that would exceed that is skipped.
//
// With a connector (set_connector) admissions also take KV from elsewhere. A request whose KV comes
// while it waits holds its blocks, in state LOADING; it and those whose load has ended go before
// the waiting queue. Loads are started only where they leave the blocks that prompts under way and
// other loads still need (V-43), so that no two of them wait for each other's blocks.
//
// Always, after ProcessOutputs (CheckInvariants): a request is in exactly one of waiting queue
// and running list, or in neither when pending or finished; tokens of a step <=
// max_num_batched_tokens; running <= max_num_seqs; every running request holds blocks for all its
// computed tokens. Cost per step: about 10 ns per running request that decodes inside a block, or
// none if it is left out (models with full attention only; else one AllocateSlots each), nothing
// allocated in steady state. Single-threaded. The manager and the observer must outlive the
// scheduler; requests must outlive their time in it.

#ifndef KVBLOCKS_SIM_ENGINE_SCHEDULER_H_
#define KVBLOCKS_SIM_ENGINE_SCHEDULER_H_

#include <cstdint>
#include <limits>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "kvblocks/kv_cache_manager.h"
#include "sim/engine/acceptance.h"
#include "sim/engine/engine_observer.h"
#include "sim/engine/kv_connector.h"
#include "sim/engine/scheduler_options.h"
#include "sim/engine/sim_request.h"
#include "sim/engine/skipped_decodes.h"
#include "sim/engine/waiting_queue.h"

namespace kvblocks::sim {

struct SchedulerTotals {
  int64_t num_steps = 0;        // not empty
  int64_t num_empty_steps = 0;  // something was preempted and nothing scheduled
  int64_t num_preemptions = 0;
  int64_t num_block_copies = 0;
  int64_t num_state_checkpoints = 0;  // states exported inside a step, of all groups
  int64_t num_output_tokens = 0;
  int64_t num_encoder_tokens = 0;  // of inputs of encoders, of all admissions
  // num_computed = first_time + recomputed + wasted + rejected_drafts.
  int64_t num_computed = 0;
  int64_t num_first_time = 0;
  int64_t num_recomputed = 0;
  int64_t num_wasted = 0;
  int64_t num_rejected_drafts = 0;
  // Rejected because the pool is too small, and the smallest num_blocks that takes them all.
  int64_t num_too_big = 0;
  int64_t num_blocks_for_too_big = 0;
  // From elsewhere, in tokens of loads of all modes; num_lost of them did not arrive whole, or were
  // of no use since their request failed.
  int64_t num_loads = 0;
  int64_t num_external = 0;
  int64_t num_failed_loads = 0;
  int64_t num_lost = 0;

  friend bool operator==(const SchedulerTotals&, const SchedulerTotals&) = default;
};

class Scheduler {
 public:
  // InvalidArgument for options that Validate refuses. `trace` says how contents are named.
  static absl::StatusOr<std::unique_ptr<Scheduler>> Create(const SchedulerOptions& options,
                                                           KvCacheManager* manager,
                                                           const TraceInfo& trace,
                                                           EngineObserver* observer);
  Scheduler(const Scheduler&) = delete;
  Scheduler& operator=(const Scheduler&) = delete;

  // From now on steps have no records of requests that decode inside a block. Without drafts and
  // lookahead, and with full attention only; else nothing changes.
  void EnableSkips();

  // Where KV comes from that the pool does not hold; not owned. Before the first Submit, and not
  // with cross attention, whose rows do not come from elsewhere.
  void set_connector(KvConnector* connector) { connector_ = connector; }

  // Takes note of what the connector tells, before Schedule(now).
  void TakeConnectorEvents(SimTime now);

  // Takes a pending request in. False: it can never be served; then finish_text says why and the
  // request is finished. REQUIRES: num_prompt, max_output and arrival are set.
  bool Submit(SimRequest& request);

  // Ends a waiting, loading, preempted or running request between two iterations and frees its
  // blocks; those that a load writes into when it has ended.
  void Abort(SimRequest& request, AbortCause cause, SimTime now);

  // One of those that it has, to be aborted; null: none is left.
  SimRequest* AnyRequest();

  // With a prefill_schedule_interval, whether the next step leaves prompts alone while something
  // decodes. From the first call on the caller counts the steps in place of the scheduler.
  void HoldPrompts(bool holds) { told_to_hold_ = holds; }

  // Decides the next step. step().scheduled is empty if nothing can run; otherwise the step is
  // under way from now on. REQUIRES: has_room().
  void Schedule(SimTime now);

  // Emits the tokens of the oldest step under way and ends requests; returns its record, completed,
  // which is good until the next Schedule. REQUIRES: num_in_flight() > 0.
  StepRecord& ProcessOutputs();

  int64_t num_in_flight() const { return num_in_flight_; }
  // The step that ProcessOutputs takes next. REQUIRES: num_in_flight() > 0.
  StepRecord& oldest_step() { return InFlight(0).record; }
  int64_t max_in_flight() const { return static_cast<int64_t>(steps_.size()); }
  // Whether one more call comes before the oldest step's end.
  bool has_room() const { return queue_length_ < max_in_flight(); }
  // When the device has the input tokens of the step just scheduled; 0: at once.
  SimTime InputsReady();

  // Of the last Schedule; device_start and end are the caller's to fill.
  StepRecord& step() { return step_->record; }
  bool step_is_empty() const { return step_->scheduled.empty() && step_->record.num_skipped == 0; }
  // In the order in which their blocks were freed, by the last ProcessOutputs.
  absl::Span<SimRequest* const> finished() const { return finished_; }
  // Those whose load failed and that ended by it, by the last TakeConnectorEvents.
  absl::Span<SimRequest* const> failed() const { return failed_; }
  // A request that ran alone preempted itself twice without a token in between, or null: it can
  // never finish.
  const SimRequest* stuck() const { return stuck_; }

  int64_t num_running() const { return static_cast<int64_t>(visited_.size()) + skipped_.size(); }
  // Loading ones included.
  int64_t num_waiting() const { return static_cast<int64_t>(waiting_.size() + holding_.size()); }
  // Loads under way, and holds of blocks that the connector has not ended yet.
  int64_t num_connector_debts() const {
    return static_cast<int64_t>(loads_.size() + orphans_.size() + holds_.size());
  }
  const WaitingQueue& waiting() const { return waiting_; }
  const SchedulerTotals& totals() const { return totals_; }
  const SchedulerOptions& options() const { return options_; }
  const KvCacheManager& manager() const { return *manager_; }

  // Why nothing moves: the request, the blocks it needs, the blocks there are, and what would help.
  std::string DescribeNoProgress() const;

  // OK, or what is wrong, in words. O(number of blocks): for tests and debug builds.
  absl::Status CheckInvariants() const;

 private:
  Scheduler(const SchedulerOptions& options, KvCacheManager* manager, const TraceInfo& trace,
            EngineObserver* observer);

  // scheduler.cc: requests coming and going.
  int64_t LongestNumSlots(const SimRequest& request) const;
  int64_t LongestNumBlocks(const SimRequest& request) const;
  // What such a request holds at most when so many tokens have slots.
  int64_t NumBlocksFor(const SimRequest& request, int64_t num_tokens) const;
  int64_t SmallestPoolFor(const SimRequest& request) const;
  void Leave(SimRequest& request, FinishReason reason);
  void GiveBack(SimRequest& request, FinishReason reason);
  void TellTime(SimTime now);
  void Retain(const SimRequest& request);

  struct Step {
    StepRecord record;
    std::vector<ScheduledRecord> scheduled;
    std::vector<OutputRecord> outputs;
    std::vector<BlockCopy> copies;
    int64_t num_empty_behind = 0;  // calls behind it, before the next step
  };
  Step& InFlight(int64_t i) { return steps_[static_cast<size_t>((oldest_ + i) % max_in_flight())]; }

  // scheduler_step.cc: one step.
  bool has_copies() const {
    return manager_->options().partial_hits && manager_->options().enable_caching;
  }
  void TakeCopies();
  void ScheduleRunning(SimTime now);
  int64_t LongestPart() const;
  bool HoldsPrompts() const;
  bool LeavesWaiting() const;
  void CountPromptStep();
  bool AllocateRunning(SimRequest& request, int64_t num_tokens, size_t& index, SimTime now);
  SimRequest* TakeVictim(size_t& index);
  bool HasPart(const SimRequest& request) const;
  void Preempt(SimRequest& victim, const SimRequest& cause, SimTime now);
  void ScheduleWaiting(SimTime now);
  void AdmitWaiting(SimTime now);

  // scheduler_order.cc
  void OrderWaiting();
  void LookUpWaiting(absl::Span<SimRequest* const> requests);
  void KeysByLongestPrefix(absl::Span<SimRequest* const> requests);
  void KeysByPrefixTree(absl::Span<SimRequest* const> requests);
  bool HasReserve(const SimRequest& request) const;
  void Reserve(SimRequest& request);
  void Unreserve(SimRequest& request);

  void NotifyAdmission(const AdmissionRecord& admission, SimTime now);
  enum class Sized { kEnters, kWaits, kLetsOthersPass };
  Sized SizeAdmission(const SimRequest& request, ScheduledRecord& record) const;
  void Enter(SimRequest& request, const ScheduledRecord& record);
  bool StartsAfresh(const SimRequest* request) const;
  bool IsStillBlocked(const SimRequest& head) const;
  void RememberBlocked(const SimRequest& head, const ScheduledRecord& attempt);
  bool PadsAdmission(int64_t num_hits) const;
  void Record(SimRequest& request, const ScheduledRecord& record);
  void SyncContent(SimRequest& request);
  void UpdateNoopSlots(SimRequest& request);
  int64_t NoopSlotsIfSkipped(const SimRequest& request) const;

  // scheduler_loads.cc: KV from elsewhere.
  ExternalMatch MatchExternal(SimRequest& request, SimTime now);
  bool StartLoading(SimRequest& request, const AdmissionRecord& admission, SimTime now);
  void NotifyConnector(SimRequest& request, int64_t num_external, LoadMode mode, SimTime now);
  int64_t BlocksStillNeeded(const SimRequest& request) const;
  int64_t BlocksReservedForLoads() const;
  void FailIfLost(SimRequest& request);
  bool SettleLoad(SimRequest& request);
  bool AdmitLoaded();
  void SetAside(SimRequest& request);
  void ReturnSetAside();
  void FreeHeld(const std::vector<BlockId>& blocks);
  bool IsHolding(const SimRequest& request) const;

  // Skipped decodes, in scheduler_outputs.cc.
  void StopSkippingForStep();
  void StopSkippingAll();
  void StopSkipping(SimRequest& request);
  bool CanSkip() const;
  bool HasBlocksFor(int64_t num_tokens) const;
  void SkipDecodes();

  int64_t PartOfPrompt(const SimRequest& request, int64_t computed, int64_t num_tokens) const;
  int64_t CheckpointIn(const SimRequest& request, int64_t begin, int64_t end) const;
  void CountCheckpoint(const SimRequest& request);
  int64_t PartUpToState(const SimRequest& request, int64_t computed, int64_t num_tokens) const;

  // scheduler_outputs.cc: what a step yields.
  void ProcessOutput(const ScheduledRecord& record, OutputRecord& output);
  void RegisterSettled(SimRequest& request, int64_t num_tokens_ahead);

  const SchedulerOptions options_;
  KvCacheManager* const manager_;
  const TraceInfo trace_;
  EngineObserver* const observer_;
  const AcceptanceSampler sampler_;
  const int64_t max_model_len_;
  KvConnector* connector_ = nullptr;
  bool is_all_full_attention_ = true;
  int64_t boundary_tokens_ = 0;  // blocks of all groups and hash blocks end at multiples of it
  // What requests are measured in: blocks, or chunks in the native layout.
  const char* unit_ = "blocks";
  int64_t ids_per_unit_ = 1;
  int64_t num_usable_blocks_ = 0;
  int64_t token_budget_ = 0;  // of a step
  bool registers_outputs_ = false;
  int64_t max_active_ = 0;    // nobody is admitted while so many run
  // States can be reused where a part of a prompt ends at a multiple of it; 0: there are none.
  int64_t state_boundary_ = 0;
  int64_t longest_state_part_ = 0;  // that a step takes of a prompt, whatever else runs
  const SingleTypeManager* inner_states_ = nullptr;  // found inside blocks; null: there are none
  std::vector<const SingleTypeManager*> checkpoint_states_;  // exported inside steps; all, or none
  int64_t num_hash_lookahead_ = 0;     // tokens behind a block that its hash covers
  int64_t num_prefill_lookahead_ = 0;  // and behind a part of a prompt that the drafter reads
  // Longest input of the encoder; negative: no group attends to one.
  int64_t max_encoder_tokens_ = -1;

  WaitingQueue waiting_;
  // Waiting requests that hold blocks because their KV is on its way or has just come, in the order
  // in which they are looked at.
  std::vector<SimRequest*> holding_;
  std::vector<SimRequest*> set_aside_;  // in this step
  std::map<int64_t, SimRequest*> loads_;  // under way, by number
  // Blocks out of requests that are gone: loads write into them, or others read them.
  std::map<int64_t, std::vector<BlockId>> orphans_, holds_;
  int64_t num_loads_ = 0, num_holds_ = 0;
  size_t first_admitted_ = 0;  // of visited_, in this step
  std::vector<SimRequest*> failed_;
  ConnectorEvents events_;     // scratch
  SimTime now_ = 0;
  // The running list: those a step looks at, in admission order, and the others.
  std::vector<SimRequest*> visited_;
  SkippedDecodes skipped_;
  int64_t num_admissions_ = 0;
  bool skips_decodes_ = false;
  int64_t no_skips_until_ = 0;  // step

  // Steps under way, the oldest first, then the next one to be scheduled.
  std::vector<Step> steps_;
  int64_t oldest_ = 0;
  int64_t num_in_flight_ = 0;
  int64_t queue_length_ = 0;  // calls since that of the oldest step, with it
  int64_t num_calls_ = 0;
  int64_t needed_step_ = -1;  // the last one whose tokens the step just scheduled goes on from
  int64_t num_scheduled_steps_ = 0;  // not empty

  // The step that is being scheduled.
  Step* step_ = nullptr;
  int64_t budget_ = 0;
  int64_t slot_budget_ = 0;   // of which draft slots take a part, too
  int64_t encoder_budget_ = 0;  // tokens of encoders' inputs
  int64_t longest_part_ = 0;  // of one request, in tokens
  int64_t num_prefills_ = 0;  // entries that compute more than one known token
  int64_t num_walked_ = 0;    // entries of the walk over running requests
  int64_t num_prompt_parts_ = 0;  // of these, of requests that had not come to their prompt's end
  bool holds_prompts_ = false;
  // A request runs alone and finds no block until a step under way is processed, which releases
  // copies.
  bool waits_alone_ = false;
  const SimRequest* stuck_ = nullptr;

  // With a prefill_schedule_interval: the last step that computed prompts, and whether requests
  // were left waiting when they were last admitted.
  int64_t last_prompt_step_ = std::numeric_limits<int64_t>::min() / 2;
  bool queue_was_left_ = false;
  std::optional<bool> told_to_hold_;

  std::vector<SimRequest*> finished_;

  // The head that did not fit last time. While no block is freed, no preemption happens and the key
  // of its first missing block stays unknown, it can only fail again with as many tokens or more.
  struct Blocked {
    const SimRequest* head = nullptr;  // null: try
    int64_t num_tokens = 0;
    int64_t num_hits = 0;
    bool is_padded = false;  // or it would have asked for one token only
    bool has_missing = false;
    BlockHash first_missing = {};
  };
  Blocked blocked_;

  int64_t num_reserved_ = 0;  // blocks, of running requests at their longest; kNoEvict

  // Scratch.
  ComputedBlocks hits_;
  std::vector<absl::Span<const BlockHash>> paths_;  // cached blocks of waiting requests
  std::vector<BlockHash> hashes_;
  std::vector<TokenId> tokens_;
  std::vector<SimRequest*> returning_;
  NewBlocks last_new_blocks_ = NewBlocks({});

  SchedulerTotals totals_;
};

}  // namespace kvblocks::sim

#endif  // KVBLOCKS_SIM_ENGINE_SCHEDULER_H_
