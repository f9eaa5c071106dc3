// LookupHistory: what a pool remembers of keys that are no longer in its prefix-hash table, so that
// a miss can be told "evicted" from "never seen" and from "cached under another salt".
//
// Two memories of the last `num_keys` events each:
//   removals   a key left the table: its last block lost it. With the number of blocks the pool had
//              handed out by then.
//   variants   a block was registered whose hash covers extra keys (salt, adapter, image), under
//              the hash that its tokens have without any; the latest for each.
// Variants are known of contents made from tokens only (PrefixContent::PlainHashOfBlock).
//
// Cost: O(1) per event; BytesFor says the memory, 96 bytes per key, all taken at construction.
// Written by BlockPool only.

#ifndef KVBLOCKS_BLOCK_POOL_LOOKUP_HISTORY_H_
#define KVBLOCKS_BLOCK_POOL_LOOKUP_HISTORY_H_

#include <cstdint>
#include <optional>

#include "kvblocks/block_pool/recent_keys.h"

namespace kvblocks {

class LookupHistory {
 public:
  struct Removal {
    int64_t num_blocks_taken = 0;  // BlockPool::num_blocks_taken() then
    bool was_reused = false;       // the block was handed out; else EvictBlocks or a reset took it
  };

  // REQUIRES: 1 <= num_keys < 2^31.
  explicit LookupHistory(int64_t num_keys) : removals_(num_keys), variants_(num_keys) {}

  static int64_t BytesFor(int64_t num_keys) { return 2 * RecentKeys::BytesFor(num_keys); }

  void OnRemoved(const BlockHash& hash, GroupId group, const Removal& removal) {
    removals_.Remember(hash, group, removal.num_blocks_taken, removal.was_reused);
  }
  // `hash` covers extra keys, if any came so far; `plain` the same tokens without them.
  void OnVariantStored(const BlockHash& plain, const BlockHash& hash) {
    if (plain == hash) return;
    variants_.Remember(plain, kAnyGroup, static_cast<int64_t>(hash.words[0]), false);
  }

  std::optional<Removal> FindRemoval(const BlockHash& hash, GroupId group) const {
    const RecentKeys::Record* record = removals_.Find(hash, group);
    if (record == nullptr) return std::nullopt;
    return Removal{.num_blocks_taken = record->number, .was_reused = record->flag};
  }
  // Whether the latest variant of these tokens is another content than `hash`.
  bool HasOtherVariant(const BlockHash& plain, const BlockHash& hash) const {
    const RecentKeys::Record* record = variants_.Find(plain, kAnyGroup);
    return record != nullptr && record->number != static_cast<int64_t>(hash.words[0]);
  }

  int64_t num_keys() const { return removals_.capacity(); }
  int64_t num_removals() const { return removals_.num_remembered(); }
  // False: some removals are forgotten, so what looks never seen may have been.
  bool is_complete() const { return num_removals() <= num_keys(); }

 private:
  static constexpr GroupId kAnyGroup = 0;  // contents are the same for all groups

  RecentKeys removals_;
  RecentKeys variants_;
};

}  // namespace kvblocks

#endif  // KVBLOCKS_BLOCK_POOL_LOOKUP_HISTORY_H_
