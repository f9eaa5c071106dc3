// Look-ups in a cache full of holes: after some prompts were computed and freed, random cached
// blocks are evicted, and every prompt must hit what the oracle finds, in length, lists and
// shared-prefix boundary.

#include <gtest/gtest.h>
#include <rapidcheck.h>

#include "kvblocks/tests/property/check_property.h"
#include "kvblocks/tests/property/operation.h"
#include "kvblocks/tests/property/scenario.h"

namespace kvblocks::property {
namespace {

class LookupPropertyTest : public ::testing::TestWithParam<Shape> {};

// `length` tokens that share the first `shared` with every other prompt.
std::vector<TokenId> Prompt(int64_t shared, int64_t length, int64_t tail) {
  std::vector<TokenId> tokens;
  for (int64_t i = 0; i < length; ++i) {
    tokens.push_back(static_cast<TokenId>(i < shared ? i : 1000 * (tail + 1) + i));
  }
  return tokens;
}

TEST_P(LookupPropertyTest, HitsInAHoledCache) {
  CheckProperty(205, [&] {
    Scenario scenario = MakeScenario(GetParam(), *rc::gen::inRange<uint64_t>(0, uint64_t{1} << 40));
    SetPoolSize(scenario.config, 1000);
    scenario.options.max_model_len = scenario.oracle_options.max_model_len = 80;
    const auto manager = KvCacheManager::Create(scenario.config, scenario.options).value();
    oracle::Manager model(scenario.config, scenario.oracle_options);

    const int requests = *rc::gen::inRange<int>(1, 4);
    for (int r = 0; r < requests; ++r) {
      const int64_t length = *rc::gen::inRange<int64_t>(1, 81);
      const std::vector<TokenId> tokens =
          Prompt(*rc::gen::inRange<int64_t>(0, length + 1), length, r);
      // Without reading, so that later requests register duplicates, too.
      const auto request =
          manager
              ->NewRequest(
                  {.id = "r", .content = {.token_ids = tokens}, .skip_reading_prefix_cache = true})
              .value();
      oracle::Request expected = model.NewRequest({.tokens = tokens}, /*skip_reading=*/true);
      std::vector<std::vector<BlockId>> blocks;
      RC_ASSERT(manager->AllocateSlots(*request, {.num_new_tokens = length})->has_value());
      RC_ASSERT(model.Allocate(expected, {.num_new = length}, &blocks) == oracle::Outcome::kOk);
      RC_ASSERT(manager->Free(*request).ok());
      model.Free(expected);
    }
    const int share = *rc::gen::inRange<int>(0, 60);  // per cent
    uint64_t state = *rc::gen::inRange<uint64_t>(0, uint64_t{1} << 62);
    std::vector<BlockId> evicted;
    for (BlockId id = 1; id < manager->pool().num_blocks(); ++id) {
      state = state * 6364136223846793005u + 1442695040888963407u;
      const bool hole = static_cast<int>((state >> 33) % 100) < share;
      if (hole && manager->pool().block(id).has_key()) evicted.push_back(id);
    }
    RC_ASSERT(manager->EvictBlocks(evicted).ok());
    RC_ASSERT(model.Evict(evicted));

    for (int64_t length = 1; length <= 81; length += 3) {
      const std::vector<TokenId> tokens = Prompt(80, length, 0);
      const auto request =
          manager->NewRequest({.id = "r", .content = {.token_ids = tokens}}).value();
      const oracle::Request expected = model.NewRequest({.tokens = tokens}, false);
      const ComputedBlocks got = manager->GetComputedBlocks(*request).value();
      const oracle::Hits want = model.GetComputedBlocks(expected).value();
      RC_ASSERT(got.num_tokens() == want.tokens);
      RC_ASSERT(got.shared_prefix_boundary() == want.boundary);
      RC_ASSERT(got.num_replayed_tokens() == want.replayed);
      for (GroupId g = 0; g < manager->num_groups(); ++g) {
        const std::vector<BlockId> list(got.blocks(g).begin(), got.blocks(g).end());
        RC_ASSERT(list == want.lists[static_cast<size_t>(g)]);
      }
    }
  });
}

INSTANTIATE_TEST_SUITE_P(Shapes, LookupPropertyTest, ::testing::ValuesIn(Shapes()),
                         [](const auto& test) { return test.param.name; });

}  // namespace
}  // namespace kvblocks::property
