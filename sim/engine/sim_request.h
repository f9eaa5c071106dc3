// SimRequest: one request while the simulator knows it - what the trace asks for, how far it got,
// and the block manager's part of it.
//
// The scheduler moves the counters; everyone else reads. Two moments matter to readers: between
// Schedule and ProcessOutputs num_computed already includes the steps under way. And the counters
// of a skipped request (see SkippedDecodes) do not change until it is due. Its full blocks do not
// change either, nor does anything derived from them. `kv` exists from the first prefix look-up on,
// and its token counters may lag behind num_known and num_computed while a request decodes inside a
// block: read the counters here, and use `kv` for block tables (KvCacheManager::GetBlocks) and for
// hashes. The caller of Submit may make `kv` earlier, from the token ids of its prompt: then
// blocks are hashed and reported as an engine would, and spec.output_ids must have an id for each
// output token. Or an observer computes the tokens: it writes them into spec.output_ids, and into
// spec.accepted_drafts how many drafts it accepts, in OnStepScheduled of the step that yields them,
// before anything reads them. Both have room for all from the start (examples/engine).
//
// Always: num_known = spec.input_length + num_outputs; draft tokens are never part of it.
//         While it runs, num_settled <= num_computed, equal unless a step of it is under way.
//         slot is unique among live requests, small, and reused after the request is gone.

#ifndef KVBLOCKS_SIM_ENGINE_SIM_REQUEST_H_
#define KVBLOCKS_SIM_ENGINE_SIM_REQUEST_H_

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <string_view>

#include "kvblocks/request.h"
#include "sim/cost/sim_time.h"
#include "sim/trace/content_keys.h"
#include "sim/trace/trace_request.h"

namespace kvblocks::sim {

enum class RequestState : uint8_t {
  kPending,
  kWaiting,
  kLoading,  // waiting or preempted, with blocks for KV that is on its way
  kRunning,
  kPreempted,
  kFinished,
};

enum class FinishReason : uint8_t { kNone, kStop, kLength, kAbort, kRejected, kError };

// Why a request was aborted. Each cause has its own count.
// kCrash: its engine crashed; the caller may submit the request to another one.
enum class AbortCause : uint8_t { kNone, kAbortTime, kQueueTime, kSession, kCrash };

std::string_view FinishReasonName(FinishReason reason);
std::string_view AbortCauseName(AbortCause cause);

struct SimRequest {
  // --- Read and written in every step ---
  int64_t num_known = 0;     // n: prompt plus accepted output
  int64_t num_computed = 0;  // c: scheduled or adopted from the prefix cache
  // The part of num_computed whose steps' outputs have been processed. A preempted request keeps it
  // until the last step that it was part of is processed.
  int64_t num_settled = 0;
  int64_t end_tokens = 0;   // finished when num_known reaches it: min(P + M, longest sequence)
  int64_t full_length = 0;  // P + M
  int64_t noop_slots = 0;   // as kv says, or 0 if every step is to be looked at
  int32_t num_drafts = 0;   // d: attached for the next step
  // ph: output tokens and drafts that steps under way will settle; 0 when scheduling is
  // synchronous.
  int32_t num_placeholders = 0;
  int32_t num_steps_in_flight = 0;
  // Asynchronously: its last step that yields a token, and the first call of the scheduler that may
  // give it the next one.
  int64_t token_step = -1;
  int64_t next_call = 0;
  bool is_chunk = false;  // known tokens remained behind its last step
  bool is_deferred = false;  // set aside or loading since it last ran
  int64_t admission = -1;    // counts admissions of all requests: the order of the running list
  int64_t skipped_since = -1;  // the last step that had a record of it; -1: not skipped
  int64_t due = -1;            // while skipped: the next step that will
  int32_t slot = -1;
  RequestState state = RequestState::kPending;
  FinishReason ending = FinishReason::kLength;  // how it ends with all its output; or kStop
  FinishReason finish_reason = FinishReason::kNone;
  AbortCause abort_cause = AbortCause::kNone;
  std::unique_ptr<Request> kv;

  // --- Now and then ---
  int64_t num_prompt = 0;         // P
  int64_t max_output = 0;         // M, after --zero-output
  // Of the encoder's input, once submitted: as its spec says, or the scheduler's options. 0 without
  // cross attention.
  int64_t num_encoder = 0;
  int64_t highest_computed = 0;   // of all admissions: below it, computing is recomputing
  int64_t num_verifications = 0;  // steps with drafts; indexes the acceptance stream
  int32_t num_preemptions = 0;
  // Of the latest load, of KV from elsewhere (see KvConnector).
  int64_t load = -1;             // its number while it is under way
  int64_t num_load_hits = 0;     // found in the pool before it
  int64_t num_load_tokens = 0;   // behind them
  int64_t num_arrived = -1;      // when it has ended: so many of them came; -1: taken note of
  bool has_lost_load = false;    // it brought nothing; until the request runs
  // How often it preempted itself while it ran alone, since its last token.
  int32_t num_lonely_preemptions = 0;
  SimTime arrival = 0;       // when it was delivered to the engine, dependencies included
  SimTime resent = -1;       // when it was sent to another engine, since its own had crashed
  int64_t queue_key = 0;     // the smallest is admitted first, unless the policy is FCFS
  int64_t num_reserved = 0;  // blocks that kNoEvict counts for it while it runs
  uint64_t session_key = 0;  // for counting active sessions; 0: belongs to none
  std::optional<ContentKeys> keys;
  TraceRequest spec;
  std::string finish_text;  // rejected: why

  int64_t num_outputs() const { return num_known - num_prompt; }
  bool was_preempted() const { return num_preemptions > 0; }
  // Ended between steps, before it had all its output: given up, or its load failed.
  bool was_cut_short() const {
    return finish_reason == FinishReason::kAbort || finish_reason == FinishReason::kError;
  }
  // Ended with all its output.
  bool is_completed() const {
    return finish_reason == FinishReason::kLength || finish_reason == FinishReason::kStop;
  }
};

}  // namespace kvblocks::sim

#endif  // KVBLOCKS_SIM_ENGINE_SIM_REQUEST_H_
