#include "checks/field_error.h"

#include <algorithm>
#include <vector>

#include "absl/strings/cord.h"

namespace kvblocks {
namespace {

constexpr char kFieldUrl[] = "kvblocks.field";

}  // namespace

absl::Status FieldError(std::string_view field, std::string_view got, std::string_view expected,
                        std::string_view hint) {
  std::string message(field);
  message.append(": got ").append(got).append(", expected ").append(expected);
  if (!hint.empty()) message.append(" (").append(hint).append(")");
  absl::Status status = absl::InvalidArgumentError(message);
  status.SetPayload(kFieldUrl, absl::Cord(std::string(field)));
  return status;
}

std::optional<std::string> FieldOfError(const absl::Status& status) {
  const auto payload = status.GetPayload(kFieldUrl);
  if (!payload.has_value()) return std::nullopt;
  return std::string(*payload);
}

absl::Status WithFieldPrefix(const absl::Status& status, std::string_view prefix) {
  const std::optional<std::string> field = FieldOfError(status);
  if (!field.has_value()) return status;
  // The message begins with the field, so both grow at the front by the same text.
  const std::string dotted = std::string(prefix) + ".";
  absl::Status result(status.code(), dotted + std::string(status.message()));
  result.SetPayload(kFieldUrl, absl::Cord(dotted + *field));
  return result;
}

absl::Status CheckRange(std::string_view field, int64_t value, int64_t low, int64_t high) {
  if (value >= low && value <= high) return absl::OkStatus();
  return FieldError(field, std::to_string(value),
                    "a number from " + std::to_string(low) + " to " + std::to_string(high));
}

absl::Status CheckPositive(std::string_view field, int64_t value) {
  if (value >= 1) return absl::OkStatus();
  return FieldError(field, std::to_string(value), "at least 1");
}

absl::Status CheckPositive(std::string_view field, const std::optional<int64_t>& value) {
  return value.has_value() ? CheckPositive(field, *value) : absl::OkStatus();
}

size_t EditDistance(std::string_view a, std::string_view b) {
  std::vector<size_t> row(b.size() + 1);
  for (size_t j = 0; j <= b.size(); ++j) row[j] = j;
  for (size_t i = 1; i <= a.size(); ++i) {
    size_t diagonal = row[0];
    row[0] = i;
    for (size_t j = 1; j <= b.size(); ++j) {
      const size_t changed = diagonal + (a[i - 1] != b[j - 1]);
      diagonal = row[j];
      row[j] = std::min({changed, row[j] + 1, row[j - 1] + 1});
    }
  }
  return row[b.size()];
}

}  // namespace kvblocks
