#include "sim/trace/decimal.h"

#include <algorithm>
#include <limits>
#include <numeric>

#include "absl/status/status.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/strip.h"
#include "absl/types/span.h"

namespace kvblocks::sim {
namespace {

constexpr int64_t kMaxRationalPart = 1000000000000000000;

// Long values are cut, so that a message never carries a megabyte of digits.
std::string Quoted(std::string_view text) {
  constexpr size_t kShown = 60;
  return absl::StrCat("\"", std::string(text.substr(0, kShown)),
                      text.size() > kShown ? "...\"" : "\"");
}

absl::Status Bad(std::string_view text, const std::string& expected) {
  return absl::InvalidArgumentError(absl::StrCat("got ", Quoted(text), ", expected ", expected));
}

// The parts of a number: digits (without sign and point, no leading zeros) times 10^exponent.
struct Parts {
  bool negative = false;
  std::string digits;
  int64_t exponent = 0;
};

bool TakeApart(std::string_view text, Parts* out) {
  const auto take = [&text](std::string_view characters) {
    const std::string_view taken =
        text.substr(0, std::min(text.find_first_not_of(characters), text.size()));
    text.remove_prefix(taken.size());
    return taken;
  };
  const auto take_one_of = [&text](std::string_view characters) {
    const char c = text.empty() || characters.find(text[0]) == std::string_view::npos ? 0 : text[0];
    text.remove_prefix(c == 0 ? 0 : 1);
    return c;
  };
  constexpr std::string_view kDigits = "0123456789";
  out->negative = take_one_of("-") != 0;
  out->digits = take(kDigits);
  if (out->digits.empty()) return false;
  if (take_one_of(".") != 0) {
    const std::string_view fraction = take(kDigits);
    if (fraction.empty()) return false;
    out->digits += fraction;
    out->exponent -= static_cast<int64_t>(fraction.size());
  }
  if (take_one_of("eE") != 0) {
    const bool negative = take_one_of("+-") == '-';
    const std::string_view power = take(kDigits);
    if (power.empty()) return false;
    int64_t exponent = 0;
    // Saturates: beyond this every non-zero number is out of range anyway.
    for (const char c : power) {
      exponent = std::min<int64_t>(exponent * 10 + (c - '0'), 1000000000000);
    }
    out->exponent += negative ? -exponent : exponent;
  }
  if (!text.empty()) return false;
  while (!out->digits.empty() && out->digits.back() == '0') {
    out->digits.pop_back();
    ++out->exponent;
  }
  out->digits.erase(0, out->digits.find_first_not_of('0'));
  return true;
}

// A fraction of the last unit is an error, or is rounded.
absl::StatusOr<int64_t> Scaled(std::string_view text, int exponent, bool rounds) {
  Parts parts;
  if (!TakeApart(text, &parts)) return Bad(text, "a decimal number");
  if (parts.digits.empty()) return int64_t{0};
  if (parts.negative) return Bad(text, "a number that is not negative");
  parts.exponent += exponent;
  if (parts.exponent < 0 && !rounds) {
    return Bad(text, absl::StrCat("at most ", exponent, " digits after the point"));
  }
  bool up = false;
  if (parts.exponent < 0) {
    const int64_t size = static_cast<int64_t>(parts.digits.size());
    const int64_t kept = size + parts.exponent;
    up = kept >= 0 && parts.digits[static_cast<size_t>(kept)] >= '5';
    parts.digits.resize(static_cast<size_t>(std::max<int64_t>(kept, 0)));
    parts.exponent = 0;
  }
  constexpr int64_t kMaxDigits = 19;
  if (static_cast<int64_t>(parts.digits.size()) + parts.exponent > kMaxDigits) {
    return Bad(text, absl::StrCat("a number below 2^63 / 10^", exponent));
  }
  unsigned __int128 value = 0;
  for (char c : parts.digits) value = value * 10 + static_cast<unsigned>(c - '0');
  for (int64_t i = 0; i < parts.exponent; ++i) value *= 10;
  value += up ? 1 : 0;
  if (value > static_cast<unsigned __int128>(std::numeric_limits<int64_t>::max())) {
    return Bad(text, absl::StrCat("a number below 2^63 / 10^", exponent));
  }
  return static_cast<int64_t>(value);
}

}  // namespace

bool IsDecimal(std::string_view text) {
  Parts parts;
  return TakeApart(text, &parts);
}

absl::StatusOr<int64_t> ParseScaledDecimal(std::string_view text, int exponent) {
  return Scaled(text, exponent, false);
}

absl::StatusOr<int64_t> ParseRoundedDecimal(std::string_view text, int exponent) {
  return Scaled(text, exponent, true);
}

absl::StatusOr<Rational> ParseRational(std::string_view text) {
  const std::string kExpected = "a ratio such as 3, 0.25 or 3/2";
  Rational result;
  if (const size_t slash = text.find('/'); slash != std::string_view::npos) {
    absl::StatusOr<int64_t> numerator = ParseScaledDecimal(text.substr(0, slash), 0);
    absl::StatusOr<int64_t> denominator = ParseScaledDecimal(text.substr(slash + 1), 0);
    if (!numerator.ok() || !denominator.ok() || *denominator == 0) return Bad(text, kExpected);
    result = {*numerator, *denominator};
  } else {
    Parts parts;
    if (!TakeApart(text, &parts) || (parts.negative && !parts.digits.empty())) {
      return Bad(text, kExpected);
    }
    const int64_t places = parts.digits.empty() ? 0 : std::max<int64_t>(0, -parts.exponent);
    if (places > 18) return Bad(text, "a ratio with at most 18 digits after the point");
    absl::StatusOr<int64_t> numerator = ParseScaledDecimal(text, static_cast<int>(places));
    if (!numerator.ok()) return Bad(text, "a ratio whose parts are at most 10^18");
    int64_t denominator = 1;
    for (int64_t i = 0; i < places; ++i) denominator *= 10;
    result = {*numerator, denominator};
  }
  const int64_t divisor = std::gcd(result.numerator, result.denominator);
  result.numerator /= divisor;
  result.denominator /= divisor;
  if (result.numerator > kMaxRationalPart || result.denominator > kMaxRationalPart) {
    return Bad(text, "a ratio whose parts are at most 10^18");
  }
  return result;
}

namespace {

struct SizeUnit {
  absl::string_view name;
  int64_t size;
};

// The number in front of the first unit that `text` ends with, times that unit; rounded down, or
// empty where it `must_be_whole`.
std::optional<int64_t> ParseSize(absl::string_view text, absl::Span<const SizeUnit> units,
                                 bool must_be_whole) {
  for (const SizeUnit& unit : units) {
    if (!absl::ConsumeSuffix(&text, unit.name)) continue;
    const auto number = ParseRational(std::string_view(text.data(), text.size()));
    if (!number.ok()) return std::nullopt;
    const __int128 product = static_cast<__int128>(number->numerator) * unit.size;
    const __int128 size = product / number->denominator;
    if (size > std::numeric_limits<int64_t>::max()) return std::nullopt;
    if (must_be_whole && product % number->denominator != 0) return std::nullopt;
    return static_cast<int64_t>(size);
  }
  return std::nullopt;
}

}  // namespace

std::optional<int64_t> ParseCount(std::string_view text) {
  int64_t value;
  if (absl::SimpleAtoi(absl::string_view(text.data(), text.size()), &value)) return value;
  static constexpr SizeUnit kUnits[] = {
      {"k", 1'000},           {"m", 1'000'000},       {"g", 1'000'000'000},
      {"t", 1'000'000'000'000}, {"K", int64_t{1} << 10}, {"M", int64_t{1} << 20},
      {"G", int64_t{1} << 30}, {"T", int64_t{1} << 40}};
  return ParseSize({text.data(), text.size()}, kUnits, /*must_be_whole=*/true);
}

std::optional<int64_t> ParseBytes(std::string_view text) {
  static constexpr SizeUnit kUnits[] = {
      {"KiB", int64_t{1} << 10}, {"MiB", int64_t{1} << 20}, {"GiB", int64_t{1} << 30},
      {"TiB", int64_t{1} << 40}, {"kB", 1'000},             {"MB", 1'000'000},
      {"GB", 1'000'000'000},     {"TB", 1'000'000'000'000}, {"B", 1}};
  const auto bytes = ParseSize({text.data(), text.size()}, kUnits, /*must_be_whole=*/false);
  return bytes == 0 ? std::nullopt : bytes;
}

std::string FormatScaledDecimal(int64_t value, int exponent) {
  std::string digits = absl::StrCat(value);
  const size_t places = static_cast<size_t>(exponent);
  if (digits.size() <= places) digits.insert(0, places + 1 - digits.size(), '0');
  std::string fraction = digits.substr(digits.size() - places);
  digits.erase(digits.size() - places);
  while (!fraction.empty() && fraction.back() == '0') fraction.pop_back();
  return fraction.empty() ? digits : digits + "." + fraction;
}

std::string GroupThousands(std::string number) {
  constexpr const char* kDigits = "0123456789";
  const size_t begin = std::min(number.find_first_of(kDigits), number.size());
  size_t end = std::min(number.find_first_not_of(kDigits, begin), number.size());
  while (end > begin + 3) {
    end -= 3;
    number.insert(end, 1, ',');
  }
  return number;
}

}  // namespace kvblocks::sim
