#include "kvblocks/managers/hybrid_kv_cache_coordinator.h"

#include <algorithm>
#include <utility>

namespace kvblocks {
namespace {
constexpr int64_t kNotLookedUp = -1;
}  // namespace

HybridKvCacheCoordinator::HybridKvCacheCoordinator(Managers managers, int64_t scheduler_block_size,
                                                   int64_t hash_block_size, int64_t hit_alignment)
    : KvCacheCoordinator(std::move(managers), scheduler_block_size, hash_block_size,
                         hit_alignment) {
  for (const auto& manager : managers_) {
    const auto same =
        std::find_if(lookup_groups_.begin(), lookup_groups_.end(),
                     [&](const LookupGroup& g) { return g.manager->spec() == manager->spec(); });
    if (same != lookup_groups_.end()) {
      same->groups.push_back(manager->group());
    } else {
      lookup_groups_.push_back({{manager->group()}, manager.get()});
    }
  }
  std::stable_partition(lookup_groups_.begin(), lookup_groups_.end(),
                        [](const LookupGroup& g) { return g.manager->is_full_type(); });
}

KvCacheCoordinator::Hit HybridKvCacheCoordinator::FindLongestCacheHit(const PrefixContent& content,
                                                                      int64_t max_tokens,
                                                                      HitLists& lists) const {
  full_lengths_.assign(lookup_groups_.size(), kNotLookedUp);
  verified_.assign(lookup_groups_.size(), 0);
  Hit hit;
  int64_t candidate = max_tokens;
  int64_t current = candidate;
  do {
    candidate = current;
    for (size_t i = 0; i < lookup_groups_.size(); ++i) {
      const SingleTypeManager& manager = *lookup_groups_[i].manager;
      if (full_lengths_[i] != kNotLookedUp) {
        current = std::min(current, full_lengths_[i]);
        continue;
      }
      const bool drop = manager.is_draft() && !verified_[i];
      const int64_t length = manager.FindLongestCacheHit(
          {.content = &content,
           .groups = lookup_groups_[i].groups,
           .max_tokens = drop ? std::min(current + manager.draft_margin(), max_tokens) : current,
           .drop_last_block = drop,
           .alignment = hit_alignment_},
          lists);
      hit.longest_lookup = std::max(hit.longest_lookup, length);
      if (drop) {
        verified_[i] = 1;
      } else if (length < current) {
        std::fill(verified_.begin(), verified_.end(), 0);
      }
      if (manager.is_full_type()) full_lengths_[i] = length;
      current = length;
    }
  } while (current < candidate);

  hit.num_tokens = current;
  for (const LookupGroup& g : lookup_groups_) {
    if (!g.manager->is_full_type()) continue;
    for (GroupId id : g.groups) {
      std::vector<BlockId>& list = lists[static_cast<size_t>(id)];
      const int64_t blocks = (current + g.manager->block_size() - 1) / g.manager->block_size();
      if (static_cast<int64_t>(list.size()) > blocks) list.resize(static_cast<size_t>(blocks));
    }
  }
  return hit;
}

int64_t HybridKvCacheCoordinator::NumTokensToRegister(const SingleTypeManager& manager,
                                                      int64_t n) const {
  const int64_t aligned = n - n % hit_alignment_;
  if (!manager.is_draft() || aligned == 0) return aligned;
  return std::min(n, aligned + manager.draft_margin());
}

}  // namespace kvblocks
