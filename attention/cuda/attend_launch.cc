#include "kvblocks/attention/cuda/attend_launch.h"

#include <algorithm>
#include <limits>

#include "kvblocks/attention/tensor/ceil_div.h"

namespace kvblocks::attention::cuda {
namespace {

constexpr int64_t kMaxRows = std::numeric_limits<int32_t>::max();
constexpr int64_t kMaxPieces = 65535;
// Of Auto: warps that keep a multiprocessor busy, and keys that are worth a warp.
constexpr int64_t kWarpsPerMultiprocessor = 16;
constexpr int64_t kLeastKeys = 128;
// Pieces of the arena begin at multiples of this.
constexpr int64_t kArenaAlignment = 256;

// Of n pieces' outputs and log-sum-exps, without the gaps between them.
int64_t StateBytes(const AttendRowsParams& params) {
  return int64_t{params.num_rows} * params.num_heads * (params.value_dim + 1) * 4;
}

}  // namespace

CudaChecker::CudaChecker(const char* op, const ExecContext& context) : op_(op) {
  if (context.device.on_host() && !IsEmulation()) {
    Invalid("the context is on ", Name(context.device), "; CUDA operations take a CUDA device");
  }
}

template <typename... Text>
void CudaChecker::Invalid(const Text&... text) {
  if (status_.ok()) status_ = absl::InvalidArgumentError(absl::StrCat(op_, ": ", text...));
}

void CudaChecker::Stride(const char* name, const ConstTensorView& view, int dim, int64_t wanted) {
  if (view.empty() || view.extent[dim] <= 1 || view.stride[dim] == wanted) return;
  Invalid(name, " has stride ", view.stride[dim], " in dimension ", dim, "; on CUDA ", wanted);
}

CudaChecker& CudaChecker::Values(const char* name, const ConstTensorView& view) {
  if (view.absent()) return *this;
  if (view.dtype == DType::kF64) {
    Invalid(name, " is f64; CUDA computes in f32, f16 and bf16");
  }
  if (view.rank > 0) Stride(name, view, view.rank - 1, 1);
  for (int i = 0; i < view.rank; ++i) {
    if (view.extent[i] > kMaxRows) {
      Invalid(name, " has extent ", view.extent[i], " in dimension ", i, "; below 2^31 on CUDA");
    }
  }
  return *this;
}

CudaChecker& CudaChecker::Dense(const char* name, const ConstTensorView& view) {
  if (!view.absent() && view.rank > 0) Stride(name, view, view.rank - 1, 1);
  return *this;
}

CudaChecker& CudaChecker::KvCache(const char* name, const ConstKvCacheView& cache) {
  if (cache.absent()) return *this;
  Values(name, cache.k);
  Values(name, cache.v);
  if (cache.num_blocks() > kMaxRows || cache.block_size() > kMaxRows) {
    Invalid(name, " has ", cache.num_blocks(), " blocks of ", cache.block_size(),
            " tokens; below 2^31 on CUDA");
  }
  if (cache.layout == KvLayout::kPagedX) {
    Stride(name, cache.k, 3, cache.k.extent[4]);
    Stride(name, cache.k, 2, cache.k.extent[3] * cache.k.extent[4]);
    Stride(name, cache.v, 2, cache.v.extent[3]);
  }
  return *this;
}

CudaChecker& CudaChecker::Params(const AttnParams& params) {
  Dense("params.alibi_slopes", params.alibi_slopes);
  Dense("params.sinks", params.sinks);
  const ConstTensorView& mask = params.mask.tensor;
  if (!mask.absent() && mask.dtype == DType::kF64) {
    Invalid("params.mask is f64; CUDA takes f32, f16, bf16 and bytes");
  }
  return *this;
}

CudaChecker& CudaChecker::HeadDims(int64_t key_dim, int64_t value_dim) {
  if (status_.ok() && std::max(key_dim, value_dim) > kMaxHeadDim) {
    status_ =
        absl::UnimplementedError(absl::StrCat(op_, ": heads of ", key_dim, " and ", value_dim,
                                              " values; CUDA is built for at most ", kMaxHeadDim));
  }
  return *this;
}

absl::StatusOr<CudaCall> BeginCall(const char* op, const ExecContext& context) {
  const absl::StatusOr<LaunchContext> launch = LaunchContextOf(op, context);
  if (!launch.ok()) return launch.status();
  const absl::Span<std::byte> memory =
      context.workspace == nullptr ? absl::Span<std::byte>() : context.workspace->device;
  return CudaCall{*launch, WorkspaceArena(memory)};
}

absl::Status PrepareMask(const char* op, CudaCall& call, const AttnParams& attn,
                         AttendRowsParams& params) {
  if (attn.mask.form != MaskForm::kRaggedBits) return absl::OkStatus();
  const absl::StatusOr<int64_t*> bits_before = TakeArray<int64_t>(op, call, params.num_requests);
  if (!bits_before.ok()) return bits_before.status();
  MaskBitsParams bits;
  bits.num_requests = params.num_requests;
  bits.query_start_loc = params.query_start_loc;
  bits.kv_start_loc = params.kv_start_loc;
  if (params.source == KeySource::kPaged) bits.seq_lens = params.keys.seq_lens;
  bits.bits_before = *bits_before;
  params.scoring.mask.bits_before = *bits_before;
  params.scoring.mask.columns = attn.mask.tensor.num_elements();
  return StatusOf(op, LaunchMaskBits(call.launch, bits));
}

absl::StatusOr<Pieces> PiecesOf(const char* op, const CudaCall& call, const SplitPolicy& split,
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
      const int64_t wanted = call.launch.num_multiprocessors * kWarpsPerMultiprocessor;
      int64_t keys = max_keys;
      if (params.scoring.window_left >= 0) {
        keys = std::min(keys, params.scoring.window_left + block_size);
      }
      const int64_t room = static_cast<int64_t>(call.launch.workspace_bytes) - call.arena.used() -
                           2 * kArenaAlignment;
      const int64_t bytes = StateBytes(params);
      count = std::min(CeilDiv(wanted, warps), CeilDiv(keys, kLeastKeys));
      count = std::min(count, room / std::max<int64_t>(1, bytes));
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
        op, ": params.split makes ", count, " pieces; CUDA is built for at most ", kMaxPieces));
  }
  pieces.count = static_cast<int32_t>(std::max<int64_t>(1, count));
  pieces.step = static_cast<int32_t>(step);
  return pieces;
}

absl::Status AttendInPieces(const char* op, CudaCall& call, const AttendRowsParams& params,
                            AttendLauncher launch, MergeLauncher merge_launch) {
  if (params.pieces.count <= 1) return StatusOf(op, launch(call.launch, params));
  const int64_t rows = params.num_rows, heads = params.num_heads, dim = params.value_dim;
  const int64_t states = params.pieces.count * rows * heads;
  const absl::StatusOr<float*> outs = TakeArray<float>(op, call, states * dim);
  if (!outs.ok()) return outs.status();
  const absl::StatusOr<float*> lses = TakeArray<float>(op, call, states);
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
  if (absl::Status status = StatusOf(op, launch(call.launch, parts)); !status.ok()) {
    return status;
  }

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
  return StatusOf(op, merge_launch(call.launch, merge));
}

}  // namespace kvblocks::attention::cuda
