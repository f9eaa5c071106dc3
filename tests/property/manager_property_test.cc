// Random sequences of calls on KvCacheManager and on the oracle: equal answers, equal state, all
// invariants, after every call.

#include <gtest/gtest.h>
#include <rapidcheck.h>

#include "kvblocks/tests/property/check_property.h"
#include "kvblocks/tests/property/harness.h"

namespace kvblocks::property {
namespace {

class ManagerPropertyTest : public ::testing::TestWithParam<Shape> {};

TEST_P(ManagerPropertyTest, AgreesWithTheOracle) {
  int64_t ran = 0;
  int64_t steals = 0;
  int64_t packed = 0;
  int64_t no_space = 0;
  int64_t hit_copies = 0;
  int64_t state_copies = 0;
  CheckProperty(150, [&] {
    const uint64_t options = *rc::gen::inRange<uint64_t>(0, uint64_t{1} << 40);
    const auto operations = *Operations(100);
    const auto harness = Harness::Create(MakeScenario(GetParam(), options));
    if (harness == nullptr) return;
    ++ran;
    for (const Operation& operation : operations) harness->Run(operation);
    harness->Finish();
    steals += harness->model().pool().num_steals();
    packed += harness->model().pool().num_packed();
    no_space += harness->num_no_space();
    hit_copies += harness->num_hit_copies();
    state_copies += harness->num_state_copies();
  });
  EXPECT_GT(ran, 0);
  if (!GetParam().partial_hits) {
    EXPECT_EQ(hit_copies + state_copies, 0);
  }
  // With fewer cases, as a planted fault gets them, not everything has to occur.
  constexpr int64_t kEnoughCases = 100;
  if (ran < kEnoughCases) return;
  EXPECT_EQ(hit_copies > 0 && state_copies > 0, GetParam().partial_hits);
  // The pools are small enough for every rule of page classes to matter.
  if (!GetParam().native || GetParam().native->pages_per_chunk.size() == 1) return;
  EXPECT_GT(steals, 0);
  EXPECT_GT(packed, 0);
  EXPECT_GT(no_space, 0);
}

INSTANTIATE_TEST_SUITE_P(Shapes, ManagerPropertyTest, ::testing::ValuesIn(Shapes()),
                         [](const auto& test) { return test.param.name; });

}  // namespace
}  // namespace kvblocks::property
