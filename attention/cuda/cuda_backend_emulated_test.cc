// The backend CUDA, emulated: when it is chosen, and layers on it against layers on the CPU. Device
// memory is host memory here; tensors are labelled as on the device.

#include <algorithm>
#include <cmath>
#include <limits>
#include <memory>
#include <random>
#include <string>
#include <vector>

#include "absl/types/span.h"
#include "attention/backends/backend_selection.h"
#include "attention/backends/cpu_backends.h"
#include "attention/cuda/cuda_backend.h"
#include "attention/metadata/metadata_builder.h"
#include "attention/oracle/paged_case.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace kvblocks::attention {
namespace {

using testing::Each;
using testing::HasSubstr;

constexpr DeviceId kDevice = {DeviceKind::kCuda, 0};

class CudaBackendTest : public testing::Test {
 protected:
  CudaBackendTest() {
    EXPECT_EQ(RegisterCpuBackends(registry_), absl::OkStatus());
    EXPECT_EQ(RegisterCudaBackend(registry_), absl::OkStatus());
  }
  static BackendConfig OnGpu() {
    BackendConfig config;
    config.device = kDevice;
    config.compute_capability = 90;
    return config;
  }
  std::string Selected(const BackendConfig& config) {
    const auto selected = SelectBackend(registry_, config);
    return selected.ok() ? (*selected)->name() : std::string(selected.status().message());
  }
  BackendRegistry registry_;
};

TEST_F(CudaBackendTest, TensorsOnGpusAndOnlyThoseAreItsOwn) {
  EXPECT_EQ(Selected(OnGpu()), "CUDA");
  EXPECT_EQ(Selected(BackendConfig()), "CPU");
  EXPECT_EQ(registry_.backends().front(), &CudaBackend());
  EXPECT_TRUE(absl::IsAlreadyExists(RegisterCudaBackend(registry_)));
}

TEST_F(CudaBackendTest, AllLayoutsWithTheirTypesAreServed) {
  for (const KvLayout layout :
       {KvLayout::kPagedX, KvLayout::kNhd, KvLayout::kHnd, KvLayout::kMlaLatent,
        KvLayout::kMlaSplit, KvLayout::kMlaFp8_656, KvLayout::kMlaFp8_584}) {
    BackendConfig config = OnGpu();
    config.layout = layout;
    config.compute_capability = 80;
    config.head_size = IsMla(layout) ? 576 : 128;
    config.value_head_size = IsMla(layout) ? 512 : 0;
    config.graph_level = GraphLevel::kUniformBatch;
    if (IsMla(layout)) config.features = {Feature::kMla, Feature::kSparse};
    if (layout >= KvLayout::kMlaFp8_656) config.cache_dtype = DType::kU8;
    EXPECT_EQ(Selected(config), "CUDA");
  }
}

TEST_F(CudaBackendTest, WhatItHasNotIsNamed) {
  const auto reason = [&](auto change) {
    BackendConfig config = OnGpu();
    change(config);
    return Selected(config);
  };
  EXPECT_THAT(reason([](auto& c) { c.compute_capability = 75; }),
              HasSubstr("CUDA: [sm_75 not in sm_80 and later]; CPU: [tensors are on cuda:0]"));
  EXPECT_THAT(reason([](auto& c) { c.q_dtype = DType::kF64; }),
              HasSubstr("CUDA: [q dtype f64 not in {f32, f16, bf16}]"));
  EXPECT_THAT(reason([](auto& c) { c.cache_dtype = DType::kF64; }), HasSubstr("cache dtype f64"));
  EXPECT_THAT(reason([](auto& c) { c.head_size = 640; }),
              HasSubstr("CUDA: [head size 640 above 576]"));
  EXPECT_THAT(reason([](auto& c) { c.value_head_size = 577; }),
              HasSubstr("CUDA: [head size 128/577 above 576]"));
  EXPECT_THAT(reason([](auto& c) { c.graph_level = GraphLevel::kAlways; }),
              HasSubstr("CUDA: [graph level"));
}

template <typename View>
View Labelled(View view) {
  if (!view.absent()) view.device = kDevice;
  return view;
}

CommonAttentionMetadata OnDevice(CommonAttentionMetadata metadata) {
  for (ConstTensorView* view : {&metadata.query_start_loc, &metadata.seq_lens,
                                &metadata.block_table, &metadata.slot_mapping, &metadata.positions,
                                &metadata.token_to_req, &metadata.prefill_query_start_loc}) {
    *view = Labelled(*view);
  }
  return metadata;
}

constexpr int64_t kHeads = 4, kKvHeads = 2, kDim = 16, kBlockSize = 4, kBlocks = 32;

// Three steps of three requests on both layers; true to float32.
void ExpectLayersAgree(LayerConfig layer) {
  layer.name = "layer";
  layer.num_heads = kHeads;
  layer.num_kv_heads = kKvHeads;
  layer.head_size = kDim;
  LayerConfig on_gpu = layer;
  on_gpu.sinks = Labelled(layer.sinks);
  on_gpu.alibi_slopes = Labelled(layer.alibi_slopes);
  const auto cpu = CpuBackend().MakeImpl(layer);
  const auto cuda = CudaBackend().MakeImpl(on_gpu);
  ASSERT_TRUE(cpu.ok() && cuda.ok());

  MetadataBuilderOptions options;
  options.groups = {
      {.manager_block_size = kBlockSize, .kernel_block_size = kBlockSize, .num_blocks = kBlocks}};
  options.max_num_reqs = 4;
  options.max_num_tokens = 64;
  options.max_seq_len = 64;
  auto builder = CudaBackend().MakeMetadataBuilder(options);
  ASSERT_TRUE(builder.ok()) << builder.status();

  Tensor caches[2][2];
  for (auto& of_layer : caches) {
    for (Tensor& tensor : of_layer) {
      tensor = Tensor(DType::kF32, {kBlocks, kBlockSize, kKvHeads, kDim});
      FillWithPoison(tensor);
    }
  }
  std::vector<std::byte> memory(size_t{8} << 20);
  Workspace workspace{absl::MakeSpan(memory), {}};
  uint32_t bits = 0;
  DeviceErrorFlags flags{&bits};
  ExecContext context;
  context.device = kDevice;
  context.workspace = &workspace;
  context.error_flags = &flags;

  const std::vector<int32_t> blocks[] = {{9, 4, 17, 2}, {3, 30, 11, 12}, {5, 1, 8, 22}};
  const std::vector<RequestInput> steps[] = {{{0, 7}, {0, 1}, {0, 11}},   // prefills
                                             {{7, 1}, {1, 1}, {11, 1}},   // decodes
                                             {{8, 1}, {2, 5}, {12, 3}}};  // both
  std::mt19937_64 random(1);
  for (const std::vector<RequestInput>& step : steps) {
    const std::vector<absl::Span<const int32_t>> tables(std::begin(blocks), std::end(blocks));
    ASSERT_EQ(builder->Build({.requests = step, .block_ids = tables}), absl::OkStatus());
    const CommonAttentionMetadata& metadata = builder->metadata(0);
    const int64_t tokens = metadata.num_actual_tokens, rows = tokens + 2;
    Tensor q(DType::kF32, {rows, kHeads * kDim}), k(DType::kF32, {rows, kKvHeads * kDim}),
        v(DType::kF32, {rows, kKvHeads * kDim});
    for (Tensor* tensor : {&q, &k, &v}) {
      tensor->Set(NormalDraws(random, tensor->view.num_elements()));
    }
    Tensor expected(DType::kF32, {rows, kHeads * kDim}), actual(DType::kF32, {rows, kHeads * kDim});
    FillWithPoison(expected);
    FillWithPoison(actual);
    ASSERT_EQ((*cpu)->Forward({},
                              {q.view,
                               k.view,
                               v.view,
                               {KvLayout::kNhd, caches[0][0].view, caches[0][1].view},
                               expected.view,
                               0},
                              &metadata),
              absl::OkStatus());
    const CommonAttentionMetadata on_device = OnDevice(metadata);
    ASSERT_EQ((*cuda)->Forward(
                  context,
                  {Labelled(q.view),
                   Labelled(k.view),
                   Labelled(v.view),
                   {KvLayout::kNhd, Labelled(caches[1][0].view), Labelled(caches[1][1].view)},
                   Labelled(actual.view),
                   0},
                  &on_device),
              absl::OkStatus());
    EXPECT_EQ(bits, 0u);
    EXPECT_EQ(caches[0][0].bytes, caches[1][0].bytes);
    EXPECT_EQ(caches[0][1].bytes, caches[1][1].bytes);
    const std::vector<double> a = actual.Get(), e = expected.Get();
    for (size_t i = 0; i < a.size(); ++i) ASSERT_NEAR(a[i], e[i], 1e-5) << i;
    EXPECT_THAT(std::vector<double>(a.end() - 2 * kHeads * kDim, a.end()), Each(0.0));  // padding
  }
}

TEST_F(CudaBackendTest, LayersAgreeWithThoseOfTheCpu) {
  ExpectLayersAgree({});
  const std::vector<float> sinks = {0.5f, -1, 2, 0};
  ExpectLayersAgree({.window = 5, .sinks = ViewOf(absl::MakeConstSpan(sinks))});
}

TEST_F(CudaBackendTest, ProfilingRunsFillOutputsOfAnyStrides) {
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
  LayerTensors tensors;
  tensors.out = Labelled(*fused.view.Slice(1, 4, 20));
  ASSERT_EQ((*layer)->Forward(context, tensors, nullptr), absl::OkStatus());
  const std::vector<double> values = fused.Get();
  for (size_t i = 0; i < values.size(); ++i) {
    EXPECT_EQ(values[i], i % 24 >= 4 && i % 24 < 20 ? 0 : 7) << i;
  }
  Tensor dense(DType::kF32, {3, 16});
  FillWithPoison(dense);
  tensors.out = Labelled(dense.view);
  ASSERT_EQ((*layer)->Forward(context, tensors, nullptr), absl::OkStatus());
  EXPECT_THAT(dense.Get(), Each(0.0));
  tensors.out = dense.view;
  EXPECT_TRUE(absl::IsInvalidArgument((*layer)->Forward(context, tensors, nullptr)));
}

}  // namespace
}  // namespace kvblocks::attention
