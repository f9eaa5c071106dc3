#include "attention/cuda/index_ops.h"

#include <algorithm>
#include <cstdint>
#include <limits>

#include "attention/cuda/cuda_call.h"
#include "attention/cuda/kernels/index_ops.h"
#include "attention/metadata/host_index_checks.h"
#include "checks/checked_int64.h"
#include "checks/status_macros.h"

namespace kvblocks::attention::cuda {
namespace {

constexpr int64_t kMaxInt64 = std::numeric_limits<int64_t>::max();

IndexBatch BatchOf(const ConstTensorView& query_start_loc, int64_t most_tokens) {
  IndexBatch batch;
  batch.query_start_loc = query_start_loc.as<int32_t>();
  batch.num_requests = static_cast<int32_t>(query_start_loc.extent[0] - 1);
  batch.most_tokens = most_tokens;
  return batch;
}

// With the block table of checked arguments.
template <typename Args>
IndexBatch PagedBatchOf(const Args& args, int64_t most_tokens, int64_t max_slot) {
  IndexBatch batch = BatchOf(args.query_start_loc, most_tokens);
  batch.block_table = args.block_table.template as<int32_t>();
  batch.columns = static_cast<int32_t>(std::min(args.block_table.extent[1], kMaxInt32));
  batch.block_size = static_cast<int32_t>(args.block_size);
  batch.last_block = static_cast<int32_t>(LastBlockId(args.block_size, args.num_blocks, max_slot));
  return batch;
}

void SetOutputs(const TensorView& indices, const TensorView& lens, IndexListParams* params) {
  params->indices = indices.as<int32_t>();
  params->rows = indices.extent[0];
  params->width = indices.extent[1];
  params->lens = lens.as<int32_t>();
  params->num_lens = lens.extent[0];
}

template <typename Params>
absl::Status Run(const char* operation, const ExecContext& context,
                 Error (*launch)(const LaunchContext&, const Params&), const Params& params) {
  KVBLOCKS_ASSIGN_OR_RETURN(const CudaCall call, CudaCall::Begin(operation, context));
  return call.Launch(launch, params);
}

template <typename Args>
SlotParams SlotParamsOf(const Args& args) {
  SlotParams params;
  params.batch = PagedBatchOf(args, std::min(args.positions.extent[0], args.slot_mapping.extent[0]),
                              kMaxInt64);
  params.positions = args.positions.template as<int32_t>();
  params.slots = args.slot_mapping.template as<int64_t>();
  params.num_slots = args.slot_mapping.extent[0];
  return params;
}

}  // namespace

absl::Status CudaGatherInputTokens(const ExecContext& context, const InputTokensArgs& args) {
  KVBLOCKS_RETURN_IF_ERROR(CheckTensors(context, args, 0, 0));
  InputTokenParams params;
  const int64_t num_ids = args.input_ids.extent[0];
  const int64_t num_positions = args.positions.absent() ? 0 : args.positions.extent[0];
  params.batch = BatchOf(args.query_start_loc,
                         args.positions.absent() ? num_ids : std::min(num_ids, num_positions));
  params.request_rows = args.request_rows.as<int32_t>();
  params.num_computed = args.num_computed.as<int32_t>();
  params.token_ids = args.token_ids.as<int32_t>();
  params.num_rows = args.token_ids.extent[0];
  params.max_len = args.token_ids.extent[1];
  params.logits_start_loc = args.logits_start_loc.as<int32_t>();
  params.last_rows = args.last_rows.as<int32_t>();
  if (!args.sampled.absent()) {
    params.sampled = args.sampled.as<int32_t>();
    params.num_last_rows = args.sampled.extent[0];
    params.sampled_width = args.sampled.extent[1];
  }
  if (!args.drafts.absent()) {
    params.drafts = args.drafts.as<int32_t>();
    params.num_last_rows = std::min(params.num_last_rows, args.drafts.extent[0]);
    params.num_drafts = args.drafts.extent[1];
  }
  params.input_ids = args.input_ids.data;
  params.wide_ids = args.input_ids.dtype == DType::kI64;
  params.num_ids = num_ids;
  params.positions = args.positions.data;
  params.wide_positions = args.positions.dtype == DType::kI64;
  params.num_positions = num_positions;
  if (!args.logits_indices.absent()) {
    params.logits_indices = args.logits_indices.as<int32_t>();
    params.num_logits = args.logits_indices.extent[0];
  }
  return Run("GatherInputTokens", context, LaunchInputTokens, params);
}

absl::Status CudaComputeSlotMapping(const ExecContext& context, const SlotMappingArgs& args) {
  KVBLOCKS_RETURN_IF_ERROR(CheckTensors(context, args, 0));
  SlotParams params = SlotParamsOf(args);
  params.null_first = args.null_blocks.first;
  params.null_count = args.null_blocks.count;
  params.sink_rows = args.sink_rows;
  params.num_ranks = args.context_parallel.num_ranks;
  params.rank = args.context_parallel.rank;
  params.interleave = args.context_parallel.interleave;
  return Run("ComputeSlotMapping", context, LaunchSlots, params);
}

absl::Status CudaBuildCompressedSlots(const ExecContext& context, const CompressedSlotsArgs& args) {
  KVBLOCKS_RETURN_IF_ERROR(CheckTensors(context, args, 0));
  SlotParams params = SlotParamsOf(args);
  params.ratio = args.ratio;
  return Run("BuildCompressedSlots", context, LaunchSlots, params);
}

absl::Status CudaBuildSwaIndices(const ExecContext& context, const WindowIndicesArgs& args) {
  KVBLOCKS_RETURN_IF_ERROR(CheckTensors(context, args, 0));
  IndexListParams params;
  params.batch = PagedBatchOf(args, args.indices.extent[0], kMaxInt32);
  params.seq_lens = args.seq_lens.as<int32_t>();
  params.window = args.window;
  params.sink_rows = args.sink_rows;
  SetOutputs(args.indices, args.lens, &params);
  return Run("BuildSwaIndices", context, LaunchWindowLists, params);
}

absl::Status CudaBuildTopkSlots(const ExecContext& context, const TopkSlotsArgs& args) {
  KVBLOCKS_RETURN_IF_ERROR(CheckTensors(context, args, 0));
  IndexListParams params;
  params.batch =
      PagedBatchOf(args, std::min(args.indices.extent[0], args.slots.extent[0]), kMaxInt32);
  params.from = args.indices.as<int32_t>();
  params.from_width = args.indices.extent[1];
  SetOutputs(args.slots, args.counts, &params);
  return Run("BuildTopkSlots", context, LaunchTopkSlots, params);
}

absl::Status CudaBuildDenseCompressedIndices(const ExecContext& context,
                                             const DenseCompressedIndicesArgs& args) {
  KVBLOCKS_RETURN_IF_ERROR(CheckTensors(context, args, 0));
  IndexListParams params;
  params.batch =
      BatchOf(args.query_start_loc, std::min(args.positions.extent[0], args.indices.extent[0]));
  params.positions = args.positions.as<int32_t>();
  params.ratio = args.ratio;
  SetOutputs(args.indices, args.lens, &params);
  return Run("BuildDenseCompressedIndices", context, LaunchDenseLists, params);
}

absl::Status CudaCombinePrefillIndices(const ExecContext& context, const PrefillIndicesArgs& args) {
  KVBLOCKS_RETURN_IF_ERROR(CheckTensors(context, args, 0));
  IndexListParams params;
  params.batch = BatchOf(args.query_start_loc, args.indices.extent[0]);
  params.seq_lens = args.seq_lens.as<int32_t>();
  if (!args.topk.absent()) {
    params.batch.most_tokens = std::min(params.batch.most_tokens, args.topk.extent[0]);
    params.from = args.topk.as<int32_t>();
    params.from_width = args.topk.extent[1];
  }
  params.ratio = args.ratio;
  params.window = args.window;
  params.rows_per_request = args.rows_per_request;
  params.compressed_rows = args.compressed_rows;
  SetOutputs(args.indices, args.lens, &params);
  return Run("CombinePrefillIndices", context, LaunchPrefillLists, params);
}

}  // namespace kvblocks::attention::cuda
