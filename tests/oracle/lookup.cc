#include "tests/oracle/manager.h"

#include <algorithm>
#include <optional>
#include <set>

namespace kvblocks::oracle {
namespace {

// Groups with equal specs, looked up together.
struct LookupGroup {
  std::vector<GroupId> members;
  bool is_draft = false;
  std::optional<Found> found;
};

BlockId CachedBlock(const Pool& pool, const LookupQuery& query, int64_t block_size, GroupId group,
                    int64_t position) {
  const int64_t last = (position + 1) * block_size / query.hash_block_size - 1;
  if (last >= static_cast<int64_t>(query.prefix_names->size())) return kNullBlockId;
  return pool.Find({query.prefix_names->at(static_cast<size_t>(last)), group});
}

IsCached CachedInAll(const Pool& pool, const LookupQuery& query, int64_t block_size,
                     const std::vector<GroupId>& members) {
  return [&pool, query, block_size, members](int64_t position) {
    return std::all_of(members.begin(), members.end(), [&](GroupId group) {
      return CachedBlock(pool, query, block_size, group, position) != kNullBlockId;
    });
  };
}

BlockId CachedPrefix(const Pool& pool, const LookupQuery& query, GroupId group, int64_t tokens) {
  return CachedBlock(pool, query, query.hash_block_size, group, tokens / query.hash_block_size - 1);
}

IsPrefixCached PrefixCachedInAll(const Pool& pool, const LookupQuery& query,
                                 const std::vector<GroupId>& members) {
  return [&pool, query, members](int64_t tokens) {
    return std::all_of(members.begin(), members.end(), [&](GroupId group) {
      return CachedPrefix(pool, query, group, tokens) != kNullBlockId;
    });
  };
}

std::vector<LookupGroup> GroupsBySpec(const std::vector<GroupRules>& groups) {  // BM-82
  std::vector<LookupGroup> result;
  for (GroupId g = 0; g < static_cast<GroupId>(groups.size()); ++g) {
    const GroupRules& rules = groups[static_cast<size_t>(g)];
    if (!rules.is_looked_up) continue;
    auto same = std::find_if(result.begin(), result.end(), [&](const LookupGroup& entry) {
      return groups[static_cast<size_t>(entry.members.front())].spec == rules.spec;
    });
    if (same == result.end()) same = result.insert(result.end(), LookupGroup());
    same->members.push_back(g);
    same->is_draft = same->is_draft || rules.is_draft;
  }
  std::stable_partition(result.begin(), result.end(), [&](const LookupGroup& entry) {
    return groups[static_cast<size_t>(entry.members.front())].is_full();
  });
  return result;
}

}  // namespace

Hits FindHits(const Pool& pool, const std::vector<GroupRules>& groups, const LookupQuery& query) {
  std::vector<LookupGroup> entries = GroupsBySpec(groups);
  int64_t candidate = query.max_tokens;
  int64_t longest = 0;
  std::set<const LookupGroup*> verified;
  while (true) {  // BM-83
    int64_t current = candidate;
    for (LookupGroup& entry : entries) {
      const GroupRules& rules = groups[static_cast<size_t>(entry.members.front())];
      if (rules.is_full() && entry.found) {
        current = std::min(current, entry.found->tokens);
        continue;
      }
      const bool drop = entry.is_draft && !verified.count(&entry);
      const int64_t limit =
          drop ? std::min(current + rules.DraftMargin(), query.max_with_drop) : current;
      entry.found = rules.is_fine()
                        ? rules.FindFine(PrefixCachedInAll(pool, query, entry.members), limit, drop)
                        : rules.Find(CachedInAll(pool, query, rules.block_size(), entry.members),
                                     limit, drop, query.alignment);
      longest = std::max(longest, entry.found->tokens);
      if (drop) {
        verified.insert(&entry);
      } else if (entry.found->tokens < current) {
        verified.clear();
      }
      current = entry.found->tokens;
    }
    const bool shrank = current < candidate;
    candidate = current;
    const bool is_full_and_other =
        entries.size() == 2 && groups[static_cast<size_t>(entries[0].members.front())].is_full();
    if (!shrank || groups.size() == 1 || is_full_and_other) break;
  }

  Hits hits;
  hits.tokens = candidate;
  hits.boundary = groups.size() > 1 && longest > candidate ? longest : 0;
  hits.lists.resize(groups.size());
  for (const LookupGroup& entry : entries) {
    const int64_t block_size = groups[static_cast<size_t>(entry.members.front())].block_size();
    for (GroupId group : entry.members) {
      for (int64_t i = 0; i < CeilDiv(candidate, block_size); ++i) {
        const bool is_tail = entry.found->tail > 0 && i == entry.found->tail / block_size;
        hits.lists[static_cast<size_t>(group)].push_back(
            i < entry.found->first_real ? kNullBlockId
            : is_tail                   ? CachedPrefix(pool, query, group, entry.found->tail)
                                        : CachedBlock(pool, query, block_size, group, i));
      }
    }
  }
  return hits;
}

int64_t LongestCommonHit(const Pool& pool, const std::vector<GroupRules>& groups,
                         const LookupQuery& query) {
  for (int64_t tokens = query.max_tokens; tokens > 0; --tokens) {
    bool all = true;
    for (const LookupGroup& entry : GroupsBySpec(groups)) {
      const GroupRules& rules = groups[static_cast<size_t>(entry.members.front())];
      all =
          all && (rules.is_fine()
                      ? rules.CanServeFine(PrefixCachedInAll(pool, query, entry.members), tokens,
                                           query.max_tokens)
                      : rules.CanServe(CachedInAll(pool, query, rules.block_size(), entry.members),
                                       tokens, query.alignment));
    }
    if (all) return tokens;
  }
  return 0;
}

}  // namespace kvblocks::oracle
