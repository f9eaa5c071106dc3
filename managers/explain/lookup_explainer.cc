// LookupExplainer: does one look-up again, slowly and plainly, to say why it ended where it did.
//
// Takes the hit from the real look-up and asks only what the cache holds; how groups need their
// blocks is stated here in its plainest form, position by position, and shares no code with the
// look-ups. Tokens behind the hit are divided in this order:
//
//   what was hit and is computed again                           a windowed group vetoes
//   up to the longest hit without the drop of draft groups       draft drop
//   up to where all groups that keep whole prefixes reach        a windowed group vetoes
//   a last block that only the last token keeps out              last token
//   the part of a block of hit_alignment                         alignment
//   behind it, to the last block that has a hash                 what became of the blocks
//   to the last full block                                       look-ahead
//   the rest                                                     partial block
//
// With partial hits, blocks of hit_alignment are hash blocks. A full group holds one if its block
// is cached, or an end of a prompt in it that has these tokens; a hit ends inside its block only
// where such an end is, and where a longer hit was cut. A Mamba group holds a state behind a hash
// block or not.
//
// A block that a windowed group lacks although all groups that keep whole prefixes have its tokens
// was computed and not kept, unless its removal is remembered.
//
// A cached block behind an absent one counts like the absent one. In a model of windowed groups
// only, each block is absent, or cached and vetoed by a gap before it.
//
// Cost: O(tokens / hash block size) probes per group, and per position of a windowed group as many
// as its window has blocks.

#include <algorithm>
#include <optional>

#include "absl/strings/str_cat.h"
#include "kvblocks/check.h"
#include "kvblocks/lookup_explanation.h"

namespace kvblocks {
namespace {

class LookupExplainer {
 public:
  // Both must outlive it. REQUIRES: prefix caching is on and the request has tokens.
  LookupExplainer(const KvCacheManager& manager, const Request& request);

  // REQUIRES: the numbers are what GetComputedBlocks gives.
  LookupExplanation Explain(int64_t num_hit_tokens, int64_t num_replayed_tokens) const;

 private:
  struct Gap {
    GroupId group;
    int64_t block;
    int64_t end;  // tokens of the hit that lacks it
  };

  int64_t BlockTokens(GroupId g) const { return manager_.group(g).block_size(); }
  bool IsFull(GroupId g) const { return manager_.group(g).is_full_type(); }
  // A window that is computed again, for one, has no keys.
  bool IsLookedUp(GroupId g) const { return manager_.group(g).spec().is_prefix_cacheable(); }
  // Hits may end inside its blocks.
  bool IsInner(GroupId g) const { return is_partial_ && BlockTokens(g) > alignment_; }
  bool IsState(GroupId g) const {
    return manager_.group(g).spec().kind() == KvCacheSpecKind::kMamba;
  }
  bool IsCached(GroupId g, int64_t block) const;
  // Whether a hit of so many tokens may end in the group as far as its last block goes.
  bool HasKeyAt(GroupId g, int64_t end) const;
  // Whether a full group has the block that ends there, or the part of one.
  bool HoldsUpTo(GroupId g, int64_t end) const;
  // Of the group's block, as far as a hit of `end` tokens lacks it.
  Absence WhyAbsent(GroupId g, int64_t block, int64_t end) const;
  // The first of the blocks [begin, end) that is not cached, or end.
  int64_t FirstAbsent(GroupId g, int64_t begin, int64_t end) const;
  // The first block that a hit of `end` blocks needs.
  int64_t FirstNeeded(GroupId g, int64_t end) const;
  // The first group of those with a window or chunks that lacks a block for a hit of so many
  // tokens, and that block.
  std::optional<Gap> FindWindowGap(int64_t num_tokens) const;

  int64_t HitWithoutDrops(int64_t num_hit_tokens) const;
  // How far all full groups hold a prefix, and among the first `most` tokens a hit can end.
  int64_t ReachOfFullGroups(int64_t most) const;
  int64_t ReachInside(GroupId first, int64_t most) const;
  GroupReach ReachOf(GroupId g) const;

  void AddRun(MissedRun run, LookupExplanation& out) const;
  void AddAbsent(const Gap& gap, int64_t first_token, int64_t num_tokens,
                 LookupExplanation& out) const;
  void AddVeto(const Gap& gap, int64_t first_token, LookupExplanation& out) const;
  void AddReplayed(int64_t first_token, int64_t num_tokens, LookupExplanation& out) const;
  void AddBehindFullGroups(int64_t reach, LookupExplanation& out) const;
  void AddWithoutFullGroups(int64_t first_token, LookupExplanation& out) const;

