#include "kvblocks/lookup_explanation.h"

#include <algorithm>

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

std::string Describe(const Absence& absence) {
  std::string text(MissReasonName(absence.reason));
  if (absence.num_blocks_since) {
    absl::StrAppend(&text, " ", *absence.num_blocks_since,
                    *absence.num_blocks_since == 1 ? " block ago" : " blocks ago");
  }
  return text;
}

MissCounts LookupExplanation::TokensByReason() const {
  MissCounts tokens = {};
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
  const bool has_first_use = tokens[static_cast<size_t>(MissReason::kFirstUse)] > 0;
  const bool has_not_kept =
      std::any_of(missed.begin(), missed.end(), [](const MissedRun& run) {
        return run.absence && run.absence->reason == MissReason::kNotKept;
      });
  if (num_removals_remembered && (has_first_use || has_not_kept)) {
    const char* what = !has_not_kept    ? "first use"
                       : !has_first_use ? "not kept"
                                        : "first use, not kept";
    absl::StrAppend(&text, "\n  ", what, ": or removed before the last ", *num_removals_remembered,
                    " removals, which are all that is remembered");
  }
  if (has_first_use && may_not_be_kept) {
    absl::StrAppend(&text,
                    "\n  first use: or computed and not kept, since windows and states are kept "
                    "sparsely");
  }
  return text;
}

}  // namespace kvblocks
