// What writes rows: keys of an indexer, and the compressor.

#include <cstdint>

#include "kvblocks/attention/cuda/cuda_checker.h"
#include "kvblocks/attention/cuda/enqueue_ops.h"
#include "kvblocks/attention/cuda/indexer_params.h"
#include "kvblocks/attention/cuda/kernel_params.h"
#include "kvblocks/attention/cuda/kernels/indexer.h"

namespace kvblocks::attention::cuda {
namespace {

constexpr int64_t kMostStateDim = 8192;  // a row in shared memory

}  // namespace

absl::Status CheckOnCuda(const ExecContext& context, const CacheIndexKeysArgs& args) {
  CudaChecker check("CacheIndexKeys", context, args);
  check.Values("k", args.k).Values("cache.rows", args.cache.rows);
  return check.Take(PlanarAligned("CacheIndexKeys", args.cache)).status();
}

absl::Status Enqueue(CudaCall& call, const Checked<CacheIndexKeysArgs>& checked) {
  const CacheIndexKeysArgs& args = checked.args();
  if (args.slot_mapping.empty() || args.k.empty()) return absl::OkStatus();
  IndexWriteParams params;
  params.from = ConstRowsOf(args.k);
  params.to = IndexRowsOf(args.cache, args.k.extent[1]);
  params.slots = args.slot_mapping.as<int64_t>();
  params.slot_stride = args.slot_mapping.stride[0];
  params.num_tokens = args.slot_mapping.extent[0];
  params.power_of_two = args.power_of_two_scales;
  return call.Launch(LaunchIndexWrite, params);
}

absl::Status CheckOnCuda(const ExecContext& context, const CompressTokensArgs& args) {
  CudaChecker check("CompressTokens", context, args);
  check.Values("kv", args.kv).Values("score", args.score).Values("out", args.out);
  check.Values("states", args.states).Dense("bias", args.bias).Dense("cos_sin", args.cos_sin);
  check.Dense("block_table", args.block_table);
  if (check.status().ok() && args.out.extent[1] > kMostStateDim) {
    check.Take(absl::UnimplementedError(absl::StrCat("CompressTokens: rows of ", args.out.extent[1],
                                                     " values; CUDA is built for at most ",
                                                     kMostStateDim)));
  }
  return check.status();
}

absl::Status Enqueue(CudaCall& call, const Checked<CompressTokensArgs>& checked) {
  const CompressTokensArgs& args = checked.args();
  if (args.kv.empty()) return absl::OkStatus();
  CompressParams params;
  params.kv = ConstRowsOf(args.kv);
  params.score = ConstRowsOf(args.score);
  if (!args.bias.absent()) {
    params.bias = args.bias.as<float>();
    params.bias_stride = args.bias.stride[0];
  }
  params.states = args.states.as<float>();
  params.block_stride = args.states.stride[0];
  params.row_stride = args.states.stride[1];
  params.num_blocks = static_cast<int32_t>(args.states.extent[0]);
  params.block_size = static_cast<int32_t>(args.states.extent[1]);
  params.slots = args.slot_mapping.as<int64_t>();
  params.slot_stride = args.slot_mapping.stride[0];
  params.num_slots = args.slot_mapping.extent[0];
  params.batch = RowBatchOf(args);
  params.num_tokens = static_cast<int32_t>(args.kv.extent[0]);
  params.ratio = static_cast<int32_t>(args.ratio);
  params.parts = args.overlap ? 2 : 1;
  params.dim = static_cast<int32_t>(args.out.extent[1]);
  if (!args.norm_weight.absent()) {
    params.norm_weight = args.norm_weight.as<float>();
    params.norm_stride = args.norm_weight.stride[0];
  }
  params.norm_eps = args.norm_eps;
  if (!args.cos_sin.absent()) {
    params.cos_sin = args.cos_sin.as<float>();
    params.cos_sin_stride = args.cos_sin.stride[0];
    params.num_positions = args.cos_sin.extent[0];
    params.rotary = static_cast<int32_t>(args.cos_sin.extent[1]);
  }
  params.out = RowsOf(args.out);
  return call.Launch(LaunchCompress, params);
}

}  // namespace kvblocks::attention::cuda
