#include "managers/full_attention_manager.h"

namespace kvblocks {
namespace {
// Look-ups of a run are independent of each other, so their first cache lines are fetched this far
// ahead.
constexpr int64_t kPrefetchDistance = 8;
}  // namespace

int64_t FullAttentionManager::FindLongestCacheHit(const LookupQuery& query, HitLists& lists) const {
  for (GroupId g : query.groups) lists[static_cast<size_t>(g)].clear();
  const int64_t end = block_size_.FloorDiv(query.max_tokens);
  int64_t matched = 0;
  for (; matched < end; ++matched) {
    if (matched + kPrefetchDistance < end) {
      const BlockHash& ahead =
          query.content->HashOfBlock(matched + kPrefetchDistance, hashes_per_block_);
      for (GroupId g : query.groups) pool_->PrefetchCached(ahead, g);
    }
    const BlockHash& hash = query.content->HashOfBlock(matched, hashes_per_block_);
    bool cached = true;
    for (GroupId g : query.groups) {
      const BlockId id = pool_->FindCached(hash, g);
      if (id == kNullBlockId) {
        cached = false;
        break;
      }
      lists[static_cast<size_t>(g)].push_back(id);
    }
    if (!cached) break;
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
