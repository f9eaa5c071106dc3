// What the part of a cascade behind the shared prefix reads and no caller has: its lengths.
//
// Lengths that leave a request fewer keys behind the prefix than it has queries are flagged
// (kLengthClamped). One launch.

#ifndef KVBLOCKS_ATTENTION_CUDA_KERNELS_CASCADE_H_
#define KVBLOCKS_ATTENTION_CUDA_KERNELS_CASCADE_H_

#include <cstdint>

#include "kvblocks/attention/cuda/kernels/params.h"
#include "kvblocks/attention/cuda/kernels/runtime.h"

namespace kvblocks::attention::cuda {

struct SuffixLengthsParams {
  const int32_t* query_start_loc = nullptr;  // [R + 1]
  const int32_t* seq_lens = nullptr;         // [R]
  int32_t num_requests = 0;
  int32_t prefix = 0;
  int32_t* suffix_lens = nullptr;  // [R]
};

Error LaunchSuffixLengths(const LaunchContext& context, const SuffixLengthsParams& params);

}  // namespace kvblocks::attention::cuda

#endif  // KVBLOCKS_ATTENTION_CUDA_KERNELS_CASCADE_H_
