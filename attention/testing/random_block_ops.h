// Random caches and pairs of their blocks, for tests of block operations on hosts and GPUs. `draw`
// gives a number from its first to its second argument, both included.

#ifndef KVBLOCKS_ATTENTION_TESTING_RANDOM_BLOCK_OPS_H_
#define KVBLOCKS_ATTENTION_TESTING_RANDOM_BLOCK_OPS_H_

#include <cstdint>
#include <vector>

#include "absl/functional/function_ref.h"
#include "kvblocks/attention/cpu/block_ops.h"
#include "kvblocks/attention/testing/random_cache.h"

namespace kvblocks::attention {

using DrawNumber = absl::FunctionRef<int64_t(int64_t low, int64_t high)>;

// Of any element type that the layout takes, and convertible into kPagedX if it has heads.
RandomCacheShape DrawCacheShape(KvLayout layout, int64_t least_blocks, DrawNumber draw);

// At most `most` pairs with distinct destinations that, within one cache, are no sources.
std::vector<BlockPair> DrawBlockPairs(int64_t src_blocks, int64_t dst_blocks, bool one_cache,
                                      int64_t most, DrawNumber draw);

}  // namespace kvblocks::attention

#endif  // KVBLOCKS_ATTENTION_TESTING_RANDOM_BLOCK_OPS_H_
