// GetNewBlocks for tests: the next blocks of a pool as a list, or nothing where they do not fit.

#ifndef KVBLOCKS_BLOCK_POOL_TESTING_GET_NEW_BLOCKS_H_
#define KVBLOCKS_BLOCK_POOL_TESTING_GET_NEW_BLOCKS_H_

#include <optional>
#include <vector>

#include "kvblocks/block_pool.h"

namespace kvblocks {

// REQUIRES: as BlockPool::Fits.
inline std::optional<std::vector<BlockId>> GetNewBlocks(BlockPool& pool, int64_t k,
                                                        GroupId group = 0) {
  if (!pool.Fits(k, group)) return std::nullopt;
  std::vector<BlockId> ids;
  pool.GetNewBlocks(k, ids, group);
  return ids;
}

}  // namespace kvblocks

#endif  // KVBLOCKS_BLOCK_POOL_TESTING_GET_NEW_BLOCKS_H_
