// Tells run_faults.py how the program was built.

#include <gtest/gtest.h>

#include <cstdio>

namespace {

TEST(BuildMode, IsPrinted) {
#ifdef NDEBUG
  std::puts("build mode: without debug checks");
#else
  std::puts("build mode: with debug checks");
#endif
}

}  // namespace
