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
//   behind it, to the last full block                            what became of the blocks
//   the rest                                                     partial block
//
// A cached block behind an absent one counts like the absent one. In a model of windowed groups
// only, each block is absent, or cached and vetoed by a gap before it.
//
// Cost: O(tokens / hash block size) probes per group, and per position of a windowed group as many
// as its window has blocks. Used by KvCacheManager::ExplainLookup only.

#ifndef KVBLOCKS_MANAGERS_LOOKUP_EXPLAINER_H_
#define KVBLOCKS_MANAGERS_LOOKUP_EXPLAINER_H_

#include <cstdint>
#include <optional>

#include "kvblocks/managers/kv_cache_manager.h"
#include "kvblocks/managers/lookup_explanation.h"

namespace kvblocks {

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
  const int64_t num_full_;  // tokens of blocks of the alignment
  bool has_full_groups_ = false;
  GroupId first_draft_ = -1;
};

}  // namespace kvblocks

#endif  // KVBLOCKS_MANAGERS_LOOKUP_EXPLAINER_H_
