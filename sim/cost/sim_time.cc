#include "sim/cost/sim_time.h"

#include <array>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "kvblocks/check.h"

namespace kvblocks::sim {
namespace {

struct Unit {
  std::string_view name;
  SimTime picoseconds;
};

// From large to small, for formatting.
constexpr std::array<Unit, 7> kUnits = {{{"h", 3600 * kSecond},
                                         {"min", 60 * kSecond},
                                         {"s", kSecond},
                                         {"ms", kMillisecond},
                                         {"us", kMicrosecond},
                                         {"ns", kNanosecond},
                                         {"ps", kPicosecond}}};

absl::Status BadDuration(std::string_view text, const char* why) {
  return InvalidArgument("not a duration: \"", absl::string_view(text.data(), text.size()),
                         "\": ", why,
                         "; write for example 20ms, 1.5s, 3us (units: h, min, s, ms, us, ns, ps)");
}

bool IsDigit(char c) { return c >= '0' && c <= '9'; }

}  // namespace

absl::StatusOr<SimTime> ParseDuration(std::string_view text) {
  size_t end = 0;
  while (end < text.size() && (IsDigit(text[end]) || text[end] == '.')) ++end;
  const std::string_view number = text.substr(0, end);
  const std::string_view name = text.substr(end);
  if (number.empty() || !IsDigit(number.front())) return BadDuration(text, "no number in front");
  if (name.empty()) return BadDuration(text, "no unit");
  SimTime unit = 0;
  for (const Unit& candidate : kUnits) {
    if (candidate.name == name) unit = candidate.picoseconds;
  }
  if (unit == 0) return BadDuration(text, "unknown unit");

  const size_t point = number.find('.');
  const std::string_view whole = number.substr(0, point);
  std::string_view fraction =
      point == std::string_view::npos ? std::string_view() : number.substr(point + 1);
  if (point != std::string_view::npos && fraction.empty()) {
    return BadDuration(text, "no digit after the point");
  }
  if (fraction.find('.') != std::string_view::npos) return BadDuration(text, "two points");

  std::optional<SimTime> total = 0;
  for (char digit : whole) {
    total = CheckedMultiply(*total, 10);
    if (total) total = CheckedAdd(*total, digit - '0');
    if (!total) return BadDuration(text, "beyond the clock's 106 days");
  }
  total = CheckedMultiply(*total, unit);
  // The fraction of a unit, exactly. Without its trailing zeros it has at most 16 digits if it is
  // whole: no unit holds more factors of 2 or 5 than an hour's 2^16.
  while (!fraction.empty() && fraction.back() == '0') fraction.remove_suffix(1);
  __int128 part = 0;
  __int128 scale = 1;
  for (char digit : fraction.substr(0, 17)) {
    part = part * 10 + (digit - '0');
    scale *= 10;
  }
  part *= unit;
  if (fraction.size() > 16 || part % scale != 0) {
    return BadDuration(text, "is not a whole number of picoseconds");
  }
  if (total) total = CheckedAdd(*total, static_cast<SimTime>(part / scale));
  if (!total) return BadDuration(text, "beyond the clock's 106 days");
  return *total;
}

std::string FormatDuration(SimTime duration) {
  if (duration == 0) return "0s";
  const bool negative = duration < 0;
  uint64_t rest = negative ? -static_cast<uint64_t>(duration) : static_cast<uint64_t>(duration);
  // Seconds and below read as decimals; hours and minutes do not.
  for (const Unit& unit : kUnits) {
    if (unit.picoseconds > kSecond) continue;
    const uint64_t size = static_cast<uint64_t>(unit.picoseconds);
    if (rest < size) continue;
    std::string text = absl::StrCat(negative ? "-" : "", rest / size);
    uint64_t remainder = rest % size;
    if (remainder != 0) {
      std::string digits;
      for (uint64_t place = size / 10; place > 0 && remainder > 0; place /= 10) {
        digits.push_back(static_cast<char>('0' + remainder / place));
        remainder %= place;
      }
      absl::StrAppend(&text, ".", digits);
    }
    absl::StrAppend(&text, absl::string_view(unit.name.data(), unit.name.size()));
    return text;
  }
  return "0s";
}

}  // namespace kvblocks::sim
