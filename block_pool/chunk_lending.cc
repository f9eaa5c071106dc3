#include "block_pool/chunk_lending.h"

#include <algorithm>
#include <memory>

#include "absl/strings/str_cat.h"
#include "checks/checked_int64.h"
#include "kvblocks/check.h"

namespace kvblocks {
namespace {

int32_t IdsPerChunk(const ChunkLayout& layout) {
  return static_cast<int32_t>(
      *std::max_element(layout.pages_per_chunk.begin(), layout.pages_per_chunk.end()));
}

}  // namespace

std::unique_ptr<PageChunks> PageChunks::Create(const ChunkLayout& layout, BlockRecords* records) {
  return std::make_unique<ChunkLending>(layout, records);
}

int64_t PageChunks::BytesFor(const ChunkLayout& layout, int64_t num_blocks) {
  return ChunkLending::BytesFor(layout, num_blocks);
}

int64_t ChunkLending::BytesFor(const ChunkLayout& layout, int64_t num_blocks) {
  return layout.num_chunks * static_cast<int64_t>(sizeof(Chunk)) +
         num_blocks * static_cast<int64_t>(sizeof(uint64_t));
}

ChunkLending::ChunkLending(const ChunkLayout& layout, BlockRecords* records)
    : records_(records),
      chunks_(static_cast<size_t>(layout.num_chunks)),
      freed_at_(static_cast<size_t>(records->num_blocks()), 0) {
  num_chunks_ = static_cast<int32_t>(layout.num_chunks);
  num_classes_ = static_cast<int32_t>(layout.pages_per_chunk.size());
  ids_per_chunk_ = IdsPerChunk(layout);
  groups_ = layout.class_of_group;
  num_ids_without_page_ = records->num_blocks() - 1;
  num_unassigned_ = num_chunks_;
  KVBLOCKS_CHECK(
      records->num_blocks() == 1 + num_chunks_ * ids_per_chunk_,
      absl::StrCat(num_chunks_, " chunks do not make up ", records->num_blocks(), " ids"));
  BlockId sentinel = records->num_blocks() + 1;  // the first is the pool's own queue's
  for (int64_t pages : layout.pages_per_chunk) classes_.emplace_back(records, sentinel++, pages);
  for (int32_t page_class : groups_) Of(page_class).has_group = true;
}

int32_t ChunkLending::ClassOfPage(BlockId id) const {
  const Chunk& chunk = At(ChunkOf(id));
  if (chunk.page_class < 0 || (id - 1) % ids_per_chunk_ >= Of(chunk.page_class).pages_per_chunk) {
    return -1;
  }
  return chunk.page_class;
}

double ChunkLending::usage() const {
  double used = 0;
  double usable = num_chunks_;
  for (const PageClass& c : classes_) {
    const auto pages = static_cast<double>(c.pages_per_chunk);
    used += static_cast<double>(c.num_live - c.num_permanent) / pages;
    usable -= static_cast<double>(c.num_permanent) / pages;
  }
  // Sums of fractions are not exact.
  return used == 0 ? 0.0 : std::min(1.0, used / usable);
}

// --- What fits ---

bool ChunkLending::Promise(absl::Span<const PageNeed> needs, int64_t kept_chunks,
                           int64_t reserved) {
  for (PageClass& c : classes_) {
    c.needed = c.has_group ? reserved : 0;
    c.later = 0;
    c.loose = c.num_loose;
  }
  int64_t chunks_left = num_unassigned_ + num_idle_ - kept_chunks;
  for (size_t g = 0; g < needs.size(); ++g) {
    PageClass& own = Of(groups_[g]);
    own.needed += needs[g].num_pages;
    own.later += needs[g].num_later;
    for (BlockId id : needs[g].hits) {
      if (id == kNullBlockId || (*records_)[id].ref_count > 0) continue;
      Chunk& chunk = At(ChunkOf(id));
      // The first hit in an idle chunk pins it, so that its other pages can only be its class's.
      if (chunk.num_live == 0 && !chunk.is_marked) {
        chunk.is_marked = true;
        --chunks_left;
        own.loose += own.pages_per_chunk;
      }
      --own.loose;
    }
  }
  for (const PageNeed& need : needs) {
    for (BlockId id : need.hits) {
      if (id != kNullBlockId) At(ChunkOf(id)).is_marked = false;
    }
  }
  int64_t left_later = chunks_left;
  for (const PageClass& c : classes_) {
    chunks_left -= CeilDiv(c.needed - c.loose, c.pages_per_chunk);
    left_later -= CeilDiv(c.needed + c.later - c.loose, c.pages_per_chunk);
  }
  if (chunks_left < 0) return false;
  for (PageClass& c : classes_) c.num_promised = c.needed + (left_later < 0 ? 0 : c.later);
  num_kept_chunks_ = kept_chunks;
  return true;
}

bool ChunkLending::PromisePages(GroupId group, int64_t num_pages) {
  PageClass& own = Of(ClassOfGroup(group));
  if (CeilDiv(num_pages - own.num_loose, own.pages_per_chunk) > num_unassigned_ + num_idle_) {
    return false;
  }
  for (PageClass& c : classes_) c.num_promised = 0;
  own.num_promised = num_pages;
  num_kept_chunks_ = 0;
  return true;
}

// Whether what is left of the promise fits after a page of an idle or unassigned chunk was taken.
// If the class needs such a chunk anyway, one of those counted for it is used; otherwise one must
// be left over.
bool ChunkLending::MayUseUpChunk(const PageClass& own) const {
  if (own.num_promised > own.num_loose) return true;
  int64_t chunks_left = num_unassigned_ + num_idle_ - num_kept_chunks_;
  for (const PageClass& c : classes_) {
    chunks_left -= CeilDiv(c.num_promised - c.num_loose, c.pages_per_chunk);
  }
  return chunks_left > 0;
}

ChunkLending::Choice ChunkLending::ChooseFreely(int32_t page_class) const {
  const FreeBlockQueue& queue = Of(page_class).queue;
  const BlockId front = queue.front();
  if (!queue.empty() && !(*records_)[front].has_key()) return {.page = front};
  if (num_unassigned_ > 0) {
    int32_t chunk = lowest_unassigned_;
    while (At(chunk).page_class >= 0) ++chunk;
    return {.chunk = chunk};
  }
  int32_t oldest = -1;
  for (int32_t other = 0; other < num_classes(); ++other) {
    const int32_t idle = Of(other).oldest_idle;
    if (other == page_class || idle < 0) continue;
    if (oldest < 0 || At(idle).idle_since < At(oldest).idle_since) oldest = idle;
  }
  if (queue.empty()) return {.chunk = oldest};
  if (oldest >= 0 && At(oldest).idle_since < freed_at_[static_cast<size_t>(front)]) {
    return {.chunk = oldest};
  }
  return {.page = front};
}

ChunkLending::Choice ChunkLending::Choose(int32_t page_class) {
  const PageClass& own = Of(page_class);
  KVBLOCKS_CHECK(own.num_promised > 0, absl::StrCat("no page promised to class ", page_class));
  const Choice choice = ChooseFreely(page_class);
  KVBLOCKS_CHECK(choice.page != kNullBlockId || choice.chunk >= 0,
                 absl::StrCat("promised pages of class ", page_class, " are not there"));
  const bool in_use = choice.chunk < 0 && At(ChunkOf(choice.page)).num_live > 0;
  if (in_use || MayUseUpChunk(own)) return choice;
  // Nothing lends or frees chunks while such takes go on, so what was passed over stays idle.
  BlockId page = packed_next_ == kUnlinked ? own.queue.front() : packed_next_;
  while (At(ChunkOf(page)).num_live == 0) page = own.queue.next(page);
  packed_next_ = page;
  return {.page = page};
}

// --- Moves ---

void ChunkLending::Lend(int32_t chunk, int32_t page_class) {
  Chunk& lent = At(chunk);
  if (lent.page_class < 0) {
    --num_unassigned_;
    lowest_unassigned_ = chunk + 1;
  } else {
    UnlinkIdle(chunk);
    PageClass& old = Of(lent.page_class);
    for (int64_t i = 0; i < old.pages_per_chunk; ++i) {
      old.queue.Unlink(FirstPageOf(chunk) + static_cast<BlockId>(i));
    }
    num_free_ -= static_cast<int32_t>(old.pages_per_chunk);
    num_ids_without_page_ += static_cast<int32_t>(old.pages_per_chunk);
  }
  PageClass& own = Of(page_class);
  lent.page_class = page_class;
  lent.idle_since = ++clock_;
  LinkIdle(chunk);
  BlockId last = kUnlinked;
  for (int64_t i = 0; i < own.pages_per_chunk; ++i) {
    const BlockId id = FirstPageOf(chunk) + static_cast<BlockId>(i);
    own.queue.LinkAfter(last, id);
    freed_at_[static_cast<size_t>(id)] = clock_;
    last = id;
  }
  num_free_ += static_cast<int32_t>(own.pages_per_chunk);
  num_ids_without_page_ -= static_cast<int32_t>(own.pages_per_chunk);
}

void ChunkLending::CountTaken(BlockId id) {
  Chunk& chunk = At(ChunkOf(id));
  PageClass& own = Of(chunk.page_class);
  if (chunk.num_live++ == 0) {
    UnlinkIdle(ChunkOf(id));
    own.num_loose += own.pages_per_chunk;
  }
  --own.num_loose;
  ++own.num_live;
  own.queue.Unlink(id);
  --num_free_;
}

void ChunkLending::Take(int64_t k, std::vector<BlockId>& table, GroupId group,
                        absl::FunctionRef<void(BlockId)> evict) {
  const int32_t page_class = ClassOfGroup(group);
  PageClass& own = Of(page_class);
  KVBLOCKS_CHECK(k >= 0 && k <= own.num_promised,
                 absl::StrCat(k, " pages to take for group ", group, ", ", own.num_promised,
                              " promised to its class"));
  packed_next_ = kUnlinked;
  for (int64_t i = 0; i < k; ++i) {
    const Choice choice = Choose(page_class);
    if (choice.chunk >= 0) {
      const BlockId first = FirstPageOf(choice.chunk);
      for (BlockId id = first; id < first + ids_per_chunk_; ++id) {
        if ((*records_)[id].has_key()) evict(id);
      }
      Lend(choice.chunk, page_class);
    }
    const BlockId id = choice.chunk < 0 ? choice.page : own.queue.front();
    if (id == packed_next_) packed_next_ = own.queue.next(id);
    --own.num_promised;
    CountTaken(id);
    if ((*records_)[id].has_key()) evict(id);
    (*records_)[id].ref_count = 1;
    table.push_back(id);
  }
}

int32_t ChunkLending::Touch(absl::Span<const BlockId> ids) {
  int32_t num_cached = 0;
  for (const BlockId id : ids) {
    if (id == kNullBlockId || (*records_)[id].ref_count++ > 0) continue;
    CountTaken(id);
    num_cached += (*records_)[id].has_key();
  }
  return num_cached;
}

int32_t ChunkLending::Release(absl::Span<const BlockId> ids, bool from_back, bool unhashed_first) {
  int32_t num_cached = 0;
  for (PageClass& c : classes_) c.last_in_front = kUnlinked;
  for (size_t i = 0; i < ids.size(); ++i) {
    const BlockId id = ids[from_back ? ids.size() - 1 - i : i];
    KvCacheBlock& page = (*records_)[id];
    if (page.is_null || --page.ref_count > 0) continue;
    KVBLOCKS_CHECK(page.ref_count == 0,
                   absl::StrCat("block ", id, " was freed more often than it was referenced"));
    num_cached += page.has_key();
    OnFreed(id, !page.has_key() && unhashed_first);
  }
  return num_cached;
}

std::vector<BlockId> ChunkLending::WalkFree() const {
  std::vector<BlockId> ids;
  for (const PageClass& own : classes_) {
    const std::vector<BlockId> queued = own.queue.Walk();
    ids.insert(ids.end(), queued.begin(), queued.end());
  }
  return ids;
}

void ChunkLending::OnFreed(BlockId id, bool to_front) {
  Chunk& chunk = At(ChunkOf(id));
  PageClass& own = Of(chunk.page_class);
  freed_at_[static_cast<size_t>(id)] = ++clock_;
  if (to_front) {
    own.queue.LinkAfter(own.last_in_front, id);
    own.last_in_front = id;
  } else {
    own.queue.LinkBack(id);
  }
  ++num_free_;
  --own.num_live;
  ++own.num_loose;
  if (--chunk.num_live > 0) return;
  chunk.idle_since = clock_;
  own.num_loose -= own.pages_per_chunk;
  LinkIdle(ChunkOf(id));
}

void ChunkLending::ReturnIdle() {
  for (PageClass& own : classes_) {
    while (own.oldest_idle >= 0) {
      const int32_t chunk = own.oldest_idle;
      UnlinkIdle(chunk);
      for (int64_t i = 0; i < own.pages_per_chunk; ++i) {
        own.queue.Unlink(FirstPageOf(chunk) + static_cast<BlockId>(i));
      }
      num_free_ -= static_cast<int32_t>(own.pages_per_chunk);
      num_ids_without_page_ += static_cast<int32_t>(own.pages_per_chunk);
      At(chunk).page_class = -1;
      ++num_unassigned_;
    }
  }
  lowest_unassigned_ = 0;
}

// Newest last, so the list stays in the order of idle_since.
void ChunkLending::LinkIdle(int32_t chunk) {
  PageClass& own = Of(At(chunk).page_class);
  At(chunk).prev = own.newest_idle;
  At(chunk).next = -1;
  (own.newest_idle < 0 ? own.oldest_idle : At(own.newest_idle).next) = chunk;
  own.newest_idle = chunk;
  ++num_idle_;
}

void ChunkLending::UnlinkIdle(int32_t chunk) {
  Chunk& gone = At(chunk);
  PageClass& own = Of(gone.page_class);
  (gone.prev < 0 ? own.oldest_idle : At(gone.prev).next) = gone.next;
  (gone.next < 0 ? own.newest_idle : At(gone.next).prev) = gone.prev;
  gone.prev = gone.next = -1;
  --num_idle_;
}

// --- Checks ---

absl::Status ChunkLending::CheckChunk(int32_t chunk, std::vector<int64_t>& live,
                                    std::vector<int64_t>& loose) const {
  const Chunk& found = At(chunk);
  const int64_t num_pages = found.page_class < 0 ? 0 : Of(found.page_class).pages_per_chunk;
  int64_t referenced = 0;
  for (int32_t i = 0; i < ids_per_chunk_; ++i) {
    const KvCacheBlock& block = (*records_)[FirstPageOf(chunk) + i];
    if (i >= num_pages && (block.ref_count != 0 || block.has_key() || block.is_linked())) {
      return BrokenInvariant("block ", FirstPageOf(chunk) + i,
                             " has no page, but references, a key or a queue");
    }
    referenced += block.ref_count > 0;
  }
  if (referenced != found.num_live || found.is_marked) {
    return BrokenInvariant("chunk ", chunk, " counts ", found.num_live, " pages in use, found ",
                           referenced);
  }
  if (found.page_class < 0) return absl::OkStatus();
  const auto k = static_cast<size_t>(found.page_class);
  live[k] += referenced;
  if (referenced > 0) loose[k] += num_pages - referenced;
  return absl::OkStatus();
}

absl::Status ChunkLending::CheckInvariants() const {
  std::vector<int64_t> live(classes_.size(), 0);
  std::vector<int64_t> loose(classes_.size(), 0);
  int32_t unassigned = 0;
  for (int32_t chunk = 0; chunk < num_chunks_; ++chunk) {
    if (absl::Status status = CheckChunk(chunk, live, loose); !status.ok()) return status;
    if (At(chunk).page_class >= 0) continue;
    ++unassigned;
    if (chunk < lowest_unassigned_) {
      return BrokenInvariant("chunk ", chunk, " is unassigned, but the lowest is ",
                             lowest_unassigned_);
    }
  }
  int32_t idle = 0;
  int32_t free = 0;
  for (int32_t k = 0; k < num_classes(); ++k) {
    const PageClass& own = Of(k);
    const auto wrong = [&](const std::string& what) {
      return BrokenInvariant("page class ", k, ": ", what);
    };
    if (own.num_live != live[static_cast<size_t>(k)] ||
        own.num_loose != loose[static_cast<size_t>(k)]) {
      return wrong(absl::StrCat("counts ", own.num_live, " pages in use and ", own.num_loose,
                                " free ones beside them, found ", live[static_cast<size_t>(k)],
                                " and ", loose[static_cast<size_t>(k)]));
    }
    uint64_t last = 0;
    int32_t last_chunk = -1;
    for (int32_t c = own.oldest_idle; c >= 0; c = At(c).next) {
      if (++idle > num_chunks_ || At(c).page_class != k || At(c).num_live > 0 ||
          At(c).prev != last_chunk || At(c).idle_since < last) {
        return wrong(absl::StrCat("chunk ", c, " is out of place among the idle ones"));
      }
      last = At(c).idle_since;
      last_chunk = c;
    }
    if (absl::Status status = own.queue.CheckInvariants(); !status.ok()) return status;
    for (BlockId id = own.queue.front(); id < records_->num_blocks(); id = own.queue.next(id)) {
      if (ClassOfPage(id) != k) return wrong(absl::StrCat("its queue has block ", id));
    }
    free += own.queue.size();
  }
  int32_t without_live = 0;
  for (const Chunk& chunk : chunks_) without_live += chunk.page_class >= 0 && chunk.num_live == 0;
  if (idle != without_live || idle != num_idle_ || unassigned != num_unassigned_ ||
      free != num_free_) {
    return BrokenInvariant("chunks count ", num_idle_, " idle, ", num_unassigned_,
                           " unassigned and ", num_free_, " free pages; listed ", idle, ", found ",
                           without_live, ", ", unassigned, " and ", free);
  }
  return absl::OkStatus();
}

}  // namespace kvblocks
