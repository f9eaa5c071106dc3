// kMaxTokens: the largest token count accepted anywhere in the managers, so that sums of a few
// never overflow 64 bits.

#ifndef KVBLOCKS_MANAGERS_TOKEN_LIMITS_H_
#define KVBLOCKS_MANAGERS_TOKEN_LIMITS_H_

#include <cstdint>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"

namespace kvblocks {

inline constexpr int64_t kMaxTokens = int64_t{1} << 40;

// The refusal of a count of tokens or blocks: "CALL(REQUEST): WHAT is VALUE, expected LOW to HIGH".
inline absl::Status TokenCountError(absl::string_view call, absl::string_view request_id,
                                    absl::string_view what, int64_t value, int64_t low,
                                    int64_t high) {
  return absl::InvalidArgumentError(absl::StrCat(call, "(", request_id, "): ", what, " is ", value,
                                                 ", expected ", low, " to ", high));
}

}  // namespace kvblocks

#endif  // KVBLOCKS_MANAGERS_TOKEN_LIMITS_H_
