// Scheduler: what a step yields - tokens, rejected drafts, requests that end.

#include <algorithm>

#include "block_pool/check.h"
#include "sim/engine/scheduler.h"

namespace kvblocks::sim {

void Scheduler::ProcessOutputs() {
  KVBLOCKS_CHECK(!records_.empty() && outputs_.empty(), "no step is under way");
  outputs_.resize(records_.size());
  for (size_t i = 0; i < records_.size(); ++i) ProcessOutput(records_[i], outputs_[i]);
  if (!finished_.empty()) {
    std::erase_if(running_, [](const SimRequest* request) {
      return request->state == RequestState::kFinished;
    });
  }
  step_.outputs = outputs_;
  ++totals_.num_steps;
  totals_.num_computed += step_.num_tokens;
}

void Scheduler::ProcessOutput(const ScheduledRecord& record, OutputRecord& output) {
  SimRequest& request = *record.request;
  output.request = &request;
  if (!record.is_chunk) {
    if (record.num_verified_drafts > 0) {
      if (!record.is_padded) {
        output.num_accepted_drafts =
            static_cast<int32_t>(sampler_.NumAccepted(request, record.num_verified_drafts));
        ++request.num_verifications;
      }
      output.num_rejected_drafts = record.num_verified_drafts - output.num_accepted_drafts;
      request.num_computed -= output.num_rejected_drafts;
    }
    // Tokens after the one that ends the request are dropped.
    output.num_emitted = static_cast<int32_t>(
        std::min<int64_t>(output.num_accepted_drafts + 1, request.end_tokens - request.num_known));
    request.num_known += output.num_emitted;
    request.num_lonely_preemptions = 0;
    request.num_drafts = static_cast<int32_t>(options_.num_draft_tokens);
  }

  // What the computed tokens were good for.
  const int64_t computed = request.num_computed;
  const bool ends = !record.is_chunk && request.num_known >= request.end_tokens;
  // The last token of a request that ends is known and needs no computing.
  const int64_t useful =
      ends && output.num_emitted > 0 ? std::min(computed, request.num_known - 1) : computed;
  output.num_wasted = static_cast<int32_t>(computed - useful);
  output.num_recomputed = static_cast<int32_t>(std::clamp<int64_t>(
      request.highest_computed - record.num_context, 0, useful - record.num_context));
  output.num_first_time = static_cast<int32_t>(useful - record.num_context) - output.num_recomputed;
  request.highest_computed = std::max(request.highest_computed, useful);

  totals_.num_output_tokens += output.num_emitted;
  totals_.num_first_time += output.num_first_time;
  totals_.num_recomputed += output.num_recomputed;
  totals_.num_wasted += output.num_wasted;
  totals_.num_rejected_drafts += output.num_rejected_drafts;

  if (ends) {
    output.finish_reason = FinishReason::kLength;
    Leave(request, FinishReason::kLength);
    finished_.push_back(&request);
  }
}

}  // namespace kvblocks::sim
