// What a layer's call costs the host beside the operations that it makes: the time to enqueue both,
// on a stream that has nothing to do.

#include <algorithm>
#include <chrono>
#include <cstdint>
#include <cstdio>
#include <functional>
#include <memory>
#include <numeric>
#include <string>
#include <vector>

#include "attention/cuda/check/gpu_bench.h"
#include "attention/cuda/device_metadata.h"
#include "attention/cuda/kernels/runtime.h"
#include "kvblocks/attention_cuda.h"
#include "kvblocks/attention_layer.h"

namespace kvblocks::attention::cuda {
namespace {

constexpr int64_t kBlockSize = 16, kHeads = 32, kKvHeads = 8, kDim = 128;
constexpr int64_t kLatent = 512, kRotary = 64;
constexpr int kCalls = 100;  // fewer launches than a stream's queue takes

struct Step {
  const char* name;
  int64_t requests, length, new_tokens;
  bool mla;
};

double Median(std::vector<double> values) {
  std::sort(values.begin(), values.end());
  return values[values.size() / 2];
}

// Microseconds of one of kCalls calls on the host; negative if one fails.
double HostMicros(const ExecContext& context, const std::function<absl::Status()>& call) {
  std::vector<double> times;
  for (int round = 0; round < 30; ++round) {
    const auto from = std::chrono::steady_clock::now();
    for (int i = 0; i < kCalls; ++i) {
      if (absl::Status status = call(); !status.ok()) {
        std::printf("FAILED: %s\n", std::string(status.message()).c_str());
        return -1;
      }
    }
    const std::chrono::duration<double, std::micro> took = std::chrono::steady_clock::now() - from;
    times.push_back(took.count() / kCalls);
    if (Synchronize(context.stream) != 0) return -1;
  }
  return Median(times);
}

void RunStep(GpuBench& bench, const Step& step) {
  const std::string name = std::string("layer: ") + step.name;
  if (!bench.wants(name)) return;
  const ExecContext& context = bench.context();
  const int64_t columns = (step.length + kBlockSize - 1) / kBlockSize;
  const int64_t tokens = step.requests * step.new_tokens, blocks = 1 + step.requests * columns;
  std::vector<int32_t> ids(static_cast<size_t>(blocks - 1));
  std::iota(ids.begin(), ids.end(), 1);
  std::vector<absl::Span<const int32_t>> tables;
  for (int64_t b = 0; b < step.requests; ++b) {
    tables.push_back(absl::MakeConstSpan(ids).subspan(b * columns, columns));
  }
  const std::vector<RequestInput> requests(
      static_cast<size_t>(step.requests),
      {.num_computed_tokens = step.length - step.new_tokens,
       .num_scheduled_tokens = step.new_tokens});
  auto builder = AttentionMetadataBuilder::Create({.groups = {{.num_blocks = blocks}},
                                                   .max_num_reqs = step.requests,
                                                   .max_num_tokens = tokens,
                                                   .max_seq_len = step.length});
  if (!builder.ok() || !builder->Build({.requests = requests, .block_ids = tables}).ok()) {
    std::printf("%s FAILED: no metadata\n", name.c_str());
    return;
  }
  auto device = DeviceMetadata::Create(context, &*builder);
  if (!device.ok() || !(*device)->Upload(context).ok()) {
    std::printf("%s FAILED: no device metadata\n", name.c_str());
    return;
  }
  const CommonAttentionMetadata metadata = (*device)->metadata();

  const int64_t query_dim = step.mla ? kLatent + kRotary : kDim;
  const DeviceTensor q = Normal(DType::kBF16, {tokens, kHeads, query_dim}, 1);
  const DeviceTensor k = Normal(DType::kBF16, {tokens, kKvHeads, kDim}, 2);
  const DeviceTensor latent = Normal(DType::kBF16, {tokens, kLatent}, 3);
  const DeviceTensor rotary = Normal(DType::kBF16, {tokens, kRotary}, 4);
  const DeviceTensor out(DType::kBF16, {tokens, kHeads, step.mla ? kLatent : kDim});
  const DeviceTensor rows =
      step.mla ? Normal(DType::kBF16, {blocks, kBlockSize, kLatent + kRotary}, 5)
               : Normal(DType::kBF16, {2, blocks, kBlockSize, kKvHeads, kDim}, 5);
  (void)Synchronize(nullptr);
  KvCacheView cache;
  if (step.mla) {
    cache = MakeMlaLatentView(rows.view, kLatent).value();
  } else {
    cache = {KvLayout::kNhd, rows.view.Select(0, 0).value(), rows.view.Select(0, 1).value()};
  }
  const auto layer = CudaBackend().MakeImpl({.name = "layer",
                                             .num_heads = kHeads,
                                             .num_kv_heads = step.mla ? 1 : kKvHeads,
                                             .head_size = kDim,
                                             .latent_rank = step.mla ? kLatent : 0,
                                             .rotary_dim = step.mla ? kRotary : 0});
  if (!layer.ok()) return;
  LayerTensors tensors;
  tensors.q = q.view, tensors.cache = cache, tensors.out = out.view;
  tensors.k = step.mla ? latent.view : k.view, tensors.v = step.mla ? rotary.view : k.view;
  CommonAttentionMetadata without_plans = metadata;
  without_plans.plans = nullptr;

  const auto fill = [&](auto& args) {
    args.cache = cache;
    args.block_table = metadata.block_table, args.seq_lens = metadata.seq_lens;
    args.max_seq_len = metadata.max_seq_len;
    args.params.scale = (*layer)->config().scale;
    args.out = out.view;
  };
  const std::function<absl::Status()> operations = [&]() -> absl::Status {
    if (step.mla) {
      ConcatAndCacheMlaArgs write;
      write.kv_c = latent.view, write.k_pe = rotary.view;
      write.slot_mapping = metadata.slot_mapping, write.cache = cache;
      MlaDecodeArgs attend;
      fill(attend);
      attend.q_lat = q.view, attend.query_start_loc = metadata.query_start_loc;
      absl::Status status = Cuda().ConcatAndCacheMla(context, write);
      return status.ok() ? Cuda().MlaDecode(context, attend) : status;
    }
    ReshapeAndCacheArgs write;
    write.k = write.v = k.view;
    write.slot_mapping = metadata.slot_mapping, write.cache = cache;
    absl::Status status = Cuda().ReshapeAndCache(context, write);
    if (!status.ok()) return status;
    if (step.new_tokens == 1) {
      PagedDecodeArgs decode;
      fill(decode);
      decode.q = q.view;
      return Cuda().PagedDecode(context, decode);
    }
    PagedPrefillArgs prefill;
    fill(prefill);
    prefill.q = q.view, prefill.query_start_loc = metadata.query_start_loc;
    prefill.max_query_len = metadata.max_query_len;
    return Cuda().PagedPrefill(context, prefill);
  };
  const double direct = HostMicros(context, operations);
  const double alone = HostMicros(
      context, [&] { return (*layer)->Forward(context, tensors, &without_plans); });
  // As one of many layers: the plan is there.
  std::vector<std::unique_ptr<AttentionImpl>> layers;
  for (int i = 0; i < kCalls; ++i) {
    layers.push_back(CudaBackend().MakeImpl((*layer)->config()).value());
  }
  int next = 0;
  const double sharing = HostMicros(context, [&] {
    return layers[next++ % kCalls]->Forward(context, tensors, &metadata);
  });
  if (direct < 0 || alone < 0 || sharing < 0) return;
  std::printf(
      "%-58s operations %.2f us of host time, the layer adds %.2f; with shared plans %.2f\n",
      name.c_str(), direct, alone - direct, sharing - direct);
}

}  // namespace

void BenchLayer(GpuBench& bench) {
  for (const Step& step : {Step{"decode 64 x 1k", 64, 1024, 1, false},
                           {"decode 256 x 256", 256, 256, 1, false},
                           {"prefill 4 x 16 of 256", 4, 256, 16, false},
                           {"MLA decode 64 x 1k", 64, 1024, 1, true}}) {
    RunStep(bench, step);
  }
}

}  // namespace kvblocks::attention::cuda
