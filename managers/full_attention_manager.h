// FullAttentionManager: groups whose tokens all stay needed until the request ends - full
// attention, MLA (which differs in bytes only) and full attention with permanent sink blocks.
//
// Look-up: left to right to the first miss, O(hit + 1) probes. Nothing is trimmed and there is no
// admission cap.

#ifndef KVBLOCKS_MANAGERS_FULL_ATTENTION_MANAGER_H_
#define KVBLOCKS_MANAGERS_FULL_ATTENTION_MANAGER_H_

#include <utility>
#include <vector>

#include "kvblocks/managers/single_type_manager.h"

namespace kvblocks {

class FullAttentionManager : public SingleTypeManager {
 public:
  // `sink_blocks`: taken from the pool for good; empty for kinds without sinks.
  FullAttentionManager(const KvCacheSpec& spec, const Options& options, BlockPool* pool,
                       std::vector<BlockId> sink_blocks)
      : SingleTypeManager(spec, options, pool, {.is_full_type = true}),
        sink_blocks_(std::move(sink_blocks)) {}

  int64_t FindLongestCacheHit(const LookupQuery& query, HitLists& lists) const override;

  // A block is common if every table holds it: its references, less those from outside the tables,
  // are as many as there are tables. O(result + 1).
  int64_t NumCommonPrefixBlocks(
      const GroupBlocks& held, int64_t num_tables,
      const absl::flat_hash_map<BlockId, int32_t>& outside) const override;

  absl::Span<const BlockId> sink_blocks() const override { return sink_blocks_; }

 protected:
  int64_t NumSkippedTokensImpl(int64_t) const override { return 0; }

 private:
  // How many tokens of the block behind the first `position` are cached as the end of a shorter
  // prefix; appends that block to the lists if any are.
  int64_t FindTail(const LookupQuery& query, int64_t position, HitLists& lists) const;

  const std::vector<BlockId> sink_blocks_;
};

}  // namespace kvblocks

#endif  // KVBLOCKS_MANAGERS_FULL_ATTENTION_MANAGER_H_
