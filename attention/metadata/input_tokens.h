// The tokens that a step feeds to the model, and the rows whose logits it samples from.
//
// An engine keeps a row of token ids per request, prompt and output. With asynchronous scheduling it
// launches a step before it has seen what the last one sampled: those ids, and draft tokens of
// speculation, are on the device only, and are put in there. So the next token of a request that
// took part in the last step is read from `sampled`, its drafts from `drafts`.
//
//   logits_start_loc = {0, 1, 1, 4}: the step samples behind one row of request 0, behind none of
//   request 1 (its prompt goes on), behind three of request 2, whose last two tokens are drafts.
//
// The same structure serves the host (GatherInputTokens) and a GPU (cuda/index_ops.h, one launch).
// Cost: O(T + R).

#ifndef KVBLOCKS_ATTENTION_METADATA_INPUT_TOKENS_H_
#define KVBLOCKS_ATTENTION_METADATA_INPUT_TOKENS_H_

#include <cstdint>

#include "absl/status/status.h"
#include "kvblocks/attention/ops/exec_context.h"
#include "kvblocks/attention/tensor/tensor_view.h"

namespace kvblocks::attention {

// Batch row b is the request of row request_rows[b] of token_ids and has the q_b tokens of
// query_start_loc from position num_computed[b] on. Of n_b = logits_start_loc[b + 1] -
// logits_start_loc[b] rows that it is sampled behind, the last ones, all but the first are drafts;
// without logits_start_loc n_b is 1, and requests without tokens come last.
//
// last_rows[b] >= 0 is the request's row in the last step, whose results are on the device only:
// token q_b - n_b is sampled[last_rows[b]][0], and the k-th draft behind it drafts[last_rows[b]][k],
// if there are drafts. All other tokens, those of drafts that the host knows included, are
// token_ids[request_rows[b]][position].
//
// Padding behind the last token has id 0 and position 0; logits_indices behind the last row repeat
// it, so that whatever they select can be read.
struct InputTokensArgs {
  ConstTensorView query_start_loc = {};   // i32 [R + 1]
  ConstTensorView request_rows = {};      // i32 [R or more]
  ConstTensorView num_computed = {};      // i32 [R or more]
  ConstTensorView token_ids = {};         // i32 [rows, max_len]
  ConstTensorView logits_start_loc = {};  // i32 [R + 1] or absent
  ConstTensorView last_rows = {};         // i32 [R or more], -1: none; or absent: none at all
  ConstTensorView sampled = {};           // i32 [last rows, 1 or more]; absent iff last_rows is
  ConstTensorView drafts = {};            // i32 [last rows, K] or absent
  TensorView input_ids = {};              // i32 or i64 [T or more]
  TensorView positions = {};              // i32 or i64 [T or more] or absent
  TensorView logits_indices = {};         // i32 [rows to sample behind, or more] or absent
};
absl::Status GatherInputTokens(const InputTokensArgs& args);
// What can be checked without reading tensors, for at least `num_tokens` tokens and `num_logits`
// rows, on any device.
absl::Status CheckTensors(const ExecContext& context, const InputTokensArgs& args,
                          int64_t num_tokens, int64_t num_logits);

}  // namespace kvblocks::attention

#endif  // KVBLOCKS_ATTENTION_METADATA_INPUT_TOKENS_H_
