// How a refused value is reported: "FIELD: got VALUE, expected WHAT (HINT)", with status code
// InvalidArgument.
//
// The field's name also travels as a payload of the status, so that a caller which knows where the
// value was written (a configuration file's line and column, for one) can point there without
// parsing the message.

#ifndef KVBLOCKS_CHECKS_FIELD_ERROR_H_
#define KVBLOCKS_CHECKS_FIELD_ERROR_H_

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

#include "absl/status/status.h"
#include "absl/status/statusor.h"

namespace kvblocks {

absl::Status FieldError(std::string_view field, std::string_view got, std::string_view expected,
                        std::string_view hint = "");

// The field that `status` complains about, if it was made by FieldError.
std::optional<std::string> FieldOfError(const absl::Status& status);

// The same refusal for a field that lies inside `prefix`: "prefix.FIELD: got ...". Other statuses
// are returned as they are.
absl::Status WithFieldPrefix(const absl::Status& status, std::string_view prefix);

// One of two words.
template <typename Enum>
absl::StatusOr<Enum> ParseWord(std::string_view field, std::string_view got, std::string_view first,
                               Enum first_value, std::string_view second, Enum second_value) {
  if (got == first) return first_value;
  if (got == second) return second_value;
  return FieldError(field, '"' + std::string(got) + '"',
                    std::string(first) + " or " + std::string(second));
}

// Refuses a value outside [low, high].
absl::Status CheckRange(std::string_view field, int64_t value, int64_t low, int64_t high);
// Refuses a value below 1.
absl::Status CheckPositive(std::string_view field, int64_t value);
absl::Status CheckPositive(std::string_view field, const std::optional<int64_t>& value);

// Letters to change, add or take away to make one of the other: how near a wrong name is.
size_t EditDistance(std::string_view a, std::string_view b);

}  // namespace kvblocks

#endif  // KVBLOCKS_CHECKS_FIELD_ERROR_H_
