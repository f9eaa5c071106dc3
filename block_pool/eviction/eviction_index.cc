#include "block_pool/eviction/eviction_index.h"

#include <algorithm>
#include <utility>

#include "block_pool/eviction/lru_policy.h"
#include "kvblocks/check.h"

namespace kvblocks {

EvictionIndex::EvictionIndex(const EvictionPolicyFactory& policy, std::vector<uint8_t> is_chained,
                             const BlockRecords* records, int32_t most_retained)
    : records_(records),
      is_chained_(std::move(is_chained)),
      nodes_(static_cast<size_t>(records->num_blocks())),
      policy_(MakeEvictionPolicy(policy, records->num_blocks(), *this)),
      policy_ranks_retained_(policy.ranks_retained) {
  released_.reserve(nodes_.size());
  if (most_retained == 0) return;
  retention_ = std::make_unique<Retention>(records->num_blocks(), most_retained);
  if (policy.may_follow_queue) fallback_ = std::make_unique<LruPolicy>(records->num_blocks());
}

int64_t EvictionIndex::BytesFor(const EvictionPolicyFactory& policy, int64_t num_blocks) {
  return num_blocks * static_cast<int64_t>(sizeof(Node) + sizeof(BlockId)) +
         LruPolicy::BytesFor(num_blocks) + Retention::BytesFor(num_blocks) +
         (policy.policy_bytes == nullptr ? 0 : policy.policy_bytes(num_blocks));
}

void EvictionIndex::Update(BlockId id) {
  Node& node = At(id);
  const bool is_candidate =
      node.is_cached && node.num_children == 0 && (*records_)[id].ref_count == 0;
  if (is_candidate == node.is_candidate) return;
  node.is_candidate = is_candidate;
  if (is_candidate) {
    EnterCandidates(id);
  } else {
    LeaveCandidates(id);
  }
}

void EvictionIndex::EnterCandidates(BlockId id) {
  if (IsKeptFromPolicy(id)) return retention_->Enter(id);
  policy_->Enter(id);
  if (fallback_ != nullptr) fallback_->Enter(id);
}

void EvictionIndex::LeaveCandidates(BlockId id) {
  if (IsKeptFromPolicy(id)) return retention_->Leave(id);
  policy_->Leave(id);
  if (fallback_ != nullptr) fallback_->Leave(id);
}

void EvictionIndex::OnRegistered(BlockId id, BlockId parent, uint64_t key, int64_t num_tokens) {
  Node& node = At(id);
  if (!IsChained((*records_)[id].key_group)) parent = kNullBlockId;
  if (parent != kNullBlockId && !At(parent).is_cached) parent = kNullBlockId;
  node.is_cached = true;
  node.parent = parent;
  node.num_uses = 1;
  policy_->Insert(id, key, num_tokens);
  if (fallback_ != nullptr) fallback_->Insert(id, key, num_tokens);
  if (parent != kNullBlockId) {
    node.parent_life = At(parent).life;
    ++At(parent).num_children;
    Update(parent);
  }
  Update(id);
}

void EvictionIndex::OnTouched(BlockId id, bool was_free) {
  if (!At(id).is_cached) return;
  ++At(id).num_uses;
  if (retention_ != nullptr && retention_->contains(id)) ++retention_->totals().num_hits;
  if (was_free) Update(id);
  policy_->Hit(id);
}

void EvictionIndex::OnReleased(absl::Span<const BlockId> ids) {
  released_.clear();
  for (const BlockId id : ids) {
    if (At(id).is_cached) released_.push_back(id);
  }
  if (released_.empty()) return;
  policy_->Release(released_);
  if (fallback_ != nullptr) fallback_->Release(released_);
  for (const BlockId id : released_) Update(id);
}

void EvictionIndex::OnKeyRemoved(BlockId id, bool was_evicted) {
  Node& node = At(id);
  node.is_cached = false;
  Update(id);
  if (retention_ != nullptr && retention_->contains(id)) {
    DropRetention(id);
    ++(was_evicted ? retention_->totals().num_taken : retention_->totals().num_removed);
  }
  policy_->Remove(id, was_evicted);
  ++node.life;
  node.num_children = 0;
  if (!HasLiveParent(node)) return;
  --At(node.parent).num_children;
  Update(node.parent);
}

void EvictionIndex::Clear() {
  for (Node& node : nodes_) node = {.life = node.life + 1};
  policy_->Clear();
  if (retention_ != nullptr) retention_->Clear();
  if (fallback_ != nullptr) fallback_->Clear();
}

BlockId EvictionIndex::Victim() {
  BlockId id = policy_->Victim();
  if (retention_ == nullptr || id != kNullBlockId) return id;
  if (fallback_ != nullptr) id = fallback_->Victim();
  return id != kNullBlockId ? id : retention_->Victim();
}

// --- Retention ---

void EvictionIndex::SetRetention(BlockId id, int32_t priority, int64_t expires_at,
                                 int64_t number) {
  if (At(id).is_candidate) LeaveCandidates(id);
  retention_->Set(id, priority, expires_at, number);
  if (policy_ranks_retained_) policy_->SetRetention(id, &retention_->item(id));
  if (At(id).is_candidate) EnterCandidates(id);
}

void EvictionIndex::DropRetention(BlockId id) {
  if (At(id).is_candidate) LeaveCandidates(id);
  retention_->Drop(id);
  if (policy_ranks_retained_) policy_->SetRetention(id, nullptr);
  if (At(id).is_candidate) EnterCandidates(id);
}

RetainOutcome EvictionIndex::Retain(absl::Span<const BlockId> ids, int32_t priority,
                                    int64_t expires_at) {
  RetainOutcome outcome;
  int64_t lowest_of_call = 0;
  int64_t number = retention_->TakeNumbers(static_cast<int64_t>(ids.size()), &lowest_of_call);
  for (const BlockId id : ids) {
    if (id == kNullBlockId || !At(id).is_cached) continue;
    if (retention_->contains(id)) {
      ++outcome.num_renewed;
    } else if (retention_->is_full()) {
      if (!retention_->MayDisplaceLowest(priority, lowest_of_call)) {
        // So will be what comes behind: nothing lower appears in between.
        ++outcome.num_refused;
        continue;
      }
      DropRetention(retention_->lowest());
      ++outcome.num_displaced;
    }
    SetRetention(id, priority, expires_at, number--);
    ++outcome.num_retained;
  }
  retention_->totals().num_refused += outcome.num_refused;
  retention_->totals().num_displaced += outcome.num_displaced;
  return outcome;
}

void EvictionIndex::AdvanceTime(int64_t now) {
  policy_->AdvanceTime(now);
  for (BlockId id = retention_->FirstExpired(now); id != kNullBlockId;
       id = retention_->FirstExpired(now)) {
    DropRetention(id);
    ++retention_->totals().num_expired;
  }
}

absl::Status EvictionIndex::CheckInvariants() const {
  std::vector<int32_t> children(nodes_.size(), 0);
  for (const Node& node : nodes_) {
    if (node.is_cached && HasLiveParent(node)) ++children[static_cast<size_t>(node.parent)];
  }
  for (size_t i = 1; i < nodes_.size(); ++i) {
    const auto id = static_cast<BlockId>(i);
    const KvCacheBlock& block = (*records_)[id];
    const Node& node = nodes_[i];
    if (node.is_cached != block.has_key()) {
      return BrokenInvariant("the eviction index takes block ", id, " for ",
                             node.is_cached ? "cached" : "not cached", ", its record does not");
    }
    if (node.num_children != children[i]) {
      return BrokenInvariant("the eviction index counts ", node.num_children,
                             " children of block ", id, ", found ", children[i]);
    }
    if (node.is_candidate !=
        (node.is_cached && node.num_children == 0 && block.ref_count == 0)) {
      return BrokenInvariant("block ", id, " with ", block.ref_count, " references and ",
                             node.num_children, " children is ", node.is_candidate ? "" : "not ",
                             "a candidate for eviction");
    }
  }
  if (retention_ != nullptr) {
    for (size_t i = 1; i < nodes_.size(); ++i) {
      const auto id = static_cast<BlockId>(i);
      if ((retention_->contains(id) && !nodes_[i].is_cached) ||
          retention_->is_candidate(id) != (nodes_[i].is_candidate && IsKeptFromPolicy(id))) {
        return BrokenInvariant("block ", id, " is retained but not cached, or stands wrongly ",
                               "among the retained candidates");
      }
    }
    if (absl::Status status = retention_->CheckInvariants(); !status.ok()) return status;
  }
  return policy_->CheckInvariants();
}

}  // namespace kvblocks
