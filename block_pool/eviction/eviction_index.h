// EvictionIndex: an eviction policy beside the pool's free queue, and the tree of cached prefixes
// that keeps it from cutting a prefix in the middle.
//
// A block is a candidate iff it is cached, nothing references it, and no cached block of its chain
// builds upon it. So what is cached of a prompt stays a prefix, whatever the policy prefers. In
// groups that need not find a prefix from its start (windows, states) each block stands alone.
//
// Retained blocks (see Retention) are kept from the policy, unless it ranks them itself: they go
// when the policy has no candidate left.
//
// Always: NumChildren(id) is the number of cached blocks whose parent is this block under its
// present key; the policy's and the retained candidates together are the blocks said above. Cost:
// O(1) per block, plus what the policy takes; O(log n) per retained one. 36 bytes per block beside
// the policy's and the retention's.

#ifndef KVBLOCKS_BLOCK_POOL_EVICTION_EVICTION_INDEX_H_
#define KVBLOCKS_BLOCK_POOL_EVICTION_EVICTION_INDEX_H_

#include <cstdint>
#include <memory>
#include <vector>

#include "absl/status/status.h"
#include "absl/types/span.h"
#include "block_pool/eviction/retention.h"
#include "kvblocks/block.h"
#include "kvblocks/eviction_policy.h"

namespace kvblocks {

class EvictionIndex final : public EvictionOrder {
 public:
  // `is_chained` per group, empty for all: its hits begin at the first block. `records` must
  // outlive the index. At most so many blocks can be retained, 0: none.
  EvictionIndex(const EvictionPolicyFactory& policy, std::vector<uint8_t> is_chained,
                const BlockRecords* records, int32_t most_retained);

  void OnRegistered(BlockId id, BlockId parent, uint64_t key, int64_t num_tokens) override;
  void OnTouched(BlockId id, bool was_free) override;
  void OnReleased(absl::Span<const BlockId> ids) override;
  void OnKeyRemoved(BlockId id, bool was_evicted) override;
  void Clear() override;
  BlockId Victim() override;

  RetainOutcome Retain(absl::Span<const BlockId> ids, int32_t priority,
                       int64_t expires_at) override;
  void AdvanceTime(int64_t now) override;
  const Retention* retention() const override { return retention_.get(); }
  bool IsChained(GroupId group) const override {
    const auto at = static_cast<size_t>(group);
    return is_chained_.empty() || (at < is_chained_.size() && is_chained_[at] != 0);
  }
  int32_t NumUses(BlockId id) const override { return At(id).num_uses; }
  int32_t NumChildren(BlockId id) const override { return At(id).num_children; }
  absl::Status CheckInvariants() const override;

  // With retention.
  static int64_t BytesFor(const EvictionPolicyFactory& policy, int64_t num_blocks);

 private:
  struct Node {
    BlockId parent = kNullBlockId;
    uint32_t parent_life = 0;  // the parent's `life` when this block was registered
    uint32_t life = 0;         // keys that the block has lost
    int32_t num_children = 0;
    int32_t num_uses = 0;
    bool is_cached = false;
    bool is_candidate = false;
  };
  const Node& At(BlockId id) const { return nodes_[static_cast<size_t>(id)]; }
  Node& At(BlockId id) { return nodes_[static_cast<size_t>(id)]; }
  bool HasLiveParent(const Node& node) const {
    return node.parent != kNullBlockId && At(node.parent).life == node.parent_life;
  }
  void Update(BlockId id);
  bool IsKeptFromPolicy(BlockId id) const {
    return retention_ != nullptr && !policy_ranks_retained_ && retention_->contains(id);
  }
  void EnterCandidates(BlockId id);
  void LeaveCandidates(BlockId id);
  void SetRetention(BlockId id, int32_t priority, int64_t expires_at, int64_t number);
  void DropRetention(BlockId id);

  const BlockRecords* records_;
  const std::vector<uint8_t> is_chained_;
  std::vector<Node> nodes_;
  std::vector<BlockId> released_;  // scratch
  std::unique_ptr<EvictionPolicy> policy_;
  bool policy_ranks_retained_;
  std::unique_ptr<Retention> retention_;
  // For a policy that leaves choices to the pool's queue, in which retained blocks stand, too.
  std::unique_ptr<EvictionPolicy> fallback_;
};

}  // namespace kvblocks

#endif  // KVBLOCKS_BLOCK_POOL_EVICTION_EVICTION_INDEX_H_
