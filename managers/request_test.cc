#include "kvblocks/request.h"

#include <limits>
#include <string>
#include <vector>

#include "block_pool/testing/pool_testing.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "kvblocks/single_type_manager.h"
#include "managers/testing/test_models.h"

namespace kvblocks {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

TEST(RequestTest, CountsPromptAndOutputApart) {
  const auto manager = Manager(10, {Full(4)});
  const auto request = NewRequest(*manager, Tokens(6), "prompt");
  EXPECT_EQ(request->id(), "prompt");
  ASSERT_TRUE(request->AppendOutputTokens({90, 91}).ok());
  EXPECT_EQ(request->num_prompt_tokens(), 6);
  EXPECT_EQ(request->num_tokens(), 8);
  EXPECT_EQ(request->content().hashes().size(), 2u);
  EXPECT_EQ(request->status(), RequestStatus::kWaiting);
  EXPECT_EQ(request->AppendHashedTokens(1, {}).code(), absl::StatusCode::kInvalidArgument);
}

TEST(RequestTest, RequestMadeFromHashesNeedsNoTokens) {
  const auto manager = Manager(10, {Full(4)});
  const auto donor = NewRequest(*manager, Tokens(9));
  auto request = manager->NewRequestFromHashes(
      "h", 9, {donor->content().hashes().begin(), donor->content().hashes().end()});
  ASSERT_TRUE(request.ok()) << request.status();
  ASSERT_TRUE(Step(*manager, *donor, 9));
  EXPECT_EQ(Hits(*manager, **request).num_tokens(), 8);
  EXPECT_EQ((*request)->AppendOutputTokens({1}).code(), absl::StatusCode::kInvalidArgument);
  EXPECT_TRUE((*request)->AppendHashedTokens(2, {}).ok());
  EXPECT_EQ((*request)->num_prompt_tokens(), 9);
  EXPECT_EQ((*request)->num_tokens(), 11);

  const auto skipping = manager->NewRequestFromHashes(
      "s", 9, {donor->content().hashes().begin(), donor->content().hashes().end()}, "session",
      /*skip_reading_prefix_cache=*/true);
  ASSERT_TRUE(skipping.ok()) << skipping.status();
  EXPECT_EQ(Hits(*manager, **skipping).num_tokens(), 0);
  EXPECT_EQ((*skipping)->content().session_id(), "session");

  EXPECT_EQ(manager->NewRequestFromHashes("h", 9, {}).status().code(),
            absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(manager->NewRequestFromHashes("h", -1, {}).status().code(),
            absl::StatusCode::kInvalidArgument);
}

TEST(RequestTest, GoesOnWithAnotherContent) {
  const auto manager = Manager(10, {Full(4)});
  const auto request = NewRequest(*manager, Tokens(9));
  ASSERT_TRUE(Step(*manager, *request, 9));
  ASSERT_TRUE(request->AppendOutputTokens({7, 8}).ok());
  // A session drops its last output and goes on with further input.
  auto donor = NewRequest(*manager, Tokens(14));
  request->SetContent(donor->TakeContent(), /*num_prompt_tokens=*/12);
  EXPECT_EQ(request->num_tokens(), 14);
  EXPECT_EQ(request->num_prompt_tokens(), 12);
  ASSERT_TRUE(Step(*manager, *request, 5));
  EXPECT_EQ(manager->GetBlocks(*request, 0).size(), 4u);
  EXPECT_EQ(Hits(*manager, *NewRequest(*manager, Tokens(13))).num_tokens(), 12);
  EXPECT_TRUE(manager->CheckInvariants().ok()) << manager->CheckInvariants();
}

TEST(RequestTest, LookUpsStopWhereTheyAreTold) {
  const auto manager = Manager(10, {Full(4)});
  ASSERT_TRUE(Step(*manager, *NewRequest(*manager, Tokens(17)), 17));
  const auto request = NewRequest(*manager, Tokens(17));
  ComputedBlocks hits;
  ASSERT_TRUE(manager->GetComputedBlocks(*request, hits, /*max_tokens=*/11).ok());
  EXPECT_EQ(hits.num_tokens(), 8);
  ASSERT_TRUE(manager->GetComputedBlocks(*request, hits, -1).ok());
  EXPECT_EQ(hits.num_tokens(), 0);
  ASSERT_TRUE(manager->GetComputedBlocks(*request, hits, 1000).ok());
  EXPECT_EQ(hits.num_tokens(), 16);
}

TEST(RequestTest, TellsTheBlocksThatItStillNeeds) {
  const auto manager = Manager(30, {Full(4), Window(4, 6)}, {.max_in_flight_tokens = 4});
  const auto request = NewRequest(*manager, Tokens(40));
  EXPECT_EQ(manager->NumBlocksNeeded(*request, 8, /*apply_cap=*/false), 4);
  ASSERT_TRUE(Step(*manager, *request, 8));
  EXPECT_EQ(manager->NumBlocksNeeded(*request, 8, /*apply_cap=*/false), 0);
  EXPECT_EQ(manager->NumBlocksNeeded(*request, 40, /*apply_cap=*/false), 16);
  // The window frees blocks on the way: at most 4 at a time, of which 2 are there.
  EXPECT_LT(manager->NumBlocksNeeded(*request, 40, /*apply_cap=*/true), 16);
}

TEST(RequestTest, OutlivesItsManager) {
  auto manager = Manager(8, {Full(4)});
  const auto request = NewRequest(*manager, Tokens(8));
  ASSERT_TRUE(Step(*manager, *request, 8));
  manager.reset();
  EXPECT_EQ(request->num_tokens(), 8);
  ASSERT_TRUE(request->AppendOutputTokens(Tokens(4)).ok());
  EXPECT_EQ(request->content().hashes().size(), 3u);

  const auto next = Manager(8, {Full(4)});
  EXPECT_FALSE(next->HoldsBlocks(*request));
  EXPECT_EQ(next->Free(*request).code(), absl::StatusCode::kInvalidArgument);
}

TEST(RequestTest, EveryCallRefusesTheRequestOfAnotherManager) {
  const auto mine = Manager(8, {Full(4)});
  const auto other = Manager(8, {Full(4)});
  for (bool holds : {false, true}) {
    const auto request = NewRequest(*other, Tokens(8), "foreign");
    if (holds) {
      ASSERT_TRUE(Step(*other, *request, 8));
    }
    const std::string before = State(*mine) + State(*other, {request.get()});
    const auto refused = [&](const absl::Status& status) {
      EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument);
      EXPECT_THAT(std::string(status.message()),
                  HasSubstr("request foreign belongs to another KvCacheManager"));
      EXPECT_EQ(State(*mine) + State(*other, {request.get()}), before);
    };
    refused(mine->GetComputedBlocks(*request).status());
    refused(mine->AllocateSlots(*request, {.num_new_tokens = 1}).status());
    refused(mine->Free(*request));
    refused(mine->PopBlocksForFree(*request).status());
    refused(mine->RemoveSkippedBlocks(*request, 1));
    refused(mine->CacheBlocks(*request, 1));
    EXPECT_FALSE(mine->HoldsBlocks(*request));
    EXPECT_THAT(mine->GetBlocks(*request, 0), IsEmpty());
    EXPECT_THAT(mine->GetNumCommonPrefixBlocks(*request), ElementsAre(0));
  }
}

// hash_algorithm, hash_seed and num_hash_lookahead_tokens, as requests of a manager see them.

// V-50, V-51: the hash of tokens 0 to 3 in vLLM 0.33 with its default settings.
TEST(HashOptionsTest, CborHashesAreThoseOfVllm) {
  const auto manager = KvCacheManager::Create(
      Config(10, {Full(4)}), {.max_model_len = 64, .hash_algorithm = HashAlgorithm::kSha256Cbor});
  ASSERT_TRUE(manager.ok()) << manager.status();
  EXPECT_EQ(NewRequest(**manager, Tokens(4))->content().hashes()[0].ToHex(),
            "c49ab11fb576db6f376aef58c24f728a0ba1807e8cac5f940f1a5c4c20741898");
}

// V-10.
TEST(HashOptionsTest, HashesLookAheadAsTheManagerIsTold) {
  const auto manager = Manager(10, {Full(4)}, {.num_hash_lookahead_tokens = 3});
  EXPECT_EQ(NewRequest(*manager, Tokens(10))->content().hashes().size(), 1u);
  EXPECT_EQ(NewRequest(*manager, Tokens(11))->content().hashes().size(), 2u);
  EXPECT_TRUE(manager->NewRequestFromHashes("r", 10, std::vector<BlockHash>(1)).ok());
  EXPECT_FALSE(manager->NewRequestFromHashes("r", 10, std::vector<BlockHash>(2)).ok());
}

TEST(HashOptionsTest, LookaheadOutOfRangeIsRefused) {
  for (int64_t value : {int64_t{-1}, int64_t{256}, std::numeric_limits<int64_t>::max()}) {
    const auto manager = KvCacheManager::Create(
        Config(10, {Full(4)}),
        {.max_model_len = 64, .num_hash_lookahead_tokens = value, .compare_tokens_on_hit = true});
    EXPECT_EQ(manager.status().code(), absl::StatusCode::kInvalidArgument);
    EXPECT_THAT(std::string(manager.status().message()),
                HasSubstr("lookahead tokens of block hashes is " + std::to_string(value)));
  }
}

// V-10: a comparison covers what the hash covers.
TEST(HashOptionsTest, ComparisonsReachTheLookaheadTokens) {
  for (TokenId changed : {24, 25}) {
    const auto manager =
        Manager(100, {Full(4)}, {.num_hash_lookahead_tokens = 1, .compare_tokens_on_hit = true});
    const auto first = NewRequest(*manager, Tokens(26), "first");
    ASSERT_TRUE(Step(*manager, *first, 26));
    std::vector<TokenId> tokens = Tokens(26);
    tokens[static_cast<size_t>(changed)] = 1'000;
    const auto second = NewRequest(*manager, tokens, "second");
    PrefixContentPeer::CopyHash(first->content(), 5, const_cast<PrefixContent&>(second->content()));
    EXPECT_EQ(Hits(*manager, *second).num_tokens(), changed == 24 ? 20 : 24);
  }
}

TEST(BlockSizeTest, DividesLikeTheOperators) {
  for (int64_t size : {1, 2, 3, 4, 5, 16, 24, 48, 64, 256, 1000, 1024}) {
    const BlockSize block(size);
    EXPECT_EQ(block.value(), size);
    for (int64_t n : {int64_t{0}, int64_t{1}, size - 1, size, size + 1, 2 * size - 1, 2 * size,
                      17 * size, 17 * size + 1, kMaxTokens - 1, kMaxTokens}) {
      EXPECT_EQ(block.FloorDiv(n), n / size) << n << " / " << size;
      EXPECT_EQ(block.CeilDiv(n), (n + size - 1) / size) << n << " / " << size;
      EXPECT_EQ(block.RoundDown(n), n / size * size) << n << " / " << size;
    }
  }
}

TEST(BlockSizeTest, LargestSizesDoNotOverflow) {
  for (int64_t size : {int64_t{1} << 62, (int64_t{1} << 62) + 1}) {
    EXPECT_EQ(BlockSize(size).CeilDiv(1), 1);
    EXPECT_EQ(BlockSize(size).CeilDiv(size), 1);
    EXPECT_EQ(BlockSize(size).FloorDiv(size - 1), 0);
  }
}

static_assert(BlockSize(16).CeilDiv(17) == 2);

}  // namespace
}  // namespace kvblocks
