// Exact decimal parsing of times and ratios. Nothing passes through binary floating point.
//
// Numbers are written as in JSON: -12, 0.5, 1.25e3. NaN, infinities, hexadecimal and thousands
// separators are errors.

#ifndef KVBLOCKS_SIM_TRACE_DECIMAL_H_
#define KVBLOCKS_SIM_TRACE_DECIMAL_H_

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

#include "absl/status/statusor.h"

namespace kvblocks::sim {

// A non-negative ratio; the denominator is positive.
struct Rational {
  int64_t numerator = 0;
  int64_t denominator = 1;

  friend bool operator==(const Rational&, const Rational&) = default;
};

// Whether it is one, whatever its size; whole parts may begin with zeros.
bool IsDecimal(std::string_view text);

// The number `text` times 10^exponent as an integer, for example milliseconds to nanoseconds with
// exponent 6. Errors: not a number, negative, not a whole number after scaling, above int64.
absl::StatusOr<int64_t> ParseScaledDecimal(std::string_view text, int exponent);

// The same rounded to the nearest integer, halves up: for times that a clock in binary floating
// point wrote, whose last digits mean nothing. Errors: not a number, negative, above int64.
absl::StatusOr<int64_t> ParseRoundedDecimal(std::string_view text, int exponent);

// "3", "1.5" or "3/2", in lowest terms, both parts at most 10^18.
absl::StatusOr<Rational> ParseRational(std::string_view text);

// A count, alone or with one of the letters that vLLM takes: "128k" is 128,000 and "128K" 131,072,
// likewise m, g, t and M, G, T; "1.5k" is 1,500. Empty: it is none, or no whole number.
std::optional<int64_t> ParseCount(std::string_view text);

// "64GiB" or "1.5GB": bytes, rounded down. Empty: it is none, or less than one.
std::optional<int64_t> ParseBytes(std::string_view text);

// `value` (>= 0) divided by 10^exponent, exactly and without trailing zeros: (46926808, 6) is
// "46.926808".
std::string FormatScaledDecimal(int64_t value, int exponent);

// A number as people read it, with commas in its whole part: "-1234.5 s" becomes "-1,234.5 s".
std::string GroupThousands(std::string number);

}  // namespace kvblocks::sim

#endif  // KVBLOCKS_SIM_TRACE_DECIMAL_H_
