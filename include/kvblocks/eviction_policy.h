// Which free block is evicted next: the interface that a pool asks.

#ifndef KVBLOCKS_EVICTION_POLICY_H_
#define KVBLOCKS_EVICTION_POLICY_H_

#include <cstdint>
#include <functional>
#include <limits>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/types/span.h"
#include "kvblocks/block.h"

// EvictionPolicy: which cached block without references is reused next.
//
// The pool's default is its free queue, least recently released first, tails before heads, and has
// no policy object unless blocks can be retained. Any other policy is one of these, brought by the
// caller (block_pool/eviction has some): it hears what happens to cached blocks and names victims
// among the candidates, which are the blocks that may go now. EvictionIndex, which the pool knows
// as an EvictionOrder, decides what is a candidate, so that no policy can take a block that is in
// use or that cached blocks build upon.
//
// Order of the calls for a block: Insert; then Enter when it becomes a candidate and Leave when it
// stops being one, any number of times; Hit each time a look-up found it; Remove at the end, never
// while it is a candidate. Cost: one virtual call each, and only in pools that have a policy. Not
// thread-safe.

namespace kvblocks {

class Retention;
struct BlockRetention;

class EvictionPolicy {
 public:
  virtual ~EvictionPolicy() = default;

  // The block holds content with this key from now on, num_tokens of it.
  virtual void Insert(BlockId id, uint64_t key, int64_t num_tokens) = 0;
  virtual void Hit(BlockId id) = 0;
  // A request gave back these blocks of one table, the deepest first. Inserted blocks only.
  virtual void Release(absl::Span<const BlockId> deepest_first) = 0;
  virtual void Enter(BlockId id) = 0;
  virtual void Leave(BlockId id) = 0;
  // The candidate that should go; it stays a candidate. kNullBlockId when there is none, or to
  // leave the choice to the pool's queue, where the least recently released block stands in front.
  virtual BlockId Victim() = 0;
  // The block lost its content, to make room if `was_evicted`.
  virtual void Remove(BlockId id, bool was_evicted) = 0;
  // As after construction.
  virtual void Clear() = 0;

  // Of policies that rank retained blocks; under others these are no candidates, and nothing of
  // this is called. A block that is no candidate now is retained this way; null: no longer.
  virtual void SetRetention(BlockId, const BlockRetention*) {}
  virtual void AdvanceTime(int64_t) {}
  virtual absl::Status CheckInvariants() const { return absl::OkStatus(); }
};

// What a policy may ask the index about a cached block.
class CachedPrefixes {
 public:
  virtual ~CachedPrefixes() = default;
  // Cached blocks that build upon it.
  virtual int32_t NumChildren(BlockId id) const = 0;
};

// What one retention brought, in blocks.
struct RetainOutcome {
  int64_t num_retained = 0;   // of the prefix, those renewed included
  int64_t num_renewed = 0;    // of these: were retained before
  int64_t num_refused = 0;    // the cap is reached, and what is retained has a higher priority
  int64_t num_displaced = 0;  // of other prefixes, given up for this one

  friend bool operator==(const RetainOutcome&, const RetainOutcome&) = default;
};
inline constexpr int32_t kHighestPriority = 100;
inline constexpr int64_t kNeverExpires = std::numeric_limits<int64_t>::max();

// The pool's interface to what decides evictions beside its queue: a policy, retained blocks, or
// both. The only implementation is EvictionIndex.
class EvictionOrder : public CachedPrefixes {
 public:
  // The block got a key, as the record says, behind `parent` (null: nothing cached before it), with
  // num_tokens of a content.
  virtual void OnRegistered(BlockId id, BlockId parent, uint64_t key, int64_t num_tokens) = 0;
  // A look-up's hit got a reference, its first if `was_free`.
  virtual void OnTouched(BlockId id, bool was_free) = 0;
  // References of a table were dropped, in this order.
  virtual void OnReleased(absl::Span<const BlockId> ids) = 0;
  // The block is losing its key.
  virtual void OnKeyRemoved(BlockId id, bool was_evicted) = 0;
  virtual void Clear() = 0;
  // The block to evict; kNullBlockId: the front of the pool's queue, for one if only parents of
  // blocks in use are left.
  virtual BlockId Victim() = 0;

  // Retains the cached ones of these blocks of a prefix, in this order, until `expires_at`; null
  // blocks are skipped. REQUIRES: blocks can be retained.
  virtual RetainOutcome Retain(absl::Span<const BlockId> ids, int32_t priority,
                               int64_t expires_at) = 0;
  // Ends the retentions that end by now. REQUIRES: blocks can be retained.
  virtual void AdvanceTime(int64_t now) = 0;
  // Null if none can be retained.
  virtual const Retention* retention() const = 0;
  // Whether a block of the group is useless without those before it.
  virtual bool IsChained(GroupId group) const = 0;
  // Requests that used a block since it was cached, the first one included.
  virtual int32_t NumUses(BlockId id) const = 0;

  // O(number of blocks).
  virtual absl::Status CheckInvariants() const = 0;
};

// A policy to be made, as options carry it; ParseEvictionPolicy and CustomEvictionPolicy of
// block_pool/eviction fill it in. The default is the pool's own queue and retains nothing.
struct EvictionPolicyFactory {
  std::string name = "lru";  // in messages and reports
  // For block ids below num_blocks; null: least recently released first. `prefixes` outlives the
  // policy and may be asked from its first Insert on.
  using Make = std::function<std::unique_ptr<EvictionPolicy>(int32_t num_blocks,
                                                             const CachedPrefixes& prefixes)>;
  Make make = nullptr;
  // The policy ranks retained blocks among the others (SetRetention).
  bool ranks_retained = false;
  // Its Victim may leave the choice to the pool's queue although there are candidates.
  bool may_follow_queue = false;
  // Host memory that the policy takes, at most; null: not counted.
  int64_t (*policy_bytes)(int64_t num_blocks) = nullptr;

  // Makes the EvictionOrder between a pool and the policy, and counts the memory of both.
  std::unique_ptr<EvictionOrder> (*make_order)(const EvictionPolicyFactory& policy,
                                               std::vector<uint8_t> is_chained_group,
                                               const BlockRecords* records,
                                               int32_t most_retained) = nullptr;
  int64_t (*order_bytes)(const EvictionPolicyFactory& policy, int64_t num_blocks) = nullptr;
};

}  // namespace kvblocks

#endif  // KVBLOCKS_EVICTION_POLICY_H_
