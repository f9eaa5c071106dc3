// ChunkLending: which chunk is lent to which class of pages, which pages are free, and how many
// more would fit (see PageChunks).
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
// once per call.

#ifndef KVBLOCKS_BLOCK_POOL_CHUNK_LENDING_H_
#define KVBLOCKS_BLOCK_POOL_CHUNK_LENDING_H_

#include <cstdint>
#include <vector>

#include "kvblocks/block_pool.h"
#include "kvblocks/free_block_queue.h"

namespace kvblocks {

class ChunkLending final : public PageChunks {
 public:
  ChunkLending(const ChunkLayout& layout, BlockRecords* records);
  static int64_t BytesFor(const ChunkLayout& layout, int64_t num_blocks);

  int64_t pages_per_chunk(int32_t page_class) const override {
    return Of(page_class).pages_per_chunk;
  }
  int32_t ClassOfChunk(int32_t chunk) const override { return At(chunk).page_class; }
  int32_t ClassOfPage(BlockId id) const override;
  double usage() const override;
  std::vector<BlockId> WalkFree() const override;

  bool Promise(absl::Span<const PageNeed> needs, int64_t kept_chunks, int64_t reserved) override;
  bool PromisePages(GroupId group, int64_t num_pages) override;
  void Take(int64_t k, std::vector<BlockId>& table, GroupId group,
            absl::FunctionRef<void(BlockId)> evict) override;
  int32_t Touch(absl::Span<const BlockId> ids) override;
  int32_t Release(absl::Span<const BlockId> ids, bool from_back, bool unhashed_first) override;
  void OnMadePermanent(BlockId id) override { ++Of(ClassOfPage(id)).num_permanent; }
  void ReturnIdle() override;
  absl::Status CheckInvariants() const override;

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

  // What to take next for a class: a page of its queue, or else a chunk to be lent first.
  struct Choice {
    BlockId page = kNullBlockId;
    int32_t chunk = -1;
  };
  // REQUIRES: a page of the class is promised.
  Choice Choose(int32_t page_class);
  Choice ChooseFreely(int32_t page_class) const;
  // Lends an unassigned or idle chunk, whose pages have lost their keys, to a class; its pages
  // enter the front of the class's queue.
  void Lend(int32_t chunk, int32_t page_class);
  bool MayUseUpChunk(const PageClass& own) const;
  void CountTaken(BlockId id);
  void OnFreed(BlockId id, bool to_front);
  void LinkIdle(int32_t chunk);
  void UnlinkIdle(int32_t chunk);
  absl::Status CheckChunk(int32_t chunk, std::vector<int64_t>& live,
                          std::vector<int64_t>& loose) const;

  BlockRecords* const records_;
  std::vector<Chunk> chunks_;
  std::vector<PageClass> classes_;
  std::vector<uint64_t> freed_at_;  // per id: when the page was last freed or lent
  uint64_t clock_ = 0;
  int32_t lowest_unassigned_ = 0;    // no chunk below is unassigned
  int64_t num_kept_chunks_ = 0;      // of the promise
  BlockId packed_next_ = kUnlinked;  // where the run of takes goes on searching
};

}  // namespace kvblocks

#endif  // KVBLOCKS_BLOCK_POOL_CHUNK_LENDING_H_
