#include "kvblocks/specs/planning/plan_error.h"

#include "kvblocks/checks/field_error.h"

namespace kvblocks {

std::string PlanErrorName(PlanErrorCode code) {
  return "E-" + std::to_string(static_cast<int>(code));
}

PlanError ValueError(std::string_view field, std::string_view got, std::string_view expected) {
  return {.code = PlanErrorCode::kBadValue,
          .message = std::string(FieldError(field, got, expected).message())};
}

}  // namespace kvblocks
