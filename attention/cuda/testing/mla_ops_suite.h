// What the suites of multi-head latent attention on tensor cores share.

#ifndef KVBLOCKS_ATTENTION_CUDA_TESTING_MLA_OPS_SUITE_H_
#define KVBLOCKS_ATTENTION_CUDA_TESTING_MLA_OPS_SUITE_H_

#include <cstdint>
#include <utility>
#include <vector>

#include "kvblocks/attention/cuda/testing/on_device.h"
#include "kvblocks/attention/ops/attention_ops.h"
#include "kvblocks/attention/testing/latent_cache.h"
#include "kvblocks/attention/testing/paged_case.h"
#include "kvblocks/attention/testing/tolerance.h"

namespace kvblocks::attention::cuda {

inline Tolerance ToleranceOf(KvLayout layout, DType type) {
  return layout == KvLayout::kMlaFp8_656 ? CudaTileScaledTolerance(type) : CudaTolerance(type);
}

inline LatentCacheOptions CacheOptions(KvLayout layout, DType type, int64_t block_size) {
  LatentCacheOptions options;
  options.layout = layout;
  options.dtype = type;
  options.latent_dim = 512, options.rotary_dim = 64;
  options.block_size = block_size;
  options.seed = block_size + 5;
  return options;
}

}  // namespace kvblocks::attention::cuda

#endif  // KVBLOCKS_ATTENTION_CUDA_TESTING_MLA_OPS_SUITE_H_
