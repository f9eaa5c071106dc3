#include "kvblocks/attention/cuda/attend_launch.h"

#include <algorithm>
#include <limits>

#include "absl/strings/str_cat.h"
#include "kvblocks/checks/ceil_div.h"

namespace kvblocks::attention::cuda {
namespace {

constexpr int64_t kMaxRows = std::numeric_limits<int32_t>::max();
constexpr int64_t kMaxPieces = 65535;
// Of Auto: warps that keep a multiprocessor busy, and keys that are worth a warp.
constexpr int64_t kWarpsPerMultiprocessor = 16;
constexpr int64_t kLeastKeys = 128;

// Of n pieces' outputs and log-sum-exps, without the gaps between them.
int64_t StateBytes(const AttendRowsParams& params) {
  return int64_t{params.num_rows} * params.num_heads * (params.value_dim + 1) * 4;
}

}  // namespace

absl::Status CountMaskBits(CudaCall& call, MaskBitsParams bits, MaskRule& mask) {
  const absl::StatusOr<int64_t*> bits_before = call.Take<int64_t>(bits.num_requests);
  if (!bits_before.ok()) return bits_before.status();
  mask.bits_before = bits.bits_before = *bits_before;
  return call.Launch(LaunchMaskBits, bits);
}

absl::StatusOr<Pieces> PiecesOf(const CudaCall& call, const SplitPolicy& split,
                                const AttendRowsParams& params, int64_t max_keys) {
  Pieces pieces;
  if (params.num_rows == 0 || params.num_heads == 0) return pieces;
  const int64_t block_size = std::max(1, params.keys.cache.block_size);
  int64_t count = 1, step = 0;
  switch (split.kind) {
    case SplitPolicy::Kind::kNone:
      break;
    case SplitPolicy::Kind::kFixed:
      step = std::min(split.value, std::max<int64_t>(1, max_keys));
      count = CeilDiv(max_keys, std::max<int64_t>(1, step));
      break;
    case SplitPolicy::Kind::kCount:
      count = std::min(split.value, CeilDiv(max_keys, block_size));
      pieces.per_request = static_cast<int32_t>(std::min(split.value, kMaxRows));
      break;
    case SplitPolicy::Kind::kAuto: {
      const int heads_per_warp =
          HeadsPerWarp(params.num_heads, params.num_kv_heads, params.value_dim);
      const int64_t warps = int64_t{params.num_rows} * params.num_kv_heads *
                            CeilDiv(params.num_heads / params.num_kv_heads, heads_per_warp);
      const int64_t wanted = call.launch().num_multiprocessors * kWarpsPerMultiprocessor;
      int64_t keys = max_keys;
      if (params.scoring.window_left >= 0) {
        keys = std::min(keys, params.scoring.window_left + block_size);
      }
      count = std::min(CeilDiv(wanted, warps), CeilDiv(keys, kLeastKeys));
      count = std::min(count, call.RoomFor(2) / std::max<int64_t>(1, StateBytes(params)));
      count = std::clamp<int64_t>(count, 1, kMaxPieces);
      if (count > 1) {
        step = CeilDiv(CeilDiv(keys, count), block_size) * block_size;
        count = CeilDiv(keys, step);
      }
      pieces.from_first_visible = true;
      break;
    }
  }
  if (count > kMaxPieces) {
    return absl::UnimplementedError(absl::StrCat(
        call.op(), ": params.split makes ", count, " pieces; CUDA is built for at most ", kMaxPieces));
  }
  pieces.count = static_cast<int32_t>(std::max<int64_t>(1, count));
  pieces.step = static_cast<int32_t>(step);
  return pieces;
}

absl::Status AttendInPieces(CudaCall& call, const AttendRowsParams& params, AttendLauncher launch,
                            MergeLauncher merge_launch) {
  if (params.pieces.count <= 1) return call.Launch(launch, params);
  const int64_t rows = params.num_rows, heads = params.num_heads, dim = params.value_dim;
  const int64_t states = params.pieces.count * rows * heads;
  const absl::StatusOr<float*> outs = call.Take<float>(states * dim);
  if (!outs.ok()) return outs.status();
  const absl::StatusOr<float*> lses = call.Take<float>(states);
  if (!lses.ok()) return lses.status();

  AttendRowsParams parts = params;
  parts.scoring.sinks = nullptr;
  parts.output = {};
  parts.output.out = {*outs, heads * dim, dim, Element::kF32};
  parts.output.out_piece_stride = rows * heads * dim;
  parts.output.lse = {*lses, 0, heads, 1, rows * heads};
  // States lie row by row, whatever dimensions the rows have.
  if (params.inner_rows != kOneDimension) {
    parts.output.out_outer_stride = params.inner_rows * heads * dim;
    parts.output.lse.outer_stride = params.inner_rows * heads;
  }
  if (absl::Status status = call.Launch(launch, parts); !status.ok()) return status;

  MergeStatesParams merge;
  merge.outs = {*outs, heads * dim, dim, Element::kF32};
  merge.out_state_stride = rows * heads * dim;
  merge.lses = {*lses, rows * heads, heads, 1};
  merge.num_states = params.pieces.count;
  merge.num_rows = params.num_rows;
  merge.num_heads = params.num_heads;
  merge.value_dim = params.value_dim;
  merge.sinks = params.scoring.sinks;
  merge.out_scale = params.output.out_scale;
  merge.out = params.output.out;
  merge.lse = params.output.lse.data;
  merge.lse_row_stride = params.output.lse.row_stride;
  merge.lse_head_stride = params.output.lse.head_stride;
  merge.inner_rows = params.inner_rows;
  merge.out_outer_stride = params.output.out_outer_stride;
  merge.lse_outer_stride = params.output.lse.outer_stride;
  return call.Launch(merge_launch, merge);
}

}  // namespace kvblocks::attention::cuda
