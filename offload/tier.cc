#include "offload/tier.h"

#include <algorithm>
#include <array>
#include <utility>

#include "absl/strings/string_view.h"
#include "block_pool/eviction/lru_policy.h"
#include "checks/checked_int64.h"
#include "kvblocks/check.h"
#include "kvblocks/eviction.h"

namespace kvblocks::offload {

Tier::Tier(TierOptions options, TierCapacity capacity)
    : options_(std::move(options)),
      capacity_(std::move(capacity)),
      slots_(1),
      policy_(MakeEvictionPolicy(options_.policy, static_cast<int32_t>(capacity_.num_slots) + 1,
                                 *this)),
      fallback_(options_.policy.may_follow_queue
                    ? std::make_unique<LruPolicy>(static_cast<int32_t>(capacity_.num_slots) + 1)
                    : nullptr),
      offered_once_(options_.second_use_memory) {}

bool Tier::WantsOffered(const ChunkKey& key) {
  if (Find(key) != kNoSlot) {
    ++stats_.num_found_stored;
    return false;
  }
  if (options_.write_policy != WritePolicy::kOnSecondUse) return true;
  if (offered_once_.Take(key.Mixed())) return true;
  offered_once_.Add(key.Mixed());
  ++stats_.num_awaiting_second_use;
  return false;
}

SlotId Tier::StartWrite(const Chunk& chunk, std::vector<Evicted>* evicted) {
  const int64_t bytes = BytesOf(chunk.key.group);
  if (!CanHaveRoom(bytes)) {
    ++stats_.num_refused;
    return kNoSlot;
  }
  while (!HasRoom(bytes)) {
    const SlotId victim = Victim();
    evicted->push_back({.chunk = At(victim).chunk, .slot = victim});
    ++stats_.num_evicted;
    table_.erase(key(victim));
    LeaveCandidates(victim);
    Notify([&](EvictionPolicy& policy) { policy.Remove(victim, /*was_evicted=*/true); });
    FreeSlot(victim);
  }
  SlotId slot = kNoSlot;
  if (free_.empty()) {
    slot = static_cast<SlotId>(slots_.size());
    slots_.emplace_back();
  } else {
    slot = free_.back();
    free_.pop_back();
  }
  At(slot) = {.chunk = chunk, .state = State::kWriting};
  ++num_used_;
  bytes_taken_ += bytes;
  table_.emplace(chunk.key, slot);
  return slot;
}

void Tier::FinishWrites(absl::Span<const SlotId> slots, std::vector<SlotId>* readable) {
  scratch_.clear();
  for (const SlotId slot : slots) {
    ++stats_.num_written;
    if (At(slot).is_doomed) {
      FreeSlot(slot);
      continue;
    }
    At(slot).state = State::kReadable;
    Notify([&](EvictionPolicy& policy) {
      policy.Insert(slot, key(slot).Mixed(), chunk(slot).num_tokens);
    });
    scratch_.push_back(slot);
  }
  readable->insert(readable->end(), scratch_.begin(), scratch_.end());
  if (scratch_.empty()) return;
  std::reverse(scratch_.begin(), scratch_.end());
  Notify([&](EvictionPolicy& policy) { policy.Release(scratch_); });
  for (const SlotId slot : scratch_) EnterCandidates(slot);
}

void Tier::FailWrite(SlotId slot) {
  ++stats_.num_failed_writes;
  if (!At(slot).is_doomed) table_.erase(key(slot));
  FreeSlot(slot);
}

void Tier::Protect(absl::Span<const SlotId> slots) {
  for (const SlotId slot : slots) LeaveCandidates(slot);
}

void Tier::Unprotect(absl::Span<const SlotId> slots) {
  for (const SlotId slot : slots) {
    if (IsReadable(slot) && At(slot).num_readers == 0) EnterCandidates(slot);
  }
}

void Tier::AddReader(SlotId slot) {
  LeaveCandidates(slot);
  ++At(slot).num_readers;
}

void Tier::RemoveReader(SlotId slot, bool was_read) {
  Slot& held = At(slot);
  KVBLOCKS_DCHECK(held.num_readers > 0, "a slot loses a reader that it has not");
  --held.num_readers;
  ++(was_read ? stats_.num_read : stats_.num_failed_reads);
  if (was_read && !held.was_read) {
    held.was_read = true;
    ++stats_.num_useful;
  }
  if (held.is_doomed) {
    if (held.num_readers == 0) FreeSlot(slot);
    return;
  }
  if (was_read) policy_->Hit(slot);
  if (held.num_readers == 0) EnterCandidates(slot);
}

void Tier::Touch(absl::Span<const SlotId> slots, bool is_use) {
  if (slots.empty()) return;
  scratch_.assign(slots.rbegin(), slots.rend());
  for (const SlotId slot : scratch_) {
    LeaveCandidates(slot);
    if (is_use) policy_->Hit(slot);
  }
  Notify([&](EvictionPolicy& policy) { policy.Release(scratch_); });
  for (const SlotId slot : scratch_) {
    if (At(slot).num_readers == 0) EnterCandidates(slot);
  }
}

void Tier::Doom(SlotId slot) {
  Slot& held = At(slot);
  if (held.is_doomed) return;
  table_.erase(held.chunk.key);
  if (held.state == State::kReadable) {
    LeaveCandidates(slot);
    Notify([&](EvictionPolicy& policy) { policy.Remove(slot, /*was_evicted=*/false); });
  }
  held.is_doomed = true;
  if (held.state == State::kReadable && held.num_readers == 0) FreeSlot(slot);
}

std::vector<SlotId> Tier::FoundSlots() const {
  std::vector<SlotId> slots;
  slots.reserve(table_.size());
  for (const auto& [key, slot] : table_) slots.push_back(slot);
  std::sort(slots.begin(), slots.end());
  return slots;
}

void Tier::EnterCandidates(SlotId slot) {
  if (At(slot).is_candidate) return;
  At(slot).is_candidate = true;
  ++num_candidates_;
  candidate_bytes_ += BytesOf(key(slot).group);
  Notify([&](EvictionPolicy& policy) { policy.Enter(slot); });
}

void Tier::LeaveCandidates(SlotId slot) {
  if (!At(slot).is_candidate) return;
  At(slot).is_candidate = false;
  --num_candidates_;
  candidate_bytes_ -= BytesOf(key(slot).group);
  Notify([&](EvictionPolicy& policy) { policy.Leave(slot); });
}

void Tier::FreeSlot(SlotId slot) {
  --num_used_;
  bytes_taken_ -= BytesOf(key(slot).group);
  At(slot) = {};
  free_.push_back(slot);
}

absl::Status Tier::CheckInvariants() const {
  const auto broken = [&](const auto&... parts) {
    return BrokenInvariant("tier \"", options_.name, "\": ", parts...);
  };
  int64_t used = 0;
  int64_t bytes = 0;
  int64_t found = 0;
  int64_t candidates = 0;
  for (size_t i = 1; i < slots_.size(); ++i) {
    const Slot& slot = slots_[i];
    const auto id = static_cast<SlotId>(i);
    if (slot.state == State::kFree) continue;
    ++used;
    bytes += BytesOf(slot.chunk.key.group);
    const bool is_found = Find(slot.chunk.key) == id;
    found += is_found;
    if (is_found == slot.is_doomed) {
      return broken("slot ", id, " is ", is_found ? "" : "not ", "found and ",
                    slot.is_doomed ? "" : "not ", "doomed");
    }
    candidates += slot.is_candidate;
    const bool may_go = slot.state == State::kReadable && slot.num_readers == 0 && !slot.is_doomed;
    if (may_go != slot.is_candidate) {
      return broken("slot ", id, " has ", slot.num_readers, " readers and is ",
                    slot.is_candidate ? "" : "not ", "a candidate for eviction");
    }
    if (slot.state == State::kReadable && slot.is_doomed && slot.num_readers == 0) {
      return broken("slot ", id, " is doomed and nobody uses it");
    }
  }
  if (used != num_used_ || bytes != bytes_taken_) {
    return broken(used, " slots of ", bytes, " bytes are used, ", num_used_, " of ", bytes_taken_,
                  " are counted");
  }
  if (candidates != num_candidates_) {
    return broken(candidates, " slots are candidates, ", num_candidates_, " are counted");
  }
  if (found != num_found()) return broken(num_found(), " chunks are found, ", found, " have slots");
  if (used > capacity_.num_slots || (capacity_.bytes > 0 && bytes > capacity_.bytes)) {
    return broken(used, " slots of ", bytes, " bytes exceed the capacity");
  }
  if (static_cast<int64_t>(free_.size()) + used + 1 != static_cast<int64_t>(slots_.size())) {
    return broken(free_.size(), " slots are free and ", used, " used of ", slots_.size() - 1);
  }
  return policy_->CheckInvariants();
}

namespace {

constexpr std::array<std::pair<std::string_view, SlotLayout>, 3> kLayouts = {{
    {"packed", SlotLayout::kPacked},
    {"largest-group", SlotLayout::kLargestGroup},
    {"all-groups", SlotLayout::kAllGroups},
}};
constexpr std::array<std::pair<std::string_view, WritePolicy>, 3> kWritePolicies = {{
    {"write-through", WritePolicy::kWriteThrough},
    {"on-evict", WritePolicy::kOnEvict},
    {"on-second-use", WritePolicy::kOnSecondUse},
}};

template <typename Table>
auto Parse(const Table& table, absl::string_view what, std::string_view name)
    -> absl::StatusOr<decltype(table[0].second)> {
  std::string names;
  for (const auto& [listed, value] : table) {
    if (listed == name) return value;
    absl::StrAppend(&names, names.empty() ? "" : "|", std::string(listed));
  }
  return InvalidArgument(what, " is \"", std::string(name), "\", expected ", names);
}

}  // namespace

absl::StatusOr<SlotLayout> ParseSlotLayout(std::string_view name) {
  return Parse(kLayouts, "layout", name);
}
absl::StatusOr<WritePolicy> ParseWritePolicy(std::string_view name) {
  return Parse(kWritePolicies, "write_policy", name);
}

absl::StatusOr<EvictionPolicyFactory> ParseTierPolicy(std::string_view name) {
  auto policy = ParseEvictionPolicy(name);
  if (policy.ok() && !policy->ranks_retained) return policy;
  return InvalidArgument("policy is \"", std::string(name), "\", expected ",
                         EvictionPolicyNames(/*with_retention=*/false));
}

absl::StatusOr<TierCapacity> ResolveCapacity(const TierOptions& options,
                                             const std::vector<int64_t>& group_block_bytes) {
  const auto refuse = [&](const auto&... parts) {
    return InvalidArgument("tier \"", options.name, "\": ", parts...);
  };
  constexpr int64_t kMostBlocksPerChunk = 1 << 20;
  if (options.blocks_per_chunk < 1 || options.blocks_per_chunk > kMostBlocksPerChunk) {
    return refuse("blocks_per_chunk is ", options.blocks_per_chunk, ", expected 1 to ",
                  kMostBlocksPerChunk);
  }
  if ((options.capacity_bytes > 0) == (options.capacity_slots > 0) || options.capacity_bytes < 0 ||
      options.capacity_slots < 0) {
    return refuse("capacity_bytes is ", options.capacity_bytes, " and capacity_slots ",
                  options.capacity_slots, ", expected one of them above 0 and the other 0");
  }
  if (options.slot_alignment < 1) {
    return refuse("slot_alignment is ", options.slot_alignment, ", expected at least 1");
  }
  if (options.second_use_memory < 1 || options.second_use_memory > kMostSlots) {
    return refuse("second_use_memory is ", options.second_use_memory, ", expected 1 to ",
                  kMostSlots);
  }
  if (options.policy.ranks_retained) {
    return refuse("policy is ", options.policy.name,
                  ", which ranks retained blocks; tiers retain none, so take lru");
  }

  CheckedInt64 all = 0;
  int64_t largest = 0;
  TierCapacity capacity{.bytes = options.capacity_bytes};
  for (const int64_t block_bytes : group_block_bytes) {
    const CheckedInt64 chunk = CheckedInt64(block_bytes) * options.blocks_per_chunk;
    all = all + chunk;
    if (all.overflowed()) return refuse("a chunk of all groups has more than 2^63 bytes");
    largest = std::max(largest, *chunk.value());
    capacity.bytes_taken.push_back(*chunk.value());
  }
  if (largest == 0) return refuse("no group of the model can be hit, so there is nothing to store");
  if (options.capacity_slots > 0) {
    capacity.num_slots = options.capacity_slots;
  } else if (options.layout == SlotLayout::kPacked) {
    int64_t smallest = largest;
    for (const int64_t bytes : capacity.bytes_taken) {
      if (bytes > 0) smallest = std::min(smallest, bytes);
    }
    if (options.capacity_bytes < largest) {
      return refuse("capacity_bytes is ", options.capacity_bytes,
                    ", but a chunk of the largest group takes ", largest);
    }
    capacity.num_slots = options.capacity_bytes / smallest;
  } else {
    const CheckedInt64 slot = RoundUp(
        options.layout == SlotLayout::kAllGroups ? all : CheckedInt64(largest),
        options.slot_alignment);
    if (slot.overflowed() || options.capacity_bytes < *slot.value()) {
      return refuse("capacity_bytes is ", options.capacity_bytes, ", but a slot takes ",
                    slot.value().value_or(-1));
    }
    capacity.num_slots = options.capacity_bytes / *slot.value();
    for (int64_t& bytes : capacity.bytes_taken) {
      if (bytes > 0) bytes = *slot.value();
    }
  }
  if (capacity.num_slots > kMostSlots) {
    return refuse("the capacity comes to ", capacity.num_slots, " chunks, expected at most ",
                  kMostSlots, "; store more blocks per chunk");
  }
  return capacity;
}

}  // namespace kvblocks::offload
