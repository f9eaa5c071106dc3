// Kernels of sparse attention's upkeep: keys of an indexer, the rows that it chooses, and DeepSeek
// V4's compressor.

#ifndef KVBLOCKS_ATTENTION_CUDA_KERNELS_INDEXER_H_
#define KVBLOCKS_ATTENTION_CUDA_KERNELS_INDEXER_H_

#include <cstdint>

#include "attention/cuda/kernels/params.h"
#include "attention/cuda/kernels/runtime.h"

namespace kvblocks::attention::cuda {

// Plain rows [blocks, block_size, dim], or planar ones: codes of a block, then float32 scales.
struct IndexRows {
  unsigned char* data = nullptr;
  Element element = Element::kF32;
  bool planar = false;
  int64_t block_stride = 0, row_stride = 0;  // elements; planar: bytes, none
  int32_t num_blocks = 0, block_size = 1, dim = 0;
};

// Requests by where their tokens begin and end.
struct RowBatch {
  const int32_t* query_start_loc = nullptr;  // [num_requests + 1]
  const int32_t* seq_lens = nullptr;
  const int32_t* block_table = nullptr;  // [num_requests, columns]
  int64_t starts_stride = 1, lens_stride = 1, table_stride = 0;
  int32_t num_requests = 0, columns = 0;
};

struct IndexWriteParams {
  ConstRows from;  // [tokens, dim]
  IndexRows to;
  const int64_t* slots = nullptr;
  int64_t slot_stride = 1, num_tokens = 0;
  bool power_of_two = true;
};
// A warp per token. Slots < 0 are skipped, slots beyond the cache flagged and skipped.
Error LaunchIndexWrite(const LaunchContext& context, const IndexWriteParams& params);

struct IndexTopkParams {
  ConstRows q;  // [tokens, heads, dim]
  const float* weights = nullptr;
  int64_t weight_stride = 0;
  IndexRows rows;
  RowBatch batch;
  int32_t num_tokens = 0, heads = 1, ratio = 1;
  int32_t most_rows = 0;  // that a token may see
  bool as_slots = true;
  int32_t* indices = nullptr;
  int64_t index_stride = 0;
  int32_t width = 0;
  int32_t* lens = nullptr;
  int64_t lens_stride = 1;
};
// Two launches, scores and a selection, for as many tokens at a time as the workspace has room for
// the scores of. Tensor cores score keys of 128 values, in planar blocks or of 16 bits, for up to
// 64 heads of queries in codes or in the keys' 16-bit type (over planar keys in either) if all rows
// begin at multiples of 16 bytes, the cache within 64 GiB; a thread per row scores the rest. Rows
// of blocks outside the cache are flagged and score -infinity; lengths beyond most_rows are flagged
// and cut. REQUIRES: at most 512 values per key.
int64_t IndexTopkWorkspaceBytes(int64_t num_tokens, int64_t most_rows);  // the least
Error LaunchIndexTopk(const LaunchContext& context, const IndexTopkParams& params);

struct CompressParams {
  ConstRows kv, score;          // [tokens, width]
  const float* bias = nullptr;  // [ratio, width] or null
  int64_t bias_stride = 0;
  float* states = nullptr;
  int64_t block_stride = 0, row_stride = 0;
  int32_t num_blocks = 0, block_size = 1;
  const int64_t* slots = nullptr;
  int64_t slot_stride = 1, num_slots = 0;  // of the tokens
  RowBatch batch;
  int32_t num_tokens = 0, ratio = 4, parts = 2, dim = 0;
  const float* norm_weight = nullptr;  // [dim] or null
  int64_t norm_stride = 1;
  float norm_eps = 0;
  const float* cos_sin = nullptr;  // [positions, rotary] or null
  int64_t cos_sin_stride = 0, num_positions = 0;
  int32_t rotary = 0;
  Rows out;  // [tokens, dim]
};
// Two launches: all states are stored before the first is combined.
Error LaunchCompress(const LaunchContext& context, const CompressParams& params);

}  // namespace kvblocks::attention::cuda

#endif  // KVBLOCKS_ATTENTION_CUDA_KERNELS_INDEXER_H_
