// PlanError: why a set of layer caches cannot be planned, and what would help.
//
// Plain data: a code, the sentence for people, and the same numbers as fields for programs. A plan
// that fails reports every error that was found, not only the first.

#ifndef KVBLOCKS_SPECS_PLANNING_PLAN_ERROR_H_
#define KVBLOCKS_SPECS_PLANNING_PLAN_ERROR_H_

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace kvblocks {

enum class PlanErrorCode {
  kBadValue = 1,               // E-1: an option or size out of range
  kConflictingSpecs = 2,       // E-2: one name, two specs
  kUnknownKind = 3,            // E-3: refused when the spec is created or parsed
  kPaddingTooSmall = 4,        // E-4: refused when the spec is created
  kUnknownModelVersion = 5,    // E-5: refused when the spec is created
  kTableWidths = 6,            // E-6: members of one table need rows of different width
  kPagesDoNotEqualise = 7,     // E-7
  kNotOneType = 8,             // E-8: full storage of local layers did not give one type
  kContextParallelWindow = 9,  // E-9
  kNoMemory = 10,              // E-10
  kRequestDoesNotFit = 11,     // E-11
  kNoLengthFits = 12,          // E-12: automatic length, and not even one token fits
  kMatchUnit = 13,             // E-13
  kSinkLength = 14,            // E-14: refused when the spec is created
  kMerge = 15,                 // E-15
  kNotInOneGroup = 16,         // E-16: a layer cache in no group, or twice on one worker
};

// "E-11".
std::string PlanErrorName(PlanErrorCode code);

struct PlanError {
  PlanErrorCode code = PlanErrorCode::kBadValue;
  std::string message = {};

  std::vector<std::string> layers = {};      // names of the layer caches concerned
  std::optional<int> worker = std::nullopt;  // where it happened, if on one worker
  // What was needed and what there was, in the unit of the error: bytes for E-10 to E-12, tokens
  // for block sizes.
  std::optional<int64_t> needed = std::nullopt;
  std::optional<int64_t> available = std::nullopt;
  std::optional<int64_t> longest_length = std::nullopt;  // E-11: tokens that do fit, if any

  friend bool operator==(const PlanError&, const PlanError&) = default;
};

// E-1, "FIELD: got VALUE, expected WHAT".
PlanError ValueError(std::string_view field, std::string_view got, std::string_view expected);

}  // namespace kvblocks

#endif  // KVBLOCKS_SPECS_PLANNING_PLAN_ERROR_H_
