// TierOptions: one level of memory behind the device's - how much it holds, in what shape, what
// enters it and what leaves it first.
//
// Tiers are listed from the fastest to the slowest. A tier stores chunks: `blocks_per_chunk`
// consecutive device blocks of one KV-cache group, named by the hash of the last one (so by all
// content up to there) and by the group.

#ifndef KVBLOCKS_OFFLOAD_TIER_OPTIONS_H_
#define KVBLOCKS_OFFLOAD_TIER_OPTIONS_H_

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "kvblocks/block_pool/eviction_policy.h"

namespace kvblocks::offload {

// What the tier's events say of it, as vLLM's do.
enum class TierMedium : uint8_t { kCpu, kStorage };
enum class TierLocality : uint8_t { kLocal, kRemote };

constexpr std::string_view TierMediumName(TierMedium medium) {
  return medium == TierMedium::kCpu ? "CPU" : "STORAGE";
}
constexpr std::string_view TierLocalityName(TierLocality locality) {
  return locality == TierLocality::kLocal ? "LOCAL" : "REMOTE";
}

// How the bytes of a tier are cut up. With one group all are the same.
enum class SlotLayout : uint8_t {
  // A chunk takes the bytes of its group. Nothing is lost, and slots have no fixed place: whoever
  // keeps the bytes places them.
  kPacked,
  // Fixed slots, each as large as the largest group's chunk.
  kLargestGroup,
  // Fixed slots, each with room for a chunk of every group, although a chunk is of one group: the
  // layout of vLLM's CPU offloading where groups do not share their memory. Of G equal groups it
  // holds a G-th (vllm#56871).
  kAllGroups,
};

enum class WritePolicy : uint8_t {
  kWriteThrough,  // what was computed, at once
  kOnEvict,       // what the next faster level evicts
  kOnSecondUse,   // what was computed, when it is offered for the second time
};

std::string_view SlotLayoutName(SlotLayout layout);    // "packed", "largest-group", "all-groups"
std::string_view WritePolicyName(WritePolicy policy);  // "write-through", "on-evict", ...
// InvalidArgument, with the list of names, for another one.
absl::StatusOr<SlotLayout> ParseSlotLayout(std::string_view name);
absl::StatusOr<WritePolicy> ParseWritePolicy(std::string_view name);
// Of the policies that tiers take: they retain nothing, so none that ranks retained blocks.
absl::StatusOr<EvictionPolicyFactory> ParseTierPolicy(std::string_view name);

struct TierOptions {
  std::string name = "host";
  // Exactly one of both is above 0. With slots, every chunk takes one of them, whatever its bytes.
  int64_t capacity_bytes = 0;
  int64_t capacity_slots = 0;
  int64_t blocks_per_chunk = 1;
  SlotLayout layout = SlotLayout::kPacked;
  // Fixed slots are rounded up to a multiple of it.
  int64_t slot_alignment = 1;
  EvictionPolicyFactory policy = {};
  WritePolicy write_policy = WritePolicy::kWriteThrough;
  // What was loaded leaves the tier.
  bool exclusive = false;
  bool prompt_only = false;
  // Of kOnSecondUse: how many chunks that were offered once are remembered.
  int64_t second_use_memory = 64'000;
  TierMedium medium = TierMedium::kCpu;
  TierLocality locality = TierLocality::kLocal;
};

// A tier cannot have more chunks than this: 2^27, which take about 25 GB of memory in the index.
inline constexpr int64_t kMostSlots = int64_t{1} << 27;

// What the capacity comes to for chunks of these bytes (one number per group, 0: not stored).
struct TierCapacity {
  int64_t num_slots = 0;
  int64_t bytes = 0;                      // 0: only slots count
  std::vector<int64_t> bytes_taken = {};  // per group, by one chunk
};
// InvalidArgument that names the tier, the field, the value and the limit.
absl::StatusOr<TierCapacity> ResolveCapacity(const TierOptions& options,
                                             const std::vector<int64_t>& group_block_bytes);

}  // namespace kvblocks::offload

#endif  // KVBLOCKS_OFFLOAD_TIER_OPTIONS_H_
