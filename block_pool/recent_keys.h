// RecentKeys: a bounded memory of the last keys, (hash, group), that something happened to, with a
// number for each.
//
// A ring of the last `capacity` calls of Remember, and an index over it. A key remembered again
// counts as new, and its latest number is the one found; whatever lies more than `capacity` calls
// back is forgotten, oldest first.
//
// Keys are compared by their group and the first 128 bits of their hash: enough for what explains
// look-ups, not for what serves data.
//
// Cost: O(1) expected, about two cache misses, and no allocation after construction; BytesFor says
// how much memory, 48 bytes per key. Nothing observable depends on the index's order, which a
// secret decides so that an attacker cannot choose keys that cluster. Single-threaded.

#ifndef KVBLOCKS_BLOCK_POOL_RECENT_KEYS_H_
#define KVBLOCKS_BLOCK_POOL_RECENT_KEYS_H_

#include <algorithm>
#include <cstdint>
#include <vector>

#include "kvblocks/block.h"

namespace kvblocks {

class RecentKeys {
 public:
  struct Record {
    uint64_t words[2] = {};
    int64_t number = 0;
    GroupId group = 0;
    bool flag = false;
  };

  // REQUIRES: 1 <= capacity < 2^31.
  explicit RecentKeys(int64_t capacity);

  static int64_t BytesFor(int64_t capacity) {
    return capacity * static_cast<int64_t>(sizeof(Record)) +
           static_cast<int64_t>(NumSlots(capacity) * sizeof(Slot));
  }

  void Remember(const BlockHash& hash, GroupId group, int64_t number, bool flag);

  // The latest record of the key, or null. Valid until the next Remember.
  const Record* Find(const BlockHash& hash, GroupId group) const;

  int64_t capacity() const { return static_cast<int64_t>(ring_.size()); }
  // Calls of Remember so far; beyond capacity() the first ones are forgotten.
  int64_t num_remembered() const { return num_remembered_; }

 private:
  struct Slot {
    uint32_t tag = 0;
    uint32_t place = 0;  // in the ring, counted from 1; 0: empty
  };
  // A load of at most 1/2: it is full all the time, and every call erases and inserts.
  static size_t NumSlots(int64_t capacity) {
    return std::max<size_t>(16, static_cast<size_t>(capacity) * 2);
  }
  uint32_t Tag(const uint64_t (&words)[2], GroupId group) const;
  size_t Home(uint32_t tag) const {
    return static_cast<size_t>((uint64_t{tag} * slots_.size()) >> 32);
  }
  size_t Next(size_t slot) const { return slot + 1 == slots_.size() ? 0 : slot + 1; }
  // The slot that holds the key, or the empty one where the search ended.
  size_t FindSlot(const uint64_t (&words)[2], GroupId group, uint32_t tag) const;
  void ForgetPlace(size_t place);
  void EraseSlot(size_t hole);

  uint64_t secret_[2];
  std::vector<Record> ring_;
  std::vector<Slot> slots_;
  size_t next_ = 0;  // place of the ring that the next record gets
  int64_t num_remembered_ = 0;
};

}  // namespace kvblocks

#endif  // KVBLOCKS_BLOCK_POOL_RECENT_KEYS_H_
