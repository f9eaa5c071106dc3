// The operation that chooses rows. Apart from indexer_ops.cc, since its kernels multiply matrices:
// a program that only moves rows links none of those.

#include <algorithm>
#include <cstdint>

#include "kvblocks/attention/cuda/cuda_checker.h"
#include "kvblocks/attention/cuda/enqueue_ops.h"
#include "kvblocks/attention/cuda/indexer_params.h"

namespace kvblocks::attention::cuda {
namespace {

constexpr int64_t kMostIndexDim = 512;

}  // namespace

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

}  // namespace kvblocks::attention::cuda
