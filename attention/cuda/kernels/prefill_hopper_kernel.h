// The wgmma prefill kernel: its consuming half, the kernel itself and its launch. Included by the
// sources that build it for 16-bit caches (prefill_hopper.cu), codes (prefill_hopper_codes.cu) and
// special cases (prefill_hopper_special.cu).
//
// A block stays on its multiprocessor and does one row tile after another. Of its three warpgroups
// one produces (prefill_hopper_producer.h). Two consume, 64 rows each. While a consumer makes
// weights of tile n, its product with V(n-1) still runs, and the other consumer multiplies: they
// take turns at issuing products. Weights stay in registers as the left operand. The producer gives
// registers to the consumers.

#ifndef KVBLOCKS_ATTENTION_CUDA_KERNELS_PREFILL_HOPPER_KERNEL_H_
#define KVBLOCKS_ATTENTION_CUDA_KERNELS_PREFILL_HOPPER_KERNEL_H_

#include "attention/cuda/device/bulk.h"
#include "attention/cuda/device/gpu.h"
#include "attention/cuda/device/hopper.h"
#include "attention/cuda/device/numbers.h"
#include "attention/cuda/device/ptx.h"
#include "attention/cuda/kernels/prefill.h"
#include "attention/cuda/kernels/prefill_hopper_producer.h"
#include "attention/cuda/kernels/prefill_rows.h"
#include "attention/cuda/kernels/prefill_tile.h"

namespace kvblocks::attention::cuda::prefill_hopper {

// --- A consumer ---

template <typename Kind, int kD, int kDv>
class Consumer {
 public:
  using Shared = SharedLayout<Kind, kD, kDv>;
  using Query = typename Kind::Query;
  using Value = typename Kind::Value;
  using Out = typename Kind::Out;

  KVB_DEVICE Consumer(const PrefillParams& params, const Barriers& barriers)
      : params_(params),
        barriers_(barriers),
        shared_(DynamicSharedMemory()),
        base_(SharedAddress(shared_)),
        thread_(static_cast<int>(threadIdx.x) - kGroupThreads),
        lane_(thread_ % 32),
        group_(thread_ / kGroupThreads),
        row_(thread_ / 32 * 16 + lane_ / 4) {}

  KVB_DEVICE void Run() {
    const bool rich = params_.scoring.soft_cap > 0 || params_.scoring.alibi_slopes != nullptr;
    float log2_scale = rich ? kLog2E : params_.scoring.scale * kLog2E;
    if (group_ == 1) NamedBarrierArrive(kTurnBarrier, 2 * kGroupThreads);  // the other one begins
    for (uint32_t tiles = 0;; ++tiles) {
      const uint32_t slot = tiles % kTileSlots;
      WaitAtBarrier(barriers_.TileFull(slot), tiles / kTileSlots & 1);
      const RowTile& tile =
          *reinterpret_cast<const RowTile*>(shared_ + Shared::kTiles + slot * Shared::kTileBytes);
      if (!tile.valid) break;
      if (Kind::kCodes && !rich) log2_scale = params_.scoring.scale * tile.k_scale * kLog2E;
      WaitAtBarrier(barriers_.QueriesFull(), tiles & 1);
      Attend(tile, rich, log2_scale);
      WriteOutputs(tile, log2_scale);
    }
    WaitStoresHaveRead();
  }

 private:
  // Of a warp, once it is done with something.
  KVB_DEVICE void Release(uint32_t barrier) const {
    __syncwarp();
    if (lane_ == 0) ArriveAtBarrier(barrier);
  }

