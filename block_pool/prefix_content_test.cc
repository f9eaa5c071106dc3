#include "kvblocks/prefix_content.h"

#include <limits>
#include <memory>
#include <numeric>
#include <random>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/escaping.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "kvblocks/block.h"

namespace kvblocks {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using Kind = ExtraKey::Kind;

constexpr int64_t kMax = std::numeric_limits<int64_t>::max();

std::shared_ptr<const PrefixHashing> Hashing(int64_t hash_block_size, int64_t num_lookahead = 0) {
  return std::make_shared<const PrefixHashing>(
      PrefixHashing{.hasher = BlockHasher(HashAlgorithm::kSha256, "seed"),
                    .hash_block_size = hash_block_size,
                    .num_lookahead_tokens = num_lookahead});
}

std::vector<TokenId> Tokens(size_t count, TokenId first = 0) {
  std::vector<TokenId> tokens(count);
  std::iota(tokens.begin(), tokens.end(), first);
  return tokens;
}

PrefixContent Hashed(PrefixContent::Options options, int64_t hash_block_size = 4,
                      int64_t num_lookahead = 0) {
  auto content =
      PrefixContent::FromTokens(std::move(options), Hashing(hash_block_size, num_lookahead));
  EXPECT_TRUE(content.ok()) << content.status();
  return *std::move(content);
}

std::vector<BlockHash> Hashes(const PrefixContent& content) {
  return {content.hashes().begin(), content.hashes().end()};
}

template <typename T>
std::string Refused(const T& result) {
  absl::Status status;
  if constexpr (std::is_same_v<T, absl::Status>) {
    status = result;
  } else {
    status = result.status();
  }
  EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument);
  return std::string(status.message());
}

TEST(PrefixContentTest, WithoutHashingTokensAreKeptAndNothingIsHashed) {
  auto content = PrefixContent::FromTokens({.token_ids = Tokens(9)}, nullptr);
  ASSERT_TRUE(content.ok());
  EXPECT_TRUE(content->AppendTokens(Tokens(3)).ok());
  EXPECT_EQ(content->num_tokens(), 12);
  EXPECT_EQ(content->token_ids().size(), 12u);
  EXPECT_EQ(content->hash_block_size(), 0);
  EXPECT_THAT(Hashes(*content), IsEmpty());
  EXPECT_THAT(Refused(content->HashOfBlockAt(0, 4)), HasSubstr("hash block size 0"));
}

TEST(PrefixContentTest, LookaheadTokensAndTheirExtraKeysAreHashed) {
  const auto hash_of_first = [](std::vector<TokenId> tokens, PrefixContent::Options options) {
    options.token_ids = std::move(tokens);
    return Hashed(std::move(options), 4, 2).hashes()[0];
  };
  const BlockHash base = hash_of_first({0, 1, 2, 3, 4, 5, 6}, {});
  EXPECT_EQ(base, hash_of_first({0, 1, 2, 3, 4, 5, 9}, {}));
  EXPECT_FALSE(base == hash_of_first({0, 1, 2, 3, 4, 9, 6}, {}));
  EXPECT_FALSE(base == hash_of_first({0, 1, 2, 3, 9, 5, 6}, {}));
  EXPECT_EQ(base, hash_of_first(Tokens(7), {.features = {{"a", 6, 1}}}));
  EXPECT_FALSE(base == hash_of_first(Tokens(7), {.features = {{"a", 5, 1}}}));
  EXPECT_FALSE(base == Hashed({.token_ids = Tokens(7)}, 4, 1).hashes()[0]);
  EXPECT_FALSE(base == Hashed({.token_ids = Tokens(7)}, 4, 0).hashes()[0]);

  const PrefixContent content = Hashed({.token_ids = Tokens(11),
                                         .lora_name = "adapter",
                                         .lora_path = "/p",
                                         .features = {{"a", 9, 1}}},
                                        4, 2);
  EXPECT_THAT(content.LookaheadTokens(8), ElementsAre(8, 9));
  EXPECT_THAT(content.ExtraKeysOf(4, 8), ElementsAre(ExtraKey{Kind::kLora, "adapter", 0, "/p"}));
  // V-52: in events the path is left out.
  EXPECT_THAT(content.ReportedExtraKeysOf(4, 8),
              ElementsAre(ExtraKey{Kind::kLora, "adapter"}, ExtraKey{Kind::kMultimodal, "a", 5}));
}

