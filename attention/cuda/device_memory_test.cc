// What works on tensors in device memory without a host's copy of them: layers of the backend CUDA,
// fed by uploaded metadata, against those of the CPU, and block operations against the host's. Runs
// emulated and on GPUs.

#include <algorithm>
#include <cmath>
#include <cstring>
#include <memory>
#include <numeric>
#include <random>
#include <string>
#include <vector>

#include "absl/types/span.h"
#include "attention/cpu/block_ops.h"
#include "attention/cuda/block_ops.h"
#include "attention/cuda/device_metadata.h"
#include "attention/cuda/kernels/runtime.h"
#include "attention/cuda/testing/device_mirror.h"
#include "attention/testing/paged_case.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "kvblocks/attention_backend.h"
#include "kvblocks/attention_cpu.h"
#include "kvblocks/attention_cuda.h"
#include "kvblocks/attention_metadata.h"

namespace kvblocks::attention::cuda {
namespace {

using testing::Each;

constexpr int64_t kHeads = 4, kKvHeads = 2, kBlockSize = 16, kBlocks = 32;

// Three steps of three requests on both layers: caches alike to the bit, outputs within `limit`
// times the largest value.
void ExpectLayersAgree(LayerConfig layer, DType dtype, double limit) {
  layer.name = "layer";
  layer.num_heads = kHeads;
  layer.num_kv_heads = kKvHeads;
  layer.head_size = 64;
  LayerConfig on_gpu = layer;
  const auto* sinks = reinterpret_cast<const std::byte*>(layer.sinks.data);
  const Mirror sinks_mirror(absl::MakeConstSpan(sinks, layer.sinks.absent() ? 0 : kHeads * 4));
  on_gpu.sinks = sinks_mirror.Of(layer.sinks);
  const Reference reference;
  const auto cpu = reference.MakeImpl(layer);
  const auto cuda = CudaBackend().MakeImpl(on_gpu);
  ASSERT_TRUE(cpu.ok() && cuda.ok());

  MetadataBuilderOptions options;
  options.groups = {
      {.manager_block_size = kBlockSize, .kernel_block_size = kBlockSize, .num_blocks = kBlocks}};
  options.max_num_reqs = 4;
  options.max_num_tokens = 128;
  options.max_seq_len = 64;
  auto builder = CudaBackend().MakeMetadataBuilder(options);
  ASSERT_TRUE(builder.ok()) << builder.status();
  DeviceContext on;
  const auto uploaded = DeviceMetadata::Create(on.context, &*builder);
  ASSERT_TRUE(uploaded.ok()) << uploaded.status();

  std::vector<Tensor> caches;
  for (int i = 0; i < 2; ++i) {
    caches.emplace_back(dtype, std::vector<int64_t>{kBlocks, kBlockSize, kKvHeads, 64});
    FillWithPoison(caches.back());
  }
  const Mirror k_cache(caches[0]), v_cache(caches[1]);

  const std::vector<int32_t> blocks[] = {{9, 4, 17, 2}, {3, 30, 11, 12}, {5, 1, 8, 22}};
  const std::vector<RequestInput> steps[] = {{{0, 37}, {0, 1}, {0, 51}},    // prefills
                                             {{37, 1}, {1, 1}, {51, 1}},    // decodes
                                             {{38, 1}, {2, 40}, {52, 3}}};  // both
  std::mt19937_64 random(1);
  for (const std::vector<RequestInput>& step : steps) {
    const std::vector<absl::Span<const int32_t>> tables(std::begin(blocks), std::end(blocks));
    ASSERT_EQ(builder->Build({.requests = step, .block_ids = tables}), absl::OkStatus());
    const CommonAttentionMetadata& metadata = builder->metadata(0);
    const int64_t rows = metadata.num_actual_tokens + 2;
    Tensor q(dtype, {rows, kHeads * 64}), k(dtype, {rows, kKvHeads * 64});
    Tensor v(dtype, {rows, kKvHeads * 64}), out(dtype, {rows, kHeads * 64});
    for (Tensor* tensor : {&q, &k, &v}) {
      tensor->Set(NormalDraws(random, tensor->view.num_elements()));
    }
    FillWithPoison(out);
    const Mirror q_copy(q), k_copy(k), v_copy(v), out_copy(out);
    ASSERT_EQ(
        (*cpu)->Forward(
            {},
            {q.view, k.view, v.view, {KvLayout::kNhd, caches[0].view, caches[1].view}, out.view, 0},
            &metadata),
        absl::OkStatus());
    ASSERT_EQ((*uploaded)->Upload(on.context), absl::OkStatus());
    const CommonAttentionMetadata on_device = (*uploaded)->metadata();
    ASSERT_EQ(
        (*cuda)->Forward(on.context,
                         {q_copy.Of(q.view),
                          k_copy.Of(k.view),
                          v_copy.Of(v.view),
                          {KvLayout::kNhd, k_cache.Of(caches[0].view), v_cache.Of(caches[1].view)},
                          out_copy.Of(out.view),
                          0},
                         &on_device),
        absl::OkStatus());
    EXPECT_EQ(on.flags(), 0u);
    EXPECT_EQ(k_cache.Bytes(), caches[0].bytes);
    EXPECT_EQ(v_cache.Bytes(), caches[1].bytes);
    double most = 1;
    for (const double value : v.Get()) most = std::max(most, std::abs(value));
    const std::vector<double> expected = out.Get();
    out_copy.CopyTo(out);
    const std::vector<double> actual = out.Get();
    for (size_t i = 0; i < actual.size(); ++i) {
      ASSERT_NEAR(actual[i], expected[i], limit * most) << i;
    }
    EXPECT_THAT(std::vector<double>(actual.end() - 2 * kHeads * 64, actual.end()), Each(0.0));
  }
}

TEST(DeviceMemoryTest, LayersAgreeWithThoseOfTheCpu) {
  const std::vector<float> sinks = {0.5f, -1, 2, 0};
  for (const auto& [dtype, limit] :
       {std::pair(DType::kF32, 1e-5), std::pair(DType::kBF16, 1.5e-2)}) {
    SCOPED_TRACE(Name(dtype));
    ExpectLayersAgree({}, dtype, limit);
    ExpectLayersAgree({.window = 21, .sinks = ViewOf(absl::MakeConstSpan(sinks))}, dtype, limit);
  }
}

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

// K and V of nine blocks in one allocation: after each other, block by block or token by token.
struct BothInOne {
  Tensor memory;
  KvCacheView view;

