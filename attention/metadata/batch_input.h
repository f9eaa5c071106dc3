// BatchInput: one step as the scheduler and the block manager hand it over. Plain values and spans;
// nothing is kept after the build.

#ifndef KVBLOCKS_ATTENTION_METADATA_BATCH_INPUT_H_
#define KVBLOCKS_ATTENTION_METADATA_BATCH_INPUT_H_

#include <cstdint>

#include "absl/types/span.h"

namespace kvblocks::attention {

struct RequestInput {
  int64_t num_computed_tokens = 0;   // in the cache before this step
  int64_t num_scheduled_tokens = 0;  // new in this step, at least 1
  int64_t num_prompt_tokens = 0;     // read only where short_extends_are_decodes is false
};

struct BatchInput {
  absl::Span<const RequestInput> requests = {};
  // requests.size() x groups, request by request: the manager's block ids, as many as cover
  // computed and scheduled tokens, or more. Blocks outside a group's window may be anything.
  absl::Span<const absl::Span<const int32_t>> block_ids = {};
  bool causal = true;
  // Keys of each request's encoder, for layers of cross attention (cross_metadata()); empty: none.
  absl::Span<const int32_t> encoder_lens = {};
  // Blocks of the manager that begin every request of the step, per group; empty: none.
  absl::Span<const int64_t> num_common_prefix_blocks = {};
  // What a captured graph wants, at least the actual counts; 0: no padding.
  int64_t padded_num_reqs = 0;
  int64_t padded_num_tokens = 0;
};

}  // namespace kvblocks::attention

#endif  // KVBLOCKS_ATTENTION_METADATA_BATCH_INPUT_H_
