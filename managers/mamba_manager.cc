// MambaManager: groups that keep a state instead of a row per token. Only the state at the last
// computed token matters; states at block boundaries may be reused by other requests.
//
// By the spec's cache mode, with k speculative blocks:
//   none   a block table as for attention, with k blocks more; nothing is registered
//   all    the same, and the state at every block boundary is registered
//   align  the table has as many positions, but a step writes the state at its end only:
//
//            0 ... 0  [previous state]  0 ... 0  state  scratch x k
//
//          so a request holds at most 2 + k blocks (and one more for each further step in flight).
//          When the table grows, scratch blocks move along and the positions between become null. A
//          state is registered if the step that writes it ends at a block boundary, or where a
//          resend of the prompt can use it (V-115). Of the latter kind inside a block, the
//          request's next step takes the key along to a block of its own and copies the state
//          there. With checkpoint blocks, a step that runs over the end of what a resend of the
//          prompt can use has a block for the state there, too, before the one at its end (V-45).
//
// A state is ready when its step has run, not while other requests of that step are scheduled: such
// hits wait for NewStepStarts, also those of another block with the same key, as in the engine.

#include <algorithm>
#include <numeric>
#include <utility>

#include "kvblocks/single_type_manager.h"

namespace kvblocks {
namespace {

class MambaManager final : public SingleTypeManager {
 public:
  MambaManager(const KvCacheSpec& spec, const Options& options, BlockPool* pool);

  // Right to left for one cached state: O(positions without one, or hash boundaries where hits may
  // end inside a block). Ignores drop_last_block, since draft models have no states.
  int64_t FindLongestCacheHit(const LookupQuery& query, HitLists& lists) const override;

  bool MayUseHits(absl::Span<const BlockId> hits, int64_t) const override {
    return hits.empty() || !pool_->block(hits.back()).has_key() ||
           !keys_in_step_.contains(pool_->hash(hits.back()));
  }

  int64_t StateTail(int64_t num_prompt_tokens) const override {
    if (!has_inner_boundaries_) return 0;
    if (!options_.semantics.is_025) return ReusableEnd(num_prompt_tokens);
    return num_prompt_tokens - num_prompt_tokens % options_.hash_block_size;
  }

  int64_t CheckpointIn(int64_t begin, int64_t end, int64_t num_prompt_tokens) const override {
    if (mode_ != MambaCacheMode::kAlign) return 0;
    const SlotDemand demand{
        .num_main = end, .num_prompt_tokens = num_prompt_tokens, .num_computed = begin};
    return CheckpointOf(demand, block_size_.CeilDiv(begin));
  }

  // One state per interval, and those at the boundaries.
  bool IsRetained(int64_t position, const ReuseBoundaries& boundaries) const override;

 protected:
  int64_t NumUnneededTokensImpl(int64_t n) const override { return std::max<int64_t>(0, n - 1); }
  int64_t NumNewBlocks(const GroupBlocks* held, int64_t size, const SlotDemand& demand,
                       int64_t total_computed, bool apply_cap) const override;
  void AllocateNewImpl(GroupBlocks& held, const SlotDemand& demand) override;
  // A state, the one before it, and where a state moves that others can hit inside a block.
  int64_t MostHeldAtOnce(const SlotDemand& longest) const override {
    if (mode_ != MambaCacheMode::kAlign) return 0;
    if (longest.num_main <= block_size()) return 1 + num_speculative_blocks_;
    return 2 + num_speculative_blocks_ + (has_checkpoints_ ? 1 : 0) + (makes_copies_ ? 1 : 0);
  }
  void CacheFullBlocks(const PrefixContent& content, GroupBlocks& held, int64_t full,
                       const ReuseBoundaries& boundaries) override;
  // A state that is registered inside its block moves to a block of its own before the request
  // writes the next one over it.
  int64_t StateToCopy(const GroupBlocks& held, const SlotDemand& demand) const override;
  void CopyOverwrittenState(GroupBlocks& held, const SlotDemand& demand,
                            std::vector<BlockCopy>& copies) override;
  int64_t TailOfPrompt(const PrefixContent& content, int64_t num_prompt_tokens) const override;
  // In the call that ends there: a state is of one length.
  bool HoldsTail(const GroupBlocks& held, int64_t tail, int64_t n) const override {
    if (held.checkpoint_tokens == tail) return n >= tail;
    return n == tail && (held.chunk_end == tail || options_.semantics.registers_earlier_states);
  }
  void OnTailRegistered(GroupBlocks& held, BlockId id, int64_t tail) override {
    keys_in_step_.insert(pool_->hash(id));
    const bool goes_on_from_it = held.checkpoint_tokens != tail;
    if (goes_on_from_it && tail % block_size() != 0) held.registered_state_tokens = tail;
  }

