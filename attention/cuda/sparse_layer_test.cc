// A layer of DeepSeek V4 with tensors in device memory, fed by uploaded metadata, against the
// CPU's. Runs emulated and on GPUs.

#include <deque>
#include <memory>
#include <random>
#include <vector>

#include "attention/cuda/device_metadata.h"
#include "attention/cuda/testing/device_mirror.h"
#include "gtest/gtest.h"
#include "kvblocks/attention_layer.h"
#include "kvblocks/attention_metadata.h"
#include "kvblocks/kv_cache_view.h"

namespace kvblocks::attention::cuda {
namespace {

constexpr int64_t kHeads = 2, kRow = 16, kIndexDim = 16, kBlocks = 24;

// Rows of 4 tokens with overlap, of which an indexer chooses 3; a window of 8.
struct LayerUnderTest {
  explicit LayerUnderTest(const AttentionBackend& the_backend) : backend(the_backend) {
    config.name = "c4a";
    config.num_heads = kHeads, config.latent_rank = kRow, config.window = 8;
    config.sparse = {
        .compress_ratio = 4, .overlap = true, .topk = 3, .index_heads = 2, .index_dim = kIndexDim};
    for (Tensor* tensor : {&window, &rows, &index, &states, &index_states}) FillWithPoison(*tensor);
  }
  const AttentionBackend& backend;
  LayerConfig config;
  std::unique_ptr<AttentionImpl> impls[2];
  Tensor window{DType::kF32, {kBlocks, 4, kRow}}, rows{DType::kF32, {kBlocks, 2, kRow}};
  Tensor index{DType::kF32, {kBlocks, 2, kIndexDim}};
  Tensor states{DType::kF32, {kBlocks, 4, 4 * kRow}};
  Tensor index_states{DType::kF32, {kBlocks, 4, 4 * kIndexDim}};
};

// Everything that a call takes, each view passed through `place`.
template <typename Place>
absl::Status Forward(LayerUnderTest& layer, const ExecContext& context, const SparseWork& work,
                     std::vector<Tensor>& in, Tensor& out,
                     const std::vector<CommonAttentionMetadata>& groups, const Place& place) {
  SparseTensors sparse;
  sparse.work = work;
  sparse.index_q = place(in[2]), sparse.index_weights = place(in[3]);
  sparse.compressor = {place(in[4]), place(in[5]), place(layer.states)};
  sparse.index_compressor = {place(in[6]), place(in[7]), place(layer.index_states)};
  sparse.index_cache = {place(layer.index)};
  sparse.compressed_cache = *MakeMlaLatentView(place(layer.rows), kRow);
  sparse.compressed = &groups[1], sparse.states = &groups[2];
  LayerTensors tensors;
  tensors.q = place(in[0]), tensors.k = place(in[1]), tensors.out = place(out);
  tensors.cache = *MakeMlaLatentView(place(layer.window), kRow);
  tensors.sparse = &sparse;
  absl::Status status;
  if (groups[0].plans == nullptr) {
    status = BuildSparseLists(layer.backend, context, layer.config, groups[0], &groups[1], work);
  }
  // Layers of one type, of which the second writes and reads the same again.
  for (int i = 0; i < 2 && status.ok(); ++i) {
    auto& impl = layer.impls[i];
    if (impl == nullptr) impl = layer.backend.MakeImpl(layer.config).value();
    status = impl->Forward(context, tensors, &groups[0]);
  }
  return status;
}

TEST(CudaSparseLayerTest, AgreesWithTheCpuOnTensorsInDeviceMemory) {
  const Reference reference;
  LayerUnderTest cpu(reference), cuda(CudaBackend());
  auto builder = AttentionMetadataBuilder::Create(
      {.groups =
           {{.manager_block_size = 4, .kernel_block_size = 4, .num_blocks = kBlocks, .window = 8},
            {.manager_block_size = 8,
             .kernel_block_size = 2,
             .num_blocks = kBlocks,
             .compression_ratio = 4},
            {.manager_block_size = 4, .kernel_block_size = 4, .num_blocks = kBlocks, .window = 8}},
       .max_num_reqs = 2,
       .max_num_tokens = 48,
       .max_seq_len = 40});
  ASSERT_TRUE(builder.ok()) << builder.status();
  DeviceContext on;
  const auto uploaded = DeviceMetadata::Create(on.context, &*builder);
  ASSERT_TRUE(uploaded.ok()) << uploaded.status();
  const SparseWorkBounds bounds{.max_tokens = 48, .max_seq_len = 40};
  std::vector<std::byte> memory(SparseWorkBytes(cpu.config, bounds));
  const TensorView whole =
      TensorView::Contiguous(memory.data(), DType::kU8, {static_cast<int64_t>(memory.size())});
  const Mirror memory_mirror(absl::MakeConstSpan(memory));
  const auto work = MakeSparseWork(cpu.config, bounds, whole);
  const auto device_work = MakeSparseWork(cpu.config, bounds, memory_mirror.Of(whole));
  ASSERT_TRUE(work.ok() && device_work.ok());
  // The caches of the layer under test stay on the device.
  const Mirror window(cuda.window), rows(cuda.rows), index(cuda.index), states(cuda.states);
  const Mirror index_states(cuda.index_states);

  const std::vector<int32_t> windows[] = {{2, 4, 6, 8, 10, 12, 14, 16, 18, 20}, {3, 5, 7, 9, 11}};
  const std::vector<int32_t> compressed[] = {{5, 1, 4, 9, 7}, {2, 3, 6}};
  const std::vector<RequestInput> steps[] = {
      {{0, 21}, {0, 3}}, {{21, 1}, {3, 9}}, {{22, 14}, {12, 1}}};
  std::mt19937_64 random(2);
  int num_steps = 0;
  for (const std::vector<RequestInput>& step : steps) {
    std::vector<absl::Span<const int32_t>> tables;
    for (int r = 0; r < 2; ++r) {
      tables.insert(tables.end(), {windows[r], compressed[r], windows[r]});
    }
    ASSERT_EQ(builder->Build({.requests = step, .block_ids = tables}), absl::OkStatus());
    const int64_t n = builder->metadata().num_actual_tokens;
    std::vector<Tensor> in;
    for (const std::vector<int64_t>& extents :
         std::vector<std::vector<int64_t>>{{n, kHeads, kRow},
                                           {n, kRow},
                                           {n, 2, kIndexDim},
                                           {n, 2},
                                           {n, 2 * kRow},
                                           {n, 2 * kRow},
                                           {n, 2 * kIndexDim},
                                           {n, 2 * kIndexDim}}) {
      in.emplace_back(DType::kF32, extents);
      in.back().Set(NormalDraws(random, in.back().view.num_elements()));
    }
    Tensor expected(DType::kF32, {n, kHeads, kRow}), actual(DType::kF32, {n, kHeads, kRow});
    FillWithPoison(expected), FillWithPoison(actual);
    std::vector<CommonAttentionMetadata> on_host, on_device;
    ASSERT_EQ((*uploaded)->Upload(on.context), absl::OkStatus());
    for (int g = 0; g < 3; ++g) {
      on_host.push_back(builder->metadata(g)), on_device.push_back((*uploaded)->metadata(g));
    }
    ASSERT_EQ(
        Forward(cpu, {}, *work, in, expected, on_host, [](Tensor& tensor) { return tensor.view; }),
        absl::OkStatus());
    std::deque<Mirror> inputs;  // a mirror does not move
    const Mirror out(actual);
    const auto place = [&](Tensor& tensor) {
      for (const auto& [host, mirror] : {std::pair<Tensor*, const Mirror*>{&cuda.window, &window},
                                         {&cuda.rows, &rows},
                                         {&cuda.index, &index},
                                         {&cuda.states, &states},
                                         {&cuda.index_states, &index_states},
                                         {&actual, &out}}) {
        if (&tensor == host) return mirror->Of(tensor.view);
      }
      return inputs.emplace_back(tensor).Of(tensor.view);
    };
    ASSERT_EQ(Forward(cuda, on.context, *device_work, in, actual, on_device, place),
              absl::OkStatus());
    EXPECT_EQ(on.flags(), 0u);
    out.CopyTo(actual);
    ExpectNear(actual.Get(), expected.Get(), 2e-5);
    EXPECT_EQ((*uploaded)->plans().num_lists(), ++num_steps);
    EXPECT_EQ(window.Bytes(), cpu.window.bytes);
    EXPECT_EQ(states.Bytes(), cpu.states.bytes);
  }
}

}  // namespace
}  // namespace kvblocks::attention::cuda
