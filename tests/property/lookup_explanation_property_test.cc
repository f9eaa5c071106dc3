// Explanations of look-ups against the naive model of naive_explanation.h.

#include <gtest/gtest.h>
#include <rapidcheck.h>

#include <algorithm>
#include <map>
#include <memory>
#include <utility>
#include <vector>

#include "kvblocks/lookup_explanation.h"
#include "tests/oracle/group_rules.h"
#include "tests/property/check_property.h"
#include "tests/property/naive_explanation.h"
#include "tests/property/scenario.h"

namespace kvblocks::property {
namespace {

class World {
 public:
  World(const Scenario& scenario, std::unique_ptr<KvCacheManager> manager)
      : max_model_len_(scenario.options.max_model_len),
        manager_(std::move(manager)),
        history_(*manager_, static_cast<size_t>(scenario.options.lookup_history_blocks)) {}

  void Run(const Operation& operation) {
    Numbers numbers(operation.numbers);
    const int kind = operation.kind;
    manager_->NewStepStarts();
    if (kind < 45 || live_.empty()) {
      Admit(numbers);
    } else if (kind < 65) {
      Decode(live_[Pick(numbers)], numbers);
    } else if (kind < 90) {
      const size_t index = Pick(numbers);
      RC_ASSERT(manager_->Free(*live_[index].request).ok());
      live_.erase(live_.begin() + static_cast<std::ptrdiff_t>(index));
    } else if (kind < 98) {
      history_.Before();
      std::vector<BlockId> ids;
      for (int i = 0; i < 3; ++i) {
        ids.push_back(static_cast<BlockId>(numbers.Below(manager_->pool().num_blocks())));
      }
      RC_ASSERT(manager_->EvictBlocks(ids).ok());
      history_.AfterRemoval();
    } else {
      live_.clear();
      history_.BeforeReset();
      RC_ASSERT(manager_->ResetPrefixCache());
    }
    RC_ASSERT(manager_->pool().num_blocks_taken() == history_.num_blocks_taken());
  }

 private:
  size_t Pick(Numbers& numbers) {
    return static_cast<size_t>(numbers.Below(static_cast<int64_t>(live_.size())));
  }

  void Admit(Numbers& numbers) {
    Known known;
    const int64_t length = 1 + numbers.Below(max_model_len_);
    const int64_t shared = numbers.Below(length + 1);
    const auto family = static_cast<TokenId>(100 * numbers.Below(2));
    const auto tail = static_cast<TokenId>(1000 * (1 + numbers.Below(3)));
    for (int64_t i = 0; i < length; ++i) {
      known.tokens.push_back(static_cast<TokenId>(i) + (i < shared ? family : tail));
    }
    known.content.token_ids = known.tokens;
    const char* salts[] = {"", "", "s", "t"};
    known.content.cache_salt = salts[numbers.Below(4)];
    if (numbers.OneIn(5)) known.content.lora_name = "lora";
    if (numbers.OneIn(4)) {
      const char* images[] = {"cat", "dog"};
      known.content.features = {{images[numbers.Below(2)], numbers.Below(length), 3}};
    }
    known.request = manager_->NewRequest({.id = "r", .content = known.content}).value();
    Check(known);
    Allocate(known, /*is_new=*/true, length);
    if (manager_->HoldsBlocks(*known.request)) live_.push_back(std::move(known));
  }

  void Decode(Known& known, Numbers& numbers) {
    const int64_t count = 1 + numbers.Below(6);
    if (known.request->num_tokens() + count > max_model_len_) return;
    std::vector<TokenId> tokens;
    for (int64_t i = 0; i < count; ++i) tokens.push_back(static_cast<TokenId>(numbers.Below(2)));
    RC_ASSERT(known.request->AppendOutputTokens(tokens).ok());
    known.tokens.insert(known.tokens.end(), tokens.begin(), tokens.end());
    Check(known);
    Allocate(known, /*is_new=*/false, count);
  }

  void Allocate(Known& known, bool is_new, int64_t num_tokens) {
    ComputedBlocks hits;
    AllocateSlotsParams params;
    if (is_new) {
      hits = manager_->GetComputedBlocks(*known.request).value();
      params.computed_blocks = &hits;
    }
    params.num_new_tokens = num_tokens - hits.num_tokens();
    history_.Before(known.request.get());
    const auto slots = manager_->AllocateSlots(*known.request, params).value();
    if (!slots) return;
    history_.AfterAllocation(known, *slots);
    known.request->set_num_computed_tokens(known.request->num_computed_tokens() +
                                           hits.num_tokens() + params.num_new_tokens);
  }

