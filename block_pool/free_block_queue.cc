#include "kvblocks/block_pool/free_block_queue.h"

#include "absl/container/flat_hash_set.h"
#include "absl/strings/str_cat.h"

namespace kvblocks {

FreeBlockQueue::FreeBlockQueue(BlockRecords* records, BlockId sentinel)
    : records_(records), sentinel_(sentinel) {
  (*records_)[sentinel_].prev = (*records_)[sentinel_].next = sentinel_;
}

std::optional<BlockId> FreeBlockQueue::PopFront() {
  if (empty()) return std::nullopt;
  const BlockId id = front();
  Unlink(id);
  return id;
}

std::optional<std::vector<BlockId>> FreeBlockQueue::PopFront(int64_t n) {
  if (n < 0 || n > size_) return std::nullopt;
  std::vector<BlockId> ids;
  ids.reserve(static_cast<size_t>(n));
  for (int64_t i = 0; i < n; ++i) {
    ids.push_back(front());
    Unlink(ids.back());
  }
  return ids;
}

absl::Status FreeBlockQueue::Remove(BlockId id) {
  if (id < 0 || id >= records_->num_blocks() || !(*records_)[id].is_linked()) {
    return absl::InvalidArgumentError(
        absl::StrCat("block ", id, " is not in the free queue, so it cannot be removed from it"));
  }
  Unlink(id);
  return absl::OkStatus();
}

absl::Status FreeBlockQueue::CheckAddable(absl::Span<const BlockId> ids) const {
  absl::flat_hash_set<BlockId> seen;
  for (BlockId id : ids) {
    if (id < 0 || id >= records_->num_blocks()) {
      return absl::InvalidArgumentError(absl::StrCat(
          "block ", id, " is outside the pool's blocks 0..", records_->num_blocks() - 1));
    }
    if ((*records_)[id].is_linked() || !seen.insert(id).second) {
      return absl::InvalidArgumentError(
          absl::StrCat("block ", id, " is already in the free queue, or listed twice"));
    }
  }
  return absl::OkStatus();
}

absl::Status FreeBlockQueue::Append(absl::Span<const BlockId> ids) {
  if (absl::Status status = CheckAddable(ids); !status.ok()) return status;
  for (BlockId id : ids) LinkBack(id);
  return absl::OkStatus();
}

absl::Status FreeBlockQueue::Prepend(absl::Span<const BlockId> ids) {
  if (absl::Status status = CheckAddable(ids); !status.ok()) return status;
  BlockId last = kUnlinked;
  for (BlockId id : ids) {
    LinkAfter(last, id);
    last = id;
  }
  return absl::OkStatus();
}

std::vector<BlockId> FreeBlockQueue::Walk() const {
  std::vector<BlockId> ids;
  ids.reserve(static_cast<size_t>(size_));
  for (BlockId id = front(); id != sentinel_; id = next(id)) ids.push_back(id);
  return ids;
}

absl::Status FreeBlockQueue::CheckInvariants() const {
  int32_t linked = 0;
  for (BlockId id = 0; id < records_->num_blocks(); ++id) {
    const KvCacheBlock& block = (*records_)[id];
    if ((block.prev == kUnlinked) != (block.next == kUnlinked)) {
      return absl::InternalError(absl::StrCat("block ", id, " has one free-queue link set"));
    }
    if (!block.is_linked()) continue;
    ++linked;
    if ((*records_)[block.next].prev != id || (*records_)[block.prev].next != id) {
      return absl::InternalError(
          absl::StrCat("block ", id, " and its neighbours in the free queue disagree"));
    }
  }
  int32_t walked = 0;
  for (BlockId id = front(); id != sentinel_ && walked <= linked; id = next(id)) ++walked;
  if (walked != linked || linked != size_) {
    return absl::InternalError(absl::StrCat("free queue counts ", size_, " blocks, ", linked,
                                            " are linked, a walk visits ", walked));
  }
  return absl::OkStatus();
}

absl::Status FreeBlockQueue::CheckOwnLinks() const {
  int32_t walked = 0;
  BlockId last = sentinel_;
  for (BlockId id = front(); id != sentinel_ && walked <= size_; id = next(id)) {
    if (id < 0 || id >= records_->num_blocks() || (*records_)[id].prev != last) {
      return absl::InternalError(
          absl::StrCat("block ", id, " and its neighbour ", last, " in a free queue disagree"));
    }
    last = id;
    ++walked;
  }
  if (walked != size_ || (*records_)[sentinel_].prev != last) {
    return absl::InternalError(
        absl::StrCat("a free queue counts ", size_, " blocks, a walk visits ", walked));
  }
  return absl::OkStatus();
}

}  // namespace kvblocks
