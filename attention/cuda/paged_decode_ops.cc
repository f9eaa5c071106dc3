#include "attention/cuda/paged_decode_ops.h"

#include <algorithm>
#include <limits>
#include <string>

#include "absl/strings/str_cat.h"
#include "attention/cuda/attend_launch.h"
#include "attention/cuda/enqueue_ops.h"
#include "attention/cuda/kernel_params.h"
#include "checks/status_macros.h"
#include "kvblocks/split_planner.h"

namespace kvblocks::attention::cuda {
namespace {

template <typename Args>
PagedDecodeParams ParamsOf(const Args& args) {
  using Kind = SplitPolicy::Kind;
  static_assert(static_cast<int>(Kind::kAuto) == static_cast<int>(SplitKind::kAuto) &&
                static_cast<int>(Kind::kNone) == static_cast<int>(SplitKind::kNone) &&
                static_cast<int>(Kind::kFixed) == static_cast<int>(SplitKind::kFixed) &&
                static_cast<int>(Kind::kCount) == static_cast<int>(SplitKind::kCount));
  PagedDecodeParams params{DenseAttentionOf(args)};
  params.split = static_cast<SplitKind>(args.params.split.kind);
  params.split_value = args.params.split.value;
  return params;
}

// Empty if a plan made for `plan` serves `args`, else what differs.
std::string Difference(const DeviceDecodePlan& plan, const PagedDecodeArgs& args) {
  const struct {
    const char* what;
    int64_t planned, given;
  } all[] = {{"R =", plan.num_requests, args.seq_lens.extent[0]},
             {"H =", plan.num_heads, args.q.extent[1]},
             {"Hkv =", plan.num_kv_heads, args.cache.num_kv_heads()},
             {"D =", plan.key_dim, args.cache.key_dim()},
             {"Dv =", plan.value_dim, args.cache.value_dim()},
             {"blocks of", plan.block_size, args.cache.block_size()},
             {"window_left =", plan.window_left, args.params.window_left},
             {"chunk =", plan.chunk, args.params.chunk},
             {"table columns", plan.table_columns, args.block_table.extent[1]},
             {"max_seq_len =", plan.max_seq_len, args.max_seq_len},
             {"bytes per value of the cache:", ElementBytes(plan.cache_dtype),
              ElementBytes(args.cache.k.dtype)}};
  for (const auto& [what, planned, given] : all) {
    if (planned != given) {
      return absl::StrCat("the plan is for ", what, " ", planned, ", this call has ", given);
    }
  }
  return plan.split == args.params.split ? "" : "the plan is for another split policy";
}

// What the fast decode asks of a plan of the host; else empty. Keys are numbered in 32 bits and
// copied in eights.
std::string NotTaken(const SplitPlan& plan, const PagedDecodeArgs& args) {
  if (plan.tile % 8 != 0) {
    return absl::StrCat("it has tiles of ", plan.tile,
                        " keys; CUDA takes multiples of 8, plan with tile = 64");
  }
  int64_t most = args.max_seq_len;
  if (plan.type.window > 0) most = std::min(most, plan.type.window + args.cache.block_size());
  for (int64_t b = 0; b < plan.num_requests(); ++b) {
    if (plan.num_splits(b) > int64_t{DecodePiece::kMaxPieces}) {
      return absl::StrCat("it cuts request ", b, " into ", plan.num_splits(b),
                          " pieces; at most ", DecodePiece::kMaxPieces, " on CUDA");
    }
    const int64_t last = plan.ranges[plan.split_offsets[b + 1] - 1].begin_tile * plan.tile;
    if (last > most) {
      return absl::StrCat("its last piece of request ", b, " begins at key ", last,
                          "; the call has at most ", most, ", plan again");
    }
  }
  return "";
}

// Enqueues the pieces of a plan into device memory.
absl::Status StorePieces(const CudaCall& call, const DecodePlanParams& decode,
                         const SplitPlan& plan, void* words) {
  GivenPieces given;
  given.of = decode;
  given.plan = words;
  for (int64_t b = 0; b < plan.num_requests(); ++b) {
    const int32_t begin = plan.split_offsets[b], end = plan.split_offsets[b + 1];
    for (int32_t i = begin; i < end; ++i) {
      const SplitRange& range = plan.ranges[i];
      DecodePiece& piece = given.pieces[given.count++];
      piece.request = static_cast<int32_t>(b);
      piece.begin_tile = range.begin_tile;
      // Whatever the lengths are by then: no key is left out.
      piece.end_tile = i + 1 == end ? std::numeric_limits<int32_t>::max() : range.end_tile;
      piece.cut = static_cast<uint32_t>(end - begin) << 16 | static_cast<uint32_t>(i - begin);
      if (given.count < GivenPieces::kMost && i + 1 < plan.split_offsets.back()) continue;
      KVBLOCKS_RETURN_IF_ERROR(call.Launch(LaunchGivenPieces, given));
      given.first += given.count;
      given.count = 0;
    }
  }
  return absl::OkStatus();
}

}  // namespace

PagedDecodeParams PagedDecodeParamsOf(const PagedDecodeArgs& args) {
  PagedDecodeParams params = ParamsOf(args);
  if (args.device_plan != nullptr) params.plan = args.device_plan->memory.data;
  return params;
}

PagedDecodeParams PagedDecodeParamsOf(const PagedPrefillArgs& args) { return ParamsOf(args); }

absl::Status CheckPlans(const PagedDecodeArgs& args) {
  if (args.device_plan != nullptr) {
    if (args.plan != nullptr) {
      return absl::InvalidArgumentError("PagedDecode: plan and device_plan are given; give one");
    }
    const std::string difference = Difference(*args.device_plan, args);
    if (!difference.empty()) {
      return absl::FailedPreconditionError(
          absl::StrCat("PagedDecode: device_plan: ", difference, "; plan again"));
    }
  }
  if (args.plan != nullptr && TakesPagedDecode(PagedDecodeParamsOf(args))) {
    const std::string reason = NotTaken(*args.plan, args);
    if (!reason.empty()) {
      return absl::FailedPreconditionError(absl::StrCat("PagedDecode: plan: ", reason));
    }
  }
  return absl::OkStatus();
}

absl::Status RunPagedDecode(CudaCall& call, PagedDecodeParams params, const SplitPlan* plan) {
  const int multiprocessors = call.launch().num_multiprocessors;
  if (plan != nullptr) {
    params.split = SplitKind::kGiven;
    params.split_value = plan->split_offsets.back();
    params.given_tile = static_cast<int32_t>(plan->tile);
    params.given_window = static_cast<int32_t>(plan->type.window);
  }
  const PagedDecodeWorkspace workspace = WorkspaceOf(params, multiprocessors);
  KVBLOCKS_ASSIGN_OR_RETURN(std::byte* const memory,
                            call.Take<std::byte>(static_cast<int64_t>(workspace.bytes)));
  KVBLOCKS_RETURN_IF_ERROR(PrepareMask(call, params));
  if (plan != nullptr && params.num_requests > 0) {
    params.plan = memory + workspace.partial_bytes;
    KVBLOCKS_RETURN_IF_ERROR(
        StorePieces(call, DecodePlanOf(params, multiprocessors), *plan, params.plan));
  }
  return call.Launch(LaunchPagedDecode, params);
}

int64_t CudaDecodePlanBytes(const ExecContext& context, const PagedDecodeArgs& args) {
  constexpr char kOp[] = "DecodePlanBytes";
  if (!CheckOnCuda(context, args).ok()) return 0;
  const PagedDecodeParams params = PagedDecodeParamsOf(args);
  const absl::StatusOr<CudaCall> call = CudaCall::Begin(kOp, context);
  if (!call.ok() || !TakesPagedDecode(params) || PlansInDecode(call->launch(), params)) return 0;
  const DecodePlanParams decode = DecodePlanOf(params, call->launch().num_multiprocessors);
  return static_cast<int64_t>(LayoutOf(decode).bytes);
}

absl::Status CudaPlanDecode(const ExecContext& context, const PagedDecodeArgs& args,
                            DeviceDecodePlan* plan) {
  constexpr char kOp[] = "PlanDecode";
  KVBLOCKS_RETURN_IF_ERROR(CheckOnCuda(context, args));
  const PagedDecodeParams params = PagedDecodeParamsOf(args);
  if (!TakesPagedDecode(params)) {
    return absl::UnimplementedError(
        absl::StrCat(kOp, ": not built for this layout, type, head size or score feature"));
  }
  KVBLOCKS_ASSIGN_OR_RETURN(const CudaCall call, CudaCall::Begin(kOp, context));
  const DecodePlanParams decode = DecodePlanOf(params, call.launch().num_multiprocessors);
  const size_t needed = LayoutOf(decode).bytes;
  const TensorView& memory = plan->memory;
  const int64_t given = memory.absent() ? 0 : memory.num_elements() * ElementBytes(memory.dtype);
  if (given < static_cast<int64_t>(needed)) {
    return absl::ResourceExhaustedError(
        absl::StrCat(kOp, ": the plan needs ", needed, " bytes, memory has ", given));
  }
  plan->num_requests = args.seq_lens.extent[0];
  plan->num_heads = args.q.extent[1];
  plan->num_kv_heads = args.cache.num_kv_heads();
  plan->key_dim = args.cache.key_dim();
  plan->value_dim = args.cache.value_dim();
  plan->block_size = args.cache.block_size();
  plan->window_left = args.params.window_left;
  plan->chunk = args.params.chunk;
  plan->table_columns = args.block_table.extent[1];
  plan->max_seq_len = args.max_seq_len;
  plan->cache_dtype = args.cache.k.dtype;
  plan->split = args.params.split;
  return StatusOf(kOp, LaunchDecodePlan(call.launch(), decode, memory.data));
}

}  // namespace kvblocks::attention::cuda
