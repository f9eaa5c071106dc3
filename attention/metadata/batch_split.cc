#include "kvblocks/attention_metadata.h"

#include <algorithm>
#include <iterator>

#include "absl/status/status.h"
#include "kvblocks/check.h"

namespace kvblocks::attention {

namespace {

ConstTensorView Rows(const ConstTensorView& view, int64_t begin, int64_t end) {
  if (view.absent()) return view;
  ConstTensorView rows = view;
  rows.data += begin * view.stride[0] * ElementBytes(view.dtype);
  rows.extent[0] = end - begin;
  return rows;
}

// What depends on lengths, for the requests that `view` was cut down to.
void SetLengths(CommonAttentionMetadata& view) {
  view.max_query_len = 0;
  view.max_seq_len = 0;
  for (int32_t b = 0; b < view.num_reqs; ++b) {
    view.max_query_len = std::max(view.max_query_len,
                                  view.host_query_start_loc[b + 1] - view.host_query_start_loc[b]);
    view.max_seq_len = std::max(view.max_seq_len, view.host_seq_lens[b]);
  }
}

}  // namespace

BatchSplit SplitCounts(absl::Span<const int32_t> query_start_loc,
                       absl::Span<const int32_t> seq_lens, absl::Span<const uint8_t> in_prompt,
                       const SplitOptions& options) {
  BatchSplit split;
  if (query_start_loc.empty()) return split;
  const int32_t num_reqs = static_cast<int32_t>(query_start_loc.size()) - 1;
  const auto query_len = [&](int32_t b) { return query_start_loc[b + 1] - query_start_loc[b]; };
  int32_t uniform = 0;
  int32_t b = 0;
  for (; b < num_reqs; ++b) {
    const int32_t length = query_len(b);
    if (length > options.decode_threshold) break;
    if (length > 0) {
      if (!options.short_extends_are_decodes && !in_prompt.empty() && in_prompt[b] != 0) break;
      if (options.require_uniform && uniform != 0 && length != uniform) break;
      uniform = length;
    }
  }
  split.num_decodes = b;
  split.num_decode_tokens = query_start_loc[b] - query_start_loc[0];
  split.num_prefills = num_reqs - b;
  split.num_prefill_tokens = query_start_loc[num_reqs] - query_start_loc[b];
  if (!seq_lens.empty()) {
    for (; b < num_reqs && seq_lens[b] > query_len(b); ++b) ++split.num_extends;
  }
  return split;
}

AttentionState StateOf(absl::Span<const int32_t> query_start_loc,
                       absl::Span<const int32_t> seq_lens, const BatchSplit& split,
                       int32_t decode_threshold) {
  bool all_fresh = true, any_long = false, any_cached = false, all_single = true;
  for (size_t b = 0; b + 1 < query_start_loc.size(); ++b) {
    const int32_t length = query_start_loc[b + 1] - query_start_loc[b];
    if (length == 0) continue;
    any_long |= length > decode_threshold;
    all_single &= length == 1;
    const bool cached = seq_lens[b] > length;
    any_cached |= cached;
    all_fresh &= !cached;
  }
  if (all_fresh && any_long) return AttentionState::kPrefillNoCache;
  if (split.num_decodes == 0 && any_cached) return AttentionState::kPrefillCacheHit;
  if (all_single) return AttentionState::kDecodeOnly;
  if (!any_long) return AttentionState::kSpecDecoding;
  return AttentionState::kChunkedPrefill;
}

CommonAttentionMetadata DecodeView(const CommonAttentionMetadata& meta) {
  CommonAttentionMetadata view = meta;
  if (meta.num_prefills == 0) return view;
  const int64_t rows = meta.num_decodes, tokens = meta.num_decode_tokens;
  view.query_start_loc = Rows(meta.query_start_loc, 0, rows + 1);
  view.seq_lens = Rows(meta.seq_lens, 0, rows);
  view.local_context_lens = Rows(meta.local_context_lens, 0, rows);
  view.block_table = Rows(meta.block_table, 0, rows);
  view.slot_mapping = Rows(meta.slot_mapping, 0, tokens);
  view.positions = Rows(meta.positions, 0, tokens);
  view.token_to_req = Rows(meta.token_to_req, 0, tokens);
  view.host_query_start_loc = meta.host_query_start_loc.subspan(0, rows + 1);
  view.host_seq_lens = meta.host_seq_lens.subspan(0, rows);
  if (meta.context_parallel.enabled()) {
    view.host_local_context_lens = meta.host_local_context_lens.subspan(0, rows);
  }
  view.prefill_query_start_loc = {};
  view.host_prefill_query_start_loc = {};
  view.num_reqs = meta.num_decodes;
  view.num_actual_tokens = meta.num_decode_tokens;
  view.num_extends = view.num_prefills = view.num_prefill_tokens = 0;
  SetLengths(view);
  view.attn_state =
      view.max_query_len <= 1 ? AttentionState::kDecodeOnly : AttentionState::kSpecDecoding;
  return view;
}

absl::StatusOr<CommonAttentionMetadata> PrefillView(const CommonAttentionMetadata& meta) {
  CommonAttentionMetadata view = meta;
  if (meta.num_decodes == 0) return view;
  const int64_t begin = meta.num_decodes;
  const int64_t num_offsets = static_cast<int64_t>(meta.host_query_start_loc.size()) - begin;
  if (static_cast<int64_t>(meta.host_prefill_query_start_loc.size()) != num_offsets ||
      meta.prefill_query_start_loc.rank != 1 ||
      meta.prefill_query_start_loc.extent[0] != num_offsets) {
    return FailedPrecondition(
        "PrefillView: prefill_query_start_loc has ", meta.host_prefill_query_start_loc.size(),
        " entries, not the ", num_offsets, " of the rows behind ", begin,
        " decodes; build the metadata with AttentionMetadataBuilder or fill it in");
  }
  const int64_t token = meta.num_decode_tokens;
  const auto tail = [](const ConstTensorView& rows, int64_t first) {
    return Rows(rows, first, std::max(first, rows.extent[0]));
  };
  view.query_start_loc = meta.prefill_query_start_loc;
  view.seq_lens = tail(meta.seq_lens, begin);
  view.local_context_lens = tail(meta.local_context_lens, begin);
  view.block_table = tail(meta.block_table, begin);
  view.slot_mapping = tail(meta.slot_mapping, token);
  view.positions = tail(meta.positions, token);
  view.token_to_req = {};  // its entries count the rows of the whole batch
  view.host_query_start_loc = meta.host_prefill_query_start_loc;
  view.host_seq_lens = meta.host_seq_lens.subspan(begin);
  if (meta.context_parallel.enabled()) {
    view.host_local_context_lens = meta.host_local_context_lens.subspan(begin);
  }
  view.prefill_query_start_loc = {};
  view.host_prefill_query_start_loc = {};
  view.num_reqs = meta.num_reqs - meta.num_decodes;
  view.num_actual_tokens = meta.num_actual_tokens - meta.num_decode_tokens;
  view.num_decodes = view.num_decode_tokens = 0;
  SetLengths(view);
  view.attn_state =
      view.num_extends == 0 ? AttentionState::kPrefillNoCache : AttentionState::kPrefillCacheHit;
  return view;
}

absl::StatusOr<CommonAttentionMetadata> WithBlockTable(const CommonAttentionMetadata& meta,
                                                       ConstTensorView block_table,
                                                       ConstTensorView slot_mapping,
                                                       int64_t block_size) {
  if (block_size < 1) {
    return InvalidArgument("WithBlockTable: block_size is ", block_size, "; it must be at least 1");
  }
  const int64_t rows = static_cast<int64_t>(meta.host_seq_lens.size());
  if (block_table.rank != 2 || block_table.dtype != DType::kI32 || block_table.extent[0] < rows) {
    return InvalidArgument("WithBlockTable: block_table is ", block_table.DebugString(),
                           "; it must be i32 [at least ", rows, ", columns]");
  }
  if (slot_mapping.rank != 1 || slot_mapping.dtype != DType::kI64 ||
      slot_mapping.extent[0] < meta.num_actual_tokens) {
    return InvalidArgument("WithBlockTable: slot_mapping is ", slot_mapping.DebugString(),
                           "; it must be i64 [at least ", meta.num_actual_tokens, "]");
  }
  if (meta.sink_rows > 0 || meta.context_parallel.enabled()) {
    return InvalidArgument("WithBlockTable: the batch has ", meta.sink_rows, " sink rows and ",
                           meta.context_parallel.num_ranks,
                           " ranks, which its lengths tell of; build the group's own metadata");
  }
  CommonAttentionMetadata other = meta;
  other.block_table = block_table;
  other.slot_mapping = slot_mapping;
  other.block_size = block_size;
  other.common_prefix_len = meta.common_prefix_len / block_size * block_size;
  return other;
}

const char* Name(AttentionState state) {
  static constexpr const char* kNames[] = {"prefill_no_cache", "prefill_cache_hit", "decode_only",
                                           "spec_decoding", "chunked_prefill"};
  const auto index = static_cast<size_t>(state);
  return index < std::size(kNames) ? kNames[index] : "?";
}

}  // namespace kvblocks::attention
