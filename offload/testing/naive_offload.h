// NaiveOffload: the rules of OffloadManager written down plainly, for tests: lists that are
// searched from end to end, the oldest stamp goes first, and a look-up that tries every length.
//
// Only LRU tiers. What a prefix needs is written out per kind of group, not asked of the managers.

#ifndef KVBLOCKS_OFFLOAD_TESTING_NAIVE_OFFLOAD_H_
#define KVBLOCKS_OFFLOAD_TESTING_NAIVE_OFFLOAD_H_

#include <algorithm>
#include <cstdint>
#include <map>
#include <vector>

#include "kvblocks/offload.h"

namespace kvblocks::offload {

class NaiveOffload {
 public:
  struct GroupRule {
    int64_t block_size = 0;
    int64_t window = 0;  // 0: full attention
    int64_t block_bytes = 0;
  };
  struct Item {
    ChunkKey key = {};
    bool is_ready = false;
    bool is_found = true;
    int readers = 0;
    int64_t ticket = 0;  // that writes it
    int64_t stamp = 0;
    int64_t serial = 0;  // names it in tickets
    int64_t bytes = 0;
  };
  struct NaiveTier {
    TierOptions options = {};
    std::vector<int64_t> bytes = {};  // per group, by a chunk
    std::vector<Item> items = {};
    std::map<std::pair<uint64_t, GroupId>, bool> offered = {};
  };

  NaiveOffload(std::vector<GroupRule> groups, int64_t alignment, std::vector<TierOptions> tiers)
      : groups_(std::move(groups)), alignment_(alignment) {
    int64_t all = 0, largest = 0;
    for (const GroupRule& group : groups_) {
      all += group.block_bytes;
      largest = std::max(largest, group.block_bytes);
    }
    for (const TierOptions& options : tiers) {
      NaiveTier tier{.options = options};
      for (const GroupRule& group : groups_) {
        const int64_t block = options.layout == SlotLayout::kPacked         ? group.block_bytes
                              : options.layout == SlotLayout::kLargestGroup ? largest
                                                                            : all;
        tier.bytes.push_back(block * options.blocks_per_chunk);
      }
      tiers_.push_back(std::move(tier));
    }
  }

  int64_t Lookup(const PrefixContent& content, int64_t computed, int64_t max_tokens,
                 bool counts_pending) const {
    int64_t best = computed;
    for (int64_t n = computed + 1; n <= std::min(max_tokens, content.num_hashed_tokens()); ++n) {
      if (n % alignment_ == 0 && CanHave(content, computed, n, counts_pending)) best = n;
    }
    return best;
  }

  void Load(int64_t ticket, const PrefixContent& content, int64_t computed, int64_t n) {
    std::vector<std::pair<size_t, int64_t>> reads;
    for (size_t g = 0; g < groups_.size(); ++g) {
      for (const int64_t p : Needed(g, computed, n)) {
        for (size_t t = 0; t < tiers_.size(); ++t) {
          Item* item = Find(t, g, content, p);
          if (item == nullptr || !item->is_ready) continue;
          const std::pair<size_t, int64_t> read{t, item->serial};
          if (std::find(reads.begin(), reads.end(), read) == reads.end()) {
            reads.push_back(read);
            ++item->readers;
          }
          break;
        }
      }
    }
    loads_[ticket] = std::move(reads);
  }
  // `drop`: as AfterFailure::kDrop, or of an exclusive tier.
  void EndLoad(int64_t ticket, bool was_read, bool drop) {
    for (const auto& [t, serial] : loads_[ticket]) {
      Item* item = BySerial(t, serial);
      --item->readers;
      if (item->is_found && (was_read ? tiers_[t].options.exclusive : drop)) item->is_found = false;
      Sweep(t);
    }
    loads_.erase(ticket);
  }

