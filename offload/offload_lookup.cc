// What can be loaded: the look-up of OffloadManager.

#include "offload/offload_index.h"

namespace kvblocks::offload {

bool OffloadIndex::HasKey(const Group& group, const PrefixContent& content, int64_t chunk,
                            int64_t blocks_per_chunk) const {
  return (chunk + 1) * blocks_per_chunk * group.hashes_per_block <=
         static_cast<int64_t>(content.hashes().size());
}

ChunkKey OffloadIndex::KeyOf(const Group& group, const PrefixContent& content, int64_t chunk,
                               int64_t blocks_per_chunk) const {
  return {.hash = content.HashOfBlock(chunk, blocks_per_chunk * group.hashes_per_block),
          .group = group.id};
}

OffloadIndex::Place OffloadIndex::Locate(const Group& group, const PrefixContent& content,
                                             int64_t position) const {
  Place pending;
  for (TierId t = 0; t < static_cast<TierId>(tiers_.size()); ++t) {
    const Tier& held = tier(t);
    const int64_t per_chunk = held.options().blocks_per_chunk;
    const int64_t chunk = position / per_chunk;
    if (!HasKey(group, content, chunk, per_chunk)) continue;
    const SlotId slot = held.Find(KeyOf(group, content, chunk, per_chunk));
    if (slot == kNoSlot) continue;
    if (held.IsReadable(slot)) return {.tier = t, .slot = slot, .is_readable = true};
    if (pending.slot == kNoSlot) pending = {.tier = t, .slot = slot};
  }
  return pending;
}

int64_t OffloadIndex::LimitOf(const Group& group, const PrefixContent& content,
                                int64_t num_computed, int64_t most, bool* met_pending,
                                bool counts_pending) const {
  const auto is_there = [&](int64_t position) {
    if (position * group.block_size < num_computed) return true;
    const Place place = Locate(group, content, position);
    if (place.is_readable) return true;
    if (place.slot == kNoSlot) return false;
    *met_pending = true;
    return counts_pending;
  };
  const int64_t end = most / group.block_size + group.margin_blocks;
  const int64_t begin = group.rules->NumUnneededTokens(most) / group.block_size;
  if (group.rules->is_full_type()) {
    // From the front: the first that is missing ends every prefix.
    for (int64_t position = num_computed / group.block_size; position < end; ++position) {
      if (!is_there(position)) return (position - group.margin_blocks) * group.block_size;
    }
    return most;
  }
  // From the back: one that is missing is needed by every prefix that reaches behind it and less
  // than `most`, since what is needed never begins later for a shorter one.
  for (int64_t position = end; position-- > begin;) {
    if (!is_there(position)) return (position - group.margin_blocks) * group.block_size;
  }
  return most;
}

int64_t OffloadIndex::LongestPrefix(const PrefixContent& content, int64_t num_computed,
                                      int64_t max_tokens, bool* met_pending,
                                      bool counts_pending) const {
  int64_t longest = std::min(max_tokens, content.num_hashed_tokens());
  longest -= longest % alignment_;
  bool is_first_round = true;
  for (bool shrank = true; shrank; is_first_round = false) {
    shrank = false;
    for (const Group& group : groups_) {
      // What a group that needs every block had for a longer prefix, it has for a shorter one.
      if (group.rules->is_full_type() && !is_first_round) continue;
      while (longest > num_computed) {
        int64_t limit =
            LimitOf(group, content, num_computed, longest, met_pending, counts_pending);
        limit -= limit % alignment_;
        if (limit >= longest) break;
        longest = limit;
        shrank = true;
        if (group.rules->is_full_type()) break;
      }
      if (longest <= num_computed) return num_computed;
    }
  }
  return longest;
}

OffloadIndex::Match OffloadIndex::Lookup(const PrefixContent& content,
                                             int64_t num_computed_tokens,
                                             int64_t max_tokens) const {
  Match match{.num_tokens = num_computed_tokens, .num_tokens_with_pending = num_computed_tokens};
  if (num_computed_tokens % alignment_ != 0 || max_tokens <= num_computed_tokens) return match;
  bool met_pending = false;
  match.num_tokens =
      LongestPrefix(content, num_computed_tokens, max_tokens, &met_pending, false);
  match.num_tokens_with_pending =
      met_pending ? LongestPrefix(content, num_computed_tokens, max_tokens, &met_pending, true)
                  : match.num_tokens;
  return match;
}

OffloadIndex::LoadCost OffloadIndex::CostOfLoad(const PrefixContent& content,
                                                   int64_t num_computed_tokens,
                                                   int64_t num_tokens) const {
  LoadCost cost{.bytes = std::vector<int64_t>(tiers_.size())};
  for (const Group& group : groups_) {
    VisitNeeded(group, num_computed_tokens, num_tokens, [&](int64_t position) {
      const Place place = Locate(group, content, position);
      if (!place.is_readable) return;
      cost.bytes[static_cast<size_t>(place.tier)] += group.block_bytes;
      cost.is_being_read |= reading_.contains({place.tier, place.slot});
    });
  }
  return cost;
}

}  // namespace kvblocks::offload
