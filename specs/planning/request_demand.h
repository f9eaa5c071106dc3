// DemandOf: what one request asks of one group, as staircases in its length.
//
// Agrees with MaxBlocksPerRequest (specs/request_footprint.h) at every length: that function
// answers for one length, this one for all of them at once.

#ifndef KVBLOCKS_SPECS_PLANNING_REQUEST_DEMAND_H_
#define KVBLOCKS_SPECS_PLANNING_REQUEST_DEMAND_H_

#include <cstdint>
#include <optional>

#include "kvblocks/specs/kv_cache_spec.h"
#include "kvblocks/specs/planning/capacity.h"
#include "kvblocks/specs/request_footprint.h"

namespace kvblocks {

// limits.max_model_len is not used. A `billed_window` bills a spec that keeps every token as if it
// kept this window. The upstream formula knows neither shared in-flight tokens nor sinks. REQUIRES:
// limits.max_in_flight_tokens >= 1, limits.decode_context_parallel >= 1.
GroupDemand DemandOf(const KvCacheSpec& spec, const RequestLimits& limits,
                     BlockCountFormula formula,
                     std::optional<int64_t> billed_window = std::nullopt);

}  // namespace kvblocks

#endif  // KVBLOCKS_SPECS_PLANNING_REQUEST_DEMAND_H_
