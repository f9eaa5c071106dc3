// BlockPool's ways with pages of several classes: what differs when Options::chunks is set.

#include "absl/strings/str_cat.h"
#include "kvblocks/block_pool/block_pool.h"
#include "kvblocks/block_pool/check.h"

namespace kvblocks {

absl::Status BlockPool::CheckGroup(GroupId group, const char* operation) const {
  if (chunks_ == nullptr || chunks_->HasGroup(group)) return absl::OkStatus();
  return absl::InvalidArgumentError(
      absl::StrCat(operation, ": group ", group, " has no page class (chunks.class_of_group)"));
}

bool BlockPool::Fits(int64_t k, GroupId group) {
  return chunks_ == nullptr ? k <= num_free() : chunks_->PromisePages(group, k);
}

void BlockPool::TakePages(int64_t k, std::vector<BlockId>& table, GroupId group) {
  const int32_t page_class = chunks_->ClassOfGroup(group);
  KVBLOCKS_CHECK(k >= 0 && k <= chunks_->num_promised(page_class),
                 absl::StrCat(k, " pages to take for group ", group, ", ",
                              chunks_->num_promised(page_class), " promised to its class"));
  chunks_->BeginTakes();
  for (int64_t i = 0; i < k; ++i) {
    const PageChunks::Choice choice = chunks_->Choose(page_class);
    if (choice.chunk >= 0) LendChunk(choice.chunk, page_class);
    const BlockId id = choice.chunk < 0 ? choice.page : chunks_->queue(page_class).front();
    chunks_->OnTaken(id);
    if (records_[id].has_key()) EvictCached(id);
    records_[id].ref_count = 1;
    table.push_back(id);
  }
  num_blocks_taken_ += k;
}

void BlockPool::LendChunk(int32_t chunk, int32_t page_class) {
  const BlockId first = 1 + chunk * chunks_->ids_per_chunk();
  for (BlockId id = first; id < first + chunks_->ids_per_chunk(); ++id) {
    if (records_[id].has_key()) EvictCached(id);
  }
  chunks_->Lend(chunk, page_class);
}

void BlockPool::EvictCached(BlockId id) {
  --num_cached_unreferenced_;
  ++num_evictions_;
  EvictOne(table_.Place(id), id, RemovalReason::kReused);
}

void BlockPool::TouchPages(absl::Span<const BlockId> ids) {
  for (BlockId id : ids) {
    if (id == kNullBlockId || records_[id].ref_count++ > 0) continue;
    chunks_->OnTouched(id);
    if (records_[id].has_key()) --num_cached_unreferenced_;
  }
}

void BlockPool::ReleasePages(absl::Span<const BlockId> ids, bool from_back) {
  chunks_->BeginFrees();
  for (size_t i = 0; i < ids.size(); ++i) {
    const BlockId id = ids[from_back ? ids.size() - 1 - i : i];
    KvCacheBlock& page = records_[id];
    if (page.is_null || --page.ref_count > 0) continue;
    KVBLOCKS_CHECK(page.ref_count == 0,
                   absl::StrCat("block ", id, " was freed more often than it was referenced"));
    if (page.has_key()) ++num_cached_unreferenced_;
    chunks_->OnFreed(id, !page.has_key() && free_order_ == FreeOrder::kUnhashedFirst);
  }
}

std::vector<BlockId> BlockPool::WalkFree() const {
  if (chunks_ == nullptr) return queue_.Walk();
  std::vector<BlockId> ids;
  for (int32_t k = 0; k < chunks_->num_classes(); ++k) {
    const std::vector<BlockId> queued = chunks_->queue(k).Walk();
    ids.insert(ids.end(), queued.begin(), queued.end());
  }
  return ids;
}

}  // namespace kvblocks