  void Check(const Known& known) {
    const Request& request = *known.request;
    const auto why = ExplainLookup(*manager_, request).value();
    RC_ASSERT(why.num_tokens == request.num_tokens());
    const ComputedBlocks hits = manager_->GetComputedBlocks(request).value();
    RC_ASSERT(why.num_hit_tokens == hits.num_tokens());
    const auto memory = static_cast<size_t>(manager_->options().lookup_history_blocks);
    RC_ASSERT(why.num_removals_remembered.has_value() ==
              (memory > 0 && history_.num_removals() > memory));

    Expectation expected(*manager_, history_, known);
    expected.SetReplayed(hits.num_tokens(), hits.num_replayed_tokens());
    int64_t token = why.num_hit_tokens;
    Expectation::Token last;
    for (const MissedRun& run : why.missed) {
      RC_ASSERT(run.first_token == token);
      RC_ASSERT(run.num_tokens > 0);
      RC_ASSERT((run.block >= 0) == run.absence.has_value());
      if (run.block >= 0 && expected.IsLookedUp(run.group)) {
        RC_ASSERT(!expected.HasBlock(run.group, run.block));
        RC_ASSERT(Describe(*run.absence) == Describe(expected.Why(run.group, run.block)));
      }
      for (; token < run.first_token + run.num_tokens; ++token) {
        last = expected.At(token, last);
        RC_ASSERT(Show(run.reason, run.group, run.absence) ==
                  Show(last.reason, last.group, last.absence));
      }
    }
    RC_ASSERT(token == request.num_tokens());
    const auto by_reason = why.TokensByReason();
    int64_t sum = 0;
    for (int64_t tokens : by_reason) sum += tokens;
    RC_ASSERT(sum == why.num_tokens - why.num_hit_tokens);

    int64_t num_looked_up = 0;
    for (GroupId g = 0; g < manager_->num_groups(); ++g) num_looked_up += expected.IsLookedUp(g);
    RC_ASSERT(static_cast<int64_t>(why.groups.size()) == num_looked_up);
    for (const GroupReach& reach : why.groups) CheckReach(reach, expected, request, why);
  }

  void CheckReach(const GroupReach& reach, const Expectation& expected, const Request& request,
                  const LookupExplanation& why) {
    const bool draft = manager_->group(reach.group).draft_margin() > 0;
    const int64_t margin = draft ? expected.Size(reach.group) : 0;
    const Semantics& semantics = manager_->options().semantics;
    int64_t end = (request.num_tokens() - 1) / why.hit_alignment * why.hit_alignment;
    const bool may_drop_last = !semantics.is_025 && manager_->num_groups() > 1;
    const SingleTypeManager& group = manager_->group(reach.group);
    const auto serves = [&](int64_t tokens) {
      return (group.hits_unhashed_tokens() || expected.IsHashed(tokens + margin)) &&
             (tokens + margin < request.num_tokens() || may_drop_last) &&
             !expected.MissingToken(reach.group, tokens) &&
             (!draft || expected.HasToken(reach.group, tokens));
    };
    while (end > 0 && !serves(end)) end -= why.hit_alignment;
    if (draft && !semantics.is_025 && group.spec().sliding_window() &&
        group.block_size() != why.hit_alignment && end > 0 &&
        end < oracle::CeilDiv(*group.spec().sliding_window() - 1, group.block_size()) *
                  group.block_size()) {
      end -= why.hit_alignment;  // D-3
    }
    RC_ASSERT(reach.num_hit_tokens == end);
    const int64_t longer = reach.num_hit_tokens + why.hit_alignment;
    if (!draft && longer < request.num_tokens() && expected.IsHashed(longer)) {
      RC_ASSERT(reach.stop_block.has_value());
    }
    if (!reach.stop_block) return;
    RC_ASSERT(!expected.HasBlock(reach.group, *reach.stop_block));
    RC_ASSERT(reach.absence == expected.Why(reach.group, *reach.stop_block));
  }

