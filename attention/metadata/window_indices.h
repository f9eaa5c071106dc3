// The slots that a sliding window sees, listed per token: how a windowed cache is handed to kernels
// that take lists of slots.
//
// A token at position p sees keys max(p - W + 1, 0) ... p, oldest first; the rest of its row is -1.
// Sink rows, if the tables begin with some, come before them in every token's list.
// Padding tokens get length 0 and -1 throughout, so that nothing stale is left. Cost: O(T * W).

#ifndef KVBLOCKS_ATTENTION_METADATA_WINDOW_INDICES_H_
#define KVBLOCKS_ATTENTION_METADATA_WINDOW_INDICES_H_

#include <cstdint>

#include "absl/status/status.h"
#include "kvblocks/attention/ops/exec_context.h"
#include "kvblocks/attention/tensor/tensor_view.h"

namespace kvblocks::attention {

// Host tensors: query_start_loc i32 [R + 1], seq_lens i32 [R], block_table i32 [R or more, columns]
// -> indices i32 [T or more, sink_rows + W], lens i32 [T or more]. Lengths and tables count sink rows.
struct WindowIndicesArgs {
  int64_t window = 0;
  int64_t sink_rows = 0;
  ConstTensorView query_start_loc = {}, seq_lens = {}, block_table = {};
  int64_t block_size = 0;
  int64_t num_blocks = 0;  // of the cache: ids are below it; 0: unknown
  TensorView indices = {}, lens = {};
};
absl::Status BuildSwaIndices(const WindowIndicesArgs& args);
// What can be checked without reading tensors, for at least `num_tokens` tokens, on any device.
absl::Status CheckTensors(const ExecContext& context, const WindowIndicesArgs& args,
                          int64_t num_tokens);

}  // namespace kvblocks::attention

#endif  // KVBLOCKS_ATTENTION_METADATA_WINDOW_INDICES_H_
