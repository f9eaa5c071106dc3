// Texts of errors, and broken invariants.

#ifndef KVBLOCKS_CHECK_H_
#define KVBLOCKS_CHECK_H_

#include <cstdio>
#include <cstdlib>
#include <string>

#include "absl/base/optimization.h"
#include "absl/status/status.h"
#include "absl/strings/str_cat.h"

// KVBLOCKS_CHECK: stops the process when an invariant of the library itself is broken, with the
// state that shows it.
//
// Only for what no caller can cause through the public API: bad input is an absl::Status, shortage
// an empty optional. KVBLOCKS_DCHECK is the same in builds without NDEBUG and costs nothing in
// optimised ones.

namespace kvblocks::internal {

[[noreturn, gnu::cold, gnu::noinline]] inline void CheckFailed(const char* file, int line,
                                                               const char* condition,
                                                               const std::string& state) {
  std::fprintf(stderr, "%s:%d: broken invariant: %s: %s\n", file, line, condition, state.c_str());
  std::fflush(stderr);
  std::abort();
}

}  // namespace kvblocks::internal

// `state` is evaluated only on failure.
#define KVBLOCKS_CHECK(condition, state)                                          \
  do {                                                                            \
    if (ABSL_PREDICT_FALSE(!(condition)))                                         \
      ::kvblocks::internal::CheckFailed(__FILE__, __LINE__, #condition, (state)); \
  } while (false)

#ifdef NDEBUG
#define KVBLOCKS_DCHECK(condition, state) \
  do {                                    \
  } while (false)
#else
#define KVBLOCKS_DCHECK(condition, state) KVBLOCKS_CHECK(condition, state)
#endif

// Statuses whose message is made of parts, as absl::StrCat makes it. By convention the text names
// the operation or field, its value, the limit and the way out: "Op: name is 3; at most 2".

namespace kvblocks {

// Bad input: say what, where, the limit and what to do.
template <typename... Parts>
absl::Status InvalidArgument(const Parts&... parts) {
  return absl::InvalidArgumentError(absl::StrCat(parts...));
}

template <typename... Parts>
absl::Status OutOfRange(const Parts&... parts) {
  return absl::OutOfRangeError(absl::StrCat(parts...));
}
template <typename... Parts>
absl::Status ResourceExhausted(const Parts&... parts) {
  return absl::ResourceExhaustedError(absl::StrCat(parts...));
}
template <typename... Parts>
absl::Status FailedPrecondition(const Parts&... parts) {
  return absl::FailedPreconditionError(absl::StrCat(parts...));
}
template <typename... Parts>
absl::Status NotFound(const Parts&... parts) {
  return absl::NotFoundError(absl::StrCat(parts...));
}
template <typename... Parts>
absl::Status Unimplemented(const Parts&... parts) {
  return absl::UnimplementedError(absl::StrCat(parts...));
}

// What CheckInvariants found.
template <typename... Parts>
absl::Status BrokenInvariant(const Parts&... parts) {
  return absl::InternalError(absl::StrCat(parts...));
}

}  // namespace kvblocks

#endif  // KVBLOCKS_CHECK_H_
