// Look-up, allocation and freeing: each parameter by itself, each refusal with the proof that
// nothing changed.

#include "kvblocks/kv_cache_manager.h"

#include <functional>
#include <limits>
#include <string>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "managers/testing/test_models.h"

namespace kvblocks {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

constexpr int64_t kMax = std::numeric_limits<int64_t>::max();
constexpr int64_t kMin = std::numeric_limits<int64_t>::min();

// The message of AllocateSlots's refusal, which must have changed nothing.
std::string Refusal(KvCacheManager& manager, Request& request, const AllocateSlotsParams& params) {
  const std::string before = State(manager, {&request});
  const auto result = manager.AllocateSlots(request, params);
  EXPECT_EQ(result.status().code(), absl::StatusCode::kInvalidArgument) << result.status();
  EXPECT_EQ(State(manager, {&request}), before);
  return std::string(result.status().message());
}

TEST(KvCacheManagerTest, LookupNeedsATokenAndLeavesTheLastOneToCompute) {
  const auto manager = Manager(10, {Full(4)});
  const auto donor = NewRequest(*manager, Tokens(12));
  ASSERT_TRUE(Step(*manager, *donor, 12));
  const std::string before = State(*manager);
  EXPECT_THAT(
      std::string(
          manager->GetComputedBlocks(*NewRequest(*manager, {}, "empty")).status().message()),
      HasSubstr("GetComputedBlocks(empty): the request has no tokens"));
  for (int64_t n = 1; n <= 16; ++n) {
    EXPECT_EQ(Hits(*manager, *NewRequest(*manager, Tokens(n))).num_tokens(),
              std::min<int64_t>(12, (n - 1) / 4 * 4))
        << n;
  }
  EXPECT_EQ(State(*manager), before);
}

TEST(KvCacheManagerTest, LookupReusesTheCallersLists) {
  const auto manager = Manager(10, {Full(4)});
  const auto donor = NewRequest(*manager, Tokens(12));
  ASSERT_TRUE(Step(*manager, *donor, 12));
  ComputedBlocks hits({{7, 7, 7, 7, 7}, {3}}, 99);
  ASSERT_TRUE(manager->GetComputedBlocks(*NewRequest(*manager, Tokens(10)), hits).ok());
  EXPECT_EQ(ListsOf(hits), (Lists{{1, 2}}));
  EXPECT_EQ(hits.num_tokens(), 8);
  ASSERT_TRUE(manager->GetComputedBlocks(*NewRequest(*manager, Tokens(10, 99)), hits).ok());
  EXPECT_TRUE(hits.empty());
}

TEST(KvCacheManagerTest, NumbersOutOfRangeAreRefusedByName) {
  const auto manager = Manager(10, {Full(4)}, {.max_model_len = 100});
  struct Field {
    const char* name;
    std::function<void(AllocateSlotsParams&, Request&, int64_t)> set;
  };
  const Field fields[] = {
      {"num_new_tokens", [](AllocateSlotsParams& p, Request&, int64_t v) { p.num_new_tokens = v; }},
      {"num_lookahead_tokens",
       [](AllocateSlotsParams& p, Request&, int64_t v) { p.num_lookahead_tokens = v; }},
      {"num_external_computed_tokens",
       [](AllocateSlotsParams& p, Request&, int64_t v) { p.num_external_computed_tokens = v; }},
      {"reserved_blocks",
       [](AllocateSlotsParams& p, Request&, int64_t v) { p.reserved_blocks = v; }},
      {"num_computed_tokens",
       [](AllocateSlotsParams&, Request& r, int64_t v) { r.set_num_computed_tokens(v); }},
      {"num_inflight_tokens",
       [](AllocateSlotsParams&, Request& r, int64_t v) { r.set_num_inflight_tokens(v); }},
  };
  for (const Field& field : fields) {
    for (int64_t value : {int64_t{-1}, kMin, kMaxTokens + 1, kMax}) {
      const auto request = NewRequest(*manager, Tokens(12), "r7");
      AllocateSlotsParams params{.num_new_tokens = 1};
      field.set(params, *request, value);
      EXPECT_THAT(Refusal(*manager, *request, params),
                  HasSubstr(absl::StrCat("AllocateSlots(r7): ", field.name, " is ", value,
                                         ", expected 0 to ", kMaxTokens)));
    }
  }
  for (int64_t value : {int64_t{-4}, kMaxTokens + 1, kMin}) {
    const auto request = NewRequest(*manager, Tokens(12));
    const ComputedBlocks hits({{}}, value);
    EXPECT_THAT(Refusal(*manager, *request, {.num_new_tokens = 1, .computed_blocks = &hits}),
                HasSubstr(absl::StrCat("hit length is ", value)));
  }
}

TEST(KvCacheManagerTest, CallsWithoutSenseAreRefused) {
  const auto manager = Manager(20, {Full(4)}, {.max_model_len = 40});
  const auto request = NewRequest(*manager, Tokens(12));
  EXPECT_THAT(Refusal(*manager, *request, {}),
              HasSubstr("num_new_tokens is 0 without hits or external"));
  request->set_status(RequestStatus::kFinished);
  EXPECT_THAT(Refusal(*manager, *request, {.num_new_tokens = 1}), HasSubstr("is finished"));
  request->set_status(RequestStatus::kRunning);

  ASSERT_TRUE(Step(*manager, *request, 9));
  EXPECT_THAT(Refusal(*manager, *request, {.num_new_tokens = 1, .num_external_computed_tokens = 1}),
              HasSubstr("for a request that holds no blocks yet"));
  for (const ComputedBlocks& hits :
       {ComputedBlocks({{1}}, 4), ComputedBlocks({{}}, 4), ComputedBlocks({{1}}, 0)}) {
    EXPECT_THAT(Refusal(*manager, *request, {.num_new_tokens = 1, .computed_blocks = &hits}),
                HasSubstr("for a request that holds no blocks yet"));
  }
  // An empty answer is no hit.
  const ComputedBlocks none;
  EXPECT_TRUE(
      manager->AllocateSlots(*request, {.num_new_tokens = 1, .computed_blocks = &none}).ok());
}

TEST(KvCacheManagerTest, HitsThatCannotBeTrueAreRefused) {
  const auto manager = Manager(20, {Full(4)});
  const auto donor = NewRequest(*manager, Tokens(12));
  ASSERT_TRUE(Step(*manager, *donor, 12));  // 1, 2, 3
  const auto request = NewRequest(*manager, Tokens(13));
  const auto refusal = [&](Lists lists, int64_t tokens) {
    const ComputedBlocks hits({lists.begin(), lists.end()}, tokens);
    return Refusal(*manager, *request, {.num_new_tokens = 1, .computed_blocks = &hits});
  };
  EXPECT_THAT(refusal({{1}, {2}}, 4), HasSubstr("hits for 2 groups, expected 1"));
  EXPECT_THAT(refusal({}, 4), HasSubstr("hits for 0 groups, expected 1"));
  EXPECT_THAT(refusal({{1}}, 8), HasSubstr("1 hit blocks in group 0, expected 2 for 8 tokens"));
  EXPECT_THAT(refusal({{1, 2}}, 4), HasSubstr("2 hit blocks in group 0, expected 1"));
  EXPECT_THAT(refusal({{1}}, 0), HasSubstr("1 hit blocks in group 0, expected 0"));
  EXPECT_THAT(refusal({{0, 2}}, 8), HasSubstr("group 0 has no block at position 0"));
  EXPECT_THAT(refusal({{1, 3}}, 8), HasSubstr("hit block 3 of group 0 at position 1 no longer"));
  EXPECT_THAT(refusal({{1, 9}}, 8), HasSubstr("hit block 9 of group 0 at position 1 no longer"));
  EXPECT_THAT(refusal({{1, 20}}, 8), HasSubstr("hit block 20 of group 0 is outside"));
  EXPECT_THAT(refusal({{-1}}, 4), HasSubstr("hit block -1 of group 0 is outside"));
  EXPECT_THAT(refusal({{1, 2, 3, 3}}, 16), HasSubstr("hit block 3 of group 0 at position 3"));

  const ComputedBlocks right({{1, 2}}, 8);
  ASSERT_TRUE(Step(*manager, *request, 5, {.computed_blocks = &right}));
  EXPECT_THAT(manager->GetBlocks(*request, 0), ElementsAre(1, 2, 4, 5));
}

TEST(KvCacheManagerTest, EmptyListsOfFewerGroupsAreNoHit) {
  const auto manager = Manager(20, {Full(4), Window(4, 9)});
  const auto request = NewRequest(*manager, Tokens(9));
  const ComputedBlocks hits(HitLists(1), 0);
  const auto slots =
      manager->AllocateSlots(*request, {.num_new_tokens = 9, .computed_blocks = &hits});
  ASSERT_TRUE(slots.ok() && slots->has_value()) << slots.status();
  EXPECT_EQ((*slots)->num_blocks(), 6);
}

TEST(KvCacheManagerTest, HitsWithoutCachingAreRefused) {
  const auto manager = Manager(20, {Full(4)}, {.enable_caching = false});
  EXPECT_EQ(manager->hashing(), nullptr);
  const auto request = NewRequest(*manager, Tokens(13));
  const ComputedBlocks hits({{1}}, 4);
  EXPECT_THAT(Refusal(*manager, *request, {.num_new_tokens = 1, .computed_blocks = &hits}),
              HasSubstr("no longer holds that content"));
}

class StaleHitsTest : public testing::Test {
 protected:
  void SetUp() override {
    ASSERT_TRUE(Step(*manager_, *donor_, 12));  // 1, 2, 3
    ASSERT_TRUE(Step(*manager_, *other_, 8));   // 4, 5
    hits_ = Hits(*manager_, *request_);
    ASSERT_EQ(hits_.num_tokens(), 12);
  }
  AllocateSlotsParams params() { return {.num_new_tokens = 1, .computed_blocks = &hits_}; }

