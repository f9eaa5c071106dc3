// The words for a MissReason: a name, and what it means in a phrase for a table.

#ifndef KVBLOCKS_MANAGERS_EXPLAIN_MISS_REASON_WORDS_H_
#define KVBLOCKS_MANAGERS_EXPLAIN_MISS_REASON_WORDS_H_

#include <algorithm>
#include <cstddef>
#include <string_view>

#include "kvblocks/managers/miss_reason.h"

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

}  // namespace kvblocks

#endif  // KVBLOCKS_MANAGERS_EXPLAIN_MISS_REASON_WORDS_H_
