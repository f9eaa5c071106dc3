// INV-32: the same calls give the same ids, orders and events. INV-33: the free order does not
// change hit lengths while no cached block has been reused.

#include <gtest/gtest.h>
#include <rapidcheck.h>

#include "tests/property/check_property.h"
#include "tests/property/harness.h"

namespace kvblocks::property {
namespace {

class DeterminismPropertyTest : public ::testing::TestWithParam<Shape> {};

TEST_P(DeterminismPropertyTest, SameCallsSameAnswers) {
  CheckProperty(12, [&] {
    const Scenario scenario =
        MakeScenario(GetParam(), *rc::gen::inRange<uint64_t>(0, uint64_t{1} << 40));
    const auto operations = *Operations(60);
    const auto a = Harness::Create(scenario);
    const auto b = Harness::Create(scenario);
    RC_PRE(a != nullptr);
    for (const Operation& operation : operations) {
      a->Run(operation);
      b->Run(operation);
      RC_ASSERT(a->log() == b->log());
      RC_ASSERT(a->manager().pool().WalkFree() == b->manager().pool().WalkFree());
      for (BlockId id = 1; id < a->manager().pool().num_blocks(); ++id) {
        const KvCacheBlock& left = a->manager().pool().block(id);
        const KvCacheBlock& right = b->manager().pool().block(id);
        RC_ASSERT(left.key_group == right.key_group);
        if (left.has_key()) {
          RC_ASSERT(a->manager().pool().hash(id) == b->manager().pool().hash(id));
        }
      }
    }
  });
}

TEST_P(DeterminismPropertyTest, FreeOrderDoesNotChangeHitsBeforeReuse) {
  CheckProperty(50, [&] {
    Scenario scenario = MakeScenario(GetParam(), *rc::gen::inRange<uint64_t>(0, uint64_t{1} << 40));
    SetPoolSize(scenario.config, 4000);
    const auto requests = *Operations(40);
    std::vector<int64_t> hits[2];
    for (const FreeOrder order : {FreeOrder::kUnhashedFirst, FreeOrder::kAppendAll}) {
      scenario.options.free_order = order;
      const auto manager = KvCacheManager::Create(scenario.config, scenario.options).value();
      std::vector<int64_t>& lengths = hits[order == FreeOrder::kAppendAll];
      for (const Operation& operation : requests) {
        Numbers numbers(operation.numbers);
        const int64_t shared = numbers.Below(scenario.options.max_model_len);
        std::vector<TokenId> prompt;
        for (int64_t i = 0; i < shared; ++i) prompt.push_back(static_cast<TokenId>(i));
        prompt.push_back(static_cast<TokenId>(1000 + numbers.Below(3)));
        const auto request =
            manager->NewRequest({.id = "r", .content = {.token_ids = prompt}}).value();
        manager->NewStepStarts();
        const ComputedBlocks found = manager->GetComputedBlocks(*request).value();
        lengths.push_back(found.num_tokens());
        const auto slots = manager->AllocateSlots(
            *request, {.num_new_tokens = request->num_tokens() - found.num_tokens(),
                       .computed_blocks = &found});
        RC_ASSERT(slots.ok());
        RC_ASSERT(slots->has_value());
        RC_ASSERT(manager->Free(*request).ok());
      }
      RC_ASSERT(manager->pool().num_evictions() == 0);
    }
    RC_ASSERT(hits[0] == hits[1]);
  });
}

INSTANTIATE_TEST_SUITE_P(Shapes, DeterminismPropertyTest, ::testing::ValuesIn(Shapes()),
                         [](const auto& test) { return test.param.name; });

}  // namespace
}  // namespace kvblocks::property
