// Retention through the manager: whose blocks it finds, what it refuses, and that it never stands
// in the way of an allocation.

#include <string>

#include "gtest/gtest.h"
#include "kvblocks/eviction.h"
#include "kvblocks/kv_cache_manager.h"
#include "managers/testing/test_models.h"

namespace kvblocks {
namespace {

const KvCacheManagerOptions kHalf = {.eviction_policy = ParseEvictionPolicy("lru").value(),
                                     .max_retained_share = 0.5};

std::string RefusalOf(KvCacheManager& manager, const Request& request,
                      const RetainParams& params) {
  return std::string(manager.Retain(request, params).status().message());
}

TEST(RetentionTest, WithoutACapNothingCanBeRetained) {
  const auto manager = Manager(20, {Full(4)});
  const auto request = NewRequest(*manager, Tokens(14));
  EXPECT_EQ(manager->retention(), nullptr);
  EXPECT_EQ(RefusalOf(*manager, *request, {}),
            "Retain(" + request->id() +
                "): max_retained_share is 0, with which no block of this pool can be retained; "
                "raise it");
  EXPECT_FALSE(manager->AdvanceTime(1).ok());
}

TEST(RetentionTest, ParametersOutsideTheirRangeAreRefused) {
  const auto manager = Manager(20, {Full(4)}, kHalf);
  const auto request = NewRequest(*manager, Tokens(14));
  const std::string start = "Retain(" + request->id() + "): ";
  EXPECT_EQ(RefusalOf(*manager, *request, {.num_tokens = 15}),
            start + "num_tokens is 15, expected 0 to 14, the tokens of the request");
  EXPECT_EQ(RefusalOf(*manager, *request, {.min_uses = 0}),
            start + "min_uses is 0, expected at least 1");
  EXPECT_EQ(RefusalOf(*manager, *request, {.priority = 101}),
            start + "priority is 101, expected 1 to 100");
  EXPECT_EQ(RefusalOf(*manager, *request, {.ttl = 0}),
            start + "ttl is 0, expected at least 1; leave it out to keep for good");
  ASSERT_TRUE(manager->AdvanceTime(7).ok());
  EXPECT_EQ(manager->AdvanceTime(6).message(),
            "AdvanceTime: now is 6, expected at least 7, the time told last");
}

// Half of 19 blocks is 9, which the two groups share token by token; the window keeps its end only.
TEST(RetentionTest, BlocksOfAllGroupsAreFoundAndTheCapHolds) {
  const auto manager = Manager(20, {Full(4), Window(4, 5)}, kHalf);
  const auto request = NewRequest(*manager, Tokens(14));
  ASSERT_TRUE(Step(*manager, *request, 14));
  const auto part = manager->Retain(*request, {.num_tokens = 11});
  ASSERT_TRUE(part.ok());
  EXPECT_GE(part->num_retained, 2);
  const auto whole = manager->Retain(*request, {});
  ASSERT_TRUE(whole.ok());
  EXPECT_EQ(whole->num_renewed, part->num_retained);
  EXPECT_GT(whole->num_retained, part->num_retained);
  EXPECT_EQ(manager->retention()->most(), 9);
  ASSERT_TRUE(manager->Free(*request).ok());
  EXPECT_EQ(manager->CheckInvariants(), absl::OkStatus());
  EXPECT_EQ(manager->num_free_blocks(), 19);
}

TEST(RetentionTest, BlocksThatFewRequestsUsedAreLeftOut) {
  const auto manager = Manager(20, {Full(4)}, kHalf);
  const auto first = NewRequest(*manager, Tokens(14));
  ASSERT_TRUE(Step(*manager, *first, 14));
  EXPECT_EQ(manager->Retain(*first, {.min_uses = 2})->num_retained, 0);
  const auto second = NewRequest(*manager, Tokens(14));
  const ComputedBlocks hits = Hits(*manager, *second);
  ASSERT_EQ(hits.num_tokens(), 12);
  ASSERT_TRUE(Step(*manager, *second, 2, {.computed_blocks = &hits}));
  EXPECT_EQ(manager->Retain(*second, {.min_uses = 2})->num_retained, 3);
  EXPECT_EQ(manager->Retain(*second, {.min_uses = 3})->num_retained, 0);
}

// Hidden states are hit from the first block on, as rows are: behind a gap they are of no use.
TEST(RetentionTest, HiddenStatesBehindAGapAreLeftOut) {
  const KvCacheSpec hidden = HiddenStateSpec::Create({.block_size = 4, .head_size = 64}).value();
  const auto manager = Manager(20, {Full(4), hidden}, kHalf);
  const auto request = NewRequest(*manager, Tokens(14));
  ASSERT_TRUE(Step(*manager, *request, 14));
  ASSERT_TRUE(manager->EvictBlocks({manager->GetBlocks(*request, 1)[1]}).ok());
  EXPECT_EQ(manager->Retain(*request, {})->num_retained, 3 + 1);
}

TEST(RetentionTest, ATimeToLiveCountsFromTheTimeToldLast) {
  const auto manager = Manager(20, {Full(4)}, kHalf);
  const auto request = NewRequest(*manager, Tokens(14));
  ASSERT_TRUE(Step(*manager, *request, 14));
  ASSERT_TRUE(manager->AdvanceTime(100).ok());
  ASSERT_TRUE(manager->Retain(*request, {.ttl = 10}).ok());
  ASSERT_TRUE(manager->AdvanceTime(109).ok());
  EXPECT_EQ(manager->retention()->size(), 3);
  ASSERT_TRUE(manager->AdvanceTime(110).ok());
  EXPECT_EQ(manager->retention()->size(), 0);
  EXPECT_EQ(manager->retention()->totals().num_expired, 3);
}

// A preference, never a leak: all of the pool is retained for good, and a request takes all of it.
TEST(RetentionTest, AnAllocationNeverFailsForRetainedBlocks) {
  const auto manager = Manager(6, {Full(4)},
                               {.eviction_policy = kHalf.eviction_policy, .max_retained_share = 1});
  const auto kept = NewRequest(*manager, Tokens(20));
  ASSERT_TRUE(Step(*manager, *kept, 20));
  EXPECT_EQ(manager->Retain(*kept, {.priority = 100})->num_retained, 5);
  ASSERT_TRUE(manager->Free(*kept).ok());
  const auto other = NewRequest(*manager, Tokens(20, 1000));
  EXPECT_TRUE(Step(*manager, *other, 20));
  EXPECT_EQ(manager->retention()->size(), 0);
  EXPECT_EQ(manager->retention()->totals().num_taken, 5);
  EXPECT_EQ(manager->CheckInvariants(), absl::OkStatus());
}

}  // namespace
}  // namespace kvblocks
