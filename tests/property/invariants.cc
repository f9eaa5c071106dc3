#include "tests/property/invariants.h"

#include <algorithm>

#include "absl/strings/str_cat.h"

namespace kvblocks::property {
namespace {

template <typename... Parts>
std::string Broken(int number, const Parts&... parts) {
  return absl::StrCat("INV-", number, ": ", parts...);
}

// Positions that tokens after the first n need.
int64_t FirstNeeded(const SingleTypeManager& group, int64_t n) {
  const KvCacheSpec& spec = group.spec();
  if (spec.options().bounded_replay && !group.is_cacheable()) return n / group.block_size();
  if (const auto window = spec.sliding_window()) {
    return std::max<int64_t>(0, n - *window + 1) / group.block_size();
  }
  if (const auto chunk = spec.attention_chunk_size())
    return n / *chunk * *chunk / group.block_size();
  if (spec.kind() == KvCacheSpecKind::kMamba) {
    return std::max<int64_t>(0, n - 1) / group.block_size();
  }
  return 0;
}

std::string BrokenTableOf(const KvCacheManager& manager, const LiveRequest& request, GroupId g) {
  const auto table = manager.GetBlocks(*request.real, g);
  const SingleTypeManager& group = manager.group(g);
  const int64_t size = static_cast<int64_t>(table.size());
  const auto at = [&](int64_t i) { return table[static_cast<size_t>(i)]; };
  int64_t nulls = 0;
  while (nulls < size && at(nulls) == kNullBlockId) ++nulls;
  if (group.is_full_type() && nulls > 0 && !group.spec().output_window())
    return Broken(19, "null in a full table of group ", g);
  const auto output_window = group.spec().output_window();
  for (int64_t i = output_window ? 0 : nulls; i < size; ++i) {
    const BlockId id = at(i);
    if (id == kNullBlockId && group.spec().kind() == KvCacheSpecKind::kMamba) continue;
    if (id == kNullBlockId && output_window) {
      if (i * group.block_size() < request.model.num_prompt ||
          (i + 1) * group.block_size() > request.max_processed - *output_window) {
        return Broken(14, "position ", i, " of group ", g, " is null with ", request.max_processed,
                      " tokens processed behind a prompt of ", request.model.num_prompt);
      }
      continue;
    }
    if (id == kNullBlockId) return Broken(19, "null behind real blocks in group ", g);
    if (std::count(table.begin(), table.end(), id) != 1) {
      return Broken(6, "block ", id, " twice in one table");
    }
  }
  const auto* mamba = group.spec().get_if<MambaSpec>();
  const bool skips_positions =
      mamba != nullptr && mamba->options().cache_mode == MambaCacheMode::kAlign;
  if (manager.HoldsBlocks(*request.real) && !skips_positions && !output_window &&
      nulls > FirstNeeded(group, request.max_processed)) {
    return Broken(14, nulls, " nulls in group ", g, " of ", request.real->id(), " although only ",
                  request.max_processed, " tokens are processed");
  }
  return "";
}

// Whether a block has a key for all that a hit of `tokens` needs of its position: where the hit
// ends inside it, up to there or further, but a state is that of its last token.
bool HoldsPosition(const KvCacheManager& manager, const Request& request, GroupId g, BlockId id,
                   int64_t position, int64_t tokens) {
  const int64_t block_end = (position + 1) * manager.group(g).block_size();
  const int64_t unit = request.content().hash_block_size();
  int64_t last = block_end;
  if (tokens < block_end && !manager.group(g).is_full_type()) last = tokens;
  for (int64_t end = std::min(tokens, block_end); end <= last; end += unit) {
    const auto hash = request.content().HashOfBlockAt(end / unit - 1, unit);
    if (!hash.ok()) break;
    if (manager.pool().HasKey(id, *hash, g)) return true;
  }
  return false;
}

}  // namespace

std::string BrokenInvariant(const KvCacheManager& manager,
                            const std::vector<LiveRequest>& requests) {
  for (const LiveRequest& request : requests) {
    for (GroupId g = 0; g < manager.num_groups(); ++g) {
      if (std::string broken = BrokenTableOf(manager, request, g); !broken.empty()) return broken;
    }
  }
  // Those of the pool and its references.
  const absl::Status status = manager.CheckInvariants();
  return status.ok() ? "" : absl::StrCat("CheckInvariants: ", status.ToString());
}

std::string BrokenHitInvariant(const KvCacheManager& manager, const Request& request,
                               const ComputedBlocks& hits) {
  const int64_t tokens = hits.num_tokens();
  int64_t alignment =
      manager.num_groups() == 1 ? manager.group(0).block_size() : manager.scheduler_block_size();
  if (manager.options().partial_hits && manager.options().enable_caching) {
    alignment = manager.hash_block_size();
  }
  if (tokens > request.num_tokens() - 1) return Broken(12, "hit ", tokens, " is too long");
  if (tokens % alignment != 0) return Broken(12, "hit ", tokens, " is not aligned");
  for (GroupId g = 0; g < manager.num_groups(); ++g) {
    const auto list = hits.blocks(g);
    const int64_t bs = manager.group(g).block_size();
    if (manager.options().enable_caching && !manager.group(g).is_cacheable()) {
      if (!list.empty()) return Broken(12, "hits in group ", g, ", which nobody can hit");
      continue;
    }
    if (static_cast<int64_t>(list.size()) != oracle::CeilDiv(tokens, bs)) {
      return Broken(12, "list of ", list.size(), " blocks in group ", g, " for ", tokens);
    }
    for (int64_t i = 0; i < static_cast<int64_t>(list.size()); ++i) {
      const BlockId id = list[static_cast<size_t>(i)];
      if (id == kNullBlockId) {
        if (i >= FirstNeeded(manager.group(g), tokens)) {
          return Broken(13, "position ", i, " of group ", g, " is null in a hit of ", tokens);
        }
        continue;
      }
      if (!HoldsPosition(manager, request, g, id, i, tokens)) {
        return Broken(12, "hit block ", id, " has no key for position ", i, " of group ", g,
                      " in a hit of ", tokens);
      }
    }
  }
  return "";
}

std::string BrokenTableInvariant(const KvCacheManager& manager, const Tables& before,
                                 const Tables& after) {
  for (size_t g = 0; g < before.size(); ++g) {
    if (after[g].size() < before[g].size()) return Broken(18, "a table of group ", g, " shrank");
    const KvCacheSpec& spec = manager.group(static_cast<GroupId>(g)).spec();
    const bool has_checkpoints = spec.options().num_checkpoint_blocks > 0;
    const int64_t scratch = has_checkpoints ? spec.options().num_speculative_blocks : 0;
    for (size_t i = 0; i < before[g].size(); ++i) {
      if (static_cast<int64_t>(i) + scratch >= static_cast<int64_t>(before[g].size())) break;
      if (before[g][i] == kNullBlockId && after[g][i] != kNullBlockId) {
        return Broken(19, "null at position ", i, " of group ", g, " became ", after[g][i]);
      }
      if (after[g][i] != before[g][i] && after[g][i] != kNullBlockId) {
        return Broken(20, "position ", i, " of group ", g, " changed from ", before[g][i], " to ",
                      after[g][i]);
      }
    }
  }
  return "";
}

}  // namespace kvblocks::property
