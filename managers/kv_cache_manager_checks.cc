// KvCacheManager's checks of what a caller hands in. A refused call has changed nothing.

#include <algorithm>
#include <utility>

#include "kvblocks/check.h"
#include "kvblocks/kv_cache_manager.h"

namespace kvblocks {
namespace {

constexpr absl::string_view kAllocate = "AllocateSlots";

template <typename... Parts>
absl::Status Refuse(const Request& request, const Parts&... what) {
  return InvalidArgument(kAllocate, "(", request.id(), "): ", what...);
}

}  // namespace

absl::Status KvCacheManager::CheckOwner(const Request& request) const {
  if (request.holder_ == this ||
      (request.holder_ == nullptr && request.content_.hashing() == hashing_)) {
    return absl::OkStatus();
  }
  return InvalidArgument("request ", request.id(),
                         " belongs to another KvCacheManager; make it with this one's NewRequest");
}

absl::Status KvCacheManager::CheckCount(absl::string_view call, const Request& request,
                                        absl::string_view what, int64_t value, int64_t most) {
  if (value >= 0 && value <= most) return absl::OkStatus();
  return InvalidArgument(call, "(", request.id(), "): ", what, " is ", value, ", expected 0 to ",
                         most);
}

absl::Status KvCacheManager::CheckAllocateParams(const Request& request,
                                                 const AllocateSlotsParams& params) const {
  if (absl::Status status = CheckOwner(request); !status.ok()) return status;
  const int64_t hit_length =
      params.computed_blocks == nullptr ? 0 : params.computed_blocks->num_tokens();
  // Where no bit from the limit's on is set in any of them, all are in range.
  const auto bits = static_cast<uint64_t>(
      params.num_new_tokens | params.num_lookahead_tokens | params.num_external_computed_tokens |
      params.num_encoder_tokens | params.reserved_blocks | request.num_computed_tokens_ |
      request.num_inflight_tokens_ | hit_length);
  if (bits >= uint64_t{kMaxTokens}) [[unlikely]] {
    const std::pair<const char*, int64_t> counts[] = {
        {"num_new_tokens", params.num_new_tokens},
        {"num_lookahead_tokens", params.num_lookahead_tokens},
        {"num_external_computed_tokens", params.num_external_computed_tokens},
        {"num_encoder_tokens", params.num_encoder_tokens},
        {"reserved_blocks", params.reserved_blocks},
        {"num_computed_tokens", request.num_computed_tokens_},
        {"num_inflight_tokens", request.num_inflight_tokens_},
        {"hit length", hit_length}};
    for (const auto& [what, count] : counts) {
      absl::Status status = CheckCount(kAllocate, request, what, count, kMaxTokens);
      if (!status.ok()) return status;
    }
  }
  if (params.num_new_tokens == 0 && params.num_external_computed_tokens == 0 &&
      (hit_length == 0 || options_.semantics.is_025)) {
    return Refuse(request, "num_new_tokens is 0 without ",
                  options_.semantics.is_025 ? "" : "hits or ",
                  "external tokens, expected at least 1");
  }
  if (request.status_ == RequestStatus::kFinished) {
    return Refuse(request, "the request is finished");
  }
  const bool has_hits =
      params.computed_blocks != nullptr &&
      (params.computed_blocks->num_tokens() != 0 || !params.computed_blocks->empty());
  if (HoldsBlocks(request)) {
    if (has_hits || params.num_external_computed_tokens > 0) {
      return Refuse(request,
                    "hits and external tokens are for a request that holds no blocks yet; this one "
                    "does");
    }
  }
  if (!HoldsBlocks(request) && request.num_computed_tokens_ > 0) {
    return Refuse(request, "num_computed_tokens is ", request.num_computed_tokens_,
                  ", expected 0: the request holds no blocks (MarkPreempted resets it)");
  }
  if (absl::Status status = CheckEncoder(request, params); !status.ok()) return status;
  const int64_t hit_tokens = has_hits ? params.computed_blocks->num_tokens() : 0;
  if (has_partial_hits_ && hit_tokens > 0) {
    if (hit_tokens % hit_alignment() != 0) {
      return Refuse(request, "the hit has ", hit_tokens,
                    " tokens, expected a multiple of the hash block size ", hit_alignment());
    }
    for (GroupId g = 0; g < num_groups() && params.num_external_computed_tokens > 0; ++g) {
      if (!group(g).is_cacheable()) continue;
      if (hit_tokens % group(g).block_size() == 0) continue;
      return Refuse(request, "external tokens behind a hit of ", hit_tokens,
                    " tokens, which ends inside a block of group ", g,
                    " that is yet to be copied; truncate the hit to whole blocks, or leave it out");
    }
  }
  const int64_t total =
      request.num_computed_tokens_ + hit_tokens + params.num_external_computed_tokens;
  if (total > options_.max_model_len && options_.semantics.is_025) {
    return Refuse(request, total,
                  " tokens computed, hit and external together exceed max_model_len ",
                  options_.max_model_len);
  }
  if (!has_hits) return absl::OkStatus();
  return CheckHits(request, *params.computed_blocks, std::min(total, options_.max_model_len));
}

absl::Status KvCacheManager::CheckEncoder(const Request& request,
                                          const AllocateSlotsParams& params) const {
  for (GroupId g = 0; g < num_groups(); ++g) {
    if (group(g).spec().kind() != KvCacheSpecKind::kCrossAttention) continue;
    if (params.num_external_computed_tokens > 0) {
      return Refuse(request, "num_external_computed_tokens is ",
                    params.num_external_computed_tokens,
                    ", expected 0 with the cross-attention group ", g);
    }
    int64_t most = options_.max_encoder_tokens.value_or(options_.max_model_len);
    const int64_t held = static_cast<int64_t>(GetBlocks(request, g).size());
    if (held > 0) most = std::min(most, held * group(g).block_size());
    if (absl::Status status =
            CheckCount(kAllocate, request, "num_encoder_tokens", params.num_encoder_tokens, most);
        !status.ok()) {
      return status;
    }
  }
  return absl::OkStatus();
}

absl::Status KvCacheManager::CheckHits(const Request& request, const ComputedBlocks& computed,
                                       int64_t total_computed) const {
  if (computed.num_groups() != static_cast<size_t>(num_groups())) {
    return Refuse(request, "hits for ", computed.num_groups(), " groups, expected ", num_groups());
  }
  // Between the look-up and now no block has lost its key, so every hit is as good as it was.
  const bool fresh = computed.request_serial_ == request.serial_ &&
                     computed.manager_serial_ == serial_ &&
                     computed.removal_epoch_ == pool_->removal_epoch();
  for (GroupId g = 0; g < num_groups(); ++g) {
    const SingleTypeManager& manager = group(g);
    const absl::Span<const BlockId> hits = computed.blocks(g);
    const int64_t size = static_cast<int64_t>(hits.size());
    const BlockSize block_size(manager.block_size());
    if (!manager.is_cacheable() && options_.enable_caching) {
      if (size > 0) return Refuse(request, size, " hit blocks in group ", g, ", which has none");
      continue;
    }
    if (size != block_size.CeilDiv(computed.num_tokens())) {
      return Refuse(request, size, " hit blocks in group ", g, ", expected ",
                    block_size.CeilDiv(computed.num_tokens()), " for ", computed.num_tokens(),
                    " tokens");
    }
    const int64_t first_needed =
        std::min(size, block_size.FloorDiv(manager.NumUnneededTokens(total_computed)));
    const int64_t per_block =
        options_.enable_caching ? manager.block_size() / hash_block_size() : 0;
    for (int64_t i = fresh ? first_needed : 0; i < size; ++i) {
      const BlockId id = hits[static_cast<size_t>(i)];
      if (id == kNullBlockId) {
        if (i >= first_needed) {
          return Refuse(request, "group ", g, " has no block at position ", i,
                        " although the next tokens need its data");
        }
        continue;
      }
      if (fresh) break;  // nulls come before real blocks in every list a look-up made
      if (id < 0 || id >= pool_->num_blocks()) {
        return Refuse(request, "hit block ", id, " of group ", g,
                      " is outside the pool's blocks 0..", pool_->num_blocks() - 1);
      }
      if (options_.semantics.trusts_hits) {
        const PageChunks* const chunks = pool_->chunks();
        if (chunks == nullptr || chunks->ClassOfPage(id) == chunks->ClassOfGroup(g)) continue;
        return Refuse(request, "hit block ", id, " of group ", g, " at position ", i,
                      " no longer is a page of that group's size; look up again");
      }
      const bool ends_inside =
          has_partial_hits_ && i + 1 == size && computed.num_tokens() % manager.block_size() != 0;
      if (ends_inside && HoldsHitTail(request, computed, g)) continue;
      const bool has_hash = !ends_inside && per_block > 0 &&
                            (i + 1) * manager.block_size() <= request.content_.num_hashed_tokens();
      if (!has_hash || pool_->block(id).key_group != g ||
          !(pool_->hash(id) == request.content_.HashOfBlock(i, per_block)) ||
          !pool_->Matches(id, request.content_, i, per_block)) {
        return Refuse(request, "hit block ", id, " of group ", g, " at position ", i,
                      " no longer holds that content; look up again");
      }
    }
  }
  return absl::OkStatus();
}

// A hit may end inside its last block, which then holds the request's content up to there or,
// except for a state, further.
bool KvCacheManager::HoldsHitTail(const Request& request, const ComputedBlocks& computed,
                                  GroupId g) const {
  const BlockId id = computed.blocks(g).back();
  const int64_t block_size = group(g).block_size();
  const int64_t begin = computed.num_tokens() / block_size * block_size;
  if (pool_->block(id).key_group != g ||
      !pool_->StartsWith(id, request.content_, begin, computed.num_tokens())) {
    return false;
  }
  const int64_t most = std::min(request.content_.num_hashed_tokens(),
                                begin + block_size);
  for (int64_t end = computed.num_tokens(); end <= most; end += hash_block_size()) {
    const int64_t last = end / hash_block_size() - 1;
    if (pool_->HasKey(id, request.content_.HashOfBlock(last, 1), g)) return true;
    if (!group(g).is_full_type()) break;
  }
  return false;
}

}  // namespace kvblocks
