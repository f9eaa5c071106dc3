// A whole decode step: metadata on the host, its transfer, and 32 layers of write and decode in one
// graph.

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <numeric>
#include <random>
#include <vector>

#include "attention/cuda/check/gpu_bench.h"
#include "attention/cuda/device_metadata.h"
#include "attention/cuda/kernels/runtime.h"
#include "attention/cuda/paged_decode_ops.h"
#include "kvblocks/attention_cuda.h"

namespace kvblocks::attention::cuda {
namespace {

constexpr int64_t kLayers = 32, kRequests = 64, kLength = 4096, kBlockSize = 16;
constexpr int64_t kHeads = 32, kKvHeads = 8, kDim = 128;

double Median(std::vector<double> values) {
  std::sort(values.begin(), values.end());
  return values[values.size() / 2];
}

}  // namespace

void BenchStep(GpuBench& bench) {
  const char* kName = "step: batch 64 x 4k, 32 layers of write and decode, one graph";
  if (!bench.wants(kName)) return;
  constexpr int64_t kColumns = kLength / kBlockSize;
  std::vector<int32_t> ids(kRequests * kColumns);
  std::iota(ids.begin(), ids.end(), 1);
  std::shuffle(ids.begin(), ids.end(), std::mt19937(1));
  std::vector<absl::Span<const int32_t>> tables;
  std::vector<RequestInput> requests;
  for (int64_t b = 0; b < kRequests; ++b) {
    tables.push_back(absl::MakeConstSpan(ids).subspan(b * kColumns, kColumns));
    requests.push_back({.num_computed_tokens = kLength - 1, .num_scheduled_tokens = 1});
  }
  const int64_t num_blocks = 1 + kRequests * kColumns;
  auto builder = AttentionMetadataBuilder::Create(
      {.groups = {{.num_blocks = num_blocks}},
       .max_num_reqs = kRequests,
       .max_num_tokens = kRequests,
       .max_seq_len = kLength});
  const BatchInput input = {.requests = requests, .block_ids = tables};
  if (!builder.ok() || !builder->Build(input).ok()) {
    std::printf("%s FAILED: no metadata\n", kName);
    return;
  }
  const ExecContext& context = bench.context();
  auto device = DeviceMetadata::Create(context, &*builder);
  if (!device.ok() || !(*device)->Upload(context).ok()) {
    std::printf("%s FAILED: no device metadata\n", kName);
    return;
  }
  const CommonAttentionMetadata metadata = (*device)->metadata();

  // Layers share a few caches, one after another: more memory than the second-level cache, less
  // than they need.
  constexpr int64_t kCaches = 4;
  std::vector<DeviceTensor> caches;
  for (int64_t i = 0; i < kCaches; ++i) {
    caches.emplace_back(DType::kBF16,
                        std::vector<int64_t>{num_blocks, 2, kBlockSize, kKvHeads, kDim});
    caches.back().FillNormal(static_cast<uint32_t>(i));
  }
  const DeviceTensor q = Normal(DType::kBF16, {kRequests, kHeads, kDim}, 7);
  const DeviceTensor k = Normal(DType::kBF16, {kRequests, kKvHeads, kDim}, 8);
  const DeviceTensor v = Normal(DType::kBF16, {kRequests, kKvHeads, kDim}, 9);
  const DeviceTensor out(DType::kBF16, {kRequests, kHeads, kDim});
  const DeviceTensor plan_memory(DType::kU8, {1 << 20});
  (void)Synchronize(nullptr);
  DeviceDecodePlan plan;
  plan.memory = plan_memory.view;
  const auto enqueue = [&](const ExecContext& on) {
    absl::Status status;
    for (int64_t layer = 0; layer < kLayers && status.ok(); ++layer) {
      const TensorView& cache = caches[layer % kCaches].view;
      const KvCacheView view(KvLayout::kNhd, cache.Select(1, 0).value(),
                             cache.Select(1, 1).value());
      ReshapeAndCacheArgs write;
      write.k = k.view;
      write.v = v.view;
      write.slot_mapping = metadata.slot_mapping.Slice(0, 0, kRequests).value();
      write.cache = view;
      PagedDecodeArgs decode;
      decode.q = q.view;
      decode.cache = view;
      decode.block_table = metadata.block_table.Slice(0, 0, kRequests).value();
      decode.seq_lens = metadata.seq_lens.Slice(0, 0, kRequests).value();
      decode.max_seq_len = kLength;
      decode.params.scale = 0.0884f;
      decode.out = out.view;
      if (layer == 0) status.Update(CudaPlanDecode(on, decode, &plan));
      decode.device_plan = &plan;
      status.Update(Cuda().ReshapeAndCache(on, write));
      status.Update(Cuda().PagedDecode(on, decode));
    }
    return status;
  };
  const double gpu_ms = bench.MedianMs(enqueue);
  if (gpu_ms < 0) return;

  // The host's part of a step that replays: metadata, its transfer, the launch. The GPU is idle
  // when it begins, so that the launch does not wait.
  void* graph = nullptr;
  if (BeginCapture(context.stream) != 0 || !enqueue(context).ok() ||
      EndCapture(context.stream, &graph) != 0) {
    std::printf("%s FAILED: no graph\n", kName);
    return;
  }
  std::vector<double> build_us, upload_us, launch_us;
  for (int round = 0; round < 50; ++round) {
    using Clock = std::chrono::steady_clock;
    const auto since = [](Clock::time_point from) {
      return std::chrono::duration<double, std::micro>(Clock::now() - from).count();
    };
    auto from = Clock::now();
    if (!builder->Build(input).ok()) return;
    build_us.push_back(since(from));
    from = Clock::now();
    if (!(*device)->Upload(context).ok()) return;
    upload_us.push_back(since(from));
    from = Clock::now();
    if (LaunchGraph(graph, context.stream) != 0) return;
    launch_us.push_back(since(from));
    (void)Synchronize(context.stream);
  }
  (void)DestroyGraph(graph);
  const double bytes = kLayers * 2.0 * kRequests * kLength * kKvHeads * kDim * 2;
  std::printf(
      "%s\n  GPU %.1f us (%.2f TB/s, %.1f %%); host %.1f us: metadata %.1f, transfer %.1f, "
      "launch of the graph %.1f\n",
      kName, gpu_ms * 1e3, bytes / gpu_ms * 1e-9, 100 * bytes / gpu_ms * 1e-9 / bench.read_tbs(),
      Median(build_us) + Median(upload_us) + Median(launch_us), Median(build_us), Median(upload_us),
      Median(launch_us));
}

}  // namespace kvblocks::attention::cuda
