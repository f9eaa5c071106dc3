// SimTime: the simulator's clock - signed 64-bit picoseconds since the start of the run, about 106
// days.
//
// Every duration is an integer, so that sums do not depend on their order and a run of equal steps
// has a closed form that equals the step-by-step sum. Additions that could leave the range are
// checked: an overflow is an empty optional, which the driver of the clock turns into an error.

#ifndef KVBLOCKS_SIM_COST_SIM_TIME_H_
#define KVBLOCKS_SIM_COST_SIM_TIME_H_

#include <cstdint>
#include <limits>
#include <optional>
#include <string>
#include <string_view>

#include "absl/status/statusor.h"

namespace kvblocks::sim {

using SimTime = int64_t;  // picoseconds
// For products of times and counts.
__extension__ using Wide = __int128;

inline constexpr SimTime kPicosecond = 1;
inline constexpr SimTime kNanosecond = 1'000;
inline constexpr SimTime kMicrosecond = 1'000'000;
inline constexpr SimTime kMillisecond = 1'000'000'000;
inline constexpr SimTime kSecond = 1'000'000'000'000;
inline constexpr SimTime kMaxSimTime = std::numeric_limits<int64_t>::max();

inline std::optional<SimTime> CheckedAdd(SimTime a, SimTime b) {
  SimTime sum;
  if (__builtin_add_overflow(a, b, &sum)) return std::nullopt;
  return sum;
}

inline std::optional<SimTime> CheckedMultiply(SimTime a, int64_t factor) {
  SimTime product;
  if (__builtin_mul_overflow(a, factor, &product)) return std::nullopt;
  return product;
}

inline std::optional<SimTime> FromNanoseconds(int64_t ns) {
  return CheckedMultiply(ns, kNanosecond);
}

// "1s", "20ms", "1.5us", "250ns", "3ps", "2min", "1h"; exact. InvalidArgument for anything else: no
// unit, a negative number, less than a picosecond, or beyond the clock.
absl::StatusOr<SimTime> ParseDuration(std::string_view text);

// Exact and short: "1.5ms".
std::string FormatDuration(SimTime duration);

}  // namespace kvblocks::sim

#endif  // KVBLOCKS_SIM_COST_SIM_TIME_H_
