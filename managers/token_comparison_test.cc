// compare_tokens_on_hit: contents that share a hash do not hit each other, for every kind of
// attention.

#include <string>
#include <vector>

#include "block_pool/testing/prefix_content_peer.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "managers/testing/test_models.h"

namespace kvblocks {
namespace {

using ::testing::HasSubstr;

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

// A window needs its last blocks only, and only those are compared.
TEST(WindowTokenComparisonTest, BlocksOfTheWindowAreCompared) {
  for (size_t different : {0, 4, 5}) {
    const auto manager = Manager(100, {Window(4, 9)}, {.compare_tokens_on_hit = true});
    const auto first = NewRequest(*manager, Tokens(25), "first");
    ASSERT_TRUE(Step(*manager, *first, 25));
    std::vector<TokenId> tokens = Tokens(25);
    tokens[different * 4] = 1'000;
    const auto second = NewRequest(*manager, tokens, "second");
    for (size_t i = 0; i < 6; ++i) Collide(*first, i, *second);
    EXPECT_EQ(Hits(*manager, *second).num_tokens(),
              different == 0 ? 24 : static_cast<int64_t>(different) * 4);
  }
}

TEST(ChunkTokenComparisonTest, BlocksOfTheChunkAreCompared) {
  const auto manager = Manager(100, {Chunked(4, 16)}, {.compare_tokens_on_hit = true});
  const auto first = NewRequest(*manager, Tokens(25), "first");
  ASSERT_TRUE(Step(*manager, *first, 25));
  std::vector<TokenId> tokens = Tokens(25);
  tokens[21] = 1'000;
  const auto second = NewRequest(*manager, tokens, "second");
  for (size_t i = 0; i < 6; ++i) Collide(*first, i, *second);
  EXPECT_EQ(Hits(*manager, *second).num_tokens(), 20);
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
