// Fifo: a policy that a caller brings, for tests. The block longest in the cache goes.

#ifndef KVBLOCKS_BLOCK_POOL_TESTING_POOL_TESTING_H_
#define KVBLOCKS_BLOCK_POOL_TESTING_POOL_TESTING_H_

#include <memory>
#include <optional>
#include <vector>

#include "block_pool/eviction/lru_policy.h"
#include "kvblocks/block_pool.h"
#include "kvblocks/eviction.h"
#include "kvblocks/prefix_content.h"

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

// GetNewBlocks for tests: the next blocks of a pool as a list, or nothing where they do not fit.

// REQUIRES: as BlockPool::Fits.
inline std::optional<std::vector<BlockId>> GetNewBlocks(BlockPool& pool, int64_t k,
                                                        GroupId group = 0) {
  if (!pool.Fits(k, group)) return std::nullopt;
  std::vector<BlockId> ids;
  pool.GetNewBlocks(k, ids, group);
  return ids;
}

// PrefixContentPeer: lets tests give a content the hash of another one, as a collision would.

class PrefixContentPeer {
 public:
  // Hash block `index` of `content` gets that of `other`.
  static void CopyHash(const PrefixContent& other, size_t index, PrefixContent& content) {
    content.hashes_[index] = other.hashes_[index];
  }
};

}  // namespace kvblocks

#endif  // KVBLOCKS_BLOCK_POOL_TESTING_POOL_TESTING_H_
