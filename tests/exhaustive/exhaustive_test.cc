// Every sequence of a few actions on tiny pools, library against oracle. Prints how many that is.
//
// The environment variable KVBLOCKS_EXHAUSTIVE_LENGTH sets the length of the sequences: with 1000
// all states of all settings are visited, which takes some minutes. Builds with debug checks, which
// sanitizer builds are, try shorter sequences.

#include <gtest/gtest.h>

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstdlib>

#include "tests/exhaustive/exploration.h"

namespace kvblocks::exhaustive {
namespace {

int LengthToTry(int length) {
  if (const char* wanted = std::getenv("KVBLOCKS_EXHAUSTIVE_LENGTH")) return std::atoi(wanted);
#ifndef NDEBUG
  length = std::min(length - 2, 10);
#endif
  return length;
}

class ExhaustiveTest : public ::testing::TestWithParam<SizedSetting> {};

TEST_P(ExhaustiveTest, AgreesWithTheOracle) {
  const auto begin = std::chrono::steady_clock::now();
  const Exploration result = Explore(GetParam().setting, LengthToTry(GetParam().length));
  const std::chrono::duration<double> seconds = std::chrono::steady_clock::now() - begin;
  std::printf("%s: %.4g sequences of %d actions in %lld states, %lld transitions%s, %.1f s\n",
              GetParam().setting.name.c_str(), result.num_sequences, result.length,
              static_cast<long long>(result.num_states),
              static_cast<long long>(result.num_transitions),
              result.complete ? " (all there are)" : "", seconds.count());
  std::fflush(stdout);
  EXPECT_EQ(result.failure, "");
  EXPECT_GT(result.num_states, 50);
  if (!GetParam().setting.config.native || result.length < GetParam().length) return;
  // Chunks are scarce enough; the property tests see both in every shape.
  EXPECT_GT(result.num_steals + result.num_packed, 0);
}

// Merging states leaves out what they hide, so all sequences of a few actions are tried for real.
TEST_P(ExhaustiveTest, AgreesWithTheOracleOnUnmergedSequences) {
  const Exploration result = Explore(GetParam().setting, 3, /*merge_states=*/false);
  EXPECT_EQ(result.failure, "");
  EXPECT_GT(result.num_states, 200);
}

INSTANTIATE_TEST_SUITE_P(Settings, ExhaustiveTest, ::testing::ValuesIn(Settings()),
                         [](const auto& test) { return test.param.setting.name; });

}  // namespace
}  // namespace kvblocks::exhaustive
