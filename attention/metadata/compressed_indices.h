// Slots and index lists of compressed caches (DeepSeek V4): r tokens share one row, which is
// written when the last of them is there, and queries read a list of rows beside their window.
//
// All operations work on the host, refuse bad input before they write, and leave no stale entries:
// what is not used is -1, and padding tokens have length 0.

#ifndef KVBLOCKS_ATTENTION_METADATA_COMPRESSED_INDICES_H_
#define KVBLOCKS_ATTENTION_METADATA_COMPRESSED_INDICES_H_

#include <algorithm>
#include <cstdint>

#include "absl/status/status.h"
#include "kvblocks/attention/ops/exec_context.h"
#include "kvblocks/attention/tensor/tensor_view.h"

namespace kvblocks::attention {

// The row that a token completes: the slot of row p / ratio if (p + 1) % ratio == 0, else -1.
// query_start_loc i32 [R + 1], positions i32 [T or more], block_table i32 [R or more, columns] in
// blocks of `block_size` rows -> slot_mapping i64 [T or more].
struct CompressedSlotsArgs {
  int64_t ratio = 1;
  ConstTensorView query_start_loc = {}, positions = {}, block_table = {};
  int64_t block_size = 0;
  int64_t num_blocks = 0;  // of the cache: ids are below it; 0: unknown
  TensorView slot_mapping = {};
};
absl::Status BuildCompressedSlots(const CompressedSlotsArgs& args);

// Rows of a request as slots of the cache: indices i32 [T or more, K], negative ones meaning none,
// -> slots i32 [T or more, K] and counts i32 [T or more] of those that are there. `slots` may be
// `indices`.
struct TopkSlotsArgs {
  ConstTensorView query_start_loc = {}, indices = {}, block_table = {};
  int64_t block_size = 0;
  int64_t num_blocks = 0;
  TensorView slots = {}, counts = {};
};
absl::Status BuildTopkSlots(const TopkSlotsArgs& args);

// All complete rows of each token's context: 0 ... min((p + 1) / ratio, capacity) - 1, where
// capacity is the width of indices. query_start_loc, positions -> indices i32 [T or more,
// capacity], lens.
struct DenseCompressedIndicesArgs {
  int64_t ratio = 128;
  ConstTensorView query_start_loc = {}, positions = {};
  TensorView indices = {}, lens = {};
};
absl::Status BuildDenseCompressedIndices(const DenseCompressedIndicesArgs& args);

// Tokens of its context that a prefill gathers for windows of W: those that some query sees.
constexpr int64_t WindowGatherLen(int64_t query_len, int64_t seq_len, int64_t window) {
  return query_len + std::min(seq_len - query_len, window - 1);
}

// What each token of a prefill reads from a gathered buffer that holds, per request, M rows:
// `compressed_rows` (N) rows of the compressed cache, then WindowGatherLen rows of its newest
// tokens. First min((p + 1) / ratio, topk) entries of its top-k list (request-local rows, kept
// where negative), then the min(p + 1, window) tokens of its window; all as rows of the buffer.
// query_start_loc i32 [R + 1], seq_lens i32 [R], topk i32 [T or more, K] -> indices i32 [T or more,
// K + window], lens i32 [T or more]. An absent topk with ratio <= 1 is a layer with a window only.
struct PrefillIndicesArgs {
  int64_t ratio = 1;
  int64_t window = 0;
  int64_t rows_per_request = 0;  // M
  int64_t compressed_rows = 0;   // N
  ConstTensorView query_start_loc = {}, seq_lens = {}, topk = {};
  TensorView indices = {}, lens = {};
};
absl::Status CombinePrefillIndices(const PrefillIndicesArgs& args);

// What can be checked without reading tensors, for at least `num_tokens` tokens, on any device.
absl::Status CheckTensors(const ExecContext& context, const CompressedSlotsArgs& args,
                          int64_t num_tokens);
absl::Status CheckTensors(const ExecContext& context, const TopkSlotsArgs& args,
                          int64_t num_tokens);
absl::Status CheckTensors(const ExecContext& context, const DenseCompressedIndicesArgs& args,
                          int64_t num_tokens);
absl::Status CheckTensors(const ExecContext& context, const PrefillIndicesArgs& args,
                          int64_t num_tokens);

}  // namespace kvblocks::attention

#endif  // KVBLOCKS_ATTENTION_METADATA_COMPRESSED_INDICES_H_
