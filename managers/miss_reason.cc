#include "kvblocks/managers/miss_reason.h"

namespace kvblocks {
namespace {

// By MissReason.
constexpr struct {
  std::string_view name, meaning;
} kWords[] = {
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
};
static_assert(std::size(kWords) == kNumMissReasons);

}  // namespace

std::string_view MissReasonName(MissReason reason) {
  return kWords[static_cast<size_t>(reason)].name;
}

std::string_view MissReasonMeaning(MissReason reason) {
  return kWords[static_cast<size_t>(reason)].meaning;
}

}  // namespace kvblocks
