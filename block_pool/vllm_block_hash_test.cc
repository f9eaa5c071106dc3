// The hashes that vLLM 0.33 computes, by its published algorithms sha256_cbor and xxhash_cbor.
// tests/conformance has many more.

#include <memory>
#include <numeric>
#include <string>
#include <vector>

#include "absl/strings/escaping.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "kvblocks/block.h"
#include "kvblocks/prefix_content.h"

namespace kvblocks {
namespace {

using ::testing::ElementsAre;
using Kind = ExtraKey::Kind;

std::vector<TokenId> Tokens(size_t count) {
  std::vector<TokenId> tokens(count);
  std::iota(tokens.begin(), tokens.end(), 0);
  return tokens;
}

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
