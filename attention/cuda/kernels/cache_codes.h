// Codes of quantised caches as pairs of 16-bit floats, made in registers where fragments are.
//
// Every code is exact in f16, whatever type the queries have. Of the four codes of a word,
// Pair<i, j>(word) gives bytes i (lower half) and j, Neighbours the pairs (0, 1) and (2, 3),
// EveryOther (0, 2) and (1, 3); both at once take fewer instructions. NaN codes give NaN. A cache
// that holds 16-bit elements has the tag SameType. Device code: included by .cu files only.

#ifndef KVBLOCKS_ATTENTION_CUDA_KERNELS_CACHE_CODES_H_
#define KVBLOCKS_ATTENTION_CUDA_KERNELS_CACHE_CODES_H_

#include "attention/cuda/device/gpu.h"
#include "attention/cuda/device/numbers.h"
#include "attention/cuda/device/ptx.h"

namespace kvblocks::attention::cuda {

struct SameType {
  static constexpr int kBytes = 2;
  static constexpr bool kQueriesToo = false;
};
// Shared by the codes that queries do not have.
struct KeysOnly {
  static constexpr int kBytes = 1;
  static constexpr bool kQueriesToo = false;
};

namespace internal {

KVB_DEVICE uint32_t AddF16Pairs(uint32_t a, uint32_t b) {
#ifdef KVBLOCKS_CUDA_EMULATION
  const float2 x = F16::Unpack(a), y = F16::Unpack(b);
  return F16::Pack(x.x + y.x, x.y + y.y);
#else
  uint32_t sum;
  asm("add.f16x2 %0, %1, %2;" : "=r"(sum) : "r"(a), "r"(b));
  return sum;
#endif
}
KVB_DEVICE uint32_t MultiplyF16Pairs(uint32_t a, uint32_t b) {
#ifdef KVBLOCKS_CUDA_EMULATION
  const float2 x = F16::Unpack(a), y = F16::Unpack(b);
  return F16::Pack(x.x * y.x, x.y * y.y);
#else
  uint32_t product;
  asm("mul.f16x2 %0, %1, %2;" : "=r"(product) : "r"(a), "r"(b));
  return product;
#endif
}

}  // namespace internal

struct CodePairs {
  uint32_t first, second;
};

// Both by Pair.
template <typename Code>
struct PairByPair {
  static KVB_DEVICE CodePairs Neighbours(uint32_t codes) {
    return {Code::template Pair<0, 1>(codes), Code::template Pair<2, 3>(codes)};
  }
  static KVB_DEVICE CodePairs EveryOther(uint32_t codes) {
    return {Code::template Pair<0, 2>(codes), Code::template Pair<1, 3>(codes)};
  }
};

struct E4m3Pairs : KeysOnly {
  // The conversion takes either half of a word as it is.
  static KVB_DEVICE CodePairs Neighbours(uint32_t codes) {
#if !defined(KVBLOCKS_CUDA_EMULATION) && defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 890
    CodePairs pairs;
    asm("{\n"
        ".reg .b16 low, high;\n"
        "mov.b32 {low, high}, %2;\n"
        "cvt.rn.f16x2.e4m3x2 %0, low;\n"
        "cvt.rn.f16x2.e4m3x2 %1, high;\n"
        "}"
        : "=r"(pairs.first), "=r"(pairs.second)
        : "r"(codes));
    return pairs;
#else
    return PairByPair<E4m3Pairs>::Neighbours(codes);
#endif
  }
  static KVB_DEVICE CodePairs EveryOther(uint32_t codes) {
    return Neighbours(PermuteBytes(codes, 0, 0x3120));
  }
  template <int kLower, int kUpper>
  static KVB_DEVICE uint32_t Pair(uint32_t codes) {
#if !defined(KVBLOCKS_CUDA_EMULATION) && defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 890
    const uint16_t two =
        static_cast<uint16_t>(PermuteBytes(codes, 0, static_cast<uint32_t>(kLower | kUpper << 4)));
    uint32_t pair;
    asm("cvt.rn.f16x2.e4m3x2 %0, %1;" : "=r"(pair) : "h"(two));
    return pair;
#else
    // Exponent and mantissa where f16 has them, then the bias mended, which is exact.
    const uint32_t high =
        PermuteBytes(codes, 0, static_cast<uint32_t>(4 | kLower << 4 | 4 << 8 | kUpper << 12));
    const uint32_t magnitude = (high & 0x7f007f00u) >> 1;
    uint32_t pair =
        internal::MultiplyF16Pairs(magnitude | (high & 0x80008000u), 0x5c005c00u);  // 256
    if ((magnitude & 0xffffu) == 0x3f80u) pair |= 0x7e00u;
    if ((magnitude >> 16) == 0x3f80u) pair |= 0x7e000000u;
    return pair;
#endif
  }
};

// Of a cache and of the queries over it.
struct E4m3PairsAndQueries : E4m3Pairs {
  static constexpr bool kQueriesToo = true;
};

struct E5m2Pairs : KeysOnly, PairByPair<E5m2Pairs> {
  // The upper byte of an f16.
  template <int kLower, int kUpper>
  static KVB_DEVICE uint32_t Pair(uint32_t codes) {
    return PermuteBytes(codes, 0, static_cast<uint32_t>(4 | kLower << 4 | 4 << 8 | kUpper << 12));
  }
};

struct Int8Pairs : KeysOnly, PairByPair<Int8Pairs> {
  // 1024 + 128 + code is an f16 whose lower byte is code + 128.
  template <int kLower, int kUpper>
  static KVB_DEVICE uint32_t Pair(uint32_t codes) {
    const uint32_t biased = PermuteBytes(
        codes ^ 0x80808080u, 0x64u, static_cast<uint32_t>(kLower | 4 << 4 | kUpper << 8 | 4 << 12));
    return internal::AddF16Pairs(biased, 0xe480e480u);  // -1152
  }
};

// Eight codes as elements of a 16-bit type.
template <typename T, typename Code>
KVB_DEVICE uint4 EightAs(uint2 codes) {
  const auto as_type = [](uint32_t pair) {
    if constexpr (!T::kIsBf16) return pair;
    const float2 both = F16::Unpack(pair);
    return T::Pack(both.x, both.y);
  };
  const CodePairs low = Code::Neighbours(codes.x), high = Code::Neighbours(codes.y);
  return make_uint4(as_type(low.first), as_type(low.second), as_type(high.first),
                    as_type(high.second));
}

}  // namespace kvblocks::attention::cuda

#endif  // KVBLOCKS_ATTENTION_CUDA_KERNELS_CACHE_CODES_H_
