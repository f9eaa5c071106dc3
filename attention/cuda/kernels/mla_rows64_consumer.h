// The consuming warpgroups of the wgmma kernel for latent attention (mla_rows64.cu). Device code of
// that one source.
//
// Each holds 64 rows x 256 columns of the sums. The first also multiplies queries by keys and makes
// probabilities, which the second gets thread by thread, as the fragments that both multiply by
// values. Products of the first are issued one after another without a wait between: a tile's
// values, then the next one's scores. The second adds its values while the first makes
// probabilities, which is when the matrix units would be idle, or earlier if the first must wait
// for keys.

#ifndef KVBLOCKS_ATTENTION_CUDA_KERNELS_MLA_ROWS64_CONSUMER_H_
#define KVBLOCKS_ATTENTION_CUDA_KERNELS_MLA_ROWS64_CONSUMER_H_

#include "attention/cuda/device/gpu.h"
#include "attention/cuda/device/hopper.h"
#include "attention/cuda/kernels/mla_rows64_state.h"
#include "attention/cuda/kernels/mla_tile.h"

namespace kvblocks::attention::cuda::mla_rows64 {

// What probabilities are relative to, a power of two, follows a row's maximum only when that is
// larger by this: probabilities up to 256 are as exact, and sums need not be scaled.
inline constexpr float kHeadroom = 8;

// kFp8: keys come from lists, so that all rows see the same ones. They are late anyway, so that
// products of a tile's values and of the next one's scores are not under way together: a tile is
// freed the earlier.
template <typename T, bool kFp8>
class Consumer {
  static constexpr bool kOverlaps = !kFp8;

 public:
  KVB_DEVICE Consumer(const AttendRowsParams& params, int group)
      : params_(params), state_(State()), group_(group) {
    thread_ = static_cast<int>(threadIdx.x) % 128;
    lane_ = thread_ % 32;
    row_ = thread_ / 32 * 16 + lane_ / 4;
#pragma unroll
    for (int h = 0; h < 2; ++h) {
#pragma unroll
      for (int n = 0; n < 16; ++n) o_[h][n][0] = o_[h][n][1] = o_[h][n][2] = o_[h][n][3] = 0;
    }
  }

  // Scores, probabilities, and the first half of the columns.
  template <int kBoxes>
  KVB_DEVICE void RunFirst(int piece) {
    const Tiles tiles(state_.work);
    float max[2] = {-INFINITY, -INFINITY}, sum[2] = {}, shrink[2];
    uint32_t p[4][4];
    {
      float s[8][4];
      BeginProducts();
#pragma unroll
      for (int half = 0; half < kHalves; ++half) {
        WaitFull(0, half);
        MultiplyKeys<kBoxes>(0, half, s);
      }
      CommitProducts();
      WaitProducts<0>();
      PinAccumulators(s);
      Softmax(tiles.first * kKeys, 0, s, max, sum, p, shrink);
      StoreProbabilities(p, shrink);
    }
    const int count = tiles.last - tiles.first + 1;
#pragma unroll 1
    for (int n = 1; n < count; ++n) {
      const int first_key = (tiles.first + n) * kKeys;
      Prepare(first_key - kKeys, n - 1, shrink);
      BeginProducts();
      MultiplyValues(n - 1, p);
      CommitProducts();
      const int stage = n & 1;
      const uint32_t before = EmptyBarrier(stage ^ 1, 0), parity = n >> 1 & 1;
      // Where keys must be waited for, nothing of the last tile is held back.
      const bool waits =
          !kOverlaps || !__all_sync(kFullWarp, TestBarrier(FullBarrier(stage, 0), parity) &&
                                                   TestBarrier(FullBarrier(stage, 1), parity));
      if (waits) {
        NamedBarrierArrive(kProbabilitiesReady, kConsumers);
        WaitProducts<0>();
        ArriveAsWarp(before);
      }
      float s[8][4];
#pragma unroll
      for (int half = 0; half < kHalves; ++half) {
        WaitFull(n, half);
        MultiplyKeys<kBoxes>(n, half, s);
      }
      CommitProducts();
      WaitProducts<1>();
      if (!waits) ArriveAsWarp(before);
      WaitProducts<0>();
      PinAccumulators(s);
      PinAccumulators(o_[0]);
      PinAccumulators(o_[1]);
      if (!waits) NamedBarrierArrive(kProbabilitiesReady, kConsumers);
      Softmax(first_key, n, s, max, sum, p, shrink);
      // Not before they are made.
#pragma unroll
      for (int step = 0; step < 4; ++step) KeepInLoop(p[step][3]);
      NamedBarrierSync(kProbabilitiesTaken, kConsumers);
      StoreProbabilities(p, shrink);
    }
    NamedBarrierArrive(kProbabilitiesReady, kConsumers);
    Prepare(tiles.last * kKeys, count - 1, shrink);
    BeginProducts();
    MultiplyValues(count - 1, p);
    CommitProducts();
    FinishRows(piece, max, sum);
    WaitProducts<0>();
    PinAccumulators(o_[0]);
    PinAccumulators(o_[1]);
    NamedBarrierSync(kBothConsumers, kConsumers);
    Write(piece);
  }

