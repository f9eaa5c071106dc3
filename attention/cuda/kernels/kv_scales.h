// Scales of quantised caches: the largest magnitudes of up to three tensors, divided.
//
// Values that are not finite are left out and flagged; a tensor of zeros has scale 1. Every value is
// read once, by a first launch that leaves maxima of its blocks in the workspace for a second.

#ifndef KVBLOCKS_ATTENTION_CUDA_KERNELS_KV_SCALES_H_
#define KVBLOCKS_ATTENTION_CUDA_KERNELS_KV_SCALES_H_

#include <cstdint>

#include "kvblocks/attention/cuda/kernels/params.h"
#include "kvblocks/attention/cuda/kernels/runtime.h"

namespace kvblocks::attention::cuda {

struct ScaleTask {
  ConstRows from;  // null data: none
  int64_t tokens = 0;
  int32_t heads = 1, dim = 0;
  float divisor = 1;
  float* to = nullptr;
  int64_t to_stride = 1;
  int32_t num_scales = 1;  // 1 or heads
};
struct KvScalesParams {
  ScaleTask tasks[3];
};
// Bytes of workspace for tensors of so many heads at most.
int64_t KvScalesWorkspaceBytes(int64_t most_scales);
Error LaunchKvScales(const LaunchContext& context, const KvScalesParams& params);

}  // namespace kvblocks::attention::cuda

#endif  // KVBLOCKS_ATTENTION_CUDA_KERNELS_KV_SCALES_H_
