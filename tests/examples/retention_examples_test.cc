// Worked examples: sparse and dense registration.

#include <gtest/gtest.h>

#include "gmock/gmock.h"
#include "tests/examples/model.h"
#include "tests/group_specs.h"

namespace kvblocks::examples {
namespace {

using testing::Chunked;
using testing::Full;
using ::testing::HasSubstr;
using testing::Mamba;
using testing::Window;

KvCacheManagerOptions Retention(std::optional<int64_t> interval) {
  KvCacheManagerOptions options = Model::Options();
  options.semantics.retention_interval = interval;
  return options;
}

void ExpectTwoGroups(const KvCacheManagerOptions& options, const std::vector<int>& registered,
                     int64_t same, int64_t prefix) {
  Model m(100, {Full(32), Window(8, 8)}, options);
  Request& a = m.New(Range(0, 127));
  ASSERT_TRUE(m.Alloc(a, 128));
  EXPECT_EQ(m.Registered(a, 0), (std::vector<int>{0, 1, 2, 3}));
  EXPECT_EQ(m.Registered(a, 1), registered);
  EXPECT_EQ(m.HitTokens(m.New(Range(0, 127))), same);
  EXPECT_EQ(m.HitTokens(m.New(Range(0, 95))), prefix);
}

void ExpectOneGroup(int64_t interval, const std::vector<int>& registered) {
  Model m(100, {Window(16, 16)}, Retention(interval));
  Request& a = m.New(Range(0, 255));
  ASSERT_TRUE(m.Alloc(a, 256));
  EXPECT_EQ(m.Registered(a, 0), registered);
  EXPECT_EQ(m.HitTokens(m.New(Range(0, 255))), 240);
}

std::string Refusal(const std::vector<KvCacheSpec>& specs, const KvCacheManagerOptions& options) {
  KvCacheConfig config{.num_blocks = 100};
  for (const KvCacheSpec& spec : specs) config.groups.push_back({.spec = spec});
  const auto manager = KvCacheManager::Create(config, options);
  return manager.ok() ? "accepted" : std::string(manager.status().message());
}

TEST(BlockManagerExamples, WE45_Retention) {
  ExpectTwoGroups(Retention(std::nullopt), {3, 7, 11, 15}, 96, 64);
  ExpectTwoGroups(Retention(64), {7, 11, 15}, 96, 64);
  ExpectTwoGroups(Retention(0), {11}, 96, 0);
  for (const int64_t bad : {33, -32}) {
    EXPECT_EQ(Refusal({Full(32), Window(8, 8)}, Retention(bad)),
              "retention_interval is " + std::to_string(bad) +
                  " tokens, expected a multiple of the scheduler block size 32 from 0 to "
                  "1099511627776");
  }
  ExpectOneGroup(64, {3, 7, 11, 14, 15});
  ExpectOneGroup(0, {14});
}

TEST(RetentionTest, NeedsAGroupThatRegistersSparsely) {
  EXPECT_THAT(Refusal({Full(32), Chunked(32, 64)}, Retention(64)),
              HasSubstr("expected 0 or none without a window or Mamba group"));
  EXPECT_EQ(Refusal({Full(32)}, Retention(0)), "accepted");
  EXPECT_EQ(Refusal({Full(32), Mamba(32, MambaCacheMode::kAll)}, Retention(64)), "accepted");
}

// As older engines did: every block that is full.
TEST(DenseRegistrationTest, RegistersWhatNoHitCanUse) {
  KvCacheManagerOptions options = Model::Options();
  options.register_unreachable_blocks = true;
  ExpectTwoGroups(options, {0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15}, 96, 64);
  Model m(100, {Full(32), Window(8, 8)}, options);
  Request& a = m.New(Range(0, 59));
  ASSERT_TRUE(m.Alloc(a, 60));
  EXPECT_EQ(m.Registered(a, 1), (std::vector<int>{0, 1, 2, 3, 4, 5, 6}));
  options.semantics.retention_interval = 64;
  EXPECT_THAT(Refusal({Full(32), Window(8, 8)}, options),
              HasSubstr("register_unreachable_blocks is set next to retention_interval"));
}

}  // namespace
}  // namespace kvblocks::examples
