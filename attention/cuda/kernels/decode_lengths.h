// How many keys of a request count and where its tiles begin: what planner and decode must agree on.
// Device code: included by .cu files only.

#ifndef KVBLOCKS_ATTENTION_CUDA_KERNELS_DECODE_LENGTHS_H_
#define KVBLOCKS_ATTENTION_CUDA_KERNELS_DECODE_LENGTHS_H_

#include "attention/cuda/device/gpu.h"

namespace kvblocks::attention::cuda {

KVB_DEVICE int ClampLength(int seq_len, int max_keys) {
  return seq_len < 0 ? 0 : seq_len > max_keys ? max_keys : seq_len;
}

// The first key of the block in which the window of the first of q_len queries begins. A window of
// 0 is none.
KVB_DEVICE int FirstKey(int length, int q_len, int window, int block_size) {
  if (window <= 0) return 0;
  const int64_t first = int64_t{length} - window - (q_len > 1 ? q_len - 1 : 0);
  return first <= 0 ? 0 : static_cast<int>(first) / block_size * block_size;
}

}  // namespace kvblocks::attention::cuda

#endif  // KVBLOCKS_ATTENTION_CUDA_KERNELS_DECODE_LENGTHS_H_
