// LookupExplainer: does one look-up again, slowly and plainly, to say why it ended where it did.
//
// Takes the hit from the real look-up and asks only what the cache holds; how groups need their
// blocks is stated here in its plainest form, position by position, and shares no code with the
// look-ups. Tokens behind the hit are divided in this order:
//
//   up to the longest hit without the drop of draft groups       draft drop
//   up to where all groups that keep whole prefixes reach        a windowed group vetoes
//   a last block that only the last token keeps out              last token
//   the part of a block of hit_alignment                         alignment
//   behind it, to the last block that has a hash                 what became of the blocks
//   to the last full block                                       look-ahead
//   the rest                                                     partial block
//
// A cached block behind an absent one counts like the absent one. In a model of windowed groups
// only, each block is absent, or cached and vetoed by a gap before it.
//
// Cost: O(tokens / hash block size) probes per group, and per position of a windowed group as many
// as its window has blocks.

#include <algorithm>
#include <optional>

#include "absl/strings/str_cat.h"
#include "kvblocks/block_pool/check.h"
#include "kvblocks/managers/lookup_explanation.h"

namespace kvblocks {
namespace {

class LookupExplainer {
 public:
  // Both must outlive it. REQUIRES: prefix caching is on and the request has tokens.
  LookupExplainer(const KvCacheManager& manager, const Request& request);

  // REQUIRES: num_hit_tokens is what GetComputedBlocks gives.
  LookupExplanation Explain(int64_t num_hit_tokens) const;

 private:
  struct Gap {
    GroupId group;
    int64_t block;
  };

  int64_t BlockTokens(GroupId g) const { return manager_.group(g).block_size(); }
  bool IsFull(GroupId g) const { return manager_.group(g).is_full_type(); }
  bool IsCached(GroupId g, int64_t block) const;
  Absence WhyAbsent(GroupId g, int64_t block) const;
  // The first of the blocks [begin, end) that is not cached, or end.
  int64_t FirstAbsent(GroupId g, int64_t begin, int64_t end) const;
  // The first block that a hit of `end` blocks needs.
  int64_t FirstNeeded(GroupId g, int64_t end) const;
  // The first group of those with a window or chunks that lacks a block for a hit of so many
  // tokens, and that block.
  std::optional<Gap> FindWindowGap(int64_t num_tokens) const;

  int64_t HitWithoutDrops(int64_t num_hit_tokens) const;
  int64_t ReachOfFullGroups() const;
  GroupReach ReachOf(GroupId g) const;

  void AddRun(MissedRun run, LookupExplanation& out) const;
  void AddAbsent(const Gap& gap, int64_t first_token, int64_t num_tokens,
                 LookupExplanation& out) const;
  void AddVeto(const Gap& gap, int64_t first_token, LookupExplanation& out) const;
  void AddBehindFullGroups(int64_t reach, LookupExplanation& out) const;
  void AddWithoutFullGroups(int64_t first_token, LookupExplanation& out) const;

  const KvCacheManager& manager_;
  const PrefixContent& content_;
  const int64_t num_tokens_;
  const int64_t alignment_;
  const int64_t num_full_;         // tokens of blocks of the alignment
  const int64_t num_hashed_full_;  // and of those that can be looked up
  bool has_full_groups_ = false;
  GroupId first_draft_ = -1;
};

LookupExplainer::LookupExplainer(const KvCacheManager& manager, const Request& request)
    : manager_(manager),
      content_(request.content()),
      num_tokens_(request.num_tokens()),
      alignment_(manager.num_groups() == 1 ? manager.group(0).block_size()
                                           : manager.scheduler_block_size()),
      num_full_(num_tokens_ - num_tokens_ % alignment_),
      num_hashed_full_(std::min(
          num_full_, content_.num_hashed_tokens() - content_.num_hashed_tokens() % alignment_)) {
  for (GroupId g = 0; g < manager_.num_groups(); ++g) {
    has_full_groups_ = has_full_groups_ || IsFull(g);
    if (manager_.group(g).draft_margin() > 0 && first_draft_ < 0) first_draft_ = g;
  }
}

bool LookupExplainer::IsCached(GroupId g, int64_t block) const {
  if ((block + 1) * BlockTokens(g) > content_.num_hashed_tokens()) return false;
  const int64_t per_block = BlockTokens(g) / manager_.hash_block_size();
  return manager_.pool().FindCached(content_, block, per_block, g) != kNullBlockId;
}

Absence LookupExplainer::WhyAbsent(GroupId g, int64_t block) const {
  const LookupHistory* history = manager_.pool().history();
  if (history == nullptr) return {.reason = MissReason::kNotCached};
  const int64_t per_block = BlockTokens(g) / manager_.hash_block_size();
  const BlockHash& hash = content_.HashOfBlock(block, per_block);
  if (const auto removal = history->FindRemoval(hash, g)) {
    return {.reason = removal->was_reused ? MissReason::kEvicted : MissReason::kRemoved,
            .num_blocks_since = manager_.pool().num_blocks_taken() - removal->num_blocks_taken};
  }
  if (content_.knows_plain_hashes()) {
    const BlockHash& plain = content_.PlainHashOfBlock(block, per_block);
    if (history->HasOtherVariant(plain, hash) ||
        manager_.pool().FindCached(plain, g) != kNullBlockId ||
        history->FindRemoval(plain, g).has_value()) {
      return {.reason = MissReason::kSaltOrAdapter};
    }
  }
  return {.reason = MissReason::kFirstUse};
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
    if (IsFull(g)) continue;
    const int64_t end = num_tokens / BlockTokens(g);
    const int64_t absent = FirstAbsent(g, FirstNeeded(g, end), end);
    if (absent < end) return Gap{g, absent};
  }
  return std::nullopt;
}

int64_t LookupExplainer::ReachOfFullGroups() const {
  int64_t reach = num_hashed_full_;
  for (GroupId g = 0; g < manager_.num_groups(); ++g) {
    if (!IsFull(g)) continue;
    reach = std::min(reach, FirstAbsent(g, 0, num_hashed_full_ / BlockTokens(g)) * BlockTokens(g));
  }
  return reach;
}

int64_t LookupExplainer::HitWithoutDrops(int64_t num_hit_tokens) const {
  const int64_t most =
      std::min(num_tokens_ - 1, has_full_groups_ ? ReachOfFullGroups() : num_hashed_full_);
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
  if (manager_.options().semantics.drops_last_full_block && manager_.num_groups() > 1) {
    most += group.draft_margin();
  }
  most = std::min(most, content_.num_hashed_tokens());
  GroupReach reach{.group = g, .kind = std::string(group.spec().kind_name())};
  reach.num_hit_tokens = group.FindLongestCacheHit({.content = &content_,
                                                    .groups = alone,
                                                    .max_tokens = most,
                                                    .drop_last_block = group.is_draft(),
                                                    .alignment = alignment_},
                                                   lists);
  const int64_t longer = (reach.num_hit_tokens + alignment_) / BlockTokens(g);
  const int64_t end = longer + (group.draft_margin() > 0 ? 1 : 0);
  if (end * BlockTokens(g) > most) return reach;
  const int64_t absent = FirstAbsent(g, FirstNeeded(g, longer), end);
  if (absent < end) {
    reach.stop_block = absent;
    reach.absence = WhyAbsent(g, absent);
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
  const Absence absence = WhyAbsent(gap.group, gap.block);
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
          .absence = WhyAbsent(gap.group, gap.block)},
         out);
}

