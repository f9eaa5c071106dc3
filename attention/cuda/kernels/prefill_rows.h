// Device code that both prefill kernels share: what softmax makes of scores, what becomes of values
// that are not finite, and how rows are written.
//
// Functions take a warp's 16 rows of accumulators as MultiplyM16N8K16 leaves them; the lane has row
// `row` of the block's tile in [.][0] and [.][1], and row + 8 in [.][2] and [.][3].

#ifndef KVBLOCKS_ATTENTION_CUDA_KERNELS_PREFILL_ROWS_H_
#define KVBLOCKS_ATTENTION_CUDA_KERNELS_PREFILL_ROWS_H_

#include "attention/cuda/device/gpu.h"
#include "attention/cuda/device/numbers.h"
#include "attention/cuda/device/ptx.h"
#include "attention/cuda/kernels/cache_codes.h"
#include "attention/cuda/kernels/params.h"
#include "attention/cuda/kernels/prefill.h"
#include "attention/cuda/kernels/prefill_tile.h"

namespace kvblocks::attention::cuda {

inline constexpr float kLog2E = 1.4426950408889634f;
inline constexpr float kLn2 = 0.6931471805599453f;

// --- Scores ---

// cap * tanh(s / cap), within 2e-7 * cap.
KVB_DEVICE float SoftCap(float s, float cap, float twice_log2e_per_cap) {
  const float e = Exp2(s * twice_log2e_per_cap);
  return cap - __fdividef(2 * cap, e + 1);
}

// Scale, soft cap and ALiBi: what is left is to be multiplied by log2(e) alone.
template <int kTiles>
KVB_DEVICE void ModifyScores(const PrefillParams& params, const RowTile& tile,
                             float (&scores)[kTiles][4], int row, int32_t key0) {
  const Scoring& scoring = params.scoring;
  const float cap = scoring.soft_cap, scale = scoring.scale * tile.k_scale;
  const float per_cap = cap > 0 ? 2 * kLog2E / cap : 0;
#pragma unroll
  for (int half = 0; half < 2; ++half) {
    const int mine = row + 8 * half;
    const bool sloped = scoring.alibi_slopes != nullptr && mine < tile.num_rows;
    const float slope = sloped ? scoring.alibi_slopes[tile.HeadOf(mine)] : 0;
    const int32_t first =
        sloped ? key0 + static_cast<int32_t>(threadIdx.x % 4 * 2) - tile.PositionOf(params, mine)
               : 0;
#pragma unroll
    for (int j = 0; j < kTiles; ++j) {
#pragma unroll
      for (int i = 0; i < 2; ++i) {
        float s = scores[j][2 * half + i] * scale;
        if (cap > 0) s = SoftCap(s, cap, per_cap);
        scores[j][2 * half + i] = s + slope * static_cast<float>(first + 8 * j + i);
      }
    }
  }
}

// Keys that a row sees, relative to key0; those of bad blocks among them.
KVB_DEVICE KeyRange RangeOfRow(const PrefillParams& params, const RowTile& tile, int row,
                               int32_t key0) {
  if (row >= tile.num_rows) return {0, 0};
  const KeyRange keys = VisibleFrom(params.scoring, tile.PositionOf(params, row), tile.kv_len);
  return {keys.begin - key0, keys.end - key0};
}

// -infinity for hidden keys, whatever their scores are. bad: a bit per key, set for keys of bad
// blocks; null for none.
template <int kTiles>
KVB_DEVICE void HideScores(const PrefillParams& params, const RowTile& tile,
                           float (&scores)[kTiles][4], int row, int32_t key0, const uint32_t* bad) {
  const int t2 = static_cast<int>(threadIdx.x % 4 * 2);
#pragma unroll
  for (int half = 0; half < 2; ++half) {
    const KeyRange keys = RangeOfRow(params, tile, row + 8 * half, key0);
    const int begin = keys.begin - t2, end = keys.end - t2;
#pragma unroll
    for (int j = 0; j < kTiles; ++j) {
#pragma unroll
      for (int i = 0; i < 2; ++i) {
        if (8 * j + i < begin || 8 * j + i >= end) scores[j][2 * half + i] = -Infinity();
      }
    }
  }
  if (bad == nullptr) return;
#pragma unroll
  for (int j = 0; j < kTiles; ++j) {
    const uint32_t bits = bad[j / 4] >> (8 * (j % 4) + t2);
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      if ((bits >> i % 2 & 1) != 0) scores[j][i] = -Infinity();
    }
  }
}

