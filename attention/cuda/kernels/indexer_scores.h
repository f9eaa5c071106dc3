// The two halves of IndexTopk: scores of rows, and a selection over them. Scores lie in the
// workspace as keys: numbers that are in the order of the scores, -infinity for a NaN.

#ifndef KVBLOCKS_ATTENTION_CUDA_KERNELS_INDEXER_SCORES_H_
#define KVBLOCKS_ATTENTION_CUDA_KERNELS_INDEXER_SCORES_H_

#include "attention/cuda/device/gpu.h"
#include "attention/cuda/kernels/fast_division.h"
#include "attention/cuda/kernels/indexer.h"
#include "attention/cuda/kernels/launch.h"

namespace kvblocks::attention::cuda {

// What the indexer's and the compressor's kernels share: whose token it is, and where a row is.
// Device code.

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

// Tokens [first_token, first_token + num_tokens) of a call; row r of token first_token + i has its
// key at keys[i * key_stride + r]. What is there of rows that a token does not see means nothing,
// and nor does anything of a token that sees no more rows than it may choose.
struct IndexScoreParams {
  IndexTopkParams topk;
  FastDivisor block_size;
  // In units of 16 bytes: from block to block, from row to row, and a block's codes, which are in
  // front of its scales.
  uint32_t block_units = 0, row_units = 0, codes_units = 0;
  bool whole_groups = false;  // rows of a tile that a warp copies are of one block
  int32_t first_token = 0, num_tokens = 0;
  uint32_t* keys = nullptr;  // at a multiple of 16 bytes
  int64_t key_stride = 0;    // a multiple of 4
};

// indexer_topk.cu
bool TakesIndexScores(const IndexTopkParams& params);
Error LaunchIndexScores(const LaunchContext& context, const IndexScoreParams& params);
// indexer_topk_hopper.cu: what TakesIndexScores takes, on a device of compute capability 9.0.
Error LaunchIndexScoresHopper(const LaunchContext& context, const IndexScoreParams& params);
// indexer_select.cu
Error LaunchPortableIndexScores(const LaunchContext& context, const IndexScoreParams& params);
Error LaunchIndexSelect(const LaunchContext& context, const IndexScoreParams& params);

// Into how many pieces rows of `num_tiles` tiles of tokens are cut, a block of threads per piece,
// whose beginning costs about as much as `overhead` rows.
int32_t IndexPieces(int64_t num_tiles, int64_t most_rows, int num_multiprocessors,
                    int64_t overhead = 512);

// Larger for larger scores; -0 is 0.
KVB_DEVICE uint32_t KeyOfScore(float score) {
  if (!(score == score)) score = -INFINITY;
  const uint32_t bits = __float_as_uint(score + 0.0f);
  return bits >> 31 != 0 ? ~bits : bits | 0x80000000u;
}

// Rows that the token at a position sees.
KVB_DEVICE int32_t VisibleRows(const IndexTopkParams& params, int64_t position) {
  const int64_t rows = position < 0 ? 0 : (position + 1) / params.ratio;
  return static_cast<int32_t>(rows < params.most_rows ? rows : params.most_rows);
}

}  // namespace kvblocks::attention::cuda

#endif  // KVBLOCKS_ATTENTION_CUDA_KERNELS_INDEXER_SCORES_H_
