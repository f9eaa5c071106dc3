// PrefixHashTable: from the key of a block's content, (hash, group), to the blocks that hold it.
//
// Open addressing with linear probing over 8-byte slots of a 32-bit tag and a block id; the full
// hash is compared in the block's own record, so it is stored once. The table is sized for the
// whole pool at construction (load at most 3/4) and neither grows nor rehashes; erasing shifts
// later slots back, so there are no tombstones. The tag mixes in a secret of this table, so nobody
// can choose contents that cluster.
//
// Several blocks may carry one key (a block that becomes full is registered even if its content is
// known already): the slot holds the earliest, a ring beside the table the others in order of
// insertion.
//
// Always: a block's record has a key iff the block is in the table under that key.
// Cost: Find, Insert and Erase O(1) expected. Nothing depends on iteration order. Single-threaded.

#ifndef KVBLOCKS_BLOCK_POOL_PREFIX_HASH_TABLE_H_
#define KVBLOCKS_BLOCK_POOL_PREFIX_HASH_TABLE_H_

#include <algorithm>
#include <cstdint>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "absl/numeric/int128.h"
#include "absl/status/status.h"
#include "block_pool/block_hash.h"
#include "block_pool/kv_cache_block.h"

namespace kvblocks {

class PrefixHashTable {
 public:
  // An empty table over `records`, which must outlive it.
  explicit PrefixHashTable(BlockRecords* records);

  // Bytes that a table for so many blocks takes, duplicates aside.
  static int64_t BytesFor(int64_t num_blocks) {
    return static_cast<int64_t>(NumSlots(num_blocks) * sizeof(Slot));
  }

  // The earliest inserted block with this key, or kNullBlockId.
  BlockId Find(const BlockHash& hash, GroupId group) const {
    return slots_[FindSlot(hash, group)].id;
  }

  // Starts loading what Find(hash, group) will read first.
  void Prefetch(const BlockHash& hash, GroupId group) const {
    __builtin_prefetch(&slots_[Home(Tag(hash, group))]);
  }

  // Registers a block behind those that have the key already, and writes the key into its record.
  // False, and no change, if the block has this key already. REQUIRES: 0 < id < number of blocks,
  // no other key.
  bool Insert(const BlockHash& hash, GroupId group, BlockId id);

  // Takes a block out of the table and clears its key. False, and no change, if it does not have
  // this key.
  bool Erase(const BlockHash& hash, GroupId group, BlockId id);
  // The same for whatever key the block has. REQUIRES: it has one.
  void Erase(BlockId id);

  // Takes all blocks out and clears their keys. O(number of blocks).
  void Clear();

  // All blocks with this key in order of insertion; for diagnostics.
  std::vector<BlockId> FindAll(const BlockHash& hash, GroupId group) const;

  int32_t num_keys() const { return num_keys_; }
  // Blocks in the table: more than num_keys() where contents are held twice.
  int32_t num_blocks() const { return num_blocks_; }

  // Searches that this thread made in any table, for tests of look-up costs. Always 0 in builds
  // with NDEBUG, where nothing is counted.
  static int64_t NumSearchesForTest();

  // OK, or what is wrong. O(number of blocks).
  absl::Status CheckInvariants() const;

 private:
  struct Slot {
    uint32_t tag = 0;
    BlockId id = kNullBlockId;  // the null block has no key, so its id marks an empty slot
  };
  // A load of at most 3/4.
  static size_t NumSlots(int64_t num_blocks) {
    return std::max<size_t>(16, static_cast<size_t>(num_blocks) * 4 / 3 + 2);
  }
  struct Ring {
    BlockId prev;
    BlockId next;
  };

  uint32_t Tag(const BlockHash& hash, GroupId group) const {
    const auto product = absl::uint128(hash.words[0] ^ secret_[0] ^
                                       (static_cast<uint64_t>(group) * 0x9e3779b97f4a7c15u)) *
                         (hash.words[1] ^ secret_[1]);
    return static_cast<uint32_t>((absl::Uint128High64(product) ^ absl::Uint128Low64(product)) >>
                                 32);
  }
  size_t Home(uint32_t tag) const {
    return static_cast<size_t>((uint64_t{tag} * slots_.size()) >> 32);
  }
  size_t Next(size_t slot) const { return slot + 1 == slots_.size() ? 0 : slot + 1; }
  bool HasKey(BlockId id, const BlockHash& hash, GroupId group) const {
    return (*records_)[id].key_group == group && records_->hash(id) == hash;
  }
  // The slot that holds the key, or the empty one where the search ended.
  size_t FindSlot(const BlockHash& hash, GroupId group) const;
  size_t FindSlotOfBlock(BlockId id) const;
  void EraseSlot(size_t slot);

  BlockRecords* records_;
  uint64_t secret_[2];
  std::vector<Slot> slots_;
  absl::flat_hash_map<BlockId, Ring> duplicates_;  // blocks whose has_duplicates is set
  int32_t num_keys_ = 0;
  int32_t num_blocks_ = 0;
};

}  // namespace kvblocks

#endif  // KVBLOCKS_BLOCK_POOL_PREFIX_HASH_TABLE_H_
