// Multi-head latent attention: dense decode through block tables, sparse decode and prefill by
// lists of slots.

#include <algorithm>
#include <cstdint>
#include <limits>

#include "absl/status/status.h"
#include "attention/cuda/attend_launch.h"
#include "attention/cuda/cuda_call.h"
#include "attention/cuda/enqueue_ops.h"
#include "attention/cuda/kernel_params.h"
#include "attention/cuda/kernels/attend_rows.h"
#include "attention/cuda/kernels/mla_attend.h"
#include "attention/cuda/kernels/runtime.h"
#include "checks/ceil_div.h"
#include "checks/status_macros.h"
#include "kvblocks/attention_args.h"
#include "kvblocks/device_types.h"

namespace kvblocks::attention::cuda {

namespace {

enum class MlaKernel : uint8_t { kRows, kRows16, kRows64 };

// What starting a piece costs, in tiles of keys: its queries, the ring's first tiles, the merge.
constexpr int64_t kPieceTiles = 4;

template <typename... Values>
bool AllMultiplesOf(int64_t divisor, Values... values) {
  return ((values % divisor == 0) && ...);
}
bool IsAligned(const void* data, int64_t bytes) {
  return reinterpret_cast<uintptr_t>(data) % bytes == 0;
}

bool TakesQueries(const AttendRowsParams& params) {
  const ConstRows& q = params.q;
  if (q.element != Element::kBF16 && q.element != Element::kF16) return false;
  if (!IsAligned(q.data, 16)) return false;
  // Strides along one row or head are never used.
  if (!AllMultiplesOf(
          8, params.q_dim, params.num_rows > 1 ? q.row_stride : 0,
          params.num_heads > 1 ? q.head_stride : 0,
          params.num_rows > 1 && params.inner_rows != kOneDimension ? params.q_outer_stride : 0)) {
    return false;
  }
  if (params.q_dim == params.key_dim) return true;
  const ConstRows& tail = params.q_tail;
  return tail.element == q.element && IsAligned(tail.data, 16) &&
         AllMultiplesOf(8, tail.row_stride, tail.head_stride);
}

bool IsFp8(Layout layout) { return layout == Layout::kMlaFp8_656 || layout == Layout::kMlaFp8_584; }

bool TakesCache(const Cache& cache, const AttendRowsParams& params) {
  if (cache.has_row_scales() || !IsAligned(cache.k.data, 16)) return false;
  switch (cache.layout) {
    case Layout::kMlaLatent:
      if (IsCode(cache.element)) {
        return !cache.has_row_scales() &&
               AllMultiplesOf(16, cache.k.block_stride, cache.k.token_stride);
      }
      return cache.element == params.q.element && cache.k_scale.data == nullptr &&
             AllMultiplesOf(8, cache.k.block_stride, cache.k.token_stride);
    case Layout::kMlaSplit:
      return cache.element == params.q.element && cache.k_scale.data == nullptr &&
             params.key_dim == kMlaKeyDim && IsAligned(cache.v.data, 16) &&
             AllMultiplesOf(8, cache.k.block_stride, cache.k.token_stride, cache.v.block_stride,
                            cache.v.token_stride);
    case Layout::kMlaFp8_656:
      return params.q.element == Element::kBF16 && params.key_dim == kMlaKeyDim &&
             AllMultiplesOf(16, cache.k.block_stride, cache.k.token_stride);
    case Layout::kMlaFp8_584:
      return params.q.element == Element::kBF16 && params.key_dim == kMlaValueDim &&
             AllMultiplesOf(16, cache.k.block_stride);
    default:
      return false;
  }
}

// Whether keys are codes of 8 bits, for which there are tiles of 16 rows alone.
bool HasCodes(const AttendRowsParams& params) {
  const Cache& cache = params.source == KeySource::kLists ? params.main.cache : params.keys.cache;
  return cache.layout == Layout::kMlaLatent && IsCode(cache.element);
}

bool TakesKeys(const AttendRowsParams& params) {
  if (params.source == KeySource::kPaged) {
    // fp8 rows by tables keep the precision of float32.
    return !IsFp8(params.keys.cache.layout) && TakesCache(params.keys.cache, params);
  }
  if (params.source != KeySource::kLists || params.main.slots == nullptr) return false;
  if (!TakesCache(params.main.cache, params)) return false;
  if (params.extra.slots == nullptr) return true;
  // Codes have one type and scale.
  if (HasCodes(params) || IsCode(params.extra.cache.element)) return false;
  const Layout main = params.main.cache.layout, extra = params.extra.cache.layout;
  if (IsFp8(main) ? extra != main : IsFp8(extra)) return false;
  return TakesCache(params.extra.cache, params);
}

bool TakesOutput(const AttendOutput& output) {
  const Rows& out = output.out;
  return out.data != nullptr && IsAligned(out.data, 8) && output.out_scale == 0 &&
         output.exp_sums.data == nullptr &&
         (out.element == Element::kF32 || out.element == Element::kBF16 ||
          out.element == Element::kF16) &&
         AllMultiplesOf(2, out.row_stride, out.head_stride, output.out_outer_stride);
}

Pieces AutoPieces(const CudaCall& call, const AttendRowsParams& params, MlaKernel kernel,
                  int64_t max_keys) {
  Pieces pieces;
  const bool is_64 = kernel == MlaKernel::kRows64;
  const int64_t tile = is_64 ? kMlaRows64Keys : kMlaRows16Keys;
  const int64_t bytes = std::max<int64_t>(
      1, int64_t{params.num_rows} * params.num_heads * (params.value_dim + 1) * 4);
  const int64_t tiles = std::max<int64_t>(1, CeilDiv(max_keys, tile));
  if (params.scoring.window_left >= 0 || params.output.max_logits.data != nullptr) return pieces;
  const int64_t blocks = MlaTilesOf(params, is_64 ? 64 : 16);
  const int64_t slots = int64_t{std::max(1, call.launch().num_multiprocessors)} *
                        (is_64 ? kMlaRows64PerMultiprocessor : kMlaRows16PerMultiprocessor);
  const int64_t most = std::min({int64_t{kMlaMaxPieces}, tiles, call.RoomFor(2) / bytes});
  int64_t best = 1, least = std::numeric_limits<int64_t>::max();
  for (int64_t count = 1; count <= most; ++count) {
    const int64_t cost = CeilDiv(blocks * count, slots) * (CeilDiv(tiles, count) + kPieceTiles);
    if (cost < least) least = cost, best = count;
  }
  const int64_t step = CeilDiv(tiles, best) * tile;
  pieces.count = static_cast<int32_t>(std::max<int64_t>(1, CeilDiv(max_keys, step)));
  pieces.step = static_cast<int32_t>(step);
  return pieces;
}

// kRows: AttendRows, where types, sizes, strides or features are others than tensor cores were
// programmed for. Depends on nothing of the batch but, under Auto, the queries per request.
MlaKernel MlaKernelFor(const LaunchContext& context, const AttendRowsParams& params,
                       const SplitPolicy& split) {
  const Scoring& scoring = params.scoring;
  const int capability = context.compute_capability;
  // Of shared memory: 164 KB with 8.0, 8.7 and 11.0, 228 KB with 9.0 and 10.
  const bool has_memory =
      capability == 80 || capability == 87 || (capability >= 90 && capability < 120);
  if (!has_memory || !scoring.plain() || scoring.mask.form != 0 ||
      (params.key_dim != kMlaKeyDim && params.key_dim != kMlaValueDim) ||
      params.value_dim != kMlaValueDim || params.query_positions != nullptr ||
      params.shared_prefix != 0 || !TakesQueries(params) || !TakesKeys(params) ||
      !TakesOutput(params.output)) {
    return MlaKernel::kRows;
  }
  // Under a fixed split results must not depend on who else is in the batch.
  int64_t rows = params.num_heads;
  if (split.kind == SplitPolicy::Kind::kAuto && params.query_start_loc != nullptr) {
    rows *= CeilDiv(params.num_rows, std::max(1, params.num_requests));
  }
  // Emulation has all instructions and tries both.
  const bool has_wgmma = !HasCodes(params) && (capability == 90 || (IsEmulation() && rows > 16));
  return has_wgmma ? MlaKernel::kRows64 : MlaKernel::kRows16;
}

// Chooses kernel and pieces and launches; max_keys is an upper bound of the keys of a row. Outputs
// that have no partial form (max_logits) are not cut.
absl::Status LaunchMla(CudaCall& call, const SplitPolicy& split, int64_t max_keys,
                       AttendRowsParams params) {
  const MlaKernel kernel = MlaKernelFor(call.launch(), params, split);
  if (kernel != MlaKernel::kRows && split.kind == SplitPolicy::Kind::kAuto) {
    params.pieces = AutoPieces(call, params, kernel, max_keys);
  } else if (params.output.max_logits.data == nullptr) {
    KVBLOCKS_ASSIGN_OR_RETURN(params.pieces, PiecesOf(call, split, params, max_keys));
  }
  if (kernel == MlaKernel::kRows) return AttendInPieces(call, params);
  return AttendInPieces(call, params,
                        kernel == MlaKernel::kRows16 ? LaunchMlaRows16 : LaunchMlaRows64,
                        params.pieces.count <= kMlaMaxPieces ? LaunchMlaMerge : LaunchMergeStates);
}

SlotLists ListsOf(const SparseKeys& keys, const ConstTensorView& kv_scale) {
  SlotLists lists;
  if (keys.cache.absent()) return lists;
  lists.cache = CacheOf(keys.cache, {});
  // Rows with scales of their own take no other.
  if (IsQuantizedCode(keys.cache.k.dtype)) lists.cache.k_scale = ScalesOf(kv_scale);
  lists.slots = keys.indices.as<int32_t>();
  lists.outer_stride = keys.indices.stride[0];
  lists.row_stride = keys.indices.stride[1];
  lists.num_entries = static_cast<int32_t>(keys.indices.extent[2]);
  lists.lengths = keys.topk_len.as<int32_t>();
  return lists;
}

}  // namespace

absl::Status CheckOnCuda(const ExecContext& context, const MlaDecodeArgs& args) {
  CudaChecker check("MlaDecode", context, args);
  check.Values("q_lat", args.q_lat).Values("q_pe", args.q_pe).Values("out", args.out);
  check.Paged(args).Dense("query_start_loc", args.query_start_loc);
  return check.Dense("kv_start_loc", args.kv_start_loc).status();
}

absl::Status Enqueue(CudaCall& call, const Checked<MlaDecodeArgs>& checked) {
  const MlaDecodeArgs& args = checked.args();
  AttendRowsParams params = AttendRowsParamsOf(DenseAttentionOf(args));
  params.q_dim = static_cast<int32_t>(args.q_lat.extent[2]);
  if (!args.q_pe.absent()) params.q_tail = ConstRowsOf(args.q_pe);
  KVBLOCKS_RETURN_IF_ERROR(PrepareMask(call, params));
  return LaunchMla(call, args.params.split, args.max_seq_len, params);
}

absl::Status CheckOnCuda(const ExecContext& context, const SparseMlaDecodeArgs& args) {
  CudaChecker check("SparseMlaDecode", context, args);
  check.Values("q", args.q).Values("out", args.out).Dense("sinks", args.sinks);
  check.KvCache("main.cache", args.main.cache).Dense("main.indices", args.main.indices);
  check.Dense("main.topk_len", args.main.topk_len).KvCache("extra.cache", args.extra.cache);
  check.Dense("extra.indices", args.extra.indices).Dense("extra.topk_len", args.extra.topk_len);
  return check.status();
}

absl::Status Enqueue(CudaCall& call, const Checked<SparseMlaDecodeArgs>& checked) {
  const SparseMlaDecodeArgs& args = checked.args();
  const int64_t rows = args.q.extent[0] * args.q.extent[1];
  if (rows == 0) return absl::OkStatus();
  AttendRowsParams params;
  params.q = {args.q.data, args.q.stride[1], args.q.stride[2], ElementOf(args.q.dtype)};
  params.q_outer_stride = args.q.stride[0];
  params.q_dim = params.key_dim = static_cast<int32_t>(args.main.cache.key_dim());
  params.num_rows = static_cast<int32_t>(rows);
  params.num_heads = static_cast<int32_t>(args.q.extent[2]);
  params.value_dim = static_cast<int32_t>(args.main.cache.value_dim());
  params.inner_rows = static_cast<int32_t>(args.q.extent[1]);
  params.source = KeySource::kLists;
  params.main = ListsOf(args.main, args.kv_scale);
  params.extra = ListsOf(args.extra, args.kv_scale);
  params.scoring.scale = args.scale;
  params.scoring.causal = false;
  params.scoring.sinks = args.sinks.as<float>();
  params.output.out = {args.out.data, args.out.stride[1], args.out.stride[2],
                       ElementOf(args.out.dtype)};
  params.output.out_outer_stride = args.out.stride[0];
  params.output.lse = RowStatisticOf(args.lse);
  return LaunchMla(call, SplitPolicy::Auto(),
                   int64_t{params.main.num_entries} + params.extra.num_entries, params);
}

absl::Status CheckOnCuda(const ExecContext& context, const SparseMlaPrefillArgs& args) {
  CudaChecker check("SparseMlaPrefill", context, args);
  check.Values("q", args.q).Values("kv", args.kv).Values("out", args.out);
  check.Dense("indices", args.indices).Dense("topk_len", args.topk_len);
  check.Dense("sinks", args.sinks).HeadDims(args.kv.extent[2], args.out.extent[2]);
  return check.status();
}

absl::Status Enqueue(CudaCall& call, const Checked<SparseMlaPrefillArgs>& checked) {
  const SparseMlaPrefillArgs& args = checked.args();
  AttendRowsParams params;
  params.q = ConstRowsOf(args.q);
  params.q_dim = params.key_dim = static_cast<int32_t>(args.q.extent[2]);
  params.num_rows = static_cast<int32_t>(args.q.extent[0]);
  params.num_heads = static_cast<int32_t>(args.q.extent[1]);
  params.value_dim = static_cast<int32_t>(args.out.extent[2]);
  params.inner_rows = 1;  // each row has a length of its own
  params.q_outer_stride = args.q.stride[0];
  params.source = KeySource::kLists;
  // The tensor is a latent cache of one block.
  SlotLists& lists = params.main;
  lists.cache.layout = Layout::kMlaLatent;
  lists.cache.element = ElementOf(args.kv.dtype);
  lists.cache.k = {args.kv.data, 0, args.kv.stride[0], 0};
  lists.cache.num_blocks = args.kv.extent[0] > 0 ? 1 : 0;
  lists.cache.block_size = static_cast<int32_t>(args.kv.extent[0] > 0 ? args.kv.extent[0] : 1);
  lists.slots = args.indices.as<int32_t>();
  lists.outer_stride = args.indices.stride[0];
  lists.num_entries = static_cast<int32_t>(args.indices.extent[2]);
  lists.lengths = args.topk_len.as<int32_t>();
  params.scoring.scale = args.scale;
  params.scoring.causal = false;
  params.scoring.sinks = args.sinks.as<float>();
  params.output.out = RowsOf(args.out);
  params.output.out_outer_stride = params.output.out.row_stride;
  params.output.lse = RowStatisticOf(args.lse);
  params.output.lse.outer_stride = params.output.lse.row_stride;
  params.output.max_logits = RowStatisticOf(args.max_logits);
  params.output.max_logits.outer_stride = params.output.max_logits.row_stride;
  return LaunchMla(call, SplitPolicy::None(), params.main.num_entries, params);
}

}  // namespace kvblocks::attention::cuda
