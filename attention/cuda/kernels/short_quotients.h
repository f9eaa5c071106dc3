// Quotients of 16-bit values by a scale, good for being rounded to codes: two multiplications each,
// and never a doubt. Device code.
//
// What rounding to a code depends on is the side of the middles between codes that a quotient x / s
// is on. Middles are M 2^k with M odd and below 256, values X 2^k with X below 2^11. If x / s is
// within 2^-22 of a middle, s is that near to X / M, and to no other such ratio (but for powers of
// two): they are 2^-19 apart. So of all quotients that are so near to a middle, either all are
// middles, or all are above, or all are below; which of the three, is found out once per scale. In
// the first case, and if there are none, quotients are rounded once, from 40 bits and more, which
// gives middles exactly; in the others, all quotients are moved by 2^-21, to the side on which
// those are.

#ifndef KVBLOCKS_ATTENTION_CUDA_KERNELS_SHORT_QUOTIENTS_H_
#define KVBLOCKS_ATTENTION_CUDA_KERNELS_SHORT_QUOTIENTS_H_

#include "kvblocks/attention/cuda/device/gpu.h"

namespace kvblocks::attention::cuda {

class ShortQuotients {
 public:
  // REQUIRES: all lanes of the warp are here; their scales may differ. Middles of the codes are odd
  // multiples, by factors below 64 kRounds, of powers of two.
  template <int kRounds>
  static KVB_DEVICE ShortQuotients Of(float scale) {
    int side = 0;
    for (unsigned left = kFullWarp; left != 0;) {
      const float one = __shfl_sync(kFullWarp, scale, __ffs(static_cast<int>(left)) - 1);
      const int side_of_one = SideOf<kRounds>(one);
      const bool same = __float_as_uint(one) == __float_as_uint(scale);
      if (same) side = side_of_one;
      left &= ~__ballot_sync(kFullWarp, same);
    }
    ShortQuotients quotients;
    // The inverse rounded down and what that leaves, which is never 0: infinities stay what they
    // are.
    float inverse = __fdiv_rn(1.0f, scale);
    if (fmaf(-inverse, scale, 1.0f) < 0) {
      inverse = __uint_as_float(__float_as_uint(inverse) - 1);
    }
    const float rest = fmaf(-inverse, scale, 1.0f);
    quotients.low_ = fmaf(rest, inverse, inverse * 0x1p-40f);
    quotients.high_ = inverse * (1 + 0x1p-21f * static_cast<float>(side));
    return quotients;
  }

  // Of a value of a 16-bit type. REQUIRES: IsOrdinary(scale).
  KVB_DEVICE float OfShort(float value) const { return fmaf(value, high_, value * low_); }

  // Of a float32 value, in more steps: rounded to odd, which no middle is, unless it is exact; very
  // large ones are cut. REQUIRES: as above, `scale` is that of Of.
  KVB_DEVICE float OfWide(float value, float scale) const {
    const float most = scale * 1e6f;
    const float kept = fabsf(value) > most ? copysignf(most, value) : value;
    const float guess = kept * high_;
    const float quotient = fmaf(fmaf(-guess, scale, kept), high_, guess);
    const uint32_t bits = __float_as_uint(quotient), value_bits = __float_as_uint(kept);
    const float rest = fmaf(-quotient, scale, kept);
    // Of the other sign than the value: the quotient was rounded away from zero.
    const uint32_t away = (__float_as_uint(rest) ^ value_bits) >> 31;
    const uint32_t odd = rest == 0 ? bits : (bits - away) | 1u;
    return __uint_as_float((odd & 0x7fffffffu) | (value_bits & 0x80000000u));
  }

  // Nothing under- or overflows that would not do so as a code.
  static KVB_DEVICE bool IsOrdinary(float scale) { return scale > 1e-20f && scale < 1e20f; }

 private:
  // Of middles, where quotients by `scale` are that are near to some: above (1), below (-1), or on
  // them, or nowhere (0).
  template <int kRounds>
  static KVB_DEVICE int SideOf(float scale) {
    unsigned above = 0, below = 0;
#pragma unroll
    for (int round = 0; round < kRounds; ++round) {
      const auto middle =
          static_cast<float>(64 * round + 2 * static_cast<int>(threadIdx.x % 32) + 1);
      // The number of 11 bits that is nearest to the middle times the scale, if it is near.
      const uint32_t product = __float_as_uint(middle * scale);
      const bool is_near = ((product + 2) & 0x1fffu) <= 4;
      const float value = __uint_as_float((product + 0x1000u) & ~0x1fffu);
      const float rest = fmaf(-middle, scale, value);
      above |= __ballot_sync(kFullWarp, is_near && rest > 0);
      below |= __ballot_sync(kFullWarp, is_near && rest < 0);
    }
    return above != 0 ? 1 : below != 0 ? -1 : 0;
  }

  float high_, low_;
};

}  // namespace kvblocks::attention::cuda

#endif  // KVBLOCKS_ATTENTION_CUDA_KERNELS_SHORT_QUOTIENTS_H_
