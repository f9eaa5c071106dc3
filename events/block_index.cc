#include "kvblocks/kv_events.h"

#include <algorithm>
#include <variant>

namespace kvblocks::events {
namespace {

template <typename Holdings>
auto PlaceOf(Holdings& holdings, HolderId id) {
  return std::lower_bound(
      holdings.begin(), holdings.end(), id,
      [](const auto& holding, HolderId other) { return holding.holder < other; });
}

}  // namespace

HolderId BlockIndex::AddHolder(std::string name) {
  holders_.push_back({.name = std::move(name)});
  return static_cast<HolderId>(holders_.size() - 1);
}

void BlockIndex::Apply(HolderId id, absl::Span<const KvEvent> events) {
  Holder& holder = holders_[static_cast<size_t>(id)];
  const auto counts = [&](std::string_view medium, size_t num_hashes) {
    if (options_.medium.empty() || medium == options_.medium) return true;
    holder.num_other_media += static_cast<int64_t>(num_hashes);
    return false;
  };
  // A key costs a miss or two of the CPU's cache; those of a batch overlap.
  for (const KvEvent& event : events) {
    if (const auto* stored = std::get_if<BlockStored>(&event)) {
      for (const BlockHash& hash : stored->block_hashes) {
        table_.prefetch(Key{hash, stored->group_idx});
      }
    } else if (const auto* removed = std::get_if<BlockRemoved>(&event)) {
      table_.prefetch(Key{removed->block_hash, removed->group_idx});
    }
  }
  for (const KvEvent& event : events) {
    if (const auto* stored = std::get_if<BlockStored>(&event)) {
      if (!counts(stored->medium, stored->block_hashes.size())) continue;
      for (const BlockHash& hash : stored->block_hashes) Add(id, {hash, stored->group_idx});
    } else if (const auto* removed = std::get_if<BlockRemoved>(&event)) {
      if (counts(removed->medium, 1)) Remove(id, {removed->block_hash, removed->group_idx});
    } else {
      ++holder.num_cleared;
      Forget(id);
    }
  }
}

void BlockIndex::Add(HolderId id, const Key& key) {
  Holder& holder = holders_[static_cast<size_t>(id)];
  ++holder.num_stored;
  ++holder.num_blocks;
  Holdings& holdings = table_[key];
  const auto place = PlaceOf(holdings, id);
  if (place != holdings.end() && place->holder == id) {
    ++place->num_blocks;
  } else {
    holdings.insert(place, {.holder = id, .num_blocks = 1});
    ++holder.num_keys;
  }
}

void BlockIndex::Remove(HolderId id, const Key& key) {
  Holder& holder = holders_[static_cast<size_t>(id)];
  ++holder.num_removed;
  const auto found = table_.find(key);
  if (found == table_.end()) {
    ++holder.num_unknown_removals;
    return;
  }
  const auto place = PlaceOf(found->second, id);
  if (place == found->second.end() || place->holder != id) {
    ++holder.num_unknown_removals;
    return;
  }
  --holder.num_blocks;
  if (--place->num_blocks > 0) return;
  --holder.num_keys;
  found->second.erase(place);
  if (found->second.empty()) table_.erase(found);
}

void BlockIndex::Forget(HolderId id) {
  Holder& holder = holders_[static_cast<size_t>(id)];
  holder.num_blocks = 0;
  if (holder.num_keys == 0) return;
  holder.num_keys = 0;
  absl::erase_if(table_, [id](auto& entry) {
    const auto place = PlaceOf(entry.second, id);
    if (place != entry.second.end() && place->holder == id) entry.second.erase(place);
    return entry.second.empty();
  });
}

absl::Span<const BlockIndex::Holding> BlockIndex::Holders(const Key& key) const {
  const auto found = table_.find(key);
  if (found == table_.end()) return {};
  return found->second;
}

std::vector<BlockIndex::PrefixMatch> BlockIndex::FindLongestPrefix(
    absl::Span<const BlockHash> hashes, GroupId group) const {
  std::vector<PrefixMatch> done;
  std::vector<HolderId> live;
  constexpr size_t kAhead = 8;
  for (size_t i = 0; i < std::min(kAhead, hashes.size()); ++i) {
    table_.prefetch(Key{hashes[i], group});
  }
  for (size_t i = 0; i < hashes.size(); ++i) {
    if (i + kAhead < hashes.size()) table_.prefetch(Key{hashes[i + kAhead], group});
    const absl::Span<const Holding> holdings = Holders({hashes[i], group});
    if (i == 0) {
      for (const Holding& holding : holdings) live.push_back(holding.holder);
    } else {
      std::erase_if(live, [&](HolderId id) {
        const auto place = PlaceOf(holdings, id);
        if (place != holdings.end() && place->holder == id) return false;
        done.push_back({.holder = id, .num_blocks = static_cast<int64_t>(i)});
        return true;
      });
    }
    if (live.empty()) break;
  }
  for (const HolderId id : live) {
    done.push_back({.holder = id, .num_blocks = static_cast<int64_t>(hashes.size())});
  }
  std::sort(done.begin(), done.end(), [](const PrefixMatch& a, const PrefixMatch& b) {
    return a.num_blocks != b.num_blocks ? a.num_blocks > b.num_blocks : a.holder < b.holder;
  });
  return done;
}

}  // namespace kvblocks::events
