#include "sim/curve/schedule_curve.h"

#include <algorithm>
#include <utility>

#include "absl/container/flat_hash_set.h"
#include "absl/strings/str_cat.h"
#include "kvblocks/check.h"
#include "sim/engine/scheduler_options.h"
#include "sim/report/human_table.h"

namespace kvblocks::sim {

void ScheduleCurve::OnRunStart(const RunInfo& info) {
  manager_ = info.manager;
  pool_ = &info.manager->pool();
  KVBLOCKS_CHECK(info.manager->num_groups() == 1, "a curve of several groups");
  block_tokens_ = info.manager->scheduler_block_size();
  gives_last_hit_back_ = info.manager->options().use_eagle;
  step_budget_ = info.scheduler->max_num_batched_tokens;
  if (info.scheduler->max_num_scheduled_tokens > 0) {
    step_budget_ = std::min(step_budget_, info.scheduler->max_num_scheduled_tokens);
  }
  if (info.scheduler->long_prefill_token_threshold > 0) {
    step_budget_ = std::min(step_budget_, info.scheduler->long_prefill_token_threshold);
  }
  blocks_.assign(static_cast<size_t>(pool_->num_blocks()), {});
  num_blocks_taken_ = pool_->num_blocks_taken();
}

void ScheduleCurve::CountNewBlocks() {
  const int64_t taken = pool_->num_blocks_taken() - num_blocks_taken_;
  if (taken == 0) return;
  num_blocks_taken_ += taken;
  num_referenced_ += taken;
  history_.AddToAll(taken);
}

void ScheduleCurve::FindCopies() {
  const int64_t num_copies = pool_->num_keyed_blocks() - pool_->num_keys();
  if (num_copies == num_copies_) return;
  absl::flat_hash_set<BlockId> firsts;
  for (const auto& [row, table] : tables_) {
    for (const BlockId id : table) {
      Block& block = blocks_[static_cast<size_t>(id)];
      if (block.is_copy || !pool_->block(id).has_key()) continue;
      const BlockId first = pool_->FindCached(pool_->hash(id), 0);
      if (first == id) continue;
      block.is_copy = true;
      ++num_copies_;
      copies_[first].push_back(id);
      // Which of two was registered first is not to be seen.
      if (!firsts.insert(first).second) ++num_doubtful_;
    }
  }
}

void ScheduleCurve::OnAdmissionAttempt(const AdmissionRecord&, SimTime) {
  CountNewBlocks();
  FindCopies();
}

ScheduleCurve::Batch ScheduleCurve::TakeCopy(BlockId first, int64_t depth) {
  Batch newest = blocks_[static_cast<size_t>(first)].batch;
  const auto found = copies_.find(first);
  if (found == copies_.end()) return newest;
  for (const BlockId id : found->second) {
    const Batch batch = blocks_[static_cast<size_t>(id)].batch;
    if (batch == kHeld) {
      // Pools that lost the first one would share this one.
      ++num_doubtful_;
      continue;
    }
    // Behind one that comes first it is never taken.
    if (batch <= newest) continue;
    history_.TakeOneOf(newest, batch, depth);
    newest = batch;
  }
  copies_.erase(found);
  return newest;
}

// A look-up's blocks: what each needs, and then that they are referenced.
void ScheduleCurve::Take(absl::Span<const BlockId> hits) {
  found_.clear();
  const auto num_hits = static_cast<int64_t>(hits.size());
  const auto block_at = [&](int64_t depth) -> Block& {
    return blocks_[static_cast<size_t>(hits[static_cast<size_t>(depth)])];
  };
  for (int64_t begin = 0, end = 0; begin < num_hits; begin = end) {
    Batch batch = block_at(begin).batch;
    const bool is_held = batch == kHeld;
    if (!is_held && (!copies_.empty() || !history_.is_plain())) {
      batch = TakeCopy(hits[static_cast<size_t>(begin)], begin);
      end = begin + 1;
    } else {
      while (end < num_hits && block_at(end).batch == batch) ++end;
    }
    for (int64_t depth = begin; depth < end; ++depth) {
      ++block_at(depth).references;
      block_at(depth).batch = kHeld;
    }
    found_.push_back({begin, end, is_held ? 0 : history_.SizeFor(batch, begin)});
    if (is_held) continue;
    history_.AddToNewer(batch, end - begin);
    num_referenced_ += end - begin;
  }
}

void ScheduleCurve::OnAdmission(const AdmissionRecord& record, SimTime) {
  const absl::Span<const BlockId> hits =
      record.hits->num_groups() == 0 ? absl::Span<const BlockId>() : record.hits->blocks(0);
  Take(hits);
  CountNewBlocks();
  history_.Settle();
  peak_referenced_ = std::max(peak_referenced_, num_referenced_);
  std::vector<BlockId> table;
  if (!spare_tables_.empty()) {
    table = std::move(spare_tables_.back());
    spare_tables_.pop_back();
  }
  // Hits and new blocks.
  const absl::Span<const BlockId> held = manager_->GetBlocks(*record.request->kv, 0);
  table.assign(held.begin(), held.end());
  for (const BlockId id : held.subspan(hits.size())) ++blocks_[static_cast<size_t>(id)].references;
  tables_[record.request->spec.row] = std::move(table);
  hit_tokens_of_step_ += record.num_hit_tokens;
  if (record.is_resume) return;
  ++num_requests_;
  num_prompt_tokens_ += record.num_queried_tokens;
  num_prompt_blocks_ += record.num_queried_tokens / block_tokens_;
  for (const FoundRun& run : found_) {
    if (run.first_size == 0) {
      curve_.AddAt(0, run.end - run.begin);
    } else {
      curve_.AddRun(run.first_size, run.end - run.begin);
    }
  }
}

void ScheduleCurve::OnPreemption(const PreemptionRecord&, SimTime) { was_pool_too_small_ = true; }

void ScheduleCurve::OnStepScheduled(const StepRecord& step) {
  CountNewBlocks();
  peak_referenced_ = std::max(peak_referenced_, num_referenced_);
  bool has_chunk = false;
  for (const ScheduledRecord& record : step.scheduled) {
    has_chunk |= record.is_chunk;
    if (record.num_new_blocks == 0 || record.is_admission) continue;
    std::vector<BlockId>& table = tables_[record.request->spec.row];
    for (const BlockId id : record.new_blocks.blocks(0)) {
      // Another admission of this step may have hit it already.
      ++blocks_[static_cast<size_t>(id)].references;
      table.push_back(id);
    }
  }
  if (has_chunk || step.num_tokens + hit_tokens_of_step_ > step_budget_) ++num_full_steps_;
  hit_tokens_of_step_ = 0;
}

void ScheduleCurve::OnFinish(const SimRequest& request, SimTime) {
  FindCopies();
  const auto found = tables_.find(request.spec.row);
  if (found == tables_.end()) return;
  std::vector<BlockId> table = std::move(found->second);
  tables_.erase(found);

  // The deepest first: what goes back without a key, then runs of blocks that nobody else holds.
  auto end = static_cast<int64_t>(table.size());
  const auto at = [&](int64_t depth) { return table[static_cast<size_t>(depth)]; };
  const auto release = [&](int64_t depth) {
    return --blocks_[static_cast<size_t>(at(depth))].references == 0;
  };
  int64_t num_unkeyed = 0;
  while (end > 0 && !pool_->block(at(end - 1)).has_key()) {
    --end;
    num_unkeyed += release(end) ? 1 : 0;
  }
  num_referenced_ -= num_unkeyed;
  if (options_.free_order == FreeOrder::kUnhashedFirst) history_.AddToAll(-num_unkeyed);
  while (end > 0) {
    if (!release(end - 1)) {
      --end;
      continue;
    }
    int64_t begin = end - 1;
    bool is_next_released = false;
    while (begin > 0 && (is_next_released = release(begin - 1))) --begin;
    num_referenced_ -= end - begin;
    const Batch batch = history_.Push(num_referenced_ - begin);
    for (int64_t depth = begin; depth < end; ++depth) {
      blocks_[static_cast<size_t>(at(depth))].batch = batch;
    }
    end = is_next_released || begin == 0 ? begin : begin - 1;
  }
  table.clear();
  spare_tables_.push_back(std::move(table));
}

void ScheduleCurve::OnRunEnd(SimTime) { was_pool_too_small_ |= pool_->num_evictions() > 0; }

std::vector<std::string> ScheduleCurve::Doubts() const {
  std::vector<std::string> doubts;
  if (!options_.has_fixed_step_time) {
    doubts.push_back("steps take less time where more is hit (--time=fixed would be exact)");
  }
  if (num_full_steps_ > 0) {
    doubts.push_back(absl::StrCat("the budget of ", WithThousands(num_full_steps_),
                                  " steps does not take all prompts without hits"));
  }
  if (gives_last_hit_back_) {
    doubts.push_back("the drafter gives the last block found back, another one in smaller pools");
  }
  if (num_doubtful_ > 0) {
    doubts.push_back(absl::StrCat(
        WithThousands(num_doubtful_),
        " blocks were hit while a second copy of them was in use, which smaller pools share"));
  }
  return doubts;
}

HitCurve ScheduleCurve::Finish() {
  curve_.Finish();
  return std::move(curve_);
}

}  // namespace kvblocks::sim
