#include "sim/fleet/prompt_contents.h"

#include <algorithm>
#include <string>
#include <string_view>
#include <utility>

#include "checks/status_macros.h"
#include "kvblocks/check.h"
#include "sim/trace/content_keys.h"

namespace kvblocks::sim {

GroupId PromptContents::GroupOf(const KvCacheManager& manager) {
  for (GroupId g = 0; g < manager.num_groups(); ++g) {
    if (manager.group(g).keeps_all_blocks()) return g;
  }
  return 0;
}

void PromptContents::Hash(const TraceInfo& trace, const SimRequest& request,
                          const KvCacheManager& manager, GroupId group) {
  group_ = group;
  num_prompt_ = request.num_prompt;
  content_.reset();
  blocks_.clear();
  if (manager.hashing() == nullptr || num_prompt_ <= 0) return;
  ContentKeys keys(trace, request.spec, manager.hash_block_size(), std::string_view(),
                   manager.hashing()->num_lookahead_tokens);
  std::vector<BlockHash> hashes;
  keys.AppendBlocks(request.spec, num_prompt_, &hashes);
  const int64_t block_tokens = manager.group(group).block_size();
  const int64_t per_block = block_tokens / manager.hash_block_size();
  const int64_t most = (num_prompt_ - 1) / block_tokens;
  for (int64_t i = 0; i < most; ++i) {
    const auto last = static_cast<size_t>((i + 1) * per_block - 1);
    if (last >= hashes.size()) break;
    blocks_.push_back(hashes[last]);
  }
  auto content = PrefixContent::FromHashes(num_prompt_, std::move(hashes), manager.hashing());
  KVBLOCKS_CHECK(content.ok(), content.status().ToString());
  content_ = *std::move(content);
}

int64_t PromptContents::HeldBy(const KvCacheManager& manager) {
  if (manager.hashing() == nullptr || !content_) return 0;
  const SingleTypeManager& group = manager.group(group_);
  const bool has_whole_blocks = !manager.options().partial_hits;
  // Without its first block nothing of a prompt is found, unless hits end inside blocks or no group
  // keeps all of its blocks.
  if (group.keeps_all_blocks() && has_whole_blocks &&
      (blocks_.empty() || manager.pool().FindCached(blocks_.front(), group_) == kNullBlockId)) {
    return 0;
  }
  // One group of full attention decides alone.
  if (manager.num_groups() == 1 && group.is_cacheable() && group.is_full_type() &&
      !group.is_draft() && has_whole_blocks) {
    lists_.resize(1);
    return group.FindLongestCacheHit(
        {.content = &*content_,
         .groups = {&group_, 1},
         .max_tokens = std::min(num_prompt_ - 1, content_->num_hashed_tokens()),
         .alignment = manager.hit_alignment()},
        lists_);
  }
  const auto probe = manager.NewRequestFromHashes(
      "probe", num_prompt_, {content_->hashes().begin(), content_->hashes().end()});
  KVBLOCKS_CHECK(probe.ok(), probe.status().ToString());
  KVBLOCKS_CHECK_OK(manager.GetComputedBlocks(**probe, found_));
  return found_.num_tokens();
}

absl::Status CheckContents(const ReplicaSet& set, size_t first, size_t count, RouterKind kind,
                           GroupId group) {
  const KvCacheManager& one = set.replica(first).manager();
  if (UsesContent(kind) && one.hashing() == nullptr) {
    return InvalidArgument("router ", std::string(RouterName(kind)),
                           " compares cached blocks, but prefix caching is off");
  }
  const auto block_tokens = [group](const KvCacheManager& manager) {
    return group < manager.num_groups() ? manager.group(group).block_size() : 0;
  };
  for (size_t r = first + 1; r < first + count; ++r) {
    const KvCacheManager& other = set.replica(r).manager();
    const bool both_hash = one.hashing() != nullptr && other.hashing() != nullptr;
    const bool are_alike =
        both_hash ? other.hash_block_size() == one.hash_block_size() &&
                        block_tokens(other) == block_tokens(one) &&
                        other.hashing()->num_lookahead_tokens == one.hashing()->num_lookahead_tokens
                  : other.hashing() == one.hashing();
    if (are_alike) continue;
    return InvalidArgument(set.NameOf(static_cast<int32_t>(r)), " has blocks of ",
                           block_tokens(other), " tokens, hashed by ", other.hash_block_size(),
                           ", and ", set.NameOf(static_cast<int32_t>(first)), " of ",
                           block_tokens(one), ", hashed by ", one.hash_block_size(),
                           ": what one holds could not be compared with the other");
  }
  return absl::OkStatus();
}

}  // namespace kvblocks::sim
