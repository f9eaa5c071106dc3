#include "kvblocks/attention/cuda/cascade_ops.h"

#include <algorithm>
#include <cstddef>
#include <cstdint>

#include "kvblocks/attention/cuda/kernel_params.h"
#include "kvblocks/attention/cuda/kernels/key_lengths.h"
#include "kvblocks/attention/cuda/kernels/paged_decode.h"
#include "kvblocks/attention/cuda/kernels/prefill.h"
#include "kvblocks/attention/cuda/kernels/prefill_merge.h"
#include "kvblocks/attention/cuda/paged_decode_ops.h"
#include "kvblocks/attention/cuda/prefill_ops.h"

namespace kvblocks::attention::cuda {
namespace {

// The keys behind the prefix; lengths and outputs, dense ones, are still to be placed.
PagedDecodeParams SuffixOf(const CascadeArgs& args) {
  PagedDecodeParams suffix = PagedDecodeParamsOf(args.prefill);
  const int64_t columns = args.common_prefix_len / suffix.keys.cache.block_size;
  suffix.keys.block_table += columns * args.prefill.block_table.stride[1];
  suffix.keys.table_columns -= static_cast<int32_t>(columns);
  suffix.max_seq_len = std::max<int64_t>(0, suffix.max_seq_len - args.common_prefix_len);
  suffix.scoring.sinks = nullptr;
  suffix.out_scale = 0;
  suffix.out.data = nullptr;
  if (suffix.q.element != Element::kF8E4M3) {
    suffix.out.element = suffix.q.element;
  } else if (suffix.out.element != Element::kBF16) {
    suffix.out.element = Element::kF16;
  }
  suffix.out.head_stride = suffix.value_dim;
  suffix.out.row_stride = int64_t{suffix.num_heads} * suffix.value_dim;
  suffix.lse_head_stride = 1;
  suffix.lse_row_stride = suffix.num_heads;
  return suffix;
}

// All queries over the prefix, through row 0 of the table.
PrefillParams PrefixOf(const CascadeArgs& args) {
  PrefillParams prefix{DenseAttentionOf(args.prefill)};
  prefix.only_length = static_cast<int32_t>(args.common_prefix_len);
  prefix.num_requests = 1;
  prefix.max_query_len = prefix.num_tokens;
  prefix.max_seq_len = args.common_prefix_len;
  prefix.scoring.causal = false;
  // Of the requests' lengths, which kernels before this one compute, it reads none.
  prefix.overlaps_previous = true;
  return prefix;
}

bool HasScalesPerRequest(const KvScales& scales) {
  return scales.k.rank == 2 || scales.v.rank == 2;
}

}  // namespace

absl::StatusOr<bool> RunCascadeInParts(const CudaCall& given, const CascadeArgs& args) {
  const PagedPrefillArgs& prefill = args.prefill;
  if (prefill.q.empty() || prefill.out.empty() || args.common_prefix_len == 0 ||
      args.common_prefix_len > INT32_MAX || !prefill.query_positions.absent() ||
      !prefill.params.alibi_slopes.absent() || HasScalesPerRequest(prefill.params.scales)) {
    return false;
  }
  CudaCall call = given;
  PagedDecodeParams suffix = SuffixOf(args);
  const bool decodes = TakesPagedDecode(suffix);
  if (!decodes && !TakesPrefill(PrefillParams{suffix})) return false;
  PrefillParams prefix = PrefixOf(args);
  if (!TakesPrefill(prefix)) return false;

  // Decode's part is where it is in other calls with this workspace.
  const size_t decode_bytes =
      decodes ? WorkspaceOf(suffix, call.launch().num_multiprocessors).bytes : 0;
  if (!call.Take<std::byte>(static_cast<int64_t>(decode_bytes)).ok()) return false;
  const int64_t rows = int64_t{suffix.num_tokens} * suffix.num_heads;
  const auto lens = call.Take<int32_t>(suffix.num_requests);
  const auto outs = call.Take<std::byte>(rows * suffix.value_dim * BytesOf(suffix.out.element));
  const auto lses = call.Take<float>(rows);
  if (!lens.ok() || !outs.ok() || !lses.ok()) return false;
  suffix.keys.seq_lens = *lens;
  suffix.out.data = *outs;
  suffix.lse = *lses;
  if (!PlacePieces(call, PiecesForPrefill(call.launch(), prefix), &prefix)) return false;

  SuffixLengthsParams lengths;
  lengths.query_start_loc = prefill.query_start_loc.as<int32_t>();
  lengths.seq_lens = prefill.seq_lens.as<int32_t>();
  lengths.num_requests = suffix.num_requests;
  lengths.prefix = static_cast<int32_t>(args.common_prefix_len);
  lengths.suffix_lens = *lens;
  absl::Status status = call.Launch(LaunchSuffixLengths, lengths);
  if (status.ok()) {
    status = decodes ? call.Launch(LaunchPagedDecode, suffix)
                     : call.Launch(LaunchPrefill, PrefillParams{suffix});
  }
  if (status.ok()) status = call.Launch(LaunchPrefill, prefix);
  if (status.ok()) {
    PrefillMergeParams merge = MergeOf(PrefillParams{DenseAttentionOf(prefill)});
    merge.pieces = prefix.pieces;
    merge.other = suffix.out.data;
    merge.other_lses = suffix.lse;
    merge.other_element = suffix.out.element;
    status = call.Launch(LaunchPrefillMerge, merge);
  }
  if (!status.ok()) return status;
  return true;
}

}  // namespace kvblocks::attention::cuda
