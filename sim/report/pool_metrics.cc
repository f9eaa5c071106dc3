#include "sim/report/pool_metrics.h"

#include <algorithm>
#include <cmath>

namespace kvblocks::sim {

PoolBlocks CountPoolBlocks(const BlockPool& pool) {
  PoolBlocks blocks;
  blocks.usable = pool.num_blocks() - 1 - pool.num_permanent();
  if (const PageChunks* chunks = pool.chunks()) {
    // What counts is the share of the memory.
    const int32_t lent = chunks->num_chunks() - chunks->num_unassigned();
    blocks.referenced = std::llround(chunks->usage() * static_cast<double>(blocks.usable));
    blocks.resident = blocks.usable * lent / chunks->num_chunks();
  } else {
    blocks.referenced = blocks.usable - pool.num_free();
    blocks.resident = blocks.referenced + pool.num_cached_unreferenced();
  }
  return blocks;
}

void PoolMetrics::OnRunStart(const RunInfo& info) {
  manager_ = info.manager;
  usable_ = CountPoolBlocks(manager_->pool()).usable;
  for (GroupId g = 0; g < manager_->num_groups() && !full_group_; ++g) {
    if (manager_->group(g).is_full_type()) full_group_ = g;
  }
}

void PoolMetrics::ReadPool() {
  const BlockPool& pool = manager_->pool();
  const PoolBlocks blocks = CountPoolBlocks(pool);
  gauges_.referenced = blocks.referenced;
  gauges_.resident = blocks.resident;
  gauges_.duplicates = pool.num_keyed_blocks() - pool.num_keys();
  evictions_ = pool.num_evictions();
  if (pool.retention() == nullptr) return;
  retention_ = TotalsOf(*pool.retention());
  retention_cap_ = MostRetained(*pool.retention());
}

void PoolMetrics::SetSlots(const SimRequest& request, int64_t slots) {
  RequestProgress& progress = facts_->requests[request];
  gauges_.slots += slots - progress.num_slots;
  progress.num_slots = slots;
}

void PoolMetrics::ReadSlots(const SimRequest& request) {
  if (!full_group_) return;
  SetSlots(request, static_cast<int64_t>(manager_->GetBlocks(*request.kv, *full_group_).size()) *
                        manager_->group(*full_group_).block_size());
}

void PoolMetrics::OnAdmission(const AdmissionRecord& record, SimTime) {
  gauges_.computed += record.num_hit_tokens + record.num_external_tokens;
  // It holds its blocks while it loads, long before a step has it.
  if (record.is_load) ReadSlots(*record.request);
}

void PoolMetrics::OnPreemption(const PreemptionRecord& record, SimTime) {
  gauges_.computed -= record.num_computed_lost;
  SetSlots(*record.request, 0);
}

void PoolMetrics::OnFinish(const SimRequest& request, SimTime) {
  // Requests that end with a step are seen there.
  if (!request.was_cut_short() || !facts_->requests.Has(request)) return;
  gauges_.computed -= request.num_computed;
  SetSlots(request, 0);
  ReadPool();
}

void PoolMetrics::OnStepScheduled(const StepRecord& step) {
  for (const ScheduledRecord& record : step.scheduled) {
    if (record.is_loaded) {
      // The last known token is computed, even if all came.
      const SimRequest& request = *record.request;
      gauges_.computed += record.num_context - request.num_load_hits - request.num_load_tokens;
    }
    if (record.num_new_blocks == 0 && !record.is_admission) continue;
    ReadSlots(*record.request);
  }
  gauges_.computed += step.num_tokens;
  ReadPool();
  peak_referenced_ = std::max(peak_referenced_, gauges_.referenced);
  peak_resident_ = std::max(peak_resident_, gauges_.resident);
  peak_duplicates_ = std::max(peak_duplicates_, gauges_.duplicates);
  if (full_group_) {
    peak_fragmentation_ =
        std::max(peak_fragmentation_, Ratio(gauges_.slots - gauges_.computed, gauges_.slots));
  }
}

void PoolMetrics::OnStepFinished(const StepRecord& step) {
  for (const OutputRecord& output : step.outputs) {
    // A preempted request has given up all its tokens already.
    if (output.num_rejected_drafts > 0 && facts_->requests[*output.request].is_running) {
      gauges_.computed -= output.num_rejected_drafts;
    }
    if (output.finish_reason == FinishReason::kNone) continue;
    gauges_.computed -= output.request->num_computed;
    SetSlots(*output.request, 0);
  }
  ReadPool();
}

void PoolMetrics::OnInterval(SimTime from, SimTime to) {
  const Integral weight = to - from;
  total_time_ += to - from;
  referenced_time_ += weight * gauges_.referenced;
  resident_time_ += weight * gauges_.resident;
  duplicate_time_ += weight * gauges_.duplicates;
  slot_time_ += weight * gauges_.slots;
  unused_slot_time_ += weight * (gauges_.slots - gauges_.computed);
  if (gauges_.referenced * 10 > usable_ * 9) time_above_90_ += to - from;
}

void PoolMetrics::Fill(const ReplayEnd&, ::kvblocks::report::v1::Report* report) {
  ::kvblocks::report::v1::Pool* out = report->mutable_pool();
  const Integral capacity = static_cast<Integral>(total_time_) * usable_;
  out->mutable_usage()->set_mean(Ratio(referenced_time_, capacity));
  out->mutable_usage()->set_peak(Ratio(peak_referenced_, usable_));
  out->mutable_resident()->set_mean(Ratio(resident_time_, capacity));
  out->mutable_resident()->set_peak(Ratio(peak_resident_, usable_));
  if (full_group_) {
    out->mutable_fragmentation()->set_mean(Ratio(unused_slot_time_, slot_time_));
    out->mutable_fragmentation()->set_peak(peak_fragmentation_);
  }
  out->mutable_duplicate_blocks()->set_mean(Ratio(duplicate_time_, total_time_));
  out->mutable_duplicate_blocks()->set_peak(static_cast<double>(peak_duplicates_));
  out->set_time_above_90_percent_s(Seconds(time_above_90_));
  out->set_time_above_90_percent_share(Ratio(time_above_90_, total_time_));
  out->set_evictions(evictions_);
  out->set_peak_referenced_blocks(peak_referenced_);
  if (!retention_) return;
  auto* retention = out->mutable_retention();
  retention->set_cap(retention_cap_);
  retention->set_peak(retention_->peak);
  retention->set_begun(retention_->num_begun);
  retention->set_renewed(retention_->num_renewed);
  retention->set_refused(retention_->num_refused);
  retention->set_displaced(retention_->num_displaced);
  retention->set_expired(retention_->num_expired);
  retention->set_taken(retention_->num_taken);
  retention->set_hits(retention_->num_hits);
}

void GroupSection::OnRunStart(const RunInfo& info) {
  manager_ = info.manager;
  groups_.resize(static_cast<size_t>(manager_->num_groups()));
  for (GroupId g = 0; g < manager_->num_groups(); ++g) {
    const SingleTypeManager& group = manager_->group(g);
    auto& described = described_.emplace_back();
    described.set_id(g);
    described.set_kind(std::string(group.spec().kind_name()));
    described.set_block_tokens(group.block_size());
    described.set_num_layers(
        static_cast<int64_t>(manager_->config().groups[static_cast<size_t>(g)].layer_names.size()));
  }
}

void GroupSection::OnAdmission(const AdmissionRecord& record, SimTime) {
  const auto slot = static_cast<size_t>(record.request->slot);
  if (slot >= holders_.size()) holders_.resize(slot + 1);
  holders_[slot] = record.request;
  const AdmissionMisses& misses = facts_->misses;
  if (misses.veto_group && !record.is_resume) {
    Group& group = groups_[static_cast<size_t>(*misses.veto_group)];
    ++group.vetoed_requests;
    group.vetoed_tokens +=
        misses.block_tokens * misses.blocks[static_cast<size_t>(MissReason::kGroupVeto)];
  }
  for (size_t g = 0; g < record.hits->num_groups(); ++g) {
    const auto blocks = record.hits->blocks(static_cast<GroupId>(g));
    // Nulls come first: the blocks before the window.
    const int64_t nulls =
        std::ranges::find_if(blocks, [](BlockId b) { return b != kNullBlockId; }) - blocks.begin();
    const int64_t found = static_cast<int64_t>(blocks.size()) - nulls;
    (record.is_resume ? groups_[g].resume_hit_blocks : groups_[g].hit_blocks) += found;
    if (!record.is_resume) groups_[g].skipped_blocks += nulls;
  }
}

void GroupSection::Release(const SimRequest& request) {
  const auto slot = static_cast<size_t>(request.slot);
  if (slot < holders_.size() && holders_[slot] == &request) holders_[slot] = nullptr;
}

void GroupSection::OnStepScheduled(const StepRecord& step) {
  for (const ScheduledRecord& record : step.scheduled) {
    if (record.num_new_blocks == 0) continue;
    for (size_t g = 0; g < record.new_blocks.num_groups(); ++g) {
      groups_[g].new_blocks +=
          static_cast<int64_t>(record.new_blocks.blocks(static_cast<GroupId>(g)).size());
    }
  }
  // One group has the whole pool's gauges.
  if (groups_.size() < 2) return;
  const BlockPool& pool = manager_->pool();
  const SimTime now = step.start;
  if (first_count_ && pool.num_blocks_taken() - taken_at_last_ < pool.num_blocks() / 4) return;
  if (!first_count_) first_count_ = last_count_ = now;
  for (Group& group : groups_) {
    group.live_time += static_cast<__int128>(now - last_count_) * group.live;
    group.cached_time += static_cast<__int128>(now - last_count_) * group.cached;
  }
  last_count_ = now;
  taken_at_last_ = pool.num_blocks_taken();
  Count();
  KeepSample(now);
}

void GroupSection::KeepSample(SimTime now) {
  constexpr size_t kMaxSamples = 400;
  if (num_counts_++ % sample_stride_ != 0) return;
  if (samples_.size() == kMaxSamples) {
    for (size_t i = 0; i < kMaxSamples / 2; ++i) samples_[i].Swap(&samples_[2 * i]);
    samples_.resize(kMaxSamples / 2);
    sample_stride_ *= 2;
  }
  auto& sample = samples_.emplace_back();
  sample.set_time_s(Seconds(now));
  for (const Group& group : groups_) {
    sample.add_live_blocks(group.live);
    sample.add_cached_blocks(group.cached);
  }
}

void GroupSection::Count() {
  for (Group& group : groups_) group.live = group.cached = 0;
  const BlockPool& pool = manager_->pool();
  for (BlockId id = 1; id < pool.num_blocks(); ++id) {
    const KvCacheBlock& block = pool.block(id);
    if (block.has_key() && block.ref_count == 0) {
      ++groups_[static_cast<size_t>(block.key_group)].cached;
    }
  }
  // Blocks that requests share count once.
  seen_.assign(static_cast<size_t>(pool.num_blocks()), false);
  for (const SimRequest* request : holders_) {
    if (request == nullptr || request->kv == nullptr) continue;
    for (GroupId g = 0; g < manager_->num_groups(); ++g) {
      const auto table = manager_->GetBlocks(*request->kv, g);
      const bool ends_at_null = !manager_->group(g).is_full_type() &&
                                manager_->group(g).spec().kind() != KvCacheSpecKind::kMamba;
      for (auto it = table.rbegin(); it != table.rend(); ++it) {
        if (*it == kNullBlockId) {
          if (ends_at_null) break;
          continue;
        }
        if (seen_[static_cast<size_t>(*it)]) continue;
        seen_[static_cast<size_t>(*it)] = true;
        ++groups_[static_cast<size_t>(g)].live;
      }
    }
  }
  for (Group& group : groups_) {
    group.peak_live = std::max(group.peak_live, group.live);
    group.peak_cached = std::max(group.peak_cached, group.cached);
  }
}

void GroupSection::Fill(const ReplayEnd& end, ::kvblocks::report::v1::Report* out) {
  const auto mean = [&](__int128 sum, int64_t last) {
    const auto whole = static_cast<double>(end.last_event - *first_count_);
    if (whole <= 0) return static_cast<double>(last);
    return (static_cast<double>(sum) +
            static_cast<double>(end.last_event - last_count_) * static_cast<double>(last)) /
           whole;
  };
  for (const auto& sample : samples_) *out->add_group_occupancy() = sample;
  for (size_t g = 0; g < groups_.size(); ++g) {
    const Group& group = groups_[g];
    auto* entry = out->add_groups();
    *entry = described_[g];
    entry->set_hit_blocks(group.hit_blocks);
    entry->set_skipped_blocks(group.skipped_blocks);
    entry->set_resume_hit_blocks(group.resume_hit_blocks);
    entry->set_new_blocks(group.new_blocks);
    entry->set_vetoed_tokens(group.vetoed_tokens);
    entry->set_vetoed_requests(group.vetoed_requests);
    if (!first_count_) continue;
    entry->mutable_live_blocks()->set_mean(mean(group.live_time, group.live));
    entry->mutable_live_blocks()->set_peak(static_cast<double>(group.peak_live));
    entry->mutable_cached_blocks()->set_mean(mean(group.cached_time, group.cached));
    entry->mutable_cached_blocks()->set_peak(static_cast<double>(group.peak_cached));
  }
}

}  // namespace kvblocks::sim
