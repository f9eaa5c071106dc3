// PageChunks: pages of several sizes in one memory - which chunk is lent to which class of pages,
// which pages are free, and how many more would fit.
//
// Memory is cut into chunks of equal bytes. A chunk is unassigned, or lent to one page class and
// cut into that class's pages_per_chunk pages. Ids: chunk c holds 1 + c * ids_per_chunk and up, of
// which a lent chunk uses the first pages_per_chunk of its class; the others, and all of an
// unassigned chunk, are ids without a page. A chunk is *idle* if it is lent but none of its pages
// is referenced: its pages wait in their class's queue, with what is cached in them, until the
// class uses them again or another class takes the chunk.
//
// A take of one page for a class gets, in this order: (1) the front of its own queue, if that has
// no key; (2) the first page of the lowest unassigned chunk; (3) the front of its own queue, or a
// page of the idle chunk of another class that has been idle longest, whichever was freed earlier;
// (4) whichever of these exists. Where that would use up an idle or unassigned chunk which the rest
// of the promise needs, it gets the first page of its own queue that lies in a chunk in use.
//
// Always: a promise (Promise) fits iff, with p = free pages of a class in chunks in use and Z =
// idle and unassigned chunks, the sum over classes of ceil(max(0, needed - p) / pages_per_chunk) is
// at most Z; no choice breaks that for what is left of it, so every take of a promise succeeds. If
// the later pages fit as well, no choice breaks that either: a request that is alone and could be
// completed when it was admitted can be completed.
//
// Cost: O(number of classes) per page at most; a take under pressure may walk its class's queue,
// once per call. Part of BlockPool, which owns references, keys and events.

#ifndef KVBLOCKS_BLOCK_POOL_PAGE_CHUNKS_H_
#define KVBLOCKS_BLOCK_POOL_PAGE_CHUNKS_H_

#include <cstdint>
#include <vector>

#include "absl/status/status.h"
#include "absl/types/span.h"
#include "kvblocks/block_pool/free_block_queue.h"
#include "kvblocks/block_pool/kv_cache_block.h"

namespace kvblocks {

struct ChunkLayout {
  int64_t num_chunks = 0;                     // 0: no chunks, every block serves every group
  std::vector<int64_t> pages_per_chunk = {};  // per page class
  std::vector<int32_t> class_of_group = {};   // per group
};

// Where a page lies: at byte chunk * bytes_per_chunk + index * bytes_per_page of its class.
struct PagePlace {
  int64_t chunk = 0;
  int64_t index = 0;  // among the chunk's pages

  friend bool operator==(const PagePlace&, const PagePlace&) = default;
};
// REQUIRES: id is not the null block, which has no place.
constexpr PagePlace PlaceOfPage(BlockId id, int64_t ids_per_chunk) {
  return {.chunk = (id - 1) / ids_per_chunk, .index = (id - 1) % ids_per_chunk};
}

// What one group is going to need: new pages, hits to be touched (referenced ones cost nothing),
// and what the request may need at the same time later on.
struct PageNeed {
  int64_t num_pages = 0;
  int64_t num_later = 0;
  absl::Span<const BlockId> hits = {};  // distinct, or null blocks
};

class PageChunks {
 public:
  // Host memory of the books, records aside.
  static int64_t BytesFor(const ChunkLayout& layout, int64_t num_blocks);
  // All chunks unassigned. `records` must outlive it and have a sentinel per class behind the
  // pool's own. REQUIRES: a layout that makes up the blocks, as Validate(KvCacheConfig) says.
  PageChunks(const ChunkLayout& layout, BlockRecords* records);

  // --- What there is, O(1) ---

  int32_t num_chunks() const { return num_chunks_; }
  int32_t num_classes() const { return static_cast<int32_t>(classes_.size()); }
  int32_t ids_per_chunk() const { return ids_per_chunk_; }
  int64_t pages_per_chunk(int32_t page_class) const { return Of(page_class).pages_per_chunk; }
  bool HasGroup(GroupId g) const { return g >= 0 && g < static_cast<GroupId>(groups_.size()); }
  // REQUIRES: HasGroup(group).
  int32_t ClassOfGroup(GroupId group) const { return groups_[static_cast<size_t>(group)]; }

  // -1: the chunk is unassigned, respectively the id has no page. REQUIRES: id is not null.
  int32_t ClassOfChunk(int32_t chunk) const { return At(chunk).page_class; }
  int32_t ClassOfPage(BlockId id) const;

  int32_t num_free() const { return num_free_; }  // pages in the queues, cached ones included
  int32_t num_ids_without_page() const { return num_ids_without_page_; }
  int32_t num_unassigned() const { return num_unassigned_; }
  int32_t num_idle() const { return num_idle_; }
  // Referenced share of the bytes that can be handed out, O(classes).
  double usage() const;
  const FreeBlockQueue& queue(int32_t page_class) const { return Of(page_class).queue; }

  // --- For BlockPool ---

