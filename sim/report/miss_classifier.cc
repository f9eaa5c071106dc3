#include "sim/report/miss_classifier.h"

#include <algorithm>

#include "sim/trace/content_keys.h"

namespace kvblocks::sim {

void MissClassifier::OnRunStart(const RunInfo& info) {
  manager_ = info.manager;
  trace_ = *info.trace;
  if (manager_->hashing() == nullptr) return;
  block_tokens_ = manager_->hit_alignment();
  hashes_per_block_ = block_tokens_ / manager_->hash_block_size();
  for (GroupId g = 0; g < manager_->num_groups(); ++g) {
    if (manager_->group(g).is_full_type()) chain_groups_.push_back(g);
    has_drafts_ = has_drafts_ || manager_->group(g).is_draft();
  }
  probes_always_ = has_drafts_ || manager_->num_groups() > 1 || chain_groups_.empty();
  probes_releases_ =
      manager_->options().partial_hits ||
      (chain_groups_.empty() && manager_->options().semantics.retention_interval.has_value());
}

int64_t MissClassifier::NumFullBlocks(const SimRequest& request) const {
  return request.kv->content().num_hashed_tokens() / block_tokens_;
}

int64_t MissClassifier::NumComputed(uint32_t ordinal) const {
  const Owner& owner = owners_[ordinal];
  const int64_t tokens = owner.live == nullptr
                             ? owner.num_tokens
                             : std::max(owner.live->highest_computed,
                                        std::min(owner.live->num_computed, owner.live->num_known));
  return tokens / block_tokens_;
}

// Where hits end inside the group's blocks: a full one is there, or the end of a prompt in it that
// has at least these tokens; or, of states, the one behind them.
bool MissClassifier::IsResidentInside(GroupId group, const PrefixContent& content,
                                      int64_t block) const {
  const BlockPool& pool = manager_->pool();
  const auto is_cached_at = [&](int64_t end) {
    return pool.FindCached(content.HashOfBlock(end / block_tokens_ - 1, 1), group) != kNullBlockId;
  };
  const int64_t end = (block + 1) * block_tokens_;
  if (!manager_->group(group).is_full_type()) return is_cached_at(end);
  const int64_t group_tokens = manager_->group(group).block_size();
  const int64_t last = std::min((end + group_tokens - 1) / group_tokens * group_tokens,
                                content.num_hashed_tokens() / block_tokens_ * block_tokens_);
  for (int64_t e = last; e >= end; e -= block_tokens_) {
    if (is_cached_at(e)) return true;
  }
  return false;
}

bool MissClassifier::IsResidentIn(GroupId group, const PrefixContent& content,
                                  int64_t block) const {
  const int64_t group_tokens = manager_->group(group).block_size();
  if (group_tokens > block_tokens_) return IsResidentInside(group, content, block);
  const int64_t per_block = block_tokens_ / group_tokens;
  const int64_t hashes = group_tokens / manager_->hash_block_size();
  for (int64_t j = block * per_block; j < (block + 1) * per_block; ++j) {
    if (manager_->pool().FindCached(content.HashOfBlock(j, hashes), group) == kNullBlockId) {
      return false;
    }
  }
  return true;
}

bool MissClassifier::IsResident(const PrefixContent& content, int64_t block) const {
  if (!chain_groups_.empty()) {
    return std::ranges::any_of(chain_groups_,
                               [&](GroupId g) { return IsResidentIn(g, content, block); });
  }
  for (GroupId g = 0; g < manager_->num_groups(); ++g) {
    if (manager_->group(g).is_cacheable() && IsResidentIn(g, content, block)) return true;
  }
  return false;
}

std::optional<GroupId> MissClassifier::VetoGroup(const PrefixContent& content, int64_t num_tokens) {
  std::optional<GroupId> veto;
  lists_.resize(static_cast<size_t>(manager_->num_groups()));
  for (GroupId g = 0; g < manager_->num_groups(); ++g) {
    if (!manager_->group(g).is_cacheable()) continue;
    const int64_t length = manager_->group(g).FindLongestCacheHit({.content = &content,
                                                                   .groups = {&g, 1},
                                                                   .max_tokens = num_tokens,
                                                                   .alignment = block_tokens_},
                                                                  lists_);
    if (length >= num_tokens) continue;
    num_tokens = length;
    veto = g;
  }
  return veto;
}

void MissClassifier::OnAdmissionAttempt(const AdmissionRecord& record) {
  if (!is_enabled()) return;
  resident_.clear();
  veto_group_.reset();
  const int64_t num_full = NumFullBlocks(*record.request);
  const int64_t num_hits = record.num_hit_tokens / block_tokens_;
  const int64_t num_allowed = std::min(num_full, (record.num_queried_tokens - 1) / block_tokens_);
  // With one full-attention group and no drafter the block behind a hit is not resident, unless the
  // hit had to end there.
  if (!probes_always_ && (num_hits < num_allowed || num_full == num_allowed)) return;
  const PrefixContent& content = record.request->kv->content();
  for (int64_t block = num_hits; block < num_full; ++block) {
    if (IsResident(content, block)) {
      resident_.push_back(block);
    } else if (!chain_groups_.empty()) {
      break;
    }
  }
  const int64_t usable = std::ranges::lower_bound(resident_, num_allowed) - resident_.begin();
  if (usable > 0 && manager_->num_groups() > 1) {
    veto_group_ =
        VetoGroup(content, (resident_[static_cast<size_t>(usable) - 1] + 1) * block_tokens_);
  }
}

// --- What separates equal contents, and what unequal ones share ---

bool MissClassifier::StartsLikeEarlier(const SimRequest& request) const {
  if (trace_.block_tokens == 0 || request.spec.content_ids.empty()) return false;
  const absl::uint128 path =
      PathKey(ScopeKey(trace_, request.spec), request.spec.content_ids.front());
  return starts_.contains(absl::Uint128Low64(path));
}

void MissClassifier::RememberStart(const SimRequest& request) {
  if (trace_.block_tokens == 0 || request.spec.content_ids.empty()) return;
  const absl::uint128 path =
      PathKey(ScopeKey(trace_, request.spec), request.spec.content_ids.front());
  starts_.insert(absl::Uint128Low64(path));
}

std::vector<uint64_t> MissClassifier::UnsaltedKeys(const SimRequest& request,
                                                   int64_t num_blocks) const {
  std::vector<uint64_t> result;
  if (request.spec.salt.empty() && request.spec.adapter.empty()) return result;
  TraceRequest unsalted = request.spec;
  unsalted.salt.clear();
  unsalted.adapter.clear();
  std::vector<absl::uint128> keys;
  const int64_t lookahead = manager_->hashing()->num_lookahead_tokens;
  ContentKeys(trace_, unsalted, block_tokens_ / hashes_per_block_, std::string_view(), lookahead)
      .AppendBlocks(unsalted, num_blocks * block_tokens_ + lookahead, &keys);
  for (int64_t block = 0; block < num_blocks; ++block) {
    const auto last = static_cast<size_t>((block + 1) * hashes_per_block_ - 1);
    result.push_back(absl::Uint128Low64(keys[last]));
  }
  return result;
}

bool MissClassifier::ExistsElsewhere(const SimRequest& request, int64_t block,
                                     const std::vector<uint64_t>& unsalted) const {
  if (unsalted.empty()) {
    return !unsalted_keys_.empty() && unsalted_keys_.contains(KeyOf(request.kv->content(), block));
  }
  const auto index = static_cast<size_t>(block);
  return (block + 1) * block_tokens_ <= request.num_prompt &&
         (unsalted_keys_.contains(unsalted[index]) || is_seen_unsalted_[index]);
}

// Which blocks somebody admitted without salt and adapter.
void MissClassifier::LookUpUnsalted(const std::vector<uint64_t>& unsalted) {
  is_seen_unsalted_.assign(unsalted.size(), false);
  if (unsalted.empty()) return;
  const auto num_blocks = static_cast<int64_t>(unsalted.size());
  SeenPaths::Path path;
  paths_.Follow(
      num_blocks, [&](int64_t block) { return unsalted[static_cast<size_t>(block)]; }, &path);
  paths_.ForEach(path, 0, num_blocks, [&](int64_t block, int64_t, const SeenPaths::Entry& entry) {
    is_seen_unsalted_[static_cast<size_t>(block)] = entry.owner != SeenPaths::kNone;
    return block + 1;
  });
}

SeenPaths::Path& MissClassifier::PathOf(const SimRequest& request) {
  const auto slot = static_cast<size_t>(request.slot);
  if (slot >= live_paths_.size()) live_paths_.resize(slot + 1);
  return live_paths_[slot];
}

// --- Admissions ---

std::optional<EvictedRun> MissClassifier::LastUse(const SeenPaths::Entry& block,
                                                  SimTime now) const {
  if (block.last_release == SeenPaths::kNone) return std::nullopt;
  const Release& release = releases_[block.last_release];
  return EvictedRun{.age = now - release.time,
                    .distance = blocks_taken_ + blocks_taken_by_admissions_ - release.blocks_taken};
}

void MissClassifier::Count(const EvictedRun& use, int64_t num_blocks,
                           std::vector<EvictedRun>* runs) {
  if (runs->empty() || runs->back().age != use.age || runs->back().distance != use.distance) {
    runs->push_back({.age = use.age, .distance = use.distance});
  }
  runs->back().num_blocks += num_blocks;
}

void MissClassifier::AddRun(const BlockRun& run) {
  if (!runs_.empty()) {
    BlockRun& last = runs_.back();
    if (last.reason == run.reason && last.owner == run.owner && last.age == run.age &&
        last.distance == run.distance) {
      last.num_blocks += run.num_blocks;
      return;
    }
  }
  runs_.push_back(run);
}

AdmissionMisses MissClassifier::OnAdmission(const AdmissionRecord& record,
                                            RequestProgress& progress, SimTime now,
                                            int64_t first_hit_use) {
  AdmissionMisses misses;
  const SimRequest& request = *record.request;
  const bool is_first = progress.ordinal < 0;
  if (is_first) {
    progress.ordinal = static_cast<int64_t>(owners_.size());
    owners_.push_back({.live = &request});
  }
  if (!is_enabled()) return misses;
  const auto self = static_cast<uint32_t>(progress.ordinal);
  const PrefixContent& content = request.kv->content();
  const int64_t n = record.num_queried_tokens;
  misses.block_tokens = block_tokens_;
  misses.num_full_blocks = NumFullBlocks(request);
  const int64_t num_allowed = std::min(misses.num_full_blocks, (n - 1) / block_tokens_);
  misses.num_hit_blocks = record.num_hit_tokens / block_tokens_;
  misses.num_possible_blocks = misses.num_hit_blocks;
  const std::vector<uint64_t> unsalted = UnsaltedKeys(request, misses.num_full_blocks);
  LookUpUnsalted(unsalted);
  SeenPaths::Path& path = PathOf(request);
  if (is_first) path.clear();
  const auto key_of = [&](int64_t block) { return KeyOf(content, block); };
  paths_.Follow(misses.num_full_blocks, key_of, &path);
  paths_.Append(misses.num_full_blocks, key_of, &path);

  evicted_.clear();
  runs_.clear();
  hit_uses_.clear();
  if (first_hit_use < misses.num_hit_blocks) {
    paths_.ForEach(path, first_hit_use, misses.num_hit_blocks,
                   [&](int64_t begin, int64_t end, const SeenPaths::Entry& entry) {
                     if (const auto use = LastUse(entry, now)) Count(*use, end - begin, &hit_uses_);
                     return end;
                   });
  }
  if (keeps_runs_) {
    paths_.ForEach(path, 0, misses.num_hit_blocks,
                   [&](int64_t begin, int64_t end, const SeenPaths::Entry& entry) {
                     const int64_t owner =
                         entry.owner == SeenPaths::kNone ? -1 : int64_t{entry.owner};
                     AddRun({.reason = std::nullopt,
                             .first_block = begin,
                             .num_blocks = end - begin,
                             .owner = owner});
                     return end;
                   });
  }
  auto resident = resident_.begin();
  bool is_possible = true;  // an infinite cache holds all blocks so far
  const bool may_be_elsewhere = !unsalted.empty() || !unsalted_keys_.empty();
  // Of blocks begin .. end - 1 of one entry, the first ones with one fate.
  const auto classify = [&](int64_t begin, int64_t end, SeenPaths::Entry& entry) {
    const bool is_new = entry.owner == SeenPaths::kNone;
    if (is_new) entry = {.owner = self};
    const int64_t num_computed = is_new ? 0 : NumComputed(entry.owner);
    const bool is_computed = begin < num_computed;
    const bool is_pending =
        !is_new && !is_computed && entry.owner != self && owners_[entry.owner].live != nullptr;
    const bool is_resident = resident != resident_.end() && *resident == begin;
    if (is_resident || begin == 0 || may_be_elsewhere) end = begin + 1;
    if (resident != resident_.end() && !is_resident) end = std::min(end, *resident);
    if (is_computed) end = std::min(end, num_computed);
    if (begin < num_allowed) end = std::min(end, num_allowed);
    const int64_t count = end - begin;
    is_possible = is_possible && begin < num_allowed && (is_computed || is_pending);
    misses.num_possible_blocks += is_possible ? count : 0;

    MissReason reason;
    std::optional<EvictedRun> last_use;
    if (is_resident) {
      ++resident;
      if (begin == num_allowed) {
        reason = MissReason::kLastToken;
      } else if (has_drafts_ && manager_->num_groups() == 1) {
        reason = MissReason::kDraftDrop;
      } else if (has_drafts_ && begin == misses.num_hit_blocks) {
        reason = MissReason::kDraftDrop;
      } else {
        reason = MissReason::kGroupVeto;
      }
    } else if (is_computed && probes_releases_ && entry.last_release == SeenPaths::kNone) {
      reason = MissReason::kNotKept;
    } else if (is_computed) {
      reason = MissReason::kEvicted;
      last_use = LastUse(entry, now);
      if (last_use) Count(*last_use, count, &evicted_);
    } else if (is_pending) {
      reason = MissReason::kNotYetComputed;
    } else {
      entry.owner = self;
      if (may_be_elsewhere && ExistsElsewhere(request, begin, unsalted)) {
        reason = MissReason::kSaltOrAdapter;
      } else if (begin == 0 && StartsLikeEarlier(request)) {
        reason = MissReason::kShort;
      } else {
        reason = MissReason::kFirstUse;
      }
    }
    misses.blocks[static_cast<size_t>(reason)] += count;
    if (!keeps_runs_) return end;
    BlockRun run{.reason = reason, .first_block = begin, .num_blocks = count};
    if (is_computed || is_pending) run.owner = entry.owner;
    if (last_use) {
      run.age = last_use->age;
      run.distance = last_use->distance;
    }
    AddRun(run);
    return end;
  };
  paths_.ForEach(path, misses.num_hit_blocks, misses.num_full_blocks, classify);
  for (uint64_t key : unsalted) unsalted_keys_.insert(key);
  RememberStart(request);
  for (GroupId g = 0; g < manager_->num_groups(); ++g) {
    blocks_taken_by_admissions_ +=
        static_cast<int64_t>(manager_->GetBlocks(*request.kv, g).size()) -
        static_cast<int64_t>(record.hits->blocks(g).size());
  }
  if (misses.blocks[static_cast<size_t>(MissReason::kGroupVeto)] > 0) {
    misses.veto_group = veto_group_;
  }
  misses.evicted = evicted_;
  misses.runs = runs_;
  misses.hit_uses = hit_uses_;
  return misses;
}

// Output blocks get their names as they fill; they matter when someone can ask for them again.
void MissClassifier::AnnounceOutput(const SimRequest& request, const RequestProgress& progress,
                                    int64_t num_tokens) {
  if (!is_enabled() || request.kv == nullptr || progress.ordinal < 0) return;
  const PrefixContent& content = request.kv->content();
  const int64_t end = std::min(num_tokens, content.num_hashed_tokens()) / block_tokens_;
  const auto key_of = [&](int64_t block) { return KeyOf(content, block); };
  SeenPaths::Path& path = PathOf(request);
  paths_.Follow(end, key_of, &path);
  paths_.Append(end, key_of, &path);
  paths_.ForEach(path, request.num_prompt / block_tokens_, end,
                 [&](int64_t, int64_t run_end, SeenPaths::Entry& entry) {
                   if (entry.owner == SeenPaths::kNone) {
                     entry = {.owner = static_cast<uint32_t>(progress.ordinal)};
                   }
                   return run_end;
                 });
}

// Requests let go of their blocks in the order of time, so the last one to do so is the last use.
void MissClassifier::ReleaseBlocks(const SimRequest& request, int64_t num_tokens, SimTime now) {
  if (!is_enabled() || request.kv == nullptr) return;
  const PrefixContent& content = request.kv->content();
  const int64_t end = std::min(num_tokens, content.num_hashed_tokens()) / block_tokens_;
  if (end <= 0) return;
  const auto release = static_cast<uint32_t>(releases_.size());
  releases_.push_back({.time = now, .blocks_taken = blocks_taken_});
  SeenPaths::Path& path = PathOf(request);
  paths_.Follow(
      end, [&](int64_t block) { return KeyOf(content, block); }, &path);
  paths_.ForEach(path, 0, end, [&](int64_t block, int64_t run_end, SeenPaths::Entry& entry) {
    if (!probes_releases_ || IsResident(content, block)) entry.last_release = release;
    return probes_releases_ ? block + 1 : run_end;
  });
}

void MissClassifier::OnPreemption(const PreemptionRecord& record, const RequestProgress& progress,
                                  SimTime now) {
  // Output that a step under way is still to compute has no name yet.
  const SimRequest& request = *record.request;
  const int64_t num_tokens =
      std::min(record.num_computed_lost, std::max(request.num_settled, request.num_prompt));
  AnnounceOutput(request, progress, num_tokens);
  ReleaseBlocks(request, num_tokens, now);
}

void MissClassifier::OnFinish(const SimRequest& request, const RequestProgress* progress,
                              SimTime now) {
  if (progress == nullptr || progress->ordinal < 0) return;
  // Others share output only where the trace says what it was.
  if (!request.spec.output_ids.empty()) {
    AnnounceOutput(request, *progress, request.highest_computed);
  }
  // Without what a step under way was still to compute.
  ReleaseBlocks(request, std::min(request.num_computed, request.num_settled), now);
  owners_[static_cast<size_t>(progress->ordinal)] = {.live = nullptr,
                                                     .num_tokens = request.highest_computed};
}

}  // namespace kvblocks::sim
