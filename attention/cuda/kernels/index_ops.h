// Kernels that turn block tables into slots and lists of slots, one launch each.
//
// Tokens past the last of query_start_loc are padding: slot -1, length 0, a row of -1. What the
// host would refuse is flagged: entries of blocks outside the cache become -1 (kBadBlock), rows
// that the block table or the buffer does not cover are not listed (kLengthClamped), list entries
// that name no row become -1 (kBadIndex).

#ifndef KVBLOCKS_ATTENTION_CUDA_KERNELS_INDEX_OPS_H_
#define KVBLOCKS_ATTENTION_CUDA_KERNELS_INDEX_OPS_H_

#include <cstdint>

#include "attention/cuda/kernels/params.h"
#include "attention/cuda/kernels/runtime.h"

namespace kvblocks::attention::cuda {

struct IndexBatch {
  const int32_t* query_start_loc = nullptr;  // [num_requests + 1]
  int32_t num_requests = 0;
  int64_t most_tokens = 0;               // that all tensors have rows for
  const int32_t* block_table = nullptr;  // [num_requests or more, columns]
  int32_t columns = 0, block_size = 1;
  int32_t last_block = 0;  // ids are from 0 to this
};

struct SlotParams {
  IndexBatch batch;
  const int32_t* positions = nullptr;
  int64_t ratio = 1;                       // tokens per row
  int32_t null_first = 0, null_count = 0;  // blocks that store nothing
  int64_t sink_rows = 0;                   // that tables begin with
  // Of context parallelism: token p is on rank p / interleave % num_ranks.
  int32_t num_ranks = 1, rank = 0, interleave = 1;
  int64_t* slots = nullptr;
  int64_t num_slots = 0;
};
// The slot of the row that each token completes, else -1. A thread per token.
Error LaunchSlots(const LaunchContext& context, const SlotParams& params);

// What a step feeds to the model (metadata/input_tokens.h). A thread per token and row of logits.
struct InputTokenParams {
  IndexBatch batch;  // no tables; most_tokens: that ids and positions have rows for
  const int32_t* request_rows = nullptr;
  const int32_t* num_computed = nullptr;
  const int32_t* token_ids = nullptr;  // [num_rows, max_len]
  int64_t num_rows = 0, max_len = 0;
  const int32_t* logits_start_loc = nullptr;  // or null
  const int32_t* last_rows = nullptr;         // or null
  const int32_t* sampled = nullptr;           // [num_last_rows, sampled_width]
  const int32_t* drafts = nullptr;            // [num_last_rows, num_drafts] or null
  int64_t num_last_rows = 0, sampled_width = 0, num_drafts = 0;
  // int32 or, if wide, int64.
  void* input_ids = nullptr;
  void* positions = nullptr;  // or null
  bool wide_ids = false, wide_positions = false;
  int64_t num_ids = 0, num_positions = 0;
  int32_t* logits_indices = nullptr;
  int64_t num_logits = 0;
};
// Ids of rows, positions and drafts that there are not are 0 (kBadIndex, kLengthClamped).
Error LaunchInputTokens(const LaunchContext& context, const InputTokenParams& params);

// Lists of `width` entries per token and how many are used. A warp per token.
struct IndexListParams {
  IndexBatch batch;
  const int32_t* positions = nullptr;  // dense lists
  const int32_t* seq_lens = nullptr;   // windows, prefills
  const int32_t* from = nullptr;       // [rows, from_width]; may be `indices`
  int64_t from_width = 0;
  int64_t ratio = 1, window = 0, sink_rows = 0;
  int64_t rows_per_request = 0, compressed_rows = 0;
  int32_t* indices = nullptr;  // [rows, width]
  int64_t rows = 0, width = 0;
  int32_t* lens = nullptr;
  int64_t num_lens = 0;  // rows or more
};
Error LaunchWindowLists(const LaunchContext& context, const IndexListParams& params);
Error LaunchTopkSlots(const LaunchContext& context, const IndexListParams& params);
Error LaunchDenseLists(const LaunchContext& context, const IndexListParams& params);
Error LaunchPrefillLists(const LaunchContext& context, const IndexListParams& params);

}  // namespace kvblocks::attention::cuda

#endif  // KVBLOCKS_ATTENTION_CUDA_KERNELS_INDEX_OPS_H_
