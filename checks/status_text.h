// A status whose message is made of parts, as absl::StrCat makes it.

#ifndef KVBLOCKS_CHECKS_STATUS_TEXT_H_
#define KVBLOCKS_CHECKS_STATUS_TEXT_H_

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"

namespace kvblocks {

// Bad input: say what, where, the limit and what to do.
template <typename... Parts>
absl::Status InvalidArgument(const Parts&... parts) {
  return absl::InvalidArgumentError(absl::StrCat(parts...));
}

// What CheckInvariants found.
template <typename... Parts>
absl::Status BrokenInvariant(const Parts&... parts) {
  return absl::InternalError(absl::StrCat(parts...));
}

}  // namespace kvblocks

#endif  // KVBLOCKS_CHECKS_STATUS_TEXT_H_
