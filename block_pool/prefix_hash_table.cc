#include "kvblocks/prefix_hash_table.h"

#include <openssl/rand.h>
#ifdef __SSE2__
#include <emmintrin.h>
#endif

#include <algorithm>
#include <bit>

#include "absl/base/attributes.h"
#include "absl/strings/str_cat.h"
#include "kvblocks/check.h"

namespace kvblocks {
namespace {

#ifndef NDEBUG
thread_local int64_t num_searches = 0;
void CountSearch() { ++num_searches; }
#else
void CountSearch() {}
#endif

}  // namespace

int64_t PrefixHashTable::NumSearchesForTest() {
#ifdef NDEBUG
  return 0;
#else
  return num_searches;
#endif
}

PrefixHashTable::PrefixHashTable(BlockRecords* records, size_t num_buckets)
    : records_(records), buckets_(num_buckets) {
  KVBLOCKS_CHECK(num_buckets * kSlotsPerBucket >= static_cast<size_t>(records->num_blocks()),
                 absl::StrCat(num_buckets, " buckets for ", records->num_blocks(), " blocks"));
  const int ok = RAND_bytes(reinterpret_cast<unsigned char*>(secret_), sizeof(secret_));
  KVBLOCKS_CHECK(ok == 1, "the system gives no random bytes for the prefix-hash table");
}

ABSL_ATTRIBUTE_ALWAYS_INLINE inline uint32_t PrefixHashTable::MatchTag(const Bucket& bucket,
                                                                       uint8_t tag) {
#ifdef __SSE2__
  const __m128i line = _mm_load_si128(reinterpret_cast<const __m128i*>(&bucket));
  const __m128i equal = _mm_cmpeq_epi8(line, _mm_set1_epi8(static_cast<char>(tag)));
  return static_cast<uint32_t>(_mm_movemask_epi8(equal)) & ((1u << kSlotsPerBucket) - 1);
#else
  uint32_t match = 0;
  for (int i = 0; i < kSlotsPerBucket; ++i) {
    match |= static_cast<uint32_t>(bucket.tags[static_cast<size_t>(i)] == tag) << i;
  }
  return match;
#endif
}

// --- Searching ---

BlockId PrefixHashTable::Find(const BlockHash& hash, GroupId group) const {
  CountSearch();
  return FindFrom(Place(hash, group), hash, group);
}

BlockId PrefixHashTable::FindFrom(uint64_t place, const BlockHash& hash, GroupId group) const {
  const Slot slot = SlotOfKey(place, hash, group);
  return slot.index < 0 ? kNullBlockId : buckets_[slot.bucket].ids[static_cast<size_t>(slot.index)];
}

PrefixHashTable::Slot PrefixHashTable::SlotOfKey(uint64_t place, const BlockHash& hash,
                                                 GroupId group) const {
  const uint8_t tag = Tag(place);
  size_t b = Home(place);
  // Every bucket may have passed a key on at some time; then the search ends after all of them.
  for (size_t probes = 0; probes < buckets_.size(); ++probes, b = Next(b)) {
    const Bucket& bucket = buckets_[b];
    for (uint32_t match = MatchTag(bucket, tag); match != 0; match &= match - 1) {
      const int i = std::countr_zero(match);
      if (HasKey(bucket.ids[static_cast<size_t>(i)], hash, group)) return {b, i};
    }
    if (bucket.num_passed == 0) break;
  }
  return {0, -1};
}

ABSL_ATTRIBUTE_ALWAYS_INLINE inline PrefixHashTable::Slot PrefixHashTable::SlotOfBlock(
    uint64_t place, BlockId id) const {
  const uint8_t tag = Tag(place);
  size_t b = Home(place);
  for (size_t probes = 0; probes < buckets_.size(); ++probes, b = Next(b)) {
    const Bucket& bucket = buckets_[b];
    for (uint32_t match = MatchTag(bucket, tag); match != 0; match &= match - 1) {
      const int i = std::countr_zero(match);
      if (bucket.ids[static_cast<size_t>(i)] == id) return {b, i};
    }
    if (bucket.num_passed == 0) break;
  }
  KVBLOCKS_CHECK(false,
                 absl::StrCat("block ", id, " has a key but is not in the prefix-hash table"));
  return {0, -1};
}

size_t PrefixHashTable::FindRun(absl::Span<const BlockHash> hashes, size_t stride, GroupId group,
                                absl::Span<BlockId> out) const {
  const size_t count = out.size();
  if (count == 0) return 0;
  const auto hash_of = [&](size_t i) -> const BlockHash& { return hashes[(i + 1) * stride - 1]; };
  // Many runs are short: what the rest is prepared with would be in vain for them.
  constexpr size_t kFirst = 4;
  const size_t first_end = std::min(count, kFirst);
  std::array<uint64_t, kFirst> first_places;
  for (size_t i = 0; i < first_end; ++i) {
    first_places[i] = Place(hash_of(i), group);
    Prefetch(first_places[i]);
  }
  for (size_t i = 0; i < first_end; ++i) {
    CountSearch();
    out[i] = FindFrom(first_places[i], hash_of(i), group);
    if (out[i] == kNullBlockId) return i;
  }
  // Blocks that were taken together mostly have ids in a row, up or down: while the guess is right,
  // no bucket is read.
  size_t done = FollowRow(hashes, stride, group, out, first_end);

  // Three stages, with a batch of keys between them, so that cache misses overlap: fetch the
  // buckets; pick the first block whose tag matches and fetch its hash; compare.
  constexpr size_t kBatch = 16;
  struct Batch {
    std::array<uint64_t, kBatch> places;
    std::array<BlockId, kBatch> candidates;
  };
  std::array<Batch, 3> batches;
  const bool reads_records = only_group_ != group;
  const auto fetch_buckets = [&](size_t begin, Batch& batch) {
    const size_t size = begin < count ? std::min(kBatch, count - begin) : 0;
    for (size_t i = 0; i < size; ++i) {
      batch.places[i] = Place(hash_of(begin + i), group);
      __builtin_prefetch(&buckets_[Home(batch.places[i])]);
    }
  };
  const auto fetch_hashes = [&](size_t begin, Batch& batch) {
    const size_t size = begin < count ? std::min(kBatch, count - begin) : 0;
    for (size_t i = 0; i < size; ++i) {
      const Bucket& bucket = buckets_[Home(batch.places[i])];
      const uint32_t match = MatchTag(bucket, Tag(batch.places[i]));
      const BlockId id =
          match == 0 ? kNullBlockId : bucket.ids[static_cast<size_t>(std::countr_zero(match))];
      batch.candidates[i] = id;
      records_->PrefetchHash(id);
      if (reads_records) records_->Prefetch(id);
    }
  };
  const auto fill = [&](size_t begin) {
    fetch_buckets(begin, batches[0]);
    fetch_buckets(begin + kBatch, batches[1]);
    fetch_hashes(begin, batches[0]);
  };
  if (done < count) fill(done);
  size_t current = 0;
  for (size_t begin = done; begin < count; begin += kBatch) {
    const size_t next = current == 2 ? 0 : current + 1;
    fetch_buckets(begin + 2 * kBatch, batches[3 - current - next]);
    fetch_hashes(begin + kBatch, batches[next]);
    const Batch& batch = batches[current];
    const size_t size = std::min(kBatch, count - begin);
    for (size_t i = 0; i < size; ++i) {
      CountSearch();
      const BlockHash& hash = hash_of(begin + i);
      BlockId id = batch.candidates[i];
      // Another key may have the same tag, or the key may stand in a later bucket.
      if (id == kNullBlockId || !HasKey(id, hash, group)) {
        id = FindFrom(batch.places[i], hash, group);
        if (id == kNullBlockId) return begin + i;
      }
      out[begin + i] = id;
    }
    current = next;
    // Back in a row?
    const size_t end = begin + size;
    if (size == kBatch && IsRow(out.subspan(begin, size))) {
      done = FollowRow(hashes, stride, group, out, end);
      if (done > end && done < count) {
        fill(done);
        current = 0;
      }
      begin += done - end;
    }
  }
  return count;
}

bool PrefixHashTable::IsRow(absl::Span<const BlockId> ids) {
  const BlockId step = ids[1] - ids[0];
  for (size_t i = 2; i < ids.size(); ++i) {
    if (ids[i] - ids[i - 1] != step) return false;
  }
  return step == 1 || step == -1;
}

size_t PrefixHashTable::FollowRow(absl::Span<const BlockHash> hashes, size_t stride, GroupId group,
                                  absl::Span<BlockId> out, size_t begin) const {
  if (begin < 2 || begin >= out.size()) return begin;
  const BlockId step = out[begin - 1] - out[begin - 2];
  if (step != 1 && step != -1) return begin;
  BlockId id = out[begin - 1];
  for (size_t i = begin; i < out.size(); ++i) {
    id += step;
    // A record without key has no hash to compare; of duplicates the bucket names the first.
    if (id <= kNullBlockId || id >= records_->num_blocks()) return i;
    const KvCacheBlock& block = (*records_)[id];
    if (block.key_group != group || block.has_duplicates) return i;
    CountSearch();
    if (!(records_->hash(id) == hashes[(i + 1) * stride - 1])) return i;
    out[i] = id;
  }
  return out.size();
}

// --- Changing ---

bool PrefixHashTable::Insert(uint64_t place, const BlockHash& hash, GroupId group, BlockId id) {
  KvCacheBlock& block = (*records_)[id];
  if (block.has_key()) {
    KVBLOCKS_CHECK(block.key_group == group && records_->hash(id) == hash,
                   absl::StrCat("block ", id, " already has the key ", records_->hash(id).ToHex(),
                                " of group ", block.key_group));
    return false;
  }
  if (only_group_ != group) only_group_ = only_group_ == kNoGroup ? group : kSeveralGroups;
  CountSearch();
  if (const Slot same = SlotOfKey(place, hash, group); same.index >= 0) {
    AddToRing(buckets_[same.bucket].ids[static_cast<size_t>(same.index)], id);
    block.has_duplicates = true;
  } else {
    size_t b = Home(place);
    uint32_t empty = MatchTag(buckets_[b], 0);
    for (; empty == 0; empty = MatchTag(buckets_[b], 0)) {
      ++buckets_[b].num_passed;
      b = Next(b);
    }
    const auto i = static_cast<size_t>(std::countr_zero(empty));
    buckets_[b].tags[i] = Tag(place);
    buckets_[b].ids[i] = id;
    ++num_keys_;
  }
  records_->hash(id) = hash;
  block.key_group = static_cast<int16_t>(group);
  ++num_blocks_;
  return true;
}

void PrefixHashTable::AddToRing(BlockId first, BlockId id) {
  if (!(*records_)[first].has_duplicates) {
    (*records_)[first].has_duplicates = true;
    duplicates_[first] = {first, first};
  }
  const BlockId last = duplicates_[first].prev;
  duplicates_[last].next = id;
  duplicates_[first].prev = id;
  duplicates_[id] = {last, first};
}

bool PrefixHashTable::Erase(const BlockHash& hash, GroupId group, BlockId id) {
  if (id <= 0 || id >= records_->num_blocks()) return false;
  if ((*records_)[id].key_group != group || !(records_->hash(id) == hash)) return false;
  Erase(id);
  return true;
}

void PrefixHashTable::Erase(uint64_t place, BlockId id) {
  KvCacheBlock& block = (*records_)[id];
  KVBLOCKS_DCHECK(block.has_key(), absl::StrCat("block ", id, " has no key to erase"));
  if (!block.has_duplicates) {
    const Slot slot = SlotOfBlock(place, id);
    for (size_t b = Home(place); b != slot.bucket; b = Next(b)) --buckets_[b].num_passed;
    buckets_[slot.bucket].tags[static_cast<size_t>(slot.index)] = 0;
    buckets_[slot.bucket].ids[static_cast<size_t>(slot.index)] = kNullBlockId;
    --num_keys_;
  } else {
    const Ring ring = duplicates_[id];
    duplicates_[ring.prev].next = ring.next;
    duplicates_[ring.next].prev = ring.prev;
    duplicates_.erase(id);
    // Only the earliest block of a ring is in a bucket; the search for its key finds it or, for the
    // others, the earliest.
    const Slot slot = SlotOfKey(place, records_->hash(id), block.key_group);
    BlockId& first = buckets_[slot.bucket].ids[static_cast<size_t>(slot.index)];
    if (first == id) first = ring.next;
    if (ring.next == ring.prev) {  // one block is left
      duplicates_.erase(ring.next);
      (*records_)[ring.next].has_duplicates = false;
    }
    block.has_duplicates = false;
  }
  block.key_group = -1;
  --num_blocks_;
}

void PrefixHashTable::Clear() {
  std::fill(buckets_.begin(), buckets_.end(), Bucket{});
  duplicates_.clear();
  for (BlockId id = 0; id < records_->num_blocks(); ++id) {
    (*records_)[id].key_group = -1;
    (*records_)[id].has_duplicates = false;
  }
  num_keys_ = num_blocks_ = 0;
  only_group_ = kNoGroup;
}

// --- Diagnostics ---

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
      return BrokenInvariant("block ", id, ": mark and ring of duplicates disagree");
    }
    if (!block.has_key()) {
      if (block.has_duplicates) {
        return BrokenInvariant("block ", id, " has duplicates but no key");
      }
      continue;
    }
    ++keyed;
    const std::vector<BlockId> holders = FindAll(records_->hash(id), block.key_group);
    if (std::find(holders.begin(), holders.end(), id) == holders.end()) {
      return BrokenInvariant("block ", id, " has a key of group ", block.key_group,
                             " but a look-up of that key does not give it");
    }
  }
  if (absl::Status status = CheckBuckets(); !status.ok()) return status;
  if (keyed != num_blocks_) {
    return BrokenInvariant("prefix-hash table counts ", num_blocks_, " blocks, found ", keyed);
  }
  return absl::OkStatus();
}

