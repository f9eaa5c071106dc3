// BlockPool's ways with pages of several classes: what differs when Options::chunks is set.

#include "kvblocks/block_pool/block_pool.h"
#include "kvblocks/checks/status_text.h"

namespace kvblocks {

absl::Status BlockPool::CheckGroup(GroupId group, const char* operation) const {
  if (chunks_ == nullptr || chunks_->HasGroup(group)) return absl::OkStatus();
  return InvalidArgument(operation, ": group ", group,
                         " has no page class (chunks.class_of_group)");
}

bool BlockPool::Fits(int64_t k, GroupId group) {
  return chunks_ == nullptr ? k <= num_free() : chunks_->PromisePages(group, k);
}

void BlockPool::TakePages(int64_t k, std::vector<BlockId>& table, GroupId group) {
  chunks_->Take(k, table, group, [this](BlockId id) { EvictCached(id); });
  num_blocks_taken_ += k;
}

void BlockPool::EvictCached(BlockId id) {
  --num_cached_unreferenced_;
  ++num_evictions_;
  EvictOne(table_.Place(id), id, RemovalReason::kReused);
}

void BlockPool::TouchPages(absl::Span<const BlockId> ids) {
  num_cached_unreferenced_ -= chunks_->Touch(ids);
}

void BlockPool::ReleasePages(absl::Span<const BlockId> ids, bool from_back) {
  num_cached_unreferenced_ +=
      chunks_->Release(ids, from_back, free_order_ == FreeOrder::kUnhashedFirst);
}

std::vector<BlockId> BlockPool::WalkFree() const {
  return chunks_ == nullptr ? queue_.Walk() : chunks_->WalkFree();
}

}  // namespace kvblocks