// A row's maximum follows its scores when these are this many binary orders above it: weights of up
// to 2^8 are as exact, and what was accumulated seldom has to shrink.
inline constexpr float kHeadroom = 8;

// Scores become weights; by the whole warp. Maxima of the lane's two rows follow their scores if
// one in the warp is so far above: only then do the four lanes of a row, which keep the same
// maximum, tell each other what they have, and true comes back. shrink: then what values so far are
// to be multiplied by. Sums are those of this lane alone.
template <int kTiles>
KVB_DEVICE bool ExponentiateRows(float (&scores)[kTiles][4], float log2_scale, float (&maximum)[2],
                                 float (&sums)[2], float (&shrink)[2]) {
  constexpr int kParts = 4;  // so that maxima do not wait for each other
  float part[2][kParts];
#pragma unroll
  for (int j = 0; j < kTiles; ++j) {
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const float both = fmaxf(scores[j][2 * half], scores[j][2 * half + 1]);
      part[half][j % kParts] = j < kParts ? both : fmaxf(part[half][j % kParts], both);
    }
  }
  float highest[2];
  bool above = false;
  const float headroom = log2_scale > 0 ? kHeadroom / log2_scale : Infinity();
#pragma unroll
  for (int half = 0; half < 2; ++half) {
    highest[half] = fmaxf(fmaxf(part[half][0], part[half][1]), fmaxf(part[half][2], part[half][3]));
    above |= highest[half] > maximum[half] + headroom;
    shrink[half] = 1;
  }
  const bool grown = __any_sync(kFullWarp, above) != 0;
  if (grown) [[unlikely]] {
#pragma unroll
    for (int lanes = 1; lanes <= 2; ++lanes) {
      const float other[2] = {__shfl_xor_sync(kFullWarp, highest[0], lanes),
                              __shfl_xor_sync(kFullWarp, highest[1], lanes)};
      highest[0] = fmaxf(highest[0], other[0]);
      highest[1] = fmaxf(highest[1], other[1]);
    }
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      if (!(highest[half] > maximum[half] + headroom)) continue;
      shrink[half] = Exp2(maximum[half] * log2_scale - highest[half] * log2_scale);
      maximum[half] = highest[half];
      sums[half] *= shrink[half];
    }
  }
  float subtracted[2], added[2][2] = {{0, 0}, {0, 0}};
#pragma unroll
  for (int half = 0; half < 2; ++half) {
    subtracted[half] = maximum[half] == -Infinity() ? 0 : maximum[half] * log2_scale;
  }
#pragma unroll
  for (int j = 0; j < kTiles; ++j) {
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      const float weight = Exp2(scores[j][i] * log2_scale - subtracted[i / 2]);
      scores[j][i] = weight;
      added[i / 2][i % 2] += weight;
    }
  }
#pragma unroll
  for (int half = 0; half < 2; ++half) sums[half] += added[half][0] + added[half][1];
  return grown;
}

// --- Values that are not finite ---
//
// In a tile of keys that some rows see less of than others, infinities and NaN among the values
// must not meet the weights of 0 that hidden keys have: they are added where they are seen, then
// zeroed. Values are columns of 64 elements of kKeys rows of 128 bytes with permuted pieces.

// Of two elements of 16 bits, the bits of those that are infinities or NaN.
template <typename T>
KVB_DEVICE uint32_t NonFiniteHalves(uint32_t pair) {
  constexpr uint32_t kExponent = T::kIsBf16 ? 0x7f80u : 0x7c00u;
  uint32_t mask = 0;
  if ((pair & kExponent) == kExponent) mask |= 0xffffu;
  if ((pair >> 16 & kExponent) == kExponent) mask |= 0xffff0000u;
  return mask;
}

// Nonzero in the upper bit of a half if one of the elements there is: an exponent of all ones
// carries into the sign when its lowest bit is added.
KVB_DEVICE uint32_t NonFiniteCarries(const uint4& x, bool bf16) {
  const uint32_t exponents = bf16 ? 0x7f807f80u : 0x7c007c00u;
  const uint32_t lowest = bf16 ? 0x00800080u : 0x04000400u;
  return (((x.x & exponents) + lowest) | ((x.y & exponents) + lowest) |
          ((x.z & exponents) + lowest) | ((x.w & exponents) + lowest)) &
         0x80008000u;
}

