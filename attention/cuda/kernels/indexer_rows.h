// What the indexer's and the compressor's kernels share: whose token it is, and where a row is.
// Device code.

#ifndef KVBLOCKS_ATTENTION_CUDA_KERNELS_INDEXER_ROWS_H_
#define KVBLOCKS_ATTENTION_CUDA_KERNELS_INDEXER_ROWS_H_

#include "kvblocks/attention/cuda/device/gpu.h"
#include "kvblocks/attention/cuda/kernels/indexer.h"
#include "kvblocks/attention/cuda/kernels/launch.h"
#include "kvblocks/attention/cuda/kernels/request_search.h"

namespace kvblocks::attention::cuda {

// A token's request and position; -1: padding. `last`: behind the request's tokens, or all of them.
struct TokenAt {
  int32_t request;
  int64_t position, last;
};
// By whole warps.
KVB_DEVICE TokenAt FindToken(const RowBatch& batch, int64_t token) {
  const auto start = [&](int32_t b) {
    return int64_t{batch.query_start_loc[b * batch.starts_stride]};
  };
  if (batch.num_requests == 0 || token >= start(batch.num_requests)) return {0, -1, INT64_MAX};
  const int32_t request =
      FindRequestByWarp(batch.query_start_loc, batch.starts_stride, batch.num_requests, token,
                        static_cast<int>(threadIdx.x % 32));
  const int64_t last = start(request + 1);
  return {request, batch.seq_lens[request * batch.lens_stride] - (last - token), last};
}

// The block of a row of a request, or -1.
KVB_DEVICE int64_t BlockOf(const RowBatch& batch, int32_t request, int64_t column,
                           int32_t num_blocks, uint32_t* flags) {
  if (column >= batch.columns) {
    Flag(flags, kLengthClamped);
    return -1;
  }
  const int32_t block = batch.block_table[request * batch.table_stride + column];
  if (block >= 0 && block < num_blocks) return block;
  Flag(flags, kBadBlock);
  return -1;
}

// Of a row of planar blocks.
KVB_DEVICE float* ScaleOf(const IndexRows& rows, int64_t block, int32_t row) {
  return reinterpret_cast<float*>(rows.data + block * rows.block_stride +
                                  int64_t{rows.block_size} * rows.dim) +
         row;
}

}  // namespace kvblocks::attention::cuda

#endif  // KVBLOCKS_ATTENTION_CUDA_KERNELS_INDEXER_ROWS_H_