  const KvCacheManager& manager_;
  const PrefixContent& content_;
  const int64_t num_tokens_;
  const bool is_partial_;
  const int64_t alignment_;
  const int64_t num_full_;         // tokens of blocks of the alignment
  const int64_t num_hashed_full_;  // and of those that can be looked up
  bool has_full_groups_ = false;
  int64_t num_held_ = 0;  // tokens that all full groups hold; 0 without any
  GroupId first_draft_ = -1;
};

LookupExplainer::LookupExplainer(const KvCacheManager& manager, const Request& request)
    : manager_(manager),
      content_(request.content()),
      num_tokens_(request.num_tokens()),
      is_partial_(manager.options().partial_hits),
      alignment_(is_partial_                  ? manager.hash_block_size()
                 : manager.num_groups() == 1 ? manager.group(0).block_size()
                                             : manager.scheduler_block_size()),
      num_full_(num_tokens_ - num_tokens_ % alignment_),
      num_hashed_full_(std::min(
          num_full_, content_.num_hashed_tokens() - content_.num_hashed_tokens() % alignment_)) {
  for (GroupId g = 0; g < manager_.num_groups(); ++g) {
    has_full_groups_ = has_full_groups_ || IsFull(g);
    if (manager_.group(g).draft_margin() > 0 && first_draft_ < 0) first_draft_ = g;
  }
  if (!has_full_groups_) return;
  num_held_ = content_.num_hashed_tokens();
  for (GroupId g = 0; g < manager_.num_groups(); ++g) {
    if (!IsFull(g)) continue;
    const int64_t most = content_.num_hashed_tokens() / BlockTokens(g);
    num_held_ = std::min(num_held_, FirstAbsent(g, 0, most) * BlockTokens(g));
  }
  if (is_partial_) num_held_ = std::max(num_held_, ReachOfFullGroups(num_hashed_full_));
}

bool LookupExplainer::IsCached(GroupId g, int64_t block) const {
  if ((block + 1) * BlockTokens(g) > content_.num_hashed_tokens()) return false;
  const int64_t per_block = BlockTokens(g) / manager_.hash_block_size();
  return manager_.pool().FindCached(content_, block, per_block, g) != kNullBlockId;
}

bool LookupExplainer::HasKeyAt(GroupId g, int64_t end) const {
  if (end > content_.num_hashed_tokens()) return false;
  const int64_t begin = (end - 1) / BlockTokens(g) * BlockTokens(g);
  return manager_.pool().FindCachedTail(content_, begin, end, g) != kNullBlockId;
}

bool LookupExplainer::HoldsUpTo(GroupId g, int64_t end) const {
  const int64_t block_end = BlockSize(BlockTokens(g)).CeilDiv(end) * BlockTokens(g);
  for (int64_t e = end; e <= block_end; e += manager_.hash_block_size()) {
    if (HasKeyAt(g, e)) return true;
  }
  return false;
}

Absence LookupExplainer::WhyAbsent(GroupId g, int64_t block, int64_t end) const {
  const LookupHistory* history = manager_.pool().history();
  if (history == nullptr) return {.reason = MissReason::kNotCached};
  const int64_t unit = manager_.hash_block_size();
  const int64_t block_end = (block + 1) * BlockTokens(g);
  // The keys that the block may have had, from the longest on.
  int64_t first = block_end, last = block_end;
  if (IsInner(g)) {
    first = IsState(g) ? end : std::min(block_end, content_.num_hashed_tokens() / unit * unit);
    last = end;
  }
  for (int64_t e = first; e >= last; e -= unit) {
    const auto removal = history->FindRemoval(content_.HashOfBlock(e / unit - 1, 1), g);
    if (!removal) continue;
    return {.reason = removal->was_reused ? MissReason::kEvicted : MissReason::kRemoved,
            .num_blocks_since = manager_.pool().num_blocks_taken() - removal->num_blocks_taken};
  }
  for (int64_t e = first; e >= last && content_.knows_plain_hashes(); e -= unit) {
    const BlockHash& plain = content_.PlainHashOfBlock(e / unit - 1, 1);
    if (history->HasOtherVariant(plain, content_.HashOfBlock(e / unit - 1, 1)) ||
        manager_.pool().FindCached(plain, g) != kNullBlockId ||
        history->FindRemoval(plain, g).has_value()) {
      return {.reason = MissReason::kSaltOrAdapter};
    }
  }
  return {.reason = !IsFull(g) && last <= num_held_ ? MissReason::kNotKept : MissReason::kFirstUse};
}

int64_t LookupExplainer::FirstAbsent(GroupId g, int64_t begin, int64_t end) const {
  while (begin < end && IsCached(g, begin)) ++begin;
  return begin;
}

int64_t LookupExplainer::FirstNeeded(GroupId g, int64_t end) const {
  const KvCacheSpec& spec = manager_.group(g).spec();
  if (const auto window = spec.sliding_window()) {
    const BlockSize block_size(BlockTokens(g));
    return std::max<int64_t>(0, end - std::max<int64_t>(1, block_size.CeilDiv(*window - 1)));
  }
  if (spec.kind() == KvCacheSpecKind::kMamba) return std::max<int64_t>(0, end - 1);
  if (const auto chunk = spec.attention_chunk_size()) {
    const int64_t tokens = end * BlockTokens(g);
    return (tokens - tokens % *chunk) / BlockTokens(g);
  }
  return 0;
}

std::optional<LookupExplainer::Gap> LookupExplainer::FindWindowGap(int64_t num_tokens) const {
  for (GroupId g = 0; g < manager_.num_groups(); ++g) {
    if (IsFull(g) || !IsLookedUp(g)) continue;
    if (IsInner(g)) {
      if (!HasKeyAt(g, num_tokens)) return Gap{g, (num_tokens - 1) / BlockTokens(g), num_tokens};
      continue;
    }
    const int64_t end = num_tokens / BlockTokens(g);
    const int64_t absent = FirstAbsent(g, FirstNeeded(g, end), end);
    if (absent < end) return Gap{g, absent, (absent + 1) * BlockTokens(g)};
  }
  return std::nullopt;
}

int64_t LookupExplainer::ReachOfFullGroups(int64_t most) const {
  int64_t reach = most;
  for (GroupId g = 0; g < manager_.num_groups(); ++g) {
    if (!IsFull(g)) continue;
    // Groups are asked in this order, each within what the ones before it allow.
    const int64_t asked = is_partial_ ? reach : most;
    const int64_t run = FirstAbsent(g, 0, asked / BlockTokens(g)) * BlockTokens(g);
    reach = std::min(reach, IsInner(g) ? ReachInside(g, asked) : run);
  }
  return reach;
}

// That of the groups with this one's spec, which are looked up together: whole blocks, then the
// last end of a prompt in the block behind them that all have.
int64_t LookupExplainer::ReachInside(GroupId first, int64_t most) const {
  std::vector<GroupId> groups;
  int64_t run = most / BlockTokens(first);
  for (GroupId g = 0; g < manager_.num_groups(); ++g) {
    if (!(manager_.group(g).spec() == manager_.group(first).spec())) continue;
    groups.push_back(g);
    run = FirstAbsent(g, 0, run);
  }
  const int64_t begin = run * BlockTokens(first);
  const int64_t last = std::min(begin + BlockTokens(first) - alignment_, most);
  for (int64_t end = last - last % alignment_; end > begin; end -= alignment_) {
    if (std::all_of(groups.begin(), groups.end(), [&](GroupId g) { return HasKeyAt(g, end); })) {
      return end;
    }
  }
  return begin;
}

int64_t LookupExplainer::HitWithoutDrops(int64_t num_hit_tokens) const {
  int64_t most = std::min(num_tokens_ - 1, num_hashed_full_);
  if (has_full_groups_)
    most = std::min(most, ReachOfFullGroups(is_partial_ ? most : num_hashed_full_));
  for (int64_t end = most - most % alignment_; end > num_hit_tokens; end -= alignment_) {
    if (!FindWindowGap(end)) return end;
  }
  return num_hit_tokens;
}

GroupReach LookupExplainer::ReachOf(GroupId g) const {
  const SingleTypeManager& group = manager_.group(g);
  HitLists lists(static_cast<size_t>(manager_.num_groups()));
  const GroupId alone[] = {g};
  // As far as look-ups of all groups may look in this one.
  int64_t most = num_tokens_ - 1;
  if (!manager_.options().semantics.is_025 && manager_.num_groups() > 1) {
    most += group.draft_margin();
  }
  const int64_t num_hashed = content_.num_hashed_tokens();
  if (!group.hits_unhashed_tokens()) most = std::min(most, num_hashed);
  GroupReach reach{.group = g, .kind = std::string(group.spec().kind_name())};
  reach.num_hit_tokens = group.FindLongestCacheHit({.content = &content_,
                                                    .groups = alone,
                                                    .max_tokens = most,
                                                    .drop_last_block = group.is_draft(),
                                                    .alignment = alignment_},
                                                   lists);
  if (IsInner(g)) {
    const int64_t end = reach.num_hit_tokens + alignment_ + group.draft_margin();
    if (end > most || (IsState(g) ? HasKeyAt(g, end) : HoldsUpTo(g, end))) return reach;
    reach.stop_block = (end - 1) / BlockTokens(g);
    reach.absence = WhyAbsent(g, *reach.stop_block, end);
    return reach;
  }
  most = std::min(most, num_hashed);
  const int64_t longer = (reach.num_hit_tokens + alignment_) / BlockTokens(g);
  const int64_t end = longer + (group.draft_margin() > 0 ? 1 : 0);
  if (end * BlockTokens(g) > most) return reach;
  const int64_t absent = FirstAbsent(g, FirstNeeded(g, longer), end);
  if (absent < end) {
    reach.stop_block = absent;
    reach.absence = WhyAbsent(g, absent, (absent + 1) * BlockTokens(g));
  }
  return reach;
}

void LookupExplainer::AddRun(MissedRun run, LookupExplanation& out) const {
  if (run.num_tokens <= 0) return;
  if (!out.missed.empty()) {
    MissedRun& last = out.missed.back();
    if (last.reason == run.reason && last.group == run.group && last.absence == run.absence) {
      last.num_tokens += run.num_tokens;
      return;
    }
  }
  out.missed.push_back(run);
}

void LookupExplainer::AddAbsent(const Gap& gap, int64_t first_token, int64_t num_tokens,
                                LookupExplanation& out) const {
  const Absence absence = WhyAbsent(gap.group, gap.block, gap.end);
  AddRun({.reason = absence.reason,
          .first_token = first_token,
          .num_tokens = num_tokens,
          .group = gap.group,
          .block = gap.block,
          .absence = absence},
         out);
}

void LookupExplainer::AddVeto(const Gap& gap, int64_t first_token, LookupExplanation& out) const {
  AddRun({.reason = MissReason::kGroupVeto,
          .first_token = first_token,
          .num_tokens = alignment_,
          .group = gap.group,
          .block = gap.block,
          .absence = WhyAbsent(gap.group, gap.block, gap.end)},
         out);
}

// All groups that are cached have them; one with a window that never is needs them again.
void LookupExplainer::AddReplayed(int64_t first_token, int64_t num_tokens,
                                  LookupExplanation& out) const {
  if (num_tokens == 0) return;
  GroupId g = 0;
  while (manager_.group(g).spec().replay_tokens() == 0) ++g;
  AddRun({.reason = MissReason::kGroupVeto,
          .first_token = first_token,
          .num_tokens = num_tokens,
          .group = g,
          .block = first_token / BlockTokens(g),
          .absence = Absence{.reason = MissReason::kNotKept}},
         out);
}

void LookupExplainer::AddBehindFullGroups(int64_t reach, LookupExplanation& out) const {
  // Block sizes of all groups are multiples of this step, so it lies in one block of each.
  const int64_t step = manager_.hash_block_size();
  for (int64_t token = reach; token < num_hashed_full_; token += step) {
    const int64_t end = token + step;
    const auto holds = [&](GroupId g) {
      return IsInner(g) ? HoldsUpTo(g, end) : IsCached(g, token / BlockTokens(g));
    };
    GroupId g = 0;
    while (g < manager_.num_groups() && (!IsFull(g) || holds(g))) ++g;
    if (g < manager_.num_groups()) {
      AddAbsent({g, token / BlockTokens(g), end}, token, step, out);
    } else if (is_partial_) {
      // In blocks that end elsewhere.
      AddRun({.reason = MissReason::kAlignment, .first_token = token, .num_tokens = step}, out);
    } else {
      out.missed.back().num_tokens += step;
    }
  }
}

void LookupExplainer::AddWithoutFullGroups(int64_t first_token, LookupExplanation& out) const {
  for (int64_t token = first_token; token < num_hashed_full_; token += alignment_) {
    std::optional<Gap> here;
    for (GroupId g = 0; g < manager_.num_groups() && !here; ++g) {
      if (!IsLookedUp(g)) continue;
      if (IsInner(g)) {
        const int64_t end = token + alignment_;
        if (!HasKeyAt(g, end)) here = Gap{g, token / BlockTokens(g), end};
        continue;
      }
      const int64_t end = (token + alignment_) / BlockTokens(g);
      const int64_t absent =
          FirstAbsent(g, std::max(FirstNeeded(g, end), token / BlockTokens(g)), end);
      if (absent < end) here = Gap{g, absent, (absent + 1) * BlockTokens(g)};
    }
    if (here) {
      AddAbsent(*here, token, alignment_, out);
    } else if (const auto before = FindWindowGap(token + alignment_)) {
      AddVeto(*before, token, out);
    } else {
      AddRun({.reason = MissReason::kLastToken, .first_token = token, .num_tokens = alignment_},
             out);
    }
  }
}

LookupExplanation LookupExplainer::Explain(int64_t num_hit_tokens,
                                           int64_t num_replayed_tokens) const {
  const LookupHistory* history = manager_.pool().history();
  LookupExplanation out{.num_tokens = num_tokens_,
                        .num_hit_tokens = num_hit_tokens,
                        .hit_alignment = alignment_,
                        .has_history = history != nullptr};
  out.may_not_be_kept =
      !has_full_groups_ && manager_.options().semantics.retention_interval.has_value();
  if (history != nullptr && !history->is_complete()) {
    out.num_removals_remembered = history->num_keys();
  }
  for (GroupId g = 0; g < manager_.num_groups(); ++g) {
    if (IsLookedUp(g)) out.groups.push_back(ReachOf(g));
  }

  const auto add = [&](MissReason reason, int64_t from, int64_t to, GroupId group = -1) {
    AddRun({.reason = reason, .first_token = from, .num_tokens = to - from, .group = group}, out);
  };
  AddReplayed(num_hit_tokens, num_replayed_tokens, out);
  const int64_t found = num_hit_tokens + num_replayed_tokens;
  const int64_t undropped = HitWithoutDrops(found);
  add(MissReason::kDraftDrop, found, undropped, first_draft_);
  if (has_full_groups_) {
    const int64_t reach = std::max(ReachOfFullGroups(num_hashed_full_), undropped);
    const int64_t aligned = reach - reach % alignment_;
    int64_t allowed = aligned == num_tokens_ ? aligned - alignment_ : aligned;
    // A hit that may be longer may end at an end of a prompt that a shorter one cannot see.
    if (is_partial_) {
      allowed = std::max(undropped,
                         ReachOfFullGroups(std::min(num_tokens_ - 1, num_hashed_full_)));
    }
    for (int64_t token = undropped; token < allowed; token += alignment_) {
      const auto gap = FindWindowGap(token + alignment_);
      KVBLOCKS_CHECK(gap.has_value(), absl::StrCat("nothing keeps a hit from ending at token ",
                                                   token + alignment_, " of ", num_tokens_));
      AddVeto(*gap, token, out);
    }
    add(MissReason::kLastToken, allowed, aligned);
    add(MissReason::kAlignment, aligned, reach);
    AddBehindFullGroups(reach, out);
  } else {
    AddWithoutFullGroups(undropped, out);
  }
  add(MissReason::kLookahead, std::max(num_hashed_full_, undropped), num_full_);
  add(num_full_ == 0 ? MissReason::kShorterThanABlock : MissReason::kPartialBlock, num_full_,
      num_tokens_);
  return out;
}

}  // namespace

absl::StatusOr<LookupExplanation> ExplainLookup(const KvCacheManager& manager,
                                                const Request& request) {
  const KvCacheManagerOptions& options = manager.options();
  ComputedBlocks hits;
  if (absl::Status status = manager.LookUp(request, hits); !status.ok()) return status;
  if (options.enable_caching && !request.skip_reading_prefix_cache()) {
    return LookupExplainer(manager, request)
        .Explain(hits.num_tokens(), hits.num_replayed_tokens());
  }
  const MissReason reason =
      options.enable_caching ? MissReason::kReadingSkipped : MissReason::kCachingOff;
  LookupExplanation explanation{.num_tokens = request.num_tokens(),
                                .has_history = manager.pool().history() != nullptr};
  explanation.missed.push_back({.reason = reason, .num_tokens = request.num_tokens()});
  return explanation;
}

}  // namespace kvblocks