  KVB_DEVICE void RunSecond(int piece) {
    const Tiles tiles(state_.work);
#pragma unroll 1
    for (int tile = tiles.first; tile <= tiles.last; ++tile) {
      const int n = tile - tiles.first;
      NamedBarrierSync(kProbabilitiesReady, kConsumers);
      uint32_t p[4][4];
#pragma unroll
      for (int step = 0; step < 4; ++step) {
        const uint4 four = state_.p[step][thread_];
        p[step][0] = four.x, p[step][1] = four.y, p[step][2] = four.z, p[step][3] = four.w;
      }
      const float2 both = state_.shrink[thread_];
      const float shrink[2] = {both.x, both.y};
      if (tile < tiles.last) NamedBarrierArrive(kProbabilitiesTaken, kConsumers);
      WaitFull(n, 1);
      Prepare(tile * kKeys, n, shrink);
      BeginProducts();
      MultiplyValues(n, p);
      CommitProducts();
      WaitProducts<0>();
      PinAccumulators(o_[0]);
      PinAccumulators(o_[1]);
      ArriveAsWarp(EmptyBarrier(n & 1, 1));
    }
    NamedBarrierSync(kBothConsumers, kConsumers);
    Write(piece);
  }

 private:
  // Until a half of the block's tile n is there for products to see.
  KVB_DEVICE void WaitFull(int n, int half) const {
    WaitAtBarrier(FullBarrier(n & 1, half), n >> 1 & 1);
    FenceForAsyncProxy();
  }

  // Starts what a half of tile n adds to the scores; half 0 comes first.
  template <int kBoxes>
  KVB_DEVICE void MultiplyKeys(int n, int half, float (&s)[8][4]) const {
    // Descriptors of queries would all be kept from the first tile on, for want of registers in
    // memory.
    uint32_t queries = SharedAddress(DynamicSharedMemory());
    KeepInLoop(queries);
    const uint64_t q = RowsAlongK(queries);
    const uint64_t k = RowsAlongK(SharedAddress(TileOf(n & 1)));
#pragma unroll
    for (int i = 0; i < kHalfBoxes + 1; ++i) {
      const int box = i < kHalfBoxes ? half * kHalfBoxes + i : kMlaValueBoxes;
      if (i == kHalfBoxes && (half != 0 || kBoxes == kMlaValueBoxes)) continue;
#pragma unroll
      for (int step = 0; step < 4; ++step) {
        MultiplyGroupShared<T>(s, Advanced(q, box * (kRows * 128) + step * 32),
                               Advanced(k, box * kBoxBytes + step * 32), half + i + step > 0);
      }
    }
  }

  KVB_DEVICE bool IsMixed(int first_key) const {
    return !kFp8 && (first_key < state_.work.all_from || first_key + kKeys > state_.work.all_until);
  }

  // Keys out of the block's range are not live.
  KVB_DEVICE void Softmax(int first_key, int n, float (&s)[8][4], float (&max)[2], float (&sum)[2],
                          uint32_t (&p)[4][4], float (&shrink)[2]) const {
    const int column = lane_ % 4 * 2;
    uint32_t halves[2];
    __builtin_memcpy(halves, state_.live[n & 1], sizeof(halves));
    const uint32_t live[2] = {halves[0] >> column, halves[1] >> column};
    const bool all_live = (halves[0] & halves[1]) == 0xffffffffu;
    const float scale = params_.scoring.scale * kLog2E;
    // Maxima that are results are the rows' own.
    const float headroom = params_.output.max_logits.data != nullptr ? 0.0f : kHeadroom;
    const bool mixed = IsMixed(first_key);
    if (!all_live || mixed) {
      VisibleKeys sees[2] = {{0, INT32_MAX}, {0, INT32_MAX}};
      if (mixed) sees[0] = state_.sees[row_], sees[1] = state_.sees[row_ + 8];
#pragma unroll
      for (int t = 0; t < 8; ++t) {
#pragma unroll
        for (int i = 0; i < 4; ++i) {
          const int j = first_key + 8 * t + column + i % 2;
          const bool is_live = (live[t / 4] >> (8 * (t % 4) + i % 2) & 1) != 0;
          if (!is_live || j < sees[i / 2].lo || j >= sees[i / 2].hi) s[t][i] = -INFINITY;
        }
      }
    }
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      float largest = s[0][2 * i];
#pragma unroll
      for (int t = 0; t < 8; ++t) largest = fmaxf(largest, fmaxf(s[t][2 * i], s[t][2 * i + 1]));
      largest = fmaxf(largest, __shfl_xor_sync(kFullWarp, largest, 1));
      largest = fmaxf(largest, __shfl_xor_sync(kFullWarp, largest, 2)) * scale;
      const float before = max[i];
      if (largest > before + headroom) max[i] = largest;
      const float shift = max[i] == -INFINITY ? 0.0f : max[i];
      shrink[i] = Exp2(before - shift);
      float added = 0;
#pragma unroll
      for (int t = 0; t < 8; ++t) {
        const float low = Exp2(fmaf(s[t][2 * i], scale, -shift));
        const float high = Exp2(fmaf(s[t][2 * i + 1], scale, -shift));
        added += low + high;
        p[t / 2][t % 2 * 2 + i] = T::Pack(low, high);
      }
      sum[i] = sum[i] * shrink[i] + added;
    }
  }