  const int64_t max_model_len_;
  std::unique_ptr<KvCacheManager> manager_;
  NaiveHistory history_;
  std::vector<Known> live_;
};

class LookupExplanationPropertyTest : public ::testing::TestWithParam<Shape> {};

TEST_P(LookupExplanationPropertyTest, AgreesWithTheNaiveModel) {
  if (GetParam().always_caching_off || GetParam().partial_hits) return;
  int64_t ran = 0;
  CheckProperty(25, [&] {
    Scenario scenario = MakeScenario(GetParam(), *rc::gen::inRange<uint64_t>(0, uint64_t{1} << 40));
    scenario.options.enable_caching = true;
    // Not looked up, but they would be remembered.
    scenario.options.semantics.registers_unusable_tails = false;
    scenario.options.lookup_history_blocks = *rc::gen::element<int64_t>(1000, 20, 3, 0);
    const auto operations = *Operations(60);
    auto manager = KvCacheManager::Create(scenario.config, scenario.options);
    if (!manager.ok()) return;  // the pool is too small for the sinks
    ++ran;
    World world(scenario, *std::move(manager));
    for (const Operation& operation : operations) world.Run(operation);
  });
  EXPECT_GT(ran, 0);
}

// Where hits end inside blocks: every run's reason is held against what each group alone can serve.
class PartialWorld {
 public:
  PartialWorld(const KvCacheManagerOptions& options, std::unique_ptr<KvCacheManager> manager)
      : max_model_len_(options.max_model_len), manager_(std::move(manager)) {}

  void Run(const Operation& operation) {
    Numbers numbers(operation.numbers);
    if (operation.kind < 60 || live_.empty()) {
      Admit(numbers);
    } else {
      const auto index = numbers.Below(static_cast<int64_t>(live_.size()));
      live_.erase(live_.begin() + static_cast<std::ptrdiff_t>(index));
    }
  }
  int64_t num_inside() const { return num_inside_; }
  const std::map<MissReason, int64_t>& reasons() const { return reasons_; }

 private:
  void Admit(Numbers& numbers) {
    std::vector<TokenId> tokens;
    const int64_t unit = manager_->hash_block_size();
    int64_t length = 1 + numbers.Below(max_model_len_);
    int64_t shared = numbers.Below(length + 1);
    if (numbers.OneIn(4)) {  // a prefix of others, all of which may be cached
      length = shared = std::max(unit, length / unit * unit);
    }
    const auto tail = static_cast<TokenId>(1000 * (1 + numbers.Below(3)));
    for (int64_t i = 0; i < length; ++i) {
      tokens.push_back(static_cast<TokenId>(i) + (i < shared ? 0 : tail));
    }
    const char* salts[] = {"", "", "s"};
    auto request = manager_
                       ->NewRequest({.id = "r",
                                     .content = {.token_ids = tokens,
                                                 .cache_salt = salts[numbers.Below(3)]}})
                       .value();
    Check(*request);
    // In parts that end where states are found again, or anywhere.
    ComputedBlocks hits = manager_->GetComputedBlocks(*request).value();
    for (GroupId g = 0; g < manager_->num_groups() && hits.num_tokens() > 0; ++g) {
      num_inside_ += hits.num_tokens() % manager_->group(g).block_size() != 0;
    }
    bool is_first = true;
    while (request->num_computed_tokens() < length) {
      const int64_t computed = is_first ? hits.num_tokens() : request->num_computed_tokens();
      int64_t end = numbers.OneIn(2) ? (length - 1) / unit * unit : computed + 1 + numbers.Below(9);
      if (end <= computed || end > length) end = length;
      manager_->NewStepStarts();
      const auto slots =
          manager_
              ->AllocateSlots(*request, {.num_new_tokens = end - computed,
                                         .computed_blocks = is_first ? &hits : nullptr})
              .value();
      if (!slots) return;
      is_first = false;
      RC_ASSERT(manager_->ReleaseBlockCopies(manager_->TakeBlockCopies()).ok());
      request->set_num_computed_tokens(end);
    }
    live_.push_back(std::move(request));
  }

  // The longest hit of a group that may be at most `end` tokens long.
  int64_t Alone(const Request& request, GroupId g, int64_t end) const {
    HitLists lists(static_cast<size_t>(manager_->num_groups()));
    const int64_t most = std::min(end, request.content().num_hashed_tokens());
    return manager_->group(g).FindLongestCacheHit({.content = &request.content(),
                                                   .groups = {&g, 1},
                                                   .max_tokens = most,
                                                   .alignment = manager_->hash_block_size()},
                                                  lists);
  }

