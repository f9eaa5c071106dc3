// Hashing tokens allocates nothing: neither whole prompts nor output token by token, with every
// algorithm, with look-ahead or not (V-10).

#include <string>
#include <vector>

#include "gtest/gtest.h"
#include "kvblocks/block.h"
#include "kvblocks/prefix_content.h"
#include "tests/allocation_counter/allocation_counter.h"

namespace kvblocks {
namespace {

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
