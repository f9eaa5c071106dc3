// Identity: contents that differ in any way have different hashes. Framings are built that would
// collide if a length, a kind, an offset or an absence were left out of what is hashed.

#include <array>
#include <cstring>
#include <map>
#include <memory>
#include <random>
#include <string>
#include <utility>
#include <vector>

#include "gtest/gtest.h"
#include "kvblocks/block.h"
#include "kvblocks/prefix_content.h"

namespace kvblocks {
namespace {

using Kind = ExtraKey::Kind;

const std::string kNul(1, '\0');

TokenId TokenOfBytes(const char* bytes) {
  TokenId token;
  std::memcpy(&token, bytes, sizeof(token));
  return token;
}

// Tokens whose bytes are `bytes`, cut to whole tokens.
std::vector<TokenId> TokensOfBytes(const std::string& bytes) {
  std::vector<TokenId> tokens;
  for (size_t i = 0; i + 4 <= bytes.size(); i += 4) tokens.push_back(TokenOfBytes(&bytes[i]));
  return tokens;
}

// Collects hashes by what was hashed; the same hash for another description is a collision.
class Identities {
 public:
  void Add(const BlockHash& hash, const std::string& what) {
    const auto [it, inserted] = seen_.try_emplace(hash.words, what);
    EXPECT_TRUE(inserted || it->second == what) << what << "\nand\n" << it->second;
  }
  size_t size() const { return seen_.size(); }

 private:
  std::map<std::array<uint64_t, 4>, std::string> seen_;
};

std::string Describe(const std::vector<TokenId>& tokens, const ExtraKeys* keys) {
  std::string text = "tokens";
  for (TokenId token : tokens) text += " " + std::to_string(token);
  text += keys == nullptr ? ", no keys" : ", keys";
  if (keys == nullptr) return text;
  for (const ExtraKey& key : *keys) {
    text += " (" + std::to_string(static_cast<int>(key.kind)) + "," + std::to_string(key.offset) +
            "," + std::to_string(key.value.size()) + ":";
    for (const unsigned char c : key.value) text += std::to_string(c) + ".";
    text += ")";
  }
  return text;
}

class BlockHashFramingTest : public testing::TestWithParam<HashAlgorithm> {
 protected:
  BlockHashFramingTest() : hasher_(GetParam(), "seed") {}

  void Add(const std::vector<TokenId>& tokens, const ExtraKeys& keys) {
    const std::string encoded = EncodeExtraKeys(keys);
    identities_.Add(hasher_.Hash(hasher_.root(), tokens, encoded), Describe(tokens, &keys));
  }
  void AddWithoutKeys(const std::vector<TokenId>& tokens) {
    identities_.Add(hasher_.Hash(hasher_.root(), tokens, std::nullopt), Describe(tokens, nullptr));
  }

  BlockHasher hasher_;
  Identities identities_;
};

INSTANTIATE_TEST_SUITE_P(Algorithms, BlockHashFramingTest,
                         testing::Values(HashAlgorithm::kSha256, HashAlgorithm::kXxh3_128));

TEST_P(BlockHashFramingTest, BytesDoNotMoveBetweenTokensAndExtraKeys) {
  // The encoded keys' own bytes as further tokens, and tokens' bytes in front of a key's value.
  for (const std::string& value : {std::string("abcd"), std::string("abcdefg"), std::string()}) {
    const ExtraKeys keys = {{Kind::kSalt, value, 0}};
    Add({1, 2}, keys);
    const std::string encoded = EncodeExtraKeys(keys);
    std::vector<TokenId> longer = {1, 2};
    for (TokenId token : TokensOfBytes(encoded)) {
      longer.push_back(token);
      AddWithoutKeys(longer);
      identities_.Add(hasher_.Hash(hasher_.root(), longer, encoded.substr(4 * (longer.size() - 2))),
                      "moved " + value + " " + std::to_string(longer.size()));
    }
    Add({1}, {{Kind::kSalt, std::string("\x02\0\0\0", 4) + value, 0}});
    Add({}, {{Kind::kSalt, std::string("\x01\0\0\0\x02\0\0\0", 8) + value, 0}});
  }
  EXPECT_GT(identities_.size(), 20u);
}

TEST_P(BlockHashFramingTest, AKeyInsideAValueIsNoSecondKey) {
  const ExtraKeys inner = {{Kind::kSalt, "secret", 0}};
  const std::string encoded = EncodeExtraKeys(inner);
  Add({7}, {{Kind::kLora, "adapter", 0}, inner[0]});
  Add({7}, {{Kind::kLora, "adapter" + encoded, 0}});
  Add({7}, {{Kind::kLora, "adapter" + encoded.substr(4), 0}});  // without its count
  Add({7}, {{Kind::kLora, encoded + "adapter", 0}});
  EXPECT_EQ(identities_.size(), 4u);
}

TEST_P(BlockHashFramingTest, OffsetsOfAnyWidthCount) {
  for (const int64_t offset :
       {int64_t{0}, int64_t{1}, int64_t{-1}, int64_t{256}, int64_t{1} << 31, int64_t{1} << 32,
        int64_t{1} << 56, -(int64_t{1} << 32), INT64_MAX, INT64_MIN}) {
    Add({7}, {{Kind::kMultimodal, "image", offset}});
  }
  EXPECT_EQ(identities_.size(), 10u);
}

TEST_P(BlockHashFramingTest, TheParentIsNoToken) {
  // A parent whose last word looks like the count and the first tokens of a longer block.
  const BlockHash parent = hasher_.Hash(hasher_.root(), std::vector<TokenId>{1}, std::nullopt);
  const std::vector<TokenId> tokens = {2};
  identities_.Add(hasher_.Hash(parent, tokens, std::nullopt), "child");
  std::vector<TokenId> flat(10);
  std::memcpy(flat.data(), parent.words.data(), 32);
  flat[8] = 1;
  flat[9] = 2;
  AddWithoutKeys(flat);
  AddWithoutKeys({1, 2});
  for (size_t word = 0; word < hasher_.digest_size() / 8; ++word) {
    BlockHash other = parent;
    other.words[word] ^= uint64_t{1} << 63;
    identities_.Add(hasher_.Hash(other, tokens, std::nullopt), "parent " + std::to_string(word));
  }
  EXPECT_EQ(identities_.size(), 3 + hasher_.digest_size() / 8);
}

TEST_P(BlockHashFramingTest, SmallRandomFramingsNeverShareAHash) {
  std::mt19937_64 random(7);
  const auto below = [&](uint64_t limit) { return random() % limit; };
  for (int i = 0; i < 20000; ++i) {
    // Few different parts, so that most pairs differ in their framing only.
    std::vector<TokenId> tokens;
    for (uint64_t n = below(4); n > 0; --n) tokens.push_back(static_cast<TokenId>(below(2)));
    ExtraKeys keys;
    for (uint64_t n = below(4); n > 0; --n) {
      std::string value;
      for (uint64_t m = below(6); m > 0; --m) value += static_cast<char>(below(2));
      keys.push_back({static_cast<Kind>(1 + below(4)), value, static_cast<int64_t>(below(3)) - 1});
    }
    if (keys.empty() && below(2) == 0) {
      AddWithoutKeys(tokens);
    } else {
      Add(tokens, keys);
    }
  }
  EXPECT_GT(identities_.size(), 5000u);
}

// The same one floor up: requests that differ in one respect share no hash from there on.
class ContentIdentityTest : public testing::Test {
 protected:
  static constexpr int64_t kBlock = 4;

