#include "kvblocks/attention/testing/random_block_ops.h"

#include <set>

namespace kvblocks::attention {

RandomCacheShape DrawCacheShape(KvLayout layout, int64_t least_blocks, DrawNumber draw) {
  const DType dtypes[] = {DType::kF32, DType::kBF16, DType::kF8E4M3};
  RandomCacheShape shape;
  shape.layout = layout;
  shape.dtype = layout >= KvLayout::kMlaFp8_656 ? DType::kU8 : dtypes[draw(0, 2)];
  shape.num_blocks = draw(least_blocks, 6);
  shape.block_size = draw(1, 5);
  shape.num_kv_heads = IsMla(layout) ? 1 : draw(1, 3);
  shape.key_dim = 16 / ElementBytes(shape.dtype) * draw(1, 2);
  shape.value_dim = IsMla(layout) ? draw(1, shape.key_dim - 1) : draw(1, 20);
  return shape;
}

std::vector<BlockPair> DrawBlockPairs(int64_t src_blocks, int64_t dst_blocks, bool one_cache,
                                      int64_t most, DrawNumber draw) {
  std::vector<BlockPair> pairs;
  std::set<int64_t> sources, destinations;
  for (int64_t i = draw(0, most); i > 0; --i) {
    const int64_t source = draw(0, src_blocks - 1), destination = draw(0, dst_blocks - 1);
    if (destinations.count(destination) > 0) continue;
    if (one_cache && (source == destination || sources.count(destination) > 0 ||
                      destinations.count(source) > 0)) {
      continue;
    }
    sources.insert(source);
    destinations.insert(destination);
    pairs.emplace_back(source, destination);
  }
  return pairs;
}

}  // namespace kvblocks::attention
