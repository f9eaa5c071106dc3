#include "attention/cuda/attend_launch.h"

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <limits>

#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "attention/cuda/kernel_params.h"
#include "attention/cuda/kernels/attend_rows.h"
#include "attention/cuda/kernels/decode_plan.h"
#include "attention/cuda/kernels/prefill.h"
#include "attention/cuda/paged_decode_ops.h"
#include "checks/ceil_div.h"
#include "checks/status_macros.h"

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
  KVBLOCKS_ASSIGN_OR_RETURN(int64_t* const bits_before, call.Take<int64_t>(bits.num_requests));
  mask.bits_before = bits.bits_before = bits_before;
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
    return absl::UnimplementedError(absl::StrCat(call.op(), ": params.split makes ", count,
                                                 " pieces; CUDA is built for at most ",
                                                 kMaxPieces));
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
  KVBLOCKS_ASSIGN_OR_RETURN(float* const outs, call.Take<float>(states * dim));
  KVBLOCKS_ASSIGN_OR_RETURN(float* const lses, call.Take<float>(states));

  AttendRowsParams parts = params;
  parts.scoring.sinks = nullptr;
  parts.output = {};
  parts.output.out = {outs, heads * dim, dim, Element::kF32};
  parts.output.out_piece_stride = rows * heads * dim;
  parts.output.lse = {lses, 0, heads, 1, rows * heads};
  // States lie row by row, whatever dimensions the rows have.
  if (params.inner_rows != kOneDimension) {
    parts.output.out_outer_stride = params.inner_rows * heads * dim;
    parts.output.lse.outer_stride = params.inner_rows * heads;
  }
  KVBLOCKS_RETURN_IF_ERROR(call.Launch(launch, parts));

  MergeStatesParams merge;
  merge.outs = {outs, heads * dim, dim, Element::kF32};
  merge.out_state_stride = rows * heads * dim;
  merge.lses = {lses, rows * heads, heads, 1};
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

bool PlacePieces(CudaCall& call, int32_t count, PrefillParams* params) {
  const int64_t fitting = call.RoomFor(2) / PrefillPieceBytes(*params);
  count = static_cast<int32_t>(std::min<int64_t>(count, fitting));
  if (count < 1) return false;
  const int64_t rows = int64_t{params->num_tokens} * params->num_heads * count;
  const auto outs = call.Take<float>(rows * params->value_dim), stats = call.Take<float>(rows * 2);
  if (!outs.ok() || !stats.ok()) return false;
  params->pieces = {count, *outs, *stats};
  return true;
}

absl::Status RunPrefill(CudaCall& call, const SplitPolicy& split, PrefillParams params) {
  KVBLOCKS_RETURN_IF_ERROR(PrepareMask(call, params));
  if (split.kind == SplitPolicy::Kind::kAuto) {
    const int32_t count = PiecesForPrefill(call.launch(), params);
    if (count > 1 && PlacePieces(call, count, &params) && params.pieces.count == 1) {
      params.pieces = {};  // no room for more
    }
  }
  KVBLOCKS_RETURN_IF_ERROR(call.Launch(LaunchPrefill, params));
  if (params.pieces.outs == nullptr) return absl::OkStatus();
  return call.Launch(LaunchPrefillMerge, MergeOf(params));
}

