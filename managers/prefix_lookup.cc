#include "kvblocks/kv_cache_manager.h"

#include <algorithm>

namespace kvblocks {
namespace {
constexpr int64_t kNotLookedUp = -1;
}  // namespace

PrefixLookup::PrefixLookup(absl::Span<const std::unique_ptr<SingleTypeManager>> groups,
                           int64_t alignment, bool drops_last_full_block)
    : alignment_(alignment), drops_last_full_block_(drops_last_full_block && groups.size() > 1) {
  for (const auto& manager : groups) {
    if (!manager->is_cacheable()) continue;
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
  has_several_groups_ = groups.size() > 1;
  is_full_and_other_ = lookup_groups_.size() == 2 && lookup_groups_[0].manager->is_full_type();
}

PrefixLookup::Hit PrefixLookup::FindLongestCacheHit(const PrefixContent& content,
                                                    int64_t max_tokens, HitLists& lists) const {
  full_lengths_.assign(lookup_groups_.size(), kNotLookedUp);
  verified_.assign(lookup_groups_.size(), 0);
  Hit hit;
  // With lookahead hashes these end earlier than the tokens.
  const int64_t num_hashed = content.num_hashed_tokens();
  const int64_t most_with_drop = drops_last_full_block_ ? num_hashed : max_tokens;
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
      const int64_t most =
          drop ? std::min(current + manager.draft_margin(), most_with_drop) : current;
      const int64_t length = manager.FindLongestCacheHit(
          {.content = &content,
           .groups = lookup_groups_[i].groups,
           .max_tokens = manager.hits_unhashed_tokens() ? most : std::min(most, num_hashed),
           .drop_last_block = drop,
           .alignment = alignment_},
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
    // A single kind agrees with itself, and every prefix of a hit of a full type is a hit.
  } while (current < candidate && has_several_groups_ && !is_full_and_other_);

  hit.num_tokens = current;
  for (const LookupGroup& g : lookup_groups_) {
    if (!g.manager->is_full_type()) continue;
    const auto blocks = static_cast<size_t>(BlockSize(g.manager->block_size()).CeilDiv(current));
    for (GroupId id : g.groups) {
      std::vector<BlockId>& list = lists[static_cast<size_t>(id)];
      if (list.size() > blocks) list.resize(blocks);
    }
  }
  return hit;
}

}  // namespace kvblocks
