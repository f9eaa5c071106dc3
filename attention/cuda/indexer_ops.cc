// The operations of an indexer and a compressor.

#include <algorithm>
#include <cstdint>

#include "kvblocks/attention/cuda/cuda_checker.h"
#include "kvblocks/attention/cuda/enqueue_ops.h"
#include "kvblocks/attention/cuda/kernel_params.h"
#include "kvblocks/attention/cuda/kernels/indexer.h"

namespace kvblocks::attention::cuda {
namespace {

constexpr int64_t kMostIndexDim = 512;
constexpr int64_t kMostStateDim = 8192;  // a row in shared memory

IndexRows IndexRowsOf(const ConstIndexCacheView& cache, int64_t dim) {
  IndexRows rows;
  rows.data = const_cast<unsigned char*>(cache.rows.as<unsigned char>());
  rows.element = ElementOf(cache.rows.dtype);
  rows.planar = cache.planar();
  rows.block_stride = cache.rows.stride[0];
  rows.row_stride = cache.planar() ? 0 : cache.rows.stride[1];
  rows.num_blocks = static_cast<int32_t>(cache.num_blocks());
  rows.block_size = static_cast<int32_t>(cache.block_size());
  rows.dim = static_cast<int32_t>(dim);
  return rows;
}

template <typename Args>
RowBatch RowBatchOf(const Args& args) {
  RowBatch batch;
  batch.query_start_loc = args.query_start_loc.template as<int32_t>();
  batch.seq_lens = args.seq_lens.template as<int32_t>();
  batch.block_table = args.block_table.template as<int32_t>();
  batch.starts_stride = args.query_start_loc.stride[0];
  batch.lens_stride = args.seq_lens.stride[0];
  batch.table_stride = args.block_table.stride[0];
  batch.num_requests = static_cast<int32_t>(args.seq_lens.extent[0]);
  batch.columns = static_cast<int32_t>(std::min<int64_t>(args.block_table.extent[1], INT32_MAX));
  return batch;
}

// Scales are read as floats.
absl::Status PlanarAligned(const char* op, const ConstIndexCacheView& cache) {
  const auto address = reinterpret_cast<uintptr_t>(cache.rows.data);
  if (!cache.planar() || (address % 4 == 0 && cache.rows.stride[0] % 4 == 0)) {
    return absl::OkStatus();
  }
  return absl::InvalidArgumentError(
      absl::StrCat(op, ": cache.rows is ", cache.rows.DebugString(),
                   "; on CUDA planar blocks begin at multiples of 4 bytes"));
}

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

absl::Status CheckOnCuda(const ExecContext& context, const IndexTopkArgs& args) {
  CudaChecker check("IndexTopk", context, args);
  check.Values("q", args.q).Values("cache.rows", args.cache.rows).Dense("weights", args.weights);
  check.Dense("block_table", args.block_table).Dense("indices", args.indices);
  check.Take(PlanarAligned("IndexTopk", args.cache));
  if (check.status().ok() && args.q.extent[2] > kMostIndexDim) {
    check.Take(absl::UnimplementedError(absl::StrCat("IndexTopk: keys of ", args.q.extent[2],
                                                     " values; CUDA is built for at most ",
                                                     kMostIndexDim)));
  }
  return check.status();
}

absl::Status Enqueue(CudaCall& call, const Checked<IndexTopkArgs>& checked) {
  const IndexTopkArgs& args = checked.args();
  if (args.q.extent[0] == 0) return absl::OkStatus();
  IndexTopkParams params;
  params.q = ConstRowsOf(args.q);
  params.weights = args.weights.as<float>();
  params.weight_stride = args.weights.stride[0];
  params.rows = IndexRowsOf(args.cache, args.q.extent[2]);
  params.batch = RowBatchOf(args);
  params.num_tokens = static_cast<int32_t>(args.q.extent[0]);
  params.heads = static_cast<int32_t>(args.q.extent[1]);
  params.ratio = static_cast<int32_t>(args.ratio);
  const int64_t covered = args.block_table.extent[1] * args.cache.block_size();
  params.most_rows =
      static_cast<int32_t>(std::min({args.max_seq_len / args.ratio, covered, int64_t{INT32_MAX}}));
  params.as_slots = args.as_slots;
  params.indices = args.indices.as<int32_t>();
  params.index_stride = args.indices.stride[0];
  params.width = static_cast<int32_t>(args.indices.extent[1]);
  params.lens = args.lens.as<int32_t>();
  params.lens_stride = args.lens.stride[0];
  absl::Status status =
      call.RequireWorkspace(IndexTopkWorkspaceBytes(params.num_tokens, params.most_rows));
  return status.ok() ? call.Launch(LaunchIndexTopk, params) : status;
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
