#include "kvblocks/block_pool/check.h"

#include <cstdio>
#include <cstdlib>

namespace kvblocks::internal {

void CheckFailed(const char* file, int line, const char* condition, const std::string& state) {
  std::fprintf(stderr, "%s:%d: broken invariant: %s: %s\n", file, line, condition, state.c_str());
  std::fflush(stderr);
  std::abort();
}

}  // namespace kvblocks::internal