absl::Status PrefixHashTable::CheckBuckets() const {
  std::vector<uint32_t> passed(buckets_.size(), 0);
  int32_t occupied = 0;
  for (size_t b = 0; b < buckets_.size(); ++b) {
    for (size_t i = 0; i < kSlotsPerBucket; ++i) {
      const BlockId id = buckets_[b].ids[i];
      if ((buckets_[b].tags[i] == 0) != (id == kNullBlockId)) {
        return BrokenInvariant("bucket ", b, " of the prefix-hash table: tag ", buckets_[b].tags[i],
                               " with block ", id);
      }
      if (id == kNullBlockId) continue;
      ++occupied;
      if (!(*records_)[id].has_key()) {
        return BrokenInvariant("the prefix-hash table maps a key to block ", id,
                               ", which has none");
      }
      const GroupId group = (*records_)[id].key_group;
      if (only_group_ != kSeveralGroups && only_group_ != group) {
        return BrokenInvariant("block ", id, " has a key of group ", group,
                               ", all keys should be of group ", only_group_);
      }
      for (size_t home = Home(Place(records_->hash(id), group)); home != b; home = Next(home)) {
        ++passed[home];
      }
    }
  }
  for (size_t b = 0; b < buckets_.size(); ++b) {
    if (buckets_[b].num_passed != passed[b]) {
      return BrokenInvariant("bucket ", b, " of the prefix-hash table passed on ", passed[b],
                             " keys, counts ", buckets_[b].num_passed);
    }
  }
  if (occupied != num_keys_) {
    return BrokenInvariant("prefix-hash table counts ", num_keys_, " keys, found ", occupied);
  }
  return absl::OkStatus();
}

}  // namespace kvblocks
