// INV-31: a pool that holds one request of the longest length, by the caps, never answers "no
// space" to a single request, whatever the cache holds, with or without the gate. With page classes
// in chunks, hits may lie in so many chunks that the rest does not fit; without its hits the
// request always proceeds.

#include <gtest/gtest.h>
#include <rapidcheck.h>

#include <algorithm>
#include <cstdio>

#include "managers/kv_cache_manager_setup.h"
#include "tests/oracle/group_rules.h"
#include "tests/property/check_property.h"
#include "tests/property/harness.h"
#include "tests/property/scenario.h"

namespace kvblocks::property {
namespace {

// With a step behind, a state waits for each of the two steps.
int64_t BlocksOfGroup(const Scenario& scenario, const KvCacheSpec& spec, bool exact, bool may_lag) {
  const auto cap = oracle::AdmissionCapOf(spec, scenario.options.max_model_len,
                                          *scenario.options.max_in_flight_tokens, exact);
  // BM-6: of states as the mode says.
  const bool is_spread = spec.kind() != KvCacheSpecKind::kMamba;
  const int64_t ranks = !is_spread ? 1
                                   : scenario.options.decode_context_parallel *
                                         scenario.options.prefill_context_parallel;
  const int64_t block_size = spec.block_size() * ranks;
  int64_t uncapped = oracle::CeilDiv(scenario.options.max_model_len, block_size);
  if (spec.kind() == KvCacheSpecKind::kRing) uncapped = 1;
  if (const auto* mamba = spec.get_if<MambaSpec>()) {
    if (mamba->options().cache_mode == MambaCacheMode::kAlign) uncapped = may_lag ? 3 : 2;
    uncapped += mamba->options().num_speculative_blocks;
    uncapped += scenario.options.enable_caching ? mamba->options().num_checkpoint_blocks : 0;
  }
  // Next to its copy, the block where a hit ends or the state to be overwritten.
  const Semantics& semantics = scenario.options.semantics;
  const bool moves_states = spec.kind() == KvCacheSpecKind::kMamba &&
                            !semantics.is_025 && semantics.registers_unusable_tails;
  const auto sizes = ResolveBlockSizes(scenario.config, scenario.options);
  const bool may_copy = (scenario.options.partial_hits || moves_states) &&
                        scenario.options.enable_caching && sizes.ok() &&
                        block_size > sizes->hash_block_size;
  return cap.value_or(uncapped) + spec.sink_length() / spec.block_size() + (may_copy ? 1 : 0);
}

void FitOneRequest(Scenario& scenario, bool exact, bool may_lag) {
  KvCacheConfig& config = scenario.config;
  const size_t num_classes = config.native ? config.native->pages_per_chunk.size() : 1;
  std::vector<int64_t> blocks(num_classes, 0);
  for (size_t g = 0; g < config.groups.size(); ++g) {
    const size_t k = config.native ? static_cast<size_t>(config.native->class_of_group[g]) : 0;
    blocks[k] += BlocksOfGroup(scenario, config.groups[g].spec, exact, may_lag);
  }
  if (!config.native) {
    config.num_blocks = 1 + blocks[0];
    return;
  }
  config.native->num_chunks = 0;
  for (size_t k = 0; k < num_classes; ++k) {
    config.native->num_chunks += oracle::CeilDiv(blocks[k], config.native->pages_per_chunk[k]);
  }
  config.num_blocks = 1 + config.native->num_chunks * config.native->ids_per_chunk();
}

class LivenessPropertyTest : public ::testing::TestWithParam<Shape> {};

TEST_P(LivenessPropertyTest, OneRequestAlwaysProceeds) {
  int64_t retries = 0;
  CheckProperty(80, [&] {
    Scenario scenario = MakeScenario(GetParam(), *rc::gen::inRange<uint64_t>(0, uint64_t{1} << 40));
    scenario.options.watermark = 0;
    scenario.options.enable_events = false;
    const bool exact = scenario.options.block_count_formula == BlockCountFormula::kExact;
    const bool may_lag = *rc::gen::arbitrary<bool>();
    FitOneRequest(scenario, exact, may_lag);
    const auto manager = KvCacheManager::Create(scenario.config, scenario.options);
    RC_ASSERT(manager.ok());
    const int64_t limit = scenario.options.max_model_len;
    const int64_t in_flight = *scenario.options.max_in_flight_tokens;
    const int requests = *rc::gen::inRange<int>(1, 6);
    for (int r = 0; r < requests; ++r) {
      Numbers numbers(*rc::gen::inRange<uint64_t>(0, uint64_t{1} << 62));
      std::vector<TokenId> prompt;
      const int64_t shared = numbers.Below(limit);
      const int64_t length = shared + 1 + numbers.Below(limit - shared);
      for (int64_t i = 0; i < length; ++i) {
        prompt.push_back(static_cast<TokenId>(i < shared ? i : 1000 * (r + 1) + i));
      }
      const auto request =
          (*manager)->NewRequest({.id = "r", .content = {.token_ids = prompt}}).value();
      const bool gate = numbers.OneIn(2);
      const bool lagging = may_lag && in_flight > 1 && numbers.OneIn(2);
      // With a step behind, two steps share what may be in flight.
      const int64_t step =
          std::max<int64_t>(1, 1 + numbers.Below(lagging ? in_flight / 2 : in_flight));
      ComputedBlocks hits = (*manager)->GetComputedBlocks(*request).value();
      bool had_hits = hits.num_tokens() > 0;
      while (request->num_computed_tokens() < limit) {
        if (request->num_computed_tokens() == request->num_tokens()) {
          RC_ASSERT(
              request->AppendOutputTokens({static_cast<TokenId>(7000 + request->num_tokens())})
                  .ok());
        }
        const bool first = !(*manager)->HoldsBlocks(*request);
        const int64_t computed = request->num_computed_tokens() + (first ? hits.num_tokens() : 0);
        const int64_t n = std::min(step, request->num_tokens() - computed);
        (*manager)->NewStepStarts();
        const auto slots =
            (*manager)->AllocateSlots(*request, {.num_new_tokens = n,
                                                 .computed_blocks = first ? &hits : nullptr,
                                                 .full_sequence_must_fit = gate});
        RC_ASSERT(slots.ok());
        if (!slots->has_value()) {
          RC_ASSERT(scenario.config.native.has_value());
          RC_ASSERT(had_hits);
          had_hits = false;
          hits = ComputedBlocks();
          RC_ASSERT((*manager)->Free(*request).ok());
          request->MarkPreempted();
          ++retries;
          continue;
        }
        RC_ASSERT((*manager)->ReleaseBlockCopies((*manager)->TakeBlockCopies()).ok());
        request->set_num_computed_tokens(computed + n);
        request->set_num_inflight_tokens(lagging ? n : 0);
      }
      RC_ASSERT((*manager)->CheckInvariants().ok());
      RC_ASSERT((*manager)->Free(*request).ok());
    }
  });
  if (GetParam().native) {
    std::printf("%lld of the requests had to give up their hits\n",
                static_cast<long long>(retries));
  } else {
    EXPECT_EQ(retries, 0);
  }
}

INSTANTIATE_TEST_SUITE_P(Shapes, LivenessPropertyTest, ::testing::ValuesIn(Shapes()),
                         [](const auto& test) { return test.param.name; });

// INV-33: the free order does not change hit lengths while no cached block has been reused.

class FreeOrderPropertyTest : public ::testing::TestWithParam<Shape> {};

TEST_P(FreeOrderPropertyTest, DoesNotChangeHitsBeforeReuse) {
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

INSTANTIATE_TEST_SUITE_P(Shapes, FreeOrderPropertyTest, ::testing::ValuesIn(Shapes()),
                         [](const auto& test) { return test.param.name; });

}  // namespace
}  // namespace kvblocks::property
