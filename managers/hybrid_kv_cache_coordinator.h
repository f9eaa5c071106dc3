// HybridKvCacheCoordinator: prefix look-ups over several groups of different kinds.
//
// Groups with equal specs are looked up together. The hit is a fixed point: each kind is asked in
// turn for its longest hit within the shortest so far, and the round is repeated until nobody
// shortens it. Lengths never grow, so this ends; kinds of full type, of whose hits every prefix is
// a hit, are asked once.

#ifndef KVBLOCKS_MANAGERS_HYBRID_KV_CACHE_COORDINATOR_H_
#define KVBLOCKS_MANAGERS_HYBRID_KV_CACHE_COORDINATOR_H_

#include <cstdint>
#include <vector>

#include "kvblocks/managers/kv_cache_coordinator.h"

namespace kvblocks {

class HybridKvCacheCoordinator : public KvCacheCoordinator {
 public:
  HybridKvCacheCoordinator(Managers managers, int64_t scheduler_block_size, int64_t hash_block_size,
                           int64_t hit_alignment);

  Hit FindLongestCacheHit(const PrefixContent& content, int64_t max_tokens,
                          HitLists& lists) const override;

  // Tokens behind the last boundary at which hits can end serve none; a draft group also registers
  // the block that its look-up drops.
  int64_t NumTokensToRegister(const SingleTypeManager& manager, int64_t n) const override;

 private:
  // Groups with one spec.
  struct LookupGroup {
    std::vector<GroupId> groups;
    const SingleTypeManager* manager;  // of the first of them
  };

  std::vector<LookupGroup> lookup_groups_;     // full types first, else by first occurrence
  mutable std::vector<int64_t> full_lengths_;  // scratch of one look-up
  mutable std::vector<uint8_t> verified_;
};

}  // namespace kvblocks

#endif  // KVBLOCKS_MANAGERS_HYBRID_KV_CACHE_COORDINATOR_H_
