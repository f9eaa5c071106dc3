#include "block_pool/prefix_hash_table.h"

#include <openssl/rand.h>

#include <algorithm>

#include "absl/strings/str_cat.h"
#include "block_pool/check.h"

namespace kvblocks {
namespace {
#ifndef NDEBUG
thread_local int64_t num_searches = 0;
#endif
}  // namespace

int64_t PrefixHashTable::NumSearchesForTest() {
#ifdef NDEBUG
  return 0;
#else
  return num_searches;
#endif
}

PrefixHashTable::PrefixHashTable(BlockRecords* records)
    : records_(records), slots_(NumSlots(records->num_blocks())) {
  const int ok = RAND_bytes(reinterpret_cast<unsigned char*>(secret_), sizeof(secret_));
  KVBLOCKS_CHECK(ok == 1, "the system gives no random bytes for the prefix-hash table");
}

size_t PrefixHashTable::FindSlot(const BlockHash& hash, GroupId group) const {
#ifndef NDEBUG
  ++num_searches;
#endif
  const uint32_t tag = Tag(hash, group);
  size_t slot = Home(tag);
  while (slots_[slot].id != kNullBlockId &&
         !(slots_[slot].tag == tag && HasKey(slots_[slot].id, hash, group))) {
    slot = Next(slot);
  }
  return slot;
}

size_t PrefixHashTable::FindSlotOfBlock(BlockId id) const {
  size_t slot = Home(Tag(records_->hash(id), (*records_)[id].key_group));
  while (slots_[slot].id != id) {
    KVBLOCKS_CHECK(slots_[slot].id != kNullBlockId,
                   absl::StrCat("block ", id, " has a key but is not in the prefix-hash table"));
    slot = Next(slot);
  }
  return slot;
}

bool PrefixHashTable::Insert(const BlockHash& hash, GroupId group, BlockId id) {
  KvCacheBlock& block = (*records_)[id];
  if (block.has_key()) {
    KVBLOCKS_CHECK(HasKey(id, hash, group),
                   absl::StrCat("block ", id, " already has the key ", records_->hash(id).ToHex(),
                                " of group ", block.key_group));
    return false;
  }
  const uint32_t tag = Tag(hash, group);
  const size_t slot = FindSlot(hash, group);
  const BlockId first = slots_[slot].id;
  if (first == kNullBlockId) {
    slots_[slot] = {tag, id};
    ++num_keys_;
  } else {
    if (!(*records_)[first].has_duplicates) {
      (*records_)[first].has_duplicates = true;
      duplicates_[first] = {first, first};
    }
    const BlockId last = duplicates_[first].prev;
    duplicates_[last].next = id;
    duplicates_[first].prev = id;
    duplicates_[id] = {last, first};
    block.has_duplicates = true;
  }
  records_->hash(id) = hash;
  block.key_group = static_cast<int16_t>(group);
  ++num_blocks_;
  return true;
}

bool PrefixHashTable::Erase(const BlockHash& hash, GroupId group, BlockId id) {
  if (id <= 0 || id >= records_->num_blocks() || !HasKey(id, hash, group)) return false;
  Erase(id);
  return true;
}

void PrefixHashTable::Erase(BlockId id) {
  KvCacheBlock& block = (*records_)[id];
  KVBLOCKS_DCHECK(block.has_key(), absl::StrCat("block ", id, " has no key to erase"));
  if (!block.has_duplicates) {
    EraseSlot(FindSlotOfBlock(id));
    --num_keys_;
  } else {
    const Ring ring = duplicates_[id];
    duplicates_[ring.prev].next = ring.next;
    duplicates_[ring.next].prev = ring.prev;
    duplicates_.erase(id);
    // Only the earliest block of a ring is in a slot; the walk ends at it or, for the others, finds
    // the earliest first.
    const size_t slot = FindSlot(records_->hash(id), block.key_group);
    if (slots_[slot].id == id) slots_[slot].id = ring.next;
    if (ring.next == ring.prev) {  // one block is left
      duplicates_.erase(ring.next);
      (*records_)[ring.next].has_duplicates = false;
    }
    block.has_duplicates = false;
  }
  block.key_group = -1;
  --num_blocks_;
}

void PrefixHashTable::EraseSlot(size_t hole) {
  const size_t capacity = slots_.size();
  for (size_t slot = Next(hole); slots_[slot].id != kNullBlockId; slot = Next(slot)) {
    // A slot may move into the hole unless its home lies behind the hole, on the circle from hole
    // to slot.
    const size_t home = Home(slots_[slot].tag);
    const size_t from_home = slot >= home ? slot - home : slot + capacity - home;
    const size_t from_hole = slot >= hole ? slot - hole : slot + capacity - hole;
    if (from_home >= from_hole) {
      slots_[hole] = slots_[slot];
      hole = slot;
    }
  }
  slots_[hole] = Slot{};
}

void PrefixHashTable::Clear() {
  std::fill(slots_.begin(), slots_.end(), Slot{});
  duplicates_.clear();
  for (BlockId id = 0; id < records_->num_blocks(); ++id) {
    (*records_)[id].key_group = -1;
    (*records_)[id].has_duplicates = false;
  }
  num_keys_ = num_blocks_ = 0;
}

std::vector<BlockId> PrefixHashTable::FindAll(const BlockHash& hash, GroupId group) const {
  std::vector<BlockId> ids;
  const BlockId first = Find(hash, group);
  if (first == kNullBlockId) return ids;
  ids.push_back(first);
  if (!(*records_)[first].has_duplicates) return ids;
  for (BlockId id = duplicates_.at(first).next; id != first; id = duplicates_.at(id).next) {
    ids.push_back(id);
  }
  return ids;
}

absl::Status PrefixHashTable::CheckInvariants() const {
  int32_t keyed = 0;
  for (BlockId id = 0; id < records_->num_blocks(); ++id) {
    const KvCacheBlock& block = (*records_)[id];
    if (block.has_duplicates != duplicates_.contains(id)) {
      return absl::InternalError(
          absl::StrCat("block ", id, ": mark and ring of duplicates disagree"));
    }
    if (!block.has_key()) {
      if (block.has_duplicates) {
        return absl::InternalError(absl::StrCat("block ", id, " has duplicates but no key"));
      }
      continue;
    }
    ++keyed;
    const std::vector<BlockId> holders = FindAll(records_->hash(id), block.key_group);
    if (std::find(holders.begin(), holders.end(), id) == holders.end()) {
      return absl::InternalError(absl::StrCat("block ", id, " has a key of group ", block.key_group,
                                              " but a look-up of that key does not give it"));
    }
  }
  int32_t occupied = 0;
  for (const Slot& slot : slots_) {
    if (slot.id == kNullBlockId) continue;
    ++occupied;
    if (!(*records_)[slot.id].has_key()) {
      return absl::InternalError(
          absl::StrCat("the prefix-hash table maps a key to block ", slot.id, ", which has none"));
    }
  }
  if (occupied != num_keys_ || keyed != num_blocks_) {
    return absl::InternalError(absl::StrCat("prefix-hash table counts ", num_keys_, " keys and ",
                                            num_blocks_, " blocks, found ", occupied, " and ",
                                            keyed));
  }
  return absl::OkStatus();
}

}  // namespace kvblocks
