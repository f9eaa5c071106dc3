// DemandOf: what one request asks of one group, as staircases in its length.
//
// Agrees with MaxBlocksPerRequest (specs/request_footprint.h) at every length: that function
// answers for one length, this one for all of them at once.

#ifndef KVBLOCKS_SPECS_PLANNING_REQUEST_DEMAND_H_
#define KVBLOCKS_SPECS_PLANNING_REQUEST_DEMAND_H_

#include <cstdint>
#include <optional>
#include <span>
#include <vector>

#include "kvblocks/specs/kv_cache_spec.h"
#include "kvblocks/specs/planning/capacity.h"
#include "kvblocks/specs/planning/plan_error.h"
#include "kvblocks/specs/request_footprint.h"

namespace kvblocks {

// limits.max_model_len is not used. A `billed_window` bills a spec that keeps every token as if it
// kept this window. The upstream formula knows neither shared in-flight tokens nor sinks. REQUIRES:
// limits.max_in_flight_tokens >= 1, limits.decode_context_parallel >= 1.
GroupDemand DemandOf(const KvCacheSpec& spec, const RequestLimits& limits,
                     BlockCountFormula formula,
                     std::optional<int64_t> billed_window = std::nullopt);

// PlanBlockSizes: in which steps the scheduler counts computed tokens, and how finely prefixes are
// hashed.
//
// The scheduler's step is a multiple of every group's block; the hash block divides every group's
// block. A group with a coarser block takes the hash at its block's end.

struct PlannedBlockSizes {
  int64_t scheduler = 1;
  int64_t hash = 1;

  friend bool operator==(const PlannedBlockSizes&, const PlannedBlockSizes&) = default;
};

// Tokens that one block of the group covers over all context-parallel ranks. States are not split.
int64_t EffectiveBlockSize(const KvCacheSpec& spec, int64_t decode_context_parallel);

// One spec per group. Errors: E-1 if the common multiple is out of range, E-13 if the match unit
// does not divide a group's block size.
std::optional<PlannedBlockSizes> PlanBlockSizes(std::span<const KvCacheSpec> groups,
                                                int64_t decode_context_parallel, bool hashes_needed,
                                                std::optional<int64_t> match_unit,
                                                std::vector<PlanError>* errors);

}  // namespace kvblocks

#endif  // KVBLOCKS_SPECS_PLANNING_REQUEST_DEMAND_H_
