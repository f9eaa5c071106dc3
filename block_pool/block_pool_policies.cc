// BlockPool's ways under another eviction policy than LRU: what differs when Options::eviction_policy
// is set.
//
// The queue holds all free blocks, those without a key in front of all others; the policy says which
// of the others goes.

#include "kvblocks/block_pool/block_pool.h"
#include "kvblocks/block_pool/check.h"
#include "kvblocks/block_pool/eviction_index.h"

namespace kvblocks {

BlockPool::~BlockPool() = default;

void BlockPool::AddKeyToPolicy(BlockId id, BlockId parent, int64_t num_tokens) {
  // Groups share hashes.
  const auto group = static_cast<uint64_t>(records_[id].key_group);
  eviction_->OnRegistered(id, parent, records_.hash(id).words[0] ^ group * 0x9e3779b97f4a7c15u,
                          num_tokens);
}

void BlockPool::TakeByPolicy(int64_t k, std::vector<BlockId>& table) {
  for (int64_t i = 0; i < k; ++i) {
    BlockId id = queue_.front();
    if (records_[id].has_key()) {
      const BlockId victim = eviction_->Victim();
      if (victim != kNullBlockId) id = victim;
      EvictCached(id);
    }
    queue_.Unlink(id);
    records_[id].ref_count = 1;
    table.push_back(id);
  }
  num_blocks_taken_ += k;
}

void BlockPool::TouchForPolicy(absl::Span<const BlockId> ids) {
  for (const BlockId id : ids) {
    if (id == kNullBlockId) continue;
    const bool was_free = records_[id].ref_count++ == 0;
    if (was_free) {
      queue_.Unlink(id);
      if (records_[id].has_key()) --num_cached_unreferenced_;
    }
    eviction_->OnTouched(id, was_free);
  }
}

void BlockPool::ForgetKeyInPolicy(BlockId id, RemovalReason reason) {
  eviction_->OnKeyRemoved(id, /*was_evicted=*/reason == RemovalReason::kReused);
  if (reason == RemovalReason::kReused || !records_[id].is_linked()) return;
  queue_.Unlink(id);
  queue_.LinkAfter(kUnlinked, id);
}

}  // namespace kvblocks
