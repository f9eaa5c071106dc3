// Lengths and sums of lengths that kernels read and no caller has, because only the device knows
// them. One launch each.

#ifndef KVBLOCKS_ATTENTION_CUDA_KERNELS_KEY_LENGTHS_H_
#define KVBLOCKS_ATTENTION_CUDA_KERNELS_KEY_LENGTHS_H_

#include <cstdint>

#include "kvblocks/attention/cuda/kernels/params.h"
#include "kvblocks/attention/cuda/kernels/runtime.h"

namespace kvblocks::attention::cuda {

// Of the part of a cascade behind the shared prefix. Lengths that leave a request fewer keys behind
// the prefix than it has queries are flagged (kLengthClamped).
struct SuffixLengthsParams {
  const int32_t* query_start_loc = nullptr;  // [R + 1]
  const int32_t* seq_lens = nullptr;         // [R]
  int32_t num_requests = 0;
  int32_t prefix = 0;
  int32_t* suffix_lens = nullptr;  // [R]
};
Error LaunchSuffixLengths(const LaunchContext& context, const SuffixLengthsParams& params);

// Where the keys of each request begin among contiguous ones. What is negative, or goes beyond the
// keys that there are, is clamped and flagged (kLengthClamped).
struct KeyStartsParams {
  const int32_t* seq_lens = nullptr;  // [R]
  int32_t num_requests = 0;
  int64_t num_keys = 0;
  int32_t* starts = nullptr;  // [R + 1]
};
Error LaunchKeyStarts(const LaunchContext& context, const KeyStartsParams& params);

// Sums of q_len * kv_len over the requests before each, for masks of ragged bits. Lengths as in
// AttendRowsParams.
struct MaskBitsParams {
  int32_t num_requests = 0;
  const int32_t* query_start_loc = nullptr;  // null: one query each
  const int32_t* seq_lens = nullptr;         // or
  const int32_t* kv_start_loc = nullptr;
  int64_t* bits_before = nullptr;  // [R]
};
Error LaunchMaskBits(const LaunchContext& context, const MaskBitsParams& params);

}  // namespace kvblocks::attention::cuda

#endif  // KVBLOCKS_ATTENTION_CUDA_KERNELS_KEY_LENGTHS_H_
