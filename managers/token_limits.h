// kMaxTokens: the largest token count accepted anywhere in the managers, so that sums of a few
// never overflow 64 bits.

#ifndef KVBLOCKS_MANAGERS_TOKEN_LIMITS_H_
#define KVBLOCKS_MANAGERS_TOKEN_LIMITS_H_

#include <cstdint>

namespace kvblocks {
inline constexpr int64_t kMaxTokens = int64_t{1} << 40;
}  // namespace kvblocks

#endif  // KVBLOCKS_MANAGERS_TOKEN_LIMITS_H_
