#include "attention/metadata/slot_mapping.h"

#include <algorithm>
#include <string>

#include "absl/strings/str_cat.h"

namespace kvblocks::attention {
namespace {

absl::Status CheckTensor(const char* name, const ConstTensorView& tensor, int rank, DType dtype,
                         int64_t least) {
  if (tensor.rank == rank && tensor.dtype == dtype && tensor.extent[0] >= least &&
      tensor.device.on_host() && tensor.contiguous()) {
    return absl::OkStatus();
  }
  return absl::InvalidArgumentError(
      absl::StrCat("ComputeSlotMapping: ", name, " is ", tensor.DebugString(), " on ",
                   Name(tensor.device), "; it must be a contiguous ", Name(dtype),
                   " tensor of rank ", rank, " with at least ", least, " rows in host memory"));
}

}  // namespace

absl::StatusOr<int64_t> BlockExpansion(int64_t manager_block_size, int64_t kernel_block_size) {
  if (manager_block_size < 1 || kernel_block_size < 1 ||
      manager_block_size % kernel_block_size != 0) {
    return absl::InvalidArgumentError(
        absl::StrCat("block size of the manager is ", manager_block_size, ", of the kernel ",
                     kernel_block_size, "; the first must be a positive multiple of the second"));
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

absl::Status ComputeSlotMapping(const SlotMappingArgs& args) {
  if (args.block_size < 1) {
    return absl::InvalidArgumentError(absl::StrCat("ComputeSlotMapping: block_size is ",
                                                   args.block_size, "; it must be at least 1"));
  }
  absl::Status status = CheckTensor("query_start_loc", args.query_start_loc, 1, DType::kI32, 1);
  if (!status.ok()) return status;
  const int64_t num_reqs = args.query_start_loc.extent[0] - 1;
  const auto* starts = args.query_start_loc.as<int32_t>();
  if (starts[0] != 0) {
    return absl::InvalidArgumentError(
        absl::StrCat("ComputeSlotMapping: query_start_loc[0] is ", starts[0], "; it must be 0"));
  }
  for (int64_t b = 0; b < num_reqs; ++b) {
    if (starts[b + 1] < starts[b]) {
      return absl::InvalidArgumentError(
          absl::StrCat("ComputeSlotMapping: query_start_loc[", b + 1, "] is ", starts[b + 1],
                       ", less than the ", starts[b], " before it; offsets must not decrease"));
    }
  }
  const int64_t num_tokens = starts[num_reqs];
  status = CheckTensor("positions", args.positions, 1, DType::kI32, num_tokens);
  if (!status.ok()) return status;
  status = CheckTensor("block_table", args.block_table, 2, DType::kI32, num_reqs);
  if (!status.ok()) return status;
  status = CheckTensor("slot_mapping", args.slot_mapping, 1, DType::kI64, num_tokens);
  if (!status.ok()) return status;

  const auto* positions = args.positions.as<int32_t>();
  const auto* table = args.block_table.as<int32_t>();
  const int64_t columns = args.block_table.extent[1];
  for (int64_t b = 0; b < num_reqs; ++b) {
    for (int64_t t = starts[b]; t < starts[b + 1]; ++t) {
      const int64_t column = positions[t] / args.block_size;
      if (positions[t] < 0 || column >= columns) {
        return absl::OutOfRangeError(absl::StrCat(
            "ComputeSlotMapping: request ", b, ": token ", t, " is at position ", positions[t],
            "; block_table covers positions 0 to ", columns * args.block_size - 1));
      }
      const int64_t block = table[b * columns + column];
      if (block < 0 || (args.num_blocks > 0 && block >= args.num_blocks)) {
        return absl::OutOfRangeError(
            absl::StrCat("ComputeSlotMapping: request ", b, ": block_table[", b, ", ", column,
                         "] is ", block, "; ids are from 0 to ",
                         args.num_blocks > 0 ? args.num_blocks - 1 : int64_t{2147483647}));
      }
    }
  }

  auto* slots = args.slot_mapping.as<int64_t>();
  for (int64_t b = 0; b < num_reqs; ++b) {
    for (int64_t t = starts[b]; t < starts[b + 1]; ++t) {
      const int32_t block = table[b * columns + positions[t] / args.block_size];
      slots[t] = args.null_blocks.contains(block)
                     ? -1
                     : block * args.block_size + positions[t] % args.block_size;
    }
  }
  std::fill(slots + num_tokens, slots + args.slot_mapping.extent[0], int64_t{-1});
  return absl::OkStatus();
}

}  // namespace kvblocks::attention