 private:
  // The last boundary at which a resend of a prompt can hit a state.
  int64_t ReusableEnd(int64_t num_prompt_tokens) const;
  // The tokens after which a step has its state exported, if it can; 0: it has none. `num_kept`
  // entries of the table are taken.
  int64_t CheckpointOf(const SlotDemand& demand, int64_t num_kept) const;
  // Entries of the table that has these slots.
  int64_t TableSize(const SlotDemand& demand) const;
  // Scratch blocks of a table of `size` entries that move when it grows to `target`.
  int64_t NumScratchToMove(const GroupBlocks& held, int64_t target) const;

  const MambaCacheMode mode_;
  const int64_t num_speculative_blocks_;
  const bool has_checkpoints_;
};

MambaManager::MambaManager(const KvCacheSpec& spec, const Options& options, BlockPool* pool)
    : SingleTypeManager(
          spec, options, pool,
          {.has_own_layout = true,
           .can_drop = false,
           .registers_tails =
               options.hash_block_size > 0 && !options.semantics.is_025 &&
               spec.get_if<MambaSpec>()->options().cache_mode == MambaCacheMode::kAlign}),
      mode_(spec.get_if<MambaSpec>()->options().cache_mode),
      num_speculative_blocks_(spec.get_if<MambaSpec>()->options().num_speculative_blocks),
      has_checkpoints_(options.enable_caching &&
                       spec.get_if<MambaSpec>()->options().num_checkpoint_blocks > 0) {}

int64_t MambaManager::FindLongestCacheHit(const LookupQuery& query, HitLists& lists) const {
  for (GroupId g : query.groups) lists[static_cast<size_t>(g)].clear();
  if (mode_ == MambaCacheMode::kNone) return 0;
  const int64_t unit = has_inner_boundaries_ ? options_.hash_block_size : block_size();
  const int64_t step = query.alignment / std::gcd(query.alignment, unit);
  found_.resize(query.groups.size());
  int64_t end = query.max_tokens / unit;
  for (end -= end % step; end > 0; end -= step) {
    if (!FindTailInAllGroups(query, end * unit, found_.data())) continue;
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
  const int64_t tokens = held.registered_state_tokens;
  if (tokens == 0 || demand.num_main <= tokens) return -1;
  const int64_t position = block_size_.CeilDiv(tokens) - 1;
  return held.table[static_cast<size_t>(position)] == kNullBlockId ? -1 : position;
}

void MambaManager::CopyOverwrittenState(GroupBlocks& held, const SlotDemand& demand,
                                        std::vector<BlockCopy>& copies) {
  const int64_t position = StateToCopy(held, demand);
  if (position < 0) return;
  held.registered_state_tokens = 0;
  BlockCopy copy{.group = group(), .source = held.table[static_cast<size_t>(position)]};
  pool_->GetNewBlocks(1, held.table, group());  // where it lands is no part of the table
  copy.target = held.table.back();
  held.table.pop_back();
  pool_->Touch(absl::MakeConstSpan(&copy.source, 1));
  // The copy is made even if the key was evicted meanwhile.
  if (pool_->partial_tokens(copy.source) > 0 && pool_->further_keys(copy.source).empty()) {
    pool_->MovePartialKey(copy.source, copy.target);
  }
  // It is made before the step computes anything, so nobody may read it in this step (V-118).
  if (pool_->block(copy.target).has_key()) keys_in_step_.insert(pool_->hash(copy.target));
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
  const int64_t num_kept = held == nullptr ? size : size - num_speculative_blocks_;
  const int64_t checkpoint = CheckpointOf(demand, num_kept) > 0 ? 1 : 0;
  if (held == nullptr) return external + target - std::max(size, state) + checkpoint;
  const int64_t needed =
      target - std::max(size, state) - NumScratchToMove(*held, target) + checkpoint;
  if (!apply_cap) return needed;
  // A request that holds two states frees one before it takes another.
  const int64_t nulls = std::count(held->table.begin(), held->table.end(), kNullBlockId);
  const int64_t most = 2 + num_speculative_blocks_ + checkpoint;
  return std::min(needed, std::max<int64_t>(0, most - (size - nulls)));
}

void MambaManager::AllocateNewImpl(GroupBlocks& held, const SlotDemand& demand) {
  const int64_t size = static_cast<int64_t>(held.table.size());
  const int64_t target = TableSize(demand);
  const bool has_scratch = held.chunk_end > 0;
  held.chunk_end = demand.num_main;
  held.checkpoint_tokens = 0;
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
    held.checkpoint_tokens =
        CheckpointOf(demand, has_scratch ? size - num_speculative_blocks_ : size);
    if (held.checkpoint_tokens > 0) {
      pool_->GetNewBlocks(1, held.table, group());
      const BlockId id = held.table.back();
      held.table.pop_back();
      held.table[static_cast<size_t>(state - 1)] = id;
    }
  }
  const int64_t missing = target - static_cast<int64_t>(held.table.size());
  if (missing > 0) pool_->GetNewBlocks(missing, held.table, group());
}

bool MambaManager::IsRetained(int64_t position, const ReuseBoundaries& boundaries) const {
  const int64_t interval = options_.semantics.retention_interval.value_or(0);
  const int64_t end = (position + 1) * block_size();
  if (interval > 0 && (interval <= block_size() || end % interval == 0)) return true;
  for (const int64_t boundary : BoundariesOf(boundaries)) {
    if (boundary <= 0) continue;
    int64_t reached = boundary - boundary % options_.hit_alignment;
    if (options_.semantics.registers_earlier_states) reached -= reached % block_size();
    if (end == reached) return true;
  }
  return false;
}

// What a resend of the prompt can use: a state is hit as a whole, so where other groups give up a
// hash block behind it, or need tokens behind its hash, it ends that much earlier.
int64_t MambaManager::TailOfPrompt(const PrefixContent& content, int64_t num_prompt_tokens) const {
  if (options_.semantics.is_025) {
    return SingleTypeManager::TailOfPrompt(content, num_prompt_tokens);
  }
  return ReusableEnd(num_prompt_tokens);
}

int64_t MambaManager::ReusableEnd(int64_t num_prompt_tokens) const {
  const int64_t unit = options_.hash_block_size;
  if (options_.any_drops) return num_prompt_tokens / unit * unit - unit;
  const int64_t usable =
      num_prompt_tokens - std::max<int64_t>(1, options_.num_hash_lookahead_tokens);
  return usable <= 0 ? 0 : usable / unit * unit;
}

int64_t MambaManager::CheckpointOf(const SlotDemand& demand, int64_t num_kept) const {
  if (!has_checkpoints_) return 0;
  const int64_t begin = demand.num_computed;
  const int64_t end = demand.num_main;
  const int64_t at = ReusableEnd(demand.num_prompt_tokens);
  if (at >= end || begin % options_.hash_block_size != 0 || at < begin + options_.hash_block_size ||
      (at - begin) % options_.checkpoint_alignment != 0) {
    return 0;
  }
  if (options_.semantics.retention_interval == 0 && end < demand.num_prompt_tokens) return 0;
  // The position before that of the step's end, if the boundary lies there and nothing else does.
  const int64_t position = block_size_.CeilDiv(end) - 2;
  return block_size_.CeilDiv(at) - 1 == position && position >= num_kept ? at : 0;
}

void MambaManager::CacheFullBlocks(const PrefixContent& content, GroupBlocks& held, int64_t full,
                                   const ReuseBoundaries& boundaries) {
  const int64_t from = std::exchange(held.num_cached, full);
  if (mode_ == MambaCacheMode::kNone) return;
  mask_.clear();
  for (int64_t i = from; i < full; ++i) {
    // Of a step that ran over a boundary there is no state at the boundary.
    const bool written = mode_ == MambaCacheMode::kAll ||
                         options_.semantics.registers_earlier_states ||
                         (i + 1) * block_size() == held.chunk_end;
    const bool exported = (i + 1) * block_size() == held.checkpoint_tokens;
    mask_.push_back(exported || (written && (!options_.semantics.retention_interval ||
                                             IsRetained(i, boundaries))));
  }
  pool_->CacheFullBlocks(content, held.table, from, full, block_size(), group(), mask_);
  for (int64_t i = from; i < full; ++i) {
    const BlockId id = held.table[static_cast<size_t>(i)];
    if (id != kNullBlockId && pool_->block(id).has_key()) keys_in_step_.insert(pool_->hash(id));
  }
}

}  // namespace

std::unique_ptr<SingleTypeManager> SingleTypeManager::CreateForStates(const KvCacheSpec& spec,
                                                                      const Options& options,
                                                                      BlockPool* pool) {
  return std::make_unique<MambaManager>(spec, options, pool);
}

}  // namespace kvblocks