  KVB_DEVICE void StoreProbabilities(const uint32_t (&p)[4][4], const float (&shrink)[2]) const {
#pragma unroll
    for (int step = 0; step < 4; ++step) {
      state_.p[step][thread_] = {p[step][0], p[step][1], p[step][2], p[step][3]};
    }
    state_.shrink[thread_] = make_float2(shrink[0], shrink[1]);
  }

  // Before values of tile n are added.
  KVB_DEVICE void Prepare(int first_key, int n, const float (&shrink)[2]) {
    if (__any_sync(kFullWarp, shrink[0] != 1 || shrink[1] != 1)) {
#pragma unroll
      for (int h = 0; h < 2; ++h) {
#pragma unroll
        for (int t = 0; t < 16; ++t) {
          o_[h][t][0] *= shrink[0], o_[h][t][1] *= shrink[0];
          o_[h][t][2] *= shrink[1], o_[h][t][3] *= shrink[1];
        }
      }
    }
    if (IsMixed(first_key)) GuardValues(first_key, n);
  }

  // Starts the addition of tile n's values in this warpgroup's columns.
  KVB_DEVICE void MultiplyValues(int n, const uint32_t (&p)[4][4]) {
    const uint64_t v =
        RowsAcrossK(SharedAddress(TileOf(n & 1)) + group_ * kHalfBoxes * kBoxBytes, kBoxBytes);
#pragma unroll
    for (int step = 0; step < 4; ++step) {
#pragma unroll
      for (int h = 0; h < 2; ++h) {
        MultiplyGroupRegisters<T, 16>(o_[h], p[step],
                                      Advanced(v, h * 2 * kBoxBytes + step * 16 * 128));
      }
    }
  }

  // Keys that only some rows see: what is not finite of their values is given to those rows and
  // taken out of the tile. Scores of the tile are done.
  KVB_DEVICE void GuardValues(int first_key, int n) {
    unsigned char* boxes = TileOf(n & 1) + group_ * kHalfBoxes * kBoxBytes;
    const VisibleKeys sees[2] = {state_.sees[row_], state_.sees[row_ + 8]};
    const MlaWork& work = state_.work;
#pragma unroll 1
    for (int key = 0; key < kKeys; ++key) {
      const int j = first_key + key;
      if (j >= work.all_from && j < work.all_until) continue;
#pragma unroll
      for (int h = 0; h < 2; ++h) {
#pragma unroll
        for (int t = 0; t < 16; ++t) {
          const uint32_t bits = *reinterpret_cast<const uint32_t*>(
              boxes + (2 * h + t / 8) * kBoxBytes + PieceAt(key, t % 8) + lane_ % 4 * 4);
          if (!AnyNotFinite<T>(bits)) continue;
          const float2 value = T::Unpack(bits);
#pragma unroll
          for (int i = 0; i < 2; ++i) {
            if (j < sees[i].lo || j >= sees[i].hi) continue;
            o_[h][t][2 * i] += value.x, o_[h][t][2 * i + 1] += value.y;
          }
        }
      }
    }
    NamedBarrierSync(kOneConsumer + group_, 128);
#pragma unroll 1
    for (int key = 0; key < kKeys; ++key) {
      const int j = first_key + key;
      if (j >= work.all_from && j < work.all_until) continue;
      auto* pair = reinterpret_cast<uint32_t*>(boxes + thread_ / 32 * kBoxBytes +
                                               PieceAt(key, lane_ / 4) + lane_ % 4 * 4);
      if (AnyNotFinite<T>(*pair)) *pair = 0;
    }
    FenceForAsyncProxy();
    NamedBarrierSync(kOneConsumer + group_, 128);
  }

