// CommonAttentionMetadata: what one step's batch looks like to the attention layers of one KV-cache
// group. Built once per step, shared by all layers of the group.
//
// All arrays are views on buffers that the builder (or the embedder) owns; requests follow each
// other in the order decodes, extends, fresh prefills; token t of request b is row
// query_start_loc[b] + t. Visibility needs no mask here: lengths, `causal` and the layer's window
// say it all.

#ifndef KVBLOCKS_ATTENTION_METADATA_COMMON_METADATA_H_
#define KVBLOCKS_ATTENTION_METADATA_COMMON_METADATA_H_

#include <cstdint>

#include "absl/types/span.h"
#include "kvblocks/attention/metadata/context_parallel.h"
#include "kvblocks/attention/ops/mask_ref.h"
#include "kvblocks/attention/tensor/tensor_view.h"

namespace kvblocks::attention {

// What the batch consists of. Backends may choose kernels by it; results never depend on it.
enum class AttentionState : uint8_t {
  kPrefillNoCache,   // every query is a whole request, some longer than the decode threshold
  kPrefillCacheHit,  // no decodes, some request has cached tokens
  kDecodeOnly,       // one query token each
  kSpecDecoding,     // at most the threshold each, some more than one
  kChunkedPrefill,   // anything else
};
const char* Name(AttentionState state);

struct CommonAttentionMetadata {
  // On the device of the step; R = num_reqs, T = num_actual_tokens, padded rows behind them.
  ConstTensorView query_start_loc;  // i32 [R + 1]: from 0 to T, non-decreasing
  ConstTensorView seq_lens;         // i32 [R]: new tokens included, and sink rows of the group
  ConstTensorView block_table;   // i32 [R, columns]: row b valid for ceil(L / block_size) entries
  ConstTensorView slot_mapping;  // i64 [T_padded]: -1 skips
  ConstTensorView positions;     // i32 [T_padded] or absent
  ConstTensorView token_to_req;  // i32 [T_padded] or absent

  // The same on the host, always there: what splits and checks read.
  absl::Span<const int32_t> host_query_start_loc;  // R + 1 (padded rows repeat T)
  absl::Span<const int32_t> host_seq_lens;         // R, exact or upper bounds

  // Of one of several ranks of context parallelism, whose rows the block table is about:
  // local_context_lens are those of each request that it held before the step. seq_lens, positions
  // and counts are the requests' own. Layers attend to that context without a causal rule.
  ContextParallel context_parallel;
  ConstTensorView local_context_lens;  // i32 [R]; absent with one rank
  absl::Span<const int32_t> host_local_context_lens;
  int32_t max_local_context_len = 0;

  // query_start_loc of the requests behind the decodes, from 0: what PrefillView needs. Absent
  // where there are no decodes (query_start_loc serves) or nobody filled it.
  ConstTensorView prefill_query_start_loc;  // i32 [R - num_decodes + 1]
  absl::Span<const int32_t> host_prefill_query_start_loc;

  int64_t block_size = 0;  // of the kernel
  int32_t num_reqs = 0;
  int32_t num_actual_tokens = 0;
  int32_t max_query_len = 0;
  int32_t max_seq_len = 0;  // may be an upper bound
  bool causal = true;

  int32_t num_decodes = 0, num_decode_tokens = 0;
  int32_t num_extends = 0;
  int32_t num_prefills = 0, num_prefill_tokens = 0;  // extends included
  AttentionState attn_state = AttentionState::kDecodeOnly;
  int64_t common_prefix_len = 0;  // a multiple of block_size, or 0
  // > 0: the requests are pieces, cut at multiples of it (VirtualBatches), and positions count from
  // where a piece begins. For layers of this chunk only.
  int64_t chunk = 0;
  // The first rows of every table: of blocks that all requests share and all queries see, whatever
  // window they look through. In seq_lens, not in positions.
  int64_t sink_rows = 0;

  // Null unless attached (masks/mask_wiring.h). What is there reaches the kernels.
  MaskRef attn_mask, swa_mask, custom_mask;
};

}  // namespace kvblocks::attention

#endif  // KVBLOCKS_ATTENTION_METADATA_COMMON_METADATA_H_