namespace {

// The keys behind the prefix; lengths and outputs, dense ones, are still to be placed.
PagedDecodeParams SuffixOf(const CascadeArgs& args) {
  PagedDecodeParams suffix = PagedDecodeParamsOf(args.prefill);
  const int64_t columns = args.common_prefix_len / suffix.keys.cache.block_size;
  suffix.keys.block_table += columns * args.prefill.block_table.stride[1];
  suffix.keys.table_columns -= static_cast<int32_t>(columns);
  suffix.max_seq_len = std::max<int64_t>(0, suffix.max_seq_len - args.common_prefix_len);
  suffix.scoring.sinks = nullptr;
  suffix.out_scale = 0;
  suffix.out.data = nullptr;
  if (suffix.q.element != Element::kF8E4M3) {
    suffix.out.element = suffix.q.element;
  } else if (suffix.out.element != Element::kBF16) {
    suffix.out.element = Element::kF16;
  }
  suffix.out.head_stride = suffix.value_dim;
  suffix.out.row_stride = int64_t{suffix.num_heads} * suffix.value_dim;
  suffix.lse_head_stride = 1;
  suffix.lse_row_stride = suffix.num_heads;
  return suffix;
}

// All queries over the prefix, through row 0 of the table.
PrefillParams PrefixOf(const CascadeArgs& args) {
  PrefillParams prefix{DenseAttentionOf(args.prefill)};
  prefix.only_length = static_cast<int32_t>(args.common_prefix_len);
  prefix.num_requests = 1;
  prefix.max_query_len = prefix.num_tokens;
  prefix.max_seq_len = args.common_prefix_len;
  prefix.scoring.causal = false;
  // Of the requests' lengths, which kernels before this one compute, it reads none.
  prefix.overlaps_previous = true;
  return prefix;
}

bool HasScalesPerRequest(const KvScales& scales) {
  return scales.k.rank == 2 || scales.v.rank == 2;
}

}  // namespace

absl::StatusOr<bool> RunCascadeInParts(const CudaCall& given, const CascadeArgs& args) {
  const PagedPrefillArgs& prefill = args.prefill;
  if (prefill.q.empty() || prefill.out.empty() || args.common_prefix_len == 0 ||
      args.common_prefix_len > INT32_MAX || !prefill.query_positions.absent() ||
      !prefill.params.alibi_slopes.absent() || HasScalesPerRequest(prefill.params.scales)) {
    return false;
  }
  CudaCall call = given;
  PagedDecodeParams suffix = SuffixOf(args);
  const bool decodes = TakesPagedDecode(suffix);
  if (!decodes && !TakesPrefill(PrefillParams{suffix})) return false;
  PrefillParams prefix = PrefixOf(args);
  if (!TakesPrefill(prefix)) return false;

  // Decode's part is where it is in other calls with this workspace.
  const size_t decode_bytes =
      decodes ? WorkspaceOf(suffix, call.launch().num_multiprocessors).bytes : 0;
  if (!call.Take<std::byte>(static_cast<int64_t>(decode_bytes)).ok()) return false;
  const int64_t rows = int64_t{suffix.num_tokens} * suffix.num_heads;
  const auto lens = call.Take<int32_t>(suffix.num_requests);
  const auto outs = call.Take<std::byte>(rows * suffix.value_dim * BytesOf(suffix.out.element));
  const auto lses = call.Take<float>(rows);
  if (!lens.ok() || !outs.ok() || !lses.ok()) return false;
  suffix.keys.seq_lens = *lens;
  suffix.out.data = *outs;
  suffix.lse = *lses;
  if (!PlacePieces(call, PiecesForPrefill(call.launch(), prefix), &prefix)) return false;

  SuffixLengthsParams lengths;
  lengths.query_start_loc = prefill.query_start_loc.as<int32_t>();
  lengths.seq_lens = prefill.seq_lens.as<int32_t>();
  lengths.num_requests = suffix.num_requests;
  lengths.prefix = static_cast<int32_t>(args.common_prefix_len);
  lengths.suffix_lens = *lens;
  KVBLOCKS_RETURN_IF_ERROR(call.Launch(LaunchSuffixLengths, lengths));
  KVBLOCKS_RETURN_IF_ERROR(decodes ? call.Launch(LaunchPagedDecode, suffix)
                                   : call.Launch(LaunchPrefill, PrefillParams{suffix}));
  KVBLOCKS_RETURN_IF_ERROR(call.Launch(LaunchPrefill, prefix));
  PrefillMergeParams merge = MergeOf(PrefillParams{DenseAttentionOf(prefill)});
  merge.pieces = prefix.pieces;
  merge.other = suffix.out.data;
  merge.other_lses = suffix.lse;
  merge.other_element = suffix.out.element;
  KVBLOCKS_RETURN_IF_ERROR(call.Launch(LaunchPrefillMerge, merge));
  return true;
}

}  // namespace kvblocks::attention::cuda
