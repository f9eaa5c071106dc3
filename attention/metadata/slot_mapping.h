// Where tokens live: from block ids and positions to slots.
//
// A slot is physical block * block size + offset in the block, one number per token position of a
// cache; -1 means that nothing is stored (padding, and tokens whose block is the null block).
// A manager's block may be m blocks of the kernel: id B is then the kernel's B*m ... B*m + m - 1.

#ifndef KVBLOCKS_ATTENTION_METADATA_SLOT_MAPPING_H_
#define KVBLOCKS_ATTENTION_METADATA_SLOT_MAPPING_H_

#include <cstdint>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "kvblocks/attention_args.h"
#include "kvblocks/attention_metadata.h"
#include "kvblocks/kv_cache_view.h"
#include "kvblocks/tensor_view.h"

namespace kvblocks::attention {

// m, or InvalidArgument unless the manager's block is a whole number of kernel blocks.
absl::StatusOr<int64_t> BlockExpansion(int64_t manager_block_size, int64_t kernel_block_size);

// REQUIRES: out has ids.size() * expansion elements; every id * expansion fits in int32.
void ExpandBlockIds(absl::Span<const int32_t> ids, int64_t expansion, int32_t* out);

// The same with the numbers of a map. REQUIRES: every id is a page of it.
void MapBlockIds(const BlockMap& map, absl::Span<const int32_t> ids, int64_t expansion,
                 int32_t* out);

// Kernel blocks that the manager's null block stands for; none if count is 0.
struct NullBlocks {
  int32_t first = 0;
  int32_t count = 1;

  bool contains(int32_t block) const { return block >= first && block - int64_t{first} < count; }
};

// slot_mapping[t] = block_table[b][r / BS] * BS + r % BS for the tokens t of request b, r the rows
// of their positions p: p behind the sink rows that begin the table, or p's on a rank of context
// parallelism; -1 for tokens of other ranks and behind the last token. Host tensors:
// query_start_loc i32 [R + 1], positions i32 [T or more], block_table i32 [R or more, columns],
// slot_mapping i64 [T or more].
struct SlotMappingArgs {
  ConstTensorView query_start_loc = {}, positions = {}, block_table = {};
  int64_t block_size = 0;
  int64_t num_blocks = 0;  // of the cache: ids are below it; 0: unknown
  NullBlocks null_blocks = {};
  int64_t sink_rows = 0;  // that block tables begin with
  ContextParallel context_parallel = {};
  TensorView slot_mapping = {};
};
absl::Status ComputeSlotMapping(const SlotMappingArgs& args);
// What can be checked without reading tensors, for at least `num_tokens` tokens, on any device.
absl::Status CheckTensors(const ExecContext& context, const SlotMappingArgs& args,
                          int64_t num_tokens);

}  // namespace kvblocks::attention

#endif  // KVBLOCKS_ATTENTION_METADATA_SLOT_MAPPING_H_
