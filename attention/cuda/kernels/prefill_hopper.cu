// Prefill with wgmma, for compute capability 9.0.
//
// A block stays on its multiprocessor and does one row tile after another. Of its three warpgroups
// one produces: it finds row tiles, gathers queries, and gathers K and V, 128 keys at a time, by
// 16-byte asynchronous copies whose completion arrives at barriers in shared memory. Two consume,
// 64 rows each. While a consumer makes weights of tile n, its product with V(n-1) still runs, and
// the other consumer multiplies: they take turns at issuing products. Weights stay in registers as
// the left operand. The producer gives registers to the consumers.

#include "kvblocks/attention/cuda/device/gpu.h"
#include "kvblocks/attention/cuda/device/hopper.h"
#include "kvblocks/attention/cuda/device/numbers.h"
#include "kvblocks/attention/cuda/device/ptx.h"
#include "kvblocks/attention/cuda/kernels/prefill_hopper.h"
#include "kvblocks/attention/cuda/kernels/prefill_hopper_producer.h"
#include "kvblocks/attention/cuda/kernels/prefill_rows.h"
#include "kvblocks/attention/cuda/kernels/prefill_tile.h"

namespace kvblocks::attention::cuda {
namespace prefill_hopper {
namespace {

// --- A consumer ---

template <typename T, int kD, int kDv>
class Consumer {
 public:
  using Shared = SharedLayout<kD, kDv>;

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
    const float log2_scale = rich ? kLog2E : params_.scoring.scale * kLog2E;
    if (group_ == 1) NamedBarrierArrive(kTurnBarrier, 2 * kGroupThreads);  // the other one begins
    for (uint32_t tiles = 0;; ++tiles) {
      const uint32_t slot = tiles % kTileSlots;
      WaitAtBarrier(barriers_.TileFull(slot), tiles / kTileSlots & 1);
      const RowTile& tile =
          *reinterpret_cast<const RowTile*>(shared_ + Shared::kTiles + slot * Shared::kTileBytes);
      if (!tile.valid) break;
      WaitAtBarrier(barriers_.QueriesFull(), tiles & 1);
      Attend(tile, rich, log2_scale);
      WriteOutputs(tile, log2_scale);
    }
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

    uint32_t stage = step_ % kKeyStages, parity = step_ / kKeyStages & 1;
    WaitAtBarrier(barriers_.KeysFull(stage), parity);
    bool bad = HasFlag(Shared::kAnyBad + stage * 16);
    FenceForAsyncProxy();
    BeginProducts();
    MultiplyQueries(scores, stage);
    CommitProducts();
    WaitProducts<0>();
    PinAccumulators(scores);
    if (!Shared::kOutInQueries && num_tiles == 1) Release(barriers_.QueriesEmpty());
    FinishScores(tile, scores, key0, stage, rich, IsEdge(whole, key0), __any_sync(kFullWarp, bad));
    float shrink[2];
    MakeWeights(scores, shrink, log2_scale);
    PackWeights(scores, weights);

    for (int n = 1; n < num_tiles; ++n) {
      const uint32_t last_stage = step_ % Shared::kValueStages;
      const uint32_t last_parity = step_ / Shared::kValueStages & 1;
      ++step_;
      stage = step_ % kKeyStages, parity = step_ / kKeyStages & 1;
      WaitAtBarrier(barriers_.KeysFull(stage), parity);
      bad = HasFlag(Shared::kAnyBad + stage * 16);
      WaitAtBarrier(barriers_.ValuesFull(last_stage), last_parity);
      if (IsEdge(whole, key0)) TakeNonFiniteValues(tile, last_stage, key0);
      key0 += kKeys;
      FenceForAsyncProxy();
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
      if (!Shared::kOutInQueries && n + 1 == num_tiles) Release(barriers_.QueriesEmpty());
      FinishScores(tile, scores, key0, stage, rich, IsEdge(whole, key0),
                   __any_sync(kFullWarp, bad));
      const bool grown = MakeWeights(scores, shrink, log2_scale);
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
    if (IsEdge(whole, key0)) TakeNonFiniteValues(tile, last_stage, key0);
    FenceForAsyncProxy();
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
    const uint64_t keys = RowsAlongK(base_ + Shared::kKeyTiles + stage * Shared::kKeyBytes);
#pragma unroll
    for (int k = 0; k < kD / 16; ++k) {
      // Descriptors count 16 bytes.
      const int in_column = k % 4 * 2;
      MultiplyGroupShared<T>(scores, queries + k / 4 * (kRows * kColumnBytes / 16) + in_column,
                             keys + k / 4 * (Shared::kColumnOfTile / 16) + in_column, k > 0);
    }
  }
  KVB_DEVICE void MultiplyValues(const uint32_t (&weights)[kKeys / 16][4], uint32_t stage) {
    const uint64_t values = RowsAcrossK(base_ + Shared::kValueTiles + stage * Shared::kValueBytes,
                                        Shared::kColumnOfTile);
#pragma unroll
    for (int k = 0; k < kKeys / 16; ++k) {
      MultiplyGroupRegisters<T>(out_, weights[k], values + k * (16 * kColumnBytes / 16));
    }
  }

  // Scores as softmax wants them; the stage of K is free after.
  KVB_DEVICE void FinishScores(const RowTile& tile, float (&scores)[kKeys / 8][4], int32_t key0,
                               uint32_t stage, bool rich, bool edge, bool bad) const {
    if (!bad) Release(barriers_.KeysEmpty(stage));
    // Out of the way of what is always executed.
    if (rich) [[unlikely]]
      ModifyScores(params_, tile, scores, row_, key0);
    if (edge || bad) [[unlikely]] {
      HideScores(params_, tile, scores, row_, key0,
                 bad ? shared_ + Shared::kBadKeys + stage * kKeys : nullptr);
    }
    if (bad) Release(barriers_.KeysEmpty(stage));
  }

