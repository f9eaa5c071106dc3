#include "kvblocks/sim/cost/fixed_log.h"

#include <algorithm>
#include <array>
#include <bit>

#include "kvblocks/sim/cost/sim_time.h"

namespace kvblocks::sim {
namespace {

constexpr int kMantissaBits = 62;

// Rounded down, digit by digit.
uint64_t SquareRoot(Wide value) {
  Wide root = 0;
  for (int bit = 63; bit >= 0; --bit) {
    const Wide candidate = root | (Wide{1} << bit);
    if (candidate * candidate <= value) root = candidate;
  }
  return static_cast<uint64_t>(root);
}

// 2^(2^-1), 2^(2^-2), ... with 62 bits behind the point.
std::array<uint64_t, kLogBits> MakeRoots() {
  std::array<uint64_t, kLogBits> roots;
  Wide value = Wide{2} << kMantissaBits;
  for (uint64_t& root : roots) {
    root = SquareRoot(value << kMantissaBits);
    value = root;
  }
  return roots;
}

}  // namespace

FixedLog Log2(uint64_t value) {
  const int octave = static_cast<int>(std::bit_width(value)) - 1;
  // 1 <= mantissa < 2, 31 bits behind the point; squaring it doubles what is left of the logarithm.
  uint64_t mantissa = octave >= 31 ? value >> (octave - 31) : value << (31 - octave);
  FixedLog log = octave;
  for (int i = 0; i < kLogBits; ++i) {
    mantissa = mantissa * mantissa >> 31;
    const bool doubled = mantissa >= uint64_t{1} << 32;
    log = log * 2 + (doubled ? 1 : 0);
    if (doubled) mantissa >>= 1;
  }
  return log;
}

int64_t Exp2(FixedLog log) {
  static const std::array<uint64_t, kLogBits> kRoots = MakeRoots();
  const int64_t octave = log >> kLogBits;
  if (octave >= kMantissaBits) return int64_t{1} << kMantissaBits;
  if (octave < -1) return 0;
  const uint64_t fraction = static_cast<uint64_t>(log) & ((uint64_t{1} << kLogBits) - 1);
  uint64_t mantissa = uint64_t{1} << kMantissaBits;
  for (int i = 0; i < kLogBits; ++i) {
    if ((fraction >> (kLogBits - 1 - i) & 1) == 0) continue;
    mantissa =
        static_cast<uint64_t>(Wide{mantissa} * kRoots[static_cast<size_t>(i)] >> kMantissaBits);
  }
  const int shift = kMantissaBits - static_cast<int>(octave);
  return static_cast<int64_t>(((mantissa >> (shift - 1)) + 1) >> 1);
}

FixedLog OnLine(FixedLog x0, FixedLog y0, FixedLog x1, FixedLog y1, FixedLog x) {
  return y0 + static_cast<FixedLog>(Wide{y1 - y0} * (x - x0) / (x1 - x0));
}

}  // namespace kvblocks::sim
