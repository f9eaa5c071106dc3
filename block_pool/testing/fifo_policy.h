// Fifo: a policy that a caller brings, for tests. The block longest in the cache goes.

#ifndef KVBLOCKS_BLOCK_POOL_TESTING_FIFO_POLICY_H_
#define KVBLOCKS_BLOCK_POOL_TESTING_FIFO_POLICY_H_

#include <memory>

#include "block_pool/eviction/lru_policy.h"
#include "kvblocks/eviction.h"

namespace kvblocks {

// Releases do not count, so that the order is that of the insertions.
class FifoPolicy final : public LruPolicy {
 public:
  using LruPolicy::LruPolicy;
  void Release(absl::Span<const BlockId>) override {}
};

inline EvictionPolicyFactory Fifo() {
  return CustomEvictionPolicy("fifo", [](int32_t num_blocks, const CachedPrefixes&) {
    return std::make_unique<FifoPolicy>(num_blocks);
  });
}

}  // namespace kvblocks

#endif  // KVBLOCKS_BLOCK_POOL_TESTING_FIFO_POLICY_H_
