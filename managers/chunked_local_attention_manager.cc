#include "kvblocks/managers/chunked_local_attention_manager.h"

namespace kvblocks {

int64_t ChunkedLocalAttentionManager::FindLongestCacheHit(const LookupQuery& query,
                                                          HitLists& lists) const {
  const int64_t begin = block_size_.FloorDiv(chunk_.RoundDown(query.max_tokens));
  const int64_t end = block_size_.FloorDiv(query.max_tokens);
  for (GroupId g : query.groups) {
    lists[static_cast<size_t>(g)].assign(static_cast<size_t>(begin), kNullBlockId);
  }
  int64_t position = begin;
  for (; position < end; ++position) {
    bool cached = true;
    for (GroupId g : query.groups) {
      const BlockId id = pool_->FindCached(*query.content, position, hashes_per_block_, g);
      if (id == kNullBlockId) {
        cached = false;
        break;
      }
      lists[static_cast<size_t>(g)].push_back(id);
    }
    if (!cached) break;
  }
  // A group looked up before the one that missed has one block too many.
  for (GroupId g : query.groups) {
    lists[static_cast<size_t>(g)].resize(static_cast<size_t>(position));
  }
  return position * block_size();
}

}  // namespace kvblocks
