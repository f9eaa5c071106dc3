// How many keys of a request count and where its tiles begin: what planner and decode must agree
// on. Device code: included by .cu files only.

#ifndef KVBLOCKS_ATTENTION_CUDA_KERNELS_DECODE_LENGTHS_H_
#define KVBLOCKS_ATTENTION_CUDA_KERNELS_DECODE_LENGTHS_H_

#include "kvblocks/attention/cuda/device/gpu.h"

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

// Tiles of a request, at least one: an empty request still writes its output.
KVB_DEVICE int TilesOfRequest(const int32_t* seq_lens, const int32_t* query_start_loc, int b,
                              int max_keys, int window, int block_size, int tile) {
  int q_len = 1;
  if (query_start_loc != nullptr) q_len = query_start_loc[b + 1] - query_start_loc[b];
  const int length = q_len > 0 ? ClampLength(seq_lens[b], max_keys) : 0;
  const int keys = length - FirstKey(length, q_len, window, block_size);
  const int tiles = keys / tile + (keys % tile != 0 ? 1 : 0);
  return tiles > 1 ? tiles : 1;
}

}  // namespace kvblocks::attention::cuda

#endif  // KVBLOCKS_ATTENTION_CUDA_KERNELS_DECODE_LENGTHS_H_
