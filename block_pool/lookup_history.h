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
// Written by BlockPool only. Cost: O(1) per event; BytesFor says the memory, 96 bytes per key, all
// taken at construction (see RecentKeys).

#ifndef KVBLOCKS_BLOCK_POOL_LOOKUP_HISTORY_H_
#define KVBLOCKS_BLOCK_POOL_LOOKUP_HISTORY_H_

#include <cstdint>
#include <memory>
#include <optional>

#include "kvblocks/block_pool/block_hash.h"
#include "kvblocks/block_pool/kv_cache_block.h"

namespace kvblocks {

class LookupHistory {
 public:
  struct Removal {
    int64_t num_blocks_taken = 0;  // BlockPool::num_blocks_taken() then
    bool was_reused = false;       // the block was handed out; else EvictBlocks or a reset took it
  };

  // REQUIRES: 1 <= num_keys < 2^31.
  static std::unique_ptr<LookupHistory> Create(int64_t num_keys);
  static int64_t BytesFor(int64_t num_keys);
  virtual ~LookupHistory() = default;

  virtual void OnRemoved(const BlockHash& hash, GroupId group, const Removal& removal) = 0;
  // `hash` covers extra keys, if any came so far; `plain` the same tokens without them.
  virtual void OnVariantStored(const BlockHash& plain, const BlockHash& hash) = 0;

  virtual std::optional<Removal> FindRemoval(const BlockHash& hash, GroupId group) const = 0;
  // Whether the latest variant of these tokens is another content than `hash`.
  virtual bool HasOtherVariant(const BlockHash& plain, const BlockHash& hash) const = 0;
  virtual int64_t num_keys() const = 0;
  virtual int64_t num_removals() const = 0;
  // False: some removals are forgotten, so what looks never seen may have been.
  bool is_complete() const { return num_removals() <= num_keys(); }
};

}  // namespace kvblocks

#endif  // KVBLOCKS_BLOCK_POOL_LOOKUP_HISTORY_H_
