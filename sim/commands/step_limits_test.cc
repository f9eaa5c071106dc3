#include "kvblocks/sim/commands/step_limits.h"

#include "gtest/gtest.h"

namespace kvblocks::sim {
namespace {

TEST(StepLimitsTest, V79_FollowMemoryAndNameOfTheDevice) {
  const auto limits = [](EngineVersion version, const char* name, double gb, bool is_offline) {
    const StepLimits l = LimitsOf(version, {.name = name, .memory_gb = gb}, is_offline);
    return std::pair<int64_t, int64_t>(l.max_num_batched_tokens, l.max_num_seqs);
  };
  using Pair = std::pair<int64_t, int64_t>;
  constexpr EngineVersion kNew = EngineVersion::kVllm033, kOld = EngineVersion::kVllm025;
  EXPECT_EQ(limits(kNew, "b200", 180, false), Pair(16384, 1024));
  EXPECT_EQ(limits(kOld, "b200", 180, false), Pair(8192, 1024));
  EXPECT_EQ(limits(kNew, "h100-sxm", 80, false), Pair(8192, 1024));
  EXPECT_EQ(limits(kNew, "h100-sxm", 80, true), Pair(16384, 1024));
  EXPECT_EQ(limits(kNew, "A100-80GB", 80, false), Pair(2048, 256));
  EXPECT_EQ(limits(kNew, "l40s", 48, false), Pair(2048, 256));
  EXPECT_EQ(limits(kNew, "l40s", 48, true), Pair(8192, 256));
  // Memory is stated in 10^9 bytes, the limits in 2^30.
  EXPECT_EQ(limits(kNew, "x", 171, false).first, 8192);
  EXPECT_EQ(limits(kNew, "x", 172, false).first, 16384);
}

}  // namespace
}  // namespace kvblocks::sim
