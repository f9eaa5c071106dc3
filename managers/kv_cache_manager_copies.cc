// KvCacheManager's copies of blocks that others may hit, and who holds them until they are made.

#include <utility>
#include <vector>

#include "kvblocks/managers/kv_cache_manager.h"

namespace kvblocks {

void KvCacheManager::TakeCopies(Request& request, bool is_new, const SlotDemand& demand,
                                int64_t total_computed) {
  for (GroupId g = 0; g < num_groups(); ++g) {
    coordinator_->group(g).TakeCopies(request.groups_[static_cast<size_t>(g)], is_new, demand,
                                      total_computed, copies_);
  }
}

std::vector<BlockCopy> KvCacheManager::TakeBlockCopies() {
  for (const BlockCopy& copy : copies_) {
    ++outside_references_[copy.source];
    ++outside_references_[copy.target];
  }
  return std::exchange(copies_, {});
}

absl::Status KvCacheManager::ReleaseBlockCopies(absl::Span<const BlockCopy> copies) {
  std::vector<BlockId> ids;
  ids.reserve(2 * copies.size());
  for (const BlockCopy& copy : copies) {
    ids.push_back(copy.source);
    ids.push_back(copy.target);
  }
  return FreeBlocks(ids);
}

}  // namespace kvblocks
