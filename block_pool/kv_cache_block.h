// KvCacheBlock: what the pool knows about one physical block, and BlockRecords, the arrays that
// hold all of them.
//
// The record is 16 bytes, so that four share a cache line on the paths that take, touch and free;
// the 32-byte hash of a cached block lies in an array of its own, which only look-ups, registration
// and eviction read.
//
// Always: a block is linked into a free queue iff ref_count == 0 and it is neither null nor
// permanent (nor, with chunks, an id without a page: see PageChunks); key_group >= 0 iff the block
// is in the prefix-hash table, and then hash(id) is its hash.

#ifndef KVBLOCKS_BLOCK_POOL_KV_CACHE_BLOCK_H_
#define KVBLOCKS_BLOCK_POOL_KV_CACHE_BLOCK_H_

#include <cstdint>
#include <vector>

#include "kvblocks/block_pool/block_hash.h"
#include "kvblocks/block_pool/huge_page_allocator.h"

namespace kvblocks {

using BlockId = int32_t;  // 0 .. num_blocks-1
using GroupId = int32_t;  // index of a KV-cache group

// Stands for "no data needed here" in any number of block tables; never handed out, cached or
// freed.
inline constexpr BlockId kNullBlockId = 0;

// What a link holds while the block is in no queue.
inline constexpr BlockId kUnlinked = -1;

// Largest usable group index; the record keeps it in 16 bits.
inline constexpr GroupId kMaxGroupId = 32766;

struct KvCacheBlock {
  int32_t ref_count = 0;     // holders: block tables, popped lists, pins; 1 for ever if permanent
  BlockId prev = kUnlinked;  // free-queue links: both set or both kUnlinked
  BlockId next = kUnlinked;
  int16_t key_group = -1;  // group of the block's key, -1: no key
  bool is_null : 1 = false;
  bool is_permanent : 1 = false;
  bool has_duplicates : 1 = false;  // another block carries the same key (see PrefixHashTable)

  bool has_key() const { return key_group >= 0; }
  bool is_linked() const { return next != kUnlinked; }
};
static_assert(sizeof(KvCacheBlock) == 16);

// The records of all blocks, by id. Behind them stands one record per free queue, its sentinel.
class BlockRecords {
 public:
  explicit BlockRecords(int32_t num_blocks, int32_t num_queues = 1)
      : blocks_(static_cast<size_t>(num_blocks) + static_cast<size_t>(num_queues)),
        hashes_(static_cast<size_t>(num_blocks)) {}

  int32_t num_blocks() const { return static_cast<int32_t>(hashes_.size()); }
  KvCacheBlock& operator[](BlockId id) { return blocks_[static_cast<size_t>(id)]; }
  const KvCacheBlock& operator[](BlockId id) const { return blocks_[static_cast<size_t>(id)]; }

  // Start loading a block's record or hash.
  void Prefetch(BlockId id) const { __builtin_prefetch(&(*this)[id]); }
  void PrefetchHash(BlockId id) const { __builtin_prefetch(&hash(id)); }

  // Meaningful only while the block has a key.
  BlockHash& hash(BlockId id) { return hashes_[static_cast<size_t>(id)]; }
  const BlockHash& hash(BlockId id) const { return hashes_[static_cast<size_t>(id)]; }

 private:
  std::vector<KvCacheBlock, HugePageAllocator<KvCacheBlock>> blocks_;
  std::vector<BlockHash, HugePageAllocator<BlockHash>> hashes_;
};

}  // namespace kvblocks

#endif  // KVBLOCKS_BLOCK_POOL_KV_CACHE_BLOCK_H_
