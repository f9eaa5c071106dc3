// KvGroupConfig: one KV-cache group as attention metadata sees it.
//
// A group counts in three units: tokens, which positions count; rows of its cache, one per token or
// one per compression_ratio tokens; and blocks, the manager's (manager_block_size tokens) and the
// kernel's (kernel_block_size rows). A manager's block is a whole number of rows and of kernel
// blocks. Over several ranks of context parallelism a manager's block is so many tokens on all of
// them together, and rows are those of one rank.
//
// Sink blocks are blocks that the manager has taken for good (SingleTypeManager::sink_blocks): rows
// of learned keys and values that every query sees. Each table begins with them, lengths count
// their rows, and positions do not: a request's token p is row num_sink_rows() + p of its table.

#ifndef KVBLOCKS_ATTENTION_METADATA_KV_GROUP_H_
#define KVBLOCKS_ATTENTION_METADATA_KV_GROUP_H_

#include <algorithm>
#include <cstdint>
#include <optional>
#include <vector>

#include "absl/status/status.h"
#include "absl/types/span.h"
#include "kvblocks/attention/cache/page_place.h"
#include "kvblocks/attention/metadata/batch_input.h"
#include "kvblocks/attention/metadata/context_parallel.h"
#include "kvblocks/attention/ops/kv_group_key.h"

namespace kvblocks::attention {

struct KvGroupConfig {
  int64_t manager_block_size = 16;  // tokens per block id of the manager
  int64_t kernel_block_size = 16;   // cache rows per block of the kernel
  int64_t num_blocks = 0;           // of the manager; ids are below it
  int64_t window = 0;               // in tokens, the query included; 0: full attention
  int64_t compression_ratio = 1;    // tokens per cache row
  int32_t null_block = 0;           // of the manager; never stored to; -1: there is none
  // Block numbers of the cache's view, where pages do not lie end to end (PlacePages). Tables and
  // slots then hold these.
  std::optional<BlockMap> block_map = std::nullopt;
  std::vector<int32_t> sink_blocks = {};  // of the manager; empty: none
  ContextParallel context_parallel = {};  // one rank unless said otherwise

  KvGroupKey key() const { return {kernel_block_size, window, compression_ratio}; }
  // The following REQUIRE a config that CheckKvGroup accepts.
  int64_t rows_per_block() const {
    return manager_block_size / compression_ratio / context_parallel.num_ranks;
  }
  int64_t expansion() const { return rows_per_block() / kernel_block_size; }
  // The cache's number of a manager's block, or of the first kernel block in it.
  int64_t FirstKernelBlock(int32_t id) const {
    return block_map ? block_map->First(id) : id * expansion();
  }
  int64_t num_sink_rows() const {
    return static_cast<int64_t>(sink_blocks.size()) * rows_per_block();
  }
  bool IsPage(int32_t id) const { return !block_map || block_map->IsPage(id); }
  // The first block of the manager that a query at or behind `position` may look at.
  int64_t FirstVisibleBlock(int64_t position) const {
    return window == 0 ? 0 : std::max<int64_t>(0, position - window + 1) / manager_block_size;
  }
};

// InvalidArgument unless units fit together and a table for these bounds can be addressed.
absl::Status CheckKvGroup(const KvGroupConfig& config, int64_t max_num_reqs, int64_t max_seq_len);

// The slots of the rows of the sink blocks: where an engine stores the learned keys and values,
// once. REQUIRES: a checked config, num_sink_rows() slots.
void FillSinkSlots(const KvGroupConfig& config, int64_t* slots);

// The slots of a request's new tokens: -1 in the null block, for tokens that complete no row of
// a compressed cache, and for those of other ranks. REQUIRES: a checked config, ids that cover the request, one slot per new
// token.
void FillSlots(const KvGroupConfig& config, absl::Span<const int32_t> ids,
               const RequestInput& request, int64_t* slots);

}  // namespace kvblocks::attention

#endif  // KVBLOCKS_ATTENTION_METADATA_KV_GROUP_H_
