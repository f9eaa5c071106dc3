// What kernels that select the largest of many keys have in common: sums over lanes, searches among counts,
// and the ordered output. Device code: included by .cu files only.

#ifndef KVBLOCKS_ATTENTION_CUDA_KERNELS_SELECT_SEARCH_H_
#define KVBLOCKS_ATTENTION_CUDA_KERNELS_SELECT_SEARCH_H_

#include "kvblocks/attention/cuda/device/gpu.h"
#include "kvblocks/attention/cuda/kernels/blend.h"

namespace kvblocks::attention::cuda {

// Keys by words, so that the upper ones, which most often are enough, are read by themselves. There
// are keys, of no token, up to a multiple of kWarps.
template <typename Word>
struct KeyWords {
  Word *upper, *lower;
};

inline constexpr int kSelectThreads = 512, kSelectWarps = kSelectThreads / 32;
// An interval of keys is counted by so many equal parts; so few keys of a part are compared with each other.
inline constexpr int kPartBits = 11, kParts = 1 << kPartBits;
inline constexpr uint32_t kMostListed = 256;

// Of the lanes up to this one.
KVB_DEVICE uint32_t SumUpTo(uint32_t value, int lane) {
#pragma unroll
  for (int lanes = 1; lanes < 32; lanes *= 2) {
    const uint32_t before = __shfl_up_sync(kFullWarp, value, lanes);
    if (lane >= lanes) value += before;
  }
  return value;
}
KVB_DEVICE uint32_t SumOf(const uint4& four) { return four.x + four.y + four.z + four.w; }

// What a search among counts has found, the same in all lanes: where the sum of all counts up to
// there reaches what is needed, and the sum before.
struct Found {
  uint32_t at, before;
};
// REQUIRES: before < needed; the lanes' counts reach it.
KVB_DEVICE Found FindLane(uint32_t count, uint32_t before, uint32_t needed, int lane) {
  const uint32_t up_to = before + SumUpTo(count, lane);
  const int at = __ffs(static_cast<int>(__ballot_sync(kFullWarp, up_to >= needed))) - 1;
  return {static_cast<uint32_t>(at), __shfl_sync(kFullWarp, up_to - count, at)};
}

// A lane's 32 tokens from `first` on: those of `above`, and of those of `sharing` the first, until `needed`
// are `taken` of all. Before them are num_above and `taken`.
KVB_DEVICE void StoreSelected(const SelectParams& params, uint32_t above, uint32_t sharing,
                              uint32_t num_above, uint32_t taken, uint32_t needed, int first) {
  uint32_t selected = above;
  for (uint32_t still = needed - taken; still > 0 && sharing != 0; --still) {
    selected |= sharing & (~sharing + 1);
    sharing &= sharing - 1;
  }
  int32_t* to = params.imp + (int64_t{num_above} + taken) * params.imp_stride;
#pragma unroll 1
  for (; selected != 0; selected &= selected - 1) {
    *to = first + __ffs(static_cast<int>(selected)) - 1;
    to += params.imp_stride;
  }
}

}  // namespace kvblocks::attention::cuda

#endif  // KVBLOCKS_ATTENTION_CUDA_KERNELS_SELECT_SEARCH_H_
