#include "kvblocks/attention/cuda/mla_launch.h"

#include <algorithm>
#include <limits>

#include "kvblocks/attention/cuda/kernels/mla_attend.h"
#include "kvblocks/attention/cuda/kernels/runtime.h"
#include "kvblocks/checks/ceil_div.h"

namespace kvblocks::attention::cuda {
namespace {

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

}  // namespace

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
  const bool has_wgmma =
      !HasCodes(params) && (capability == 90 || (IsEmulation() && rows > 16));
  return has_wgmma ? MlaKernel::kRows64 : MlaKernel::kRows16;
}

absl::Status LaunchMla(CudaCall& call, const SplitPolicy& split, int64_t max_keys,
                       AttendRowsParams params) {
  const MlaKernel kernel = MlaKernelFor(call.launch(), params, split);
  if (kernel != MlaKernel::kRows && split.kind == SplitPolicy::Kind::kAuto) {
    params.pieces = AutoPieces(call, params, kernel, max_keys);
  } else if (params.output.max_logits.data == nullptr) {
    const absl::StatusOr<Pieces> pieces = PiecesOf(call, split, params, max_keys);
    if (!pieces.ok()) return pieces.status();
    params.pieces = *pieces;
  }
  if (kernel == MlaKernel::kRows) return AttendInPieces(call, params);
  return AttendInPieces(call, params,
                        kernel == MlaKernel::kRows16 ? LaunchMlaRows16 : LaunchMlaRows64,
                        params.pieces.count <= kMlaMaxPieces ? LaunchMlaMerge : LaunchMergeStates);
}

}  // namespace kvblocks::attention::cuda
