// PageChunks: pages of several sizes in one memory, as BlockPool uses them.
//
// Memory is cut into chunks of equal bytes. A chunk is unassigned, or lent to one page class and
// cut into that class's pages_per_chunk pages. Ids: chunk c holds 1 + c * ids_per_chunk and up, of
// which a lent chunk uses the first pages_per_chunk of its class; the others, and all of an
// unassigned chunk, are ids without a page. A chunk is *idle* if it is lent but none of its pages
// is referenced: its pages wait in their class's queue, with what is cached in them, until the
// class uses them again or another class takes the chunk.
//
// The interface; ChunkLending has the rules. A pool whose blocks all have one size has none of it.
// Part of BlockPool, which owns references, keys and events.

#ifndef KVBLOCKS_BLOCK_POOL_PAGE_CHUNKS_H_
#define KVBLOCKS_BLOCK_POOL_PAGE_CHUNKS_H_

#include <cstdint>
#include <memory>
#include <vector>

#include "absl/functional/function_ref.h"
#include "absl/status/status.h"
#include "absl/types/span.h"
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
  // All chunks unassigned. `records` must outlive it and have a sentinel per class behind the
  // pool's own. REQUIRES: a layout that makes up the blocks, as Validate(KvCacheConfig) says.
  static std::unique_ptr<PageChunks> Create(const ChunkLayout& layout, BlockRecords* records);
  // Host memory of the books, records aside.
  static int64_t BytesFor(const ChunkLayout& layout, int64_t num_blocks);
  virtual ~PageChunks() = default;

  // --- What there is, O(1) but for usage ---

  int32_t num_chunks() const { return num_chunks_; }
  int32_t num_classes() const { return num_classes_; }
  int32_t ids_per_chunk() const { return ids_per_chunk_; }
  bool HasGroup(GroupId g) const { return g >= 0 && g < static_cast<GroupId>(groups_.size()); }
  // REQUIRES: HasGroup(group).
  int32_t ClassOfGroup(GroupId group) const { return groups_[static_cast<size_t>(group)]; }
  int32_t num_free() const { return num_free_; }  // pages in the queues, cached ones included
  int32_t num_ids_without_page() const { return num_ids_without_page_; }
  int32_t num_unassigned() const { return num_unassigned_; }
  int32_t num_idle() const { return num_idle_; }
  virtual int64_t pages_per_chunk(int32_t page_class) const = 0;
  // -1: the chunk is unassigned, respectively the id has no page. REQUIRES: id is not null.
  virtual int32_t ClassOfChunk(int32_t chunk) const = 0;
  virtual int32_t ClassOfPage(BlockId id) const = 0;
  // Referenced share of the bytes that can be handed out, O(classes).
  virtual double usage() const = 0;
  // Front to back, class by class. O(free pages).
  virtual std::vector<BlockId> WalkFree() const = 0;

  // --- For BlockPool ---

  // Whether all of `needs` (one per group) fits, with `reserved` further pages of every group's
  // class behind them, and `kept_chunks` chunks idle or unassigned all the while. If so, replaces
  // the promise that takes are made under, which includes the later pages of all groups if those
  // fit as well. Otherwise nothing changes. O(groups + hits).
  virtual bool Promise(absl::Span<const PageNeed> needs, int64_t kept_chunks,
                       int64_t reserved) = 0;
  // The same for pages of one group.
  virtual bool PromisePages(GroupId group, int64_t num_pages) = 0;
  // Appends k promised pages of a group's class, each with one reference; calls `evict` for those
  // that have a key, and for those of chunks that change hands.
  virtual void Take(int64_t k, std::vector<BlockId>& table, GroupId group,
                    absl::FunctionRef<void(BlockId)> evict) = 0;
  // Adds a reference to each; returns how many pages with a key had none. Null blocks are skipped.
  virtual int32_t Touch(absl::Span<const BlockId> ids) = 0;
  // Drops a reference from each; returns how many pages with a key have none now. Pages without a
  // key may go to the front, with others of their class, in list order.
  virtual int32_t Release(absl::Span<const BlockId> ids, bool from_back, bool unhashed_first) = 0;
  // A referenced page is never freed again.
  virtual void OnMadePermanent(BlockId id) = 0;
  // Makes all idle chunks unassigned. REQUIRES: no page in them has a key.
  virtual void ReturnIdle() = 0;

  // OK, or what disagrees with the records. O(number of blocks).
  virtual absl::Status CheckInvariants() const = 0;

 protected:
  int32_t num_chunks_ = 0;
  int32_t num_classes_ = 0;
  int32_t ids_per_chunk_ = 0;
  std::vector<int32_t> groups_;  // class of each group
  int32_t num_free_ = 0;
  int32_t num_ids_without_page_ = 0;
  int32_t num_unassigned_ = 0;
  int32_t num_idle_ = 0;
};

}  // namespace kvblocks

#endif  // KVBLOCKS_BLOCK_POOL_PAGE_CHUNKS_H_
