// CheckedInt64: a non-negative 64-bit integer that remembers when a result did not fit.
//
// Sizes come from configuration files, so products such as blocks x tokens x heads x bytes may
// exceed 2^63. Formulas are written once with ordinary operators, and the question "did it fit?" is
// asked once, at the end. A result that overflowed stays overflowed through every later operation
// and has no value.
//
// Costs a flag test per operation; meant for sizing, not for per-token paths.

#ifndef KVBLOCKS_CHECKS_CHECKED_INT64_H_
#define KVBLOCKS_CHECKS_CHECKED_INT64_H_

#include <cstdint>
#include <limits>
#include <optional>

#include "checks/ceil_div.h"

namespace kvblocks {

// What ids and lengths on a device can be.
inline constexpr int64_t kMaxInt32 = std::numeric_limits<int32_t>::max();

class CheckedInt64 {
 public:
  // REQUIRES: value >= 0. Implicit, so that literals take part in formulas.
  constexpr CheckedInt64(int64_t value) : value_(value) {}  // NOLINT(google-explicit-constructor)

  constexpr bool overflowed() const { return overflowed_; }
  constexpr std::optional<int64_t> value() const {
    return overflowed_ ? std::nullopt : std::optional<int64_t>(value_);
  }

  friend constexpr CheckedInt64 operator+(CheckedInt64 a, CheckedInt64 b) {
    CheckedInt64 result(0);
    const bool carry = __builtin_add_overflow(a.value_, b.value_, &result.value_);
    result.overflowed_ = a.overflowed_ || b.overflowed_ || carry;
    return result;
  }
  friend constexpr CheckedInt64 operator*(CheckedInt64 a, CheckedInt64 b) {
    CheckedInt64 result(0);
    const bool carry = __builtin_mul_overflow(a.value_, b.value_, &result.value_);
    result.overflowed_ = a.overflowed_ || b.overflowed_ || carry;
    return result;
  }

 private:
  int64_t value_;
  bool overflowed_ = false;
};

// The value, or the largest number where it did not fit: beyond it nothing fits anyway.
constexpr int64_t Saturated(CheckedInt64 a) {
  return a.value().value_or(std::numeric_limits<int64_t>::max());
}

// min(a + b, limit). REQUIRES: a >= 0, b >= 0, limit >= 0.
constexpr int64_t AddUpTo(int64_t a, int64_t b, int64_t limit) {
  return a >= limit || b >= limit - a ? limit : a + b;
}

// The smallest multiple of b that is at least a. REQUIRES: b >= 1.
constexpr CheckedInt64 RoundUp(CheckedInt64 a, int64_t b) {
  return a.overflowed() ? a : CheckedInt64(CeilDiv(*a.value(), b)) * b;
}

}  // namespace kvblocks

#endif  // KVBLOCKS_CHECKS_CHECKED_INT64_H_
