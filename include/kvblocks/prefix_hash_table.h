// The table from block hashes to blocks.

#ifndef KVBLOCKS_PREFIX_HASH_TABLE_H_
#define KVBLOCKS_PREFIX_HASH_TABLE_H_

#include <array>
#include <cstdint>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "absl/numeric/int128.h"
#include "absl/status/status.h"
#include "absl/types/span.h"
#include "kvblocks/block.h"
#include "kvblocks/huge_page_allocator.h"

// PrefixHashTable: from the key of a block's content, (hash, group), to the blocks that hold it.
//
// Open addressing over buckets of one cache line: twelve block ids with an 8-bit tag each, compared
// at once. The full hash is compared in the block's own record, so it is stored once, and a look-up
// touches two cache lines. A full bucket passes a key on to the next one and counts that it did
// (as in Meta's F14 tables), so a search knows when to stop, and erasing moves nothing and leaves
// no tombstone. The table is sized for the whole pool at construction (load at most 1/2) and
// neither grows nor rehashes. Bucket and tag place in a secret of this table, so an attacker cannot
// choose contents that cluster.
//
// Several blocks may carry one key (a block that becomes full is registered even if its content is
// known already): the bucket holds the earliest, a ring beside the table the others in order of
// insertion.
//
// Always: a block's record has a key iff the block is in the table under that key.
// Cost: Find, Insert and Erase O(1) expected; FindRun overlaps the cache misses of a run. Nothing
// depends on iteration order. Single-threaded.

namespace kvblocks {

class PrefixHashTable {
 public:
  // An empty table over `records`, which must outlive it.
  explicit PrefixHashTable(BlockRecords* records)
      : PrefixHashTable(records, NumBuckets(records->num_blocks())) {}
  // With so many buckets of 12 keys; fewer make fuller ones, for tests of long searches. REQUIRES:
  // room for all blocks.
  PrefixHashTable(BlockRecords* records, size_t num_buckets);

  // Bytes that a table for so many blocks takes, duplicates aside.
  static int64_t BytesFor(int64_t num_blocks) {
    return static_cast<int64_t>(NumBuckets(num_blocks) * sizeof(Bucket));
  }

  // The earliest inserted block with this key, or kNullBlockId.
  BlockId Find(const BlockHash& hash, GroupId group) const;

  // The same for a run of keys: hashes[stride - 1], hashes[2 * stride - 1], ... Writes the blocks
  // to `out` up to the first key that is absent and returns their number. REQUIRES: `hashes` has
  // out.size() * stride entries.
  size_t FindRun(absl::Span<const BlockHash> hashes, size_t stride, GroupId group,
                 absl::Span<BlockId> out) const;

  // A key's place in this table. A caller with many keys computes each place once, prefetches it,
  // and uses it later.
  uint64_t Place(const BlockHash& hash, GroupId group) const {
    const auto product = absl::uint128(hash.words[0] ^ secret_[0] ^
                                       (static_cast<uint64_t>(group) * 0x9e3779b97f4a7c15u)) *
                         (hash.words[1] ^ secret_[1]);
    return absl::Uint128High64(product) ^ absl::Uint128Low64(product);
  }
  // Of the key that a block has.
  uint64_t Place(BlockId id) const { return Place(records_->hash(id), (*records_)[id].key_group); }
  void Prefetch(uint64_t place) const { __builtin_prefetch(&buckets_[Home(place)]); }

  // Registers a block behind those that have the key already, and writes the key into its record.
  // False, and no change, if the block has this key already. REQUIRES: 0 < id < number of blocks,
  // no other key.
  bool Insert(const BlockHash& hash, GroupId group, BlockId id) {
    return Insert(Place(hash, group), hash, group, id);
  }
  bool Insert(uint64_t place, const BlockHash& hash, GroupId group, BlockId id);

  // Takes a block out of the table and clears its key. False, and no change, if it does not have
  // this key.
  bool Erase(const BlockHash& hash, GroupId group, BlockId id);
  // The same for whatever key the block has. REQUIRES: it has one.
  void Erase(BlockId id) { Erase(Place(id), id); }
  void Erase(uint64_t place, BlockId id);

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
  static constexpr int kSlotsPerBucket = 12;
  struct alignas(64) Bucket {
    std::array<uint8_t, kSlotsPerBucket> tags{};  // 0: empty slot
    uint32_t num_passed = 0;  // keys that wanted a slot here and stand in a later bucket
    std::array<BlockId, kSlotsPerBucket> ids{};
  };
  static_assert(sizeof(Bucket) == 64);
  struct Slot {
    size_t bucket;
    int index;  // -1: no slot
  };
  struct Ring {
    BlockId prev;
    BlockId next;
  };
  static constexpr GroupId kNoGroup = -1;
  static constexpr GroupId kSeveralGroups = -2;

  // A load of at most 1/2.
  static size_t NumBuckets(int64_t num_blocks) {
    return static_cast<size_t>(num_blocks) * 2 / kSlotsPerBucket + 1;
  }
  size_t Home(uint64_t place) const {
    return static_cast<size_t>(((place >> 32) * buckets_.size()) >> 32);
  }
  static uint8_t Tag(uint64_t place) {
    const auto tag = static_cast<uint8_t>(place);
    return tag == 0 ? 1 : tag;
  }
  size_t Next(size_t bucket) const { return bucket + 1 == buckets_.size() ? 0 : bucket + 1; }
  // Bit i is set if slot i has this tag; 0 finds the empty slots.
  static uint32_t MatchTag(const Bucket& bucket, uint8_t tag);
  bool HasKey(BlockId id, const BlockHash& hash, GroupId group) const {
    // While all keys are of one group, the records need not be read.
    return (only_group_ == group || (*records_)[id].key_group == group) &&
           records_->hash(id) == hash;
  }
  // Fills `out` from `begin` on while the blocks' ids go on as the two before, and returns the end.
  size_t FollowRow(absl::Span<const BlockHash> hashes, size_t stride, GroupId group,
                   absl::Span<BlockId> out, size_t begin) const;
  static bool IsRow(absl::Span<const BlockId> ids);
  BlockId FindFrom(uint64_t place, const BlockHash& hash, GroupId group) const;
  Slot SlotOfKey(uint64_t place, const BlockHash& hash, GroupId group) const;
  Slot SlotOfBlock(uint64_t place, BlockId id) const;
  void AddToRing(BlockId first, BlockId id);
  absl::Status CheckBuckets() const;

  BlockRecords* records_;
  uint64_t secret_[2];
  std::vector<Bucket, HugePageAllocator<Bucket>> buckets_;
  absl::flat_hash_map<BlockId, Ring> duplicates_;  // blocks whose has_duplicates is set
  GroupId only_group_ = kNoGroup;  // of all keys inserted so far, kNoGroup or kSeveralGroups
  int32_t num_keys_ = 0;
  int32_t num_blocks_ = 0;
};

}  // namespace kvblocks

#endif  // KVBLOCKS_PREFIX_HASH_TABLE_H_
