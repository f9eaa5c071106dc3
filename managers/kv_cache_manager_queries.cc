// KvCacheManager's queries, statistics and events: nothing here changes a block.

#include <algorithm>
#include <utility>

#include "kvblocks/checks/status_text.h"
#include "kvblocks/managers/kv_cache_manager.h"

namespace kvblocks {

absl::Span<const BlockId> KvCacheManager::GetBlocks(const Request& request, GroupId group) const {
  if (!HoldsBlocks(request) || group < 0 || group >= num_groups()) return {};
  return request.groups_[static_cast<size_t>(group)].table;
}

std::vector<BlockId> KvCacheManager::MoveBlockTable(Request& request, GroupId group) {
  if (!HoldsBlocks(request) || group < 0 || group >= num_groups()) return {};
  std::vector<BlockId>& table = request.groups_[static_cast<size_t>(group)].table;
  return std::exchange(table, std::vector<BlockId>(table));
}

std::vector<std::vector<BlockId>> KvCacheManager::GetBlockIds(const Request& request,
                                                              int64_t num_tokens) const {
  std::vector<std::vector<BlockId>> ids;
  for (GroupId g = 0; g < num_groups(); ++g) {
    const absl::Span<const BlockId> table = GetBlocks(request, g);
    const int64_t clipped =
        BlockSize(group(g).block_size()).CeilDiv(std::max<int64_t>(0, num_tokens));
    const auto kept = table.first(std::min(table.size(), static_cast<size_t>(clipped)));
    ids.emplace_back(kept.begin(), kept.end());
  }
  return ids;
}

std::optional<std::vector<std::vector<BlockId>>> KvCacheManager::GetBlockIdsIfAny(
    const Request& request) const {
  std::vector<std::vector<BlockId>> ids = GetBlockIds(request);
  for (const auto& list : ids) {
    if (!list.empty()) return ids;
  }
  return std::nullopt;
}

std::vector<std::vector<BlockId>> KvCacheManager::GetUnhashedBlockIds(
    const Request& request) const {
  std::vector<std::vector<BlockId>> ids = GetBlockIds(request);
  for (std::vector<BlockId>& list : ids) {
    std::erase_if(list,
                  [&](BlockId id) { return id == kNullBlockId || pool_->block(id).has_key(); });
  }
  return ids;
}

int64_t KvCacheManager::GetNumRegisteredTokens(const Request& request, GroupId group_id) const {
  const absl::Span<const BlockId> table = GetBlocks(request, group_id);
  size_t end = table.size();
  while (end > 0 && !pool_->block(table[end - 1]).has_key()) --end;
  return end == 0 ? 0 : static_cast<int64_t>(end) * group(group_id).block_size();
}

std::vector<int64_t> KvCacheManager::GetNumCommonPrefixBlocks(const Request& request) const {
  std::vector<int64_t> common(static_cast<size_t>(num_groups()), 0);
  if (!HoldsBlocks(request) || !options_.enable_caching) return common;
  absl::flat_hash_map<BlockId, int32_t> with_copies;
  if (!copies_.empty()) {
    with_copies = outside_references_;
    for (const BlockCopy& copy : copies_) {
      ++with_copies[copy.source];
      ++with_copies[copy.target];
    }
  }
  for (GroupId g = 0; g < num_groups(); ++g) {
    common[static_cast<size_t>(g)] = group(g).NumCommonPrefixBlocks(
        request.groups_[static_cast<size_t>(g)], num_requests_holding_blocks(),
        copies_.empty() ? outside_references_ : with_copies);
  }
  return common;
}

absl::StatusOr<ComputedBlocks> KvCacheManager::TruncateComputedBlocks(
    const ComputedBlocks& computed, int64_t num_tokens) const {
  if (num_tokens < 0 || num_tokens > computed.num_tokens()) {
    return InvalidArgument("TruncateComputedBlocks: num_tokens is ", num_tokens, ", expected 0 to ",
                           computed.num_tokens());
  }
  if (computed.num_groups() != 0 && computed.num_groups() != static_cast<size_t>(num_groups())) {
    return InvalidArgument("TruncateComputedBlocks: hits for ", computed.num_groups(),
                           " groups, expected ", num_groups());
  }
  ComputedBlocks cut = computed;
  cut.num_tokens_ = num_tokens;
  for (size_t g = 0; g < cut.lists_.size(); ++g) {
    const SingleTypeManager& manager = group(static_cast<GroupId>(g));
    if (options_.enable_caching && !manager.is_cacheable()) continue;
    const int64_t block_size = manager.block_size();
    if (num_tokens % block_size != 0) {
      return InvalidArgument("TruncateComputedBlocks: num_tokens is ", num_tokens,
                             ", expected a multiple of group ", g, "'s block size ", block_size);
    }
    const int64_t blocks = num_tokens / block_size;
    if (blocks > static_cast<int64_t>(cut.lists_[g].size())) {
      return InvalidArgument("TruncateComputedBlocks: ", blocks, " blocks for ", num_tokens,
                             " tokens, but group ", g, " lists ", cut.lists_[g].size());
    }
    cut.lists_[g].resize(static_cast<size_t>(blocks));
  }
  return cut;
}

int64_t KvCacheManager::NumBlocksNeeded(const Request& request, int64_t num_tokens,
                                        bool apply_cap) const {
  const int64_t slots = std::clamp<int64_t>(num_tokens, 0, options_.max_model_len);
  const SlotDemand demand{slots, slots, 0, request.num_prompt_tokens_,
                          request.num_computed_tokens_};
  int64_t needed = 0;
  for (GroupId g = 0; g < num_groups(); ++g) {
    const GroupBlocks* held =
        HoldsBlocks(request) ? &request.groups_[static_cast<size_t>(g)] : nullptr;
    needed += group(g).NumBlocksNeeded(held, demand, {}, request.num_computed_tokens_, apply_cap);
  }
  return needed;
}

std::optional<KvCacheManager::StateCheckpoint> KvCacheManager::GetStateCheckpoint(
    const Request& request, GroupId g) const {
  if (!HoldsBlocks(request) || g < 0 || g >= num_groups()) return std::nullopt;
  const GroupBlocks& held = request.groups_[static_cast<size_t>(g)];
  if (held.checkpoint_tokens == 0) return std::nullopt;
  const int64_t position = BlockSize(group(g).block_size()).CeilDiv(held.checkpoint_tokens) - 1;
  return StateCheckpoint{held.checkpoint_tokens, held.table[static_cast<size_t>(position)]};
}

void KvCacheManager::ReportReusedBlocks(const Request& request,
                                        const ComputedBlocks& computed) const {
  for (GroupId g = 0; g < num_groups(); ++g) {
    if (!group(g).is_cacheable()) continue;
    int64_t block_size = group(g).block_size();
    // The engine counts a rank's tokens of a block only, where hashes allow it (V-62).
    const int64_t of_rank = group(g).spec().block_size();
    if (options_.semantics.one_event_per_registration && of_rank % hash_block_size() == 0) {
      block_size = of_rank;
    }
    pool_->ReportStored(request.content_, computed.blocks(g), computed.num_tokens(), block_size, g);
  }
}

std::vector<KvEvent> KvCacheManager::TakeEvents() {
  std::vector<KvEvent> events = pool_->TakeEvents();
  for (KvEvent& event : events) {
    auto* stored = std::get_if<BlockStored>(&event);
    if (stored == nullptr) continue;
    const KvCacheSpec& spec = group(stored->group_idx).spec();
    stored->kv_cache_spec_kind = spec.kind_name();
    stored->kv_cache_spec_sliding_window = spec.sliding_window();
  }
  return events;
}

void KvCacheManager::RecordPrefixCacheStats(const Request& request, int64_t num_hit_tokens,
                                            const MissCounts* missed) {
  if (!options_.log_stats || !options_.enable_caching || request.skip_reading_prefix_cache_) {
    return;
  }
  const bool is_new = request.num_preemptions_ == 0;
  (is_new ? stats_.requests : stats_.preempted_requests) += 1;
  (is_new ? stats_.queries : stats_.preempted_queries) += request.num_tokens();
  (is_new ? stats_.hits : stats_.preempted_hits) += num_hit_tokens;
  if (missed == nullptr) return;
  MissCounts& sum = is_new ? stats_.missed : stats_.preempted_missed;
  for (size_t i = 0; i < kNumMissReasons; ++i) sum[i] += (*missed)[i];
}

PrefixCacheStats KvCacheManager::MakePrefixCacheStats() { return std::exchange(stats_, {}); }

}  // namespace kvblocks
