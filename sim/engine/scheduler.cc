#include "sim/engine/scheduler.h"

#include <algorithm>
#include <limits>
#include <numeric>
#include <optional>
#include <utility>

#include "absl/strings/str_cat.h"
#include "checks/status_macros.h"
#include "kvblocks/check.h"
#include "kvblocks/request_footprint.h"

namespace kvblocks::sim {

absl::StatusOr<std::unique_ptr<Scheduler>> Scheduler::Create(const SchedulerOptions& options,
                                                             KvCacheManager* manager,
                                                             const TraceInfo& trace,
                                                             EngineObserver* observer) {
  KVBLOCKS_RETURN_IF_ERROR(Validate(options));
  if (OrdersByPrefix(options.policy) && manager->hashing() == nullptr) {
    return InvalidArgument(
        "scheduler.policy is ", std::string(SchedulingPolicyName(options.policy)),
        ", which orders requests by their cached prefixes, but prefix caching is off");
  }
  return std::unique_ptr<Scheduler>(new Scheduler(options, manager, trace, observer));
}

Scheduler::Scheduler(const SchedulerOptions& options, KvCacheManager* manager,
                     const TraceInfo& trace, EngineObserver* observer)
    : options_(options),
      manager_(manager),
      trace_(trace),
      observer_(observer),
      sampler_(options.acceptance, options.num_draft_tokens),
      max_model_len_(manager->options().max_model_len),
      waiting_(options.policy, options.policy_seed),
      steps_(static_cast<size_t>(options.pipeline_stages + (options.async ? 1 : 0))),
      step_(&steps_[0]) {
  for (GroupId g = 0; g < manager_->num_groups(); ++g) {
    const SingleTypeManager& group = manager_->group(g);
    is_all_full_attention_ = is_all_full_attention_ && group.keeps_all_blocks();
    boundary_tokens_ = std::gcd(boundary_tokens_, group.block_size());
    if (group.spec().kind() == KvCacheSpecKind::kCrossAttention) {
      max_encoder_tokens_ = manager_->options().max_encoder_tokens.value_or(max_model_len_);
    }
    const auto* mamba = group.spec().get_if<MambaSpec>();
    if (mamba != nullptr && mamba->options().cache_mode == MambaCacheMode::kAlign) {
      state_boundary_ = std::lcm(std::max<int64_t>(state_boundary_, 1), group.block_size());
      // Any of them: where a prompt's last state can be found is the same for all.
      if (has_copies() && group.block_size() > manager_->hash_block_size()) inner_states_ = &group;
    }
  }
  for (GroupId g = 0; g < manager_->num_groups() && state_boundary_ > 0; ++g) {
    const auto* mamba = manager_->group(g).spec().get_if<MambaSpec>();
    if (mamba == nullptr || mamba->options().cache_mode != MambaCacheMode::kAlign) continue;
    if (mamba->options().num_checkpoint_blocks == 0) {
      checkpoint_states_.clear();
      break;
    }
    checkpoint_states_.push_back(&manager_->group(g));
  }
  if (manager_->hashing() != nullptr) {
    boundary_tokens_ = std::gcd(boundary_tokens_, manager_->hash_block_size());
  }
  if (manager_->num_groups() == 0) {
    is_all_full_attention_ = false;
    boundary_tokens_ = 1;
  }
  num_usable_blocks_ = manager_->pool().num_blocks() - 1 - manager_->pool().num_permanent();
  if (const PageChunks* chunks = manager_->pool().chunks()) {
    unit_ = "chunks";
    ids_per_unit_ = chunks->ids_per_chunk();
    num_usable_blocks_ = chunks->num_chunks();
  }
  token_budget_ = options_.max_num_scheduled_tokens > 0 ? options_.max_num_scheduled_tokens
                                                        : options_.max_num_batched_tokens;
  max_active_ = options_.max_num_active_seqs > 0 ? options_.max_num_active_seqs
                                                 : options_.max_num_seqs;
  if (manager_->hashing() != nullptr) {
    num_hash_lookahead_ = manager_->hashing()->num_lookahead_tokens;
  }
  num_prefill_lookahead_ = manager_->options().prefill_lookahead_tokens;
  registers_outputs_ =
      options_.async ||
      (options_.num_draft_tokens > 0 && options_.rules.registers_with_sync_outputs);
  longest_state_part_ =
      std::min(token_budget_, options_.max_num_batched_tokens - options_.num_draft_slots);
  if (options_.long_prefill_token_threshold > 0) {
    longest_state_part_ = std::min(longest_state_part_, options_.long_prefill_token_threshold);
  }
}

void Scheduler::EnableSkips() {
  skips_decodes_ = !options_.exact_steps && is_all_full_attention_ &&
                   manager_->pool().chunks() == nullptr && options_.num_draft_tokens == 0 &&
                   options_.num_lookahead_tokens == 0 && options_.pipeline_stages == 1;
}

// --- Requests coming and going ---

int64_t Scheduler::NumBlocksFor(const SimRequest& request, int64_t num_tokens) const {
  int64_t sum = 0;
  const PageChunks* chunks = manager_->pool().chunks();
  std::vector<int64_t> pages(chunks == nullptr ? 0 : static_cast<size_t>(chunks->num_classes()));
  for (GroupId g = 0; g < manager_->num_groups(); ++g) {
    const SingleTypeManager& group = manager_->group(g);
    int64_t blocks = group.NumBlocksFor(num_tokens);
    std::optional<int64_t> cap = group.admission_cap();
    if (group.output_cap()) cap = group.NumBlocksFor(request.num_prompt) + *group.output_cap();
    if (cap) {
      // The cap knows the tokens of steps under way, not the slots behind them.
      blocks = std::min(blocks, *cap + group.NumBlocksFor(options_.num_lookahead_tokens));
    }
    if (group.spec().kind() == KvCacheSpecKind::kRing) blocks = 1;
    if (group.spec().kind() == KvCacheSpecKind::kCrossAttention) {
      blocks = group.NumBlocksFor(request.num_encoder);
    }
    if (group.spec().kind() == KvCacheSpecKind::kMamba) {
      const auto states = MaxBlocksPerRequest(
          group.spec(), {.max_model_len = num_tokens, .max_in_flight_tokens = num_tokens});
      KVBLOCKS_CHECK(states.ok(), states.status().ToString());
      // One more where a state that others can hit moves out of the way of the next.
      const bool may_move = group.makes_copies();
      // And where states are given back when the step behind them is over, one per further step.
      const bool is_aligned =
          group.spec().get_if<MambaSpec>()->options().cache_mode == MambaCacheMode::kAlign;
      blocks = *states + std::max<int64_t>(may_move ? 1 : 0, is_aligned ? max_in_flight() - 1 : 0);
    }
    sum += blocks;
    if (chunks != nullptr) pages[static_cast<size_t>(chunks->ClassOfGroup(g))] += blocks;
  }
  if (chunks == nullptr) return sum;
  int64_t num_chunks = 0;
  for (int32_t c = 0; c < chunks->num_classes(); ++c) {
    num_chunks += BlockSize(chunks->pages_per_chunk(c)).CeilDiv(pages[static_cast<size_t>(c)]);
  }
  return num_chunks;
}

int64_t Scheduler::LongestNumSlots(const SimRequest& request) const {
  // The last output token is never computed; the drafts of a request's steps under way and the
  // lookahead reach beyond it.
  const int64_t longest = request.num_prompt + request.max_output;
  const int64_t reach =
      longest - 1 + (options_.async ? 2 : 1) * options_.num_draft_tokens +
      options_.num_lookahead_tokens;
  return std::min(std::max(longest, reach), max_model_len_);
}

int64_t Scheduler::LongestNumBlocks(const SimRequest& request) const {
  return NumBlocksFor(request, LongestNumSlots(request));
}

// In block ids, those that no request can use included.
int64_t Scheduler::SmallestPoolFor(const SimRequest& request) const {
  return LongestNumBlocks(request) * ids_per_unit_ + 1 + manager_->pool().num_permanent();
}

bool Scheduler::Submit(SimRequest& request) {
  const int64_t prompt = request.num_prompt;
  const bool has_encoder = max_encoder_tokens_ >= 0;
  request.num_encoder =
      has_encoder ? request.spec.encoder_tokens.value_or(options_.num_encoder_tokens) : 0;
  if (prompt <= 0) {
    request.finish_text = absl::StrCat("prompt has ", prompt, " tokens, expected at least 1");
  } else if (prompt >= max_model_len_) {
    request.finish_text =
        absl::StrCat("prompt has ", prompt, " tokens, expected less than max_model_len, which is ",
                     max_model_len_);
  } else if (has_encoder &&
             (request.num_encoder < 0 || request.num_encoder > max_encoder_tokens_)) {
    request.finish_text =
        absl::StrCat("the encoder's input has ", request.num_encoder,
                     " tokens, expected 0 to max_encoder_tokens, which is ", max_encoder_tokens_);
  } else if (options_.too_big == TooBigRequest::kReject &&
             LongestNumBlocks(request) > num_usable_blocks_) {
    ++totals_.num_too_big;
    totals_.num_blocks_for_too_big =
        std::max(totals_.num_blocks_for_too_big, SmallestPoolFor(request));
    request.finish_text = absl::StrCat(
        "prompt ", prompt, " + output ", request.max_output,
        request.num_encoder > 0
            ? absl::StrCat(" tokens and ", request.num_encoder, " of the encoder's input")
            : std::string(" tokens"),
        " need ",
        LongestNumBlocks(request), " ", unit_, ", but the pool has ", num_usable_blocks_,
        " usable ones (raise --num-blocks; --too-big=run admits such requests)");
  }
  if (!request.finish_text.empty()) {
    request.state = RequestState::kFinished;
    request.finish_reason = FinishReason::kRejected;
    return false;
  }
  request.full_length = prompt + request.max_output;
  request.end_tokens = std::min(request.full_length, max_model_len_);
  request.state = RequestState::kWaiting;
  if (request.kv != nullptr) request.kv->set_longest_length(LongestNumSlots(request));
  waiting_.AddArrived(&request);
  return true;
}

// To those who keep blocks for a while.
void Scheduler::TellTime(SimTime now) {
  now_ = now;
  if (options_.retention.empty()) return;
  KVBLOCKS_CHECK_OK(manager_->AdvanceTime(now));
}

// Before its blocks are freed.
void Scheduler::Retain(const SimRequest& request) {
  for (const RetentionRule& rule : options_.retention) {
    const std::optional<RetainParams> params = ParamsOf(rule, request);
    if (!params) continue;
    const auto outcome = manager_->Retain(*request.kv, *params);
    KVBLOCKS_CHECK(outcome.ok(), outcome.status().ToString());
  }
}

void Scheduler::Leave(SimRequest& request, FinishReason reason) {
  if (request.kv != nullptr) {
    if (reason == request.ending) Retain(request);
    if (connector_ != nullptr) GiveBack(request, reason);
    KVBLOCKS_CHECK_OK(manager_->Free(*request.kv));
    request.kv->set_status(RequestStatus::kFinished);
  }
  // Steps under way still run, for nobody.
  for (int64_t i = 0; i < num_in_flight_ && request.num_steps_in_flight > 0; ++i) {
    for (ScheduledRecord& record : InFlight(i).scheduled) {
      if (record.request == &request) record.request = nullptr;
    }
  }
  request.num_drafts = 0;
  Unreserve(request);
  request.state = RequestState::kFinished;
  request.finish_reason = reason;
  blocked_.head = nullptr;
}

void Scheduler::Abort(SimRequest& request, AbortCause cause, SimTime now) {
  now_ = now;
  if (IsHolding(request)) {
    holding_.erase(std::find(holding_.begin(), holding_.end(), &request));
  } else if (request.state == RequestState::kRunning) {
    if (request.skipped_since >= 0) {
      skipped_.Remove(request, num_scheduled_steps_);
      StopSkipping(request);
    } else {
      visited_.erase(std::find(visited_.begin(), visited_.end(), &request));
    }
  } else if (request.state == RequestState::kWaiting || request.state == RequestState::kPreempted) {
    waiting_.Remove(&request);
  } else {
    KVBLOCKS_CHECK(request.state == RequestState::kPending,
                   absl::StrCat("request ", request.spec.id, " is finished already"));
  }
  Leave(request, FinishReason::kAbort);
  request.abort_cause = cause;
}

SimRequest* Scheduler::AnyRequest() {
  if (!holding_.empty()) return holding_.back();
  if (!waiting_.empty()) return waiting_.front();
  StopSkippingAll();
  return visited_.empty() ? nullptr : visited_.back();
}

// --- What is said when nothing moves ---

std::string Scheduler::DescribeNoProgress() const {
  if (num_connector_debts() > 0 && stuck_ == nullptr) {
    return absl::StrCat(
        "no progress: ", loads_.size() + orphans_.size(), " loads are under way and ",
        holds_.size(),
        " holds of blocks last, but the connector tells no time at which any of them "
        "ends; each must end once, also if its request is aborted");
  }
  const SimRequest* request = stuck_;
  if (request == nullptr && !holding_.empty()) request = holding_.front();
  if (request == nullptr && !waiting_.empty()) request = waiting_.front();
  if (request == nullptr && !visited_.empty()) request = visited_.front();
  if (request == nullptr) return "no progress: no request is left";
  std::string text = absl::StrCat("no progress: request ", request->spec.id, " (");
  if (request->spec.line > 0) absl::StrAppend(&text, "line ", request->spec.line, ", ");
  absl::StrAppend(&text, "prompt ", request->num_prompt, ", output ", request->num_outputs(),
                  " of ", request->max_output, " tokens) ");
  const int64_t step_tokens =
      std::min(token_budget_, options_.max_num_batched_tokens - options_.num_draft_slots);
  if (!options_.enable_chunked_prefill && request->num_known > step_tokens) {
    absl::StrAppend(
        &text, "needs ", request->num_known, " tokens in one step, but a step has room for ",
        step_tokens, ": max_num_batched_tokens = ", options_.max_num_batched_tokens,
        options_.max_num_scheduled_tokens > 0
            ? absl::StrCat(", max_num_scheduled_tokens = ", options_.max_num_scheduled_tokens)
            : "",
        options_.num_draft_slots > 0
            ? absl::StrCat(", less ", options_.num_draft_slots, " slots for drafts")
            : "",
        "; raise --max-num-batched-tokens or turn chunked prefill on");
    return text;
  }
  const int64_t needed = NumBlocksFor(*request, std::min(request->num_known, max_model_len_));
  absl::StrAppend(&text, "needs ", needed, " ", unit_, " for its ", request->num_known,
                  " known tokens and up to ", LongestNumBlocks(*request),
                  " in all, but the pool has ", num_usable_blocks_, " usable ", unit_,
                  "; raise --num-blocks to at least ", SmallestPoolFor(*request),
                  ", or leave such requests out with --too-big=reject");
  return text;
}

// --- Invariants ---

absl::Status Scheduler::CheckInvariants() const {
  const auto broken = [](const SimRequest& request, absl::string_view what) {
    return absl::InternalError(absl::StrCat(
        "request ", request.spec.id, ": ", what, " (known ", request.num_known, ", computed ",
        request.num_computed, ", settled ", request.num_settled, ", drafts ", request.num_drafts,
        ", placeholders ", request.num_placeholders, ")"));
  };
  if (step_->record.num_tokens > token_budget_) {
    return absl::InternalError(
        absl::StrCat("step of ", step_->record.num_tokens, " tokens, limit ", token_budget_));
  }
  if (num_running() > options_.max_num_seqs) {
    return absl::InternalError(
        absl::StrCat(num_running(), " running requests, limit ", options_.max_num_seqs));
  }
  std::vector<const SimRequest*> running(visited_.begin(), visited_.end());
  int64_t sum_skipped = 0;
  skipped_.ForEach([&](const SimRequest& request) {
    running.push_back(&request);
    sum_skipped += SkippedDecodes::NumComputed(request, num_scheduled_steps_);
  });
  if (static_cast<int64_t>(running.size()) != num_running() ||
      sum_skipped != skipped_.sum_computed()) {
    return absl::InternalError(absl::StrCat("skipped decodes with ", sum_skipped,
                                            " computed tokens, counted ", skipped_.sum_computed()));
  }
  int64_t num_holding = 0;
  for (const SimRequest* request : running) {
    if (request->state != RequestState::kRunning) return broken(*request, "runs in another state");
    if (request->num_computed >
        request->num_known + request->num_placeholders + options_.num_draft_tokens) {
      return broken(*request, "computed beyond its known tokens and drafts");
    }
    const bool is_settled = request->num_settled == request->num_computed;
    if (request->num_settled > request->num_computed ||
        is_settled != (request->num_steps_in_flight == 0) ||
        (is_settled && request->num_placeholders != 0)) {
      return broken(*request, "is wrong about its steps under way");
    }
    if (request->num_known >= request->end_tokens && request->max_output > 0)
      return broken(*request, "runs beyond its end");
    if (request->kv == nullptr) return broken(*request, "runs without content");
    if (request->kv->num_tokens() > request->num_known) {
      return broken(*request, "more content than known tokens");
    }
    for (GroupId g = 0; g < manager_->num_groups(); ++g) {
      if (manager_->group(g).spec().kind() == KvCacheSpecKind::kRing) continue;
      const absl::Span<const BlockId> table = manager_->GetBlocks(*request->kv, g);
      const auto held = static_cast<int64_t>(table.size());
      const int64_t capacity = held * manager_->group(g).block_size();
      const bool is_cross = manager_->group(g).spec().kind() == KvCacheSpecKind::kCrossAttention;
      // Of an encoder's blocks none is taken twice or given back before the end.
      if (is_cross ? held != manager_->group(g).NumBlocksFor(request->num_encoder) ||
                         std::count(table.begin(), table.end(), kNullBlockId) > 0
                   : capacity < request->num_computed) {
        return broken(*request, absl::StrCat("holds ", capacity, " slots in group ", g));
      }
    }
    num_holding += manager_->HoldsBlocks(*request->kv);
  }
  absl::Status status;
  waiting_.ForEach([&](const SimRequest& request) {
    if (request.state != RequestState::kWaiting && request.state != RequestState::kPreempted) {
      status = broken(request, "waits in another state");
    } else if (request.num_computed != 0 ||
               (request.kv != nullptr && manager_->HoldsBlocks(*request.kv))) {
      status = broken(request, "waits with computed tokens or blocks");
    }
  });
  for (const SimRequest* request : holding_) {
    const bool is_loading = request->state == RequestState::kLoading;
    const auto load = loads_.find(request->load);
    if (!is_loading && request->state != RequestState::kWaiting &&
        request->state != RequestState::kPreempted) {
      status = broken(*request, "holds blocks for a load in another state");
    } else if (!manager_->HoldsBlocks(*request->kv)) {
      status = broken(*request, "waits for a load without blocks");
    } else if (is_loading != (load != loads_.end()) ||
               (is_loading && load->second != request)) {
      status = broken(*request, "is wrong about its load");
    } else if (request->num_settled != request->num_computed ||
               request->num_computed > request->num_known) {
      status = broken(*request, "waits with other tokens than its hits and its load");
    }
    ++num_holding;
  }
  if (status.ok() && !set_aside_.empty()) status = absl::InternalError("requests were left aside");
  if (!status.ok()) return status;
  if (num_holding != manager_->num_requests_holding_blocks()) {
    return absl::InternalError(absl::StrCat(num_holding, " running requests hold blocks, but ",
                                            manager_->num_requests_holding_blocks(), " do in all"));
  }
  const int64_t accounted = totals_.num_first_time + totals_.num_recomputed + totals_.num_wasted +
                            totals_.num_rejected_drafts;
  if (totals_.num_computed != accounted) {
    return absl::InternalError(
        absl::StrCat(totals_.num_computed, " tokens computed, ", accounted, " accounted for"));
  }
  return manager_->CheckInvariants();
}

}  // namespace kvblocks::sim
