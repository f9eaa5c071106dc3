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
  const Shape& shape = GetParam();
  int64_t ran = 0;
  int64_t steals = 0;
  int64_t packed = 0;
  Harness::Counts sum;
  CheckProperty(125, [&] {
    const uint64_t options = *rc::gen::inRange<uint64_t>(0, uint64_t{1} << 40);
    const auto operations = *Operations(100);
    const auto harness = Harness::Create(MakeScenario(shape, options));
    if (harness == nullptr) return;
    ++ran;
    for (const Operation& operation : operations) harness->Run(operation);
    harness->Finish();
    steals += harness->model().pool().num_steals();
    packed += harness->model().pool().num_packed();
    sum += harness->counts();
  });
  EXPECT_GT(ran, 0);
  const bool has_classes = shape.native && shape.native->pages_per_chunk.size() > 1;
  const bool is_spread_state = shape.is_spread() && shape.partial_hits;
  // Everything that a shape is there for happens, and nothing that it cannot do.
  const struct {
    const char* what;
    bool can_occur;
    int64_t count, usual;
  } reached[] = {
      {"requests that did not fit", has_classes, sum.no_space, 500},
      {"chunks that changed hands", has_classes, steals, 14},
      {"pages taken to save a chunk", has_classes, packed, 4},
      {"copies of hits", shape.partial_hits, sum.hit_copies, 10},
      // With blocks of rows spread over ranks, states have hash blocks of their own.
      {"copies of states", shape.partial_hits && !is_spread_state, sum.state_copies, 12},
      {"hits in blocks on several ranks", shape.is_spread(), sum.hits, 6},
      {"old outputs given back", shape.has_output_windows(), sum.old_outputs, 5},
      {"rings shorter than their sequence", shape.has_rings(), sum.short_tables, 600},
      {"hits with a replay", shape.is_replayed(), sum.replays, 100},
      {"hits lost to a replay", shape.is_replayed(), sum.lost_hits, 200},
      {"states exported inside a step", shape.has_checkpoints(), sum.checkpoints, 40},
  };
  for (const auto& [what, can_occur, count, usual] : reached) {
    if (can_occur) ExpectOccurred(what, count, usual);
  }
  EXPECT_TRUE(shape.partial_hits || sum.hit_copies + sum.state_copies == 0);
  EXPECT_TRUE(shape.has_checkpoints() || sum.checkpoints == 0);
}

INSTANTIATE_TEST_SUITE_P(Shapes, ManagerPropertyTest, ::testing::ValuesIn(Shapes()),
                         [](const auto& test) { return test.param.name; });

}  // namespace
}  // namespace kvblocks::property
