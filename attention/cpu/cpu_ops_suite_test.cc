// The suite of all backends on the CPU: with the best instruction set of the machine, or with one
// that is no better than what KVBLOCKS_TEST_SIMD names (AVX2 or SSE4), as older machines have it.

#include <cstdlib>
#include <cstring>

#include "attention/testing/ops_suite.h"
#include "gtest/gtest.h"
#include "hwy/targets.h"
#include "kvblocks/attention_cpu.h"

namespace kvblocks::attention {
namespace {

void ChooseInstructions() {
  const char* name = std::getenv("KVBLOCKS_TEST_SIMD");
  if (name == nullptr) return;
  for (const int64_t target : {HWY_AVX2, HWY_SSE4}) {
    if (std::strcmp(hwy::TargetName(target), name) != 0) continue;
    // Better targets have lower bits.
    hwy::SetSupportedTargetsForTest(hwy::SupportedTargets() & ~(target - 1));
    return;
  }
  ADD_FAILURE() << "KVBLOCKS_TEST_SIMD=" << name << " is neither AVX2 nor SSE4";
}

}  // namespace

const AttentionOps& OpsUnderTest() {
  [[maybe_unused]] static const bool chosen = (ChooseInstructions(), true);
  return Cpu();
}
Tolerance ToleranceUnderTest(DType out) { return CpuTolerance(out); }
SuiteTraits TraitsUnderTest() { return {}; }
Tolerance CodeProductsToleranceUnderTest(DType out) { return CpuTolerance(out); }
Tolerance TileScaledToleranceUnderTest(DType out) { return CpuTolerance(out); }

}  // namespace kvblocks::attention
