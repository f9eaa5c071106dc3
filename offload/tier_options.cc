#include "kvblocks/offload/tier_options.h"

#include <algorithm>
#include <array>
#include <utility>

#include "absl/strings/string_view.h"
#include "kvblocks/block_pool/eviction/eviction_policies.h"
#include "kvblocks/checks/checked_int64.h"
#include "kvblocks/checks/status_text.h"

namespace kvblocks::offload {
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

template <typename Table, typename Value>
std::string_view NameOf(const Table& table, Value value) {
  for (const auto& [name, listed] : table) {
    if (listed == value) return name;
  }
  return "?";
}

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

std::string_view SlotLayoutName(SlotLayout layout) { return NameOf(kLayouts, layout); }
std::string_view WritePolicyName(WritePolicy policy) { return NameOf(kWritePolicies, policy); }

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
    return refuse("policy is ", options.policy.name, ", which ranks retained blocks; tiers retain none, so take lru");
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
