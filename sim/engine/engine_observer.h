// EngineObserver: receives the events of a simulation, for measurements. Observers never change a
// schedule; one that computes output tokens decides what later prompts find of them (SimRequest).
//
// Order of calls, per engine iteration at time t:
//   OnArrival | OnRejection, then OnFinish of aborted requests
//   OnLoadFinished              of loads that ended by then
//   OnPreemption, OnAdmissionAttempt and OnAdmission, in scheduling order
//   OnStepScheduled(step)       once per call of the scheduler, also when the step is empty
//   OnFinish                    of requests aborted while the step that ends next was under way
//   OnStepFinished(step)        once per step that is not empty, at its end time
//   OnFinish                    for each request that the step finished, in that order
//   OnKvEvents                  if the manager records events
// With asynchronous scheduling the step that finishes is the one scheduled before the last; at most
// two are under way. Times never go back from one call to the next.
// Every request that arrives gets exactly one OnRejection or OnFinish, unless the run ends early.
// If a session is aborted, its turns that have not arrived get OnFinish only.
//
// Per-token work is batched: one virtual call per step with spans of plain records in scheduling
// order. Spans, records and references are valid during the call; a request stays valid until its
// OnFinish or OnRejection returns. All methods do nothing by default.

#ifndef KVBLOCKS_SIM_ENGINE_ENGINE_OBSERVER_H_
#define KVBLOCKS_SIM_ENGINE_ENGINE_OBSERVER_H_

#include <cstdint>
#include <string_view>

#include "absl/types/span.h"
#include "kvblocks/kv_cache_manager.h"
#include "kvblocks/kv_event.h"
#include "kvblocks/single_type_manager.h"
#include "sim/cost/sim_time.h"
#include "sim/engine/sim_request.h"
#include "sim/trace/trace_request.h"

namespace kvblocks::sim {

struct SchedulerOptions;

// What is fixed for a run.
struct RunInfo {
  const KvCacheManager* manager = nullptr;
  const SchedulerOptions* scheduler = nullptr;
  const TraceInfo* trace = nullptr;
  std::string_view time_source;  // "fixed", "roofline, uncalibrated", ...
};

// A look-up and what it found.
struct AdmissionRecord {
  const SimRequest* request = nullptr;
  // All hashes of known full blocks are in request->kv->content(); blocks(group) of `hits` are the
  // blocks found.
  const ComputedBlocks* hits = nullptr;
  int64_t num_queried_tokens = 0;  // n
  int64_t num_hit_tokens = 0;
  // Behind them, from elsewhere (see KvConnector).
  int64_t num_external_tokens = 0;
  // They come while the request holds its blocks and waits: it enters the running list later,
  // without a further look-up, when OnLoadFinished has been called.
  bool is_load = false;
  bool is_resume = false;  // after a preemption
  // An attempt that can only fail as the last one did; made with exact_steps only.
  bool is_repeat = false;
};

struct PreemptionRecord {
  const SimRequest* request = nullptr;
  // Computed tokens given up, those of a step under way included; a resume may find some again.
  int64_t num_computed_lost = 0;
  int64_t num_refunded_tokens = 0;    // scheduled in this very step and withdrawn
  const SimRequest* cause = nullptr;  // who needed the block; may be the request itself
};

// One request's part of a step.
struct ScheduledRecord {
  // Null in OnStepFinished if the request ended while the step was under way: nothing comes out.
  SimRequest* request = nullptr;
  // Computed before the step, hits included; while an earlier step is under way as if all its
  // drafts will be accepted.
  int64_t num_context = 0;
  int32_t num_tokens = 0;  // in the step, drafts included
  int32_t num_verified_drafts = 0;
  bool is_prefill = false;               // more than one known token was left to compute
  bool is_chunk = false;                 // known tokens remain after the step: no token comes out
  bool is_admission = false;             // entered (or re-entered) the running list in this step
  bool is_padded = false;                // its drafts are padding, all of them rejected
  bool is_loaded = false;                // is_admission, after a load that it waited for
  int32_t num_new_blocks = 0;            // over all groups
  NewBlocks new_blocks = NewBlocks({});  // per group; no groups if num_new_blocks is 0
};

// What came out of one scheduled request, same index as its ScheduledRecord.
struct OutputRecord {
  SimRequest* request = nullptr;  // null if that of the ScheduledRecord is
  int32_t num_emitted = 0;        // output tokens, all at the end of the step; 0 for a chunk
  int32_t num_accepted_drafts = 0;
  int32_t num_rejected_drafts = 0;
  // Tokens of the step by what became of them; their sum is num_tokens - num_rejected_drafts.
  int32_t num_first_time = 0;
  int32_t num_recomputed = 0;  // computed before, lost by preemption
  int32_t num_wasted = 0;      // beyond the token that ended the request, or after its end
  FinishReason finish_reason = FinishReason::kNone;
};

struct PoolState {
  int64_t num_blocks = 0;  // null block included
  int64_t num_free = 0;    // cached ones included
  int64_t num_cached_unreferenced = 0;
  int64_t num_keyed = 0;      // blocks with a key, duplicates included
  int64_t num_keys = 0;       // distinct
  int64_t num_evictions = 0;  // since the start
};

struct StepRecord {
  int64_t step = 0;   // counts steps that are not empty, from 0
  SimTime start = 0;  // when it was scheduled
  // When the device began and ended it; both are known from OnStepFinished on. Each
  // pipeline stage runs one step at a time.
  SimTime device_start = 0;
  SimTime end = 0;
  SimTime stage_time = 0;  // for which pipeline stages compute it, summed over them
  int64_t num_tokens = 0;
  int64_t num_prefill_tokens = 0;
  int64_t num_decode_tokens = 0;  // drafts included
  // Of blocks, made in this order before the step computes anything; an empty step may have some.
  absl::Span<const BlockCopy> copies;
  absl::Span<const ScheduledRecord> scheduled;
  absl::Span<const OutputRecord> outputs;  // empty until OnStepFinished
  // Further requests that decode one token each, inside a block and not their last one, and have no
  // record; 0 unless no observer needs every record. A request that must be looked at again while
  // such a step is under way has a record in OnStepFinished, behind the others.
  int64_t num_skipped = 0;
  int64_t skipped_context = 0;  // sum of their num_context when the step was scheduled
  int64_t num_preempted = 0;  // in this call of the scheduler
  int64_t num_loads_started = 0;  // in this call, for requests that wait for them
  // When the step had been scheduled.
  int64_t num_running = 0;
  int64_t num_waiting = 0;  // preempted and loading requests included
  PoolState pool;