// Whether this thread's share of the pieces has one.
template <typename T, int kBytes>
KVB_DEVICE bool FindNonFinite(const unsigned char* values, int thread, int threads) {
  uint32_t carried = 0;
#pragma unroll 4
  for (int at = thread * 16; at < kBytes; at += threads * 16) {
    carried |= NonFiniteCarries(*reinterpret_cast<const uint4*>(values + at), T::kIsBf16);
  }
  return carried != 0;
}

template <typename T, int kBytes>
KVB_DEVICE void ZeroNonFinite(unsigned char* values, int thread, int threads) {
  for (int at = thread * 16; at < kBytes; at += threads * 16) {
    uint4& x = *reinterpret_cast<uint4*>(values + at);
    x.x &= ~NonFiniteHalves<T>(x.x);
    x.y &= ~NonFiniteHalves<T>(x.y);
    x.z &= ~NonFiniteHalves<T>(x.z);
    x.w &= ~NonFiniteHalves<T>(x.w);
  }
}

// Into this lane's accumulators of a warp's 16 rows.
template <typename T, int kKeys, int kTiles>
KVB_DEVICE void AddNonFinite(const PrefillParams& params, const RowTile& tile,
                             const unsigned char* values, float (&out)[kTiles][4], int row,
                             int32_t key0) {
  const KeyRange low = RangeOfRow(params, tile, row, key0);
  const KeyRange high = RangeOfRow(params, tile, row + 8, key0);
  for (int key = 0; key < kKeys; ++key) {
    const bool in_low = key >= low.begin && key < low.end;
    const bool in_high = key >= high.begin && key < high.end;
#pragma unroll
    for (int d = 0; d < kTiles; ++d) {
      const uint32_t pair = *reinterpret_cast<const uint32_t*>(
          values + (d / 8 * kKeys + key) * 128 + ((d % 8 ^ (key & 7)) << 4) + threadIdx.x % 4 * 4);
      const uint32_t special = NonFiniteHalves<T>(pair);
      if (special == 0) continue;
      const float2 both = T::Unpack(pair & special);
      if (in_low) out[d][0] += both.x, out[d][1] += both.y;
      if (in_high) out[d][2] += both.x, out[d][3] += both.y;
    }
  }
}

// --- Outputs ---

// How a row ends: its factor for the accumulated values, and its lse.
struct RowEnd {
  float factor = 0, lse = 0;
};
// maximum and sum of the row's exponentials, the maximum in units of which `log2_scale` makes
// binary logarithms.
KVB_DEVICE RowEnd EndRow(const PrefillParams& params, const RowTile& tile, int32_t row,
                         float maximum, float sum, float log2_scale) {
  RowEnd end;
  if (sum == 0) {
    end.lse = -Infinity();
    return end;  // nothing visible
  }
  const float maximum2 = maximum * log2_scale;
  end.lse = (maximum2 + log2f(sum)) * kLn2;
  float total = sum;
  if (params.scoring.sinks != nullptr) {
    total += exp2f(params.scoring.sinks[tile.HeadOf(row)] * kLog2E - maximum2);
  }
  end.factor = __fdividef(tile.v_scale, total);
  if (params.out_scale > 0) end.factor /= params.out_scale;
  return end;
}

// Two codes, the first in the lower byte.
KVB_DEVICE uint16_t EncodePair(bool e4m3, float low, float high) {
#if !defined(KVBLOCKS_CUDA_EMULATION) && defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 890
  uint16_t codes;
  if (e4m3) {
    asm("cvt.rn.satfinite.e4m3x2.f32 %0, %1, %2;" : "=h"(codes) : "f"(high), "f"(low));
  } else {
    asm("cvt.rn.satfinite.e5m2x2.f32 %0, %1, %2;" : "=h"(codes) : "f"(high), "f"(low));
  }
  return codes;
#else
  const uint32_t first = e4m3 ? E4m3::FromFloat(low) : E5m2::FromFloat(low);
  const uint32_t second = e4m3 ? E4m3::FromFloat(high) : E5m2::FromFloat(high);
  return static_cast<uint16_t>(first | second << 8);
#endif
}

