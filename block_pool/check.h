// KVBLOCKS_CHECK: stops the process when an invariant of the library itself is broken, with the
// state that shows it.
//
// Only for what no caller can cause through the public API: bad input is an absl::Status, shortage
// an empty optional. KVBLOCKS_DCHECK is the same in builds without NDEBUG and costs nothing in
// optimised ones.

#ifndef KVBLOCKS_BLOCK_POOL_CHECK_H_
#define KVBLOCKS_BLOCK_POOL_CHECK_H_

#include <cstdio>
#include <cstdlib>
#include <string>

#include "absl/base/optimization.h"

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

#endif  // KVBLOCKS_BLOCK_POOL_CHECK_H_
