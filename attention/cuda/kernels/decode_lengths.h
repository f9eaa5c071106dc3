// How many keys of a request count and where its tiles begin: what planner and decode must agree
// on. Device code: included by .cu files only.

#ifndef KVBLOCKS_ATTENTION_CUDA_KERNELS_DECODE_LENGTHS_H_
#define KVBLOCKS_ATTENTION_CUDA_KERNELS_DECODE_LENGTHS_H_

#include "kvblocks/attention/cuda/device/gpu.h"

namespace kvblocks::attention::cuda {

KVB_DEVICE int ClampLength(int seq_len, int max_keys) {
  return seq_len < 0 ? 0 : seq_len > max_keys ? max_keys : seq_len;
}

// The keys that a query sees at most: a window's, of which it is the last, and those of its chunk up
// to itself. 0: no such limit.
struct KeyLimits {
  int window = 0, chunk = 0;
};

// The first key of the block in which those begin that the first of q_len queries sees.
KVB_DEVICE int FirstKey(int length, int q_len, KeyLimits limits, int block_size) {
  if (limits.window <= 0 && limits.chunk <= 0) return 0;
  const int position = length - (q_len > 1 ? q_len : 1);
  if (position <= 0) return 0;
  int first = 0;
  if (limits.window > 0) first = position - limits.window + 1;
  if (limits.chunk > 0) {
    const int of_chunk = position / limits.chunk * limits.chunk;
    if (of_chunk > first) first = of_chunk;
  }
  return first <= 0 ? 0 : first / block_size * block_size;
}

// Tiles of a request, at least one: an empty request still writes its output.
KVB_DEVICE int TilesOfRequest(const int32_t* seq_lens, const int32_t* query_start_loc, int b,
                              int max_keys, KeyLimits limits, int block_size, int tile) {
  int q_len = 1;
  if (query_start_loc != nullptr) q_len = query_start_loc[b + 1] - query_start_loc[b];
  const int length = q_len > 0 ? ClampLength(seq_lens[b], max_keys) : 0;
  const int keys = length - FirstKey(length, q_len, limits, block_size);
  const int tiles = keys / tile + (keys % tile != 0 ? 1 : 0);
  return tiles > 1 ? tiles : 1;
}

}  // namespace kvblocks::attention::cuda

#endif  // KVBLOCKS_ATTENTION_CUDA_KERNELS_DECODE_LENGTHS_H_