  void Store(int64_t ticket, const PrefixContent& content, int64_t begin, int64_t end) {
    for (size_t t = 0; t < tiers_.size(); ++t) {
      NaiveTier& tier = tiers_[t];
      if (tier.options.write_policy == WritePolicy::kOnEvict) continue;
      std::vector<std::pair<int64_t, ChunkKey>> offers;
      for (size_t g = 0; g < groups_.size(); ++g) {
        const int64_t size = groups_[g].block_size * tier.options.blocks_per_chunk;
        for (int64_t e = size; e <= std::min(end, content.num_hashed_tokens()); e += size) {
          if (e > begin) offers.push_back({e, KeyAt(content, g, e)});
        }
      }
      std::stable_sort(offers.begin(), offers.end(),
                       [](const auto& a, const auto& b) { return a.first < b.first; });
      std::vector<ChunkKey> kept;
      for (const auto& [e, key] : offers) kept.push_back(key);
      for (const auto& [e, key] : offers) {
        if (Wants(t, key) && !Write(t, key, ticket, kept)) break;
      }
    }
  }
  void StoreEvicted(int64_t ticket, const std::vector<ChunkKey>& keys) {
    if (tiers_[0].options.write_policy != WritePolicy::kOnEvict) return;
    for (const ChunkKey& key : keys) {
      if (Wants(0, key)) Write(0, key, ticket, {});
    }
  }
  void EndStore(int64_t ticket, bool was_written) {
    for (size_t t = 0; t < tiers_.size(); ++t) {
      std::vector<Item>& items = tiers_[t].items;
      for (size_t i = items.size(); i-- > 0;) {  // in order of writing, so the last one first
        if (items[i].is_ready || items[i].ticket != ticket) continue;
        if (was_written && items[i].is_found) {
          items[i].is_ready = true;
          items[i].stamp = ++clock_;
        } else {
          items.erase(items.begin() + static_cast<int64_t>(i));
        }
      }
    }
  }

  void Use(const PrefixContent& content, int64_t n) {
    for (size_t t = 0; t < tiers_.size(); ++t) {
      for (int64_t e = content.num_hashed_tokens(); e > 0; --e) {
        for (size_t g = groups_.size(); g-- > 0;) {
          const int64_t size = groups_[g].block_size * tiers_[t].options.blocks_per_chunk;
          if (e % size != 0 || e - size >= n) continue;
          Item* item = FindKey(t, KeyAt(content, g, e));
          if (item != nullptr && item->is_ready) item->stamp = ++clock_;
        }
      }
    }
  }
  void Drop(size_t t, const ChunkKey& key) {
    FindKey(t, key)->is_found = false;
    Sweep(t);
  }
  void Reset() {
    for (size_t t = 0; t < tiers_.size(); ++t) {
      for (Item& item : tiers_[t].items) item.is_found = false;
      Sweep(t);
    }
  }

  const NaiveTier& tier(size_t t) const { return tiers_[t]; }

  static ChunkKey KeyAt(const PrefixContent& content, size_t g, int64_t end) {
    return {.hash = content.hashes()[static_cast<size_t>(end / content.hash_block_size() - 1)],
            .group = static_cast<GroupId>(g)};
  }

