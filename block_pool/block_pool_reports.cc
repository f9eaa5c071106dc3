// BlockPool: stored events for blocks that are cached already, and the history of keys at a reset.

#include "kvblocks/block_pool/block_pool.h"

namespace kvblocks {

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
