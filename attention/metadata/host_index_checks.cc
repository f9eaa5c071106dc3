#include "attention/metadata/host_index_checks.h"

#include <algorithm>

#include "absl/strings/str_cat.h"
#include "checks/checked_int64.h"
#include "kvblocks/check.h"

namespace kvblocks::attention {
namespace {

}  // namespace

bool IndexChecker::Dense(const char* name, const ConstTensorView& tensor, int rank,
                         int64_t least_rows, int64_t columns, DType dtype) {
  if (!View(name, tensor, dtype)) return false;
  return (tensor.rank == rank && tensor.extent[0] >= least_rows &&
          (columns < 0 || tensor.extent[1] == columns) && tensor.contiguous()) ||
         Invalid(name, " is ", tensor.DebugString(), "; it must be a dense ", Name(dtype),
                 " tensor of rank ", rank, " with ", least_rows, " rows or more",
                 columns < 0 ? std::string() : absl::StrCat(" and ", columns, " columns"));
}

void IndexChecker::BlockTable(const ConstTensorView& table, int64_t num_reqs,
                              int64_t block_size) {
  if (block_size < 1 || block_size > kMaxInt32) {
    Invalid("block_size is ", block_size, "; it must be from 1 to ", kMaxInt32);
  }
  Read("block_table", table, 2, num_reqs);
}

int64_t LastBlockId(int64_t block_size, int64_t num_blocks, int64_t max_slot) {
  // One bound serves both: ids of the cache, and slots that the output type can hold.
  const int64_t last_of_cache = num_blocks > 0 ? std::min(num_blocks, kMaxInt32) - 1 : kMaxInt32;
  return std::min(last_of_cache, (max_slot - (block_size - 1)) / block_size);
}

absl::StatusOr<int64_t> CheckQueryStartLoc(const char* operation, const ConstTensorView& offsets) {
  IndexChecker check(ExecContext(), operation);
  if (!check.Dense("query_start_loc", offsets, 1, 1)) return check.status();
  const auto* starts = offsets.as<int32_t>();
  if (starts[0] != 0) {
    return InvalidArgument(operation, ": query_start_loc[0] is ", starts[0], "; it must be 0");
  }
  for (int64_t b = 1; b < offsets.extent[0]; ++b) {
    if (starts[b] < starts[b - 1]) {
      return InvalidArgument(operation, ": query_start_loc[", b, "] is ", starts[b],
                             ", less than the ", starts[b - 1], " before it; it must not decrease");
    }
  }
  return starts[offsets.extent[0] - 1];
}

absl::Status CheckSeqLens(const char* operation, const ConstTensorView& query_start_loc,
                          const ConstTensorView& seq_lens) {
  const int64_t num_reqs = query_start_loc.extent[0] - 1;
  IndexChecker check(ExecContext(), operation);
  if (!check.Dense("seq_lens", seq_lens, 1, num_reqs)) return check.status();
  const auto* starts = query_start_loc.as<int32_t>();
  const auto* lens = seq_lens.as<int32_t>();
  for (int64_t b = 0; b < num_reqs; ++b) {
    if (lens[b] < starts[b + 1] - starts[b]) {
      return InvalidArgument(operation, ": request ", b, ": seq_lens is ", lens[b],
                             ", less than its ", starts[b + 1] - starts[b],
                             " new tokens, which it must include");
    }
  }
  return absl::OkStatus();
}

absl::StatusOr<HostBlockTable> HostBlockTable::Create(const char* operation,
                                                      const ConstTensorView& table,
                                                      int64_t num_reqs, int64_t block_size,
                                                      int64_t num_blocks, int64_t max_slot) {
  IndexChecker check(ExecContext(), operation);
  check.BlockTable(table, num_reqs, block_size);
  if (!check.ok()) return check.status();
  HostBlockTable checked;
  checked.operation_ = operation;
  checked.table_ = table.as<int32_t>();
  checked.columns_ = table.extent[1];
  checked.block_size_ = block_size;
  checked.last_block_ = LastBlockId(block_size, num_blocks, max_slot);
  return checked;
}

absl::Status HostBlockTable::CheckRows(int64_t request, int64_t begin, int64_t end) const {
  if (begin >= end) return absl::OkStatus();
  if (begin < 0 || (end - 1) / block_size_ >= columns_) {
    return OutOfRange(operation_, ": request ", request, " needs rows ", begin, " to ", end - 1,
                      "; block_table has ", columns_, " columns of ", block_size_);
  }
  for (int64_t column = begin / block_size_; column <= (end - 1) / block_size_; ++column) {
    const int32_t block = Block(request, column);
    if (block < 0 || block > last_block_) {
      return OutOfRange(operation_, ": request ", request, ": block_table[", request, ", ", column,
                        "] is ", block, "; ids are from 0 to ", last_block_);
    }
  }
  return absl::OkStatus();
}

}  // namespace kvblocks::attention
