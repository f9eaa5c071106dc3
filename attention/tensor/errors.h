// Errors of attention in one call: the text is whatever absl::StrCat takes. By convention it names the
// operation, the argument, its value, the limit and the way out: "Op: name is 3; at most 2".

#ifndef KVBLOCKS_ATTENTION_TENSOR_ERRORS_H_
#define KVBLOCKS_ATTENTION_TENSOR_ERRORS_H_

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"

namespace kvblocks::attention {

template <typename... Text>
absl::Status InvalidArgument(const Text&... text) {
  return absl::InvalidArgumentError(absl::StrCat(text...));
}
template <typename... Text>
absl::Status OutOfRange(const Text&... text) {
  return absl::OutOfRangeError(absl::StrCat(text...));
}
template <typename... Text>
absl::Status ResourceExhausted(const Text&... text) {
  return absl::ResourceExhaustedError(absl::StrCat(text...));
}
template <typename... Text>
absl::Status FailedPrecondition(const Text&... text) {
  return absl::FailedPreconditionError(absl::StrCat(text...));
}
template <typename... Text>
absl::Status NotFound(const Text&... text) {
  return absl::NotFoundError(absl::StrCat(text...));
}
template <typename... Text>
absl::Status Unimplemented(const Text&... text) {
  return absl::UnimplementedError(absl::StrCat(text...));
}

}  // namespace kvblocks::attention

#endif  // KVBLOCKS_ATTENTION_TENSOR_ERRORS_H_
