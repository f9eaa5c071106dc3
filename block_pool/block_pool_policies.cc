// BlockPool's ways with an EvictionOrder: what differs when Options::eviction_policy or
// max_retained_blocks is set.
//
// The queue holds all free blocks, those without a key in front of all others; the policy says
// which of the others goes.

#include "kvblocks/block_pool/block_pool.h"
#include "kvblocks/block_pool/check.h"
#include "kvblocks/checks/status_text.h"

namespace kvblocks {

BlockPool::~BlockPool() = default;

void BlockPool::AddKeyToPolicy(BlockId id, BlockId parent, int64_t num_tokens) {
  // Groups share hashes.
  const auto group = static_cast<uint64_t>(records_[id].key_group);
  eviction_->OnRegistered(id, parent, records_.hash(id).words[0] ^ group * 0x9e3779b97f4a7c15u,
                          num_tokens);
}

absl::Status BlockPool::CheckEvictionOptions(const Options& options) {
  if (options.max_retained_blocks < 0 || options.max_retained_blocks >= options.num_blocks) {
    return InvalidArgument("max_retained_blocks is ", options.max_retained_blocks,
                           ", expected 0 to ", options.num_blocks - 1,
                           ", one less than num_blocks");
  }
  const bool has_chunks = options.chunks.num_chunks != 0;
  const EvictionPolicyFactory& policy = options.eviction_policy;
  if (HasEvictionOrder(options) && (has_chunks || !options.enable_caching ||
                                    options.free_order != FreeOrder::kUnhashedFirst)) {
    const std::string why =
        has_chunks ? "with page classes in chunks"
                   : (options.enable_caching ? "with free_order kAppendAll" : "without caching");
    return policy.make != nullptr
               ? InvalidArgument("eviction_policy is \"", policy.name, "\", expected \"lru\" ", why)
               : InvalidArgument("max_retained_blocks is ", options.max_retained_blocks,
                                 ", expected 0 ", why);
  }
  if (policy.ranks_retained && options.max_retained_blocks == 0) {
    return InvalidArgument(
        "eviction_policy is \"", policy.name,
        "\", which ranks retained blocks, but none may be retained: expected max_retained_blocks "
        "above 0");
  }
  if (HasEvictionOrder(options) && policy.make_order == nullptr) {
    return policy.make != nullptr
               ? InvalidArgument("eviction_policy is \"", policy.name,
                                 "\" without what ParseEvictionPolicy and CustomEvictionPolicy add")
               : InvalidArgument("max_retained_blocks is ", options.max_retained_blocks,
                                 ", expected 0 without an eviction_policy that retains: "
                                 "ParseEvictionPolicy(\"lru\") for one");
  }
  return absl::OkStatus();
}

RetainOutcome BlockPool::Retain(absl::Span<const BlockId> ids, int32_t priority,
                                int64_t expires_at) {
  return eviction_->Retain(ids, priority, expires_at);
}

void BlockPool::AdvanceTime(int64_t now) { eviction_->AdvanceTime(now); }

const Retention* BlockPool::retention() const {
  return eviction_ == nullptr ? nullptr : eviction_->retention();
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
