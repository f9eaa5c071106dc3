// Contents and the block hashes that vLLM 0.33.0 computed for them (testdata/vllm_hashes.txt, made
// by tools/vllm_hash_vectors.py): V-10 and V-50 to V-53, byte by byte.

#include <fstream>
#include <map>
#include <memory>
#include <optional>
#include <random>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/escaping.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_split.h"
#include "gtest/gtest.h"
#include "kvblocks/prefix_content.h"

namespace kvblocks {
namespace {

struct Vector {
  std::string name;
  std::string algorithm;
  std::optional<std::string> seed;
  int64_t block_size = 0;
  int64_t num_lookahead = 0;
  PrefixContent::Options options;
  std::map<std::pair<int64_t, int64_t>, std::string> embeddings;  // digest by rows
  std::string root;
  std::vector<std::string> hashes;
};

int64_t Number(std::string_view text) {
  int64_t value = 0;
  EXPECT_TRUE(absl::SimpleAtoi(absl::string_view(text.data(), text.size()), &value)) << text;
  return value;
}

// A case is lines of one word and its value, and begins with "case".
std::vector<Vector> ReadVectors(const std::string& path) {
  std::ifstream file(path);
  std::vector<Vector> vectors;
  std::string line;
  while (std::getline(file, line)) {
    if (line.starts_with("#")) continue;
    const size_t space = line.find(' ');
    const std::string word = line.substr(0, space);
    const std::string value = space == std::string::npos ? "" : line.substr(space + 1);
    if (word == "case") {
      vectors.emplace_back().name = value;
      continue;
    }
    Vector& v = vectors.back();
    const std::vector<std::string> parts = absl::StrSplit(value, absl::MaxSplits(' ', 2));
    if (word == "algorithm") {
      v.algorithm = value;
    } else if (word == "seed") {
      v.seed = value;
    } else if (word == "block_size") {
      v.block_size = Number(value);
    } else if (word == "lookahead") {
      v.num_lookahead = Number(value);
    } else if (word == "lora_name") {
      v.options.lora_name = value;
    } else if (word == "lora_path") {
      v.options.lora_path = value;
    } else if (word == "salt") {
      v.options.cache_salt = value;
    } else if (word == "feature") {
      v.options.features.push_back({parts[2], Number(parts[0]), Number(parts[1])});
    } else if (word == "embeddings") {
      v.embeddings[{Number(parts[0]), Number(parts[1])}] = absl::HexStringToBytes(parts[2]);
    } else if (word == "tokens") {
      for (const auto token : absl::StrSplit(value, ' ', absl::SkipEmpty())) {
        v.options.token_ids.push_back(static_cast<TokenId>(Number({token.data(), token.size()})));
      }
    } else if (word == "root") {
      v.root = value;
    } else if (word == "hash") {
      v.hashes.push_back(value);
    } else {
      ADD_FAILURE() << "unknown word " << word;
    }
  }
  return vectors;
}

std::vector<std::string> HexHashes(const PrefixContent& content) {
  std::vector<std::string> hashes;
  for (const BlockHash& hash : content.hashes()) {
    hashes.push_back(absl::BytesToHexString(content.hashing()->hasher.ToBytes(hash)));
  }
  return hashes;
}

TEST(VllmHashesTest, EveryHashIsThatOfVllm) {
  const std::vector<Vector> vectors = ReadVectors("tests/conformance/testdata/vllm_hashes.txt");
  ASSERT_EQ(vectors.size(), 100u);
  std::mt19937 random(5);
  size_t num_hashes = 0;
  for (const Vector& v : vectors) {
    SCOPED_TRACE("case " + v.name);
    const HashAlgorithm algorithm =
        v.algorithm == "sha256_cbor" ? HashAlgorithm::kSha256Cbor : HashAlgorithm::kXxh3_128Cbor;
    ASSERT_EQ(v.algorithm, HashAlgorithmName(algorithm));
    const BlockHasher hasher(algorithm, v.seed);
    EXPECT_EQ(absl::BytesToHexString(hasher.ToBytes(hasher.root())), v.root);
    const auto hashing = std::make_shared<const PrefixHashing>(
        PrefixHashing{.hasher = hasher,
                      .hash_block_size = v.block_size,
                      .num_lookahead_tokens = v.num_lookahead});
    PrefixContent::Options options = v.options;
    if (!v.embeddings.empty()) {
      options.embedding_digest = [&v](int64_t begin, int64_t end) {
        return v.embeddings.at({begin, end});
      };
    }
    const auto fresh = PrefixContent::FromTokens(options, hashing);
    ASSERT_TRUE(fresh.ok()) << fresh.status();
    EXPECT_EQ(HexHashes(*fresh), v.hashes);
    num_hashes += v.hashes.size();

    options.token_ids.resize(random() % (options.token_ids.size() + 1));
    auto grown = PrefixContent::FromTokens(options, hashing);
    ASSERT_TRUE(grown.ok()) << grown.status();
    while (grown->num_tokens() < fresh->num_tokens()) {
      const auto rest =
          absl::MakeConstSpan(fresh->token_ids()).subspan(static_cast<size_t>(grown->num_tokens()));
      ASSERT_TRUE(grown->AppendTokens(rest.subspan(0, 1 + random() % 20)).ok());
    }
    EXPECT_EQ(HexHashes(*grown), v.hashes);
  }
  EXPECT_GT(num_hashes, 200u);
}

}  // namespace
}  // namespace kvblocks
