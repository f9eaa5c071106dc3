// hash_algorithm, hash_seed and num_hash_lookahead_tokens, as requests of a manager see them.

#include <limits>
#include <string>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "kvblocks/block_pool/testing/prefix_content_peer.h"
#include "kvblocks/managers/testing/test_models.h"

namespace kvblocks {
namespace {

using ::testing::HasSubstr;

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
                HasSubstr("look-ahead tokens of block hashes is " + std::to_string(value)));
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

}  // namespace
}  // namespace kvblocks
