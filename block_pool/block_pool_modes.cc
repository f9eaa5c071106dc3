// BlockPool: what its options add - eviction policies and retention, pages of several classes, keys
// of prefixes that end inside a block, reports of blocks that are cached already.

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "kvblocks/block_pool.h"
#include "kvblocks/check.h"

namespace kvblocks {

// With an EvictionOrder (Options::eviction_policy or max_retained_blocks) the queue holds all free
// blocks, those without a key in front of all others; the policy says which of the others goes.

BlockPool::~BlockPool() = default;

void BlockPool::AddKeyToPolicy(BlockId id, BlockId parent, int64_t num_tokens) {
  // Groups share hashes.
  const auto group = static_cast<uint64_t>(records_[id].key_group);
  eviction_->OnRegistered(id, parent, records_.hash(id).words[0] ^ group * 0x9e3779b97f4a7c15u,
                          num_tokens);
}

bool BlockPool::HasEvictionOrder(const Options& options) {
  return options.eviction_policy.make != nullptr || options.max_retained_blocks > 0;
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

// --- Pages of several classes (Options::chunks) ---

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

// --- Keys of prefixes that end inside a block ---
//
// The first key of a block is in the table. Such a key is it as long as the block holds no more
// tokens; once the block has a key for more, it is a further one, and these stand beside the table,
// since there are few. All of them end in the tokens that the block stands for.

bool BlockPool::RegisterPartialBlock(const PrefixContent& content, BlockId id, int64_t num_tokens,
                                     int64_t block_size, GroupId group, bool adds_further_keys) {
  const int64_t end = num_tokens / content.hash_block_size();
  const BlockHash& hash = content.HashOfBlock(end - 1, 1);
  if (HasKey(id, hash, group)) return false;
  if (records_[id].has_key()) {
    const int64_t covered = partial_tokens(id);
    if (covered == 0 || covered >= num_tokens) {
      if (!adds_further_keys) return false;
      AddFurtherKey(hash, group, id);
      RememberVariant(content, end - 1, 1);
      EmitStored(content, end - 1, end, content.hash_block_size(), group);
      return true;
    }
    DropPartialKey(id);
  }
  table_.Insert(hash, group, id);
  TellPolicyOfKey(id, kNullBlockId, block_size);
  if (num_tokens % block_size != 0) partial_tokens_[id] = {num_tokens, num_tail_keys_++};
  if (tokens_) tokens_->Store(id, content, (num_tokens - 1) / block_size * block_size, num_tokens);
  if (records_[id].ref_count == 0) ++num_cached_unreferenced_;
  RememberVariant(content, end - 1, 1);
  EmitStored(content, end - 1, end, content.hash_block_size(), group);
  return true;
}

void BlockPool::DropPartialKey(BlockId id) {
  if (records_[id].ref_count == 0) --num_cached_unreferenced_;
  EvictOne(table_.Place(id), id, RemovalReason::kReplaced);
}

void BlockPool::MovePartialKey(BlockId from, BlockId to) {
  const auto it = partial_tokens_.find(from);
  KVBLOCKS_CHECK(
      it != partial_tokens_.end() && further_keys(from).empty() && !records_[to].has_key(),
      "a partial key moves from a block without one, or to one with a key");
  const int64_t num_tokens = it->second.num_tokens;
  const GroupId group = records_[from].key_group;
  const BlockHash hash = records_.hash(from);
  partial_tokens_.erase(it);
  if (eviction_ != nullptr) eviction_->OnKeyRemoved(from, /*was_evicted=*/false);
  table_.Erase(from);
  table_.Insert(hash, group, to);
  TellPolicyOfKey(to, kNullBlockId, num_tokens);
  partial_tokens_[to] = {num_tokens, num_tail_keys_++};
  if (tokens_) tokens_->Copy(from, to);
  ++removal_epoch_;
}

void BlockPool::AddFurtherKey(const BlockHash& hash, GroupId group, BlockId id) {
  further_keys_[id].push_back({hash, group});
  blocks_of_further_keys_[{hash, group}].push_back({id, num_tail_keys_++});
}

void BlockPool::DropFurtherKeys(BlockId id, RemovalReason reason) {
  const auto it = further_keys_.find(id);
  if (it == further_keys_.end()) return;
  for (const auto& [hash, group] : it->second) {
    const auto holders = blocks_of_further_keys_.find({hash, group});
    std::erase_if(holders->second, [id](const FurtherHolder& holder) { return holder.id == id; });
    if (holders->second.empty()) blocks_of_further_keys_.erase(holders);
    if (history_ != nullptr && table_.Find(hash, group) == kNullBlockId) {
      RememberRemoval(hash, group, reason);
    }
    if (enable_events_) EmitRemoved(hash, group, reason);
  }
  further_keys_.erase(it);
}

// Of `first`, whose own key this is (null: there is none), and the first that has it as a further
// one.
BlockId BlockPool::EarlierOf(BlockId first, const BlockHash& hash, GroupId group) const {
  const auto it = blocks_of_further_keys_.find({hash, group});
  if (it == blocks_of_further_keys_.end()) return first;
  const FurtherHolder& holder = it->second.front();
  if (first == kNullBlockId) return holder.id;
  const auto own = partial_tokens_.find(first);
  return own == partial_tokens_.end() || own->second.order < holder.order ? first : holder.id;
}

int32_t BlockPool::num_keys() const {
  int32_t count = table_.num_keys();
  for (const auto& [key, blocks] : blocks_of_further_keys_) {
    count += table_.Find(key.first, key.second) == kNullBlockId;
  }
  return count;
}

// --- Stored events for blocks that are cached already, and the history of keys at a reset ---

void BlockPool::ReportStored(const PrefixContent& content, absl::Span<const BlockId> blocks,
                             int64_t num_tokens, int64_t block_size, GroupId group) {
  if (!enable_events_ || blocks.empty()) return;
  const int64_t unit = content.hash_block_size();
  if (one_event_per_registration_) {
    // Every position, whether it has a block or not, as if all blocks were full.
    const int64_t hashed = content.num_hashed_tokens() / block_size;
    const int64_t end = std::min(static_cast<int64_t>(blocks.size()), hashed);
    if (end > 0) EmitStored(content, 0, end, block_size, group);
    return;
  }
  int64_t full = num_tokens / block_size;
  int64_t tail = 0;  // the prefix that the last block is cached under, if it ends inside
  if (full < static_cast<int64_t>(blocks.size()) && blocks.back() != kNullBlockId) {
    const int64_t most = std::min((full + 1) * block_size, content.num_hashed_tokens());
    int64_t end = num_tokens;
    while (end <= most && !HasKey(blocks.back(), content.HashOfBlock(end / unit - 1, 1), group)) {
      end += unit;
    }
    if (end == (full + 1) * block_size && end <= most) {
      ++full;
    } else if (end <= most) {
      tail = end;
    }
  }
  const auto is_real = [&](int64_t i) { return blocks[static_cast<size_t>(i)] != kNullBlockId; };
  for (int64_t i = 0; i < full; ++i) {
    if (!is_real(i)) continue;
    const int64_t begin = i;
    while (i < full && is_real(i)) ++i;
    EmitStored(content, begin, i, block_size, group);
  }
  if (tail > 0) EmitStored(content, tail / unit - 1, tail / unit, unit, group);
}

void BlockPool::RememberAll() {
  for (BlockId id = 1; id < num_blocks(); ++id) {
    const GroupId group = records_[id].key_group;
    if (group < 0 || table_.Find(records_.hash(id), group) != id) continue;  // or a duplicate
    history_->OnRemoved(records_.hash(id), group, {.num_blocks_taken = num_blocks_taken_});
  }
  if (further_keys_.empty()) return;
  for (BlockId id = 1; id < num_blocks(); ++id) {
    const auto keys = further_keys_.find(id);
    if (keys == further_keys_.end()) continue;
    for (const auto& [hash, group] : keys->second) {
      if (FindCached(hash, group) != id) continue;
      history_->OnRemoved(hash, group, {.num_blocks_taken = num_blocks_taken_});
    }
  }
}

}  // namespace kvblocks