  // Whether all of `needs` (one per group) fits, with `reserved` further pages of every group's
  // class behind them, and `kept_chunks` chunks idle or unassigned all the while. If so, replaces
  // the promise that takes are made under, which includes the later pages of all groups if those
  // fit as well. Otherwise nothing changes. O(groups + hits).
  bool Promise(absl::Span<const PageNeed> needs, int64_t kept_chunks, int64_t reserved);
  // The same for pages of one group.
  bool PromisePages(GroupId group, int64_t num_pages);
  // Includes what is reserved or for later.
  int64_t num_promised(int32_t page_class) const { return Of(page_class).num_promised; }

  // What to take next for a class: a page of its queue, or else a chunk to be lent first.
  struct Choice {
    BlockId page = kNullBlockId;
    int32_t chunk = -1;
  };
  // Begins a run of takes for one class.
  void BeginTakes() { packed_next_ = kUnlinked; }
  // REQUIRES: a page of the class is promised.
  Choice Choose(int32_t page_class);
  // Lends an unassigned or idle chunk, whose pages have lost their keys, to a class; its pages
  // enter the front of the class's queue.
  void Lend(int32_t chunk, int32_t page_class);
  // A page's first reference and last one. A page without a key may go to the front: with others of
  // its class since BeginFrees, in list order.
  void OnTaken(BlockId id);    // promised
  void OnTouched(BlockId id);  // not promised
  void BeginFrees();
  void OnFreed(BlockId id, bool to_front);
  // A referenced page is never freed again.
  void OnMadePermanent(BlockId id) { ++Of(ClassOfPage(id)).num_permanent; }
  // Makes all idle chunks unassigned. REQUIRES: no page in them has a key.
  void ReturnIdle();

  // OK, or what disagrees with the records. O(number of blocks).
  absl::Status CheckInvariants() const;

 private:
  struct Chunk {
    int32_t page_class = -1;  // -1: unassigned
    int32_t num_live = 0;     // pages that are referenced
    int32_t prev = -1;        // among the idle chunks of its class
    int32_t next = -1;
    uint64_t idle_since = 0;
    bool is_marked = false;  // scratch of one call
  };
  struct PageClass {
    PageClass(BlockRecords* records, BlockId sentinel, int64_t pages)
        : pages_per_chunk(pages), queue(records, sentinel) {}

    int64_t pages_per_chunk;
    bool has_group = false;
    FreeBlockQueue queue;
    int32_t oldest_idle = -1;  // ends of the list of idle chunks
    int32_t newest_idle = -1;
    int64_t num_live = 0;  // referenced pages, permanent ones included
    int64_t num_permanent = 0;
    int64_t num_loose = 0;              // free pages in chunks in use
    int64_t num_promised = 0;           // pages still to be taken, reserved or for later
    BlockId last_in_front = kUnlinked;  // scratch of one call
    int64_t needed = 0;                 // scratch of one call, as the next two
    int64_t later = 0;
    int64_t loose = 0;
  };

  int32_t ChunkOf(BlockId id) const { return (id - 1) / ids_per_chunk_; }
  BlockId FirstPageOf(int32_t chunk) const { return 1 + chunk * ids_per_chunk_; }
  Chunk& At(int32_t chunk) { return chunks_[static_cast<size_t>(chunk)]; }
  const Chunk& At(int32_t chunk) const { return chunks_[static_cast<size_t>(chunk)]; }
  PageClass& Of(int32_t page_class) { return classes_[static_cast<size_t>(page_class)]; }
  const PageClass& Of(int32_t page_class) const {
    return classes_[static_cast<size_t>(page_class)];
  }

  Choice ChooseFreely(int32_t page_class) const;
  bool MayUseUpChunk(const PageClass& own) const;
  void PinIfIdle(int32_t chunk);
  void CountTaken(BlockId id);
  void LinkIdle(int32_t chunk);
  void UnlinkIdle(int32_t chunk);
  absl::Status CheckChunk(int32_t chunk, std::vector<int64_t>& live,
                          std::vector<int64_t>& loose) const;

  const int32_t num_chunks_;
  const int32_t ids_per_chunk_;
  BlockRecords* const records_;
  std::vector<int32_t> groups_;  // class of each group
  std::vector<Chunk> chunks_;
  std::vector<PageClass> classes_;
  std::vector<uint64_t> freed_at_;  // per id: when the page was last freed or lent
  uint64_t clock_ = 0;
  int32_t num_free_ = 0;
  int32_t num_ids_without_page_;
  int32_t num_unassigned_;
  int32_t num_idle_ = 0;
  int32_t lowest_unassigned_ = 0;    // no chunk below is unassigned
  int64_t num_kept_chunks_ = 0;      // of the promise
  BlockId packed_next_ = kUnlinked;  // where the run of takes goes on searching
};

}  // namespace kvblocks

#endif  // KVBLOCKS_BLOCK_POOL_PAGE_CHUNKS_H_