  int64_t num_requests() const { return static_cast<int64_t>(scheduled.size()) + num_skipped; }
};

class EngineObserver {
 public:
  virtual ~EngineObserver() = default;

  // Whether each step must have a record of each of its requests. One that does with num_skipped
  // and OnSkippedDecodes says no: if all do, most decodes cost nothing.
  virtual bool NeedsEveryRecord() const { return true; }

  virtual void OnRunStart(const RunInfo& info) { (void)info; }
  virtual void OnArrival(const SimRequest& request, SimTime now) { (void)request, (void)now; }
  // request.finish_text says why.
  virtual void OnRejection(const SimRequest& request, SimTime now) { (void)request, (void)now; }

  // Right before each attempt to admit a request: neither its blocks nor those of this step's later
  // admissions are registered yet. A request at the head of the queue may be tried many times;
  // attempts that can only fail again are left out.
  virtual void OnAdmissionAttempt(const AdmissionRecord& record, SimTime now) {
    (void)record, (void)now;
  }
  // After the attempt succeeded: blocks are taken, and the full ones among them registered.
  virtual void OnAdmission(const AdmissionRecord& record, SimTime now) { (void)record, (void)now; }
  // The same for a request whose load brought nothing, so that it had to give its blocks back and
  // was looked up again: it was admitted before, and is not preempted.
  virtual void OnReadmission(const AdmissionRecord& record, SimTime now) {
    (void)record, (void)now;
  }
  virtual void OnPreemption(const PreemptionRecord& record, SimTime now) {
    (void)record, (void)now;
  }
  // The load that an admission with is_load started has ended; of its tokens `num_tokens` arrived.
  // Not called if the request was aborted meanwhile.
  virtual void OnLoadFinished(const SimRequest& request, int64_t num_tokens, SimTime now) {
    (void)request, (void)num_tokens, (void)now;
  }

  // Block tables and new blocks can be read here.
  virtual void OnStepScheduled(const StepRecord& step) { (void)step; }
  // The request decoded one token in each of the last `num_steps` steps that finished, without a
  // record. Comes before the request has a record again, is preempted or ends.
  virtual void OnSkippedDecodes(const SimRequest& request, int64_t num_steps) {
    (void)request, (void)num_steps;
  }
  // Finished requests have given their blocks back already; new_blocks is no longer valid.
  virtual void OnStepFinished(const StepRecord& step) { (void)step; }
  // reason: finish_reason of the request; never kRejected.
  virtual void OnFinish(const SimRequest& request, SimTime now) { (void)request, (void)now; }

  virtual void OnKvEvents(absl::Span<const KvEvent> events, SimTime now) {
    (void)events, (void)now;
  }
  virtual void OnRunEnd(SimTime now) { (void)now; }
};

}  // namespace kvblocks::sim

#endif  // KVBLOCKS_SIM_ENGINE_ENGINE_OBSERVER_H_
