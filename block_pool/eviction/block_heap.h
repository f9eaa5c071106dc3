// BlockHeap: a set of blocks ordered by a key of two numbers, smallest first, from which any block
// can be taken.
//
// An indexed binary heap over block ids. Always: the block at the top has the smallest (first,
// second); position_[id] is where the block stands, or -1. Keys should differ, so that the order is
// defined. Cost: O(log n) to add and remove, O(1) to look at the top; 24 bytes per block of the
// pool, taken at construction, and nothing after it.

#ifndef KVBLOCKS_BLOCK_POOL_EVICTION_BLOCK_HEAP_H_
#define KVBLOCKS_BLOCK_POOL_EVICTION_BLOCK_HEAP_H_

#include <cstddef>
#include <cstdint>
#include <vector>

#include "kvblocks/block.h"
#include "kvblocks/check.h"

namespace kvblocks {

struct BlockRank {
  int64_t first = 0;
  int64_t second = 0;

  friend auto operator<=>(const BlockRank&, const BlockRank&) = default;
};

class BlockHeap {
 public:
  explicit BlockHeap(int32_t num_blocks)
      : ranks_(static_cast<size_t>(num_blocks)), position_(static_cast<size_t>(num_blocks), -1) {
    heap_.reserve(static_cast<size_t>(num_blocks));
  }

  bool empty() const { return heap_.empty(); }
  int32_t size() const { return static_cast<int32_t>(heap_.size()); }
  bool contains(BlockId id) const { return position_[static_cast<size_t>(id)] >= 0; }
  // REQUIRES: not empty.
  BlockId top() const { return heap_.front(); }
  // REQUIRES: contains(id).
  const BlockRank& rank(BlockId id) const { return ranks_[static_cast<size_t>(id)]; }

  // REQUIRES: not contained.
  void Add(BlockId id, const BlockRank& rank) {
    KVBLOCKS_DCHECK(!contains(id), "a block enters a heap twice");
    ranks_[static_cast<size_t>(id)] = rank;
    heap_.push_back(id);
    Place(heap_.size() - 1, id);
    Rise(heap_.size() - 1);
  }
  // No-op for a block that is not contained.
  void Remove(BlockId id) {
    if (!contains(id)) return;
    const auto at = static_cast<size_t>(position_[static_cast<size_t>(id)]);
    position_[static_cast<size_t>(id)] = -1;
    const BlockId last = heap_.back();
    heap_.pop_back();
    if (last == id) return;
    Place(at, last);
    Rise(at);
    Sink(static_cast<size_t>(position_[static_cast<size_t>(last)]));
  }
  void Clear() {
    for (const BlockId id : heap_) position_[static_cast<size_t>(id)] = -1;
    heap_.clear();
  }

  static int64_t BytesFor(int64_t num_blocks) {
    return num_blocks *
           static_cast<int64_t>(sizeof(BlockRank) + sizeof(int32_t) + sizeof(BlockId));
  }

  // Whether order and positions agree. O(size).
  bool IsConsistent() const {
    for (size_t i = 0; i < heap_.size(); ++i) {
      if (position_[static_cast<size_t>(heap_[i])] != static_cast<int32_t>(i)) return false;
      if (i > 0 && rank(heap_[i]) < rank(heap_[(i - 1) / 2])) return false;
    }
    return true;
  }

 private:
  void Place(size_t at, BlockId id) {
    heap_[at] = id;
    position_[static_cast<size_t>(id)] = static_cast<int32_t>(at);
  }
  void Rise(size_t at) {
    const BlockId id = heap_[at];
    while (at > 0 && rank(id) < rank(heap_[(at - 1) / 2])) {
      Place(at, heap_[(at - 1) / 2]);
      at = (at - 1) / 2;
    }
    Place(at, id);
  }
  void Sink(size_t at) {
    const BlockId id = heap_[at];
    while (2 * at + 1 < heap_.size()) {
      size_t child = 2 * at + 1;
      if (child + 1 < heap_.size() && rank(heap_[child + 1]) < rank(heap_[child])) ++child;
      if (!(rank(heap_[child]) < rank(id))) break;
      Place(at, heap_[child]);
      at = child;
    }
    Place(at, id);
  }

  std::vector<BlockRank> ranks_;
  std::vector<int32_t> position_;
  std::vector<BlockId> heap_;
};

}  // namespace kvblocks

#endif  // KVBLOCKS_BLOCK_POOL_EVICTION_BLOCK_HEAP_H_