TEST(PrefixContentTest, LookaheadOutOfRangeIsRefused) {
  EXPECT_TRUE(PrefixContent::FromTokens({}, Hashing(4, 255)).ok());
  EXPECT_TRUE(PrefixContent::FromTokens({}, Hashing((1 << 24) - 1, 1)).ok());
  EXPECT_TRUE(PrefixContent::FromTokens({}, Hashing(1 << 24, 0)).ok());
  EXPECT_THAT(Refused(PrefixContent::FromTokens({}, Hashing(4, -1))),
              HasSubstr("lookahead tokens of block hashes is -1, expected 0 to 255"));
  EXPECT_THAT(Refused(PrefixContent::FromHashes(0, {}, Hashing(4, 256))), HasSubstr("is 256"));
  EXPECT_THAT(Refused(PrefixContent::FromTokens({}, Hashing(1 << 24, 1))),
              HasSubstr("hash_block_size is 16777216, expected at most 16777215"));
}

TEST(PrefixContentTest, APathNeedsALoraName) {
  EXPECT_THAT(Refused(PrefixContent::FromTokens({.lora_path = "/p"}, Hashing(4))),
              HasSubstr("lora_path is \"/p\" without a lora_name"));
}

TEST(PrefixContentTest, ExtraKeysComeInOrderAndOnlyWhereTheyBelong) {
  const PrefixContent content = Hashed({.token_ids = Tokens(12),
                                         .lora_name = "adapter",
                                         .cache_salt = "salt",
                                         .features = {{"a", 1, 2}, {"b", 3, 4}},
                                         .embedding_digest = [](int64_t, int64_t end) {
                                           return end <= 4 ? std::string("rows") : std::string();
                                         }});
  EXPECT_THAT(content.ExtraKeysOf(0, 4),
              ElementsAre(ExtraKey{Kind::kLora, "adapter"}, ExtraKey{Kind::kMultimodal, "a", 1},
                          ExtraKey{Kind::kMultimodal, "b", 3}, ExtraKey{Kind::kSalt, "salt"},
                          ExtraKey{Kind::kPromptEmbedding, "rows"}));
  EXPECT_THAT(content.ExtraKeysOf(4, 8),
              ElementsAre(ExtraKey{Kind::kLora, "adapter"}, ExtraKey{Kind::kMultimodal, "b", -1}));
  EXPECT_THAT(content.ExtraKeysOf(8, 12), ElementsAre(ExtraKey{Kind::kLora, "adapter"}));
}

TEST(PrefixContentTest, BlocksThatDoNotExistAreRefused) {
  const PrefixContent content = Hashed({.token_ids = Tokens(21)});
  EXPECT_THAT(Refused(content.HashOfBlockAt(2, 8)),
              HasSubstr("block 2 of 8 tokens has no hash: there are 2 complete blocks"));
  EXPECT_THAT(Refused(content.HashOfBlockAt(-1, 4)), HasSubstr("block -1"));
  EXPECT_THAT(Refused(content.HashOfBlockAt(kMax, 4)), HasSubstr("has no hash"));
  for (int64_t size : {int64_t{0}, int64_t{-4}, int64_t{3}, int64_t{6}, kMax}) {
    EXPECT_THAT(Refused(content.HashOfBlockAt(0, size)),
                HasSubstr("not a positive multiple of the hash block size 4"));
  }
}

TEST(PrefixContentTest, InvalidFeaturesAreRefused) {
  EXPECT_THAT(Refused(PrefixContent::FromTokens({.features = {{"a", 0, 0}}}, Hashing(4))),
              HasSubstr("multimodal feature 0 has length 0"));
}

TEST(PrefixContentTest, HashBlockSizeMustBePositive) {
  for (int64_t size : {int64_t{0}, int64_t{-16}}) {
    EXPECT_THAT(Refused(PrefixContent::FromTokens({.token_ids = Tokens(4)}, Hashing(size))),
                HasSubstr("hash_block_size is " + std::to_string(size)));
    EXPECT_THAT(Refused(PrefixContent::FromHashes(4, {}, Hashing(size))),
                HasSubstr("hash_block_size is " + std::to_string(size)));
  }
}