  KVB_DEVICE void Attend(const RowTile& tile, bool rich, float log2_scale) {
    maximum_[0] = maximum_[1] = -Infinity();
    sum_[0] = sum_[1] = 0;
#pragma unroll
    for (int d = 0; d < kDv / 8; ++d) {
      for (int i = 0; i < 4; ++i) out_[d][i] = 0;
    }
    const int num_tiles = NumKeyTilesOf(tile);
    if (num_tiles == 0) {
      if (!Shared::kOutInQueries) Release(barriers_.QueriesEmpty());
      return;
    }
    int32_t key0 = FirstKeyOf(tile);
    const KeyRange whole = tile.seen_by_all;
    float scores[kKeys / 8][4];
    uint32_t weights[kKeys / 16][4];

    uint32_t stage = step_ % Shared::kKeyStages, parity = step_ / Shared::kKeyStages & 1;
    WaitAtBarrier(barriers_.KeysFull(stage), parity);
    bool bad = LoadShared4(base_ + Shared::kAnyBad) != 0;
    FenceForAsyncProxy();  // queries were gathered
    BeginProducts();
    MultiplyQueries(scores, stage);
    CommitProducts();
    WaitProducts<0>();
    PinAccumulators(scores);
    if (!Shared::kOutInQueries && (Kind::kTested ? IsLast() : num_tiles == 1)) {
      Release(barriers_.QueriesEmpty());
    }
    FinishScores(tile, scores, key0, stage, rich, IsEdgeOf(whole, key0, step_), bad);
    float shrink[2];
    ExponentiateRows(scores, log2_scale, maximum_, sum_, shrink);
    PackWeights(scores, weights);

    for (int n = 1; Kind::kTested ? !IsLast() : n < num_tiles; ++n) {
      const uint32_t last_stage = step_ % Shared::kValueStages;
      const uint32_t last_parity = step_ / Shared::kValueStages & 1;
      ++step_;
      stage = step_ % Shared::kKeyStages, parity = step_ / Shared::kKeyStages & 1;
      WaitAtBarrier(barriers_.KeysFull(stage), parity);
      bad = LoadShared4(base_ + Shared::kAnyBad) != 0;
      WaitAtBarrier(barriers_.ValuesFull(last_stage), last_parity);
      if (IsEdgeOf(whole, key0, step_ - 1)) {
        TakeNonFiniteValues(tile, last_stage, key0, step_ - 1);
      }
      key0 += kKeys;
      NamedBarrierSync(kTurnBarrier + group_, 2 * kGroupThreads);
      PinAccumulators(out_);
      BeginProducts();
      MultiplyQueries(scores, stage);
      CommitProducts();
      MultiplyValues(weights, last_stage);
      CommitProducts();
      NamedBarrierArrive(kTurnBarrier + (group_ ^ 1), 2 * kGroupThreads);
      WaitProducts<1>();
      PinAccumulators(scores);
      if (!Shared::kOutInQueries && (Kind::kTested ? IsLast() : n + 1 == num_tiles)) {
        Release(barriers_.QueriesEmpty());
      }
      FinishScores(tile, scores, key0, stage, rich, IsEdgeOf(whole, key0, step_), bad);
      const bool grown = ExponentiateRows(scores, log2_scale, maximum_, sum_, shrink);
      WaitProducts<0>();
      PinAccumulators(out_);
      Release(barriers_.ValuesEmpty(last_stage));
      PackWeights(scores, weights);
      if (grown) {
#pragma unroll
        for (int d = 0; d < kDv / 8; ++d) {
          for (int i = 0; i < 4; ++i) out_[d][i] *= shrink[i / 2];
        }
      }
    }

    const uint32_t last_stage = step_ % Shared::kValueStages;
    WaitAtBarrier(barriers_.ValuesFull(last_stage), step_ / Shared::kValueStages & 1);
    if (IsEdgeOf(whole, key0, step_)) TakeNonFiniteValues(tile, last_stage, key0, step_);
    PinAccumulators(out_);
    BeginProducts();
    MultiplyValues(weights, last_stage);
    CommitProducts();
    WaitProducts<0>();
    PinAccumulators(out_);
    Release(barriers_.ValuesEmpty(last_stage));
    ++step_;
  }

