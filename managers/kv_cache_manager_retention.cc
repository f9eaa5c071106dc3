// KvCacheManager: retention of prefixes.

#include <algorithm>

#include "kvblocks/checks/status_text.h"
#include "kvblocks/managers/kv_cache_manager.h"

namespace kvblocks {

absl::StatusOr<RetainOutcome> KvCacheManager::Retain(const Request& request,
                                                     const RetainParams& params) {
  const auto refuse = [&request](const auto&... what) {
    return InvalidArgument("Retain(", request.id(), "): ", what...);
  };
  if (pool_->retention() == nullptr) {
    return refuse("max_retained_share is ", options_.max_retained_share,
                  ", with which no block of this pool can be retained; raise it");
  }
  const int64_t num_tokens = params.num_tokens.value_or(request.num_tokens());
  if (num_tokens < 0 || num_tokens > request.num_tokens()) {
    return refuse("num_tokens is ", num_tokens, ", expected 0 to ", request.num_tokens(),
                  ", the tokens of the request");
  }
  if (params.priority < 1 || params.priority > kHighestPriority) {
    return refuse("priority is ", params.priority, ", expected 1 to ", kHighestPriority);
  }
  if (params.min_uses < 1) {
    return refuse("min_uses is ", params.min_uses, ", expected at least 1");
  }
  if (params.ttl && *params.ttl < 1) {
    return refuse("ttl is ", *params.ttl, ", expected at least 1; leave it out to keep for good");
  }
  const PrefixContent& content = request.content();
  const int64_t num_hashed = std::min(num_tokens, content.num_hashed_tokens());
  retained_.clear();
  for (GroupId g = 0; g < num_groups(); ++g) {
    if (!group(g).is_cacheable()) continue;
    const int64_t block_size = group(g).block_size();
    const int64_t per_block = block_size / hash_block_size_;
    const bool is_chained = pool_->eviction_order()->IsChained(g);
    for (int64_t end = block_size; end <= num_hashed; end += block_size) {
      const BlockId id = pool_->FindCached(content, end / block_size - 1, per_block, g);
      const bool is_wanted = id != kNullBlockId &&
                             pool_->eviction_order()->NumUses(id) >= params.min_uses;
      if (!is_wanted && is_chained) break;
      if (is_wanted) retained_.emplace_back(end, id);
    }
  }
  // Where the cap cuts the prefix off, it does so for all groups at about the same place.
  std::stable_sort(retained_.begin(), retained_.end(),
                   [](const auto& a, const auto& b) { return a.first < b.first; });
  retained_ids_.clear();
  for (const auto& [end, id] : retained_) retained_ids_.push_back(id);
  const int64_t expires_at =
      params.ttl && *params.ttl < kNeverExpires - now_ ? now_ + *params.ttl : kNeverExpires;
  return pool_->Retain(retained_ids_, params.priority, expires_at);
}

absl::Status KvCacheManager::AdvanceTime(int64_t now) {
  if (pool_->retention() == nullptr) {
    return InvalidArgument("AdvanceTime: max_retained_share is ", options_.max_retained_share,
                           ", with which no block of this pool can be retained; raise it");
  }
  if (now < now_) {
    return InvalidArgument("AdvanceTime: now is ", now, ", expected at least ", now_,
                           ", the time told last");
  }
  now_ = now;
  pool_->AdvanceTime(now);
  return absl::OkStatus();
}

}  // namespace kvblocks
