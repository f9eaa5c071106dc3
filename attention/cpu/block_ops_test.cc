#include "attention/cpu/block_ops.h"

#include <rapidcheck.h>

#include <algorithm>
#include <cstring>
#include <vector>

#include "attention/testing/random_cache.h"
#include "attention/testing/says.h"
#include "gtest/gtest.h"
#include "kvblocks/attention_cpu.h"
#include "tests/property/check_property.h"

namespace kvblocks::attention {
namespace {

using property::CheckProperty;

int64_t Draw(int64_t low, int64_t high) { return *rc::gen::inRange<int64_t>(low, high + 1); }
uint64_t DrawSeed() { return *rc::gen::noShrink(rc::gen::arbitrary<uint64_t>()); }

ExecContext DrawContext() {
  static ThreadPool pool(3);
  ExecContext context;
  if (Draw(0, 1) == 1) context.threads = &pool;
  return context;
}

RandomCacheShape DrawShape(KvLayout layout) { return DrawCacheShape(layout, 1, Draw); }

// The addresses of all bytes of a block, each once, in an order that depends on the shape only.
std::vector<std::byte*> BytesOfBlock(const KvCacheView& cache, int64_t id) {
  std::vector<std::byte*> bytes;
  std::vector<TensorView> tensors = {cache.k};
  if (!IsMla(cache.layout) || cache.layout == KvLayout::kMlaSplit) tensors.push_back(cache.v);
  for (const TensorView& tensor : tensors) {
    for (int64_t b = 0; b < tensor.extent[1]; ++b) {
      for (int64_t c = 0; c < tensor.extent[2]; ++c) {
        for (int64_t d = 0; d < tensor.extent[3]; ++d) {
          for (int64_t e = 0; e < tensor.extent[4]; ++e) {
            for (int64_t i = 0; i < ElementBytes(tensor.dtype); ++i) {
              bytes.push_back(tensor.At(id, b, c, d, e) + i);
            }
          }
        }
      }
    }
  }
  return bytes;
}

std::vector<BlockPair> DrawPairs(int64_t src_blocks, int64_t dst_blocks, bool one_cache) {
  return DrawBlockPairs(src_blocks, dst_blocks, one_cache, 6, Draw);
}

TEST(BlockOpsPropertyTest, CopyBlocksMovesExactlyTheBytesOfItsBlocks) {
  CheckProperty(300, [] {
    RandomCache a(DrawShape(kAllLayouts[Draw(0, 6)]), DrawSeed());
    RandomCacheShape other = DrawShape(kAllLayouts[Draw(0, 6)]);
    other.num_blocks = a.view().num_blocks();
    RandomCache b(other, DrawSeed());
    const std::vector<BlockPair> pairs =
        DrawPairs(a.view().num_blocks(), a.view().num_blocks(), true);
    std::vector<std::vector<std::byte>> images;
    for (RandomCache* cache : {&a, &b}) {
      std::vector<std::byte>& image = images.emplace_back(cache->memory());
      for (const auto& [source, destination] : pairs) {
        const auto from = BytesOfBlock(cache->view(), source);
        const auto to = BytesOfBlock(cache->view(), destination);
        for (size_t i = 0; i < from.size(); ++i) {
          *RandomCache::In(image, *cache, to[i]) = *from[i];
        }
      }
    }
    const KvCacheView caches[] = {a.view(), b.view()};
    RC_ASSERT(CopyBlocks(DrawContext(), caches, pairs) == absl::OkStatus());
    RC_ASSERT(a.memory() == images[0]);
    RC_ASSERT(b.memory() == images[1]);
  });
}

TEST(BlockOpsPropertyTest, SwapBlocksMovesBetweenCachesOfOtherStrides) {
  CheckProperty(300, [] {
    RandomCacheShape shape = DrawShape(kAllLayouts[Draw(0, 6)]);
    RandomCache src(shape, DrawSeed());
    shape.num_blocks = Draw(1, 6);
    RandomCache dst(shape, DrawSeed());
    const std::vector<BlockPair> pairs =
        DrawPairs(src.view().num_blocks(), dst.view().num_blocks(), false);
    std::vector<std::byte> image = dst.memory();
    for (const auto& [source, destination] : pairs) {
      const auto from = BytesOfBlock(src.view(), source);
      const auto to = BytesOfBlock(dst.view(), destination);
      for (size_t i = 0; i < from.size(); ++i) *RandomCache::In(image, dst, to[i]) = *from[i];
    }
    RC_ASSERT(SwapBlocks(DrawContext(), src.view(), dst.view(), pairs) == absl::OkStatus());
    RC_ASSERT(dst.memory() == image);
  });
}

// T-20: through every convertible layout and back, element by element and nothing else.
TEST(BlockOpsPropertyTest, T20ConvertLayoutRoundTrips) {
  CheckProperty(400, [] {
    const KvLayout heads[] = {KvLayout::kPagedX, KvLayout::kNhd, KvLayout::kHnd};
    const KvLayout latents[] = {KvLayout::kMlaLatent, KvLayout::kMlaSplit};
    const bool mla = Draw(0, 2) == 0;
    RandomCacheShape shape = DrawShape(mla ? latents[Draw(0, 1)] : heads[Draw(0, 2)]);
    RandomCache src(shape, DrawSeed());
    shape.layout = mla ? latents[Draw(0, 1)] : heads[Draw(0, 2)];
    RandomCache dst(shape, DrawSeed());
    const std::vector<std::byte> original = src.memory();
    std::vector<std::byte> image = dst.memory();
    const int64_t bytes = ElementBytes(shape.dtype);
    for (int64_t slot = 0; slot < src.view().num_slots(); ++slot) {
      for (int64_t h = 0; h < shape.num_kv_heads; ++h) {
        for (int64_t d = 0; d < shape.key_dim; ++d) {
          std::memcpy(RandomCache::In(image, dst, dst.KeyElement(slot, h, d)),
                      src.KeyElement(slot, h, d), bytes);
        }
        for (int64_t d = 0; d < shape.value_dim; ++d) {
          std::memcpy(RandomCache::In(image, dst, dst.ValueElement(slot, h, d)),
                      src.ValueElement(slot, h, d), bytes);
        }
      }
    }
    RC_ASSERT(ConvertLayout(DrawContext(), src.view(), dst.view()) == absl::OkStatus());
    RC_ASSERT(dst.memory() == image);
    RC_ASSERT(src.memory() == original);
    // The same block by block, in any order, and no other blocks.
    RandomCache some(shape, DrawSeed());
    image = some.memory();
    std::vector<BlockPair> pairs;
    for (int64_t block = shape.num_blocks - 1; block >= 0; --block) {
      if (Draw(0, 1) == 0) continue;
      const auto id = static_cast<int32_t>(block);
      pairs.push_back({id, id});
      const auto from = BytesOfBlock(dst.view(), block), to = BytesOfBlock(some.view(), block);
      for (size_t i = 0; i < to.size(); ++i) *RandomCache::In(image, some, to[i]) = *from[i];
    }
    RC_ASSERT(ConvertLayout(DrawContext(), src.view(), some.view(), pairs) == absl::OkStatus());
    RC_ASSERT(some.memory() == image);
    for (int64_t block = 0; block < shape.num_blocks; ++block) {
      for (std::byte* byte : BytesOfBlock(src.view(), block)) *byte = std::byte{0x5A};
    }
    RC_ASSERT(ConvertLayout(DrawContext(), dst.view(), src.view()) == absl::OkStatus());
    RC_ASSERT(src.memory() == original);
  });
}

TEST(BlockOpsPropertyTest, FillBlocksPoisonsNothingElse) {
  CheckProperty(300, [] {
    RandomCache cache(DrawShape(kAllLayouts[Draw(0, 6)]), DrawSeed());
    std::vector<std::byte> image = cache.memory();
    std::vector<int32_t> ids;
    for (int64_t i = Draw(0, 3); i > 0; --i) {
      ids.push_back(static_cast<int32_t>(Draw(0, cache.view().num_blocks() - 1)));
    }
    for (const int32_t id : ids) {
      for (const std::byte* byte : BytesOfBlock(cache.view(), id)) {
        *RandomCache::In(image, cache, byte) = std::byte{0xFF};
      }
    }
    RC_ASSERT(FillBlocks(DrawContext(), cache.view(), ids, std::byte{0xFF}) == absl::OkStatus());
    RC_ASSERT(cache.memory() == image);
  });
}

class BlockOpsTest : public ::testing::Test {
 protected:
  static RandomCacheShape Shape(KvLayout layout) {
    RandomCacheShape shape;
    shape.layout = layout;
    shape.num_blocks = 4;
    shape.block_size = 2;
    shape.key_dim = shape.value_dim = 8;
    return shape;
  }
  absl::Status Copy(std::vector<BlockPair> pairs) {
    const KvCacheView caches[] = {cache_.view()};
    const std::vector<std::byte> before = cache_.memory();
    const absl::Status status = CopyBlocks({}, caches, pairs);
    EXPECT_TRUE(status.ok() || cache_.memory() == before) << status;
    return status;
  }
  RandomCache cache_{Shape(KvLayout::kNhd), 1};
};

TEST_F(BlockOpsTest, OverlappingPairsAreRefused) {
  const auto invalid = absl::StatusCode::kInvalidArgument;
  EXPECT_EQ(Copy({{0, 1}, {2, 1}}).code(), invalid);  // two into one
  EXPECT_EQ(Copy({{0, 1}, {1, 2}}).code(), invalid);  // a chain
  EXPECT_EQ(Copy({{0, 1}, {1, 0}}).code(), invalid);  // an exchange
  EXPECT_EQ(Copy({{3, 3}}).code(), invalid);
  EXPECT_EQ(Copy({{0, 1}, {0, 2}}), absl::OkStatus());  // one into two
  const RandomCache other(Shape(KvLayout::kNhd), 2);
  const BlockPair same_ids[] = {{0, 1}, {1, 0}};
  EXPECT_EQ(SwapBlocks({}, other.view(), cache_.view(), same_ids), absl::OkStatus());
  const BlockPair twice[] = {{0, 1}, {1, 1}};
  EXPECT_EQ(SwapBlocks({}, other.view(), cache_.view(), twice).code(), invalid);
}

TEST_F(BlockOpsTest, BlocksOutsideTheCacheAreNamed) {
  for (const BlockPair& pair : {BlockPair{-1, 0}, {0, 4}, {4, 0}, {0, -1}}) {
    const absl::Status status = Copy({pair});
    EXPECT_EQ(status.code(), absl::StatusCode::kOutOfRange);
    EXPECT_THAT(status, Says("of a cache of 4 blocks"));
  }
  const int32_t id = 4;
  EXPECT_EQ(FillBlocks({}, cache_.view(), {&id, 1}, std::byte{0}).code(),
            absl::StatusCode::kOutOfRange);
}

TEST_F(BlockOpsTest, LayersOfOneAllocationAreApartAndOneLayerIsNot) {
  // [NB, layers, K and V, BS, Hkv, D].
  std::vector<float> memory(4 * 2 * 2 * 2 * 1 * 8);
  for (size_t i = 0; i < memory.size(); ++i) memory[i] = static_cast<float>(i);
  const TensorView all = ViewOf(absl::MakeSpan(memory), {4, 2, 2, 2, 1, 8});
  const auto layer = [&](int64_t index) {
    const TensorView both = *all.Select(1, index);
    return KvCacheView(KvLayout::kNhd, *both.Select(1, 0), *both.Select(1, 1));
  };
  const BlockPair pair[] = {{0, 1}};
  const KvCacheView layers[] = {layer(0), layer(1)};
  EXPECT_EQ(CopyBlocks({}, layers, pair), absl::OkStatus());
  EXPECT_EQ(SwapBlocks({}, layers[0], layers[1], pair), absl::OkStatus());
  EXPECT_EQ(ConvertLayout({}, layers[1], layers[0]), absl::OkStatus());
  const std::vector<float> before = memory;
  const KvCacheView twice[] = {layer(0), layer(1), layer(0)};
  const absl::Status status = CopyBlocks({}, twice, pair);
  EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument);
  EXPECT_THAT(status, Says("share memory"));
  EXPECT_EQ(memory, before);
}

TEST_F(BlockOpsTest, CachesThatDoNotFitAreRefused) {
  const auto invalid = absl::StatusCode::kInvalidArgument;
  const RandomCache hnd(Shape(KvLayout::kHnd), 2);
  RandomCacheShape wider = Shape(KvLayout::kNhd);
  wider.key_dim = 16;
  const RandomCache wide(wider, 4);
  EXPECT_EQ(SwapBlocks({}, hnd.view(), cache_.view(), {}).code(), invalid);
  EXPECT_EQ(SwapBlocks({}, wide.view(), cache_.view(), {}).code(), invalid);
  EXPECT_EQ(SwapBlocks({}, cache_.view(), cache_.view(), {}).code(), invalid);
  EXPECT_EQ(ConvertLayout({}, wide.view(), cache_.view()).code(), invalid);
  EXPECT_EQ(ConvertLayout({}, cache_.view(), cache_.view()).code(), invalid);
  RandomCacheShape fp8 = Shape(KvLayout::kMlaFp8_656);
  fp8.dtype = DType::kU8;
  const RandomCache records(fp8, 5);
  EXPECT_EQ(ConvertLayout({}, records.view(), cache_.view()).code(), invalid);
  const BlockPair twice[] = {{0, 1}, {1, 1}}, beyond[] = {{0, 4}};
  EXPECT_EQ(ConvertLayout({}, hnd.view(), cache_.view(), twice).code(), invalid);
  EXPECT_EQ(ConvertLayout({}, hnd.view(), cache_.view(), beyond).code(),
            absl::StatusCode::kOutOfRange);
  EXPECT_EQ(ConvertLayout({}, wide.view(), cache_.view(), {}).code(), invalid);
  ExecContext cuda;
  cuda.device = {DeviceKind::kCuda, 0};
  EXPECT_EQ(FillBlocks(cuda, cache_.view(), {}, std::byte{0}).code(),
            absl::StatusCode::kUnimplemented);
}

}  // namespace
}  // namespace kvblocks::attention
