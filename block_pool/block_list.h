// BlockList: a set of blocks in the order in which they were added, from which any block can be
// taken. For policies that order blocks by their last use, those in use included.
//
// A circular doubly linked list over block ids, closed by the null block, which is never in it.
// Always: a block that is not in the list has no links; size() blocks stand between the null block
// and itself. Cost: O(1) per call but for Clear and IsConsistent; 8 bytes per block of the pool,
// taken at construction, and nothing after it.

#ifndef KVBLOCKS_BLOCK_POOL_BLOCK_LIST_H_
#define KVBLOCKS_BLOCK_POOL_BLOCK_LIST_H_

#include <cstdint>
#include <vector>

#include "kvblocks/block_pool/check.h"
#include "kvblocks/block_pool/kv_cache_block.h"

namespace kvblocks {

class BlockList {
 public:
  explicit BlockList(int32_t num_blocks) : links_(static_cast<size_t>(num_blocks)) {
    At(kNullBlockId) = {.prev = kNullBlockId, .next = kNullBlockId};
  }

  bool empty() const { return size_ == 0; }
  int32_t size() const { return size_; }
  // Not for the null block.
  bool contains(BlockId id) const { return links_[static_cast<size_t>(id)].next != kUnlinked; }
  // The block added longest ago. REQUIRES: not empty.
  BlockId front() const { return links_[kNullBlockId].next; }

  // REQUIRES: not contained.
  void AddBack(BlockId id) {
    KVBLOCKS_DCHECK(!contains(id), "a block enters a list twice");
    const BlockId last = At(kNullBlockId).prev;
    At(id) = {.prev = last, .next = kNullBlockId};
    At(last).next = id;
    At(kNullBlockId).prev = id;
    ++size_;
  }
  // No-op for a block that is not contained.
  void Remove(BlockId id) {
    if (!contains(id)) return;
    const Links links = At(id);
    At(links.prev).next = links.next;
    At(links.next).prev = links.prev;
    At(id) = {};
    --size_;
  }
  void Clear() {
    while (!empty()) Remove(front());
  }

  // Whether links and size agree. O(size).
  bool IsConsistent() const {
    BlockId last = kNullBlockId;
    for (int32_t i = 0; i <= size_; ++i) {
      const BlockId id = links_[static_cast<size_t>(last)].next;
      if (id == kUnlinked || links_[static_cast<size_t>(id)].prev != last) return false;
      if ((id == kNullBlockId) != (i == size_)) return false;
      last = id;
    }
    return true;
  }

 private:
  struct Links {
    BlockId prev = kUnlinked;
    BlockId next = kUnlinked;
  };
  Links& At(BlockId id) { return links_[static_cast<size_t>(id)]; }

  int32_t size_ = 0;
  std::vector<Links> links_;
};

}  // namespace kvblocks

#endif  // KVBLOCKS_BLOCK_POOL_BLOCK_LIST_H_
