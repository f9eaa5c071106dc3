#include "kvblocks/sim/report/group_occupancy.h"

#include <algorithm>

namespace kvblocks::sim {

void GroupOccupancy::OnRunStart(const RunInfo& info) {
  manager_ = info.manager;
  groups_.assign(static_cast<size_t>(manager_->num_groups()), {});
}

void GroupOccupancy::OnAdmission(const SimRequest& request) {
  const auto slot = static_cast<size_t>(request.slot);
  if (slot >= holders_.size()) holders_.resize(slot + 1);
  holders_[slot] = &request;
}

void GroupOccupancy::OnRelease(const SimRequest& request) {
  const auto slot = static_cast<size_t>(request.slot);
  if (slot < holders_.size() && holders_[slot] == &request) holders_[slot] = nullptr;
}

void GroupOccupancy::OnStepScheduled(SimTime now) {
  // One group has the whole pool's gauges.
  if (groups_.size() < 2) return;
  const BlockPool& pool = manager_->pool();
  if (first_ && pool.num_blocks_taken() - taken_at_last_ < pool.num_blocks() / 4) return;
  if (!first_) first_ = last_ = now;
  for (Counted& group : groups_) {
    group.live_time += static_cast<__int128>(now - last_) * group.live;
    group.cached_time += static_cast<__int128>(now - last_) * group.cached;
  }
  last_ = now;
  taken_at_last_ = pool.num_blocks_taken();
  Count();
}

void GroupOccupancy::Count() {
  for (Counted& group : groups_) group.live = group.cached = 0;
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
  for (Counted& group : groups_) {
    group.peak_live = std::max(group.peak_live, group.live);
    group.peak_cached = std::max(group.peak_cached, group.cached);
  }
}

void GroupOccupancy::Fill(GroupId group, SimTime now, ::kvblocks::report::v1::Group* out) const {
  if (!first_) return;
  const Counted& counted = groups_[static_cast<size_t>(group)];
  const auto mean = [&](__int128 sum, int64_t last) {
    const auto whole = static_cast<double>(now - *first_);
    if (whole <= 0) return static_cast<double>(last);
    return (static_cast<double>(sum) +
            static_cast<double>(now - last_) * static_cast<double>(last)) /
           whole;
  };
  out->mutable_live_blocks()->set_mean(mean(counted.live_time, counted.live));
  out->mutable_live_blocks()->set_peak(static_cast<double>(counted.peak_live));
  out->mutable_cached_blocks()->set_mean(mean(counted.cached_time, counted.cached));
  out->mutable_cached_blocks()->set_peak(static_cast<double>(counted.peak_cached));
}

}  // namespace kvblocks::sim
