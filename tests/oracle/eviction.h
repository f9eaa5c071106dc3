// The eviction policies by their definitions, and a pool around them: lists that are searched from
// one end to the other, no heaps, no links, no counters.

#ifndef KVBLOCKS_TESTS_ORACLE_EVICTION_H_
#define KVBLOCKS_TESTS_ORACLE_EVICTION_H_

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "kvblocks/block.h"

namespace kvblocks::oracle {

// A pool whose blocks hold named contents; a name stands behind the name of its parent, "" for
// none.
class EvictingPool {
 public:
  // At most so many blocks can be retained. Policies: arc, fifo, lru, priority, ttl; under another
  // one, Take must not be called where TakeThis can.
  EvictingPool(std::string policy, int32_t num_blocks, int64_t most_retained = 0);

  // The earliest registered block that holds this; kNullBlockId: none does.
  BlockId Find(const std::string& name) const;
  void Touch(const std::vector<BlockId>& ids);
  // Nothing if they are not free.
  std::optional<std::vector<BlockId>> Take(int64_t k);
  // The same for a block that the caller chose among the free ones.
  void TakeThis(BlockId id);
  void Register(BlockId id, const std::string& name, BlockId parent);
  void Free(const std::vector<BlockId>& ids);
  void Evict(BlockId id);
  // False while a block is in use.
  bool Reset();
  // Keeps the blocks of a prefix, the first one first; returns how many were refused.
  int64_t Retain(const std::vector<BlockId>& ids, int64_t priority, int64_t expires_at);
  void AdvanceTime(int64_t now);
  int64_t num_retained() const;
  bool is_retained(BlockId id) const { return At(id).priority > 0; }
  // Whether a cached block that is not retained could be evicted.
  bool HasUnretainedCandidate() const;

  int32_t num_free() const;
  bool is_cached(BlockId id) const { return At(id).is_cached; }
  // Whether a cached block builds upon this one.
  bool HasCachedChild(BlockId id) const;

 private:
  struct Block {
    int refs = 0;
    bool is_cached = false;
    std::string name;
    BlockId parent = kNullBlockId;
    int64_t registered = 0;
    int64_t released = 0;
    int list = 0;           // arc: 1 used more than once
    int64_t released_at = 0;
    int64_t priority = 0;   // 0: not retained
    int64_t expires_at = 0;
    int64_t retained = 0;   // when it was retained last
  };
  struct Key {
    std::string name;
    int64_t number;
  };
  const Block& At(BlockId id) const { return blocks_[static_cast<size_t>(id)]; }
  Block& At(BlockId id) { return blocks_[static_cast<size_t>(id)]; }
  bool IsCandidate(BlockId id) const;
  // Whether it is a candidate that is left to the policy.
  bool IsLeft(BlockId id) const {
    return IsCandidate(id) && (!is_retained(id) || RanksRetained());
  }
  // The candidate of a list (-1: any) with the smallest value; kNullBlockId: none.
  template <typename Value>
  BlockId Least(int list, Value value) const;
  int64_t CountCached(int list) const;
  BlockId Victim();
  BlockId PolicyVictim();
  // Of two retained blocks.
  bool IsLower(BlockId a, BlockId b) const;
  bool RanksRetained() const { return policy_ == "priority" || policy_ == "ttl"; }
  bool TakeKey(std::vector<Key>& keys, const std::string& name);
  void AddKey(std::vector<Key>& keys, int64_t& additions, const std::string& name,
              int64_t capacity);
  void Forget(BlockId id, bool was_evicted);
  int64_t num_blocks() const { return static_cast<int64_t>(blocks_.size()); }

  std::string policy_;
  std::vector<Block> blocks_;
  std::vector<BlockId> free_;  // in the pool's order
  int64_t clock_ = 0;
  std::vector<Key> keys_[2];   // evicted, the oldest first
  int64_t additions_[2] = {};
  int64_t most_retained_;
  int64_t now_ = 0;
  int64_t target_ = 0;         // arc: blocks used once that may stay
};

}  // namespace kvblocks::oracle

#endif  // KVBLOCKS_TESTS_ORACLE_EVICTION_H_
