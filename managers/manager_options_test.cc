// Steps that need no block and fill none take a short cut through AllocateSlots. It must not
// swallow what the long way refuses or withholds.

#include <functional>
#include <limits>
#include <string>
#include <vector>

#include "block_pool/eviction/retention.h"
#include "block_pool/testing/pool_testing.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "kvblocks/eviction.h"
#include "kvblocks/kv_cache_manager.h"
#include "managers/testing/test_models.h"

namespace kvblocks {
namespace {

using ::testing::HasSubstr;

class NoopStepTest : public testing::Test {
 protected:
  // Five of 40 known tokens are computed: steps up to slot 6 of the second block are no-ops.
  void SetUp() override { ASSERT_TRUE(Step(*manager_, *request_, 5)); }

  // The answer to a step inside the second block: "ok N" with N new blocks, "full", or an error.
  std::string Answer(const AllocateSlotsParams& params) {
    const auto slots = manager_->AllocateSlots(*request_, params);
    if (!slots.ok()) return std::string(slots.status().message());
    return slots->has_value() ? absl::StrCat("ok ", (*slots)->num_blocks()) : "full";
  }

  std::unique_ptr<KvCacheManager> manager_ = Manager(9, {Full(4)}, {.watermark = 0.5});
  std::unique_ptr<Request> request_ = NewRequest(*manager_, Tokens(40), "r");
};

// vLLM's rules register the end of a prompt inside a block of several hashes; then a step inside a
// block may have something to do.
TEST_F(NoopStepTest, StepsAreNoopsUnlessTailsAreRegistered) {
  KvCacheManagerOptions options{.max_model_len = 100};
  options.semantics = *Semantics::ByName("vllm-0.33-exactly");
  const auto noop_slots = [&](std::vector<KvCacheSpec> specs) {
    const auto manager = Manager(30, std::move(specs), options);
    const auto request = NewRequest(*manager, Tokens(14));
    EXPECT_TRUE(Step(*manager, *request, 13));
    return request->noop_slots();
  };
  EXPECT_EQ(noop_slots({Full(4)}), 15);
  EXPECT_EQ(noop_slots({Full(4), Full(8)}), 0);
}

TEST_F(NoopStepTest, DelayedRegistrationIsMadeUpFor) {
  EXPECT_EQ(Answer({.num_new_tokens = 3, .delay_cache_blocks = true}), "ok 0");
  EXPECT_EQ(manager_->pool().num_keys(), 1);
  request_->set_num_computed_tokens(8);
  EXPECT_EQ(Answer({.num_new_tokens = 1}), "ok 1");
  EXPECT_EQ(manager_->pool().num_keys(), 2);
}

TEST_F(NoopStepTest, FilledBlocksThatAreNeverRegisteredNeedNothing) {
  const auto request = *manager_->NewRequest({.id = "never",
                                              .content = {.token_ids = Tokens(14, 1'000)},
                                              .skip_writing_prefix_cache = true});
  ASSERT_TRUE(Step(*manager_, *request, 10));
  EXPECT_EQ(request->noop_slots(), 12);
  for (int token = 0; token < 4; ++token) ASSERT_TRUE(Step(*manager_, *request, 1));
  EXPECT_EQ(manager_->pool().num_keys(), 1);
  EXPECT_EQ(manager_->CacheBlocks(*request, 12).code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_EQ(manager_->pool().num_keys(), 1);
}

// The pool has 8 usable blocks, two of them held; 40 known tokens need 10.
TEST_F(NoopStepTest, GatesHold) {
  EXPECT_EQ(Answer({.num_new_tokens = 1, .full_sequence_must_fit = true}), "full");
  EXPECT_EQ(Answer({.num_new_tokens = 1, .reserved_blocks = 6}), "ok 0");
  EXPECT_EQ(Answer({.num_new_tokens = 1, .reserved_blocks = 7}), "full");
  const auto other = NewRequest(*manager_, Tokens(16, 1'000), "other");
  ASSERT_TRUE(Step(*manager_, *other, 16));
  ASSERT_EQ(manager_->num_free_blocks(), 2);  // fewer than the watermark's four
  request_->set_status(RequestStatus::kWaiting);
  EXPECT_EQ(Answer({.num_new_tokens = 1, .has_scheduled_requests = true}), "full");
  request_->set_status(RequestStatus::kRunning);
  EXPECT_EQ(Answer({.num_new_tokens = 1, .has_scheduled_requests = true}), "ok 0");
}

TEST_F(NoopStepTest, MisuseIsRefused) {
  constexpr int64_t kLow = std::numeric_limits<int64_t>::min();
  constexpr int64_t kHigh = std::numeric_limits<int64_t>::max();
  for (int64_t n : {kLow, int64_t{-1}, kHigh}) {
    EXPECT_THAT(Answer({.num_new_tokens = n}), HasSubstr("num_new_tokens is"));
    EXPECT_THAT(Answer({.num_new_tokens = 1, .num_lookahead_tokens = n}),
                HasSubstr("num_lookahead_tokens is"));
    EXPECT_THAT(Answer({.num_new_tokens = 1, .num_external_computed_tokens = n}),
                HasSubstr("num_external_computed_tokens is"));
    EXPECT_THAT(Answer({.num_new_tokens = 1, .reserved_blocks = n}),
                HasSubstr("reserved_blocks is"));
    request_->set_num_computed_tokens(n);
    EXPECT_THAT(Answer({.num_new_tokens = 1}), HasSubstr("num_computed_tokens is"));
    request_->set_num_computed_tokens(5);
    request_->set_num_inflight_tokens(n);
    EXPECT_THAT(Answer({.num_new_tokens = 1}), HasSubstr("num_inflight_tokens is"));
    request_->set_num_inflight_tokens(0);
  }
  EXPECT_THAT(Answer({.num_new_tokens = 0}), HasSubstr("num_new_tokens is 0"));
  EXPECT_THAT(Answer({.num_new_tokens = 1, .num_external_computed_tokens = 1}),
              HasSubstr("hits and external tokens are for a request that holds no blocks yet"));
  const ComputedBlocks hits({{1}}, 4);
  EXPECT_THAT(Answer({.num_new_tokens = 1, .computed_blocks = &hits}),
              HasSubstr("hits and external tokens are for a request that holds no blocks yet"));
  request_->set_status(RequestStatus::kFinished);
  EXPECT_THAT(Answer({.num_new_tokens = 1}), HasSubstr("the request is finished"));
}

// Retention through the manager: whose blocks it finds, what it refuses, and that it never stands
// in the way of an allocation.

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
            "AdvanceTime: now is 6, expected at least 7, the time of the last call");
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

TEST(RetentionTest, ATimeToLiveCountsFromTheTimeOfTheLastCall) {
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

// compare_tokens_on_hit: contents that share a hash are distinguished, for every kind of attention.
// `request` gets the hash of block `index` of `other`, as if the two contents collided.
void Collide(const Request& other, size_t index, Request& request) {
  PrefixContentPeer::CopyHash(other.content(), index,
                              const_cast<PrefixContent&>(request.content()));
}

class TokenComparisonTest : public testing::TestWithParam<std::vector<KvCacheSpec>> {};

// Six blocks are cached. Another request has their hashes, but other tokens in one block.
TEST_P(TokenComparisonTest, CollisionShortensTheHit) {
  for (size_t different : {0, 2, 4, 5}) {
    for (bool compare : {false, true}) {
      const auto manager = Manager(100, GetParam(), {.compare_tokens_on_hit = compare});
      const auto first = NewRequest(*manager, Tokens(25), "first");
      ASSERT_TRUE(Step(*manager, *first, 25));
      const int64_t whole = Hits(*manager, *NewRequest(*manager, Tokens(25))).num_tokens();
      ASSERT_EQ(whole, 24);

      std::vector<TokenId> tokens = Tokens(25);
      tokens[different * 4 + 1] = 1'000;
      const auto second = NewRequest(*manager, tokens, "second");
      for (size_t i = 0; i < 6; ++i) Collide(*first, i, *second);
      const int64_t hit = Hits(*manager, *second).num_tokens();
      if (compare) {
        // No hit list holds the block with other tokens.
        EXPECT_LT(hit, whole);
        EXPECT_LE(hit, static_cast<int64_t>(different) * 4);
      } else {
        EXPECT_EQ(hit, whole);  // what the option is there for
      }
      EXPECT_TRUE(Step(*manager, *second, 25 - hit));  // nor does its registration disturb anything
      EXPECT_EQ(Hits(*manager, *NewRequest(*manager, Tokens(25))).num_tokens(), whole);
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Models, TokenComparisonTest,
                         testing::Values(std::vector<KvCacheSpec>{Full(4)},
                                         std::vector<KvCacheSpec>{Full(4), Full(4)},
                                         std::vector<KvCacheSpec>{Mla(4)},
                                         std::vector<KvCacheSpec>{Full(4), Window(4, 9)}));

// The hit of a request with the hashes of six cached blocks, but with another token at `place`.
int64_t HitOfCollision(const KvCacheSpec& spec, size_t place) {
  const auto manager = Manager(100, {spec}, {.compare_tokens_on_hit = true});
  const auto first = NewRequest(*manager, Tokens(25), "first");
  EXPECT_TRUE(Step(*manager, *first, 25));
  std::vector<TokenId> tokens = Tokens(25);
  tokens[place] = 1'000;
  const auto second = NewRequest(*manager, tokens, "second");
  for (size_t i = 0; i < 6; ++i) Collide(*first, i, *second);
  return Hits(*manager, *second).num_tokens();
}

// A window needs its last blocks only, and only those are compared.
TEST(WindowTokenComparisonTest, BlocksOfTheWindowAreCompared) {
  EXPECT_EQ(HitOfCollision(Window(4, 9), 0), 24);
  EXPECT_EQ(HitOfCollision(Window(4, 9), 16), 16);
  EXPECT_EQ(HitOfCollision(Window(4, 9), 20), 20);
}

TEST(ChunkTokenComparisonTest, BlocksOfTheChunkAreCompared) {
  EXPECT_EQ(HitOfCollision(Chunked(4, 16), 21), 20);
}

TEST(TokenComparisonRefusalTest, CollidingListsAreRefused) {
  const auto manager = Manager(100, {Full(4)}, {.compare_tokens_on_hit = true});
  const auto first = NewRequest(*manager, Tokens(9), "first");
  ASSERT_TRUE(Step(*manager, *first, 9));
  const auto second = NewRequest(*manager, Tokens(9, 500), "second");
  for (size_t i = 0; i < 2; ++i) Collide(*first, i, *second);
  const ComputedBlocks made_up({{1, 2}}, 8);
  const std::string before = State(*manager);
  EXPECT_THAT(manager->AllocateSlots(*second, {.num_new_tokens = 1, .computed_blocks = &made_up})
                  .status()
                  .ToString(),
              HasSubstr("hit block 1 of group 0 at position 0 no longer holds that content"));
  EXPECT_EQ(State(*manager), before);
}

TEST(TokenComparisonRefusalTest, RequestsFromHashesAreRefused) {
  const auto manager = Manager(100, {Full(4)}, {.compare_tokens_on_hit = true});
  EXPECT_THAT(manager->NewRequestFromHashes("h", 4, {BlockHash{}}).status().ToString(),
              HasSubstr("NewRequestFromHashes(h): hits are compared by their tokens "
                        "(compare_tokens_on_hit)"));
  // Without prefix caching there is nothing to compare.
  const auto uncached =
      Manager(100, {Full(4)}, {.enable_caching = false, .compare_tokens_on_hit = true});
  EXPECT_TRUE(uncached->NewRequestFromHashes("h", 4, {}).ok());
}

}  // namespace
}  // namespace kvblocks