// Leaves what this lane's two rows of a warp's 16 are so far as a piece's states, in as few
// instructions as possible: in short calls each is fetched from memory. kScaled: values have a
// scale.
template <bool kScaled, int kTiles>
KVB_DEVICE void LeaveStates(const PrefillParams& params, const RowTile& tile,
                            const float (&out)[kTiles][4], int row, const float (&maximum)[2],
                            const float (&sums)[2], float log2_scale) {
  const int t2 = static_cast<int>(threadIdx.x % 4 * 2);
#pragma unroll
  for (int half = 0; half < 2; ++half) {
    float sum = sums[half];
    sum += __shfl_xor_sync(kFullWarp, sum, 1);
    sum += __shfl_xor_sync(kFullWarp, sum, 2);
    const int mine = row + 8 * half;
    if (mine >= tile.num_rows) continue;
    const int64_t token = tile.query_start + tile.TokenOf(mine);
    const int64_t state =
        (int64_t{tile.piece} * params.num_tokens + token) * params.num_heads + tile.HeadOf(mine);
    if (t2 == 0) {
      reinterpret_cast<float2*>(params.pieces.stats)[state] =
          make_float2(maximum[half] * log2_scale, sum);
    }
    // Four lanes fill a sector.
    float* to = params.pieces.outs + state * params.value_dim + t2;
    const float scale = kScaled ? tile.v_scale : 1;
#pragma unroll
    for (int d = 0; d < kTiles; ++d) {
      if (d * 8 >= params.value_dim) continue;
      *reinterpret_cast<float2*>(to + d * 8) =
          make_float2(out[d][2 * half] * scale, out[d][2 * half + 1] * scale);
    }
  }
}

// Ends this lane's two rows of a warp's 16 and leaves their outputs: as codes in place, or as
// 16-bit rows in `staged`, columns of 64 elements of kRows rows of 128 bytes with permuted pieces.
template <typename T, int kRows, int kTiles>
KVB_DEVICE void FinishRows(const PrefillParams& params, const RowTile& tile,
                           const float (&out)[kTiles][4], int row, const float (&maximum)[2],
                           const float (&sums)[2], float log2_scale, unsigned char* staged) {
  const int t2 = static_cast<int>(threadIdx.x % 4 * 2);
  float factor[2];
  int64_t at[2];  // of codes; -1: no such row
#pragma unroll
  for (int half = 0; half < 2; ++half) {
    float sum = sums[half];
    sum += __shfl_xor_sync(kFullWarp, sum, 1);
    sum += __shfl_xor_sync(kFullWarp, sum, 2);
    const int mine = row + 8 * half;
    factor[half] = 0;
    at[half] = -1;
    if (mine >= tile.num_rows) continue;
    const RowEnd end = EndRow(params, tile, mine, maximum[half], sum, log2_scale);
    const int64_t token = tile.query_start + tile.TokenOf(mine);
    const int32_t head = tile.HeadOf(mine);
    if (t2 == 0 && params.lse != nullptr) {
      params.lse[token * params.lse_row_stride + head * params.lse_head_stride] = end.lse;
    }
    factor[half] = end.factor;
    at[half] = token * params.out.row_stride + head * params.out.head_stride;
  }
  // A factor of 0 means +0, whatever was accumulated.
  const auto value = [&](int d, int i) {
    return factor[i / 2] == 0 ? 0.0f : out[d][i] * factor[i / 2];
  };
  if (params.out_scale <= 0) {
    unsigned char* to = staged + row * 128 + t2 * 2;
#pragma unroll
    for (int d = 0; d < kTiles; ++d) {
      // Rows r and r + 8 are permuted alike.
      unsigned char* piece = to + d / 8 * kRows * 128 + (((d % 8) ^ (row & 7)) << 4);
      *reinterpret_cast<uint32_t*>(piece) = T::Pack(value(d, 0), value(d, 1));
      *reinterpret_cast<uint32_t*>(piece + 8 * 128) = T::Pack(value(d, 2), value(d, 3));
    }
    return;
  }
  const bool e4m3 = params.out.element == Element::kF8E4M3;
  uint8_t* codes = static_cast<uint8_t*>(params.out.data);
#pragma unroll
  for (int d = 0; d < kTiles; ++d) {
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      if (at[half] < 0 || d * 8 >= params.value_dim) continue;
      *reinterpret_cast<uint16_t*>(codes + at[half] + d * 8 + t2) =
          EncodePair(e4m3, value(d, 2 * half), value(d, 2 * half + 1));
    }
  }
}