  KVB_DEVICE void MultiplyQueries(float (&scores)[kKeys / 8][4], uint32_t stage) const {
    const uint64_t queries = RowsAlongK(base_ + Shared::kQueries + group_ * 64 * kColumnBytes);
    const uint32_t keys_at = base_ + Shared::kKeyTiles + stage * Shared::kKeyBytes;
    if constexpr (Kind::kPagedX) {
      // Eight keys have all of their dimensions together, by eights.
      const uint64_t keys = BricksAlongK(keys_at, 128, kD / 8 * 128);
#pragma unroll
      for (int k = 0; k < kD / 16; ++k) {
        MultiplyGroupShared<Query>(
            scores, queries + k / 4 * (kRows * kColumnBytes / 16) + k % 4 * 2,
            keys + k * (2 * 128 / 16), k > 0);
      }
      return;
    }
    const uint64_t keys = RowsAlongK(keys_at);
    // Both in steps of 32 bytes.
#pragma unroll
    for (int k = 0; k < kD * static_cast<int>(sizeof(typename Query::Bits)) / 32; ++k) {
      // Descriptors count 16 bytes.
      const int in_column = k % 4 * 2;
      MultiplyGroupShared<Query>(scores, queries + k / 4 * (kRows * kColumnBytes / 16) + in_column,
                                 keys + k / 4 * (Shared::kColumnOfTile / 16) + in_column, k > 0);
    }
  }
  KVB_DEVICE void MultiplyValues(const uint32_t (&weights)[kKeys / 16][4], uint32_t stage) {
    if constexpr (Kind::kPagedX) {
      const uint64_t values =
          ShortRowsAlongK(base_ + Shared::kValueTiles + stage * Shared::kValueBytes);
#pragma unroll
      for (int k = 0; k < kKeys / 16; ++k) {
        MultiplyGroupRegistersAlongK<Value>(out_, weights[k], values + k * (kDv * 32 / 16), true);
      }
      return;
    }
    const uint64_t values = RowsAcrossK(base_ + Shared::kValueTiles + stage * Shared::kValueBytes,
                                        Shared::kColumnOfTile);
#pragma unroll
    for (int k = 0; k < kKeys / 16; ++k) {
      MultiplyGroupRegisters<Value>(out_, weights[k], values + k * (16 * kColumnBytes / 16));
    }
  }

  // Scores as softmax wants them; the stage of K is free after.
  KVB_DEVICE void FinishScores(const RowTile& tile, float (&scores)[kKeys / 8][4], int32_t key0,
                               uint32_t stage, bool rich, bool edge, bool bad) const {
    Release(barriers_.KeysEmpty(stage));
    if constexpr (Kind::kTested) return FinishTested(tile, scores, rich, bad);
    // Out of the way of what is always executed.
    if (rich) [[unlikely]]
      ModifyScores(params_, tile, scores, row_, key0);
    if (edge || bad) [[unlikely]] {
      HideScores(params_, tile, scores, row_, key0, bad ? BadKeys() : nullptr);
    }
  }

  // --- Of tested instances ---

  KVB_DEVICE SeenTiles<Shared> Seen() const { return {shared_}; }
  KVB_DEVICE bool IsLast() const {
    if constexpr (Kind::kTested) return Seen().At(step_).is_last != 0;
    return false;
  }
  // Whether some row sees less of the step's tile than another.
  KVB_DEVICE bool IsEdgeOf(const KeyRange& whole, int32_t key0, uint32_t step) const {
    if constexpr (Kind::kTested) return Seen().At(step).by_warp[0].is_mixed != 0;
    return IsEdge(whole, key0);
  }
  KVB_DEVICE void FinishTested(const RowTile& tile, float (&scores)[kKeys / 8][4], bool rich,
                               bool bad) const {
    if constexpr (Kind::kTested) {
      const SeenTile& seen = Seen().At(step_);
      if (rich) [[unlikely]] {
#pragma unroll
        for (int half = 0; half < 2; ++half) {
          ModifyScores(params_, tile, reinterpret_cast<float(&)[8][4]>(scores[8 * half]), row_,
                       seen.by_warp[0].keys[half]);
        }
      }
      const int first = thread_ / 32 * 16;  // of the warp's rows
      if (bad || (seen.mixed[first / 32] >> first % 32 & 0xffff) != 0) {
        HideByWords(scores, Seen().Words(step_) + 2 * first, bad ? BadKeys() : nullptr);
      }
    }
  }

