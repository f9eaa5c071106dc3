#include "kvblocks/sim/fleet/prompt_contents.h"

#include <string_view>

#include "kvblocks/block_pool/check.h"
#include "kvblocks/sim/trace/content_keys.h"

namespace kvblocks::sim {

GroupId PromptContents::GroupOf(const KvCacheManager& manager) {
  for (GroupId g = 0; g < manager.num_groups(); ++g) {
    if (manager.group(g).keeps_all_blocks()) return g;
  }
  return 0;
}

bool PromptContents::AreAlike(const KvCacheManager& a, const KvCacheManager& b, GroupId group) {
  const auto block_tokens = [group](const KvCacheManager& manager) {
    return group < manager.num_groups() ? manager.group(group).block_size() : 0;
  };
  if (a.hashing() == nullptr || b.hashing() == nullptr) return a.hashing() == b.hashing();
  return a.hash_block_size() == b.hash_block_size() && block_tokens(a) == block_tokens(b) &&
         a.hashing()->num_lookahead_tokens == b.hashing()->num_lookahead_tokens;
}

void PromptContents::Hash(const TraceInfo& trace, const SimRequest& request,
                          const KvCacheManager& manager, GroupId group) {
  group_ = group;
  num_prompt_ = request.num_prompt;
  hashes_.clear();
  blocks_.clear();
  if (manager.hashing() == nullptr || num_prompt_ <= 0) return;
  ContentKeys keys(trace, request.spec, manager.hash_block_size(), std::string_view(),
                   manager.hashing()->num_lookahead_tokens);
  keys.AppendBlocks(request.spec, num_prompt_, &hashes_);
  const int64_t block_tokens = manager.group(group).block_size();
  const int64_t per_block = block_tokens / manager.hash_block_size();
  const int64_t most = (num_prompt_ - 1) / block_tokens;
  for (int64_t i = 0; i < most; ++i) {
    const auto last = static_cast<size_t>((i + 1) * per_block - 1);
    if (last >= hashes_.size()) break;
    blocks_.push_back(hashes_[last]);
  }
}

int64_t PromptContents::HeldBy(const KvCacheManager& manager) {
  if (manager.hashing() == nullptr || num_prompt_ <= 0) return 0;
  // Without its first block nothing of a prompt is found, unless hits end inside blocks or no group
  // keeps all of its blocks.
  if (manager.group(group_).keeps_all_blocks() && !manager.options().partial_hits &&
      (blocks_.empty() || manager.pool().FindCached(blocks_.front(), group_) == kNullBlockId)) {
    return 0;
  }
  const auto probe = manager.NewRequestFromHashes("probe", num_prompt_, hashes_);
  KVBLOCKS_CHECK(probe.ok(), probe.status().ToString());
  const absl::Status status = manager.GetComputedBlocks(**probe, found_);
  KVBLOCKS_CHECK(status.ok(), status.ToString());
  return found_.num_tokens();
}

}  // namespace kvblocks::sim