// Rows from `first` on that a warp staged, to where they belong.
template <int kRows, int kColumns>
KVB_DEVICE void StoreStagedRows(const PrefillParams& params, const RowTile& tile,
                                const unsigned char* staged, int first, int count) {
  const int lane = static_cast<int>(threadIdx.x % 32), piece = lane % 8;
  for (int row = first + lane / 8; row < first + count && row < tile.num_rows; row += 4) {
    uint16_t* to = static_cast<uint16_t*>(params.out.data) +
                   (tile.query_start + tile.TokenOf(row)) * params.out.row_stride +
                   tile.HeadOf(row) * params.out.head_stride;
#pragma unroll
    for (int column = 0; column < kColumns; ++column) {
      if (column * 64 + piece * 8 >= params.value_dim) continue;
      *reinterpret_cast<uint4*>(to + column * 64 + piece * 8) = *reinterpret_cast<const uint4*>(
          staged + (column * kRows + row) * 128 + ((piece ^ (row & 7)) << 4));
    }
  }
}

// Codes of 8 bits in a tile for wgmma, made into 16-bit elements where they are. Device code.
//
// A tile is columns of 64 elements of kTileRows rows: 128 bytes a row, its 16-byte pieces permuted
// by piece ^ row % 8. Codes of a row come permuted alike, in the last column: at most 128 bytes,
// which what becomes of them covers. So a tile of codes needs no memory of its own, and rows nobody
// but the warp that expands them.

// Where codes of rows of kDim elements lie in their tile.
template <int kDim, int kTileRows>
inline constexpr int kCodesOf = (kDim / 64 - 1) * kTileRows * 128;

namespace internal {

template <typename T, typename Code, int kDim, int kTileRows>
KVB_DEVICE void ExpandRowsOf(unsigned char* tile, int first, int lane) {
  // A lane takes 16 codes of a row, which become two pieces.
  constexpr int kLanes = kDim / 16, kRowsAtOnce = 32 / kLanes, kBatch = 2;
  const int piece = lane % kLanes;
  // Lanes of the second column begin with their second piece: its banks are left by the others.
  const int turned = piece / 4;
  first += lane / kLanes;
#pragma unroll 1
  for (int done = 0; done < 32; done += kBatch * kRowsAtOnce) {
    uint4 codes[kBatch];
#pragma unroll
    for (int i = 0; i < kBatch; ++i) {
      const int row = first + done + i * kRowsAtOnce;
      codes[i] = *reinterpret_cast<const uint4*>(tile + kCodesOf<kDim, kTileRows> + row * 128 +
                                                 (piece ^ row % 8) * 16);
    }
    __syncwarp();  // what others have read is overwritten
#pragma unroll
    for (int i = 0; i < kBatch; ++i) {
      const int row = first + done + i * kRowsAtOnce;
      unsigned char* const to = tile + (turned * kTileRows + row) * 128;
      const uint4 low = EightAs<T, Code>(make_uint2(codes[i].x, codes[i].y));
      const uint4 high = EightAs<T, Code>(make_uint2(codes[i].z, codes[i].w));
      const int at = piece % 4 * 2 ^ row % 8;
      *reinterpret_cast<uint4*>(to + (at ^ turned) * 16) = turned != 0 ? high : low;
      *reinterpret_cast<uint4*>(to + (at ^ turned ^ 1) * 16) = turned != 0 ? low : high;
    }
  }
}

}  // namespace internal

// Of 32 rows from `first` on, a multiple of 8; by a whole warp, for plain loads after __syncwarp().
template <typename T, int kDim, int kTileRows>
KVB_DEVICE void ExpandRows(Element element, unsigned char* tile, int first, int lane) {
  static_assert(kDim == 64 || kDim == 128);
  switch (element) {
    case Element::kF8E4M3:
      return internal::ExpandRowsOf<T, E4m3Pairs, kDim, kTileRows>(tile, first, lane);
    case Element::kF8E5M2:
      return internal::ExpandRowsOf<T, E5m2Pairs, kDim, kTileRows>(tile, first, lane);
    default:
      return internal::ExpandRowsOf<T, Int8Pairs, kDim, kTileRows>(tile, first, lane);
  }
}

}  // namespace kvblocks::attention::cuda

#endif  // KVBLOCKS_ATTENTION_CUDA_KERNELS_PREFILL_ROWS_H_
