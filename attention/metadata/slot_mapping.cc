#include "kvblocks/attention/metadata/slot_mapping.h"

#include <algorithm>
#include <limits>

#include "kvblocks/attention/metadata/host_index_checks.h"
#include "kvblocks/checks/status_macros.h"
#include "kvblocks/checks/status_text.h"

namespace kvblocks::attention {
namespace {

constexpr char kOp[] = "ComputeSlotMapping";

// The row of a position in the table, or -1: another rank's. Positions below 0 stay below it.
int64_t RowOf(const SlotMappingArgs& args, int64_t position) {
  if (position < 0) return position;
  if (!args.context_parallel.enabled()) return args.sink_rows + position;
  return args.context_parallel.IsLocal(position) ? args.context_parallel.LocalRow(position) : -1;
}

}  // namespace

absl::StatusOr<int64_t> BlockExpansion(int64_t manager_block_size, int64_t kernel_block_size) {
  if (manager_block_size < 1 || kernel_block_size < 1 ||
      manager_block_size % kernel_block_size != 0) {
    return InvalidArgument("block size of the manager is ", manager_block_size, ", of the kernel ",
                           kernel_block_size,
                           "; the first must be a positive multiple of the second");
  }
  return manager_block_size / kernel_block_size;
}

void ExpandBlockIds(absl::Span<const int32_t> ids, int64_t expansion, int32_t* out) {
  if (expansion == 1) {
    std::copy(ids.begin(), ids.end(), out);
    return;
  }
  const auto m = static_cast<int32_t>(expansion);
  for (const int32_t id : ids) {
    for (int32_t i = 0; i < m; ++i) *out++ = id * m + i;
  }
}

void MapBlockIds(const BlockMap& map, absl::Span<const int32_t> ids, int64_t expansion,
                 int32_t* out) {
  for (const int32_t id : ids) {
    const int64_t first = map.First(id);
    for (int64_t i = 0; i < expansion; ++i) {
      *out++ = static_cast<int32_t>(first + i * map.block_stride);
    }
  }
}

absl::Status CheckTensors(const ExecContext& context, const SlotMappingArgs& args,
                          int64_t num_tokens) {
  for (const absl::Status& status :
       {CheckBatchTensors(context, kOp, args),
        CheckIndexTensor(context, kOp, "positions", args.positions, DType::kI32, 1, num_tokens),
        CheckIndexTensor(context, kOp, "slot_mapping", args.slot_mapping, DType::kI64, 1,
                         num_tokens)}) {
    if (!status.ok()) return status;
  }
  const absl::Status parallel = CheckContextParallel(args.context_parallel, args.block_size);
  if (!parallel.ok()) return InvalidArgument(kOp, ": ", std::string(parallel.message()).c_str());
  if (args.sink_rows < 0 || args.sink_rows > std::numeric_limits<int32_t>::max() ||
      (args.sink_rows > 0 && args.context_parallel.enabled())) {
    return InvalidArgument(kOp, ": sink_rows is ", args.sink_rows, " with ",
                           args.context_parallel.num_ranks,
                           " ranks; at least 0, and 0 with more than one rank");
  }
  return CheckApart(kOp, {{"slot_mapping", args.slot_mapping}},
                    {{"query_start_loc", args.query_start_loc},
                     {"positions", args.positions},
                     {"block_table", args.block_table}});
}

absl::Status ComputeSlotMapping(const SlotMappingArgs& args) {
  KVBLOCKS_ASSIGN_OR_RETURN(const auto batch,
                            CheckBatch(kOp, args, std::numeric_limits<int64_t>::max()));
  const auto& [num_reqs, num_tokens, table] = batch;
  KVBLOCKS_RETURN_IF_ERROR(CheckTensors(ExecContext(), args, num_tokens));
  const auto* starts = args.query_start_loc.as<int32_t>();
  const auto* positions = args.positions.as<int32_t>();
  for (int64_t b = 0; b < num_reqs; ++b) {
    for (int64_t t = starts[b]; t < starts[b + 1]; ++t) {
      const int64_t row = RowOf(args, positions[t]);
      if (row < 0 && positions[t] >= 0) continue;
      KVBLOCKS_RETURN_IF_ERROR(table.CheckRows(b, row, row + 1));
    }
  }

  auto* slots = args.slot_mapping.as<int64_t>();
  for (int64_t b = 0; b < num_reqs; ++b) {
    for (int64_t t = starts[b]; t < starts[b + 1]; ++t) {
      const int64_t row = RowOf(args, positions[t]);
      const bool nowhere =
          row < 0 || args.null_blocks.contains(table.Block(b, row / args.block_size));
      slots[t] = nowhere ? -1 : table.Slot(b, row);
    }
  }
  std::fill(slots + num_tokens, slots + args.slot_mapping.extent[0], int64_t{-1});
  return absl::OkStatus();
}

}  // namespace kvblocks::attention