  KVB_DEVICE static void PackWeights(const float (&scores)[kKeys / 8][4],
                                     uint32_t (&weights)[kKeys / 16][4]) {
#pragma unroll
    for (int j = 0; j < kKeys / 8; ++j) {
      weights[j / 2][j % 2 * 2] = Value::Pack(scores[j][0], scores[j][1]);
      weights[j / 2][j % 2 * 2 + 1] = Value::Pack(scores[j][2], scores[j][3]);
    }
  }

  // A bit per key of this step's tile.
  KVB_DEVICE const uint32_t* BadKeys() const {
    return reinterpret_cast<const uint32_t*>(shared_ + Shared::kBadKeys) +
           step_ % kBadSlots * kProducerWarps;
  }

  // By both consumers, V being there.
  KVB_DEVICE void TakeNonFiniteValues(const RowTile& tile, uint32_t stage, int32_t key0,
                                      uint32_t step) {
    const uint32_t* found = reinterpret_cast<const uint32_t*>(shared_ + Shared::kNonFinite);
    found += stage * kProducerWarps;
    if (!__any_sync(kFullWarp, found[lane_ % kProducerWarps] != 0)) [[likely]]
      return;
    unsigned char* values = shared_ + Shared::kValueTiles + stage * Shared::kValueBytes;
    constexpr int kConsumerThreads = kConsumers * kGroupThreads;
    if constexpr (Kind::kTested) {
      const auto* words = reinterpret_cast<const uint32_t*>(Seen().Words(step) + 2 * row_);
      AddNonFiniteOf<Value, kKeys>(
          values, out_, [&](int key) { return (words[key / 32] >> key % 32 & 1) != 0; },
          [&](int key) { return (words[8 * 4 + key / 32] >> key % 32 & 1) != 0; },
          AtKey<kKeys>);
    } else if constexpr (Kind::kPagedX) {
      const KeyRange low = RangeOfRow(params_, tile, row_, key0);
      const KeyRange high = RangeOfRow(params_, tile, row_ + 8, key0);
      AddNonFiniteOf<Value, kKeys>(
          values, out_, [&](int key) { return key >= low.begin && key < low.end; },
          [&](int key) { return key >= high.begin && key < high.end; }, AtKeyByDims<kDv>);
    } else {
      AddNonFinite<Value, kKeys>(params_, tile, values, out_, row_, key0);
    }
    NamedBarrierSync(kConsumersBarrier, kConsumerThreads);
    ZeroNonFinite<Value, Shared::kValueBytes>(values, thread_, kConsumerThreads);
    FenceForAsyncProxy();
    NamedBarrierSync(kConsumersBarrier, kConsumerThreads);
  }

  KVB_DEVICE void WriteOutputs(const RowTile& tile, float log2_scale) {
    if constexpr (Shared::kOutInQueries) {
      // The other warps still multiplied with the queries there.
      NamedBarrierSync(kConsumersBarrier, kConsumers * kGroupThreads);
    }
    if (params_.pieces.outs != nullptr) {
      LeaveStates<Kind::kCodes>(params_, tile, out_, row_, maximum_, sum_, log2_scale);
    } else if (params_.out_scale > 0) {
      FinishRows<Out, kRows>(params_, tile, out_, row_, maximum_, sum_, log2_scale, nullptr);
    } else {
      StoreRows(tile, log2_scale);
      if constexpr (Shared::kOutInQueries) WaitStoresHaveRead();
    }
    if constexpr (Shared::kOutInQueries) Release(barriers_.QueriesEmpty());
  }

