#include "kvblocks/free_block_queue.h"

#include "kvblocks/check.h"

namespace kvblocks {

FreeBlockQueue::FreeBlockQueue(BlockRecords* records, BlockId sentinel)
    : records_(records), sentinel_(sentinel) {
  (*records_)[sentinel_].prev = (*records_)[sentinel_].next = sentinel_;
}

std::vector<BlockId> FreeBlockQueue::Walk() const {
  std::vector<BlockId> ids;
  ids.reserve(static_cast<size_t>(size_));
  for (BlockId id = front(); id != sentinel_; id = next(id)) ids.push_back(id);
  return ids;
}

absl::Status FreeBlockQueue::CheckInvariants() const {
  int32_t walked = 0;
  BlockId last = sentinel_;
  for (BlockId id = front(); id != sentinel_ && walked <= size_; id = next(id)) {
    if (id < 0 || id >= records_->num_blocks() || (*records_)[id].prev != last) {
      return BrokenInvariant("block ", id, " and its neighbour ", last,
                             " in a free queue disagree");
    }
    last = id;
    ++walked;
  }
  if (walked != size_ || (*records_)[sentinel_].prev != last) {
    return BrokenInvariant("a free queue counts ", size_, " blocks, a walk visits ", walked);
  }
  return absl::OkStatus();
}

}  // namespace kvblocks
