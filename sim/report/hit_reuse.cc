#include "kvblocks/sim/report/hit_reuse.h"

#include <algorithm>

namespace kvblocks::sim {

void HitReuseSection::OnRunStart(const RunInfo& info) {
  manager_ = info.manager;
  const BlockPool& pool = manager_->pool();
  // Pages of chunks are in no queue of blocks.
  if (!pool.enable_caching() || pool.chunks() != nullptr) return;
  for (GroupId g = 0; g < manager_->num_groups() && !group_; ++g) {
    const SingleTypeManager& group = manager_->group(g);
    if (group.is_full_type() && group.is_cacheable()) group_ = g;
  }
  has_places_ = pool.eviction_order() == nullptr;
}

void HitReuseSection::OnAdmissionAttempt(const AdmissionRecord& record, SimTime) {
  if (!group_ || record.is_repeat) return;
  is_staged_ = false;
  facts_->first_hit_use = INT64_MAX;
  const BlockPool& pool = manager_->pool();
  if (record.is_resume || num_hits_ + pool.num_blocks_taken() - num_taken_ < pool.num_blocks()) {
    return;
  }
  Sample(record);
  num_hits_ = 0;
  num_taken_ = pool.num_blocks_taken();
}

void HitReuseSection::Sample(const AdmissionRecord& record) {
  const BlockPool& pool = manager_->pool();
  const auto hits = record.hits->blocks(*group_);
  is_staged_ = true;
  // Who holds a block holds those before it.
  staged_in_use_ =
      std::find_if(hits.begin(), hits.end(),
                   [&](BlockId id) { return pool.block(id).ref_count == 0; }) -
      hits.begin();
  const int64_t unit = manager_->hit_alignment();
  facts_->first_hit_use =
      (staged_in_use_ * manager_->group(*group_).block_size() + unit - 1) / unit;
  staged_places_ = {};
  if (!has_places_ || staged_in_use_ == static_cast<int64_t>(hits.size())) return;
  const FreeBlockQueue& queue = pool.free_queue();
  places_.resize(static_cast<size_t>(pool.num_blocks()));
  BlockId id = queue.front();
  for (int32_t place = 0; place < queue.size(); ++place, id = queue.next(id)) {
    places_[static_cast<size_t>(id)] = place;
  }
  for (const BlockId hit : hits.subspan(static_cast<size_t>(staged_in_use_))) {
    if (pool.block(hit).ref_count > 0) continue;
    ++staged_places_[static_cast<size_t>(int64_t{places_[static_cast<size_t>(hit)]} * kNumPlaces /
                                         queue.size())];
  }
}

void HitReuseSection::OnAdmission(const AdmissionRecord& record, SimTime) {
  if (!group_) return;
  const auto num_hits = static_cast<int64_t>(record.hits->blocks(*group_).size());
  num_hits_ += num_hits;
  facts_->first_hit_use = INT64_MAX;
  if (!is_staged_) return;
  is_staged_ = false;
  ++admissions_;
  hit_blocks_ += num_hits;
  in_use_blocks_ += staged_in_use_;
  for (size_t i = 0; i < staged_places_.size(); ++i) blocks_by_place_[i] += staged_places_[i];
  for (const EvictedRun& run : facts_->misses.hit_uses) {
    distance_.Add(run.distance, run.num_blocks);
  }
}

void HitReuseSection::Fill(const ReplayEnd&, ::kvblocks::report::v1::Report* out) {
  if (hit_blocks_ == 0) return;
  auto* reuse = out->mutable_hit_reuse();
  reuse->set_admissions(admissions_);
  reuse->set_hit_blocks(hit_blocks_);
  reuse->set_in_use_blocks(in_use_blocks_);
  if (has_places_) {
    for (const int64_t count : blocks_by_place_) reuse->add_blocks_by_place(count);
  }
  for (const int64_t value : distance_.Percentiles()) reuse->add_distance_quantiles_blocks(value);
}

}  // namespace kvblocks::sim
