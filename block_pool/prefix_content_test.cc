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

// Any way of growing gives the hashes of a fresh content, whatever colours the tokens.
TEST(PrefixContentTest, GrowthInAnyStepsGivesTheSameHashes) {
  std::mt19937_64 random(3);
  for (int round = 0; round < 300; ++round) {
    PrefixContent::Options options;
    options.token_ids = Tokens(random() % 60);
    if (random() % 2) options.lora_name = "adapter";
    if (random() % 2) options.cache_salt = "salt";
    if (random() % 2) {
      options.embedding_digest = [](int64_t begin, int64_t end) {
        return begin < 16 ? std::to_string(begin) + "-" + std::to_string(end) : std::string();
      };
    }
    for (int64_t at = 0; at < 60;) {
      at += static_cast<int64_t>(random() % 9);
      const int64_t length = 1 + static_cast<int64_t>(random() % 9);
      options.features.push_back({"image" + std::to_string(random() % 3), at, length});
      at += length;
    }
    if (!options.lora_name.empty() && random() % 2) options.lora_path = "/adapters/1";
    const int64_t block = 1 + static_cast<int64_t>(random() % 8);
    const auto lookahead = static_cast<int64_t>(random() % 4);
    const PrefixContent fresh = Hashed(options, block, lookahead);
    PrefixContent::Options start = options;
    start.token_ids.resize(random() % (options.token_ids.size() + 1));
    PrefixContent grown = Hashed(start, block, lookahead);
    while (grown.num_tokens() < fresh.num_tokens()) {
      const auto at = static_cast<size_t>(grown.num_tokens());
      const size_t step =
          std::min<size_t>(1 + random() % 12, static_cast<size_t>(fresh.num_tokens()) - at);
      ASSERT_TRUE(
          grown.AppendTokens(absl::MakeConstSpan(fresh.token_ids()).subspan(at, step)).ok());
    }
    ASSERT_EQ(Hashes(grown), Hashes(fresh));
    ASSERT_EQ(grown.token_ids(), fresh.token_ids());
  }
}

TEST(PrefixContentTest, WhateverDiffersColoursAllLaterBlocks) {
  const auto base = [] {
    return PrefixContent::Options{.token_ids = Tokens(16), .features = {{"cat", 5, 2}}};
  };
  const PrefixContent reference = Hashed(base());
  const auto first_difference = [&](const PrefixContent::Options& options) {
    const PrefixContent other = Hashed(options);
    size_t block = 0;
    while (block < 4 && other.hashes()[block] == reference.hashes()[block]) ++block;
    for (size_t i = block; i < 4; ++i) EXPECT_FALSE(other.hashes()[i] == reference.hashes()[i]);
    return block;
  };
  EXPECT_EQ(first_difference(base()), 4u);
  auto options = base();
  options.lora_name = "adapter";
  EXPECT_EQ(first_difference(options), 0u);
  options.lora_path = "/adapters/1";
  const PrefixContent with_path = Hashed(options);
  options.lora_path = "/adapters/2";  // V-52: no longer the same adapter
  EXPECT_FALSE(Hashed(options).hashes()[0] == with_path.hashes()[0]);
  EXPECT_EQ(first_difference(options), 0u);
  options = base();
  options.cache_salt = "salt";
  EXPECT_EQ(first_difference(options), 0u);
  options = base();
  options.features[0].identifier = "dog";
  EXPECT_EQ(first_difference(options), 1u);
  options = base();
  options.features[0].offset = 4;  // the same image, one token earlier
  EXPECT_EQ(first_difference(options), 1u);
  options = base();
  options.features.push_back({"cat", 15, 40});
  EXPECT_EQ(first_difference(options), 3u);
  options = base();
  options.token_ids[9] = -1;
  EXPECT_EQ(first_difference(options), 2u);
  options = base();
  options.embedding_digest = [](int64_t begin, int64_t) {
    return begin == 8 ? std::string("rows") : std::string();
  };
  EXPECT_EQ(first_difference(options), 2u);
  options = base();
  options.lora_id = 7;  // reported in events, no part of the content
  options.session_id = "session";
  EXPECT_EQ(first_difference(options), 4u);
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

TEST(PrefixContentTest, FeatureEdgesAreHalfOpen) {
  const PrefixContent content = Hashed({.token_ids = Tokens(12), .features = {{"a", 4, 4}}});
  EXPECT_THAT(content.ExtraKeysOf(0, 4), IsEmpty());
  EXPECT_EQ(content.ExtraKeysOf(4, 8).size(), 1u);
  EXPECT_THAT(content.ExtraKeysOf(8, 12), IsEmpty());
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

// V-51.
TEST(VllmBlockHashTest, ChainOfPlainTokens) {
  EXPECT_THAT(HexHashes({.token_ids = Tokens(11)}),
              ElementsAre("c49ab11fb576db6f376aef58c24f728a0ba1807e8cac5f940f1a5c4c20741898",
                          "9d0a7c928c548f9aeea31ae98471cf515045a206851732ac14cb3083c18d40f9"));
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

// V-10: the hash covers the tokens after the block, and needs them.
TEST(VllmBlockHashTest, LookingAhead) {
  EXPECT_THAT(HexHashes({.token_ids = Tokens(9)}, 1),
              ElementsAre("f67434700ed135cf703562ef91c0821b52829b009be3e279122aa41d085ed1c6",
                          "b8f9f5097d94df797fc2007ab9f7c19bb8a0b4517dd5248daa0bc2bae551e617"));
  EXPECT_THAT(HexHashes({.token_ids = Tokens(9)}, 3),
              ElementsAre("e504ef825bfa252d0756ab72bee31dd220feebb6c8b08fad0c1357c1e0d9fb0e"));
}

// 16 bytes, in the order that xxHash calls canonical; from the real xxhash_cbor.
TEST(VllmBlockHashTest, Xxh3HashesAreCanonicalBytes) {
  const BlockHasher hasher(HashAlgorithm::kXxh3_128Cbor, "0");
  EXPECT_EQ(absl::BytesToHexString(hasher.ToBytes(hasher.root())),
            "1ebe36576dcb573f26b99533a20aaeca");
  const BlockHash hash = hasher.Hash(hasher.root(), Tokens(4), std::nullopt);
  EXPECT_EQ(absl::BytesToHexString(hasher.ToBytes(hash)), "c20df5f86688b63f4cb5a744053f0b61");
  EXPECT_EQ(hasher.ToUint64(hash), 0x4cb5a744053f0b61u);
}

}  // namespace
}  // namespace kvblocks
