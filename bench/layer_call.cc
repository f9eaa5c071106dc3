#include "bench/layer_call.h"

#include <algorithm>
#include <cstdint>
#include <cstdio>
#include <functional>
#include <vector>

#include "bench/machine_peaks.h"
#include "kvblocks/attention_backend.h"
#include "kvblocks/attention_cpu.h"
#include "kvblocks/attention_layer.h"
#include "kvblocks/attention_metadata.h"
#include "kvblocks/kv_cache_view.h"

namespace kvblocks::bench {
namespace {

using attention::DType;
using attention::TensorView;

constexpr int64_t kDim = 8, kBlockSize = 16, kBlocks = 8;

double Median(std::vector<double> values) {
  std::sort(values.begin(), values.end());
  return values[values.size() / 2];
}

// Memory of zeros for each tensor.
class Tensors {
 public:
  TensorView Add(DType dtype, std::vector<int64_t> extents) {
    int64_t bytes = attention::ElementBytes(dtype);
    for (const int64_t extent : extents) bytes *= extent;
    memory_.emplace_back(static_cast<size_t>(bytes + 16));
    return TensorView::Contiguous(memory_.back().data(), dtype, extents);
  }

 private:
  std::vector<std::vector<std::byte>> memory_;
};

struct Step {
  const char* name;
  std::vector<attention::RequestInput> requests;
  bool mla;
};

bool RunStep(const Step& step, int rounds, bool processor_time) {
  auto builder = attention::AttentionMetadataBuilder::Create(
      {.groups = {{.manager_block_size = kBlockSize,
                   .kernel_block_size = kBlockSize,
                   .num_blocks = kBlocks}},
       .max_num_reqs = 4,
       .max_num_tokens = 16,
       .max_seq_len = kBlockSize});
  const std::vector<int32_t> blocks = {3, 5};
  std::vector<absl::Span<const int32_t>> tables;
  for (size_t b = 0; b < step.requests.size(); ++b) {
    tables.push_back(absl::MakeConstSpan(blocks).subspan(b, 1));
  }
  if (!builder.ok() ||
      !builder->Build({.requests = step.requests, .block_ids = tables}).ok()) {
    return false;
  }
  const attention::CommonAttentionMetadata& metadata = builder->metadata();
  const int64_t tokens = metadata.num_actual_tokens;

  Tensors memory;
  const TensorView q = memory.Add(DType::kF32, {tokens, 1, step.mla ? 2 * kDim : kDim});
  const TensorView k = memory.Add(DType::kF32, {tokens, 1, kDim});
  const TensorView out = memory.Add(DType::kF32, {tokens, 1, kDim});
  attention::KvCacheView cache;
  if (step.mla) {
    cache = attention::MakeMlaLatentView(memory.Add(DType::kF32, {kBlocks, kBlockSize, 2 * kDim}),
                                         kDim)
                .value();
  } else {
    const std::vector<int64_t> extents = {kBlocks, kBlockSize, 1, kDim};
    cache = {attention::KvLayout::kNhd, memory.Add(DType::kF32, extents),
             memory.Add(DType::kF32, extents)};
  }
  const auto layer =
      attention::CpuBackend().MakeImpl({.name = "layer",
                                        .num_heads = 1,
                                        .num_kv_heads = 1,
                                        .head_size = kDim,
                                        .latent_rank = step.mla ? kDim : 0,
                                        .rotary_dim = step.mla ? kDim : 0});
  if (!layer.ok()) return false;
  const attention::ExecContext context;
  const attention::AttentionOps& ops = attention::Cpu();

  const std::function<absl::Status()> by_layer = [&] {
    return (*layer)->Forward(context, {.q = q, .k = k, .v = k, .cache = cache, .out = out},
                             &metadata);
  };
  const float scale = (*layer)->config().scale;
  const auto fill = [&](auto& args, const attention::CommonAttentionMetadata& part,
                        int64_t first_row) {
    const int64_t end = first_row + part.num_actual_tokens;
    args.cache = cache;
    args.block_table = part.block_table;
    args.seq_lens = part.seq_lens;
    args.max_seq_len = part.max_seq_len;
    args.params.scale = scale;
    args.out = *out.Slice(0, first_row, end);
    return *attention::ConstTensorView(q).Slice(0, first_row, end);
  };
  const std::function<absl::Status()> by_operations = [&] {
    if (step.mla) {
      attention::ConcatAndCacheMlaArgs write;
      write.kv_c = write.k_pe = *k.Select(1, 0);
      write.slot_mapping = metadata.slot_mapping;
      write.cache = cache;
      attention::MlaDecodeArgs attend;
      attend.q_lat = fill(attend, metadata, 0);
      attend.query_start_loc = metadata.query_start_loc;
      absl::Status status = ops.ConcatAndCacheMla(context, write);
      return status.ok() ? ops.MlaDecode(context, attend) : status;
    }
    attention::ReshapeAndCacheArgs write;
    write.k = write.v = k;
    write.slot_mapping = metadata.slot_mapping;
    write.cache = cache;
    absl::Status status = ops.ReshapeAndCache(context, write);
    if (status.ok() && metadata.num_decodes > 0) {
      attention::PagedDecodeArgs decode;
      decode.q = fill(decode, DecodeView(metadata), 0);
      status = ops.PagedDecode(context, decode);
    }
    if (status.ok() && metadata.num_prefills > 0) {
      const auto part = PrefillView(metadata);
      if (!part.ok()) return part.status();
      attention::PagedPrefillArgs prefill;
      prefill.q = fill(prefill, *part, metadata.num_decode_tokens);
      prefill.query_start_loc = part->query_start_loc;
      prefill.max_query_len = part->max_query_len;
      status = ops.PagedPrefill(context, prefill);
    }
    return status;
  };

  const auto time = [&](const std::function<absl::Status()>& call) {
    constexpr int kCalls = 500;
    const double start = Seconds(processor_time, 1);
    for (int i = 0; i < kCalls; ++i) {
      if (absl::Status status = call(); !status.ok()) {
        std::fprintf(stderr, "%s: %s\n", step.name, status.ToString().c_str());
        return -1.0;
      }
    }
    return (Seconds(processor_time, 1) - start) / kCalls * 1e9;
  };
  std::vector<double> layer_ns, direct_ns;
  for (int round = -1; round < rounds; ++round) {
    const double with = time(by_layer), without = time(by_operations);
    if (with < 0 || without < 0) return false;
    if (round < 0) continue;
    layer_ns.push_back(with), direct_ns.push_back(without);
  }
  const double with = Median(layer_ns), without = Median(direct_ns);
  std::printf("%-34s %9.0f ns of %.0f, its operations %.0f\n", step.name, with - without, with,
              without);
  return true;
}

}  // namespace

bool RunLayerCalls(int rounds, bool processor_time) {
  const Step steps[] = {{"layer adds: a decode", {{3, 1}}, false},
                        {"layer adds: a prefill", {{0, 2}}, false},
                        {"layer adds: a decode, a prefill", {{3, 1}, {0, 2}}, false},
                        {"layer adds: an MLA decode", {{3, 1}}, true}};
  for (const Step& step : steps) {
    if (!RunStep(step, rounds, processor_time)) return false;
  }
  return true;
}

}  // namespace kvblocks::bench
