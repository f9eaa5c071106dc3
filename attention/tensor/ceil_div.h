// CeilDiv: how many pieces of b cover a. No sum is formed on the way, so nothing overflows.

#ifndef KVBLOCKS_ATTENTION_TENSOR_CEIL_DIV_H_
#define KVBLOCKS_ATTENTION_TENSOR_CEIL_DIV_H_

#include <cstdint>

namespace kvblocks::attention {

// The ceiling of a / b. REQUIRES: b >= 1.
constexpr int64_t CeilDiv(int64_t a, int64_t b) { return a / b + (a % b > 0 ? 1 : 0); }

// The smallest multiple of b that is at least a. REQUIRES: b >= 1, the result fits into int64.
constexpr int64_t RoundUp(int64_t a, int64_t b) { return CeilDiv(a, b) * b; }

}  // namespace kvblocks::attention

#endif  // KVBLOCKS_ATTENTION_TENSOR_CEIL_DIV_H_