TEST(PrefixContentTest, ReadyHashesAreTakenAsTheyAre) {
  const std::vector<BlockHash> hashes = {{{1, 1, 1, 1}}, {{2, 2, 2, 2}}};
  auto content = PrefixContent::FromHashes(11, hashes, Hashing(4));
  ASSERT_TRUE(content.ok()) << content.status();
  EXPECT_EQ(Hashes(*content), hashes);
  EXPECT_FALSE(content->has_token_ids());
  EXPECT_THAT(content->token_ids(), IsEmpty());
  EXPECT_TRUE(content->AppendHashedTokens(0, {}).ok());
  EXPECT_TRUE(content->AppendHashedTokens(1, {BlockHash{{3, 3, 3, 3}}}).ok());
  EXPECT_TRUE(content->AppendHashedTokens(3, {}).ok());
  EXPECT_EQ(content->num_tokens(), 15);
  EXPECT_EQ(content->hashes().size(), 3u);
}

TEST(PrefixContentTest, TokensMayComeWithReadyHashes) {
  const BlockHash first{{1, 2, 3, 4}};
  const BlockHash second{{5, 6, 7, 8}};
  auto content = PrefixContent::FromTokens(
      {.token_ids = {1, 2, 3, 4, 5}, .hashes = std::vector<BlockHash>{first}}, Hashing(4));
  ASSERT_TRUE(content.ok()) << content.status();
  EXPECT_TRUE(content->has_token_ids());
  EXPECT_FALSE(content->knows_plain_hashes());
  EXPECT_TRUE(content->AppendTokens({6, 7}).ok());
  // Exactly the hashes of the blocks that become full.
  EXPECT_EQ(content->AppendTokens({8}).code(), absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(content->AppendTokens({8}, {first, second}).code(), absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(content->num_tokens(), 7);
  EXPECT_TRUE(content->AppendTokens({8}, {second}).ok());
  ASSERT_EQ(content->hashes().size(), 2u);
  EXPECT_EQ(content->hashes()[0], first);
  EXPECT_EQ(content->hashes()[1], second);
  EXPECT_EQ(PrefixContent::FromTokens(
                {.token_ids = {1, 2, 3, 4}, .hashes = std::vector<BlockHash>{}}, Hashing(4))
                .status()
                .code(),
            absl::StatusCode::kInvalidArgument);
  // A content that hashes its tokens takes no hashes.
  auto hashed = PrefixContent::FromTokens({.token_ids = {1}}, Hashing(4));
  EXPECT_EQ(hashed->AppendTokens({2, 3, 4}, {first}).code(), absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(hashed->num_tokens(), 1);
}

TEST(PrefixContentTest, WrongNumberOfReadyHashesIsRefused) {
  EXPECT_THAT(Refused(PrefixContent::FromHashes(11, std::vector<BlockHash>(3), Hashing(4))),
              HasSubstr("got 3 block hashes with 11 tokens, expected 2"));
  EXPECT_THAT(Refused(PrefixContent::FromHashes(8, std::vector<BlockHash>(1), Hashing(4))),
              HasSubstr("got 1 block hashes with 8 tokens, expected 2"));
  EXPECT_THAT(Refused(PrefixContent::FromHashes(8, std::vector<BlockHash>(2), nullptr)),
              HasSubstr("got 2 block hashes with 8 tokens, expected 0"));
  EXPECT_THAT(Refused(PrefixContent::FromHashes(-1, {}, Hashing(4))),
              HasSubstr("number of tokens is -1"));

  auto content = PrefixContent::FromHashes(7, std::vector<BlockHash>(1), Hashing(4));
  ASSERT_TRUE(content.ok());
  EXPECT_THAT(Refused(content->AppendHashedTokens(1, {})), HasSubstr("got 0 block hashes"));
  EXPECT_THAT(Refused(content->AppendHashedTokens(1, std::vector<BlockHash>(2))),
              HasSubstr("got 2 block hashes with 1 tokens, expected 1"));
  EXPECT_THAT(Refused(content->AppendHashedTokens(-1, {})), HasSubstr("is -1"));
  // V-10.
  auto looking_ahead = PrefixContent::FromHashes(5, std::vector<BlockHash>(1), Hashing(4, 1));
  ASSERT_TRUE(looking_ahead.ok());
  EXPECT_THAT(Refused(looking_ahead->AppendHashedTokens(3, std::vector<BlockHash>(1))),
              HasSubstr("got 1 block hashes with 3 tokens, expected 0: one per block of 4 tokens "
                        "that they complete with 1 tokens behind it"));
  EXPECT_TRUE(looking_ahead->AppendHashedTokens(4, std::vector<BlockHash>(1)).ok());
  EXPECT_THAT(Refused(content->AppendHashedTokens(kMax, {})), HasSubstr("64 bits"));
  EXPECT_EQ(content->num_tokens(), 7);
  EXPECT_EQ(content->hashes().size(), 1u);
}

TEST(PrefixContentTest, TokensAndReadyHashesDoNotMix) {
  PrefixContent from_tokens = Hashed({.token_ids = Tokens(4)});
  EXPECT_THAT(Refused(from_tokens.AppendHashedTokens(1, {})),
              HasSubstr("made from token ids: append with AppendTokens"));
  auto from_hashes = PrefixContent::FromHashes(4, std::vector<BlockHash>(1), Hashing(4));
  ASSERT_TRUE(from_hashes.ok());
  EXPECT_THAT(Refused(from_hashes->AppendTokens(Tokens(1))),
              HasSubstr("made from block hashes: append with AppendHashedTokens"));
  EXPECT_EQ(from_tokens.num_tokens(), 4);
  EXPECT_EQ(from_hashes->num_tokens(), 4);
}

// The hashes that vLLM 0.33 computes, by its published algorithms sha256_cbor and xxhash_cbor.
// tests/conformance has many more.

std::vector<std::string> HexHashes(PrefixContent::Options options, int64_t num_lookahead = 0) {
  const auto content = PrefixContent::FromTokens(
      std::move(options), std::make_shared<const PrefixHashing>(
                              PrefixHashing{.hasher = BlockHasher(HashAlgorithm::kSha256Cbor),
                                            .hash_block_size = 4,
                                            .num_lookahead_tokens = num_lookahead}));
  EXPECT_TRUE(content.ok()) << content.status();
  std::vector<std::string> hashes;
  for (const BlockHash& hash : content->hashes()) hashes.push_back(hash.ToHex());
  return hashes;
}

// V-50.
TEST(VllmBlockHashTest, RootIsThatOfVllmUnlessSeeded) {
  constexpr const char* kRoot = "9bd96a485ad84efdafb72ee48a1d7a69bcead0f8f0433173941b276b9581eef0";
  EXPECT_EQ(BlockHasher(HashAlgorithm::kSha256Cbor).root().ToHex(), kRoot);
  EXPECT_EQ(BlockHasher(HashAlgorithm::kSha256Cbor, "vllm-none-hash").root().ToHex(), kRoot);
  EXPECT_NE(BlockHasher(HashAlgorithm::kSha256Cbor, "").root().ToHex(), kRoot);
}

// V-52.
TEST(VllmBlockHashTest, TaggedExtraKeys) {
  EXPECT_THAT(
      HexHashes({.token_ids = Tokens(8), .lora_name = "L", .lora_path = "/p", .cache_salt = "s1"}),
      ElementsAre("2cbee58b4c57bb16aa3c5e21d5b4eb69c6acd7d9ec81bb1762e4bd2b0d09baaf",
                  "2cff633b5de91df9c4e58ca86ea6fe1918840707b71eda3582426dd363b3cf85"));
  const auto hex = [](const ExtraKeys& keys) {
    return absl::BytesToHexString(EncodeExtraKeysAsCbor(keys));
  };
  EXPECT_EQ(hex({{Kind::kLora, "L", 0, "/p"}, {Kind::kSalt, "s1"}}),
            "8283646c6f7261614c622f70826a63616368655f73616c74627331");
  EXPECT_EQ(hex({{Kind::kLora, "L"}}), "8183646c6f7261614c60");  // no path: an empty one
  EXPECT_EQ(hex({{Kind::kMultimodal, "i", -2}, {Kind::kPromptEmbedding, "\xff"}}),
            "8283626d6d616921826d70726f6d70745f656d6265647341ff");
}

}  // namespace
}  // namespace kvblocks
