// Decimal numbers: ParseScaledDecimal against the same value found by moving the point in the text,
// ratios in lowest terms, and formatting undone by parsing. The first byte is the exponent.

#include <numeric>
#include <optional>
#include <string>
#include <string_view>

#include "sim/trace/decimal.h"
#include "tests/fuzz/fuzz_input.h"

namespace {

using kvblocks::sim::FormatScaledDecimal;
using kvblocks::sim::ParseRational;
using kvblocks::sim::ParseScaledDecimal;

bool TakeDigits(std::string_view& text, std::string& out) {
  const size_t n = std::min(text.find_first_not_of("0123456789"), text.size());
  out.append(text.substr(0, n));
  text.remove_prefix(n);
  return n > 0;
}

std::optional<int64_t> Value(std::string_view text, int64_t exponent) {
  const bool negative = !text.empty() && text.front() == '-';
  if (negative) text.remove_prefix(1);
  std::string digits;
  if (!TakeDigits(text, digits)) return std::nullopt;
  if (!text.empty() && text.front() == '.') {
    text.remove_prefix(1);
    const size_t before = digits.size();
    if (!TakeDigits(text, digits)) return std::nullopt;
    exponent -= static_cast<int64_t>(digits.size() - before);
  }
  if (!text.empty() && (text.front() == 'e' || text.front() == 'E')) {
    text.remove_prefix(1);
    const bool minus = !text.empty() && text.front() == '-';
    if (!text.empty() && (text.front() == '-' || text.front() == '+')) text.remove_prefix(1);
    std::string power;
    if (!TakeDigits(text, power)) return std::nullopt;
    power.erase(0, std::min(power.find_first_not_of('0'), power.size()));
    const int64_t shift = power.empty() ? 0 : power.size() > 6 ? 1000000 : std::stol(power);
    exponent += minus ? -shift : shift;
  }
  if (!text.empty()) return std::nullopt;
  digits.erase(0, std::min(digits.find_first_not_of('0'), digits.size()));
  if (digits.empty()) return 0;
  if (negative) return std::nullopt;
  for (; exponent < 0; ++exponent) {
    if (digits.back() != '0') return std::nullopt;
    digits.pop_back();
  }
  if (static_cast<int64_t>(digits.size()) + exponent > 19) return std::nullopt;
  digits.append(static_cast<size_t>(exponent), '0');
  if (digits.size() == 19 && digits > "9223372036854775807") return std::nullopt;
  return std::stoll(digits);
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  kvblocks::fuzz::FuzzInput input(data, size);
  const int exponent = input.Byte() % 19;
  const std::string_view text = input.Rest();
  if (text.size() > 4096) return 0;

  const auto parsed = ParseScaledDecimal(text, exponent);
  const std::optional<int64_t> expected = Value(text, exponent);
  FUZZ_EXPECT(parsed.ok() == expected.has_value(), parsed.status().ToString());
  if (parsed.ok()) {
    FUZZ_EXPECT(*parsed == *expected, text);
    const std::string formatted = FormatScaledDecimal(*parsed, exponent);
    const auto again = ParseScaledDecimal(formatted, exponent);
    FUZZ_EXPECT(again.ok() && *again == *parsed, formatted);
  } else {
    FUZZ_EXPECT(parsed.status().message().size() < 200, parsed.status().ToString());
  }

  const auto ratio = ParseRational(text);
  if (!ratio.ok()) return 0;
  const int64_t kMost = 1000000000000000000;
  FUZZ_EXPECT(ratio->numerator >= 0 && ratio->numerator <= kMost, text);
  FUZZ_EXPECT(ratio->denominator > 0 && ratio->denominator <= kMost, text);
  FUZZ_EXPECT(std::gcd(ratio->numerator, ratio->denominator) == 1, text);
  const auto same =
      ParseRational(std::to_string(ratio->numerator) + "/" + std::to_string(ratio->denominator));
  FUZZ_EXPECT(same.ok() && *same == *ratio, text);
  if (const auto scaled = ParseScaledDecimal(text, 18); scaled.ok()) {
    FUZZ_EXPECT(static_cast<__int128>(*scaled) * ratio->denominator ==
                    static_cast<__int128>(ratio->numerator) * kMost,
                text);
  }
  return 0;
}
