// BlockPool's keys of prefixes that end inside a block. A block has one key at a time.

#include "kvblocks/block_pool/block_pool.h"
#include "kvblocks/block_pool/check.h"

namespace kvblocks {

bool BlockPool::RegisterPartialBlock(const PrefixContent& content, BlockId id, int64_t num_tokens,
                                     GroupId group) {
  if (records_[id].has_key()) {
    const int64_t covered = partial_tokens(id);
    if (covered == 0 || covered >= num_tokens) return false;
    DropPartialKey(id);
  }
  const int64_t end = num_tokens / content.hash_block_size();
  table_.Insert(content.HashOfBlock(end - 1, 1), group, id);
  partial_tokens_[id] = num_tokens;
  if (records_[id].ref_count == 0) ++num_cached_unreferenced_;
  EmitStored(content, end - 1, end, content.hash_block_size(), group);
  return true;
}

void BlockPool::DropPartialKey(BlockId id) {
  if (records_[id].ref_count == 0) --num_cached_unreferenced_;
  EvictOne(table_.Place(id), id, RemovalReason::kReplaced);
}

void BlockPool::MovePartialKey(BlockId from, BlockId to) {
  const auto it = partial_tokens_.find(from);
  KVBLOCKS_CHECK(it != partial_tokens_.end() && !records_[to].has_key(),
                 "a partial key moves from a block without one, or to one with a key");
  const int64_t num_tokens = it->second;
  const GroupId group = records_[from].key_group;
  const BlockHash hash = records_.hash(from);
  partial_tokens_.erase(it);
  table_.Erase(from);
  table_.Insert(hash, group, to);
  partial_tokens_[to] = num_tokens;
  ++removal_epoch_;
}

}  // namespace kvblocks
