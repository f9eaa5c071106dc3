// Scheduler: which waiting requests enter a step, and with how much of their prompts.

#include <algorithm>
#include <limits>
#include <numeric>

#include "absl/container/flat_hash_map.h"
#include "absl/container/flat_hash_set.h"
#include "checks/status_macros.h"
#include "kvblocks/check.h"
#include "sim/engine/scheduler.h"

namespace kvblocks::sim {

void Scheduler::ScheduleWaiting(SimTime now) {
  if (StartsAfresh(visited_.empty() ? nullptr : visited_.front())) return;
  if (AdmitLoaded()) AdmitWaiting(now);
  ReturnSetAside();
}

// How much of a waiting request this step takes, behind record.num_context tokens that need no
// computing. kWaits: nothing, and of nobody behind it.
Scheduler::Sized Scheduler::SizeAdmission(const SimRequest& request,
                                          ScheduledRecord& record) const {
  const int64_t computed = record.num_context;
  // A step between prompts takes those of which one token is left (V-77).
  if (holds_prompts_ && computed < request.num_known - 1) return Sized::kWaits;
  const int64_t budget = std::min(budget_, slot_budget_ - options_.num_draft_slots);
  int64_t num_tokens = request.num_known - computed;
  record.is_prefill = num_tokens > 1;
  record.is_admission = true;
  if (num_tokens == 1 && PadsAdmission(computed)) {
    // Filled up to the shape of the decodes around it, so that the whole step has one shape.
    num_tokens = 1 + options_.num_draft_tokens;
    if (num_tokens > budget || computed + num_tokens > max_model_len_) return Sized::kWaits;
    record.is_padded = true;
  }
  num_tokens = std::min(num_tokens, longest_part_);
  if (!options_.enable_chunked_prefill && num_tokens > budget) return Sized::kWaits;
  const int64_t most = std::min(num_tokens, budget);
  num_tokens = PartOfPrompt(request, computed, most);
  if (record.is_padded && state_boundary_ > 0 && num_tokens != 1 + options_.num_draft_tokens) {
    // No step runs over the end of a state's block, and drafts are not cut short there (V-81).
    num_tokens = 1;
    record.is_padded = false;
  }
  record.num_tokens = static_cast<int32_t>(num_tokens);
  if (record.is_padded) record.num_verified_drafts = record.num_tokens - 1;
  if (num_tokens > 0) return Sized::kEnters;
  // What a drafter of several modules needs behind a part keeps back this request only (V-80). vLLM
  // takes it from the part that ends at a state. That can leave an end from which no step goes on,
  // so ours takes it before; where only ours leaves nothing, the request waits.
  const int64_t part =
      state_boundary_ == 0 ? most : PartUpToState(request, computed, most);
  const int64_t left = request.num_known - computed - part;
  const bool is_held_back =
      left > 0 && left < num_prefill_lookahead_ && part <= num_prefill_lookahead_ - left;
  return part > 0 && is_held_back ? Sized::kLetsOthersPass : Sized::kWaits;
}

// A request with blocks enters the running list.
void Scheduler::Enter(SimRequest& request, const ScheduledRecord& record) {
  Reserve(request);
  visited_.push_back(&request);
  request.admission = num_admissions_++;
  request.state = RequestState::kRunning;
  request.is_deferred = false;
  request.kv->set_status(RequestStatus::kRunning);
  request.num_computed = request.num_settled = record.num_context;
  UpdateNoopSlots(request);
  Record(request, record);
}

void Scheduler::NotifyAdmission(const AdmissionRecord& admission, SimTime now) {
  if (admission.request->has_lost_load) {
    observer_->OnReadmission(admission, now);
  } else {
    observer_->OnAdmission(admission, now);
  }
}

void Scheduler::AdmitWaiting(SimTime now) {
  const int64_t draft_slots = options_.num_draft_slots;
  bool forgoes_hits = false;
  bool forgoes_load = false;
  OrderWaiting();
  while (!waiting_.empty() && budget_ > 0 && slot_budget_ > draft_slots &&
         num_running() < max_active_) {
    SimRequest& request = *waiting_.front();
    // Of one that was preempted, outputs are still to come (V-75).
    if (request.num_steps_in_flight > 0) {
      SetAside(request);
      continue;
    }
    const bool starts_afresh = StartsAfresh(&request);
    if (starts_afresh && (num_running() > 0 || !holding_.empty())) return;
    forgoes_hits = forgoes_hits || starts_afresh;
    const bool is_repeat = IsStillBlocked(request);
    if (is_repeat && !options_.exact_steps) return;
    SyncContent(request);
    if (forgoes_hits) {
      hits_ = ComputedBlocks(HitLists(static_cast<size_t>(manager_->num_groups())), 0);
    } else {
      KVBLOCKS_CHECK_OK(manager_->GetComputedBlocks(*request.kv, hits_));
      // What sparse registration keeps of this request is decided by its last look-up.
      request.kv->set_shared_prefix_boundary(hits_.shared_prefix_boundary());
    }
    ExternalMatch external;
    if (connector_ != nullptr && !forgoes_hits && !forgoes_load) {
      external = MatchExternal(request, now);
      if (external.is_pending) {
        SetAside(request);
        continue;
      }
    }
    if (!HasReserve(request)) return;
    const int64_t num_hits = hits_.num_tokens();
    const AdmissionRecord admission{.request = &request,
                                    .hits = &hits_,
                                    .num_queried_tokens = request.num_known,
                                    .num_hit_tokens = num_hits,
                                    .num_external_tokens = external.num_tokens,
                                    .is_load = external.num_tokens > 0 &&
                                               external.mode == LoadMode::kAsync,
                                    .is_resume = request.was_preempted(),
                                    .is_repeat = is_repeat};
    if (admission.is_load) {
      if (StartLoading(request, admission, now)) continue;
      // With nobody who could make room, what does not fit beside its reserve is computed.
      if (num_running() > 0 || !holding_.empty() || num_connector_debts() > 0 ||
          manager_->has_block_copies()) {
        return;
      }
      forgoes_load = true;
      continue;
    }

    ScheduledRecord record{.num_context = num_hits + external.num_tokens};
    const Sized sized = SizeAdmission(request, record);
    if (sized == Sized::kWaits) return;
    if (sized == Sized::kLetsOthersPass || request.num_encoder > encoder_budget_) {
      SetAside(request);
      continue;
    }
    observer_->OnAdmissionAttempt(admission, now);
    const auto slots =
        manager_->AllocateSlots(*request.kv, {.num_new_tokens = record.num_tokens,
                                              .computed_blocks = &hits_,
                                              .num_lookahead_tokens = options_.num_lookahead_tokens,
                                              .num_external_computed_tokens = external.num_tokens,
                                              .full_sequence_must_fit = options_.reserve_full_isl,
                                              .has_scheduled_requests = num_running() > 0,
                                              .num_encoder_tokens = request.num_encoder});
    KVBLOCKS_CHECK(slots.ok(), slots.status().ToString());
    if (!slots->has_value()) {
      // Hits in many chunks may pin so many that the rest does not fit, and a hit inside a block
      // needs that block beside its copy; alone, it does without them.
      if ((manager_->pool().chunks() != nullptr || has_copies()) && num_hits > 0 &&
          num_running() == 0 && holding_.empty() && !manager_->has_block_copies()) {
        forgoes_hits = true;
        continue;
      }
      // What comes from elsewhere may be more next time.
      if (!is_repeat && connector_ == nullptr) RememberBlocked(request, record);
      return;
    }
    if (!checkpoint_states_.empty()) CountCheckpoint(request);
    forgoes_hits = forgoes_load = false;
    encoder_budget_ -= request.num_encoder;
    totals_.num_encoder_tokens += request.num_encoder;
    record.new_blocks = **slots;
    record.num_new_blocks = static_cast<int32_t>(record.new_blocks.num_blocks());
    manager_->RecordPrefixCacheStats(*request.kv, num_hits);

    blocked_.head = nullptr;
    waiting_.PopFront();
    Enter(request, record);
    if (external.num_tokens > 0) NotifyConnector(request, external.num_tokens, external.mode, now);
    NotifyAdmission(admission, now);
    request.has_lost_load = false;
    if (starts_afresh) return;
  }
}

// Pages of classes in chunks can be scattered so that more chunks are lent than one request needs.
// One that ran short while it was alone enters without hits and with nobody beside it until it has
// its next token: then it takes all its pages from chunks that nobody uses.
bool Scheduler::StartsAfresh(const SimRequest* request) const {
  return request != nullptr && request->num_lonely_preemptions > 0 &&
         manager_->pool().chunks() != nullptr;
}

// Whether a request that enters with a single token behind `num_hits` is filled up with drafts.
bool Scheduler::PadsAdmission(int64_t num_hits) const {
  const int64_t num_drafts = options_.num_draft_tokens;
  if (num_drafts == 0) return false;
  if (!options_.rules.pads_unless_prompts_run) return !step_is_empty() && num_prefills_ == 0;
  // One slot more, for the token that the step yields.
  return num_prompt_parts_ == 0 && (num_walked_ > 0 || num_hits > 0) &&
         num_hits + 1 + num_drafts + 1 <= max_model_len_;
}

bool Scheduler::IsStillBlocked(const SimRequest& head) const {
  const int64_t most = std::min({budget_, slot_budget_ - options_.num_draft_slots, longest_part_});
  if (blocked_.head != &head || most < blocked_.num_tokens) return false;
  if (blocked_.is_padded && !PadsAdmission(blocked_.num_hits)) return false;
  return !blocked_.has_missing ||
         manager_->pool().FindCached(blocked_.first_missing, 0) == kNullBlockId;
}

void Scheduler::RememberBlocked(const SimRequest& head, const ScheduledRecord& attempt) {
  // Several groups, windows and dropped blocks have more ways to find a longer hit.
  const KvCacheManagerOptions& options = manager_->options();
  if (manager_->num_groups() != 1 || !is_all_full_attention_ || manager_->group(0).is_draft()) {
    return;
  }
  blocked_ = {.head = &head,
              .num_tokens = attempt.num_tokens,
              .num_hits = attempt.num_context,
              .is_padded = attempt.is_padded};
  if (!options.enable_caching) return;
  const int64_t block_size = boundary_tokens_;
  const int64_t index = hits_.num_tokens() / block_size;
  blocked_.has_missing =
      (index + 1) * block_size + std::max<int64_t>(1, num_hash_lookahead_) <= head.num_known;
  if (blocked_.has_missing) blocked_.first_missing = head.kv->content().HashOfBlock(index, 1);
}

// Scheduler: policies that choose among waiting requests by what the pool holds (SM-29).

namespace {

// Of SGLang's lpm. With more waiting requests it does not look anything up.
constexpr int64_t kMostLookedUp = 128;
// A request that hits at most so many tokens may wait for another to fill the cache,
constexpr int64_t kSmallHit = 32;
// if the other begins with as many of its tokens, in whole blocks.
constexpr int64_t kSharedBeginning = 32;

}  // namespace

// Before requests are admitted. What is admitted in this step changes the order of the next.
void Scheduler::OrderWaiting() {
  if (!OrdersByPrefix(options_.policy) || waiting_.size() < 2) return;
  if (budget_ <= 0 || slot_budget_ <= options_.num_draft_slots || num_running() >= max_active_) {
    return;
  }
  waiting_.Reorder([&](absl::Span<SimRequest* const> requests) {
    if (options_.policy == SchedulingPolicy::kPrefixTree) {
      LookUpWaiting(requests);
      KeysByPrefixTree(requests);
    } else if (static_cast<int64_t>(requests.size()) <= kMostLookedUp) {
      LookUpWaiting(requests);
      KeysByLongestPrefix(requests);
    } else {
      for (SimRequest* request : requests) request->queue_key = 0;
    }
  });
}

// Sets queue_key to the tokens that each would hit, and paths_ to the hashes of their blocks.
void Scheduler::LookUpWaiting(absl::Span<SimRequest* const> requests) {
  paths_.clear();
  for (SimRequest* request : requests) {
    SyncContent(*request);
    KVBLOCKS_CHECK_OK(manager_->GetComputedBlocks(*request->kv, hits_));
    request->queue_key = hits_.num_tokens();
    const auto num_blocks =
        static_cast<size_t>(hits_.num_tokens() / manager_->hash_block_size());
    paths_.push_back(request->kv->content().hashes().subspan(0, num_blocks));
  }
}

void Scheduler::KeysByLongestPrefix(absl::Span<SimRequest* const> requests) {
  const int64_t block_size = manager_->hash_block_size();
  const auto last = static_cast<size_t>((kSharedBeginning - 1) / block_size);
  absl::flat_hash_set<BlockHash> beginnings;
  for (SimRequest* request : requests) {
    const int64_t num_hits = request->queue_key;
    request->queue_key = -num_hits;
    const absl::Span<const BlockHash> hashes = request->kv->content().hashes();
    if (num_hits > kSmallHit || hashes.size() <= last) continue;
    if (!beginnings.insert(hashes[last]).second) {
      request->queue_key = std::numeric_limits<int64_t>::max();
    }
  }
}

void Scheduler::KeysByPrefixTree(absl::Span<SimRequest* const> requests) {
  struct Node {
    int64_t num_requests = 0;
    size_t first = 0;  // of them, by arrival
  };
  // A block's hash says what comes before it, so it names a node of the tree.
  absl::flat_hash_map<BlockHash, Node> tree;
  for (size_t i = 0; i < requests.size(); ++i) {
    for (const BlockHash& hash : paths_[i]) {
      Node& node = tree.try_emplace(hash, Node{.first = i}).first->second;
      ++node.num_requests;
    }
  }
  std::vector<size_t> order(requests.size());
  std::iota(order.begin(), order.end(), size_t{0});
  std::sort(order.begin(), order.end(), [&](size_t a, size_t b) {
    const auto [at, bt] = std::mismatch(paths_[a].begin(), paths_[a].end(), paths_[b].begin(),
                                        paths_[b].end());
    const bool a_ends = at == paths_[a].end(), b_ends = bt == paths_[b].end();
    if (a_ends && b_ends) return a < b;
    if (a_ends || b_ends) return b_ends;
    const Node& left = tree.at(*at);
    const Node& right = tree.at(*bt);
    if (left.num_requests != right.num_requests) return left.num_requests > right.num_requests;
    return left.first < right.first;
  });
  for (size_t i = 0; i < order.size(); ++i) {
    requests[order[i]]->queue_key = static_cast<int64_t>(i);
  }
}

// --- Blocks that nobody else may need ---

bool Scheduler::HasReserve(const SimRequest& request) const {
  if (options_.policy != SchedulingPolicy::kNoEvict) return true;
  if (num_running() == 0 && holding_.empty()) return true;
  return num_reserved_ + LongestNumBlocks(request) <= num_usable_blocks_;
}

void Scheduler::Reserve(SimRequest& request) {
  if (options_.policy != SchedulingPolicy::kNoEvict || request.num_reserved > 0) return;
  request.num_reserved = LongestNumBlocks(request);
  num_reserved_ += request.num_reserved;
}

void Scheduler::Unreserve(SimRequest& request) {
  num_reserved_ -= request.num_reserved;
  request.num_reserved = 0;
}

}  // namespace kvblocks::sim
