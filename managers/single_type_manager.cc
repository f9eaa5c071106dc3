#include "kvblocks/single_type_manager.h"

#include <algorithm>

#include "kvblocks/check.h"

namespace kvblocks {

SingleTypeManager::SingleTypeManager(const KvCacheSpec& spec, const Options& options,
                                     BlockPool* pool, const Traits& traits)
    : spec_(spec),
      options_(options),
      pool_(pool),
      block_size_(spec.block_size() * options.num_ranks_per_block),
      hashes_per_block_(options.hash_block_size > 0 ? block_size_.value() / options.hash_block_size
                                                    : 0),
      has_inner_boundaries_(options.partial_hits && hashes_per_block_ > 1),
      registers_tails_(has_inner_boundaries_ || traits.registers_tails ||
                       (options.semantics.registers_unusable_tails && traits.is_full_type &&
                        hashes_per_block_ > 1)),
      makes_copies_(has_inner_boundaries_ || (traits.registers_tails && hashes_per_block_ > 1 &&
                                              options.semantics.registers_unusable_tails)),
      traits_(traits) {}

int64_t SingleTypeManager::NumLeadingNulls(absl::Span<const BlockId> hits,
                                           int64_t total_computed) const {
  // Where nothing can be hit, nothing that is computed has a block.
  const bool has_none = options_.enable_caching && !is_cacheable() && !traits_.has_own_layout;
  int64_t nulls =
      block_size_.FloorDiv(has_none ? total_computed : NumSkippedTokens(total_computed));
  // Look-ups find nothing of what is kept for a drafter only.
  while (nulls < static_cast<int64_t>(hits.size()) &&
         hits[static_cast<size_t>(nulls)] == kNullBlockId) {
    ++nulls;
  }
  return nulls;
}

int64_t SingleTypeManager::CountBlocksNeeded(const GroupBlocks* held, const SlotDemand& demand,
                                             absl::Span<const BlockId> hits, int64_t total_computed,
                                             bool apply_cap, bool caps_before_hits) const {
  const int64_t required = block_size_.CeilDiv(demand.num_slots);
  int64_t skipped;
  int64_t available;
  if (held != nullptr) {
    skipped = held->num_leading_nulls;
    available = static_cast<int64_t>(held->table.size());
  } else {
    skipped = NumLeadingNulls(hits, total_computed);
    available = static_cast<int64_t>(hits.size());
  }
  int64_t needed;
  if (traits_.has_own_layout) {
    needed = NumNewBlocks(held, std::max(available, skipped), demand, total_computed, apply_cap);
  } else {
    // The cap bounds real blocks, so it applies to what is left after the skipped positions.
    std::optional<int64_t> cap;
    if (apply_cap) cap = options_.admission_cap;
    if (apply_cap && options_.output_cap) {
      cap = block_size_.CeilDiv(demand.num_prompt_tokens) + *options_.output_cap;
    }
    if (cap && caps_before_hits) {
      needed = std::min(required, *cap) - std::max(available, skipped);
    } else {
      const int64_t suffix = std::max<int64_t>(required - skipped, 0);
      const int64_t nulls = held != nullptr ? held->num_output_nulls : 0;
      needed = suffix - std::max<int64_t>(available - skipped, 0);
      if (cap) needed = std::min(needed, *cap - std::max<int64_t>(available - skipped - nulls, 0));
    }
    needed = std::max<int64_t>(needed, 0);
  }
  // Touching an unreferenced hit takes it out of the free queue, too.
  for (size_t i = static_cast<size_t>(skipped); i < hits.size(); ++i) {
    needed += hits[i] != kNullBlockId && pool_->block(hits[i]).ref_count == 0;
  }
  if (makes_copies_) {
    needed += held != nullptr ? StateToCopy(*held, demand) >= 0
                              : static_cast<int64_t>(hits.size()) * block_size() > total_computed;
  }
  return needed;
}

PageNeed SingleTypeManager::PagesNeeded(const GroupBlocks* held, const SlotDemand& demand,
                                        const SlotDemand& longest, absl::Span<const BlockId> hits,
                                        int64_t total_computed, bool apply_cap) const {
  PageNeed need{.num_pages = NumBlocksNeeded(held, demand, hits, total_computed, apply_cap)};
  // A plan for what comes, not the engine's gate.
  const int64_t in_all = CountBlocksNeeded(held, longest, hits, total_computed, /*apply_cap=*/true,
                                           /*caps_before_hits=*/false);
  need.num_later = std::max<int64_t>(0, in_all - need.num_pages);
  if (held == nullptr) {
    const int64_t skipped = NumLeadingNulls(hits, total_computed);
    need.hits = hits.subspan(std::min(static_cast<size_t>(skipped), hits.size()));
    for (BlockId id : need.hits) {
      need.num_pages -= id != kNullBlockId && pool_->block(id).ref_count == 0;
    }
  }
  if (const int64_t most = MostHeldAtOnce(longest); most > 0) {
    const auto blocks = held == nullptr ? need.hits : absl::MakeConstSpan(held->table);
    const int64_t nulls = std::count(blocks.begin(), blocks.end(), kNullBlockId);
    const int64_t real = static_cast<int64_t>(blocks.size()) - nulls;
    need.num_later = std::max<int64_t>(0, most - real - need.num_pages);
  }
  return need;
}

void SingleTypeManager::AdoptHits(GroupBlocks& held, absl::Span<const BlockId> hits,
                                  int64_t total_computed) {
  const int64_t skipped = NumLeadingNulls(hits, total_computed);
  held.table.assign(static_cast<size_t>(skipped), kNullBlockId);
  held.num_leading_nulls = skipped;
  if (static_cast<int64_t>(hits.size()) > skipped) {
    const auto kept = hits.subspan(static_cast<size_t>(skipped));
    pool_->Touch(kept);
    held.table.insert(held.table.end(), kept.begin(), kept.end());
  }
  held.num_cached = static_cast<int64_t>(held.table.size());
}

void SingleTypeManager::CopyHitTail(GroupBlocks& held, int64_t total_computed,
                                    std::vector<BlockCopy>& copies) {
  const int64_t size = static_cast<int64_t>(held.table.size());
  if (size * block_size() <= total_computed) return;
  BlockCopy copy{.group = group(), .source = held.table.back()};
  held.table.pop_back();
  TakeBlocks(1, held.table);
  copy.target = held.table.back();
  pool_->Touch(absl::MakeConstSpan(&copy.target, 1));
  held.num_cached = size - 1;  // the copy is registered when it is full
  copies.push_back(copy);
}

int64_t SingleTypeManager::TailOfPrompt(const PrefixContent& content,
                                        int64_t num_prompt_tokens) const {
  const bool last_token_counts = options_.semantics.is_025 || draft_margin() > 0;
  const int64_t usable = last_token_counts ? num_prompt_tokens : num_prompt_tokens - 1;
  return std::min(usable - usable % options_.hash_block_size, content.num_hashed_tokens());
}

void SingleTypeManager::CachePromptTail(const PrefixContent& content, GroupBlocks& held, int64_t n,
                                        const ReuseBoundaries& boundaries) {
  const int64_t tail = TailOfPrompt(content, boundaries.num_prompt_tokens);
  if (tail <= 0 || tail > content.num_hashed_tokens() || !HoldsTail(held, tail, n)) return;
  const bool adds_keys = !options_.semantics.is_025;
  // Rows are registered with their block; of states, one that sparse registration left out.
  const bool ends_inside = tail % block_size() != 0;
  if (!ends_inside && (traits_.is_full_type || !adds_keys)) return;
  // A state is written over unless it moves away first.
  if (ends_inside && !traits_.is_full_type && !makes_copies_) return;
  const int64_t position = block_size_.CeilDiv(tail) - 1;
  if (position >= static_cast<int64_t>(held.table.size())) return;
  if (!adds_keys && position < held.num_cached) return;
  const BlockId id = held.table[static_cast<size_t>(position)];
  if (id == kNullBlockId) return;
  held.is_tail_registered = !adds_keys;
  if (pool_->RegisterPartialBlock(content, id, tail, block_size(), group(), adds_keys)) {
    OnTailRegistered(held, id, tail);
  }
}

void SingleTypeManager::AllocateExternal(GroupBlocks& held, int64_t total_computed) {
  if (traits_.holds_one_block || NumSkippedTokens(total_computed) >= total_computed) return;
  const int64_t missing =
      block_size_.CeilDiv(total_computed) - static_cast<int64_t>(held.table.size());
  if (missing > 0) TakeBlocks(missing, held.table);
}

void SingleTypeManager::CacheFullBlocks(const PrefixContent& content, GroupBlocks& held,
                                        int64_t full, const ReuseBoundaries& boundaries) {
  mask_.clear();
  if (options_.semantics.retention_interval && NumTailBlocksNeeded() >= 0) {
    for (int64_t i = held.num_cached; i < full; ++i) mask_.push_back(IsRetained(i, boundaries));
  } else if (options_.reachable_alignment > 0 && !traits_.is_full_type) {
    for (int64_t i = held.num_cached; i < full; ++i) mask_.push_back(IsReachable(i));
  }
  pool_->CacheFullBlocks(content, held.table, held.num_cached, full, block_size(), group(), mask_);
  held.num_cached = full;
}

int64_t SingleTypeManager::NumCommonPrefixBlocks(
    const GroupBlocks& held, int64_t num_tables,
    const absl::flat_hash_map<BlockId, int32_t>& outside) const {
  int64_t common = 0;
  for (BlockId id : held.table) {
    int64_t holders = pool_->block(id).ref_count;
    if (const auto it = outside.find(id); it != outside.end()) holders -= it->second;
    if (!traits_.is_full_type || id == kNullBlockId || holders != num_tables) break;
    ++common;
  }
  return common;
}

bool SingleTypeManager::IsTailOf(int64_t position, int64_t period_tokens) const {
  const int64_t tail = NumTailBlocksNeeded();
  if (period_tokens == 0 || tail < 0) return true;
  if (period_tokens % block_size() != 0) return true;
  const int64_t period = period_tokens / block_size();
  const int64_t margin = options_.is_draft ? 1 : 0;
  const int64_t kept = tail + margin;
  if (kept >= period) return true;
  return position >= margin && (position - margin) % period >= period - kept;
}

SingleTypeManager::Boundaries SingleTypeManager::BoundariesOf(const ReuseBoundaries& reuse) const {
  Boundaries out{};
  const auto add = [&](int64_t tokens) { out.tokens[out.count++] = std::max<int64_t>(0, tokens); };
  const int64_t prompt = reuse.num_prompt_tokens;
  if (options_.any_drops && !options_.semantics.is_025) {
    // An identical prompt gives up a block of the hit that its last token allows, a longer one of
    // the hit up to the prompt's end.
    const int64_t unit = options_.scheduler_block_size;
    add((prompt - 1) / unit * unit - unit);
    add(prompt / unit * unit - unit);
  } else {
    add(prompt - 1);
  }
  const int64_t shared = reuse.shared_prefix_boundary;
  if (shared > 0) add(shared);
  if (shared > 0 && options_.is_draft && !options_.semantics.is_025) {
    add(shared - block_size());
  }
  return out;
}

bool SingleTypeManager::IsRetained(int64_t position, const ReuseBoundaries& boundaries) const {
  const int64_t interval = options_.semantics.retention_interval.value_or(0);
  if (interval > 0 && IsTailOf(position, interval)) return true;
  if (options_.hit_alignment % block_size() != 0) return true;
  const int64_t dropped = options_.is_draft ? 1 : 0;
  for (const int64_t boundary : BoundariesOf(boundaries)) {
    const int64_t end = (boundary - boundary % options_.hit_alignment) / block_size() + dropped;
    if (position < end && position >= end - NumTailBlocksNeeded() - dropped) return true;
  }
  return false;
}

void SingleTypeManager::TrimTo(GroupBlocks& held, int64_t num_skipped_tokens) {
  const int64_t end =
      std::min(block_size_.FloorDiv(num_skipped_tokens), static_cast<int64_t>(held.table.size()));
  const int64_t begin = held.num_leading_nulls;
  if (end <= begin) return;
  FreePositions(held, begin, end);
  held.num_leading_nulls = end;
}

void SingleTypeManager::TrimOutput(GroupBlocks& held, int64_t num_processed,
                                   int64_t num_prompt_tokens) {
  const int64_t first = block_size_.CeilDiv(num_prompt_tokens);
  const int64_t begin = first + held.num_output_nulls;
  const int64_t skipped = num_processed - *spec_.output_window() - options_.num_replayed_tokens;
  const int64_t end = std::min(block_size_.FloorDiv(std::max(num_prompt_tokens, skipped)),
                               static_cast<int64_t>(held.table.size()));
  if (end <= begin) return;
  FreePositions(held, begin, end);
  held.num_output_nulls = end - first;
}

void SingleTypeManager::FreePositions(GroupBlocks& held, int64_t begin, int64_t end) {
  const auto reals = absl::MakeSpan(held.table)
                         .subspan(static_cast<size_t>(begin), static_cast<size_t>(end - begin));
  pool_->FreeBlocksReversed(reals);
  std::fill(reals.begin(), reals.end(), kNullBlockId);
}

void SingleTypeManager::Free(GroupBlocks& held) {
  pool_->FreeBlocksReversed(
      absl::MakeConstSpan(held.table).subspan(static_cast<size_t>(held.num_leading_nulls)));
  held.table.clear();
  held.num_cached = held.num_leading_nulls = held.num_output_nulls = 0;
  held.num_new = held.chunk_end = held.checkpoint_tokens = 0;
  held.is_tail_registered = false;
  held.registered_state_tokens = 0;
}

}  // namespace kvblocks
