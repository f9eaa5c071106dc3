// Dates and times of day: as texts, and as nanoseconds since midnight (UTC) of a trace's first day.
//
// absl::Time has quarters of a nanosecond, so all that formats write, at most 9 digits, is exact.

#ifndef KVBLOCKS_SIM_TRACE_CIVIL_TIME_H_
#define KVBLOCKS_SIM_TRACE_CIVIL_TIME_H_

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <string_view>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"

namespace kvblocks::sim {

// YYYY-MM-DD hh:mm:ss with 0 to 9 fractional digits, an optional T, and an optional Z or +hh:mm.
absl::StatusOr<absl::Time> ParseAzureTimestamp(std::string_view text);
// The inverse, with 7 fractional digits, or 9 if they are needed.
std::string FormatAzureTimestamp(absl::Time time);
// Its day, "2023-11-16", as in the note "day_one".
std::string FormatDay(absl::Time time);

// The clock of a trace whose times are dates: they count from midnight of the first time's day,
// which is kept as the note "day_one" of the trace.
class DayClock {
 public:
  // Errors, without the field's name: a day before the first one, or 2^63 ns and more after it.
  // `text` is how the time stands in the file.
  absl::Status Since(absl::Time time, std::string_view text,
                     std::map<std::string, std::string>* notes, int64_t* ns);

 private:
  std::optional<absl::Time> day_one_;
};

}  // namespace kvblocks::sim

#endif  // KVBLOCKS_SIM_TRACE_CIVIL_TIME_H_
