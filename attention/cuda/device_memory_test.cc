// What works on tensors in device memory without a host's copy of them: block operations, against
// the host's, and uploaded metadata. Runs emulated and on GPUs.

#include <algorithm>
#include <numeric>
#include <random>
#include <vector>

#include "absl/types/span.h"
#include "attention/cpu/block_ops.h"
#include "attention/cuda/block_ops.h"
#include "attention/cuda/device_metadata.h"
#include "attention/cuda/kernels/runtime.h"
#include "attention/cuda/testing/device_mirror.h"
#include "attention/testing/paged_case.h"
#include "attention/testing/random_cache.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "kvblocks/attention_backend.h"
#include "kvblocks/attention_cuda.h"
#include "kvblocks/attention_metadata.h"

namespace kvblocks::attention::cuda {
namespace {

using testing::Each;

TEST(DeviceMemoryTest, ProfilingRunsFillOutputsOfAnyStrides) {
  LayerConfig config;
  config.name = "layer";
  config.num_heads = config.num_kv_heads = 2;
  config.head_size = 8;
  const auto layer = CudaBackend().MakeImpl(config);
  ASSERT_TRUE(layer.ok());
  ExecContext context;
  context.device = kDevice;
  Tensor fused(DType::kBF16, {3, 24});
  fused.Set(std::vector<double>(72, 7.0));
  const Mirror fused_copy(fused);
  LayerTensors tensors;
  tensors.out = fused_copy.Of(*fused.view.Slice(1, 4, 20));
  ASSERT_EQ((*layer)->Forward(context, tensors, nullptr), absl::OkStatus());
  fused_copy.CopyTo(fused);
  const std::vector<double> values = fused.Get();
  for (size_t i = 0; i < values.size(); ++i) {
    EXPECT_EQ(values[i], i % 24 >= 4 && i % 24 < 20 ? 0 : 7) << i;
  }
  Tensor dense(DType::kF32, {3, 16});
  FillWithPoison(dense);
  const Mirror dense_copy(dense);
  tensors.out = dense_copy.Of(dense.view);
  ASSERT_EQ((*layer)->Forward(context, tensors, nullptr), absl::OkStatus());
  dense_copy.CopyTo(dense);
  EXPECT_THAT(dense.Get(), Each(0.0));
  tensors.out = dense.view;  // on the host
  EXPECT_TRUE(absl::IsInvalidArgument((*layer)->Forward(context, tensors, nullptr)));
}

// A cache in memory of the host and, the same bytes, in that of the device or in pinned memory.
struct CacheOnBoth {
  CacheOnBoth(const RandomCacheShape& shape, uint64_t seed, DeviceKind kind = DeviceKind::kCuda)
      : host(shape, seed), copy(absl::MakeConstSpan(host.memory()), kind) {}
  KvCacheView on_device() const { return copy.Of(host.view()); }
  bool Agree() { return copy.Bytes() == host.memory(); }

