#include "kvblocks/attention/cuda/cascade_ops.h"

#include <algorithm>
#include <cstdint>
#include <initializer_list>

#include "absl/types/span.h"
#include "kvblocks/attention/backends/workspace.h"
#include "kvblocks/attention/cuda/kernel_params.h"
#include "kvblocks/attention/cuda/kernels/cascade.h"
#include "kvblocks/attention/cuda/kernels/paged_decode.h"
#include "kvblocks/attention/cuda/kernels/prefill.h"
#include "kvblocks/attention/cuda/kernels/prefill_merge.h"
#include "kvblocks/attention/cuda/paged_decode_ops.h"
#include "kvblocks/attention/cuda/prefill_ops.h"

namespace kvblocks::attention::cuda {
namespace {

// A dense tensor in a piece of the workspace; absent if there is no room.
TensorView TakeTensor(WorkspaceArena& arena, DeviceId device, DType dtype,
                      std::initializer_list<int64_t> extents) {
  int64_t bytes = ElementBytes(dtype);
  for (const int64_t extent : extents) bytes *= extent;
  const auto memory = arena.Take(bytes);
  if (!memory.ok()) return {};
  return TensorView::Contiguous(memory->data(), dtype, extents, device);
}

// The keys behind the prefix, as an operation whose lengths and outputs are still to be placed.
PagedPrefillArgs SuffixOf(const CascadeArgs& args) {
  PagedPrefillArgs suffix = args.prefill;
  const int64_t columns = args.common_prefix_len / suffix.cache.block_size();
  suffix.block_table = *suffix.block_table.Slice(1, columns, suffix.block_table.extent[1]);
  suffix.max_seq_len = std::max<int64_t>(0, suffix.max_seq_len - args.common_prefix_len);
  suffix.params.sinks = {};
  suffix.out_scale = 0;
  suffix.out.data = nullptr;
  suffix.out.dtype = suffix.q.dtype;
  suffix.out.stride[1] = suffix.out.extent[2];
  suffix.out.stride[0] = suffix.out.extent[1] * suffix.out.extent[2];
  suffix.lse = {};
  return suffix;
}

// All queries over the prefix, through row 0 of the table.
PrefillParams PrefixOf(const CascadeArgs& args) {
  PrefillParams prefix = PrefillParamsOf(args.prefill);
  prefix.only_length = static_cast<int32_t>(args.common_prefix_len);
  prefix.num_requests = 1;
  prefix.max_query_len = prefix.num_tokens;
  prefix.max_key_len = args.common_prefix_len;
  prefix.scoring.causal = false;
  // Of the requests' lengths, which kernels before this one compute, it reads none.
  prefix.overlaps_previous = true;
  return prefix;
}

bool HasScalesPerRequest(const KvScales& scales) {
  return scales.k.rank == 2 || scales.v.rank == 2;
}

}  // namespace

absl::StatusOr<bool> RunCascadeInParts(const char* op, const ExecContext& context,
                                       const CascadeArgs& args) {
  const PagedPrefillArgs& prefill = args.prefill;
  if (prefill.q.empty() || prefill.out.empty() || args.common_prefix_len == 0 ||
      args.common_prefix_len > INT32_MAX || !prefill.query_positions.absent() ||
      !prefill.params.alibi_slopes.absent() || HasScalesPerRequest(prefill.params.scales)) {
    return false;
  }
  const absl::StatusOr<LaunchContext> launch = LaunchContextOf(op, context);
  if (!launch.ok()) return launch.status();
  const absl::Span<std::byte> memory =
      context.workspace == nullptr ? absl::Span<std::byte>() : context.workspace->device;
  PagedPrefillArgs suffix = SuffixOf(args);
  const bool decodes = IsForPagedDecode(suffix) && TakesPagedDecode(PagedDecodeParamsOf(suffix));
  if (!decodes && !TakesPrefill(PrefillParamsOf(suffix))) return false;
  PrefillParams prefix = PrefixOf(args);
  if (!TakesPrefill(prefix)) return false;
  int64_t decode_bytes = 0;
  if (decodes) {
    const auto bytes = PagedDecodeWorkspaceBytes(context, PagedDecodeParamsOf(suffix));
    if (!bytes.ok()) return bytes.status();
    decode_bytes = *bytes;
  }

  // Decode's part is where it is in other calls with this workspace.
  WorkspaceArena arena(memory);
  if (!arena.Take(decode_bytes).ok()) return false;
  const ConstTensorView& q = prefill.q;
  const int64_t tokens = q.extent[0], heads = q.extent[1];
  const TensorView lens = TakeTensor(arena, q.device, DType::kI32, {prefill.seq_lens.extent[0]});
  suffix.seq_lens = lens;
  suffix.out = TakeTensor(arena, q.device, q.dtype, {tokens, heads, prefill.out.extent[2]});
  suffix.lse = TakeTensor(arena, q.device, DType::kF32, {tokens, heads});
  if (lens.absent() || suffix.out.absent() || suffix.lse.absent()) return false;
  const auto bytes = static_cast<int64_t>(memory.size());
  if (!PlacePieces(arena, bytes, PiecesForPrefill(*launch, prefix), &prefix)) return false;

  SuffixLengthsParams lengths;
  lengths.query_start_loc = prefill.query_start_loc.as<int32_t>();
  lengths.seq_lens = prefill.seq_lens.as<int32_t>();
  lengths.num_requests = static_cast<int32_t>(prefill.seq_lens.extent[0]);
  lengths.prefix = static_cast<int32_t>(args.common_prefix_len);
  lengths.suffix_lens = lens.as<int32_t>();
  absl::Status status = StatusOf(op, LaunchSuffixLengths(*launch, lengths));
  if (status.ok()) {
    status = decodes ? RunPagedDecode(op, context, PagedDecodeParamsOf(suffix))
                     : StatusOf(op, LaunchPrefill(*launch, PrefillParamsOf(suffix)));
  }
  if (status.ok()) status = StatusOf(op, LaunchPrefill(*launch, prefix));
  if (status.ok()) {
    PrefillMergeParams merge = MergeOf(PrefillParamsOf(prefill));
    merge.pieces = prefix.pieces;
    merge.other = suffix.out.data;
    merge.other_lses = suffix.lse.as<float>();
    merge.other_element = ElementOf(q.dtype);
    status = StatusOf(op, LaunchPrefillMerge(*launch, merge));
  }
  if (!status.ok()) return status;
  return true;
}

}  // namespace kvblocks::attention::cuda
