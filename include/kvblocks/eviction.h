// Eviction policies that a pool may be given, beside lru, and what callers ask to be kept.

#ifndef KVBLOCKS_EVICTION_H_
#define KVBLOCKS_EVICTION_H_

#include <cstdint>
#include <string>
#include <string_view>

#include "absl/status/statusor.h"
#include "kvblocks/eviction_policy.h"

// The eviction policies that come with kvblocks, by name.
//
//   options.eviction_policy = *ParseEvictionPolicy("hazard");
//
//   lru       least recently released: the pool's own queue
//   arc       adaptive replacement: recency and frequency, balanced by what was evicted too early
//   hazard    lowest chance of reuse per unit of time, as learnt so far (see HazardPolicy)
//   priority  lowest priority of retention, then least recently released
//   ttl       earliest end of retention or last release
//
// Any of them, lru included, lets blocks be retained. docs/policies.md has what they bring;
// examples/custom_eviction_policy.cc brings another one.

namespace kvblocks {

// A policy of your own.
EvictionPolicyFactory CustomEvictionPolicy(std::string name, EvictionPolicyFactory::Make make);

// InvalidArgument, with the list of names, for another one.
absl::StatusOr<EvictionPolicyFactory> ParseEvictionPolicy(std::string_view name);
// "arc|hazard|..." for usage texts and errors; without those that rank retained blocks for caches
// that retain none.
std::string EvictionPolicyNames(bool with_retention = true);

// The priority of a block that is not retained, where retained ones compete with it (eviction
// policy "priority").
inline constexpr int32_t kUnretainedPriority = 35;

struct BlockRetention {
  int32_t priority = kUnretainedPriority;
  int64_t expires_at = kNeverExpires;
};

// Blocks since construction. Every retention that began goes on or ended in one of four ways:
// num_begun = retained now + displaced + expired + taken + removed.
struct RetentionTotals {
  int64_t num_begun = 0;
  int64_t num_renewed = 0;
  int64_t num_refused = 0;
  int64_t num_displaced = 0;
  int64_t num_expired = 0;
  int64_t num_taken = 0;    // reused all the same, since nothing else was free
  int64_t num_removed = 0;  // taken out of the cache by EvictBlocks or a reset
  int64_t num_hits = 0;     // a request got a block that was retained
  int64_t peak = 0;         // most retained at once

  friend bool operator==(const RetentionTotals&, const RetentionTotals&) = default;
};

// Of KvCacheManager::retention(): the blocks that are retained now, the most that may be, and what
// became of all.
int32_t NumRetained(const Retention& retention);
int32_t MostRetained(const Retention& retention);
const RetentionTotals& TotalsOf(const Retention& retention);

}  // namespace kvblocks

#endif  // KVBLOCKS_EVICTION_H_
