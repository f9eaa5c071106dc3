// The split of a batch into decodes, extends and fresh prefills: its order, its counts, its state
// and the views on its two phases.
//
// Order: decodes (at most decode_threshold new tokens), then extends (more, and with cached
// context), then fresh prefills (nothing cached). Counting trusts that order and stops at the first
// request that is no decode. Cost: O(R); nothing is allocated.
//
// Older names for the same things, L being a length with and q_len the number of its new tokens:
//   context_lens of a prefill, num_computed_tokens     L - q_len
//   context_lens of a decode, seq_lens, kv_lens        L
//   prompt_lens, subquery lengths, extend_lens         q_len
//   query_start_loc, cu_seqlens_q, subquery_start_loc  query_start_loc
//   actual_seq_lengths, cumulative ends                query_start_loc[1:]
//   seq_start_loc, cu_seqlens_k                        running sum of L, from 0
//   prefill offsets, qo_indptr of the prefill part     query_start_loc of PrefillView

#ifndef KVBLOCKS_ATTENTION_METADATA_BATCH_SPLIT_H_
#define KVBLOCKS_ATTENTION_METADATA_BATCH_SPLIT_H_

#include <cstdint>

#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "kvblocks/attention/metadata/common_metadata.h"

namespace kvblocks::attention {

struct SplitOptions {
  int32_t decode_threshold = 1;  // or 1 + speculative tokens
  // All decodes have the same number of new tokens; padding rows of none count as decodes.
  bool require_uniform = false;
  // Otherwise a request inside its prompt is a prefill, however short.
  bool short_extends_are_decodes = true;
};

struct BatchSplit {
  int32_t num_decodes = 0, num_decode_tokens = 0;
  int32_t num_extends = 0;
  int32_t num_prefills = 0, num_prefill_tokens = 0;  // extends included

  friend bool operator==(const BatchSplit&, const BatchSplit&) = default;
};

// Of a batch in order. `in_prompt` tells per request whether it has prompt tokens to compute; empty
// means none, and only options.short_extends_are_decodes == false reads it. Empty `seq_lens` leaves
// num_extends 0.
BatchSplit SplitCounts(absl::Span<const int32_t> query_start_loc,
                       absl::Span<const int32_t> seq_lens, absl::Span<const uint8_t> in_prompt,
                       const SplitOptions& options);

// Of the requests of query_start_loc, in any order; requests without new tokens are padding.
AttentionState StateOf(absl::Span<const int32_t> query_start_loc,
                       absl::Span<const int32_t> seq_lens, const BatchSplit& split,
                       int32_t decode_threshold);

// The decodes as a batch of their own: slices of the same buffers. Padded rows belong to it where
// there are no prefills.
CommonAttentionMetadata DecodeView(const CommonAttentionMetadata& meta);

// The extends and fresh prefills, and padded rows, with offsets from 0. FailedPrecondition where
// there are decodes and prefill_query_start_loc is absent.
absl::StatusOr<CommonAttentionMetadata> PrefillView(const CommonAttentionMetadata& meta);

// The batch of another KV group: the same lengths with other blocks. block_table i32 [R, columns]
// and slot_mapping i64 [T_padded] replace meta's; the common prefix is cut to whole blocks.
absl::StatusOr<CommonAttentionMetadata> WithBlockTable(const CommonAttentionMetadata& meta,
                                                       ConstTensorView block_table,
                                                       ConstTensorView slot_mapping,
                                                       int64_t block_size);

}  // namespace kvblocks::attention

#endif  // KVBLOCKS_ATTENTION_METADATA_BATCH_SPLIT_H_
