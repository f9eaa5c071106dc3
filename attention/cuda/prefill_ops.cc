#include "kvblocks/attention/cuda/prefill_ops.h"

#include <algorithm>

#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "absl/types/span.h"
#include "kvblocks/attention/cuda/kernel_params.h"
#include "kvblocks/attention/cuda/kernels/prefill_merge.h"
#include "kvblocks/attention/ops/checks.h"

namespace kvblocks::attention::cuda {
namespace {

// What both kinds of arguments have.
template <typename Args>
PrefillParams CommonParamsOf(const Args& args) {
  PrefillParams params;
  params.q = ConstRowsOf(args.q);
  params.query_start_loc = args.query_start_loc.template as<int32_t>();
  params.query_positions = args.query_positions.template as<int32_t>();
  params.num_requests = static_cast<int32_t>(args.query_start_loc.extent[0] - 1);
  params.num_tokens = static_cast<int32_t>(args.q.extent[0]);
  params.num_heads = static_cast<int32_t>(args.q.extent[1]);
  params.key_dim = static_cast<int32_t>(args.q.extent[2]);
  params.value_dim = static_cast<int32_t>(args.out.extent[2]);
  params.scoring = ScoringOf(args.params);
  params.out_scale = args.out_scale;
  params.out = RowsOf(args.out);
  PlaceLse(args.lse, params);
  return params;
}

template <typename Args>
absl::Status Run(const char* operation, const ExecContext& context, const Args& args) {
  if (absl::Status status = Check(context, args); !status.ok()) return status;
  const PrefillParams params = PrefillParamsOf(args);
  if (!TakesPrefill(params)) {
    return absl::UnimplementedError(absl::StrCat(
        operation, " on tensor cores: not built for q ", Name(args.q.dtype), ", D ", params.key_dim,
        ", Dv ", params.value_dim, " with these keys, strides and parameters"));
  }
  absl::StatusOr<LaunchContext> launch = LaunchContextOf(operation, context);
  if (!launch.ok()) return launch.status();
  WorkspaceArena arena(context.workspace == nullptr ? absl::Span<std::byte>()
                                                    : context.workspace->device);
  return RunPrefill(operation, *launch, arena, args.params.split, params);
}

}  // namespace

PrefillParams PrefillParamsOf(const PagedPrefillArgs& args) {
  PrefillParams params = CommonParamsOf(args);
  params.keys = PagedKeysOf(args.cache, args.params.scales, args.block_table, args.seq_lens);
  params.num_kv_heads = static_cast<int32_t>(args.cache.num_kv_heads());
  params.max_query_len = static_cast<int32_t>(args.max_query_len);
  params.max_key_len = args.max_seq_len;
  return params;
}

PrefillParams PrefillParamsOf(const VarlenSelfAttentionArgs& args) {
  PrefillParams params = CommonParamsOf(args);
  Cache& cache = params.keys.cache;
  cache.element = ElementOf(args.k.dtype);
  cache.k = {args.k.data, 0, args.k.stride[0], args.k.stride[1]};
  cache.v = {args.v.data, 0, args.v.stride[0], args.v.stride[1]};
  const ConstTensorView& starts =
      args.kv_start_loc.absent() ? args.query_start_loc : args.kv_start_loc;
  params.kv_start_loc = starts.as<int32_t>();
  params.num_key_rows = args.k.extent[0];
  params.num_kv_heads = static_cast<int32_t>(args.k.extent[1]);
  params.max_key_len = args.k.extent[0] / std::max(1, params.num_requests);
  return params;
}

bool PlacePieces(WorkspaceArena& arena, int64_t arena_bytes, int32_t count, PrefillParams* params) {
  // Each of two arrays may begin up to 255 bytes behind the one before.
  const int64_t room = arena_bytes - arena.used() - 512;
  count = static_cast<int32_t>(std::min<int64_t>(count, room / PrefillPieceBytes(*params)));
  if (count < 1) return false;
  const int64_t rows = int64_t{params->num_tokens} * params->num_heads * count;
  const auto outs = arena.Take(rows * params->value_dim * 4), stats = arena.Take(rows * 2 * 4);
  if (!outs.ok() || !stats.ok()) return false;
  params->pieces = {count, reinterpret_cast<float*>(outs->data()),
                    reinterpret_cast<float*>(stats->data())};
  return true;
}

absl::Status RunPrefill(const char* operation, const LaunchContext& launch, WorkspaceArena& arena,
                        const SplitPolicy& split, const PrefillParams& params) {
  PrefillParams cut = params;
  if (split.kind == SplitPolicy::Kind::kAuto) {
    const int32_t count = PiecesForPrefill(launch, params);
    const auto bytes = static_cast<int64_t>(launch.workspace_bytes);
    if (count > 1 && PlacePieces(arena, bytes, count, &cut) && cut.pieces.count == 1) {
      cut.pieces = {};  // no room for more
    }
  }
  const absl::Status status = StatusOf(operation, LaunchPrefill(launch, cut));
  if (!status.ok() || cut.pieces.outs == nullptr) return status;
  return StatusOf(operation, LaunchPrefillMerge(launch, MergeOf(cut)));
}

absl::Status CudaPrefill(const ExecContext& context, const PagedPrefillArgs& args) {
  return Run("PagedPrefill", context, args);
}
absl::Status CudaPrefill(const ExecContext& context, const VarlenSelfAttentionArgs& args) {
  return Run("VarlenSelfAttention", context, args);
}

}  // namespace kvblocks::attention::cuda
