// Checks of the integer tensors that index operations take: lengths, offsets, tables. Messages
// begin with the operation and name request and value.
//
// Checks that take a context read no elements and serve tensors on any device; all others read them
// on the host.

#ifndef KVBLOCKS_ATTENTION_METADATA_HOST_INDEX_CHECKS_H_
#define KVBLOCKS_ATTENTION_METADATA_HOST_INDEX_CHECKS_H_

#include <cstdint>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "attention/ops/arg_checker.h"
#include "checks/status_macros.h"
#include "kvblocks/attention_args.h"
#include "kvblocks/tensor_view.h"

namespace kvblocks::attention {

// The integer tensors of one operation, one after another; the first finding counts. Finish()
// refuses tensors that are written and share memory with others.
class IndexChecker : public ArgChecker {
 public:
  IndexChecker(const ExecContext& context, const char* operation)
      : ArgChecker(context, operation) {}

  // That a tensor is well-formed, dense, on the context's device, of that type and rank, with at
  // least so many rows and, if `columns` >= 0, exactly so many columns.
  bool Dense(const char* name, const ConstTensorView& tensor, int rank, int64_t least_rows,
             int64_t columns = -1, DType dtype = DType::kI32);
  // The same of a tensor that the operation reads or writes.
  void Read(const char* name, const ConstTensorView& tensor, int rank, int64_t least_rows,
            int64_t columns = -1) {
    if (Dense(name, tensor, rank, least_rows, columns)) Reads(name, tensor);
  }
  void Write(const char* name, const ConstTensorView& tensor, int rank, int64_t least_rows,
             int64_t columns = -1, DType dtype = DType::kI32) {
    if (Dense(name, tensor, rank, least_rows, columns, dtype)) Writes(name, tensor);
  }
  // That tokens per row of a compressed cache, or tokens of a window, the query included, are at
  // least 1.
  void Ratio(int64_t ratio) {
    if (ratio < 1) Invalid("ratio is ", ratio, "; it must be at least 1");
  }
  void Window(int64_t window) {
    if (window < 1) Invalid("window is ", window, "; it must be at least 1, the query included");
  }
  // That a block table is i32 [R or more, columns] and blocks have a size that slots can have.
  void BlockTable(const ConstTensorView& table, int64_t num_reqs, int64_t block_size);
  // query_start_loc, block_table and block_size of arguments that have them.
  template <typename Args>
  void Batch(const Args& args) {
    Read("query_start_loc", args.query_start_loc, 1, 1);
    BlockTable(args.block_table, args.query_start_loc.extent[0] - 1, args.block_size);
  }
};

// The largest id of a block of the cache all of whose slots are at most `max_slot`; `num_blocks` 0:
// of any cache. REQUIRES: a checked block size.
int64_t LastBlockId(int64_t block_size, int64_t num_blocks, int64_t max_slot);

// That offsets are i32 [R + 1], from 0 and non-decreasing -> T.
absl::StatusOr<int64_t> CheckQueryStartLoc(const char* operation, const ConstTensorView& offsets);

// That seq_lens is i32 [R] and each length at least the number of the request's queries.
// REQUIRES: query_start_loc is checked.
absl::Status CheckSeqLens(const char* operation, const ConstTensorView& query_start_loc,
                          const ConstTensorView& seq_lens);

// A checked block table whose slots fit in `max_slot`.
class HostBlockTable {
 public:
  // `num_blocks` of the cache bounds ids; 0: unknown.
  static absl::StatusOr<HostBlockTable> Create(const char* operation, const ConstTensorView& table,
                                               int64_t num_reqs, int64_t block_size,
                                               int64_t num_blocks, int64_t max_slot);

  // That the blocks of rows [begin, end) of a request's cache are there and valid.
  absl::Status CheckRows(int64_t request, int64_t begin, int64_t end) const;
  // REQUIRES: checked.
  int64_t Slot(int64_t request, int64_t row) const {
    return static_cast<int64_t>(Block(request, row / block_size_)) * block_size_ +
           row % block_size_;
  }
  int32_t Block(int64_t request, int64_t column) const {
    return table_[request * columns_ + column];
  }
  int64_t block_size() const { return block_size_; }

 private:
  const char* operation_ = nullptr;
  const int32_t* table_ = nullptr;
  int64_t columns_ = 0, block_size_ = 1, last_block_ = -1;
};

// The batch of an operation over block tables.
struct HostBatch {
  int64_t num_reqs = 0, num_tokens = 0;
  HostBlockTable table;
};
// Of arguments with query_start_loc, block_table, block_size and num_blocks.
template <typename Args>
absl::StatusOr<HostBatch> CheckBatch(const char* operation, const Args& args, int64_t max_slot) {
  KVBLOCKS_ASSIGN_OR_RETURN(const int64_t num_tokens,
                            CheckQueryStartLoc(operation, args.query_start_loc));
  const int64_t num_reqs = args.query_start_loc.extent[0] - 1;
  KVBLOCKS_ASSIGN_OR_RETURN(const auto table,
                            HostBlockTable::Create(operation, args.block_table, num_reqs,
                                                   args.block_size, args.num_blocks, max_slot));
  return HostBatch{num_reqs, num_tokens, table};
}

}  // namespace kvblocks::attention

#endif  // KVBLOCKS_ATTENTION_METADATA_HOST_INDEX_CHECKS_H_