  std::unique_ptr<KvCacheManager> manager_ = Manager(20, {Full(4)});
  std::unique_ptr<Request> donor_ = NewRequest(*manager_, Tokens(12));
  std::unique_ptr<Request> other_ = NewRequest(*manager_, Tokens(8, 500));
  std::unique_ptr<Request> request_ = NewRequest(*manager_, Tokens(13));
  ComputedBlocks hits_;
};

TEST_F(StaleHitsTest, EvictedHitIsRefused) {
  for (BlockId id : {3, 1}) {
    ASSERT_TRUE(manager_->EvictBlocks({id}).ok());
    EXPECT_THAT(Refusal(*manager_, *request_, params()),
                HasSubstr(absl::StrCat("hit block ", id, " of group 0 at position ", id - 1,
                                       " no longer holds that content; look up again")));
  }
  hits_ = Hits(*manager_, *request_);
  EXPECT_EQ(hits_.num_tokens(), 0);
  EXPECT_TRUE(Step(*manager_, *request_, 1, params()));
}

TEST(KvCacheManagerTest, DelayedBlocksAreRegisteredLater) {
  const auto manager = Manager(10, {Full(4)});
  const auto request = NewRequest(*manager, Tokens(10));
  ASSERT_TRUE(
      Step(*manager, *request, 0, {.num_external_computed_tokens = 9, .delay_cache_blocks = true}));
  EXPECT_EQ(manager->pool().num_keyed_blocks(), 0);
  const std::string before = State(*manager);
  for (int64_t n : {int64_t{-1}, int64_t{11}, kMax, kMin}) {
    const absl::Status status = manager->CacheBlocks(*request, n);
    EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument);
    EXPECT_THAT(std::string(status.message()),
                HasSubstr(absl::StrCat("CacheBlocks(r): num_tokens is ", n, ", expected 0 to 10")));
  }
  EXPECT_EQ(State(*manager), before);
  ASSERT_TRUE(manager->CacheBlocks(*request, 7).ok());
  EXPECT_EQ(manager->pool().num_keyed_blocks(), 1);
  ASSERT_TRUE(manager->CacheBlocks(*request, 4).ok());  // known already
  ASSERT_TRUE(manager->CacheBlocks(*request, 9).ok());
  EXPECT_EQ(manager->pool().num_keyed_blocks(), 2);
  ASSERT_TRUE(Step(*manager, *request, 1));
  EXPECT_TRUE(manager->CheckInvariants().ok());
}

