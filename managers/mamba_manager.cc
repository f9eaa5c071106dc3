#include "kvblocks/managers/mamba_manager.h"

#include <algorithm>
#include <numeric>
#include <utility>

namespace kvblocks {

MambaManager::MambaManager(const KvCacheSpec& spec, const Options& options, BlockPool* pool)
    : SingleTypeManager(spec, options, pool, {.has_own_layout = true, .can_drop = false}),
      mode_(spec.get_if<MambaSpec>()->options().cache_mode),
      num_speculative_blocks_(spec.get_if<MambaSpec>()->options().num_speculative_blocks) {}

int64_t MambaManager::FindLongestCacheHit(const LookupQuery& query, HitLists& lists) const {
  for (GroupId g : query.groups) lists[static_cast<size_t>(g)].clear();
  if (mode_ == MambaCacheMode::kNone) return 0;
  const int64_t unit = has_inner_boundaries_ ? options_.hash_block_size : block_size();
  const int64_t hashes_per_unit = has_inner_boundaries_ ? 1 : hashes_per_block_;
  const int64_t step = query.alignment / std::gcd(query.alignment, unit);
  found_.resize(query.groups.size());
  int64_t end = query.max_tokens / unit;
  for (end -= end % step; end > 0; end -= step) {
    if (!FindInAllGroups(query, end - 1, hashes_per_unit, found_.data())) continue;
    const auto num_nulls = static_cast<size_t>(block_size_.CeilDiv(end * unit) - 1);
    for (size_t i = 0; i < found_.size(); ++i) {
      std::vector<BlockId>& list = lists[static_cast<size_t>(query.groups[i])];
      list.assign(num_nulls, kNullBlockId);
      list.push_back(found_[i]);
    }
    return end * unit;
  }
  return 0;
}

int64_t MambaManager::StateToCopy(const GroupBlocks& held, const SlotDemand& demand) const {
  const int64_t position = block_size_.CeilDiv(demand.num_main) - 1;
  if (position < 0 || position >= static_cast<int64_t>(held.table.size())) return -1;
  const int64_t tokens = pool_->partial_tokens(held.table[static_cast<size_t>(position)]);
  return tokens > 0 && tokens != demand.num_main ? position : -1;
}

void MambaManager::CopyOverwrittenState(GroupBlocks& held, const SlotDemand& demand,
                                        std::vector<BlockCopy>& copies) {
  const int64_t position = StateToCopy(held, demand);
  if (position < 0) return;
  BlockCopy copy{.group = group(), .source = held.table[static_cast<size_t>(position)]};
  pool_->GetNewBlocks(1, held.table, group());  // where it lands is no part of the table
  copy.target = held.table.back();
  held.table.pop_back();
  pool_->Touch(absl::MakeConstSpan(&copy.source, 1));
  pool_->MovePartialKey(copy.source, copy.target);
  if (registered_in_step_.erase(copy.source) > 0) registered_in_step_.insert(copy.target);
  copies.push_back(copy);
}

int64_t MambaManager::TableSize(const SlotDemand& demand) const {
  // In align mode lookahead takes scratch blocks, not positions.
  const int64_t tokens = mode_ == MambaCacheMode::kAlign ? demand.num_main : demand.num_slots;
  return block_size_.CeilDiv(tokens) + num_speculative_blocks_;
}

int64_t MambaManager::NumScratchToMove(const GroupBlocks& held, int64_t target) const {
  const int64_t size = static_cast<int64_t>(held.table.size());
  const int64_t state = target - num_speculative_blocks_ - 1;
  int64_t moved = 0;
  for (int64_t i = std::max<int64_t>(0, size - num_speculative_blocks_); i < std::min(size, state);
       ++i) {
    moved += held.table[static_cast<size_t>(i)] != kNullBlockId;
  }
  return moved;
}

int64_t MambaManager::NumNewBlocks(const GroupBlocks* held, int64_t size, const SlotDemand& demand,
                                   int64_t total_computed, bool apply_cap) const {
  const int64_t target = TableSize(demand);
  int64_t external = 0;
  if (held == nullptr && total_computed > 0) {
    external = std::max<int64_t>(0, block_size_.CeilDiv(total_computed) - size);
  }
  size += external;
  if (target <= size) return external;
  if (mode_ != MambaCacheMode::kAlign) return external + target - size;
  const int64_t state = target - num_speculative_blocks_ - 1;
  if (held == nullptr) return external + target - std::max(size, state);
  const int64_t needed = target - std::max(size, state) - NumScratchToMove(*held, target);
  if (!apply_cap) return needed;
  // Whoever holds two states gives one back before taking another.
  const int64_t nulls = std::count(held->table.begin(), held->table.end(), kNullBlockId);
  return std::min(needed, std::max<int64_t>(0, 2 + num_speculative_blocks_ - (size - nulls)));
}

void MambaManager::AllocateNewImpl(GroupBlocks& held, const SlotDemand& demand) {
  const int64_t size = static_cast<int64_t>(held.table.size());
  const int64_t target = TableSize(demand);
  const bool has_scratch = held.chunk_end > 0;
  held.chunk_end = demand.num_main;
  held.num_new = std::max<int64_t>(0, target - size);
  if (held.num_new == 0) return;
  if (mode_ == MambaCacheMode::kAlign) {
    const int64_t state = target - num_speculative_blocks_ - 1;
    if (state > size) held.table.resize(static_cast<size_t>(state), kNullBlockId);
    if (has_scratch) {
      const int64_t begin = std::max<int64_t>(0, size - num_speculative_blocks_);
      for (int64_t i = begin; i < std::min(size, state); ++i) {
        const BlockId id = std::exchange(held.table[static_cast<size_t>(i)], kNullBlockId);
        if (id != kNullBlockId) held.table.push_back(id);
      }
    }
  }
  const int64_t missing = target - static_cast<int64_t>(held.table.size());
  if (missing > 0) pool_->GetNewBlocks(missing, held.table, group());
}

bool MambaManager::IsRetained(int64_t position, const ReuseBoundaries& boundaries) const {
  const int64_t interval = options_.retention_interval.value_or(0);
  const int64_t end = (position + 1) * block_size();
  if (interval > 0 && (interval <= block_size() || end % interval == 0)) return true;
  for (const int64_t boundary :
       {boundaries.num_prompt_tokens - 1, boundaries.shared_prefix_boundary}) {
    if (boundary > 0 && end == boundary - boundary % options_.hit_alignment) return true;
  }
  return false;
}

void MambaManager::CacheFullBlocks(const PrefixContent& content, GroupBlocks& held, int64_t full,
                                   const ReuseBoundaries& boundaries) {
  const int64_t from = std::exchange(held.num_cached, full);
  if (mode_ == MambaCacheMode::kNone) return;
  mask_.clear();
  for (int64_t i = from; i < full; ++i) {
    // Of a step that ran over a boundary there is no state at the boundary.
    const bool written = mode_ == MambaCacheMode::kAll || (i + 1) * block_size() == held.chunk_end;
    mask_.push_back(written && (!options_.retention_interval || IsRetained(i, boundaries)));
  }
  pool_->CacheFullBlocks(content, held.table, from, full, block_size(), group(), mask_);
  for (int64_t i = from; i < full; ++i) {
    const BlockId id = held.table[static_cast<size_t>(i)];
    if (mask_[static_cast<size_t>(i - from)] != 0 && id != kNullBlockId) {
      registered_in_step_.insert(id);
    }
  }
}

}  // namespace kvblocks
