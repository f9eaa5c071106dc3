#include "kvblocks/managers/full_attention_manager.h"

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
  if (has_inner_boundaries_) hit += FindTail(query, matched, lists);
  if (query.drop_last_block && hit > 0) hit -= drop_unit();
  hit -= hit % query.alignment;
  for (GroupId g : query.groups) {
    lists[static_cast<size_t>(g)].resize(static_cast<size_t>(block_size_.CeilDiv(hit)));
  }
  return hit;
}

int64_t FullAttentionManager::FindTail(const LookupQuery& query, int64_t position,
                                       HitLists& lists) const {
  const int64_t unit = options_.hash_block_size;
  const int64_t begin = position * hashes_per_block_;
  for (int64_t end = std::min(begin + hashes_per_block_ - 1, query.max_tokens / unit); end > begin;
       --end) {
    bool cached = true;
    for (GroupId g : query.groups) {
      const BlockId id = pool_->FindCached(*query.content, end - 1, /*per_block=*/1, g);
      cached = id != kNullBlockId;
      if (!cached) break;
      std::vector<BlockId>& list = lists[static_cast<size_t>(g)];
      list.resize(static_cast<size_t>(position));
      list.push_back(id);
    }
    if (cached) return (end - begin) * unit;
  }
  return 0;
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
