#include "managers/full_attention_manager.h"

namespace kvblocks {
int64_t FullAttentionManager::FindLongestCacheHit(const LookupQuery& query, HitLists& lists) const {
  int64_t matched = block_size_.FloorDiv(query.max_tokens);
  for (GroupId g : query.groups) {
    // Written behind the list's old end too, so it is as long as the run may get; capacity stays.
    std::vector<BlockId>& list = lists[static_cast<size_t>(g)];
    list.resize(static_cast<size_t>(matched));
    matched = static_cast<int64_t>(
        pool_->FindCachedRun(*query.content, hashes_per_block_, g, absl::MakeSpan(list)));
  }
  int64_t hit = matched * block_size();
  if (query.drop_last_block && hit > 0) hit -= block_size();
  hit -= hit % query.alignment;
  for (GroupId g : query.groups) {
    lists[static_cast<size_t>(g)].resize(static_cast<size_t>(block_size_.CeilDiv(hit)));
  }
  return hit;
}

int64_t FullAttentionManager::NumCommonPrefixBlocks(
    const GroupBlocks& held, int64_t num_tables,
    const absl::flat_hash_map<BlockId, int32_t>& outside) const {
  int64_t common = 0;
  for (BlockId id : held.table) {
    int64_t holders = pool_->block(id).ref_count;
    if (!outside.empty()) {
      if (const auto it = outside.find(id); it != outside.end()) holders -= it->second;
    }
    if (id == kNullBlockId || holders != num_tables) break;
    ++common;
  }
  return common;
}

}  // namespace kvblocks
