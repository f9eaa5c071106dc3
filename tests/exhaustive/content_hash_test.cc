// All small contents have hashes of their own: what separates them is framed, whatever it contains.

#include <gtest/gtest.h>

#include <memory>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "kvblocks/prefix_content.h"

namespace kvblocks::exhaustive {
namespace {

class ContentHashTest : public ::testing::TestWithParam<HashAlgorithm> {
 protected:
  std::string HashOf(PrefixContent::Options options) const {
    auto content = PrefixContent::FromTokens(std::move(options), hashing_);
    EXPECT_TRUE(content.ok()) << content.status();
    return content->hashes().back().ToHex();
  }

  const std::shared_ptr<const PrefixHashing> hashing_ =
      std::make_shared<const PrefixHashing>(PrefixHashing{BlockHasher(GetParam(), "seed"), 2});
};

// Up to three of these after each other; the last is how a salt's entry begins in the encoding.
std::vector<std::string> HostileStrings() {
  const std::vector<std::string> atoms = {"a", "b", std::string("\3\0\0\0\0\0\0\0\0", 9)};
  std::vector<std::string> all = {""};
  for (size_t begin = 0, length = 0; length < 3; ++length) {
    const size_t end = all.size();
    for (; begin < end; ++begin) {
      for (const std::string& atom : atoms) all.push_back(all[begin] + atom);
    }
  }
  return all;
}

TEST_P(ContentHashTest, NamesAndSaltsAreFramed) {
  std::set<std::string> hashes;
  size_t contents = 0;
  for (const std::string& lora : HostileStrings()) {
    for (const std::string& salt : HostileStrings()) {
      hashes.insert(HashOf({.token_ids = {1, 2}, .lora_name = lora, .cache_salt = salt}));
      ++contents;
    }
  }
  EXPECT_EQ(hashes.size(), contents);
  EXPECT_EQ(contents, 1600u);
}

// V-52.
TEST_P(ContentHashTest, NamesAndPathsAreFramed) {
  std::set<std::string> hashes;
  size_t contents = 0;
  for (const std::string& lora : HostileStrings()) {
    if (lora.empty()) continue;
    for (const std::string& path : HostileStrings()) {
      hashes.insert(HashOf({.token_ids = {1, 2}, .lora_name = lora, .lora_path = path}));
      ++contents;
    }
  }
  EXPECT_EQ(hashes.size(), contents);
  EXPECT_EQ(contents, 1560u);
}

TEST_P(ContentHashTest, KindsOfExtraKeysAreKeptApart) {
  std::set<std::string> hashes;
  hashes.insert(HashOf({.token_ids = {1, 2}}));
  hashes.insert(HashOf({.token_ids = {1, 2}, .lora_name = "x"}));
  hashes.insert(HashOf({.token_ids = {1, 2}, .cache_salt = "x"}));
  hashes.insert(HashOf({.token_ids = {1, 2}, .features = {{"x", 0, 1}}}));
  hashes.insert(HashOf({.token_ids = {1, 2},
                        .embedding_digest = [](int64_t, int64_t) { return std::string("x"); }}));
  EXPECT_EQ(hashes.size(), 5u);
}

// Tokens 0 and 1 in four positions, with and without a feature anywhere in them.
TEST_P(ContentHashTest, TokensAndFeaturesAreKeptApart) {
  std::set<std::string> hashes;
  size_t contents = 0;
  for (TokenId bits = 0; bits < 16; ++bits) {
    const std::vector<TokenId> tokens = {bits & 1, bits >> 1 & 1, bits >> 2 & 1, bits >> 3 & 1};
    hashes.insert(HashOf({.token_ids = tokens}));
    ++contents;
    for (int64_t offset = 0; offset < 4; ++offset) {
      hashes.insert(HashOf({.token_ids = tokens, .features = {{"image", offset, 1}}}));
      ++contents;
    }
  }
  EXPECT_EQ(hashes.size(), contents);
}

INSTANTIATE_TEST_SUITE_P(Algorithms, ContentHashTest,
                         ::testing::Values(HashAlgorithm::kSha256, HashAlgorithm::kXxh3_128,
                                           HashAlgorithm::kSha256Cbor,
                                           HashAlgorithm::kXxh3_128Cbor),
                         [](const auto& test) {
                           return std::string(HashAlgorithmName(test.param));
                         });

}  // namespace
}  // namespace kvblocks::exhaustive
