#include "kvblocks/block.h"

#include <cstdint>
#include <limits>
#include <numeric>
#include <random>
#include <set>
#include <string>
#include <vector>

#include "absl/strings/escaping.h"
#include "block_pool/cbor.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "kvblocks/prefix_content.h"
#include "tests/allocation_counter/allocation_counter.h"

namespace kvblocks {
namespace {

using ::testing::HasSubstr;

std::vector<TokenId> HashedTokens(TokenId first, size_t count) {
  std::vector<TokenId> tokens(count);
  std::iota(tokens.begin(), tokens.end(), first);
  return tokens;
}

// Computed with another implementation of SHA-256 over the documented encoding. A change of these
// values cuts processes of different versions off from each other's hashes.
TEST(BlockHashTest, Sha256ChainHasItsDocumentedValues) {
  const BlockHasher hasher(HashAlgorithm::kSha256, "seed");
  EXPECT_EQ(hasher.root().ToHex(),
            "fa3e49328c8454ec40692c2be2f5e84992cce06f37c7e131a7672180b0735a63");
  const BlockHash first = hasher.Hash(hasher.root(), HashedTokens(0, 16), std::nullopt);
  EXPECT_EQ(first.ToHex(), "3ac3f2ae205bdc537ee8cac9f1b3a11545659a24f000652b9b63971d6831b18d");
  const BlockHash second = hasher.Hash(first, HashedTokens(16, 16), "abc");
  EXPECT_EQ(second.ToHex(), "df6bcd512bc9a8a916dc68f28b0ccd0ed86cd0173621a58d9a9f60354bb1cded");
  EXPECT_EQ(hasher.ToUint64(second), 11141729785157373421u);
}

TEST(BlockHashTest, HexShowsBytesInOrder) {
  const BlockHash hash{{0x0807060504030201u, 0, 0, 0xff00000000000000u}};
  EXPECT_EQ(hash.ToHex(), "0102030405060708" + std::string(46, '0') + "ff");
}

TEST(BlockHashTest, FromUint128FillsTheFront) {
  const BlockHash hash = BlockHash::FromUint128(absl::MakeUint128(7, 9));
  EXPECT_EQ(hash, (BlockHash{{9, 7, 0, 0}}));
}

TEST(BlockHashTest, EqualityLooksAtEveryWord) {
  const BlockHash base{{1, 2, 3, 4}};
  for (size_t word = 0; word < 4; ++word) {
    for (int bit : {0, 31, 32, 63}) {
      BlockHash other = base;
      other.words[word] ^= uint64_t{1} << bit;
      EXPECT_FALSE(base == other) << word << " " << bit;
    }
  }
}

class BlockHasherTest : public testing::TestWithParam<HashAlgorithm> {
 protected:
  const BlockHasher hasher_{GetParam(), "seed"};
};

// Also at sizes without a path of their own, from any parent, and with lookahead (V-10).
TEST_P(BlockHasherTest, ChainIsOneHashAfterAnother) {
  for (size_t block_size : {1, 4, 15, 16, 17, 32, 300}) {
    for (size_t num_lookahead : {0, 1, 2, 3, 4, 255}) {
      for (size_t num_blocks : {0, 1, 2, 7}) {
        const auto tokens = HashedTokens(-50, num_blocks * block_size + num_lookahead);
        const auto span = absl::MakeConstSpan(tokens);
        BlockHash parent = hasher_.Hash(hasher_.root(), HashedTokens(0, 3), "extra");
        std::vector<BlockHash> chain(num_blocks);
        hasher_.HashChain(parent, tokens, absl::MakeSpan(chain), num_lookahead);
        for (size_t i = 0; i < num_blocks; ++i) {
          parent = hasher_.Hash(parent, span.subspan(i * block_size, block_size), std::nullopt,
                                span.subspan((i + 1) * block_size, num_lookahead));
          EXPECT_EQ(chain[i], parent) << block_size << " " << num_lookahead << " " << i;
        }
      }
    }
  }
}

TEST_P(BlockHasherTest, WithoutSeedTheRootIsOnePerProcess) {
  if (GetParam() == HashAlgorithm::kSha256Cbor) return;  // V-50: that of vLLM
  EXPECT_EQ(BlockHasher(GetParam()).root(), BlockHasher(GetParam()).root());
  EXPECT_FALSE(BlockHasher(GetParam()).root() == BlockHasher(GetParam(), "").root());
}

TEST_P(BlockHasherTest, ExternalFormsAreTheDigestsBytes) {
  const BlockHash hash = hasher_.Hash(hasher_.root(), HashedTokens(0, 16), std::nullopt);
  const std::string bytes = hasher_.ToBytes(hash);
  ASSERT_EQ(bytes.size(), hasher_.digest_size());
  const bool is_sha256 =
      GetParam() == HashAlgorithm::kSha256 || GetParam() == HashAlgorithm::kSha256Cbor;
  EXPECT_EQ(bytes.size(), is_sha256 ? 32u : 16u);
  uint64_t last = 0;
  for (char byte : bytes.substr(bytes.size() - 8)) last = last << 8 | static_cast<uint8_t>(byte);
  EXPECT_EQ(hasher_.ToUint64(hash), last);
  for (size_t i = hasher_.digest_size() / 8; i < 4; ++i) EXPECT_EQ(hash.words[i], 0u);
}

INSTANTIATE_TEST_SUITE_P(Algorithms, BlockHasherTest,
                         testing::Values(HashAlgorithm::kSha256, HashAlgorithm::kXxh3_128,
                                         HashAlgorithm::kSha256Cbor, HashAlgorithm::kXxh3_128Cbor),
                         [](const auto& test) {
                           return std::string(HashAlgorithmName(test.param));
                         });

std::string Int(int64_t value) {
  std::string out;
  cbor::AppendInt(value, out);
  return absl::BytesToHexString(out);
}

std::string Int32(int32_t value) {
  char bytes[8];
  return absl::BytesToHexString(
      absl::string_view(bytes, static_cast<size_t>(cbor::WriteInt32(value, bytes) - bytes)));
}

// Appendix A of RFC 8949, and the values where a longer form begins.
TEST(CborTest, IntegersHaveTheirShortestForm) {
  const std::pair<int64_t, const char*> cases[] = {
      {0, "00"},
      {1, "01"},
      {23, "17"},
      {24, "1818"},
      {100, "1864"},
      {255, "18ff"},
      {256, "190100"},
      {1000, "1903e8"},
      {65535, "19ffff"},
      {65536, "1a00010000"},
      {1000000, "1a000f4240"},
      {4294967295, "1affffffff"},
      {4294967296, "1b0000000100000000"},
      {1000000000000, "1b000000e8d4a51000"},
      {std::numeric_limits<int64_t>::max(), "1b7fffffffffffffff"},
      {-1, "20"},
      {-24, "37"},
      {-25, "3818"},
      {-100, "3863"},
      {-256, "38ff"},
      {-257, "390100"},
      {-1000, "3903e7"},
      {-65536, "39ffff"},
      {-65537, "3a00010000"},
      {-4294967296, "3affffffff"},
      {-4294967297, "3b0000000100000000"},
      {std::numeric_limits<int64_t>::min(), "3b7fffffffffffffff"},
  };
  for (const auto& [value, bytes] : cases) EXPECT_EQ(Int(value), bytes) << value;
}

TEST(CborTest, TokensAreIntegers) {
  std::mt19937 random(1);
  for (int i = 0; i < 100000; ++i) {
    const auto value = static_cast<int32_t>(random()) >> (random() % 32);
    ASSERT_EQ(Int32(value), Int(value)) << value;
  }
  for (const int32_t edge : {0, 24, 0x100, 0x10000}) {
    for (int32_t value : {edge - 1, edge, -edge - 1, -edge, -edge + 1}) {
      EXPECT_EQ(Int32(value), Int(value)) << value;
    }
  }
  EXPECT_EQ(Int32(std::numeric_limits<int32_t>::max()), "1a7fffffff");
  EXPECT_EQ(Int32(std::numeric_limits<int32_t>::min()), "3a7fffffff");
}

TEST(CborTest, StringsAndArraysBeginWithTheirLength) {
  const auto hex = [](auto append) {
    std::string out = "-";  // is appended to
    append(out);
    return absl::BytesToHexString(out.substr(1));
  };
  EXPECT_EQ(hex([](auto& out) { cbor::AppendText("", out); }), "60");
  EXPECT_EQ(hex([](auto& out) { cbor::AppendText("IETF", out); }), "6449455446");
  EXPECT_EQ(hex([](auto& out) { cbor::AppendBytes("\1\2\3\4", out); }), "4401020304");
  EXPECT_EQ(hex([](auto& out) { cbor::AppendArray(0, out); }), "80");
  EXPECT_EQ(hex([](auto& out) { cbor::AppendArray(24, out); }), "9818");
  EXPECT_EQ(hex([](auto& out) { cbor::AppendText(std::string(24, 'a'), out); }).substr(0, 6),
            "781861");
  EXPECT_EQ(hex([](auto& out) { cbor::AppendBytes(std::string(70000, '\0'), out); }).substr(0, 12),
            "5a0001117000");
}

constexpr int64_t kLongest = std::numeric_limits<int64_t>::max();

TEST(ExtraKeysTest, SortedDisjointFeaturesAreValid) {
  EXPECT_TRUE(ValidateFeatures({}).ok());
  EXPECT_TRUE(ValidateFeatures({{"a", 0, 1}}).ok());
  EXPECT_TRUE(ValidateFeatures({{"a", 0, 4}, {"b", 4, 1}, {"b", 9, 3}}).ok());
  EXPECT_TRUE(ValidateFeatures({{"a", kLongest - 1, 1}}).ok());
}

TEST(ExtraKeysTest, InvalidFeaturesAreRefusedByIndexValueAndLimit) {
  struct Case {
    std::vector<MultimodalFeature> features;
    const char* message;
  };
  const Case cases[] = {
      {{{"a", 0, 0}}, "multimodal feature 0 has length 0, expected at least 1"},
      {{{"a", 0, 3}, {"b", 5, -2}}, "multimodal feature 1 has length -2, expected at least 1"},
      {{{"a", -1, 3}}, "multimodal feature 0 starts at token -1, expected at least 0"},
      {{{"a", 0, 4}, {"b", 3, 1}}, "multimodal feature 1 starts at token 3, expected at least 4"},
      {{{"a", 8, 4}, {"b", 0, 4}}, "must be sorted by offset and must not overlap"},
      {{{"a", 0, 4}, {"a", 0, 4}}, "multimodal feature 1 starts at token 0, expected at least 4"},
      {{{"a", 1, kLongest}}, "ends beyond the range of 64 bits"},
      {{{"a", kLongest, 1}}, "ends beyond the range of 64 bits"},
      {{{"a", 0, std::numeric_limits<int64_t>::min()}}, "expected at least 1"},
  };
  for (const Case& c : cases) {
    const absl::Status status = ValidateFeatures(c.features);
    EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument) << c.message;
    EXPECT_THAT(std::string(status.message()), HasSubstr(c.message));
  }
}

// Hashing tokens allocates nothing: neither whole prompts nor output token by token, with every
// algorithm, with and without lookahead (V-10).

TEST(HashAllocationTest, ChainsAllocateNothing) {
  for (HashAlgorithm algorithm : {HashAlgorithm::kSha256, HashAlgorithm::kXxh3_128,
                                  HashAlgorithm::kSha256Cbor, HashAlgorithm::kXxh3_128Cbor}) {
    const BlockHasher hasher(algorithm, "seed");
    for (size_t block_size : {1, 16, 32, 64, 256}) {
      for (size_t num_lookahead : {0, 1, 3, 4}) {
        for (size_t num_blocks : {1, 9}) {
          const std::vector<TokenId> tokens(num_blocks * block_size + num_lookahead, 70000);
          std::vector<BlockHash> hashes(num_blocks);
          const int64_t before = NumAllocations();
          {
            const CountAllocations count;
            hasher.HashChain(hasher.root(), tokens, absl::MakeSpan(hashes), num_lookahead);
          }
          EXPECT_EQ(NumAllocations(), before)
              << HashAlgorithmName(algorithm) << " " << block_size << " " << num_lookahead;
        }
      }
    }
  }
}

TEST(HashAllocationTest, ABlockOfOutputAllocatesNothingButTheListOfHashes) {
  auto content = PrefixContent::FromTokens({.token_ids = std::vector<TokenId>(2000, 7)},
                                           std::make_shared<const PrefixHashing>(PrefixHashing{
                                               .hasher = BlockHasher(HashAlgorithm::kSha256Cbor),
                                               .hash_block_size = 16,
                                               .num_lookahead_tokens = 2}));
  ASSERT_TRUE(content.ok());
  ASSERT_TRUE(content->AppendTokens(std::vector<TokenId>(40, 7)).ok());  // both lists have grown
  const size_t before_hashes = content->hashes().size();
  const int64_t before = NumAllocations();
  {
    const CountAllocations count;
    for (TokenId token = 0; token < 40; ++token) ASSERT_TRUE(content->AppendTokens({token}).ok());
  }
  EXPECT_EQ(NumAllocations(), before);
  EXPECT_GE(content->hashes().size(), before_hashes + 2);
}

}  // namespace
}  // namespace kvblocks
