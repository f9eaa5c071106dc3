#include "kvblocks/managers/lookup_explanation.h"

#include "absl/strings/str_cat.h"

namespace kvblocks {
namespace {

absl::string_view View(std::string_view text) { return {text.data(), text.size()}; }

std::string Describe(const MissedRun& run) {
  std::string text(MissReasonName(run.reason));
  if (run.reason == MissReason::kGroupVeto) {
    absl::StrAppend(&text, " by group ", run.group, " at block ", run.block);
    if (run.absence) absl::StrAppend(&text, ", ", Describe(*run.absence));
    return text;
  }
  if (run.absence) text = Describe(*run.absence);
  if (run.block >= 0) absl::StrAppend(&text, " (group ", run.group, " from block ", run.block, ")");
  return text;
}

}  // namespace

std::string_view MissReasonName(MissReason reason) {
  switch (reason) {
    case MissReason::kNeverSeen:
      return "never seen";
    case MissReason::kEvicted:
      return "evicted";
    case MissReason::kRemoved:
      return "removed";
    case MissReason::kOtherExtraKeys:
      return "other salt or adapter";
    case MissReason::kNotCached:
      return "not cached";
    case MissReason::kGroupVeto:
      return "group veto";
    case MissReason::kAlignment:
      return "alignment";
    case MissReason::kDraftDrop:
      return "draft drop";
    case MissReason::kLastToken:
      return "last token";
    case MissReason::kPartialBlock:
      return "partial block";
    case MissReason::kShorterThanABlock:
      return "shorter than a block";
    case MissReason::kReadingSkipped:
      return "reading skipped";
    case MissReason::kCachingOff:
      return "caching off";
  }
  return "unknown";
}

std::string_view MissReasonMeaning(MissReason reason) {
  switch (reason) {
    case MissReason::kNeverSeen:
      return "no block with this content was cached before, as far as is remembered";
    case MissReason::kEvicted:
      return "the block was taken for other content: a larger pool would have kept it";
    case MissReason::kRemoved:
      return "EvictBlocks or ResetPrefixCache took the block out";
    case MissReason::kOtherExtraKeys:
      return "the same tokens are or were cached under another salt, adapter or image only";
    case MissReason::kNotCached:
      return "not in the cache; lookup_history_blocks would tell whether it ever was";
    case MissReason::kGroupVeto:
      return "cached, but another KV-cache group lacks a block that it needs for a hit here";
    case MissReason::kAlignment:
      return "cached, but hits end where the blocks of all groups end";
    case MissReason::kDraftDrop:
      return "cached, but dropped so that a drafter sees hidden states";
    case MissReason::kLastToken:
      return "cached, but the last known token must be computed";
    case MissReason::kPartialBlock:
      return "behind the last full block, which no cache keeps";
    case MissReason::kShorterThanABlock:
      return "all known tokens together fill no block";
    case MissReason::kReadingSkipped:
      return "the request asked not to read the prefix cache";
    case MissReason::kCachingOff:
      return "prefix caching is off";
  }
  return "";
}

std::string Describe(const Absence& absence) {
  std::string text(MissReasonName(absence.reason));
  if (absence.num_blocks_since) {
    absl::StrAppend(&text, " ", *absence.num_blocks_since,
                    *absence.num_blocks_since == 1 ? " block ago" : " blocks ago");
  }
  return text;
}

std::array<int64_t, kNumMissReasons> LookupExplanation::TokensByReason() const {
  std::array<int64_t, kNumMissReasons> tokens = {};
  for (const MissedRun& run : missed) tokens[static_cast<size_t>(run.reason)] += run.num_tokens;
  return tokens;
}

std::string LookupExplanation::ToString() const {
  std::string text = absl::StrCat(num_hit_tokens, " of ", num_tokens, " tokens hit");
  for (const MissedRun& run : missed) {
    absl::StrAppend(&text, "\n  ", run.num_tokens, " from token ", run.first_token, ": ",
                    Describe(run));
  }
  for (const GroupReach& reach : groups) {
    if (groups.size() == 1) break;
    absl::StrAppend(&text, "\n  group ", reach.group, " (", reach.kind, ") alone would hit ",
                    reach.num_hit_tokens);
    if (reach.stop_block) {
      absl::StrAppend(&text, ", stopped at block ", *reach.stop_block, ": ",
                      Describe(*reach.absence));
    }
  }
  const auto tokens = TokensByReason();
  if (tokens[static_cast<size_t>(MissReason::kNotCached)] > 0) {
    absl::StrAppend(&text, "\n  ", View(MissReasonName(MissReason::kNotCached)), ": ",
                    View(MissReasonMeaning(MissReason::kNotCached)));
  }
  if (num_removals_remembered && tokens[static_cast<size_t>(MissReason::kNeverSeen)] > 0) {
    absl::StrAppend(&text, "\n  never seen: or removed before the last ", *num_removals_remembered,
                    " removals, which are all that is remembered");
  }
  return text;
}

}  // namespace kvblocks