  // Factors of the rows, for both consumers, and their statistics.
  KVB_DEVICE void FinishRows(int piece, const float (&max)[2], float (&sum)[2]) {
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      sum[i] += __shfl_xor_sync(kFullWarp, sum[i], 1);
      sum[i] += __shfl_xor_sync(kFullWarp, sum[i], 2);
      const int r = row_ + 8 * i;
      RowResult result;
      if (r < state_.work.rows) {
        const int head = (state_.work.m0 + r) % params_.num_heads;
        result = ResultOf(params_.scoring, head, max[i] * kLn2, sum[i]);
      }
      if (lane_ % 4 != 0) continue;
      state_.results[r] = make_float2(result.factor, result.lse);
      if (r < state_.work.rows) {
        StoreStatistics(params_, state_.work, r, piece, max[i] * kLn2, sum[i], result.lse);
      }
    }
  }

  // Sums go through the tiles, which nobody uses any more, so that the rest is a short loop: what
  // is executed once is not in the instruction caches, and a few thousand instructions of it took
  // as long as three tiles. By warps: each has its own 16 rows.
  KVB_DEVICE void Write(int piece) {
    // Four rows that are stored at a time are in different banks.
    constexpr int kRowBytes = 256 * 4 + 32;
    static_assert(kRows * kRowBytes <= kTileBytes);
    unsigned char* sums = TileOf(group_) + thread_ / 32 * (16 * kRowBytes);
    unsigned char* mine = sums + lane_ / 4 * kRowBytes + lane_ % 4 * 8;
#pragma unroll
    for (int i = 0; i < 2; ++i) {
#pragma unroll
      for (int t = 0; t < 32; ++t) {
        const float(&pair)[4] = o_[t / 16][t % 16];
        *reinterpret_cast<float2*>(mine + i * 8 * kRowBytes + t * 32) =
            make_float2(pair[2 * i], pair[2 * i + 1]);
      }
    }
    __syncwarp();
    const AttendOutput& output = params_.output;
    const bool in_fours = (output.out.row_stride | output.out.head_stride |
                           output.out_outer_stride | output.out_piece_stride) %
                              4 ==
                          0;
    // Of a row that lane n % 16 knows.
    const int own = thread_ / 32 * 16 + lane_ % 16;
    float2 result = make_float2(0, 0);
    if (own < state_.work.rows) result = state_.results[own];
    // Partial states without keys are not read.
    const bool writes =
        own < state_.work.rows && (params_.pieces.count == 1 || result.y != -INFINITY);
    const int64_t own_at = writes ? OutAt(params_, state_.work, own, piece) + group_ * 256 : -1;
#pragma unroll 2
    for (int r = 0; r < 16; ++r) {
      const int64_t at = __shfl_sync(kFullWarp, own_at, r);
      const float factor = __shfl_sync(kFullWarp, result.x, r);
      if (at < 0) continue;
#pragma unroll
      for (int n = 0; n < 2; ++n) {
        const int column = n * 128 + lane_ * 4;
        float4 four = *reinterpret_cast<const float4*>(sums + r * kRowBytes + column * 4);
        // +0 of rows without keys, whatever the sums.
        four.x = factor == 0 ? 0.0f : four.x * factor,
        four.y = factor == 0 ? 0.0f : four.y * factor;
        four.z = factor == 0 ? 0.0f : four.z * factor,
        four.w = factor == 0 ? 0.0f : four.w * factor;
        StoreFour(at + column, four, in_fours);
      }
    }
  }

  KVB_DEVICE void StoreFour(int64_t at, const float4& four, bool in_fours) const {
    const Rows& out = params_.output.out;
    if (!in_fours || out.element == Element::kF32) {
      StoreOutPair(out, at, four.x, four.y);
      StoreOutPair(out, at + 2, four.z, four.w);
      return;
    }
    const bool is_f16 = out.element == Element::kF16;
    *reinterpret_cast<uint2*>(static_cast<uint16_t*>(out.data) + at) =
        is_f16 ? make_uint2(F16::Pack(four.x, four.y), F16::Pack(four.z, four.w))
               : make_uint2(Bf16::Pack(four.x, four.y), Bf16::Pack(four.z, four.w));
  }

  const AttendRowsParams& params_;
  BlockState& state_;
  const int group_;
  int thread_, lane_, row_;
  float o_[2][16][4];
};

}  // namespace kvblocks::attention::cuda::mla_rows64

#endif  // KVBLOCKS_ATTENTION_CUDA_KERNELS_MLA_ROWS64_CONSUMER_H_