void LookupExplainer::AddBehindFullGroups(int64_t reach, LookupExplanation& out) const {
  // Block sizes of all groups are multiples of this step, so it lies in one block of each.
  const int64_t step = manager_.hash_block_size();
  for (int64_t token = reach; token < num_hashed_full_; token += step) {
    GroupId g = 0;
    while (g < manager_.num_groups() && (!IsFull(g) || IsCached(g, token / BlockTokens(g)))) ++g;
    if (g < manager_.num_groups()) {
      AddAbsent({g, token / BlockTokens(g)}, token, step, out);
    } else {
      out.missed.back().num_tokens += step;
    }
  }
}

void LookupExplainer::AddWithoutFullGroups(int64_t first_token, LookupExplanation& out) const {
  for (int64_t token = first_token; token < num_hashed_full_; token += alignment_) {
    std::optional<Gap> here;
    for (GroupId g = 0; g < manager_.num_groups() && !here; ++g) {
      const int64_t end = (token + alignment_) / BlockTokens(g);
      const int64_t absent =
          FirstAbsent(g, std::max(FirstNeeded(g, end), token / BlockTokens(g)), end);
      if (absent < end) here = Gap{g, absent};
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

LookupExplanation LookupExplainer::Explain(int64_t num_hit_tokens) const {
  const LookupHistory* history = manager_.pool().history();
  LookupExplanation out{.num_tokens = num_tokens_,
                        .num_hit_tokens = num_hit_tokens,
                        .hit_alignment = alignment_,
                        .has_history = history != nullptr};
  if (history != nullptr && !history->is_complete()) {
    out.num_removals_remembered = history->num_keys();
  }
  for (GroupId g = 0; g < manager_.num_groups(); ++g) out.groups.push_back(ReachOf(g));

  const auto add = [&](MissReason reason, int64_t from, int64_t to, GroupId group = -1) {
    AddRun({.reason = reason, .first_token = from, .num_tokens = to - from, .group = group}, out);
  };
  const int64_t undropped = HitWithoutDrops(num_hit_tokens);
  add(MissReason::kDraftDrop, num_hit_tokens, undropped, first_draft_);
  if (has_full_groups_) {
    const int64_t reach = ReachOfFullGroups();
    const int64_t aligned = reach - reach % alignment_;
    const int64_t allowed = aligned == num_tokens_ ? aligned - alignment_ : aligned;
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
  add(MissReason::kLookahead, num_hashed_full_, num_full_);
  add(num_full_ == 0 ? MissReason::kShorterThanABlock : MissReason::kPartialBlock, num_full_,
      num_tokens_);
  return out;
}

}  // namespace

absl::StatusOr<LookupExplanation> ExplainLookup(const KvCacheManager& manager,
                                                const Request& request) {
  const KvCacheManagerOptions& options = manager.options();
  if (options.partial_hits && options.enable_caching) {
    return absl::FailedPreconditionError(
        absl::StrCat("ExplainLookup(", request.id(),
                     "): hits may end inside blocks (partial_hits), where they "
                     "cannot be explained"));
  }
  ComputedBlocks hits;
  if (absl::Status status = manager.LookUp(request, hits); !status.ok()) return status;
  if (options.enable_caching && !request.skip_reading_prefix_cache()) {
    return LookupExplainer(manager, request).Explain(hits.num_tokens());
  }
  const MissReason reason =
      options.enable_caching ? MissReason::kReadingSkipped : MissReason::kCachingOff;
  LookupExplanation explanation{.num_tokens = request.num_tokens(),
                                .has_history = manager.pool().history() != nullptr};
  explanation.missed.push_back({.reason = reason, .num_tokens = request.num_tokens()});
  return explanation;
}

}  // namespace kvblocks