  // Rows of 16-bit outputs: staged by this warp, then a copy of the bulk engine each.
  KVB_DEVICE void StoreRows(const RowTile& tile, float log2_scale) {
    float factor[2];
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      float sum = sum_[half];
      sum += __shfl_xor_sync(kFullWarp, sum, 1);
      sum += __shfl_xor_sync(kFullWarp, sum, 2);
      const int mine = row_ + 8 * half;
      factor[half] = sum == 0 ? 0 : __fdividef(Kind::kCodes ? tile.v_scale : 1, sum);
      if (params_.lse != nullptr || params_.scoring.sinks != nullptr) [[unlikely]] {
        if (mine >= tile.num_rows) continue;
        const RowEnd end = EndRow(params_, tile, mine, maximum_[half], sum, log2_scale);
        if (lane_ % 4 == 0 && params_.lse != nullptr) {
          const int64_t token = tile.query_start + tile.TokenOf(mine);
          const int64_t head = tile.HeadOf(mine);
          params_.lse[token * params_.lse_row_stride + head * params_.lse_head_stride] = end.lse;
        }
        factor[half] = end.factor;
      }
      if (factor[half] == 0) [[unlikely]] {
        // +0, whatever was accumulated.
#pragma unroll
        for (int d = 0; d < kDv / 8; ++d) out_[d][2 * half] = out_[d][2 * half + 1] = 0;
      }
    }
    WaitStoresHaveRead();  // of the row tile before
    __syncwarp();
    unsigned char* const to = shared_ + Shared::kOut + row_ * Shared::kOutPitch + lane_ % 4 * 4;
#pragma unroll
    for (int d = 0; d < kDv / 8; ++d) {
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        *reinterpret_cast<uint32_t*>(to + 8 * half * Shared::kOutPitch + 16 * d) =
            Out::Pack(out_[d][2 * half] * factor[half], out_[d][2 * half + 1] * factor[half]);
      }
    }
    FenceForAsyncProxy();
    __syncwarp();
    const int row = thread_ / 32 * 16 + lane_;
    if (lane_ >= 16 || row >= tile.num_rows) return;
    uint16_t* const out = static_cast<uint16_t*>(params_.out.data) +
                          (tile.query_start + tile.TokenOf(row)) * params_.out.row_stride +
                          tile.HeadOf(row) * params_.out.head_stride;
    StoreBulk(out, base_ + Shared::kOut + row * Shared::kOutPitch,
              static_cast<uint32_t>(params_.value_dim) * 2);
    CommitStores();
  }

  const PrefillParams& params_;
  const Barriers barriers_;
  unsigned char* const shared_;
  const uint32_t base_;
  const int thread_, lane_, group_, row_;
  uint32_t step_ = 0;  // tiles of keys so far
  float out_[kDv / 8][4];
  float maximum_[2], sum_[2];  // sums of this lane's columns
};

// --- The kernel ---

template <typename Kind, int kD, int kDv>
__global__ void __launch_bounds__(kThreads, 1)
    PrefillHopperKernel(const __grid_constant__ PrefillParams params,
                        const __grid_constant__ TileOrder order,
                        const __grid_constant__ BoxesOf<Kind> boxes, uint32_t* error_flags) {
  const Barriers barriers{SharedAddress(DynamicSharedMemory()) +
                          SharedLayout<Kind, kD, kDv>::kBarriers};
  if (threadIdx.x == 0) {
    barriers.Init();
    *reinterpret_cast<uint32_t*>(DynamicSharedMemory() + SharedLayout<Kind, kD, kDv>::kAnyBad) = 0;
  }
  if (!params.overlaps_previous) WaitForPreviousKernel();
  AllowNextKernel();
  __syncthreads();
  if (threadIdx.x < kGroupThreads) {
    ShrinkRegisters<Kind::kProducerRegisters>();
    Producer<Kind, kD, kDv>(params, boxes, error_flags, barriers, order).Run(order);
    if (params.overlaps_previous) WaitForPreviousKernel();
  } else {
    GrowRegisters<Kind::kConsumerRegisters>();
    Consumer<Kind, kD, kDv>(params, barriers).Run();
  }
}

// Keys that a box has: of contiguous ones as many as a producing warp copies; 0 if blocks cannot be
// made of boxes.
inline int32_t RowsOfBoxes(const PrefillParams& params) {
  if (params.keys.block_table == nullptr) return kWarpKeys;
  if (params.keys.cache.layout == Layout::kPagedX) {
    return params.keys.cache.block_size % kPagedXKeys == 0 ? kPagedXKeys : 0;
  }
  int32_t rows = kWarpKeys;
  while (params.keys.cache.block_size % rows != 0) rows /= 2;
  return rows >= 8 ? rows : 0;
}

