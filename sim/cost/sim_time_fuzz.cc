// Durations: whatever ParseDuration accepts has exactly the value that the text says, computed here
// another way, and formatting and parsing undo each other.

#include <array>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <utility>

#include "sim/cost/sim_time.h"
#include "tests/fuzz/fuzz_input.h"

namespace {

using kvblocks::sim::FormatDuration;
using kvblocks::sim::ParseDuration;
using kvblocks::sim::SimTime;

// The value in picoseconds, or empty if the text is no duration: the digits of a decimal times
// 36 * 10^k or 6 * 10^k or 10^k, without a division.
std::optional<SimTime> Value(std::string_view text) {
  struct Unit {
    std::string_view name;
    unsigned factor;
    int power;  // the unit is factor * 10^power picoseconds
  };
  constexpr std::array<Unit, 7> kUnits = {{{"h", 36, 14},
                                           {"min", 6, 13},
                                           {"s", 1, 12},
                                           {"ms", 1, 9},
                                           {"us", 1, 6},
                                           {"ns", 1, 3},
                                           {"ps", 1, 0}}};
  const size_t end = std::min(text.find_first_not_of("0123456789."), text.size());
  std::string number(text.substr(0, end));
  const Unit* unit = nullptr;
  for (const Unit& candidate : kUnits) {
    if (candidate.name == text.substr(end)) unit = &candidate;
  }
  if (unit == nullptr || number.empty() || number.front() == '.' || number.back() == '.') {
    return std::nullopt;
  }
  int power = unit->power;
  if (const size_t point = number.find('.'); point != std::string::npos) {
    while (number.back() == '0') number.pop_back();
    power -= static_cast<int>(number.size() - point - 1);
    number.erase(point, 1);
    if (number.find('.') != std::string::npos) return std::nullopt;
  }
  number.erase(0, number.find_first_not_of('0'));
  if (number.empty()) return 0;
  if (number.size() > 25) return std::nullopt;
  unsigned __int128 value = 0;
  for (const char c : number) value = value * 10 + static_cast<unsigned>(c - '0');
  value *= unit->factor;
  for (; power < 0; ++power) {
    if (value % 10 != 0) return std::nullopt;
    value /= 10;
  }
  for (; power > 0; --power) {
    value *= 10;
    if (value > static_cast<unsigned __int128>(kvblocks::sim::kMaxSimTime)) return std::nullopt;
  }
  if (value > static_cast<unsigned __int128>(kvblocks::sim::kMaxSimTime)) return std::nullopt;
  return static_cast<SimTime>(value);
}

void FormatsAndParsesBack(SimTime duration) {
  const std::string text = FormatDuration(duration);
  const auto again = ParseDuration(text);
  FUZZ_EXPECT(again.ok() && *again == duration, text);
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  kvblocks::fuzz::FuzzInput input(data, size);
  if (size == 9 && data[0] == '#') {  // a value instead of a text
    input.Byte();
    const SimTime duration = input.Word();
    if (duration >= 0) FormatsAndParsesBack(duration);
    FormatDuration(duration);
    return 0;
  }
  const std::string_view text = input.Rest();
  if (text.size() > 4096) return 0;
  const auto parsed = ParseDuration(text);
  const std::optional<SimTime> expected = Value(text);
  FUZZ_EXPECT(parsed.ok() == expected.has_value(),
              std::string(text) + ": " + parsed.status().ToString());
  if (!parsed.ok()) return 0;
  FUZZ_EXPECT(*parsed == *expected, text);
  FormatsAndParsesBack(*parsed);
  return 0;
}
