#include "kvblocks/specs/planning/plan_error.h"

namespace kvblocks {

std::string PlanErrorName(PlanErrorCode code) {
  return "E-" + std::to_string(static_cast<int>(code));
}

}  // namespace kvblocks
