// KvCacheManager beside its hot paths: queries, statistics, events, retention, invariants.

#include <algorithm>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "kvblocks/check.h"
#include "kvblocks/kv_cache_manager.h"

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

// --- Retention of prefixes ---

absl::StatusOr<RetainOutcome> KvCacheManager::Retain(const Request& request,
                                                     const RetainParams& params) {
  const auto refuse = [&request](const auto&... what) {
    return InvalidArgument("Retain(", request.id(), "): ", what...);
  };
  if (pool_->retention() == nullptr) {
    return refuse("max_retained_share is ", options_.max_retained_share,
                  ", with which no block of this pool can be retained; raise it");
  }
  const int64_t num_tokens = params.num_tokens.value_or(request.num_tokens());
  if (num_tokens < 0 || num_tokens > request.num_tokens()) {
    return refuse("num_tokens is ", num_tokens, ", expected 0 to ", request.num_tokens(),
                  ", the tokens of the request");
  }
  if (params.priority < 1 || params.priority > kHighestPriority) {
    return refuse("priority is ", params.priority, ", expected 1 to ", kHighestPriority);
  }
  if (params.min_uses < 1) {
    return refuse("min_uses is ", params.min_uses, ", expected at least 1");
  }
  if (params.ttl && *params.ttl < 1) {
    return refuse("ttl is ", *params.ttl, ", expected at least 1; leave it out to keep for good");
  }
  const PrefixContent& content = request.content();
  const int64_t num_hashed = std::min(num_tokens, content.num_hashed_tokens());
  retained_.clear();
  for (GroupId g = 0; g < num_groups(); ++g) {
    if (!group(g).is_cacheable()) continue;
    const int64_t block_size = group(g).block_size();
    const int64_t per_block = block_size / hash_block_size_;
    const bool is_chained = pool_->eviction_order()->IsChained(g);
    for (int64_t end = block_size; end <= num_hashed; end += block_size) {
      const BlockId id = pool_->FindCached(content, end / block_size - 1, per_block, g);
      const bool is_wanted = id != kNullBlockId &&
                             pool_->eviction_order()->NumUses(id) >= params.min_uses;
      if (!is_wanted && is_chained) break;
      if (is_wanted) retained_.emplace_back(end, id);
    }
  }
  // Where the cap cuts the prefix off, it does so for all groups at about the same place.
  std::stable_sort(retained_.begin(), retained_.end(),
                   [](const auto& a, const auto& b) { return a.first < b.first; });
  retained_ids_.clear();
  for (const auto& [end, id] : retained_) retained_ids_.push_back(id);
  const int64_t expires_at =
      params.ttl && *params.ttl < kNeverExpires - now_ ? now_ + *params.ttl : kNeverExpires;
  return pool_->Retain(retained_ids_, params.priority, expires_at);
}

absl::Status KvCacheManager::AdvanceTime(int64_t now) {
  if (pool_->retention() == nullptr) {
    return InvalidArgument("AdvanceTime: max_retained_share is ", options_.max_retained_share,
                           ", with which no block of this pool can be retained; raise it");
  }
  if (now < now_) {
    return InvalidArgument("AdvanceTime: now is ", now, ", expected at least ", now_,
                           ", the time of the last call");
  }
  now_ = now;
  pool_->AdvanceTime(now);
  return absl::OkStatus();
}

// --- CheckInvariants: tables, lists outside of them and the pool must agree.

namespace {

// How many blocks with wrong reference counts a message names.
constexpr size_t kMostNamed = 20;

std::string Place(const Request& request, GroupId group, int64_t position) {
  return absl::StrCat("request ", request.id(), ", group ", group, ", position ", position);
}

}  // namespace

absl::Status KvCacheManager::CheckInvariants() const {
  if (absl::Status status = pool_->CheckInvariants(); !status.ok()) return status;
  // References as the tables and the lists outside them add up, and the group whose tables use a
  // block.
  std::vector<int64_t> references(static_cast<size_t>(pool_->num_blocks()), 0);
  std::vector<GroupId> used_by(static_cast<size_t>(pool_->num_blocks()), -1);
  for (const Request* request : holders_) {
    for (GroupId g = 0; g < num_groups(); ++g) {
      if (absl::Status status = CheckTable(*request, g, references, used_by); !status.ok()) {
        return status;
      }
    }
    if (request->noop_slots_ > NoopSlots(*request)) {
      return BrokenInvariant("request ", request->id(), ": ", request->noop_slots_,
                             " no-op slots, expected at most ", NoopSlots(*request));
    }
  }
  for (const auto& [id, count] : outside_references_) references[static_cast<size_t>(id)] += count;
  for (const BlockCopy& copy : copies_) {
    ++references[static_cast<size_t>(copy.source)];
    ++references[static_cast<size_t>(copy.target)];
  }
  return CheckReferences(references);
}