  RandomCache host;
  const Mirror copy;
};

// As GPUs want it.
RandomCacheShape DrawAlignedShape(KvLayout layout, DrawNumber draw) {
  RandomCacheShape shape = DrawCacheShape(layout, 2, draw);
  shape.alignment = 16 / ElementBytes(shape.dtype);
  if (layout == KvLayout::kPagedX) shape.block_size = shape.alignment * draw(1, 2);
  return shape;
}

TEST(DeviceMemoryTest, BlocksGoWhereTheHostPutsThem) {
  ExecContext context;
  context.device = kDevice;
  std::mt19937_64 random(1);
  const auto draw = [&](int64_t low, int64_t high) { return IntegerDraw(random, low, high); };
  for (const KvLayout layout : kAllLayouts) {
    for (uint64_t seed = 0; seed < 8; ++seed) {
      SCOPED_TRACE(testing::Message() << Name(layout) << " " << seed);
      RandomCacheShape shape = DrawAlignedShape(layout, draw);
      CacheOnBoth cache(shape, seed);
      const int64_t blocks = shape.num_blocks;
      const std::vector<BlockPair> copied = DrawBlockPairs(blocks, blocks, true, 5, draw);
      const KvCacheView of_host[] = {cache.host.view()}, of_device[] = {cache.on_device()};
      ASSERT_EQ(CopyBlocks({}, of_host, copied), absl::OkStatus());
      ASSERT_EQ(CudaCopyBlocks(context, of_device, copied), absl::OkStatus());
      ASSERT_TRUE(cache.Agree());

      // Within the device, and over the bus; there and back.
      shape.num_blocks = draw(1, 6);
      for (const DeviceKind kind : {DeviceKind::kCuda, DeviceKind::kPinnedHost}) {
        CacheOnBoth other(shape, seed + 100, kind);  // of other strides
        for (const bool back : {false, true}) {
          CacheOnBoth &from = back ? cache : other, &to = back ? other : cache;
          const std::vector<BlockPair> swapped = DrawBlockPairs(
              from.host.view().num_blocks(), to.host.view().num_blocks(), false, 5, draw);
          ASSERT_EQ(SwapBlocks({}, from.host.view(), to.host.view(), swapped), absl::OkStatus());
          ASSERT_EQ(CudaSwapBlocks(context, from.on_device(), to.on_device(), swapped),
                    absl::OkStatus());
          ASSERT_TRUE(to.Agree());
        }
      }
      const int32_t ids[] = {static_cast<int32_t>(blocks - 1), 0};
      ASSERT_EQ(FillBlocks({}, cache.host.view(), ids, std::byte{0xA5}), absl::OkStatus());
      ASSERT_EQ(CudaFillBlocks(context, cache.on_device(), ids, std::byte{0xA5}), absl::OkStatus());
      ASSERT_TRUE(cache.Agree());
    }
  }
}

TEST(DeviceMemoryTest, LayoutsConvertAsOnTheHost) {
  ExecContext context;
  context.device = kDevice;
  std::mt19937_64 random(2);
  const auto draw = [&](int64_t low, int64_t high) { return IntegerDraw(random, low, high); };
  const std::vector<std::vector<KvLayout>> families = {
      {KvLayout::kNhd, KvLayout::kHnd, KvLayout::kPagedX},
      {KvLayout::kMlaLatent, KvLayout::kMlaSplit},
      {KvLayout::kMlaFp8_656}};
  for (const std::vector<KvLayout>& family : families) {
    for (const KvLayout from : family) {
      for (const KvLayout to : family) {
        SCOPED_TRACE(testing::Message() << Name(from) << " to " << Name(to));
        // Blocks that are aligned in any of the layouts.
        RandomCacheShape shape = DrawAlignedShape(family.back(), draw);
        shape.layout = from;
        CacheOnBoth source(shape, 1);
        shape.layout = to;
        CacheOnBoth converted(shape, 2);
        ASSERT_EQ(ConvertLayout({}, source.host.view(), converted.host.view()), absl::OkStatus());
        ASSERT_EQ(CudaConvertLayout(context, source.on_device(), converted.on_device()),
                  absl::OkStatus());
        EXPECT_TRUE(converted.Agree());
        const std::vector<BlockPair> pairs =
            DrawBlockPairs(shape.num_blocks, shape.num_blocks, false, 5, draw);
        ASSERT_EQ(ConvertLayout({}, source.host.view(), converted.host.view(), pairs),
                  absl::OkStatus());
        ASSERT_EQ(CudaConvertLayout(context, source.on_device(), converted.on_device(), pairs),
                  absl::OkStatus());
        EXPECT_TRUE(converted.Agree());
      }
    }
  }
  CacheOnBoth heads({.layout = KvLayout::kNhd}, 1);
  CacheOnBoth latent({.layout = KvLayout::kMlaLatent, .key_dim = 2}, 1);
  EXPECT_TRUE(
      absl::IsInvalidArgument(CudaConvertLayout(context, heads.on_device(), latent.on_device())));
  EXPECT_TRUE(absl::IsInvalidArgument(
      CudaConvertLayout(context, heads.on_device(), heads.host.view())));  // on the host
}

// Arrays so long that each is copied by itself; batches that use more and less of them.
TEST(CudaDeviceMemoryTest, MetadataOnTheDeviceIsTheHosts) {
  MetadataBuilderOptions options;
  options.groups = {{.manager_block_size = 16, .kernel_block_size = 16, .num_blocks = 999},
                    {.manager_block_size = 32, .kernel_block_size = 32, .num_blocks = 999}};
  options.max_num_reqs = 4096, options.max_num_tokens = 8192, options.max_seq_len = 1024;
  auto builder = CudaBackend().MakeMetadataBuilder(options);
  ASSERT_TRUE(builder.ok()) << builder.status();
  DeviceContext on;
  const auto uploaded = DeviceMetadata::Create(on.context, &*builder);
  ASSERT_TRUE(uploaded.ok()) << uploaded.status();
  int num_compared = 0;
  const auto expect_equal = [&](const ConstTensorView& host, const ConstTensorView& device) {
    if (host.absent() || host.empty()) return;
    ++num_compared;
    const auto bytes = static_cast<size_t>(host.num_elements() * ElementBytes(host.dtype));
    std::vector<std::byte> copy(bytes);
    ASSERT_NE(device.data, host.data);
    ASSERT_EQ(CopyAsync(copy.data(), device.data, bytes, on.context.stream), 0);
    ASSERT_EQ(Synchronize(on.context.stream), 0);
    EXPECT_TRUE(std::equal(copy.begin(), copy.end(), host.data));
  };
  std::mt19937_64 random(5);
  for (const int64_t num_reqs : {3, 60, 1, 40, 40}) {
    std::vector<RequestInput> requests;
    std::vector<std::vector<int32_t>> blocks;
    std::vector<int32_t> encoder_lens;
    for (int32_t i = 0; i < num_reqs; ++i) {
      requests.push_back({.num_computed_tokens = IntegerDraw(random, 0, 90),
                          .num_scheduled_tokens = IntegerDraw(random, 1, 120)});
      encoder_lens.push_back(i + 1);
      for (const int32_t num_blocks : {14, 7}) {
        blocks.emplace_back(static_cast<size_t>(num_blocks));
        std::iota(blocks.back().begin(), blocks.back().end(), 1 + i * num_blocks);
      }
    }
    const std::vector<absl::Span<const int32_t>> tables(blocks.begin(), blocks.end());
    ASSERT_EQ(builder->Build({.requests = requests,
                              .block_ids = tables,
                              .encoder_lens = encoder_lens,
                              .padded_num_reqs = num_reqs + 4,
                              .padded_num_tokens = 7500}),
              absl::OkStatus());
    (void)builder->token_to_req();
    ASSERT_EQ((*uploaded)->Upload(on.context), absl::OkStatus());
    for (const int group : {0, 1}) {
      for (const CommonAttentionMetadata& host :
           {builder->metadata(group), builder->decode_view(group), builder->prefill_view(group),
            builder->cross_metadata()}) {
        const CommonAttentionMetadata device = (*uploaded)->OnDevice(host);
        expect_equal(host.query_start_loc, device.query_start_loc);
        expect_equal(host.seq_lens, device.seq_lens);
        expect_equal(host.block_table, device.block_table);
        expect_equal(host.slot_mapping, device.slot_mapping);
        expect_equal(host.positions, device.positions);
        expect_equal(host.token_to_req, device.token_to_req);
      }
    }
  }
  EXPECT_GT(num_compared, 5 * 2 * (6 + 4 + 6 + 4) / 2);
}

}  // namespace
}  // namespace kvblocks::attention::cuda
