#include "kvblocks/attention/cuda/paged_decode_ops.h"

#include <algorithm>
#include <string>

#include "absl/strings/str_cat.h"
#include "absl/types/span.h"
#include "kvblocks/attention/backends/workspace.h"
#include "kvblocks/attention/cuda/kernel_params.h"
#include "kvblocks/attention/ops/checks.h"

namespace kvblocks::attention::cuda {
namespace {

// What both arguments have under the same names.
template <typename Args>
PagedDecodeParams CommonParamsOf(const Args& args) {
  PagedDecodeParams params;
  params.q = ConstRowsOf(args.q);
  params.out = RowsOf(args.out);
  PlaceLse(args.lse, params);
  params.keys = PagedKeysOf(args.cache, args.params.scales, args.block_table, args.seq_lens);
  params.scoring = ScoringOf(args.params);
  params.num_requests = static_cast<int32_t>(args.seq_lens.extent[0]);
  params.num_heads = static_cast<int32_t>(args.q.extent[1]);
  params.num_kv_heads = static_cast<int32_t>(args.cache.num_kv_heads());
  params.key_dim = static_cast<int32_t>(args.cache.key_dim());
  params.value_dim = static_cast<int32_t>(args.cache.value_dim());
  params.max_seq_len = args.max_seq_len;
  params.split = static_cast<SplitKind>(args.params.split.kind);
  params.split_value = args.params.split.value;
  return params;
}

// Empty if a plan made for `plan` serves `params`, else what differs.
std::string Difference(const DeviceDecodePlan& plan, const PagedDecodeArgs& args) {
  const auto differs = [](const char* what, int64_t planned, int64_t given) {
    return absl::StrCat("the plan is for ", what, " ", planned, ", this call has ", given);
  };
  if (plan.num_requests != args.seq_lens.extent[0]) {
    return differs("R =", plan.num_requests, args.seq_lens.extent[0]);
  }
  if (plan.num_heads != args.q.extent[1]) return differs("H =", plan.num_heads, args.q.extent[1]);
  if (plan.num_kv_heads != args.cache.num_kv_heads()) {
    return differs("Hkv =", plan.num_kv_heads, args.cache.num_kv_heads());
  }
  if (plan.key_dim != args.cache.key_dim()) {
    return differs("D =", plan.key_dim, args.cache.key_dim());
  }
  if (plan.value_dim != args.cache.value_dim()) {
    return differs("Dv =", plan.value_dim, args.cache.value_dim());
  }
  if (plan.block_size != args.cache.block_size()) {
    return differs("blocks of", plan.block_size, args.cache.block_size());
  }
  if (plan.window_left != args.params.window_left) {
    return differs("window_left =", plan.window_left, args.params.window_left);
  }
  if (plan.table_columns != args.block_table.extent[1]) {
    return differs("table columns", plan.table_columns, args.block_table.extent[1]);
  }
  if (plan.max_seq_len != args.max_seq_len) {
    return differs("max_seq_len =", plan.max_seq_len, args.max_seq_len);
  }
  if (plan.split.kind != args.params.split.kind || plan.split.value != args.params.split.value) {
    return "the plan is for another split policy";
  }
  return "";
}

absl::Status NotTaken(const char* operation) {
  return absl::UnimplementedError(
      absl::StrCat(operation, ": not built for this layout, type, head size or score feature"));
}

}  // namespace

PagedDecodeParams PagedDecodeParamsOf(const PagedDecodeArgs& args) {
  PagedDecodeParams params = CommonParamsOf(args);
  if (args.device_plan != nullptr) params.plan = args.device_plan->memory.data;
  return params;
}

bool IsForPagedDecode(const PagedPrefillArgs& args) {
  const int64_t group = args.q.extent[1] / std::max<int64_t>(1, args.cache.num_kv_heads());
  return args.query_positions.absent() && args.out_scale == 0 && args.max_query_len * group <= 64;
}

PagedDecodeParams PagedDecodeParamsOf(const PagedPrefillArgs& args) {
  PagedDecodeParams params = CommonParamsOf(args);
  params.query_start_loc = args.query_start_loc.as<int32_t>();
  params.max_query_len = static_cast<int32_t>(args.max_query_len);
  return params;
}

absl::StatusOr<int64_t> PagedDecodeWorkspaceBytes(const ExecContext& context,
                                                  const PagedDecodeParams& params) {
  const absl::StatusOr<LaunchContext> launch = LaunchContextOf("PagedDecode", context);
  if (!launch.ok()) return launch.status();
  return static_cast<int64_t>(WorkspaceOf(params, launch->num_multiprocessors).bytes);
}

absl::Status CheckDevicePlan(const PagedDecodeArgs& args) {
  if (args.device_plan == nullptr) return absl::OkStatus();
  const std::string difference = Difference(*args.device_plan, args);
  if (difference.empty()) return absl::OkStatus();
  return absl::FailedPreconditionError(
      absl::StrCat("PagedDecode: device_plan: ", difference, "; plan again"));
}

absl::Status RunPagedDecode(const char* operation, const ExecContext& context,
                            const PagedDecodeParams& params) {
  absl::StatusOr<LaunchContext> launch = LaunchContextOf(operation, context);
  if (!launch.ok()) return launch.status();
  const size_t needed = WorkspaceOf(params, launch->num_multiprocessors).bytes;
  WorkspaceArena arena(context.workspace == nullptr ? absl::Span<std::byte>()
                                                    : context.workspace->device);
  const auto memory = arena.Take(static_cast<int64_t>(needed));
  if (!memory.ok()) return memory.status();
  return StatusOf(operation, LaunchPagedDecode(*launch, params));
}

absl::Status CudaFastPagedDecode(const ExecContext& context, const PagedDecodeArgs& args) {
  absl::Status status = Check(context, args);
  if (!status.ok()) return status;
  status = CheckDevicePlan(args);
  if (!status.ok()) return status;
  const PagedDecodeParams params = PagedDecodeParamsOf(args);
  if (!TakesPagedDecode(params)) return NotTaken("PagedDecode");
  return RunPagedDecode("PagedDecode", context, params);
}

absl::Status CudaFastPagedPrefill(const ExecContext& context, const PagedPrefillArgs& args) {
  absl::Status status = Check(context, args);
  if (!status.ok()) return status;
  if (!IsForPagedDecode(args)) return NotTaken("PagedPrefill");
  const PagedDecodeParams params = PagedDecodeParamsOf(args);
  if (!TakesPagedDecode(params)) return NotTaken("PagedPrefill");
  return RunPagedDecode("PagedPrefill", context, params);
}

absl::Status CudaPlanDecode(const ExecContext& context, const PagedDecodeArgs& args,
                            DeviceDecodePlan* plan) {
  absl::Status status = Check(context, args);
  if (!status.ok()) return status;
  const PagedDecodeParams params = PagedDecodeParamsOf(args);
  if (!TakesPagedDecode(params)) return NotTaken("PlanDecode");
  const absl::StatusOr<LaunchContext> launch = LaunchContextOf("PlanDecode", context);
  if (!launch.ok()) return launch.status();
  const DecodePlanParams decode = DecodePlanOf(params, launch->num_multiprocessors);
  const size_t needed = LayoutOf(decode).bytes;
  const TensorView& memory = plan->memory;
  const int64_t given = memory.absent() ? 0 : memory.num_elements() * ElementBytes(memory.dtype);
  if (given < static_cast<int64_t>(needed)) {
    return absl::ResourceExhaustedError(
        absl::StrCat("PlanDecode: the plan needs ", needed, " bytes, memory has ", given));
  }
  plan->num_requests = args.seq_lens.extent[0];
  plan->num_heads = args.q.extent[1];
  plan->num_kv_heads = args.cache.num_kv_heads();
  plan->key_dim = args.cache.key_dim();
  plan->value_dim = args.cache.value_dim();
  plan->block_size = args.cache.block_size();
  plan->window_left = args.params.window_left;
  plan->table_columns = args.block_table.extent[1];
  plan->max_seq_len = args.max_seq_len;
  plan->split = args.params.split;
  return StatusOf("PlanDecode", LaunchDecodePlan(*launch, decode, memory.data));
}

}  // namespace kvblocks::attention::cuda