  BothInOne(int dim, uint64_t seed) {
    std::vector<int64_t> extents = {9, 5, 3, 16};
    extents.insert(extents.begin() + dim, 2);
    memory = Tensor(DType::kBF16, extents);
    std::mt19937_64 random(seed);
    memory.Set(NormalDraws(random, memory.view.num_elements()));
    view = {KvLayout::kNhd, *memory.view.Select(dim, 0), *memory.view.Select(dim, 1)};
  }
};

TEST(DeviceMemoryTest, BlocksGoWhereTheHostPutsThem) {
  ExecContext context;
  context.device = kDevice;
  for (const int dim : {0, 1, 2}) {
    for (const int other_dim : {0, 1, 2}) {
      SCOPED_TRACE(testing::Message() << dim << " " << other_dim);
      BothInOne expected(dim, 1), other(other_dim, 2);
      const Mirror actual(expected.memory);
      const KvCacheView of_host[] = {expected.view}, of_device[] = {actual.Of(expected.view)};
      const BlockPair copied[] = {{0, 3}, {8, 1}, {0, 5}};
      ASSERT_EQ(CopyBlocks({}, of_host, copied), absl::OkStatus());
      ASSERT_EQ(CudaCopyBlocks(context, of_device, copied), absl::OkStatus());
      ASSERT_EQ(actual.Bytes(), expected.memory.bytes);

      // Within the device, and over the bus; there and back.
      const BlockPair there[] = {{4, 0}, {5, 1}, {6, 2}, {0, 8}}, back[] = {{3, 7}, {1, 1}};
      for (const DeviceKind kind : {DeviceKind::kCuda, DeviceKind::kPinnedHost}) {
        const Mirror other_copy(absl::MakeConstSpan(other.memory.bytes), kind);
        ASSERT_EQ(SwapBlocks({}, other.view, expected.view, there), absl::OkStatus());
        ASSERT_EQ(CudaSwapBlocks(context, other_copy.Of(other.view), of_device[0], there),
                  absl::OkStatus());
        ASSERT_EQ(actual.Bytes(), expected.memory.bytes);
        ASSERT_EQ(SwapBlocks({}, expected.view, other.view, back), absl::OkStatus());
        ASSERT_EQ(CudaSwapBlocks(context, of_device[0], other_copy.Of(other.view), back),
                  absl::OkStatus());
        ASSERT_EQ(other_copy.Bytes(), other.memory.bytes);
      }
      const int32_t ids[] = {8, 0, 3};
      ASSERT_EQ(FillBlocks({}, expected.view, ids, std::byte{0xA5}), absl::OkStatus());
      ASSERT_EQ(CudaFillBlocks(context, of_device[0], ids, std::byte{0xA5}), absl::OkStatus());
      ASSERT_EQ(actual.Bytes(), expected.memory.bytes);
    }
  }
}

// Random bits in a cache of nine blocks of eight tokens and, of heads, three of 16 values.
struct AnyCache {
  std::vector<Tensor> tensors;
  KvCacheView view;