TEST(KvCacheManagerTest, RequestsThatSkipWritingRegisterNothingInAnyStep) {
  // By Grow, and where windows free blocks.
  for (const auto& specs : {std::vector<KvCacheSpec>{Full(4)}, {Full(4), Window(4, 9)}}) {
    const auto manager = Manager(40, specs);
    const auto donor = NewRequest(*manager, Tokens(8));
    ASSERT_TRUE(Step(*manager, *donor, 8));
    const int64_t keyed = manager->pool().num_keyed_blocks();
    const auto request = *manager->NewRequest(
        {.id = "r", .content = {.token_ids = Tokens(18)}, .skip_writing_prefix_cache = true});
    EXPECT_TRUE(request->skip_writing_prefix_cache());
    const ComputedBlocks hits = Hits(*manager, *request);
    ASSERT_EQ(hits.num_tokens(), 8);  // it reads
    ASSERT_TRUE(Step(*manager, *request, 10, {.computed_blocks = &hits}));
    for (int token = 0; token < 9; ++token) {
      ASSERT_TRUE(request->AppendOutputTokens({&token, 1}).ok());
      ASSERT_TRUE(Step(*manager, *request, 1));
      EXPECT_EQ(manager->pool().num_keyed_blocks(), keyed);
      EXPECT_LE(manager->GetNumRegisteredTokens(*request, 0), 8);
    }
    EXPECT_EQ(manager->GetBlocks(*request, 0).size(), 7u);
    const std::string before = State(*manager);
    EXPECT_EQ(manager->CacheBlocks(*request, 18),
              absl::FailedPreconditionError(
                  "CacheBlocks(r): the request was made with skip_writing_prefix_cache, so other "
                  "requests must not hit its blocks; make another without it"));
    EXPECT_EQ(State(*manager), before);
    EXPECT_TRUE(manager->CheckInvariants().ok());
    ASSERT_TRUE(manager->Free(*request).ok());
    EXPECT_EQ(Hits(*manager, *NewRequest(*manager, Tokens(18))).num_tokens(), 8);
  }
}

