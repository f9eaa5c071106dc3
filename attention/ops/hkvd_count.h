// How many tokens of a fused prompt a ratio selects for recomputation, the suffix not counted.

#ifndef KVBLOCKS_ATTENTION_OPS_HKVD_COUNT_H_
#define KVBLOCKS_ATTENTION_OPS_HKVD_COUNT_H_

#include <cmath>
#include <cstdint>

namespace kvblocks::attention {

// floor(ratio * (n - suffix_len)), where a product that only rounding keeps below a whole number
// counts as whole: plain truncation makes 28 of 0.29 * 100.
inline int64_t HkvdCount(int64_t n, int64_t suffix_len, double ratio) {
  return static_cast<int64_t>(std::floor(ratio * static_cast<double>(n - suffix_len) + 1e-6));
}

}  // namespace kvblocks::attention

#endif  // KVBLOCKS_ATTENTION_OPS_HKVD_COUNT_H_
