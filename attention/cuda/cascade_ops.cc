#include "attention/cuda/cascade_ops.h"

#include <algorithm>
#include <cstdint>
#include <initializer_list>

#include "absl/types/span.h"
#include "attention/backends/workspace.h"
#include "attention/cuda/kernel_params.h"
#include "attention/cuda/kernels/cascade.h"
#include "attention/cuda/kernels/merge_states.h"
#include "attention/cuda/kernels/paged_decode.h"
#include "attention/cuda/kernels/prefill.h"
#include "attention/cuda/paged_decode_ops.h"
#include "attention/cuda/prefill_ops.h"

namespace kvblocks::attention::cuda {
namespace {

constexpr int64_t kTileRows = 128, kTileKeys = 128;  // of prefill's kernels
constexpr int64_t kLeastPieceKeys = 2 * kTileKeys;
constexpr int64_t kMostPieces = 32;

int64_t CeilDiv(int64_t a, int64_t b) { return (a + b - 1) / b; }

struct PrefixPieces {
  int64_t count = 1, keys = 0;
};

// As many pieces as multiprocessors would otherwise have no tile of queries.
int64_t WantedPieces(const CascadeArgs& args, int num_multiprocessors) {
  const ConstTensorView& q = args.prefill.q;
  const int64_t kv_heads = args.prefill.cache.num_kv_heads();
  const int64_t tiles = CeilDiv(q.extent[0] * (q.extent[1] / kv_heads), kTileRows) * kv_heads;
  const int64_t most = std::min(
      {kMostPieces, args.common_prefix_len / kLeastPieceKeys, INT32_MAX / 2 / q.extent[0]});
  return std::max<int64_t>(1, std::min(num_multiprocessors / tiles, most));
}

// Of whole blocks and, but for the last one, whole tiles.
PrefixPieces CutPrefix(const CascadeArgs& args, int64_t count) {
  if (count == 1) return {1, args.common_prefix_len};
  const int64_t block_size = args.prefill.cache.block_size();
  const int64_t unit = block_size * CeilDiv(kTileKeys, block_size);
  const int64_t keys = CeilDiv(args.common_prefix_len, count * unit) * unit;
  return {CeilDiv(args.common_prefix_len, keys), keys};
}

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

// The two parts, and where their states are.
struct Parts {
  CascadeParams inputs;
  PagedPrefillArgs prefix, suffix;
  TensorView states, lses;  // [(pieces + 1) T, H, Dv] and [(pieces + 1) T, H]
};

// Places all arrays and completes the operations; false if there is no room.
bool LayOut(const CascadeArgs& args, const PrefixPieces& pieces, WorkspaceArena& arena,
            Parts* parts) {
  const PagedPrefillArgs& prefill = args.prefill;
  const ConstTensorView& q = prefill.q;
  const int64_t tokens = q.extent[0], heads = q.extent[1], values = prefill.out.extent[2];
  const int64_t requests = prefill.seq_lens.extent[0], rows = pieces.count * tokens;
  const auto take = [&](DType dtype, std::initializer_list<int64_t> extents) {
    return TakeTensor(arena, q.device, dtype, extents);
  };
  const TensorView suffix_lens = take(DType::kI32, {requests});
  const TensorView starts = take(DType::kI32, {pieces.count + 1});
  const TensorView lens = take(DType::kI32, {pieces.count});
  parts->states = take(q.dtype, {rows + tokens, heads, values});
  parts->lses = take(DType::kF32, {rows + tokens, heads});
  TensorView piece_q;
  if (pieces.count > 1) piece_q = take(q.dtype, {rows, heads, q.extent[2]});
  for (const TensorView& view : {suffix_lens, starts, lens, parts->states, parts->lses}) {
    if (view.absent()) return false;
  }
  if (pieces.count > 1 && piece_q.absent()) return false;

  PagedPrefillArgs& prefix = parts->prefix;
  prefix = prefill;
  if (pieces.count > 1) prefix.q = piece_q;
  prefix.query_start_loc = starts;
  prefix.seq_lens = lens;
  // Row i of this table is row 0 of the given one from piece i on.
  const int64_t columns = pieces.keys / prefill.cache.block_size();
  prefix.block_table.extent[0] = pieces.count;
  prefix.block_table.extent[1] = prefix.block_table.stride[0] = columns;
  prefix.max_query_len = tokens;
  prefix.max_seq_len = pieces.keys;
  prefix.params.causal = false;
  prefix.params.sinks = {};
  prefix.out_scale = 0;
  prefix.out = *parts->states.Slice(0, 0, rows);
  prefix.lse = *parts->lses.Slice(0, 0, rows);

  parts->suffix.seq_lens = suffix_lens;
  parts->suffix.out = *parts->states.Slice(0, rows, rows + tokens);
  parts->suffix.lse = *parts->lses.Slice(0, rows, rows + tokens);

  CascadeParams& inputs = parts->inputs;
  inputs.query_start_loc = prefill.query_start_loc.as<int32_t>();
  inputs.seq_lens = prefill.seq_lens.as<int32_t>();
  inputs.num_requests = static_cast<int32_t>(requests);
  inputs.num_tokens = static_cast<int32_t>(tokens);
  inputs.prefix = static_cast<int32_t>(args.common_prefix_len);
  inputs.piece_keys = static_cast<int32_t>(pieces.keys);
  inputs.num_pieces = static_cast<int32_t>(pieces.count);
  inputs.suffix_lens = suffix_lens.as<int32_t>();
  inputs.piece_starts = starts.as<int32_t>();
  inputs.piece_lens = lens.as<int32_t>();
  inputs.q = ConstRowsOf(q);
  inputs.num_heads = static_cast<int32_t>(heads);
  inputs.key_dim = static_cast<int32_t>(q.extent[2]);
  inputs.piece_q = piece_q.data;
  return true;
}

MergeStatesParams MergeOf(const PagedPrefillArgs& args, const Parts& parts, int64_t num_states) {
  const int64_t tokens = args.q.extent[0];
  MergeStatesParams merge;
  merge.outs = ConstRowsOf(parts.states);
  merge.out_state_stride = tokens * parts.states.stride[0];
  merge.lses = {parts.lses.as<float>(), tokens * parts.lses.stride[0], parts.lses.stride[0],
                parts.lses.stride[1]};
  merge.num_states = static_cast<int32_t>(num_states);
  merge.num_rows = static_cast<int32_t>(tokens);
  merge.num_heads = static_cast<int32_t>(args.q.extent[1]);
  merge.value_dim = static_cast<int32_t>(args.out.extent[2]);
  merge.sinks = args.params.sinks.as<float>();
  merge.out_scale = args.out_scale;
  merge.out = RowsOf(args.out);
  PlaceLse(args.lse, merge);
  return merge;
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
  Parts parts;
  parts.suffix = SuffixOf(args);
  const bool decodes =
      IsForPagedDecode(parts.suffix) && TakesPagedDecode(PagedDecodeParamsOf(parts.suffix));
  if (!decodes && !TakesPrefill(PrefillParamsOf(parts.suffix))) return false;
  int64_t decode_bytes = 0;
  if (decodes) {
    const auto bytes = PagedDecodeWorkspaceBytes(context, PagedDecodeParamsOf(parts.suffix));
    if (!bytes.ok()) return bytes.status();
    decode_bytes = *bytes;
  }

  int64_t count = WantedPieces(args, launch->num_multiprocessors);
  PrefixPieces pieces;
  while (true) {
    pieces = CutPrefix(args, count);
    WorkspaceArena arena(memory);
    // Decode's part is where it is in other calls with this workspace.
    if (arena.Take(decode_bytes).ok() && LayOut(args, pieces, arena, &parts)) break;
    if (count == 1) return false;
    count /= 2;
  }
  const PrefillParams prefix = PrefillParamsOf(parts.prefix);
  if (!TakesPrefill(prefix)) return false;

  absl::Status status = StatusOf(op, LaunchCascadeInputs(*launch, parts.inputs));
  if (status.ok()) status = StatusOf(op, LaunchPrefill(*launch, prefix));
  if (status.ok()) {
    status = decodes ? RunPagedDecode(op, context, PagedDecodeParamsOf(parts.suffix))
                     : StatusOf(op, LaunchPrefill(*launch, PrefillParamsOf(parts.suffix)));
  }
  if (status.ok()) {
    status = StatusOf(op, LaunchMergeStates(*launch, MergeOf(prefill, parts, pieces.count + 1)));
  }
  if (!status.ok()) return status;
  return true;
}

}  // namespace kvblocks::attention::cuda