TEST(KvCacheManagerTest, OnlyBlocksHandedOutCanBeGivenBack) {
  const auto manager = Manager(12, {Full(4)});
  const auto request = NewRequest(*manager, Tokens(12));
  ASSERT_TRUE(Step(*manager, *request, 12));
  ASSERT_TRUE(manager->PinBlocks({1, 2, 0, 1}).ok());
  const std::string before = State(*manager, {request.get()});
  const auto refusal = [&](std::vector<BlockId> ids) {
    const absl::Status status = manager->FreeBlocks(ids);
    EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument);
    EXPECT_EQ(State(*manager, {request.get()}), before);
    EXPECT_TRUE(manager->CheckInvariants().ok()) << manager->CheckInvariants();
    return std::string(status.message());
  };
  EXPECT_THAT(refusal({1, 3}), HasSubstr("block 3 is given back more often"));
  EXPECT_THAT(refusal({1, 1, 1}), HasSubstr("block 1 is given back more often"));
  EXPECT_THAT(refusal({2, 2}), HasSubstr("block 2"));
  EXPECT_THAT(refusal({2, -1}), HasSubstr("block -1"));
  EXPECT_THAT(refusal({2, 12}), HasSubstr("block 12"));
  EXPECT_EQ(manager->PinBlocks({1, 12}).code(), absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(manager->PinBlocks({1, -1}).code(), absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(State(*manager, {request.get()}), before);
  ASSERT_TRUE(manager->FreeBlocks({1, 0, 1, 2}).ok());
  ASSERT_TRUE(manager->Free(*request).ok());
  EXPECT_EQ(manager->usage(), 0.0);
}

TEST(KvCacheManagerTest, TrimRefusesImpossibleLengths) {
  const auto manager = Manager(10, {Window(4, 5)});
  const auto request = NewRequest(*manager, Tokens(12));
  EXPECT_TRUE(manager->RemoveSkippedBlocks(*request, 12).ok());  // holds nothing
  ASSERT_TRUE(Step(*manager, *request, 12));
  const std::string before = State(*manager, {request.get()});
  for (int64_t n : {int64_t{-1}, kMin, kMaxTokens + 1, kMax}) {
    const absl::Status status = manager->RemoveSkippedBlocks(*request, n);
    EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument);
    EXPECT_THAT(std::string(status.message()),
                HasSubstr(absl::StrCat("num_processed_tokens is ", n)));
  }
  EXPECT_TRUE(manager->RemoveSkippedBlocks(*request, 0).ok());
  EXPECT_EQ(State(*manager, {request.get()}), before);
}

// Blocks that were never computed would be registered otherwise.
TEST(KvCacheManagerTest, ComputedTokensWithoutBlocksAreRefused) {
  const auto manager = Manager(10, {Full(4)});
  const auto request = NewRequest(*manager, Tokens(12), "r");
  ASSERT_TRUE(Step(*manager, *request, 8));
  ASSERT_TRUE(manager->Free(*request).ok());
  request->set_num_computed_tokens(8);
  EXPECT_THAT(Refusal(*manager, *request, {.num_new_tokens = 4}),
              HasSubstr("num_computed_tokens is 8, expected 0: the request holds no blocks"));
  request->MarkPreempted();
  EXPECT_TRUE(manager->AllocateSlots(*request, {.num_new_tokens = 4})->has_value());
}

}  // namespace
}  // namespace kvblocks
