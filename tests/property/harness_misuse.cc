// The calls of Harness that must be refused, and leave everything as it was (INV-17, INV-34).

#include <limits>

#include "absl/strings/str_cat.h"
#include "tests/property/harness.h"

namespace kvblocks::property {
namespace {

constexpr int64_t kHuge = std::numeric_limits<int64_t>::max();

}  // namespace

void Harness::ExpectRefused(const char* what, const Snapshot& before, const absl::Status& status) {
  Log(absl::StrCat("misuse: ", what));
  Expect(absl::IsInvalidArgument(status), absl::StrCat(what, " gave ", status.ToString()));
  Expect(before == Take(*manager_, requests_),
         absl::StrCat("INV-17: ", what, " changed something"));
}

// Through Allocate, so that library and oracle are asked the same.
void Harness::Misuse(LiveRequest& request, Numbers numbers) {
  oracle::AllocateParams params;
  params.num_new = 1;
  const LiveRequest* from = nullptr;
  const int64_t computed = request.model.num_computed;
  const int64_t inflight = request.model.num_inflight;
  const oracle::Status status = request.model.status;
  // More tokens than the longest sequence are cut off, but for 0.25 (V-41).
  const int64_t first_clamped = 9;
  const bool clamps = !semantics().is_025;
  switch (const int64_t kind = numbers.Below(12);
          clamps && kind >= first_clamped ? kind - first_clamped : kind) {
    case 0:
      params.num_new = -1 - numbers.Below(3);
      break;
    case 1:
      params.num_lookahead = -1;
      break;
    case 2:
      params.num_external = -1;
      break;
    case 3:
      params.reserved = -1;
      break;
    case 4:
      params.num_new = 0;
      break;
    case 5:
      params.num_new = kHuge;
      break;
    case 6:
      params.num_lookahead = kHuge;
      break;
    case 7:
      params.num_external = kHuge;
      break;
    case 8:
      request.SetStatus(oracle::Status::kFinished);
      break;
    case 9:
      request.SetComputed(scenario_.options.max_model_len + 1, 0);
      break;
    case 10:
      request.SetComputed(-1, 0);
      break;
    default:
      // Refused only for a request that holds blocks, or if it is more than fits the longest
      // sequence.
      params.num_external = scenario_.options.max_model_len + (request.model.is_known ? 0 : 1);
      break;
  }
  const oracle::Outcome outcome = Allocate(request, params, from);
  request.SetComputed(computed, inflight);
  request.SetStatus(status);
  Expect(outcome == oracle::Outcome::kInvalid, "misuse was accepted");
}

void Harness::MisuseLists(LiveRequest& request, Numbers numbers) {
  const Snapshot before = Take(*manager_, requests_);
  const BlockId num_blocks = manager_->pool().num_blocks();
  const auto allocate_with = [&](ComputedBlocks hits) {
    return manager_->AllocateSlots(*request.real, {.num_new_tokens = 1, .computed_blocks = &hits})
        .status();
  };
  const size_t num_groups = static_cast<size_t>(manager_->num_groups());
  ExpectRefused("lists of another number of groups", before,
                allocate_with(ComputedBlocks(HitLists(num_groups + 1), 1)));
  ExpectRefused("negative hit length", before,
                allocate_with(ComputedBlocks(HitLists(num_groups), -1)));
  if (num_groups > 0) {
    const int64_t bs = manager_->group(0).block_size();
    ExpectRefused("lists that are too short", before,
                  allocate_with(ComputedBlocks(HitLists(num_groups), bs)));
    for (BlockId id : {BlockId{-1}, num_blocks, num_blocks - 1}) {
      HitLists lists(num_groups);
      for (size_t g = 0; g < num_groups; ++g) {
        const int64_t size =
            oracle::CeilDiv(bs, manager_->group(static_cast<GroupId>(g)).block_size());
        lists[g].assign(static_cast<size_t>(size), id);
      }
      // The last block may really hold the request's first tokens.
      if (id == num_blocks - 1 &&
          (semantics().trusts_hits || manager_->pool().block(id).has_key())) {
        continue;
      }
      ExpectRefused("hits that hold nothing", before, allocate_with(ComputedBlocks(lists, bs)));
    }
  }
  ExpectRefused("negative trim", before, manager_->RemoveSkippedBlocks(*request.real, -1));
  if (scenario_.options.enable_caching) {
    ExpectRefused("negative CacheBlocks", before, manager_->CacheBlocks(*request.real, -1));
    ExpectRefused("CacheBlocks beyond the tokens", before,
                  manager_->CacheBlocks(*request.real, request.real->num_tokens() + 1));
  }
  const std::vector<BlockId> outside = {num_blocks};
  const std::vector<BlockId> negative = {-1};
  ExpectRefused("eviction outside the pool", before, manager_->EvictBlocks(outside));
  ExpectRefused("eviction of a negative id", before, manager_->EvictBlocks(negative));
  ExpectRefused("pin outside the pool", before, manager_->PinBlocks(outside));
  ExpectRefused("free outside the pool", before, manager_->FreeBlocks(outside));
  ExpectRefused("free of a negative id", before, manager_->FreeBlocks(negative));
  // INV-34: a block that was not pinned or popped may not be freed, nor once more than it was.
  const BlockId id = static_cast<BlockId>(1 + numbers.Below(num_blocks - 1));
  if (id < num_blocks) {
    const std::vector<BlockId> too_often(static_cast<size_t>(outside_[static_cast<size_t>(id)]) + 1,
                                         id);
    ExpectRefused("double free of a list", before, manager_->FreeBlocks(too_often));
  }
  for (BlockId permanent = 1; permanent < num_blocks; ++permanent) {
    if (!manager_->pool().block(permanent).is_permanent) continue;
    const std::vector<BlockId> ids = {permanent};
    ExpectRefused("pin of a permanent block", before, manager_->PinBlocks(ids));
    ExpectRefused("free of a permanent block", before, manager_->FreeBlocks(ids));
  }
  for (BlockId none = 1; none < num_blocks; ++none) {
    if (model_.pool().ClassOf(none) >= 0) continue;
    const std::vector<BlockId> ids = {none};
    ExpectRefused("pin of an id without a page", before, manager_->PinBlocks(ids));
    break;
  }
  ExpectRefused("truncation below zero", before,
                manager_->TruncateComputedBlocks(request.real_hits, -1).status());
}

// A request of another manager.
void Harness::MisuseForeign() {
  const auto other = KvCacheManager::Create(scenario_.config, scenario_.options);
  Expect(other.ok(), other.status().ToString());
  auto stranger =
      (*other)->NewRequest({.id = "stranger", .content = {.token_ids = {1, 2, 3, 4, 5}}});
  Expect(stranger.ok(), stranger.status().ToString());
  const auto slots = (*other)->AllocateSlots(**stranger, {.num_new_tokens = 1});
  Expect(slots.ok(), slots.status().ToString());
  if (!slots->has_value()) return;
  const Snapshot before = Take(*manager_, requests_);
  Request& request = **stranger;
  ExpectRefused("foreign look-up", before, manager_->GetComputedBlocks(request).status());
  ExpectRefused("foreign allocation", before,
                manager_->AllocateSlots(request, {.num_new_tokens = 1}).status());
  ExpectRefused("foreign free", before, manager_->Free(request));
  ExpectRefused("foreign pop", before, manager_->PopBlocksForFree(request).status());
  ExpectRefused("foreign trim", before, manager_->RemoveSkippedBlocks(request, 1));
  ExpectRefused("foreign registration", before, manager_->CacheBlocks(request, 1));
  Expect((*other)->HoldsBlocks(request) && !manager_->HoldsBlocks(request), "foreign request");
  Expect((*other)->Free(request).ok() && (*other)->Free(request).ok(),
         "INV-34: a second free of a request is no error");
}

}  // namespace kvblocks::property
