// The FIFO queue of free blocks.

#ifndef KVBLOCKS_FREE_BLOCK_QUEUE_H_
#define KVBLOCKS_FREE_BLOCK_QUEUE_H_

#include <cstdint>
#include <vector>

#include "absl/status/status.h"
#include "absl/types/span.h"
#include "kvblocks/block.h"
#include "kvblocks/check.h"

// FreeBlockQueue: the blocks without references, in the order in which they will be reused.
//
// A circular doubly linked list threaded through the block records by int32 index, so that a block
// hit by a prefix look-up leaves the middle of the queue in O(1) and nothing is allocated after
// construction. The front is handed out next: the queue order is the eviction order.
//
// Always: size() is the number of linked records; walking forwards and backwards visits the same
// blocks. Cost: every operation O(1) per block. Single-threaded (see BlockPool).

namespace kvblocks {

class FreeBlockQueue {
 public:
  // An empty queue over `records`, which must outlive it. Of several queues over the same records,
  // each needs a sentinel of its own among the records behind the last block.
  explicit FreeBlockQueue(BlockRecords* records) : FreeBlockQueue(records, records->num_blocks()) {}
  FreeBlockQueue(BlockRecords* records, BlockId sentinel);

  int32_t size() const { return size_; }
  bool empty() const { return size_ == 0; }

  // The block handed out next, or the sentinel, at least the records' num_blocks(), when empty.
  BlockId front() const { return (*records_)[sentinel_].next; }
  BlockId next(BlockId id) const { return (*records_)[id].next; }

  // Front to back, for tests and diagnostics: O(size).
  std::vector<BlockId> Walk() const;

  // Starts loading what Unlink(id) will write.
  void PrefetchNeighbours(BlockId id) const {
    const KvCacheBlock& block = (*records_)[id];
    if (!block.is_linked()) return;
    records_->Prefetch(block.prev);
    records_->Prefetch(block.next);
  }

  // Takes the first blocks in order. REQUIRES: out.size() <= size().
  void PopFront(absl::Span<BlockId> out) {
    BlockId id = front();
    for (BlockId& popped : out) {
      popped = id;
      KvCacheBlock& block = (*records_)[id];
      id = block.next;
      block.prev = block.next = kUnlinked;
    }
    (*records_)[sentinel_].next = id;
    (*records_)[id].prev = sentinel_;
    size_ -= static_cast<int32_t>(out.size());
  }
  // Takes a block from wherever it stands. REQUIRES: linked.
  void Unlink(BlockId id) {
    KvCacheBlock& block = (*records_)[id];
    KVBLOCKS_DCHECK(block.is_linked(), "a block leaves a free queue that it is not in");
    (*records_)[block.prev].next = block.next;
    (*records_)[block.next].prev = block.prev;
    block.prev = block.next = kUnlinked;
    --size_;
  }
  // Adds a block at the back. REQUIRES: not linked.
  void LinkBack(BlockId id) { LinkBetween((*records_)[sentinel_].prev, id, sentinel_); }
  // The same behind `after`; kUnlinked stands for the very front.
  void LinkAfter(BlockId after, BlockId id) {
    const BlockId left = after == kUnlinked ? sentinel_ : after;
    LinkBetween(left, id, (*records_)[left].next);
  }

  // OK, or what is wrong with links and counter. O(size).
  absl::Status CheckInvariants() const;

 private:
  void LinkBetween(BlockId left, BlockId id, BlockId right) {
    KvCacheBlock& block = (*records_)[id];
    KVBLOCKS_DCHECK(!block.is_linked(), "a block enters a free queue while it is in one");
    block.prev = left;
    block.next = right;
    (*records_)[left].next = id;
    (*records_)[right].prev = id;
    ++size_;
  }

  BlockRecords* records_;
  BlockId sentinel_;  // a record behind the last block closes the circle
  int32_t size_ = 0;
};

}  // namespace kvblocks

#endif  // KVBLOCKS_FREE_BLOCK_QUEUE_H_
