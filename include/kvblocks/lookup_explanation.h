// Why a look-up hit no more tokens.

#ifndef KVBLOCKS_LOOKUP_EXPLANATION_H_
#define KVBLOCKS_LOOKUP_EXPLANATION_H_

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/statusor.h"
#include "kvblocks/kv_cache_manager.h"

// The words for a MissReason: a name, and what it means in a phrase for a table.

namespace kvblocks {

// By MissReason.
inline constexpr struct {
  std::string_view name, meaning;
} kMissReasonWords[kNumMissReasons + 1] = {
    {"first use", "never computed before: no cache could help"},
    {"evicted", "computed before: a larger pool would help"},
    {"removed", "taken out by EvictBlocks or ResetPrefixCache"},
    {"salt/adapter", "cached under another salt or adapter only"},
    {"not cached", "not in the cache; lookup_history_blocks would tell whether it ever was"},
    {"not yet computed", "another request is about to compute it"},
    {"short", "under one block shared: use smaller blocks"},
    {"group veto", "cached in some KV-cache groups only"},
    {"alignment", "cached, but hits end where the blocks of all groups end"},
    {"draft drop", "cached, but dropped for the drafter"},
    {"last token", "cached, but the last token must be computed"},
    {"partial block", "behind the last full block, which no cache keeps"},
    {"shorter than a block", "all known tokens together fill no block"},
    {"reading skipped", "the request asked not to read the prefix cache"},
    {"caching off", "prefix caching is off"},
    {"look-ahead", "full, but its hash covers tokens that are not there yet"},
    {"not kept", "computed before, but not kept for reuse"},
    {"unknown", ""},
};

// "group veto", and what it means in a phrase for a table.
constexpr std::string_view MissReasonName(MissReason reason) {
  return kMissReasonWords[std::min(static_cast<size_t>(reason), kNumMissReasons)].name;
}
constexpr std::string_view MissReasonMeaning(MissReason reason) {
  return kMissReasonWords[std::min(static_cast<size_t>(reason), kNumMissReasons)].meaning;
}

// LookupExplanation: where the tokens of a look-up went - how many were hit, and why each of the
// others was not.
//
//   auto why = ExplainLookup(*manager, *request);       // before AllocateSlots registers anything
//   std::puts(why->ToString().c_str());
//   const MissCounts missed = why->TokensByReason();
//   manager->RecordPrefixCacheStats(*request, hits.num_tokens(), &missed);   // counters per reason
//
// Always: the runs of `missed` are in order, without gaps, from token num_hit_tokens to num_tokens,
// and each token has one reason.
//
// A plain value that may be copied and kept. It describes the cache at the moment of the call. Show
// it to operators only: it says whether another sender's tokens are or were in the cache.

// Why one block of one group is not in the cache: kFirstUse, kEvicted, kRemoved, kSaltOrAdapter,
// kNotKept or kNotCached. With partial hits: why not up to the end of the hit.
struct Absence {
  MissReason reason = MissReason::kNotCached;
  // kEvicted, kRemoved: blocks the pool has handed out since, those of the call that took the block
  // included. Roughly the most blocks by which the pool was too small.
  std::optional<int64_t> num_blocks_since = std::nullopt;

  friend bool operator==(const Absence&, const Absence&) = default;
};

// Consecutive tokens that were missed for one reason.
struct MissedRun {
  MissReason reason = MissReason::kNotCached;
  int64_t first_token = 0;
  int64_t num_tokens = 0;
  // The group and its block table position that decided, where one did: the block that is absent,
  // or, with kGroupVeto, the one that the group lacks for a hit up to the end of the first block of
  // the run. -1: none.
  GroupId group = -1;
  int64_t block = -1;
  // Why that block is absent.
  std::optional<Absence> absence = std::nullopt;

  friend bool operator==(const MissedRun&, const MissedRun&) = default;
};

// What one group would hit if it were the only one, under the same rules.
struct GroupReach {
  GroupId group = 0;
  std::string kind = {};  // of its spec, "sliding_window"
  int64_t num_hit_tokens = 0;
  // The first block that a longer hit lacks; empty if only the length of the request ends the hit.
  std::optional<int64_t> stop_block = std::nullopt;
  std::optional<Absence> absence = std::nullopt;  // of that block

  friend bool operator==(const GroupReach&, const GroupReach&) = default;
};

struct LookupExplanation {
  int64_t num_tokens = 0;      // known tokens: prompt and accepted output
  int64_t num_hit_tokens = 0;  // as GetComputedBlocks gives it
  int64_t hit_alignment = 0;   // hits are multiples of it; 0: caching is off
  std::vector<MissedRun> missed = {};
  std::vector<GroupReach> groups = {};  // one per group; none if nothing was looked up
  bool has_history = false;             // lookup_history_blocks is set
  // Removals are forgotten, so kFirstUse and kNotKept mean: not within the last so many removals.
  std::optional<int64_t> num_removals_remembered = std::nullopt;
  // No group keeps whole prefixes, and with a retention interval not all that is computed is kept:
  // so kFirstUse may mean that.
  bool may_not_be_kept = false;

  MissCounts TokensByReason() const;
  // Several lines, for people.
  std::string ToString() const;

  friend bool operator==(const LookupExplanation&, const LookupExplanation&) = default;
};

// "evicted 120 blocks ago", "first use".
std::string Describe(const Absence& absence);

// Does the look-up of GetComputedBlocks again, slowly, and says where the tokens went that it does
// not hit. O(tokens) probes. Errors as GetComputedBlocks.
absl::StatusOr<LookupExplanation> ExplainLookup(const KvCacheManager& manager,
                                                const Request& request);

}  // namespace kvblocks

#endif  // KVBLOCKS_LOOKUP_EXPLANATION_H_
