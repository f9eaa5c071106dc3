// BlockPool: keys of prefixes that end inside a block.
//
// The first key of a block is in the table. Such a key is it as long as the block holds no more
// tokens; once the block has a key for more, it is a further one, and these stand beside the table,
// since there are few. All of them end in the tokens that the block stands for.

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "kvblocks/block_pool/block_pool.h"
#include "kvblocks/block_pool/check.h"

namespace kvblocks {

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

}  // namespace kvblocks