// Nobody looks at the strides of dimensions of one element.
inline BoxedTensor WithoutIdleStrides(BoxedTensor boxed) {
  for (int i = 0; i < 3; ++i) {
    if (boxed.extents[i + 1] == 1) boxed.strides[i] = 8;
  }
  return boxed;
}

// K or V as it is to be copied: codes as pairs of them.
inline BoxedTensor BoxedKeys(const PrefillParams& params, const CacheTensor& tensor, int32_t dim) {
  const Cache& cache = params.keys.cache;
  BoxedTensor boxed;
  boxed.data = tensor.data;
  const int32_t per_unit = HoldsCodes(cache) ? 2 : 1;
  boxed.extents = {dim / per_unit, params.num_kv_heads, cache.block_size, cache.num_blocks};
  boxed.strides = {tensor.head_stride / per_unit, tensor.token_stride / per_unit,
                   tensor.block_stride / per_unit};
  if (params.keys.block_table == nullptr) {
    boxed.extents[2] = params.num_key_rows, boxed.extents[3] = 1;
  }
  boxed.box = {64, 1, RowsOfBoxes(params), 1};
  return WithoutIdleStrides(boxed);
}

// K or V of kPagedX. Of K a row is 16 bytes of each of eight keys.
inline BoxedTensor BoxedPagedX(const PrefillParams& params, bool values) {
  const Cache& cache = params.keys.cache;
  const CacheTensor& tensor = values ? cache.v : cache.k;
  const int64_t row = cache.block_size * (values ? 1 : 8);
  BoxedTensor boxed;
  boxed.data = tensor.data;
  boxed.extents = {row, values ? params.value_dim : params.key_dim / 8, params.num_kv_heads,
                   cache.num_blocks};
  boxed.strides = {row, tensor.head_stride, tensor.block_stride};
  boxed.box = {values ? kPagedXKeys : 64, values ? kPagedXDims : kPagedXDims / 8, 1, 1};
  boxed.permuted = values ? 32 : 16;
  return WithoutIdleStrides(boxed);
}

template <typename Kind, int kD, int kDv>
Error LaunchOne(const LaunchContext& context, const PrefillParams& params) {
  BoxesOf<Kind> boxes;
  const Cache& cache = params.keys.cache;
  boxes.rows = RowsOfBoxes(params);
  boxes.whole = params.keys.block_table != nullptr && boxes.rows == cache.block_size;
  Error error = MakeTensorMap(Kind::kPagedX ? BoxedPagedX(params, false)
                                            : BoxedKeys(params, cache.k, params.key_dim),
                              &boxes.keys);
  if (error != 0) return error;
  error = MakeTensorMap(
      Kind::kPagedX ? BoxedPagedX(params, true) : BoxedKeys(params, cache.v, params.value_dim),
      &boxes.values);
  if (error != 0) return error;
  if constexpr (Kind::kTested) {
    const BlockSparseRule& sparse = params.scoring.block_sparse;
    boxes.divisors = {FastDivisor(sparse.block_size),
                      FastDivisor(sparse.vert_stride < 1 ? 1 : sparse.vert_stride)};
  }
  const TileOrder order = OrderTiles(params, kRows);
  const int64_t blocks =
      order.items < context.num_multiprocessors ? order.items : context.num_multiprocessors;
  return Launch({.grid = dim3(static_cast<unsigned>(blocks)),
                 .block = dim3(kThreads),
                 .shared_bytes = SharedLayout<Kind, kD, kDv>::kBytes,
                 .stream = context.stream,
                 .overlap_previous = context.can_overlap()},
                PrefillHopperKernel<Kind, kD, kDv>, params, order, boxes, context.error_flags);
}

}  // namespace kvblocks::attention::cuda::prefill_hopper

#endif  // KVBLOCKS_ATTENTION_CUDA_KERNELS_PREFILL_HOPPER_KERNEL_H_
