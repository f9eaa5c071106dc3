#include "kvblocks/kv_cache_manager.h"

#include <algorithm>
#include <atomic>
#include <utility>

#include "kvblocks/check.h"

namespace kvblocks {
namespace {

std::atomic<uint64_t> next_request_serial{1};
std::atomic<uint64_t> next_manager_serial{1};

constexpr size_t kFewEntries = size_t{1} << 16;  // 256 KiB of block tables

}  // namespace

KvCacheManager::KvCacheManager(KvCacheConfig config, KvCacheManagerOptions options)
    : config_(std::move(config)),
      options_(std::move(options)),
      serial_(next_manager_serial.fetch_add(1, std::memory_order_relaxed)) {}

KvCacheManager::~KvCacheManager() {
  for (Request* request : holders_) {
    request->holder_ = nullptr;
    request->groups_.clear();
  }
}

absl::StatusOr<std::unique_ptr<Request>> KvCacheManager::NewRequest(RequestOptions options) const {
  if (has_encoder_ && hashing_ != nullptr && options.content.cache_salt.empty()) {
    return InvalidArgument(
        "NewRequest(", options.id,
        "): cache_salt is empty, expected one that names the encoder's input: the cached keys of a "
        "decoder depend on it");
  }
  auto content = PrefixContent::FromTokens(std::move(options.content), hashing_);
  if (!content.ok()) return content.status();
  if (options.report_reused_blocks && !options_.enable_events) {
    return InvalidArgument("NewRequest(", options.id,
                           "): report_reused_blocks is set, expected enable_events with it");
  }
  auto request = std::unique_ptr<Request>(
      new Request(std::move(options.id), *std::move(content), options.skip_reading_prefix_cache));
  request->reports_reused_blocks_ = options.report_reused_blocks;
  request->skip_writing_prefix_cache_ = options.skip_writing_prefix_cache;
  return request;
}

absl::StatusOr<std::unique_ptr<Request>> KvCacheManager::NewRequestFromHashes(
    std::string id, int64_t num_tokens, std::vector<BlockHash> hashes,
    std::optional<std::string> session_id, bool skip_reading_prefix_cache) const {
  if (pool_->compares_tokens()) {
    return InvalidArgument(
        "NewRequestFromHashes(", id,
        "): hits are compared by their tokens (compare_tokens_on_hit), which a request "
        "made from hashes does not have; use NewRequest");
  }
  auto content = PrefixContent::FromHashes(num_tokens, std::move(hashes), hashing_,
                                           std::move(session_id));
  if (!content.ok()) return content.status();
  return std::unique_ptr<Request>(
      new Request(std::move(id), *std::move(content), skip_reading_prefix_cache));
}

Request::Request(std::string id, PrefixContent content, bool skip_reading_prefix_cache)
    : id_(std::move(id)),
      content_(std::move(content)),
      num_prompt_tokens_(content_.num_tokens()),
      skip_reading_prefix_cache_(skip_reading_prefix_cache),
      serial_(next_request_serial.fetch_add(1, std::memory_order_relaxed)) {}

Request::~Request() {
  if (holder_ != nullptr) holder_->Release(*this);
}

// --- Look-up ---

absl::Status KvCacheManager::GetComputedBlocks(const Request& request, ComputedBlocks& out,
                                               int64_t max_tokens) const {
  if (absl::Status status = LookUp(request, out, max_tokens); !status.ok()) return status;
  if (request.reports_reused_blocks_ && out.num_tokens_ > 0) ReportReusedBlocks(request, out);
  return absl::OkStatus();
}

absl::Status KvCacheManager::LookUp(const Request& request, ComputedBlocks& out,
                                    int64_t max_tokens) const {
  if (absl::Status status = CheckOwner(request); !status.ok()) return status;
  if (request.num_tokens() == 0) {
    return InvalidArgument("GetComputedBlocks(", request.id(), "): the request has no tokens");
  }
  out.lists_.resize(static_cast<size_t>(num_groups()));
  out.request_serial_ = request.serial_;
  out.manager_serial_ = serial_;
  out.removal_epoch_ = pool_->removal_epoch();
  out.num_tokens_ = out.shared_prefix_boundary_ = out.num_replayed_tokens_ = 0;
  if (!lookup_ || request.skip_reading_prefix_cache_) {
    for (std::vector<BlockId>& list : out.lists_) list.clear();
    return absl::OkStatus();
  }
  // The logits of the last token are needed, so it is computed in any case.
  const int64_t most = std::clamp<int64_t>(max_tokens, 0, request.num_tokens() - 1);
  PrefixLookup::Hit hit = lookup_->FindLongestCacheHit(request.content_, most, out.lists_);
  if (num_replay_tokens_ > 0 && hit.num_tokens > 0) {
    // The end of the hit is computed again, for the windows that are not cached.
    const int64_t found = hit.num_tokens;
    const int64_t kept = std::max<int64_t>(0, found - num_replay_tokens_);
    hit.num_tokens = lookup_->FindLongestCacheHit(request.content_, kept, out.lists_).num_tokens;
    out.num_replayed_tokens_ = found - hit.num_tokens;
  }
  out.num_tokens_ = hit.num_tokens;
  out.shared_prefix_boundary_ = hit.longest_lookup > hit.num_tokens ? hit.longest_lookup : 0;
  return absl::OkStatus();
}

absl::StatusOr<ComputedBlocks> KvCacheManager::GetComputedBlocks(const Request& request) const {
  ComputedBlocks computed;
  if (absl::Status status = GetComputedBlocks(request, computed); !status.ok()) return status;
  return computed;
}

// --- Allocation ---

// Whether a call is valid and asks for nothing but slots, of which the table then has at most
// `most`. With the request's no-op slots all of them are made and nothing is to be freed or
// registered: a decode step inside a block. Unsigned, so that negative counts are too large.
[[gnu::always_inline]] inline bool KvCacheManager::AsksForSlotsOnly(
    const Request& request, const AllocateSlotsParams& params, int64_t most) const {
  const auto limit = static_cast<uint64_t>(most);
  const auto computed = static_cast<uint64_t>(request.num_computed_tokens_);
  const auto added = static_cast<uint64_t>(params.num_new_tokens);
  const auto lookahead = static_cast<uint64_t>(params.num_lookahead_tokens);
  return computed < limit && added - 1 < limit && lookahead < limit &&
         computed + added + lookahead <= limit && params.computed_blocks == nullptr &&
         params.num_external_computed_tokens == 0 && params.reserved_blocks == 0 &&
         !params.full_sequence_must_fit &&
         (!params.has_scheduled_requests || num_watermark_blocks_ == 0) &&
         request.status_ != RequestStatus::kFinished &&
         static_cast<uint64_t>(request.num_inflight_tokens_) <= uint64_t{kMaxTokens};
}

int64_t KvCacheManager::NoopSlots(const Request& request) const {
  if (!keeps_all_blocks_ || registers_tails_) return 0;
  int64_t slots = options_.max_model_len;
  for (GroupId g = 0; g < num_groups(); ++g) {
    const GroupBlocks& held = request.groups_[static_cast<size_t>(g)];
    const int64_t block_size = group(g).block_size();
    slots = std::min(slots, static_cast<int64_t>(held.table.size()) * block_size);
    if (options_.enable_caching && !request.skip_writing_prefix_cache_) {
      slots = std::min(slots, (held.num_cached + 1) * block_size - 1);
    }
  }
  return slots;
}

absl::StatusOr<std::optional<NewBlocks>> KvCacheManager::AllocateSlots(
    Request& request, const AllocateSlotsParams& params) {
  if (request.holder_ == this) {
    if (AsksForSlotsOnly(request, params, request.noop_slots_)) {
      for (GroupBlocks& held : request.groups_) held.num_new = 0;
      return std::optional<NewBlocks>(NewBlocks(request.groups_));
    }
    if (only_grows_ && AsksForSlotsOnly(request, params, options_.max_model_len)) {
      return Grow(request, params);
    }
  }
  if (absl::Status status = CheckAllocateParams(request, params); !status.ok()) return status;

  const bool known = HoldsBlocks(request);
  static const ComputedBlocks kNoHits;
  const ComputedBlocks& computed =
      known || params.computed_blocks == nullptr ? kNoHits : *params.computed_blocks;
  const bool has_lists = !computed.empty();  // then there is one per group
  const auto hits_of = [&](GroupId g) {
    return has_lists ? computed.blocks(g) : absl::Span<const BlockId>();
  };
  const auto held_by = [&](GroupId g) {
    return known ? &request.groups_[static_cast<size_t>(g)] : nullptr;
  };
  const int64_t total = std::min(
      options_.max_model_len,
      request.num_computed_tokens_ + computed.num_tokens() + params.num_external_computed_tokens);
  const int64_t main = total + params.num_new_tokens;
  const int64_t num_slots = std::min(main + params.num_lookahead_tokens, options_.max_model_len);
  const int64_t processed = std::max<int64_t>(0, total - request.num_inflight_tokens_);
  const bool watermarked =
      params.has_scheduled_requests &&
      (request.status_ == RequestStatus::kWaiting || request.status_ == RequestStatus::kPreempted);
  const int64_t watermark = watermarked ? num_watermark_blocks_ : 0;

  const int64_t main_slots = std::min(main, options_.max_model_len);
  const auto needed_for = [&](int64_t slots, bool apply_cap) {
    // The gate counts known tokens, none of which is lookahead.
    const SlotDemand demand{slots, apply_cap ? slots : main_slots, params.num_encoder_tokens,
                            request.num_prompt_tokens_, total};
    int64_t needed = 0;
    for (GroupId g = 0; g < num_groups(); ++g) {
      needed += group(g).NumBlocksNeeded(held_by(g), demand, hits_of(g), total, apply_cap);
    }
    return needed;
  };
  const bool has_chunks = pool_->chunks() != nullptr;
  if (has_states_ && has_lists && !MayUseHits(computed)) return std::optional<NewBlocks>();
  if (params.full_sequence_must_fit) {
    const int64_t known_slots = std::min(request.num_tokens(), options_.max_model_len);
    if (has_chunks ? !FitsInChunks(request, computed, total,
                                   SlotDemand{known_slots, known_slots, params.num_encoder_tokens,
                                              request.num_prompt_tokens_, total},
                                   /*apply_cap=*/true, watermark, /*reserved=*/0)
                   : needed_for(known_slots, /*apply_cap=*/true) + watermark > pool_->num_free()) {
      return std::optional<NewBlocks>();
    }
  }

  // Trimming first keeps evictions low; steps in flight still read what lies below `processed` +
  // window.
  if (known) {
    for (GroupId g = 0; g < num_groups(); ++g) {
      mutable_group(g).RemoveSkippedBlocks(request.groups_[static_cast<size_t>(g)], processed,
                                           request.num_prompt_tokens_);
    }
  }
  const SlotDemand demand{num_slots, main_slots, params.num_encoder_tokens,
                          request.num_prompt_tokens_, total};
  const int64_t reserved = params.reserved_blocks;
  if (has_chunks
          ? !FitsInChunks(request, computed, total, demand, /*apply_cap=*/false, watermark,
                          reserved)
          : needed_for(num_slots, /*apply_cap=*/false) + watermark > pool_->num_free() - reserved) {
    return std::optional<NewBlocks>();
  }

  if (!known) {
    Adopt(request);
    // First all hits, then all external blocks: else one group's fresh blocks could take another's
    // untouched hits.
    for (GroupId g = 0; g < num_groups(); ++g) {
      mutable_group(g).AdoptHits(request.groups_[static_cast<size_t>(g)], hits_of(g), total);
    }
    if (params.num_external_computed_tokens > 0) {
      for (GroupId g = 0; g < num_groups(); ++g) {
        mutable_group(g).AllocateExternal(request.groups_[static_cast<size_t>(g)], total);
      }
    }
  }
  for (GroupId g = 0; g < num_groups(); ++g) {
    GroupBlocks& held = request.groups_[static_cast<size_t>(g)];
    const size_t num_copies = copies_.size();
    // Behind a hit that ends inside a block there are no external tokens.
    if (params.num_external_computed_tokens == 0) {
      mutable_group(g).TakeCopies(held, !known, demand, total, copies_);
    }
    mutable_group(g).AllocateNew(held, demand);
    // Where a hit ended inside a block, the copy is new to the request.
    if (!known && copies_.size() > num_copies) ++held.num_new;
  }
  if (options_.enable_caching && !params.delay_cache_blocks) {
    // Drafts and lookahead are never registered.
    const int64_t verified = std::min({main, request.num_tokens(), options_.max_model_len});
    RegisterTokens(request, verified);
  }
  request.noop_slots_ = NoopSlots(request);
  return std::optional<NewBlocks>(NewBlocks(request.groups_));
}

// What AllocateSlots comes to where tables keep all their blocks and a request adds slots to its
// own.
std::optional<NewBlocks> KvCacheManager::Grow(Request& request, const AllocateSlotsParams& params) {
  const int64_t main = request.num_computed_tokens_ + params.num_new_tokens;
  const SlotDemand demand{main + params.num_lookahead_tokens, main};
  int64_t needed = 0;
  for (const auto& group : groups_) {
    const GroupBlocks& held = request.groups_[static_cast<size_t>(group->group())];
    needed += std::max<int64_t>(0, group->NumBlocksFor(demand.num_slots) -
                                       static_cast<int64_t>(held.table.size()));
  }
  if (needed > pool_->num_free()) return std::nullopt;
  for (const auto& group : groups_) {
    group->AllocateNew(request.groups_[static_cast<size_t>(group->group())], demand);
  }
  if (options_.enable_caching && !params.delay_cache_blocks) {
    RegisterTokens(request, std::min(main, request.num_tokens()));
  }
  request.noop_slots_ = NoopSlots(request);
  return NewBlocks(request.groups_);
}

void KvCacheManager::RegisterTokens(Request& request, int64_t num_tokens) {
  if (request.skip_writing_prefix_cache_) return;
  const ReuseBoundaries boundaries{.num_prompt_tokens = request.num_prompt_tokens_,
                                   .shared_prefix_boundary = request.shared_prefix_boundary_};
  for (GroupId g = 0; g < num_groups(); ++g) {
    mutable_group(g).CacheBlocks(request.content_, request.groups_[static_cast<size_t>(g)],
                                 num_tokens, boundaries);
  }
}

bool KvCacheManager::MayUseHits(const ComputedBlocks& computed) const {
  for (GroupId g = 0; g < num_groups(); ++g) {
    if (!group(g).MayUseHits(computed.blocks(g), computed.num_tokens())) return false;
  }
  return true;
}

// The same question where groups have page classes; a yes is the pool's promise.
bool KvCacheManager::FitsInChunks(const Request& request, const ComputedBlocks& computed,
                                  int64_t total_computed, const SlotDemand& demand, bool apply_cap,
                                  int64_t kept_chunks, int64_t reserved) {
  const int64_t most = request.longest_length_ > 0
                           ? std::min(request.longest_length_, options_.max_model_len)
                           : options_.max_model_len;
  const SlotDemand longest{most, most, demand.num_encoder_tokens, demand.num_prompt_tokens,
                           demand.num_computed};
  for (GroupId g = 0; g < num_groups(); ++g) {
    page_needs_[static_cast<size_t>(g)] = group(g).PagesNeeded(
        HoldsBlocks(request) ? &request.groups_[static_cast<size_t>(g)] : nullptr, demand, longest,
        computed.empty() ? absl::Span<const BlockId>() : computed.blocks(g), total_computed,
        apply_cap);
  }
  return pool_->Promise(page_needs_, kept_chunks, reserved);
}

void KvCacheManager::Adopt(Request& request) {
  request.holder_ = this;
  request.holder_index_ = holders_.size();
  holders_.push_back(&request);
  if (!spare_groups_.empty()) {
    request.groups_ = std::move(spare_groups_.back());
    spare_groups_.pop_back();
    for (const GroupBlocks& held : request.groups_) spare_capacity_ -= held.table.capacity();
  }
  request.groups_.resize(static_cast<size_t>(num_groups()));
}

// Frees what the request's tables still hold and forgets it.
void KvCacheManager::Release(Request& request) {
  size_t capacity = 0;
  for (GroupId g = 0; g < num_groups(); ++g) {
    GroupBlocks& held = request.groups_[static_cast<size_t>(g)];
    mutable_group(g).Free(held);
    capacity += held.table.capacity();
  }
  // Shared blocks stand in many tables, and windowed groups have null blocks in theirs.
  const auto most = std::max(kFewEntries, static_cast<size_t>(pool_->num_blocks()) *
                                              static_cast<size_t>(1 + num_groups()));
  if (spare_capacity_ + capacity <= most) {
    spare_capacity_ += capacity;
    spare_groups_.push_back(std::move(request.groups_));
  }
  request.groups_.clear();
  request.noop_slots_ = 0;
  holders_[request.holder_index_] = holders_.back();
  holders_[request.holder_index_]->holder_index_ = request.holder_index_;
  holders_.pop_back();
  request.holder_ = nullptr;
}

absl::Status KvCacheManager::Free(Request& request) {
  if (absl::Status status = CheckOwner(request); !status.ok()) return status;
  if (HoldsBlocks(request)) Release(request);
  return absl::OkStatus();
}

absl::StatusOr<std::vector<BlockId>> KvCacheManager::PopBlocksForFree(Request& request) {
  if (absl::Status status = CheckOwner(request); !status.ok()) return status;
  std::vector<BlockId> popped;
  if (!HoldsBlocks(request)) return popped;
  for (GroupBlocks& held : request.groups_) {
    // Nulls at the beginning are left out.
    const auto first = std::find_if(held.table.begin(), held.table.end(),
                                    [](BlockId id) { return id != kNullBlockId; });
    popped.insert(popped.end(), first, held.table.end());
    held = GroupBlocks();
  }
  for (BlockId id : popped) {
    if (id != kNullBlockId) ++outside_references_[id];
  }
  Release(request);
  return popped;
}

absl::Status KvCacheManager::PinBlocks(absl::Span<const BlockId> ids) {
  if (absl::Status status = pool_->CheckTouchable(ids); !status.ok()) return status;
  pool_->Touch(ids);
  for (BlockId id : ids) {
    if (id != kNullBlockId) ++outside_references_[id];
  }
  return absl::OkStatus();
}

absl::Status KvCacheManager::FreeBlocks(absl::Span<const BlockId> ids) {
  // Only references from outside the block tables may be given back this way; a trial run finds the
  // others.
  size_t tried = 0;
  for (; tried < ids.size(); ++tried) {
    if (ids[tried] == kNullBlockId) continue;
    const auto it = outside_references_.find(ids[tried]);
    if (it == outside_references_.end() || it->second == 0) break;
    --it->second;
  }
  if (tried < ids.size()) {
    for (size_t i = 0; i < tried; ++i) {
      if (ids[i] != kNullBlockId) ++outside_references_[ids[i]];
    }
    return InvalidArgument(
        "FreeBlocks: block ", ids[tried],
        " is given back more often than PopBlocksForFree, PinBlocks and TakeBlockCopies handed it "
        "out");
  }
  for (BlockId id : ids) {
    if (const auto it = outside_references_.find(id);
        it != outside_references_.end() && it->second == 0) {
      outside_references_.erase(it);
    }
  }
  pool_->FreeBlocks(ids);
  return absl::OkStatus();
}

std::vector<BlockCopy> KvCacheManager::TakeBlockCopies() {
  // Their order is that in which their blocks will be evicted; vLLM collects them by group (V-116).
  std::stable_sort(copies_.begin(), copies_.end(),
                   [](const BlockCopy& a, const BlockCopy& b) { return a.group < b.group; });
  for (const BlockCopy& copy : copies_) {
    ++outside_references_[copy.source];
    ++outside_references_[copy.target];
  }
  return std::exchange(copies_, {});
}

absl::Status KvCacheManager::ReleaseBlockCopies(absl::Span<const BlockCopy> copies) {
  std::vector<BlockId> ids;
  ids.reserve(2 * copies.size());
  for (const BlockCopy& copy : copies) ids.insert(ids.end(), {copy.source, copy.target});
  return FreeBlocks(ids);
}

absl::Status KvCacheManager::RemoveSkippedBlocks(Request& request, int64_t num_processed_tokens) {
  if (absl::Status status = CheckOwner(request); !status.ok()) return status;
  if (absl::Status status = CheckCount("RemoveSkippedBlocks", request, "num_processed_tokens",
                                       num_processed_tokens, kMaxTokens);
      !status.ok()) {
    return status;
  }
  if (!HoldsBlocks(request)) return absl::OkStatus();
  for (GroupId g = 0; g < num_groups(); ++g) {
    mutable_group(g).RemoveSkippedBlocks(request.groups_[static_cast<size_t>(g)],
                                         num_processed_tokens, request.num_prompt_tokens_);
  }
  return absl::OkStatus();
}

absl::Status KvCacheManager::CacheBlocks(Request& request, int64_t num_tokens) {
  if (absl::Status status = CheckOwner(request); !status.ok()) return status;
  if (!options_.enable_caching) return absl::OkStatus();
  if (request.skip_writing_prefix_cache_) {
    return FailedPrecondition("CacheBlocks(", request.id(),
                              "): the request was made with skip_writing_prefix_cache, so other "
                              "requests must not hit its blocks; make another without it");
  }
  int64_t most = HoldsBlocks(request) ? request.num_tokens() : 0;
  if (HoldsBlocks(request)) {
    for (GroupId g = 0; g < num_groups(); ++g) {
      if (!group(g).is_cacheable()) continue;  // a ring's table, for one, says nothing of tokens
      most = std::min(most,
                      static_cast<int64_t>(GetBlocks(request, g).size()) * group(g).block_size());
    }
  }
  if (absl::Status status = CheckCount("CacheBlocks", request, "num_tokens", num_tokens, most);
      !status.ok()) {
    return status;
  }
  if (!HoldsBlocks(request)) return absl::OkStatus();
  RegisterTokens(request, num_tokens);
  request.noop_slots_ = NoopSlots(request);
  return absl::OkStatus();
}

bool KvCacheManager::ResetPrefixCache() {
  if (!pool_->ResetPrefixCache()) return false;
  stats_.reset = true;
  return true;
}

}  // namespace kvblocks
