// Whose token it is: requests by where their tokens begin. Device code, by whole warps.

#ifndef KVBLOCKS_ATTENTION_CUDA_KERNELS_REQUEST_SEARCH_H_
#define KVBLOCKS_ATTENTION_CUDA_KERNELS_REQUEST_SEARCH_H_

#include <cstdint>

#include "kvblocks/attention/cuda/device/gpu.h"

namespace kvblocks::attention::cuda {

// The last of `count` requests that begins at or before the token, 0 without requests; those
// without tokens end where they begin. 32 probes at a time: two loads one after another up to 1024
// requests.
KVB_DEVICE int32_t FindRequestByWarp(const int32_t* starts, int64_t stride, int32_t count,
                                     int64_t token, int lane) {
  int32_t begin = 0, end = count;
  while (end - begin > 1) {
    const int32_t step = (end - begin + 31) / 32;
    const int32_t probe = begin + lane * step;
    const bool before = probe < end && starts[probe * stride] <= token;
    const unsigned all = __ballot_sync(kFullWarp, before) | 1u;
    begin += (31 - __clz(static_cast<int>(all))) * step;
    end = begin + step < end ? begin + step : end;
  }
  return begin;
}

}  // namespace kvblocks::attention::cuda

#endif  // KVBLOCKS_ATTENTION_CUDA_KERNELS_REQUEST_SEARCH_H_
