// Windows over the output alone (BM-116): the prompt stays, and of the output the last w tokens.

#include <algorithm>
#include <string>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "kvblocks/managers/testing/test_models.h"

namespace kvblocks {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

KvCacheSpec OutputWindow(int64_t block_size, int64_t window) {
  return FullAttentionSpec::Create({.block_size = block_size,
                                    .num_kv_heads = 1,
                                    .head_size = 8,
                                    .output_window = window})
      .value();
}

void Decode(KvCacheManager& manager, Request& request, int64_t num_tokens) {
  for (int64_t i = 0; i < num_tokens; ++i) {
    ASSERT_TRUE(
        request.AppendOutputTokens({static_cast<TokenId>(1'000 + request.num_tokens())}).ok());
    ASSERT_TRUE(Step(manager, request, 1));
  }
}

TEST(OutputWindowTest, OldOutputIsGivenBackThePromptIsNot) {
  const auto manager = Manager(30, {OutputWindow(4, 6)});
  const auto request = NewRequest(*manager, Tokens(10));
  ASSERT_TRUE(Step(*manager, *request, 10));
  EXPECT_THAT(manager->GetBlocks(*request, 0), ElementsAre(1, 2, 3));
  Decode(*manager, *request, 12);  // 21 tokens processed when the last step is made
  EXPECT_THAT(manager->GetBlocks(*request, 0), ElementsAre(1, 2, 3, 4, 5, 6));
  Decode(*manager, *request, 1);  // 22 processed: tokens 12..15 lie before the last 6
  EXPECT_THAT(manager->GetBlocks(*request, 0), ElementsAre(1, 2, 3, 0, 5, 6));
  Decode(*manager, *request, 8);
  EXPECT_THAT(manager->GetBlocks(*request, 0), ElementsAre(1, 2, 3, 0, 0, 0, 7, 8));
  // What was registered can be hit as long as nobody takes it.
  auto resent = NewRequest(*manager, request->content().token_ids());
  EXPECT_EQ(Hits(*manager, *resent).num_tokens(), 28);
  ASSERT_TRUE(manager->EvictBlocks({5}).ok());
  EXPECT_EQ(Hits(*manager, *resent).num_tokens(), 16);
  ASSERT_TRUE(manager->Free(*request).ok());
  EXPECT_EQ(manager->pool().num_live(), 0);
}

// The gate asks for the prompt and the most that the window holds, not for all known tokens.
TEST(OutputWindowTest, GateKnowsTheCap) {
  // Window, tokens in flight and those that a drafter may compute again touch at most
  // cdiv(6 + 4 - 1, 4) + 1 = 4 blocks, or cdiv(6 + 4 + 4 - 1, 4) + 1 = 5.
  for (const int64_t prefill_lookahead : {0, 5}) {
    const int64_t enough = prefill_lookahead == 0 ? 7 : 8;
    for (const int64_t num_free : {enough - 1, enough}) {
      const auto manager = Manager(1 + num_free, {OutputWindow(4, 6)},
                                   {.max_in_flight_tokens = 4,
                                    .prefill_lookahead_tokens = prefill_lookahead});
      const auto request = NewRequest(*manager, Tokens(10), "r", /*skip_reading=*/true);
      ASSERT_TRUE(request->AppendOutputTokens(Tokens(40, 100)).ok());
      const auto admitted =
          manager->AllocateSlots(*request, {.num_new_tokens = 4, .full_sequence_must_fit = true});
      ASSERT_TRUE(admitted.ok());
      EXPECT_EQ(admitted->has_value(), num_free == enough) << prefill_lookahead;
      if (!admitted->has_value()) continue;
      // And a request that computes it all in such steps finds them.
      request->set_num_computed_tokens(4);
      for (int64_t computed = 4; computed < 48; computed += 4) {
        const auto slots =
            manager->AllocateSlots(*request, {.num_new_tokens = 4, .full_sequence_must_fit = true});
        ASSERT_TRUE(slots.ok() && slots->has_value()) << computed;
        EXPECT_TRUE(manager->CheckInvariants().ok()) << manager->CheckInvariants();
        request->set_num_computed_tokens(computed + 4);
      }
    }
  }
}

TEST(OutputWindowTest, TokensThatMayBeComputedAgainAreKeptToo) {
  const auto manager = Manager(30, {OutputWindow(4, 6)}, {.prefill_lookahead_tokens = 3});
  const auto request = NewRequest(*manager, Tokens(10));
  ASSERT_TRUE(Step(*manager, *request, 10));
  Decode(*manager, *request, 14);
  EXPECT_EQ(manager->GetBlocks(*request, 0)[3], 4);
  Decode(*manager, *request, 1);
  EXPECT_EQ(manager->GetBlocks(*request, 0)[3], kNullBlockId);
}

// A group that keeps its whole output is another kind of cache.
TEST(OutputWindowTest, GroupsOfBothKinds) {
  const auto manager = Manager(60, {Full(4), OutputWindow(4, 4)});
  const auto request = NewRequest(*manager, Tokens(9));
  ASSERT_TRUE(Step(*manager, *request, 9));
  Decode(*manager, *request, 20);
  const auto full = manager->GetBlocks(*request, 0);
  EXPECT_EQ(std::count(full.begin(), full.end(), kNullBlockId), 0);
  EXPECT_EQ(manager->GetBlocks(*request, 1)[3], kNullBlockId);
  EXPECT_THAT(manager->GetNumCommonPrefixBlocks(*request), ElementsAre(8, 3));
  const auto popped = manager->PopBlocksForFree(*request);
  ASSERT_TRUE(popped.ok());
  ASSERT_TRUE(manager->FreeBlocks(std::vector<BlockId>(popped->rbegin(), popped->rend())).ok());
  EXPECT_EQ(manager->pool().num_live(), 0);
}

TEST(OutputWindowTest, RefusedWhereItMeansNothing) {
  EXPECT_THAT(
      std::string(FullAttentionSpec::Create(
                      {.block_size = 4, .num_kv_heads = 1, .head_size = 8, .output_window = 0})
                      .status()
                      .message()),
      HasSubstr("output_window: got 0"));
}

}  // namespace
}  // namespace kvblocks
