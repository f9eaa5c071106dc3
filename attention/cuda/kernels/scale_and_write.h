// Scales of K and V (kv_scales.h) and the write that uses them (cache_write.h), bit for bit what both give one
// after the other.
//
// One cooperative launch where K and V are stored alike, as rows or pieces of codes; it fits every device
// that runs it alone, and begins only when all of its blocks can run. Else three launches. Needs the
// workspace of LaunchKvScales.

#ifndef KVBLOCKS_ATTENTION_CUDA_KERNELS_SCALE_AND_WRITE_H_
#define KVBLOCKS_ATTENTION_CUDA_KERNELS_SCALE_AND_WRITE_H_

#include "kvblocks/attention/cuda/kernels/cache_write.h"
#include "kvblocks/attention/cuda/kernels/kv_scales.h"
#include "kvblocks/attention/cuda/kernels/params.h"
#include "kvblocks/attention/cuda/kernels/runtime.h"

namespace kvblocks::attention::cuda {

struct ScaleAndWriteParams {
  KvScalesParams scales;   // task 1 is of K, 2 of V; 0, of queries, may be missing
  CacheWriteParams write;  // of the same K and V, whose stores have the tasks' scales
};
// REQUIRES: K and V of floats, stored as codes.
Error LaunchScaleAndWrite(const LaunchContext& context, const ScaleAndWriteParams& params);

}  // namespace kvblocks::attention::cuda

#endif  // KVBLOCKS_ATTENTION_CUDA_KERNELS_SCALE_AND_WRITE_H_