  AnyCache(KvLayout layout, uint64_t seed) {
    const auto add = [&](DType dtype, std::vector<int64_t> extents) {
      Tensor& tensor = tensors.emplace_back(dtype, std::move(extents));
      std::mt19937_64 random(seed + tensors.size());
      for (std::byte& byte : tensor.bytes) byte = static_cast<std::byte>(random());
    };
    switch (layout) {
      case KvLayout::kNhd:
      case KvLayout::kHnd:
      case KvLayout::kPagedX:
        for (const bool key : {true, false}) {
          add(DType::kBF16, CacheExtents(key, layout, DType::kBF16, 9, 8, 3, 16));
        }
        break;
      case KvLayout::kMlaLatent:
        add(DType::kBF16, {9, 8, 24});
        break;
      case KvLayout::kMlaSplit:
        add(DType::kBF16, {9, 8, 16}), add(DType::kBF16, {9, 8, 8});
        break;
      default:
        add(DType::kU8, {9, 8, 656});
    }
    view = {layout, tensors[0].view, tensors.size() > 1 ? tensors[1].view : TensorView()};
    if (layout == KvLayout::kMlaLatent) view.v = *view.k.Slice(2, 0, 16);
  }
};

TEST(DeviceMemoryTest, LayoutsConvertAsOnTheHost) {
  ExecContext context;
  context.device = kDevice;
  const std::vector<std::vector<KvLayout>> families = {
      {KvLayout::kNhd, KvLayout::kHnd, KvLayout::kPagedX},
      {KvLayout::kMlaLatent, KvLayout::kMlaSplit},
      {KvLayout::kMlaFp8_656}};
  const auto on_device = [](AnyCache& cache, const std::vector<std::unique_ptr<Mirror>>& mirrors) {
    KvCacheView view = cache.view;
    view.k = mirrors.front()->Of(view.k);
    view.v = mirrors.back()->Of(view.v);
    return view;
  };
  const auto mirrored = [](const AnyCache& cache) {
    std::vector<std::unique_ptr<Mirror>> mirrors;
    for (const Tensor& tensor : cache.tensors) mirrors.push_back(std::make_unique<Mirror>(tensor));
    return mirrors;
  };
  for (const std::vector<KvLayout>& family : families) {
    for (const KvLayout from : family) {
      for (const KvLayout to : family) {
        SCOPED_TRACE(testing::Message() << Name(from) << " to " << Name(to));
        AnyCache source(from, 1), expected(to, 2);
        const auto source_copy = mirrored(source), actual = mirrored(expected);
        ASSERT_EQ(ConvertLayout({}, source.view, expected.view), absl::OkStatus());
        ASSERT_EQ(CudaConvertLayout(context, on_device(source, source_copy),
                                    on_device(expected, actual)),
                  absl::OkStatus());
        for (size_t i = 0; i < actual.size(); ++i) {
          EXPECT_EQ(actual[i]->Bytes(), expected.tensors[i].bytes) << i;
        }
        const BlockPair pairs[] = {{0, 3}, {8, 2}, {5, 5}, {5, 0}};
        ASSERT_EQ(ConvertLayout({}, source.view, expected.view, pairs), absl::OkStatus());
        ASSERT_EQ(CudaConvertLayout(context, on_device(source, source_copy),
                                    on_device(expected, actual), pairs),
                  absl::OkStatus());
        for (size_t i = 0; i < actual.size(); ++i) {
          EXPECT_EQ(actual[i]->Bytes(), expected.tensors[i].bytes) << i;
        }
      }
    }
  }
  AnyCache heads(KvLayout::kNhd, 1), latent(KvLayout::kMlaLatent, 1);
  const auto heads_copy = mirrored(heads), latent_copy = mirrored(latent);
  EXPECT_TRUE(absl::IsInvalidArgument(CudaConvertLayout(context, on_device(heads, heads_copy),
                                                        on_device(latent, latent_copy))));
  EXPECT_TRUE(absl::IsInvalidArgument(
      CudaConvertLayout(context, on_device(heads, heads_copy), heads.view)));  // on the host
}

// Decoder tokens of three requests against encoders of several lengths, whose keys no cache holds.
TEST(DeviceMemoryTest, CrossAttentionNeedsNoCache) {
  LayerConfig config;
  config.name = "cross";
  config.type = AttentionType::kEncoderDecoder;
  config.num_heads = 4, config.num_kv_heads = 2;
  config.head_size = 64;
  const std::vector<int32_t> lengths = {40, 0, 7}, starts = {0, 2, 3, 6};
  const Reference reference;
  const auto cpu = reference.MakeImpl(config);
  const auto cuda = CudaBackend().MakeImpl(config);
  ASSERT_TRUE(cpu.ok() && cuda.ok());
  std::mt19937_64 random(3);
  for (const DType dtype : {DType::kF32, DType::kBF16}) {
    SCOPED_TRACE(Name(dtype));
    Tensor q(dtype, {6, 256}), k(dtype, {47, 128}), v(dtype, {47, 128}), out(dtype, {6, 256});
    for (Tensor* tensor : {&q, &k, &v}) {
      tensor->Set(NormalDraws(random, tensor->view.num_elements()));
    }
    FillWithPoison(out);
    CommonAttentionMetadata metadata;
    metadata.query_start_loc = ViewOf(absl::MakeConstSpan(starts));
    metadata.seq_lens = ViewOf(absl::MakeConstSpan(lengths));
    metadata.host_query_start_loc = starts;
    metadata.host_seq_lens = lengths;
    metadata.num_reqs = 3;
    metadata.num_actual_tokens = 6;
    metadata.max_query_len = 3;
    metadata.max_seq_len = 40;
    DeviceContext on;
    const auto mirror_of = [](const std::vector<int32_t>& values) {
      return Mirror(absl::MakeConstSpan(reinterpret_cast<const std::byte*>(values.data()),
                                        values.size() * sizeof(int32_t)));
    };
    const Mirror starts_copy = mirror_of(starts), lengths_copy = mirror_of(lengths);
    const Mirror q_copy(q), k_copy(k), v_copy(v), out_copy(out);
    ASSERT_EQ((*cpu)->Forward({}, {q.view, k.view, v.view, {}, out.view, 0}, &metadata),
              absl::OkStatus());
    CommonAttentionMetadata on_device = metadata;
    on_device.query_start_loc = starts_copy.Of(metadata.query_start_loc);
    on_device.seq_lens = lengths_copy.Of(metadata.seq_lens);
    ASSERT_EQ((*cuda)->Forward(on.context,
                               {q_copy.Of(q.view), k_copy.Of(k.view), v_copy.Of(v.view), {},
                                out_copy.Of(out.view), 0},
                               &on_device),
              absl::OkStatus());
    EXPECT_EQ(on.flags(), 0u);
    const std::vector<double> expected = out.Get();
    out_copy.CopyTo(out);
    const std::vector<double> actual = out.Get();
    for (size_t i = 0; i < actual.size(); ++i) {
      ASSERT_NEAR(actual[i], expected[i], dtype == DType::kF32 ? 1e-5 : 4e-2) << i;
    }
  }
}

// What only CUDA refuses is refused before anything is stored.
TEST(DeviceMemoryTest, ARefusedCallStoresNothing) {
  LayerConfig config;
  config.name = "layer";
  config.num_heads = config.num_kv_heads = 1;
  config.head_size = 640;  // too wide to attend with, not to store
  const auto layer = CudaBackend().MakeImpl(config);
  ASSERT_TRUE(layer.ok()) << layer.status();
  Tensor q(DType::kF32, {2, 640}), cache(DType::kF32, {2, 16, 1, 640});
  q.Set(std::vector<double>(1280, 1.0));
  FillWithPoison(cache);
  const std::vector<int32_t> starts = {0, 2}, lengths = {2}, table = {1};
  const std::vector<int64_t> slots = {16, 17};
  const auto mirror_of = [](const auto& values) {
    return Mirror(absl::MakeConstSpan(reinterpret_cast<const std::byte*>(values.data()),
                                      values.size() * sizeof(values[0])));
  };
  const Mirror starts_copy = mirror_of(starts), lengths_copy = mirror_of(lengths);
  const Mirror table_copy = mirror_of(table), slots_copy = mirror_of(slots);
  const Mirror q_copy(q), out_copy(q), k_cache(cache), v_cache(cache);
  CommonAttentionMetadata metadata;
  metadata.query_start_loc = starts_copy.Of(ViewOf(absl::MakeConstSpan(starts)));
  metadata.seq_lens = lengths_copy.Of(ViewOf(absl::MakeConstSpan(lengths)));
  metadata.block_table = table_copy.Of(ViewOf(absl::MakeConstSpan(table), {1, 1}));
  metadata.slot_mapping = slots_copy.Of(ViewOf(absl::MakeConstSpan(slots)));
  metadata.host_query_start_loc = starts;
  metadata.host_seq_lens = lengths;
  metadata.num_reqs = metadata.num_prefills = 1;
  metadata.num_actual_tokens = metadata.max_query_len = metadata.max_seq_len = 2;
  DeviceContext on;
  const absl::Status status = (*layer)->Forward(
      on.context,
      {q_copy.Of(q.view), q_copy.Of(q.view), q_copy.Of(q.view),
       {KvLayout::kNhd, k_cache.Of(cache.view), v_cache.Of(cache.view)}, out_copy.Of(q.view), 0},
      &metadata);
  EXPECT_TRUE(absl::IsUnimplemented(status)) << status;
  EXPECT_EQ(k_cache.Bytes(), cache.bytes);
  EXPECT_EQ(v_cache.Bytes(), cache.bytes);
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
