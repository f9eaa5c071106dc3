// Harness: the calls that give blocks back or change what is cached, in library and oracle.

#include <algorithm>
#include <limits>

#include "absl/strings/str_cat.h"
#include "tests/property/harness.h"

namespace kvblocks::property {

void Harness::Free(size_t index, bool preempt) {
  LiveRequest& request = requests_[index];
  const Tables tables = manager_->GetBlockIds(*request.real);
  Log(absl::StrCat(preempt ? "preempt " : "free ", request.real->id()));
  if (!preempt && index % 3 == 2) {
    request.real.reset();  // destroying a request frees it
  } else {
    Expect(manager_->Free(*request.real).ok(), "free refused");
  }
  model_.Free(request.model);
  // INV-23: of one table the keyed blocks that became free stand in the queue deepest first.
  const std::vector<BlockId> queue = manager_->pool().WalkFree();
  for (const std::vector<BlockId>& table : tables) {
    auto last = queue.begin();
    for (auto id = table.rbegin(); id != table.rend(); ++id) {
      const KvCacheBlock& block = manager_->pool().block(*id);
      if (*id == kNullBlockId || !block.has_key() || block.ref_count > 0) continue;
      last = std::find(last, queue.end(), *id);
      Expect(last != queue.end(), "INV-23: keyed blocks were not freed deepest first");
    }
  }
  request.max_processed = request.max_slots = 0;
  if (!preempt) {
    requests_.erase(requests_.begin() + static_cast<int64_t>(index));
    return;
  }
  request.real->MarkPreempted();
  request.model.num_computed = request.model.num_inflight = 0;
  request.model.status = oracle::Status::kPreempted;
  ++request.model.num_preemptions;
}

void Harness::Pop(LiveRequest& request) {
  const auto real = manager_->PopBlocksForFree(*request.real);
  const std::vector<BlockId> model = model_.Pop(request.model);
  Log(absl::StrCat("pop ", request.real->id(), " -> ", Show(model)));
  Expect(real.ok() && *real == model, "popped list");
  for (BlockId id : model) {
    if (id != kNullBlockId) ++outside_[static_cast<size_t>(id)];
  }
  popped_.push_back(model);
  request.SetComputed(0, 0);
  request.max_processed = request.max_slots = 0;
}

void Harness::FreePopped(Numbers numbers) {
  if (popped_.empty()) return;
  const auto it = popped_.begin() + numbers.Below(static_cast<int64_t>(popped_.size()));
  std::vector<BlockId> ids = *it;
  popped_.erase(it);
  if (!numbers.OneIn(4)) std::reverse(ids.begin(), ids.end());
  Log(absl::StrCat("free list ", Show(ids)));
  Expect(manager_->FreeBlocks(ids).ok() && model_.FreeBlocks(ids), "list refused");
  for (BlockId id : ids) {
    if (id != kNullBlockId) --outside_[static_cast<size_t>(id)];
  }
}

void Harness::TakeCopies() {
  const std::vector<BlockCopy> real = manager_->TakeBlockCopies();
  const std::vector<oracle::Copy> model = model_.TakeCopies();
  Expect(real.size() == model.size(), "number of copies");
  std::vector<BlockId> ids;
  for (size_t i = 0; i < model.size(); ++i) {
    Expect(real[i] == BlockCopy{model[i].group, model[i].source, model[i].target},
           absl::StrCat("copy ", real[i].source, " to ", real[i].target, " of group ",
                        real[i].group, ", oracle ", model[i].source, " to ", model[i].target));
    ids.push_back(model[i].source);
    ids.push_back(model[i].target);
  }
  if (ids.empty()) return;
  Log(absl::StrCat("copies ", Show(ids)));
  for (BlockId id : ids) ++outside_[static_cast<size_t>(id)];
  popped_.push_back(ids);
}

void Harness::Pin(LiveRequest& request, Numbers numbers) {
  std::vector<BlockId> ids;
  for (const auto& table : manager_->GetBlockIds(*request.real)) {
    ids.insert(ids.end(), table.begin(), table.end());
  }
  // Also blocks without references, cached or not.
  const int64_t extra = numbers.Below(3);
  for (int64_t i = 0; i < extra; ++i) {
    const BlockId id = static_cast<BlockId>(numbers.Below(scenario_.config.num_blocks));
    if (model_.pool().ClassOf(std::max<BlockId>(id, 1)) < 0) continue;
    if (!manager_->pool().block(id).is_permanent) ids.push_back(id);
  }
  Log(absl::StrCat("pin ", Show(ids)));
  Expect(manager_->PinBlocks(ids).ok(), "pin refused");
  model_.Pin(ids);
  for (BlockId id : ids) {
    if (id != kNullBlockId) ++outside_[static_cast<size_t>(id)];
  }
  popped_.push_back(ids);
}

void Harness::Trim(LiveRequest& request, Numbers numbers) {
  const int64_t processed = request.model.num_computed - request.model.num_inflight;
  const int64_t n = numbers.Below(std::max<int64_t>(processed, 0) + 1);
  Log(absl::StrCat("trim ", request.real->id(), " at ", n));
  Expect(manager_->RemoveSkippedBlocks(*request.real, n).ok() &&
             model_.RemoveSkippedBlocks(request.model, n),
         "trim refused");
  request.max_processed = std::max(request.max_processed, n);
}

void Harness::CacheBlocks(LiveRequest& request, Numbers numbers) {
  const int64_t n = numbers.Below(request.model.content.num_tokens() + 2);
  const Snapshot before = Take(*manager_, requests_);
  const absl::Status status = manager_->CacheBlocks(*request.real, n);
  Log(absl::StrCat("cache ", request.real->id(), " to ", n, " -> ", status.ok()));
  Expect(status.ok() == model_.CacheBlocks(request.model, n),
         absl::StrCat("refused on one side: ", status.ToString()));
  if (!status.ok()) ExpectRefused("CacheBlocks", before, status);
}

void Harness::Evict(Numbers numbers) {
  std::vector<BlockId> ids;
  const int64_t count = 1 + numbers.Below(5);
  std::vector<BlockId> keyed;
  for (BlockId id = 1; id < manager_->pool().num_blocks(); ++id) {
    if (manager_->pool().block(id).has_key()) keyed.push_back(id);
  }
  for (int64_t i = 0; i < count; ++i) {
    if (!keyed.empty() && !numbers.OneIn(4)) {
      ids.push_back(keyed[static_cast<size_t>(numbers.Below(static_cast<int64_t>(keyed.size())))]);
    } else {
      ids.push_back(static_cast<BlockId>(numbers.Below(scenario_.config.num_blocks)));
    }
  }
  Log(absl::StrCat("evict ", Show(ids)));
  Expect(manager_->EvictBlocks(ids).ok() && model_.Evict(ids), "eviction refused");
}

void Harness::Reset() {
  const Snapshot before = Take(*manager_, requests_);
  bool in_use = false;
  for (BlockId id = 1; id < manager_->pool().num_blocks(); ++id) {
    const KvCacheBlock& block = manager_->pool().block(id);
    in_use = in_use || (block.ref_count > 0 && !block.is_permanent);
  }
  const bool done = manager_->ResetPrefixCache();
  Log(absl::StrCat("reset -> ", done));
  Expect(done == model_.Reset() && done == !in_use, "INV-26: reset");
  const Snapshot after = Take(*manager_, requests_);
  if (done) {
    Expect(manager_->pool().num_keys() == 0, "INV-26: after reset");
    if (before.page_classes.empty()) {
      Expect(after.queue == before.queue, "INV-26: queue after reset");
    } else {
      ExpectOnlyPermanentChunks();
    }
  } else {
    Expect(after == before, "INV-26: a refused reset changed something");
  }
}

// After a reset, only chunks with sink blocks are lent.
void Harness::ExpectOnlyPermanentChunks() const {
  const BlockPool& pool = manager_->pool();
  for (int32_t chunk = 0; chunk < pool.chunks()->num_chunks(); ++chunk) {
    bool has_permanent = false;
    for (int32_t i = 0; i < pool.chunks()->ids_per_chunk(); ++i) {
      has_permanent |= pool.block(1 + chunk * pool.chunks()->ids_per_chunk() + i).is_permanent;
    }
    Expect((pool.chunks()->ClassOfChunk(chunk) >= 0) == has_permanent,
           absl::StrCat("INV-26: chunk ", chunk, " after reset"));
  }
}

void Harness::Truncate(LiveRequest& request, Numbers numbers) {
  const int64_t n = numbers.Below(request.model_hits.tokens + 3);
  const auto real = manager_->TruncateComputedBlocks(request.real_hits, n);
  const auto model = model_.Truncate(request.model_hits, n);
  Log(absl::StrCat("truncate hits of ", request.real->id(), " to ", n, " -> ", real.ok()));
  if (request.model_hits.lists.empty()) return;  // no look-up yet
  Expect(real.ok() == model.has_value(), "truncation refused on one side");
  if (!real.ok()) {
    Expect(absl::IsInvalidArgument(real.status()), real.status().ToString());
    return;
  }
  for (GroupId g = 0; g < manager_->num_groups(); ++g) {
    const std::vector<BlockId> list(real->blocks(g).begin(), real->blocks(g).end());
    Expect(list == model->lists[static_cast<size_t>(g)], "truncated list");
  }
  request.real_hits = *real;
  request.model_hits = *model;
}

// The calls of Harness that must be refused, and leave everything as it was (INV-17, INV-34).

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
  // INV-34: a block that nobody pinned or popped may not be freed, nor once more than it was.
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
