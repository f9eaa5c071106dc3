// The kernel that gathers the last tokens of requests out of a paged cache into dense rows.

#ifndef KVBLOCKS_ATTENTION_CUDA_KERNELS_GATHER_H_
#define KVBLOCKS_ATTENTION_CUDA_KERNELS_GATHER_H_

#include <cstdint>

#include "kvblocks/attention/cuda/kernels/params.h"
#include "kvblocks/attention/cuda/kernels/runtime.h"

namespace kvblocks::attention::cuda {

struct GatherOutput {
  void* data = nullptr;
  Element element = Element::kF32;
  int64_t request_stride = 0, row_stride = 0, head_stride = 0;
};

struct GatherParams {
  PagedKeys keys;
  int32_t kv_heads = 1, key_dim = 0, value_dim = 0;
  int64_t num_requests = 0;
  const int32_t* lengths = nullptr;
  int64_t seq_lens_stride = 1, lengths_stride = 1;
  int64_t row_offset = 0, rows = 0;  // M
  GatherOutput out, out_v;  // latent caches: out alone, key_dim wide
};
// Lengths that the cache, the table or `out` do not hold are cut and flagged; blocks outside the cache
// leave their rows as they are, and are flagged.
Error LaunchGather(const LaunchContext& context, const GatherParams& params);

}  // namespace kvblocks::attention::cuda

#endif  // KVBLOCKS_ATTENTION_CUDA_KERNELS_GATHER_H_
