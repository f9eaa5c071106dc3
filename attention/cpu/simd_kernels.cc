// Three targets are enough and keep compile times and binaries small: AVX-512, AVX2 (x86 since
// 2013) and, as what always works, SSE4 (since 2010): g++ 12 miscompiles Highway's portable one.
#if defined(__x86_64__)
#define HWY_DISABLED_TARGETS (HWY_SSSE3 | HWY_AVX3_DL)
#define HWY_BASELINE_TARGETS HWY_SSE4
#endif

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "attention/cpu/simd_kernels.cc"
// clang-format off: before whatever is compiled for each target.
#include "hwy/foreach_target.h"  // IWYU pragma: keep
// clang-format on
#include <algorithm>
#include <cmath>
#include <limits>
#include <type_traits>

#include "attention/cpu/simd_kernels.h"
#include "attention/cpu/simd_load-inl.h"
#include "hwy/contrib/math/math-inl.h"
#include "hwy/highway.h"

HWY_BEFORE_NAMESPACE();
namespace kvblocks::attention::simd {
namespace HWY_NAMESPACE {

// Accumulators of a register tile: half of the vector registers.
constexpr int kAccumulators = kLanes >= 16 ? 16 : 8;

HWY_INLINE VD LowerAsDouble(VF v) { return hn::PromoteTo(kD, hn::LowerHalf(v)); }
HWY_INLINE VD UpperAsDouble(VF v) { return hn::PromoteTo(kD, hn::UpperHalf(hn::Half<DF>(), v)); }

// Bytes [begin, end) of the pieces of keys [first, last).
HWY_INLINE void Prefetch(const Upcoming& upcoming, int first, int last, int64_t begin,
                         int64_t end) {
  if (upcoming.rows == nullptr) return;
  for (int key = first; key < last; ++key) {
    const char* row = static_cast<const char*>(upcoming.rows[key]);
    for (int64_t at = begin; at < end; at += 64) __builtin_prefetch(row + at, 0, 2);
  }
}

// Sums each of M vectors: neighbouring lanes are added, in float32 until four sums are left of each
// vector, then in float64. out[i] = factor * sum of vector i.
template <int M>
HWY_INLINE void SumDoubles(VD (&v)[M], int levels_left, VD* out) {
  if constexpr (M >= 2) {
    VD next[M / 2];
#pragma GCC unroll 16
    for (int i = 0; i < M / 2; ++i) {
      next[i] = hn::Add(hn::ConcatEven(kD, v[2 * i + 1], v[2 * i]),
                        hn::ConcatOdd(kD, v[2 * i + 1], v[2 * i]));
    }
    if (levels_left == 1) {
#pragma GCC unroll 16
      for (int i = 0; i < M / 2; ++i) out[i] = next[i];
    } else {
      SumDoubles(next, levels_left - 1, out);
    }
  }
}

template <int M, int Partials>
HWY_INLINE void SumLanes(VF (&v)[M], VD* out) {
  if constexpr (Partials > 4) {
    VF next[M / 2];
#pragma GCC unroll 16
    for (int i = 0; i < M / 2; ++i) {
      next[i] = hn::Add(hn::ConcatEven(kF, v[2 * i + 1], v[2 * i]),
                        hn::ConcatOdd(kF, v[2 * i + 1], v[2 * i]));
    }
    SumLanes<M / 2, Partials / 2>(next, out);
  } else {
    VD wide[2 * M];
#pragma GCC unroll 16
    for (int i = 0; i < M; ++i) {
      wide[2 * i] = LowerAsDouble(v[i]);
      wide[2 * i + 1] = UpperAsDouble(v[i]);
    }
    SumDoubles(wide, 2, out);
  }
}

// The sums of 16 vectors of 16 lanes, as above but cheaper: at each level one shuffle and one or
// two blends bring what two vectors have to add into place, instead of two shuffles. Vectors come
// in an order that makes the sums come out in order.
constexpr int kSumOrder[16] = {0, 4, 1, 5, 8, 12, 9, 13, 2, 6, 3, 7, 10, 14, 11, 15};

HWY_INLINE void SumSixteen(const VF (&v)[16], VD* out) {
  // v[kSumOrder[i]] is vector i of the result's order.
  VF halves[8], quarters[4];
#pragma GCC unroll 8
  for (int i = 0; i < 8; ++i) {
    halves[i] =
        hn::Add(hn::ConcatUpperLower(kF, v[i + 8], v[i]), hn::ConcatLowerUpper(kF, v[i + 8], v[i]));
  }
#pragma GCC unroll 4
  for (int i = 0; i < 4; ++i) {
    quarters[i] = hn::Add(hn::OddEven(halves[i + 4], halves[i]),
                          hn::Reverse2(kF, hn::OddEven(halves[i], halves[i + 4])));
  }
  VD pairs[4];
#pragma GCC unroll 4
  for (int i = 0; i < 4; ++i) {
    const VD low = LowerAsDouble(quarters[i]), high = UpperAsDouble(quarters[i]);
    pairs[i] = hn::Add(hn::ConcatUpperLower(kD, high, low), hn::ConcatLowerUpper(kD, high, low));
  }
#pragma GCC unroll 2
  for (int i = 0; i < 2; ++i) {
    const VD a = pairs[2 * i], b = pairs[2 * i + 1];
    out[i] = hn::Add(hn::OddEvenBlocks(b, a), hn::SwapAdjacentBlocks(hn::OddEvenBlocks(a, b)));
  }
}

// acc[r * K + k] += elements [begin, end) of row r of q times those of key k, lane by lane.
template <typename T, int R, int K>
HWY_INLINE void AddProducts(const float* HWY_RESTRICT q, const T* const (&rows)[K], int64_t dim,
                            int64_t begin, int64_t end, VF (&acc)[R * K]) {
  for (int64_t d = begin; d < end; d += kLanes) {
    if constexpr (R >= K) {
      VF key[K];
#pragma GCC unroll 16
      for (int k = 0; k < K; ++k) key[k] = LoadRow(rows[k] + d);
#pragma GCC unroll 16
      for (int r = 0; r < R; ++r) {
        const VF query = hn::LoadU(kF, q + r * dim + d);
#pragma GCC unroll 16
        for (int k = 0; k < K; ++k) acc[r * K + k] = hn::MulAdd(query, key[k], acc[r * K + k]);
      }
    } else {
      VF query[R];
#pragma GCC unroll 16
      for (int r = 0; r < R; ++r) query[r] = hn::LoadU(kF, q + r * dim + d);
#pragma GCC unroll 16
      for (int k = 0; k < K; ++k) {
        const VF key = LoadRow(rows[k] + d);
#pragma GCC unroll 16
        for (int r = 0; r < R; ++r) acc[r * K + k] = hn::MulAdd(query[r], key, acc[r * K + k]);
      }
    }
  }
}

// Narrow vectors give a lane more terms, and the error of a sum grows with their number: after so
// many elements sums of theirs are added to the others. Of 16 lanes it takes rows of 512 values to
// come to as many terms.
constexpr int64_t kSpan = kLanes >= 16 ? int64_t{1} << 40 : 8 * kLanes;

// A register tile of R rows by K keys, R * K = kAccumulators.
template <typename T, int R>
HWY_INLINE void Dots(const float* HWY_RESTRICT q, const void* const* keys, int64_t dim,
                     const double* factor, double* HWY_RESTRICT scores) {
  constexpr int K = kAccumulators / R;
  VF acc[R * K];
#pragma GCC unroll 16
  for (int i = 0; i < R * K; ++i) acc[i] = hn::Zero(kF);
  const T* rows[K];
#pragma GCC unroll 16
  for (int k = 0; k < K; ++k) rows[k] = static_cast<const T*>(keys[k]);
  AddProducts<T, R, K>(q, rows, dim, 0, std::min(dim, kSpan), acc);
  for (int64_t begin = kSpan; begin < dim; begin += kSpan) {
    VF more[R * K];
#pragma GCC unroll 16
    for (int i = 0; i < R * K; ++i) more[i] = hn::Zero(kF);
    AddProducts<T, R, K>(q, rows, dim, begin, std::min(dim, begin + kSpan), more);
#pragma GCC unroll 16
    for (int i = 0; i < R * K; ++i) acc[i] = hn::Add(acc[i], more[i]);
  }
  constexpr int kVectors = R * K / (kLanes / 2);
  VD sums[kVectors];
  if constexpr (kLanes == 16) {
    VF ordered[16];
#pragma GCC unroll 16
    for (int i = 0; i < 16; ++i) ordered[kSumOrder[i]] = acc[i];
    SumSixteen(ordered, sums);
  } else {
    SumLanes<R * K, kLanes>(acc, sums);
  }
  if constexpr (K % (kLanes / 2) == 0) {
    constexpr int kPerRow = K / (kLanes / 2);
#pragma GCC unroll 16
    for (int i = 0; i < kVectors; ++i) {
      const VD scaled = hn::Mul(sums[i], hn::Set(kD, factor[i / kPerRow]));
      hn::StoreU(scaled, kD, scores + i / kPerRow * kTileKeys + i % kPerRow * (kLanes / 2));
    }
  } else {
    static_assert(K * 4 == kLanes, "a vector holds the sums of two rows");
    const hn::Half<DD> half;
#pragma GCC unroll 16
    for (int i = 0; i < kVectors; ++i) {
      double* row = scores + 2 * i * kTileKeys;
      hn::StoreU(hn::Mul(hn::LowerHalf(sums[i]), hn::Set(half, factor[2 * i])), half, row);
      hn::StoreU(hn::Mul(hn::UpperHalf(half, sums[i]), hn::Set(half, factor[2 * i + 1])), half,
                 row + kTileKeys);
    }
  }
}

template <typename T>
void ScoreTileOf(const ScoreTileArgs& args) {
  constexpr int kGroup = 16;
  for (int first = 0; first < kTileKeys; first += kGroup) {
    if ((args.keys_seen >> first & 0xffff) == 0) continue;
    int row = 0;
    const auto run = [&](auto rows) HWY_ATTR {
      constexpr int R = decltype(rows)::value;
      for (; row + R <= args.num_rows; row += R) {
        for (int key = first; key < first + kGroup; key += kAccumulators / R) {
          if (row == 0)
            Prefetch(args.upcoming, key, key + kAccumulators / R, 0, args.upcoming.bytes);
          Dots<T, R>(args.q + row * args.dim, args.keys + key, args.dim, args.factor + row,
                     args.scores + row * kTileKeys + key);
        }
      }
    };
    run(std::integral_constant<int, 4>());
    run(std::integral_constant<int, 2>());
    run(std::integral_constant<int, 1>());
  }
}

void ScoreTileImpl(const ScoreTileArgs& args) {
  CallWithRowType(args.type, [&](auto* row) HWY_ATTR {
    ScoreTileOf<std::remove_pointer_t<decltype(row)>>(args);
  });
}

// e^x for x up to a few ulps above 0: 1.5 ulp, 0 below the smallest normal result; NaN stays NaN.
HWY_INLINE VF Exp(VF x) {
  const hn::RebindToSigned<DF> di;
  const VF magic = hn::Set(kF, 12582912.0f);  // 1.5 * 2^23: rounds to an integer in the low bits
  const VF t = hn::MulAdd(x, hn::Set(kF, 1.44269504f), magic);
  const VF n = hn::Sub(t, magic);
  VF r = hn::NegMulAdd(n, hn::Set(kF, 0.693145751953125f), x);
  r = hn::NegMulAdd(n, hn::Set(kF, 1.42860682e-6f), r);
  VF y = hn::Set(kF, 1.0f / 5040);
  y = hn::MulAdd(y, r, hn::Set(kF, 1.0f / 720));
  y = hn::MulAdd(y, r, hn::Set(kF, 1.0f / 120));
  y = hn::MulAdd(y, r, hn::Set(kF, 1.0f / 24));
  y = hn::MulAdd(y, r, hn::Set(kF, 1.0f / 6));
  y = hn::MulAdd(y, r, hn::Set(kF, 0.5f));
  y = hn::MulAdd(y, hn::Mul(r, r), r);
  y = hn::Add(y, hn::Set(kF, 1.0f));
  const auto exponent = hn::Add(hn::ShiftLeft<23>(hn::BitCast(di, t)), hn::Set(di, 127 << 23));
  const VF result = hn::Mul(y, hn::BitCast(kF, exponent));
  return hn::IfThenZeroElse(hn::Lt(x, hn::Set(kF, -87.0f)), result);
}

double SoftmaxTileImpl(double* HWY_RESTRICT scores, uint64_t* seen_keys, const ScoreRules& rules,
                       RowState* state, float* HWY_RESTRICT probabilities) {
  const uint64_t seen = *seen_keys;
  constexpr int kStep = kLanes / 2;
  const double infinity = std::numeric_limits<double>::infinity();
  const VD hidden = hn::Set(kD, -infinity);
  VD most = hidden;
  const bool plain = rules.soft_cap == 0 && rules.alibi_slope == 0 && rules.additive == nullptr;
  VD least = hn::Set(kD, infinity);
  if (plain && seen == ~uint64_t{0}) {
    for (int key = 0; key < kTileKeys; key += kStep) {
      const VD s = hn::Load(kD, scores + key);
      most = hn::Max(s, most);
      least = hn::Min(s, least);
    }
    for (int key = 0; key < kTileKeys && !hn::AllFalse(kD, hn::Eq(least, hidden)); ++key) {
      if (scores[key] == -infinity) *seen_keys &= ~(uint64_t{1} << key);
    }
  } else {
    for (int key = 0; key < kTileKeys; key += kStep) {
      VD s = hn::Load(kD, scores + key);
      if (rules.soft_cap != 0) {
        const VD cap = hn::Set(kD, rules.soft_cap);
        const VD capped = hn::Mul(cap, hn::Tanh(kD, hn::Div(s, cap)));
        s = hn::IfThenElse(hn::IsNaN(s), s, capped);
      }
      if (rules.alibi_slope != 0) {
        const VD distance = hn::Add(hn::Iota(kD, key), hn::Set(kD, rules.first_distance));
        s = hn::MulAdd(hn::Set(kD, rules.alibi_slope), distance, s);
      }
      if (rules.additive != nullptr) s = hn::Add(s, hn::LoadU(kD, rules.additive + key));
      const uint8_t bits[8] = {static_cast<uint8_t>(seen >> key)};
      s = hn::IfThenElse(hn::LoadMaskBits(kD, bits), s, hidden);
      hn::Store(s, kD, scores + key);
      most = hn::Max(s, most);
      uint8_t gone = 0;
      hn::StoreMaskBits(kD, hn::Eq(s, hidden), &gone);
      *seen_keys &= ~(uint64_t{gone} << key);
    }
  }
  const double exact_max = hn::GetLane(hn::MaxOfLanes(kD, most));
  float tile_max = static_cast<float>(exact_max);
  // Rounded down, so that the largest score weighs at least 1.
  if (tile_max > exact_max && std::isfinite(tile_max)) {
    tile_max = std::nextafter(tile_max, -std::numeric_limits<float>::infinity());
  }
  const double old_max = state->max;
  const double new_max = std::max(old_max, static_cast<double>(tile_max));
  state->max = new_max;
  // Nothing seen so far: there is no maximum to subtract.
  const VD subtract = hn::Set(kD, new_max == -infinity ? 0 : new_max);
  VF sum = hn::Zero(kF);
  const hn::Half<DF> half;
  for (int key = 0; key < kTileKeys; key += kLanes) {
    const VD low = hn::Sub(hn::Load(kD, scores + key), subtract);
    const VD high = hn::Sub(hn::Load(kD, scores + key + kStep), subtract);
    const VF p = Exp(hn::Combine(kF, hn::DemoteTo(half, high), hn::DemoteTo(half, low)));
    hn::StoreU(p, kF, probabilities + key);
    sum = hn::Add(sum, p);
  }
  const VD tile_sum = hn::Add(LowerAsDouble(sum), UpperAsDouble(sum));
  // A new maximum is the rule for a row's first tiles only.
  const double rescale = new_max == old_max ? 1 : std::exp(old_max - new_max);
  state->sum = state->sum * rescale + hn::GetLane(hn::SumOfLanes(kD, tile_sum));
  return rescale;
}

template <typename T, int R, int C>
HWY_INLINE void AccumulateColumns(const AccumulateTileArgs& args, int row, int64_t column) {
  // Each pass over the keys asks for its share of what is upcoming.
  const int64_t begin = args.upcoming.bytes * column / args.dim;
  const int64_t end = row > 0 ? begin : args.upcoming.bytes * (column + C * kLanes) / args.dim;
  VF acc[R * C];
#pragma GCC unroll 16
  for (int i = 0; i < R * C; ++i) acc[i] = hn::Zero(kF);
  const float* HWY_RESTRICT p = args.probabilities + row * kTileKeys;
  for (int key = args.begin; key < args.end; ++key) {
    const T* values = static_cast<const T*>(args.values[key]) + column;
    Prefetch(args.upcoming, key, key + 1, begin, end);
    VF value[C];
#pragma GCC unroll 16
    for (int c = 0; c < C; ++c) value[c] = LoadRow(values + c * kLanes);
#pragma GCC unroll 16
    for (int r = 0; r < R; ++r) {
      const VF weight = hn::Set(kF, p[r * kTileKeys + key]);
#pragma GCC unroll 16
      for (int c = 0; c < C; ++c) acc[r * C + c] = hn::MulAdd(weight, value[c], acc[r * C + c]);
    }
  }
#pragma GCC unroll 16
  for (int r = 0; r < R; ++r) {
    const VD rescale = hn::Set(kD, args.rescale[row + r]);
    double* HWY_RESTRICT out = args.acc + (row + r) * args.dim + column;
#pragma GCC unroll 16
    for (int c = 0; c < C; ++c) {
      double* low = out + c * kLanes;
      double* high = low + kLanes / 2;
      hn::StoreU(hn::MulAdd(hn::LoadU(kD, low), rescale, LowerAsDouble(acc[r * C + c])), kD, low);
      hn::StoreU(hn::MulAdd(hn::LoadU(kD, high), rescale, UpperAsDouble(acc[r * C + c])), kD, high);
    }
  }
}

template <typename T, int C>
HWY_INLINE void AccumulateRows(const AccumulateTileArgs& args, int64_t column) {
  int row = 0;
  for (; row + 4 <= args.num_rows; row += 4) AccumulateColumns<T, 4, C>(args, row, column);
  for (; row + 2 <= args.num_rows; row += 2) AccumulateColumns<T, 2, C>(args, row, column);
  for (; row < args.num_rows; ++row) AccumulateColumns<T, 1, C>(args, row, column);
}

template <typename T>
void AccumulateTileOf(const AccumulateTileArgs& args) {
  constexpr int kColumns = kAccumulators / 4;
  int64_t column = 0;
  for (; column + kColumns * kLanes <= args.dim; column += kColumns * kLanes) {
    AccumulateRows<T, kColumns>(args, column);
  }
  for (; column < args.dim; column += kLanes) AccumulateRows<T, 1>(args, column);
}

void AccumulateTileImpl(const AccumulateTileArgs& args) {
  CallWithRowType(args.type, [&](auto* row) HWY_ATTR {
    AccumulateTileOf<std::remove_pointer_t<decltype(row)>>(args);
  });
}

template <typename T>
bool AllFiniteOf(const T* row, int64_t n) {
  // 0 * x is NaN for infinities and NaN, and sums keep that.
  VF sum = hn::Zero(kF);
  for (int64_t d = 0; d < n; d += kLanes) sum = hn::MulAdd(LoadRow(row + d), hn::Zero(kF), sum);
  return hn::AllTrue(kF, hn::Eq(sum, hn::Zero(kF)));
}

bool AllFiniteImpl(const void* row, DType type, int64_t n) {
  return CallWithRowType(
      type, [&](auto* null) HWY_ATTR { return AllFiniteOf(static_cast<decltype(null)>(row), n); });
}

}  // namespace HWY_NAMESPACE
}  // namespace kvblocks::attention::simd
HWY_AFTER_NAMESPACE();

#if HWY_ONCE

namespace kvblocks::attention::simd {

HWY_EXPORT(ScoreTileImpl);
HWY_EXPORT(SoftmaxTileImpl);
HWY_EXPORT(AccumulateTileImpl);
HWY_EXPORT(AllFiniteImpl);

void ScoreTile(const ScoreTileArgs& args) { HWY_DYNAMIC_DISPATCH(ScoreTileImpl)(args); }
double SoftmaxTile(double* scores, uint64_t* seen, const ScoreRules& rules, RowState* state,
                   float* probabilities) {
  return HWY_DYNAMIC_DISPATCH(SoftmaxTileImpl)(scores, seen, rules, state, probabilities);
}
void AccumulateTile(const AccumulateTileArgs& args) {
  HWY_DYNAMIC_DISPATCH(AccumulateTileImpl)(args);
}
bool AllFinite(const void* row, DType type, int64_t n) {
  return HWY_DYNAMIC_DISPATCH(AllFiniteImpl)(row, type, n);
}

}  // namespace kvblocks::attention::simd

#endif  // HWY_ONCE