absl::Status KvCacheManager::CheckTable(const Request& request, GroupId g,
                                        std::vector<int64_t>& references,
                                        std::vector<GroupId>& used_by) const {
  const GroupBlocks& held = request.groups_[static_cast<size_t>(g)];
  const auto wrong = [&](int64_t position, const std::string& what) {
    return BrokenInvariant(Place(request, g, position), ": ", what);
  };
  const int64_t size = static_cast<int64_t>(held.table.size());
  const int64_t first_output =
      BlockSize(group(g).block_size()).CeilDiv(request.num_prompt_tokens_);
  if (held.num_leading_nulls > size || held.num_cached > size ||
      (held.num_output_nulls > 0 && first_output + held.num_output_nulls > size)) {
    return wrong(size,
                 absl::StrCat("the table has ", size, " blocks but counts ", held.num_leading_nulls,
                              " nulls, ", held.num_output_nulls, " nulls behind the prompt and ",
                              held.num_cached, " registered"));
  }
  for (int64_t i = 0; i < size; ++i) {
    const BlockId id = held.table[static_cast<size_t>(i)];
    const bool is_skipped = i < held.num_leading_nulls ||
                            (i >= first_output && i < first_output + held.num_output_nulls);
    const bool may_be_null = group(g).spec().kind() == KvCacheSpecKind::kMamba;
    if ((id == kNullBlockId) != is_skipped &&
        !(id == kNullBlockId && may_be_null)) {
      return wrong(i,
                   absl::StrCat("block ", id, " but ", held.num_leading_nulls, " leading nulls",
                                held.num_output_nulls == 0
                                    ? std::string()
                                    : absl::StrCat(" and ", held.num_output_nulls,
                                                   " behind the prompt")));
    }
    if (id == kNullBlockId) continue;
    const KvCacheBlock& block = pool_->block(id);
    if (pool_->chunks() != nullptr &&
        pool_->chunks()->ClassOfPage(id) != pool_->chunks()->ClassOfGroup(g)) {
      return wrong(i, absl::StrCat("block ", id, " is no page of the group's class"));
    }
    if (block.is_permanent) return wrong(i, absl::StrCat("block ", id, " is permanent"));
    ++references[static_cast<size_t>(id)];
    GroupId& user = used_by[static_cast<size_t>(id)];
    if (user != -1 && user != g) {
      return wrong(i, absl::StrCat("block ", id, " is used by group ", user, ", too"));
    }
    user = g;
    if (!block.has_key()) continue;
    if (block.key_group != g) {
      return wrong(i, absl::StrCat("block ", id, " has a key of group ", block.key_group));
    }
    const int64_t block_size = group(g).block_size();
    const int64_t partial = pool_->partial_tokens(id);
    const int64_t covered = partial > 0 ? partial : (i + 1) * block_size;
    const bool has_hash = covered > i * block_size && covered <= (i + 1) * block_size &&
                          covered <= request.content_.num_hashed_tokens();
    if (!has_hash ||
        !(pool_->hash(id) == request.content_.HashOfBlock(covered / hash_block_size() - 1, 1))) {
      return wrong(i, absl::StrCat("block ", id, " has the key of another content"));
    }
  }
  return absl::OkStatus();
}

absl::Status KvCacheManager::CheckReferences(const std::vector<int64_t>& references) const {
  std::vector<BlockId> wrong;
  for (BlockId id = 1; id < pool_->num_blocks(); ++id) {
    const KvCacheBlock& block = pool_->block(id);
    const int64_t expected = references[static_cast<size_t>(id)] + (block.is_permanent ? 1 : 0);
    if (block.ref_count != expected) wrong.push_back(id);
  }
  if (wrong.empty()) return absl::OkStatus();
  std::string text;
  for (size_t i = 0; i < std::min(wrong.size(), kMostNamed); ++i) {
    const BlockId id = wrong[i];
    absl::StrAppend(&text, i == 0 ? "" : "; ", "block ", id, " counts ", pool_->block(id).ref_count,
                    " references, tables and lists hold ", references[static_cast<size_t>(id)],
                    " (", HoldersOf(id), ")");
  }
  if (wrong.size() > kMostNamed) {
    absl::StrAppend(&text, "; and ", wrong.size() - kMostNamed, " more");
  }
  return BrokenInvariant(text);
}

std::string KvCacheManager::HoldersOf(BlockId id) const {
  std::string text;
  for (const Request* request : holders_) {
    for (GroupId g = 0; g < num_groups(); ++g) {
      const std::vector<BlockId>& table = request->groups_[static_cast<size_t>(g)].table;
      for (size_t i = 0; i < table.size(); ++i) {
        if (table[i] != id) continue;
        absl::StrAppend(&text, text.empty() ? "" : "; ",
                        Place(*request, g, static_cast<int64_t>(i)));
      }
    }
  }
  if (const auto it = outside_references_.find(id); it != outside_references_.end()) {
    absl::StrAppend(&text, text.empty() ? "" : "; ", it->second, " popped or pinned");
  }
  for (const BlockCopy& copy : copies_) {
    if (copy.source != id && copy.target != id) continue;
    absl::StrAppend(&text, text.empty() ? "" : "; ", "to be copied from ", copy.source, " to ",
                    copy.target);
  }
  return text.empty() ? "held by nobody" : text;
}

}  // namespace kvblocks