 private:
  std::vector<int64_t> Needed(size_t g, int64_t computed, int64_t n) const {
    const GroupRule& group = groups_[g];
    std::vector<int64_t> positions;
    for (int64_t p = 0; p < n / group.block_size; ++p) {
      const int64_t end = (p + 1) * group.block_size;
      if (p * group.block_size < computed) continue;
      if (group.window == 0 || end > n - group.window + 1) positions.push_back(p);
    }
    return positions;
  }
  bool CanHave(const PrefixContent& content, int64_t computed, int64_t n,
               bool counts_pending) const {
    for (size_t g = 0; g < groups_.size(); ++g) {
      for (const int64_t p : Needed(g, computed, n)) {
        bool has = false;
        for (size_t t = 0; t < tiers_.size(); ++t) {
          const Item* item = const_cast<NaiveOffload*>(this)->Find(t, g, content, p);
          has = has || (item != nullptr && (item->is_ready || counts_pending));
        }
        if (!has) return false;
      }
    }
    return true;
  }
  Item* Find(size_t t, size_t g, const PrefixContent& content, int64_t position) {
    const int64_t per_chunk = tiers_[t].options.blocks_per_chunk;
    const int64_t end = (position / per_chunk + 1) * per_chunk * groups_[g].block_size;
    return end > content.num_hashed_tokens() ? nullptr : FindKey(t, KeyAt(content, g, end));
  }
  Item* FindKey(size_t t, const ChunkKey& key) {
    for (Item& item : tiers_[t].items) {
      if (item.is_found && item.key == key) return &item;
    }
    return nullptr;
  }
  Item* BySerial(size_t t, int64_t serial) {
    for (Item& item : tiers_[t].items) {
      if (item.serial == serial) return &item;
    }
    return nullptr;
  }
  void Sweep(size_t t) {
    std::erase_if(tiers_[t].items, [](const Item& item) {
      return !item.is_found && item.is_ready && item.readers == 0;
    });
  }
  bool Wants(size_t t, const ChunkKey& key) {
    if (FindKey(t, key) != nullptr) return false;
    if (tiers_[t].options.write_policy != WritePolicy::kOnSecondUse) return true;
    bool& offered = tiers_[t].offered[{key.hash.words[0], key.group}];
    offered = !offered;
    return !offered;
  }
  bool Fits(size_t t, int64_t bytes, bool without_those_that_may_go,
            const std::vector<ChunkKey>& kept) const {
    int64_t count = 0;
    for (const Item& item : tiers_[t].items) {
      if (without_those_that_may_go && MayGo(item, kept)) continue;
      ++count;
      bytes += item.bytes;
    }
    const TierOptions& options = tiers_[t].options;
    return options.capacity_slots > 0 ? count < options.capacity_slots
                                      : bytes <= options.capacity_bytes;
  }
  static bool MayGo(const Item& item, const std::vector<ChunkKey>& kept) {
    return item.is_ready && item.is_found && item.readers == 0 &&
           std::find(kept.begin(), kept.end(), item.key) == kept.end();
  }
  bool Write(size_t t, const ChunkKey& key, int64_t ticket, const std::vector<ChunkKey>& kept) {
    std::vector<Item>& items = tiers_[t].items;
    const int64_t bytes = tiers_[t].bytes[static_cast<size_t>(key.group)];
    if (!Fits(t, bytes, true, kept)) return false;
    std::vector<ChunkKey> gone;
    while (!Fits(t, bytes, false, kept)) {
      size_t oldest = items.size();
      for (size_t i = 0; i < items.size(); ++i) {
        if (!MayGo(items[i], kept)) continue;
        if (oldest == items.size() || items[i].stamp < items[oldest].stamp) oldest = i;
      }
      gone.push_back(items[oldest].key);
      items.erase(items.begin() + static_cast<int64_t>(oldest));
    }
    // Its own slot is taken before what went moves down.
    items.push_back({.key = key, .ticket = ticket, .serial = ++serials_, .bytes = bytes});
    if (t + 1 < tiers_.size() && tiers_[t + 1].options.write_policy == WritePolicy::kOnEvict) {
      for (const ChunkKey& moved : gone) {
        if (Wants(t + 1, moved)) Write(t + 1, moved, ticket, {});
      }
    }
    return true;
  }

  std::vector<GroupRule> groups_;
  int64_t alignment_;
  std::vector<NaiveTier> tiers_;
  std::map<int64_t, std::vector<std::pair<size_t, int64_t>>> loads_;
  int64_t clock_ = 0;
  int64_t serials_ = 0;
};

}  // namespace kvblocks::offload

#endif  // KVBLOCKS_OFFLOAD_TESTING_NAIVE_OFFLOAD_H_
