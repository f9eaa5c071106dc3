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

#ifndef KVBLOCKS_BLOCK_POOL_EVICTION_EVICTION_POLICIES_H_
#define KVBLOCKS_BLOCK_POOL_EVICTION_EVICTION_POLICIES_H_

#include <string>
#include <string_view>

#include "absl/status/statusor.h"
#include "kvblocks/block_pool/eviction_policy.h"

namespace kvblocks {

// A policy of your own.
EvictionPolicyFactory CustomEvictionPolicy(std::string name, EvictionPolicyFactory::Make make);

// InvalidArgument, with the list of names, for another one.
absl::StatusOr<EvictionPolicyFactory> ParseEvictionPolicy(std::string_view name);
// "arc|hazard|..." for usage texts and errors; without those that rank retained blocks for caches
// that retain none.
std::string EvictionPolicyNames(bool with_retention = true);

}  // namespace kvblocks

#endif  // KVBLOCKS_BLOCK_POOL_EVICTION_EVICTION_POLICIES_H_