  // Whether a maximum grew, and so earlier values shrink.
  KVB_DEVICE bool MakeWeights(float (&scores)[kKeys / 8][4], float (&shrink)[2], float log2_scale) {
    const float before[2] = {maximum_[0], maximum_[1]};
    ExponentiateRows(scores, log2_scale, maximum_, sum_, shrink);
    return __any_sync(kFullWarp, maximum_[0] != before[0] || maximum_[1] != before[1]);
  }
  KVB_DEVICE static void PackWeights(const float (&scores)[kKeys / 8][4],
                                     uint32_t (&weights)[kKeys / 16][4]) {
#pragma unroll
    for (int j = 0; j < kKeys / 8; ++j) {
      weights[j / 2][j % 2 * 2] = T::Pack(scores[j][0], scores[j][1]);
      weights[j / 2][j % 2 * 2 + 1] = T::Pack(scores[j][2], scores[j][3]);
    }
  }

  // Of four words, one of them for this lane.
  KVB_DEVICE bool HasFlag(int at) const {
    return reinterpret_cast<const uint32_t*>(shared_ + at)[lane_ % 4] != 0;
  }

  // By both consumers, V being there.
  KVB_DEVICE void TakeNonFiniteValues(const RowTile& tile, uint32_t stage, int32_t key0) {
    if (!__any_sync(kFullWarp, HasFlag(Shared::kNonFinite + stage * 16))) [[likely]]
      return;
    unsigned char* values = shared_ + Shared::kValueTiles + stage * Shared::kValueBytes;
    constexpr int kConsumerThreads = kConsumers * kGroupThreads;
    AddNonFinite<T, kKeys>(params_, tile, values, out_, row_, key0);
    NamedBarrierSync(kConsumersBarrier, kConsumerThreads);
    ZeroNonFinite<T, Shared::kValueBytes>(values, thread_, kConsumerThreads);
    FenceForAsyncProxy();
    NamedBarrierSync(kConsumersBarrier, kConsumerThreads);
  }

  KVB_DEVICE void WriteOutputs(const RowTile& tile, float log2_scale) {
    unsigned char* staged = shared_ + Shared::kOut;
    const bool is_piece = params_.pieces.outs != nullptr;
    if constexpr (Shared::kOutInQueries) {
      // The other warps of this group still multiplied with this warp's queries.
      NamedBarrierSync(kConsumersBarrier, kConsumers * kGroupThreads);
    }
    __syncwarp();
    if (is_piece) {
      LeaveStates<false>(params_, tile, out_, row_, maximum_, sum_, log2_scale);
    } else {
      FinishRows<T, kRows>(params_, tile, out_, row_, maximum_, sum_, log2_scale, staged);
    }
    __syncwarp();
    if (params_.out_scale <= 0 && !is_piece) {
      StoreStagedRows<kRows, kDv / 64>(params_, tile, staged, thread_ / 32 * 16, 16);
    }
    if constexpr (Shared::kOutInQueries) Release(barriers_.QueriesEmpty());
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

template <typename T, int kD, int kDv>
__global__ void __launch_bounds__(kThreads, 1)
    PrefillHopperKernel(const __grid_constant__ PrefillParams params, const TileOrder order,
                        uint32_t* error_flags) {
  const Barriers barriers{SharedAddress(DynamicSharedMemory()) + SharedLayout<kD, kDv>::kBarriers};
  if (threadIdx.x == 0) barriers.Init();
  if (!params.overlaps_previous) WaitForPreviousKernel();
  AllowNextKernel();
  __syncthreads();
  if (threadIdx.x < kGroupThreads) {
    ShrinkRegisters<kProducerRegisters>();
    Producer<kD, kDv>(params, error_flags, barriers).Run(order);
    if (params.overlaps_previous) WaitForPreviousKernel();
  } else {
    GrowRegisters<kConsumerRegisters>();
    Consumer<T, kD, kDv>(params, barriers).Run();
  }
}

template <typename T, int kD, int kDv>
Error LaunchOne(const LaunchContext& context, const PrefillParams& params) {
  const TileOrder order = OrderTiles(params, kRows);
  const int64_t blocks =
      order.items < context.num_multiprocessors ? order.items : context.num_multiprocessors;
  return Launch({.grid = dim3(static_cast<unsigned>(blocks)),
                 .block = dim3(kThreads),
                 .shared_bytes = SharedLayout<kD, kDv>::kBytes,
                 .stream = context.stream,
                 .overlap_previous = context.can_overlap()},
                PrefillHopperKernel<T, kD, kDv>, params, order, context.error_flags);
}

template <typename T>
Error LaunchOfType(const LaunchContext& context, const PrefillParams& params) {
  const int d = params.key_dim, dv = params.value_dim;
  if (d <= 64 && dv <= 64) return LaunchOne<T, 64, 64>(context, params);
  if (d <= 128 && dv <= 128) return LaunchOne<T, 128, 128>(context, params);
  return LaunchOne<T, 192, 128>(context, params);
}

}  // namespace
}  // namespace prefill_hopper

bool TakesPrefillHopper(const PrefillParams& params) {
  return params.key_dim <= 192 && params.value_dim <= 128 && !HoldsCodes(params.keys.cache);
}

Error LaunchPrefillHopper(const LaunchContext& context, const PrefillParams& params) {
  return params.q.element == Element::kBF16 ? prefill_hopper::LaunchOfType<Bf16>(context, params)
                                            : prefill_hopper::LaunchOfType<F16>(context, params);
}

}  // namespace kvblocks::attention::cuda
