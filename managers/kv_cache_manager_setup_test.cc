#include "managers/kv_cache_manager_setup.h"

#include <cmath>
#include <limits>
#include <string>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "managers/testing/test_models.h"

namespace kvblocks {
namespace {

using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

constexpr int64_t kLargest = std::numeric_limits<int64_t>::max();
constexpr int64_t kLeast = std::numeric_limits<int64_t>::min();

std::string SetupRefusal(const KvCacheConfig& config, const KvCacheManagerOptions& options) {
  const auto manager = KvCacheManager::Create(config, options);
  EXPECT_EQ(manager.status().code(), absl::StatusCode::kInvalidArgument);
  return std::string(manager.status().message());
}

std::string Number(int64_t n) { return std::to_string(n); }

TEST(KvCacheManagerSetupTest, NumbersOutOfRangeAreRefusedByFieldValueAndLimit) {
  const std::string most = Number(kMaxTokens);
  for (int64_t value : {int64_t{0}, int64_t{-1}, kLeast, kLargest}) {
    const auto refused = [&](const KvCacheConfig& config, const KvCacheManagerOptions& options,
                             const std::string& field) {
      EXPECT_THAT(SetupRefusal(config, options), AllOf(HasSubstr(field), HasSubstr(Number(value))));
    };
    refused(Config(value, {Full(4)}), {.max_model_len = 100}, "num_blocks");
    refused(Config(10, {Full(4)}), {.max_model_len = value}, "max_model_len");
    refused(Config(10, {Full(4)}), {.max_model_len = 100, .max_in_flight_tokens = value},
            "max_in_flight_tokens");
    KvCacheConfig config = Config(10, {Full(4)});
    config.scheduler_block_size = value;
    refused(config, {.max_model_len = 100}, "scheduler_block_size");
    config = Config(10, {Full(4)});
    config.hash_block_size = value;
    refused(config, {.max_model_len = 100}, "hash_block_size");
  }
  EXPECT_THAT(SetupRefusal(Config(10, {Full(4)}), {.max_model_len = kMaxTokens + 1}),
              HasSubstr("expected 1 to " + most));
  EXPECT_THAT(SetupRefusal(Config((int64_t{1} << 31) - 1, {Full(4)}), {.max_model_len = 100}),
              HasSubstr("num_blocks: got 2147483647, expected a number from 1 to 2147483646"));
}

TEST(KvCacheManagerSetupTest, WatermarkIsAShareOfThePool) {
  for (double value :
       {-0.001, 1.001, 1e300, -1e300, std::nan(""), -std::nan(""),
        std::numeric_limits<double>::infinity(), -std::numeric_limits<double>::infinity()}) {
    EXPECT_THAT(SetupRefusal(Config(10, {Full(4)}), {.max_model_len = 100, .watermark = value}),
                AllOf(HasSubstr("watermark is "), HasSubstr("between 0 and 1")));
  }
  for (double value : {0.0, -0.0, 1.0}) {
    EXPECT_TRUE(
        KvCacheManager::Create(Config(10, {Full(4)}), {.max_model_len = 100, .watermark = value})
            .ok());
  }
}

TEST(KvCacheManagerSetupTest, SizesThatDoNotFitTogetherAreRefused) {
  struct Case {
    std::vector<KvCacheSpec> specs;
    std::optional<int64_t> scheduler;
    std::optional<int64_t> hash;
    const char* message;
  };
  const Case cases[] = {
      {{Full(4)}, 6, {}, "scheduler_block_size: got 6, expected a multiple of every group's"},
      {{Full(4), Full(6)}, 4, {}, "scheduler_block_size: got 4"},
      {{Full(4), Full(6)}, 18, {}, "scheduler_block_size: got 18"},
      {{Full(4), Full(8)}, 8, 3, "scheduler_block_size: got 8, expected a multiple of hash_block"},
      {{Full(4), Full(8)},
       {},
       8,
       "hash_block_size is 8, expected a divisor of groups[0] (full_attention)'s block size 4"},
      {{Full(4), Full(8)}, {}, 3, "scheduler_block_size is 8, expected a multiple of hash_block"},
      {{Full(4)}, {}, 2, "hash_block_size is 2, expected the only group's block size 4"},
      {{Chunked(4, 8), Full(8)},
       {},
       {},
       "groups[0] (chunked_local_attention) has block size 4, expected the scheduler block size 8"},
      {{Full(1 << 25), Full((1 << 25) - 1)}, {}, {}, "their least common multiple exceeds"},
  };
  for (const Case& c : cases) {
    KvCacheConfig config = Config(100, c.specs);
    config.scheduler_block_size = c.scheduler;
    config.hash_block_size = c.hash;
    EXPECT_THAT(SetupRefusal(config, {.max_model_len = 100}), HasSubstr(c.message));
  }
}

TEST(KvCacheManagerSetupTest, SizesAreDerivedFromTheGroups) {
  const auto sizes = [](std::vector<KvCacheSpec> specs, bool caching) {
    const auto resolved = ResolveBlockSizes(
        Config(10, std::move(specs)), {.enable_caching = caching});
    EXPECT_TRUE(resolved.ok()) << resolved.status();
    return std::pair(resolved->scheduler_block_size, resolved->hash_block_size);
  };
  EXPECT_EQ(sizes({}, false), std::pair(int64_t{1}, int64_t{1}));
  EXPECT_EQ(sizes({Full(16)}, true), std::pair(int64_t{16}, int64_t{16}));
  EXPECT_EQ(sizes({Full(4), Full(6)}, true), std::pair(int64_t{12}, int64_t{2}));
  EXPECT_EQ(sizes({Full(4), Full(6)}, false), std::pair(int64_t{12}, int64_t{12}));
  EXPECT_EQ(sizes({Full(256), Window(64, 128), Window(4, 8), Window(8, 128)}, true),
            std::pair(int64_t{256}, int64_t{4}));
}

TEST(KvCacheManagerSetupTest, SizesCanBeGiven) {
  KvCacheConfig config = Config(50, {Full(4), Full(8)});
  config.scheduler_block_size = 16;
  config.hash_block_size = 2;
  const auto manager = Manager(config);
  EXPECT_EQ(manager->scheduler_block_size(), 16);
  EXPECT_EQ(manager->hash_block_size(), 2);
  const auto donor = NewRequest(*manager, Tokens(40));
  ASSERT_TRUE(Step(*manager, *donor, 40));
  EXPECT_EQ(Hits(*manager, *NewRequest(*manager, Tokens(40))).num_tokens(), 32);
}

TEST(KvCacheManagerSetupTest, CachingNeedsAGroup) {
  EXPECT_THAT(SetupRefusal(Config(10, {}), {.max_model_len = 100}), HasSubstr("groups is empty"));
}

TEST(KvCacheManagerSetupTest, SinksMustLeaveSomethingToHandOut) {
  // Two sinks of 2 and 1 blocks, next to the null block.
  const std::vector<KvCacheSpec> specs = {Sink(4, 8), Sink(4, 4)};
  for (int64_t num_blocks : {1, 2, 3}) {
    EXPECT_THAT(SetupRefusal(Config(num_blocks, specs), {.max_model_len = 100}),
                AllOf(HasSubstr(absl::StrCat("num_blocks is ", num_blocks)),
                      HasSubstr("blocks that attention sinks take for good")));
  }
  const auto manager = Manager(4, specs);
  EXPECT_EQ(manager->num_free_blocks(), 0);
  EXPECT_EQ(manager->usage(), 0.0);
}

TEST(KvCacheManagerSetupTest, DraftingAndChunksDoNotGoTogether) {
  const KvCacheConfig both = Config(20, {Full(4), Chunked(4, 8)});
  EXPECT_THAT(SetupRefusal(both, {.max_model_len = 100, .use_eagle = true}),
              HasSubstr("groups[1] (chunked_local_attention) is a draft group"));
  KvCacheConfig flagged = both;
  flagged.groups[1].is_draft = true;
  // A flag alone does nothing (V-13).
  EXPECT_TRUE(KvCacheManager::Create(flagged, {.max_model_len = 100}).ok());
  EXPECT_THAT(SetupRefusal(flagged, {.max_model_len = 100, .semantics = Semantics::Vllm025()}),
              HasSubstr("groups[1]"));
  flagged = both;
  flagged.groups[0].is_draft = true;
  EXPECT_TRUE(KvCacheManager::Create(flagged, {.max_model_len = 100, .use_eagle = true}).ok());
}

TEST(KvCacheManagerSetupTest, DraftFlagsReachSiblingsAndWithoutFlagsAll) {
  KvCacheConfig config = Config(20, {Full(4), Window(4, 8), Full(4)});
  KvCacheManagerOptions options;
  KvCacheManagerOptions eagle{.use_eagle = true};
  EXPECT_THAT(EffectiveDraftFlags(config, options), ElementsAre(false, false, false));
  EXPECT_THAT(EffectiveDraftFlags(config, eagle), ElementsAre(true, true, true));
  config.groups[2].is_draft = true;
  EXPECT_THAT(EffectiveDraftFlags(config, eagle), ElementsAre(true, false, true));
  EXPECT_THAT(EffectiveDraftFlags(config, options), ElementsAre(false, false, false));
  options.semantics = Semantics::Vllm025();
  EXPECT_THAT(EffectiveDraftFlags(config, options), ElementsAre(true, false, true));
  eagle.num_hash_lookahead_tokens = 1;  // then nothing is dropped (V-10)
  EXPECT_THAT(EffectiveDraftFlags(config, eagle), ElementsAre(false, false, false));
}

TEST(KvCacheManagerSetupTest, TooManyGroupsAreRefused) {
  KvCacheConfig config = Config(10, {});
  config.groups.assign(static_cast<size_t>(kMaxGroupId) + 2, KvCacheGroup{.spec = Full(4)});
  EXPECT_THAT(SetupRefusal(config, {.max_model_len = 100}),
              HasSubstr("groups has 32768 entries, expected at most 32767"));
}

TEST(KvCacheManagerSetupTest, LayerNamesMustBeUnique) {
  KvCacheConfig config = Config(10, {Full(4), Full(8)});
  config.groups[0].layer_names = {"layer.0"};
  config.groups[1].layer_names = {"layer.1", "layer.0"};
  EXPECT_THAT(SetupRefusal(config, {.max_model_len = 100}), HasSubstr("groups[1].layer_names[1]"));
}

TEST(KvCacheManagerSetupTest, CapsFollowTheChosenFormula) {
  const auto cap = [](const KvCacheSpec& spec, BlockCountFormula formula) {
    return Manager(
               Config(20, {spec}),
               {.max_model_len = 400, .max_in_flight_tokens = 16, .block_count_formula = formula})
        ->group(0)
        .admission_cap();
  };
  EXPECT_EQ(cap(Full(4), BlockCountFormula::kExact), std::nullopt);
  EXPECT_EQ(cap(Window(4, 8), BlockCountFormula::kUpstream), 7);  // cdiv(7 + 16, 4) + 1
  EXPECT_EQ(cap(Window(4, 8), BlockCountFormula::kExact), 7);     // 23 tokens anywhere
  EXPECT_EQ(cap(Window(4, 10), BlockCountFormula::kUpstream), 8);
  EXPECT_EQ(cap(Window(4, 10), BlockCountFormula::kExact), 7);  // 25 tokens anywhere
  EXPECT_EQ(cap(Chunked(4, 8), BlockCountFormula::kUpstream), 6);
}

}  // namespace
}  // namespace kvblocks
