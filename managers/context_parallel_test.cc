// Blocks whose tokens are spread over the ranks of context parallelism (BM-3, BM-113).

#include <string>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "kvblocks/managers/testing/test_models.h"

namespace kvblocks {
namespace {

using ::testing::HasSubstr;

KvCacheSpec States(int64_t block_size) {
  return MambaSpec::Create({.block_size = block_size,
                            .states = {{.shape = {4}}},
                            .cache_mode = MambaCacheMode::kAlign})
      .value();
}

TEST(ContextParallelTest, ABlockCoversItsTokensOnEachRank) {
  const auto manager = Manager(20, {Full(4)}, {.decode_context_parallel = 2});
  EXPECT_EQ(manager->group(0).block_size(), 8);
  EXPECT_EQ(manager->scheduler_block_size(), 8);
  EXPECT_EQ(manager->hash_block_size(), 8);
  const auto request = NewRequest(*manager, Tokens(20));
  EXPECT_EQ(Step(*manager, *request, 20), (Lists{{1, 2, 3}}));
  EXPECT_EQ(manager->pool().num_keys(), 2);
  EXPECT_EQ(request->content().hashes().size(), 2u);
  const ComputedBlocks hits = Hits(*manager, *NewRequest(*manager, Tokens(17)));
  EXPECT_EQ(hits.num_tokens(), 16);
  EXPECT_EQ(ListsOf(hits), (Lists{{1, 2}}));
}

// With partial hits, states as large as a hash block are enough: rows have larger blocks (BM-118).
TEST(ContextParallelTest, HitsMayEndInsideSpreadBlocks) {
  const auto manager = Manager(30, {Full(4), States(4)},
                               {.partial_hits = true, .decode_context_parallel = 2});
  EXPECT_EQ(manager->hash_block_size(), 4);
  EXPECT_EQ(manager->scheduler_block_size(), 8);
  const auto first = NewRequest(*manager, Tokens(13));
  ASSERT_TRUE(Step(*manager, *first, 12));
  manager->NewStepStarts();
  const auto second = NewRequest(*manager, Tokens(13));
  EXPECT_EQ(Hits(*manager, *second).num_tokens(), 12);
  ASSERT_TRUE(Step(*manager, *second, 1));
  EXPECT_EQ(manager->TakeBlockCopies().size(), 1u);  // the rows' block; the state's is full

  KvCacheConfig config = Config(30, {Full(4), States(4)});
  EXPECT_THAT(
      std::string(KvCacheManager::Create(config, Seeded({.partial_hits = true})).status().message()),
      HasSubstr("without a Mamba group in align mode with a block size above the hash block size"));
}

TEST(ContextParallelTest, RefusedWhereBlocksCannotBeSpread) {
  const auto refusal = [](std::vector<KvCacheSpec> specs, KvCacheManagerOptions options) {
    KvCacheConfig config = Config(30, std::move(specs));
    return std::string(KvCacheManager::Create(config, Seeded(options)).status().message());
  };
  EXPECT_THAT(refusal({Full(4), Window(4, 9)}, {.decode_context_parallel = 2}),
              HasSubstr("decode_context_parallel is 2, expected 1 with groups[1] (sliding_window): "
                        "windows, chunks and sinks cannot be spread over ranks"));
  EXPECT_THAT(refusal({Chunked(4, 8)}, {.prefill_context_parallel = 2}),
              HasSubstr("prefill_context_parallel is 2, expected 1 with groups[0] "
                        "(chunked_local_attention)"));
  EXPECT_THAT(refusal({Sink(4, 8)}, {.decode_context_parallel = 2}), HasSubstr("sinks"));
  EXPECT_THAT(refusal({Full(4), Full(8)}, {.prefill_context_parallel = 2}),
              HasSubstr("prefill_context_parallel is 2, expected 1 unless the only group is of full "
                        "attention or MLA"));
  EXPECT_THAT(refusal({States(4)}, {.prefill_context_parallel = 2}), HasSubstr("the only group"));
  EXPECT_THAT(refusal({Full(4)}, {.decode_context_parallel = 0}),
              HasSubstr("decode_context_parallel is 0, expected 1 (off) to 4096"));
  EXPECT_THAT(refusal({Full(4)}, {.prefill_context_parallel = 4097}),
              HasSubstr("prefill_context_parallel is 4097"));
  EXPECT_THAT(refusal({Full(kMaxTokens)}, {.decode_context_parallel = 2}),
              HasSubstr("covers more than"));
  KvCacheConfig config = Config(30, {Full(4), Full(8)});
  config.scheduler_block_size = 8;  // a multiple of what a rank holds, not of a block
  EXPECT_THAT(std::string(KvCacheManager::Create(config, Seeded({.decode_context_parallel = 2}))
                              .status()
                              .message()),
              HasSubstr("scheduler_block_size is 8, expected a multiple of groups[1] "
                        "(full_attention)'s block size 16"));
}

}  // namespace
}  // namespace kvblocks