  void Check(const Request& request) {
    const auto why = ExplainLookup(*manager_, request).value();
    const int64_t n = request.num_tokens(), unit = manager_->hash_block_size();
    RC_ASSERT(why.num_hit_tokens == manager_->GetComputedBlocks(request)->num_tokens());
    RC_ASSERT(why.hit_alignment == unit);
    bool has_draft = false;
    for (GroupId g = 0; g < manager_->num_groups(); ++g) {
      has_draft = has_draft || manager_->group(g).draft_margin() > 0;
    }
    int64_t token = why.num_hit_tokens;
    for (const MissedRun& run : why.missed) {
      RC_ASSERT(run.first_token == token);
      RC_ASSERT(run.num_tokens > 0);
      ++reasons_[run.reason];
      for (; token < run.first_token + run.num_tokens; token += unit) {
        const int64_t end = token + unit;
        switch (run.reason) {
          case MissReason::kGroupVeto:
            RC_ASSERT(!manager_->group(run.group).is_full_type());
            RC_ASSERT(end < n);
            if (token == run.first_token) RC_ASSERT(Alone(request, run.group, end) < end);
            for (GroupId g = 0; g < manager_->num_groups(); ++g) {
              if (manager_->group(g).is_full_type()) RC_ASSERT(Alone(request, g, n - 1) >= end);
            }
            break;
          case MissReason::kDraftDrop:
            RC_ASSERT(has_draft);
            break;
          case MissReason::kFirstUse:
          case MissReason::kEvicted:
          case MissReason::kSaltOrAdapter:
          case MissReason::kNotKept:
          case MissReason::kNotCached:
            RC_ASSERT(Alone(request, run.group, end) < end);
            break;
          case MissReason::kPartialBlock:
          case MissReason::kShorterThanABlock:
            RC_ASSERT(token >= n / unit * unit);
            break;
          case MissReason::kLookahead:
            RC_ASSERT(end > request.content().num_hashed_tokens());
            break;
          default:
            RC_ASSERT(run.reason == MissReason::kLastToken || run.reason == MissReason::kAlignment);
        }
      }
      token = std::min(token, run.first_token + run.num_tokens);
    }
    RC_ASSERT(token == n);
    for (const GroupReach& reach : why.groups) {
      if (!reach.stop_block) continue;
      RC_ASSERT(reach.absence.has_value());
      const int64_t margin = manager_->group(reach.group).draft_margin();
      const int64_t end = reach.num_hit_tokens + unit;
      RC_ASSERT(Alone(request, reach.group, end) < end ||
                Alone(request, reach.group, end + margin) < end + margin);
    }
  }

  const int64_t max_model_len_;
  std::unique_ptr<KvCacheManager> manager_;
  std::vector<std::unique_ptr<Request>> live_;
  int64_t num_inside_ = 0;
  std::map<MissReason, int64_t> reasons_;
};

TEST_P(LookupExplanationPropertyTest, HitsInsideBlocksAreExplained) {
  if (!GetParam().partial_hits) return;
  int64_t num_inside = 0;
  std::map<MissReason, int64_t> reasons;
  CheckProperty(60, [&] {
    Scenario scenario = MakeScenario(GetParam(), *rc::gen::inRange<uint64_t>(0, uint64_t{1} << 40));
    scenario.options.enable_caching = true;
    scenario.options.lookup_history_blocks = *rc::gen::element<int64_t>(1000, 20, 0);
    const auto operations = *Operations(60);
    auto manager = KvCacheManager::Create(scenario.config, scenario.options);
    if (!manager.ok()) return;  // the pool is too small for the sinks
    PartialWorld world(scenario.options, *std::move(manager));
    for (const Operation& operation : operations) world.Run(operation);
    num_inside += world.num_inside();
    for (const auto& [reason, count] : world.reasons()) reasons[reason] += count;
  });
  ExpectOccurred("hits inside blocks", num_inside, 40);
  const std::pair<MissReason, int64_t> usual[] = {{MissReason::kGroupVeto, 200},
                                                  {MissReason::kLastToken, 10},
                                                  {MissReason::kEvicted, 100},
                                                  {MissReason::kFirstUse, 500}};
  for (const auto& [reason, count] : usual) {
    ExpectOccurred(MissReasonName(reason), reasons[reason], count);
  }
}

INSTANTIATE_TEST_SUITE_P(Shapes, LookupExplanationPropertyTest, ::testing::ValuesIn(Shapes()),
                         [](const auto& test) { return test.param.name; });

}  // namespace
}  // namespace kvblocks::property