  std::vector<BlockHash> HashesOf(PrefixContent::Options options) const {
    const auto content = PrefixContent::FromTokens(std::move(options), hashing_);
    EXPECT_TRUE(content.ok()) << content.status();
    return {content->hashes().begin(), content->hashes().end()};
  }
  // Of three blocks each; none of one list is in the other.
  void ExpectDisjoint(const PrefixContent::Options& a, const PrefixContent::Options& b) const {
    const auto first = HashesOf(a);
    const auto second = HashesOf(b);
    ASSERT_EQ(first.size(), 3u);
    ASSERT_EQ(second.size(), 3u);
    for (const BlockHash& x : first) {
      for (const BlockHash& y : second) EXPECT_FALSE(x == y);
    }
  }

  const std::shared_ptr<const PrefixHashing> hashing_ = std::make_shared<const PrefixHashing>(
      PrefixHashing{BlockHasher(HashAlgorithm::kSha256, "seed"), kBlock});
  const std::vector<TokenId> tokens_ = {1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1};
};

TEST_F(ContentIdentityTest, TheSameImageElsewhereIsAnotherContent) {
  const auto with = [&](std::vector<MultimodalFeature> features) {
    return PrefixContent::Options{.token_ids = tokens_, .features = std::move(features)};
  };
  ExpectDisjoint(with({{"i", 0, 2}}), with({{"i", 1, 2}}));
  ExpectDisjoint(with({{"i", 0, 2}}), with({{"j", 0, 2}}));
  ExpectDisjoint(with({{"ab", 0, 1}, {"c", 1, 1}}), with({{"a", 0, 1}, {"bc", 1, 1}}));
  ExpectDisjoint(with({{"i", 0, 2}}), {.token_ids = tokens_, .lora_name = "i"});
  // An image that begins in the block before has a negative offset here, not none.
  const auto spanning = HashesOf(with({{"i", 2, 4}}));
  const auto two = HashesOf(with({{"i", 2, 2}, {"i", 4, 2}}));
  EXPECT_EQ(spanning[0], two[0]);
  EXPECT_FALSE(spanning[1] == two[1]);
}

TEST_F(ContentIdentityTest, TheRootSeparatesSeeds) {
  const BlockHasher a(HashAlgorithm::kSha256, "a");
  const BlockHasher empty(HashAlgorithm::kSha256, "");
  const BlockHasher none(HashAlgorithm::kSha256, std::nullopt);
  EXPECT_FALSE(a.root() == empty.root());
  EXPECT_FALSE(empty.root() == none.root()) << "an empty seed is a seed, not random";
  EXPECT_FALSE(BlockHasher(HashAlgorithm::kSha256, "a" + kNul).root() == a.root());
  EXPECT_EQ(BlockHasher(HashAlgorithm::kSha256, "a").root(), a.root());
}

}  // namespace
}  // namespace kvblocks
