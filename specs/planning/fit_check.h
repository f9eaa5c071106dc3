// FitLength: the configured length if a request of it fits every worker, or the longest that does
// if the length is automatic.

#ifndef KVBLOCKS_SPECS_PLANNING_FIT_CHECK_H_
#define KVBLOCKS_SPECS_PLANNING_FIT_CHECK_H_

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "kvblocks/specs/planning/plan.h"
#include "kvblocks/specs/planning/plan_error.h"
#include "kvblocks/specs/planning/plan_options.h"
#include "kvblocks/specs/planning/pool_sizing.h"

namespace kvblocks {

struct FittedLength {
  int64_t length = 0;
  std::optional<int> limiting_worker = std::nullopt;  // where an automatic length was cut
};

// `plan` has its policy, layout, capacity and the sizes of its workers. Errors: E-11 per worker on
// which the length does not fit, E-12 per worker on which no length fits.
std::optional<FittedLength> FitLength(const Plan& plan, const PoolSize& pool,
                                      const PlanOptions& options, std::vector<PlanError>* errors);

// "16.00 GiB"; "131,072".
std::string Gibibytes(int64_t bytes);
std::string Grouped(int64_t number);

}  // namespace kvblocks

#endif  // KVBLOCKS_SPECS_PLANNING_FIT_CHECK_H_
