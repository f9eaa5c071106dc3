#include "kvblocks/attention_metadata.h"

#include <algorithm>
#include <string>
#include <vector>

#include "attention/metadata/slot_mapping.h"
#include "attention/testing/says.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace kvblocks::attention {
namespace {

using testing::ElementsAre;
using testing::ElementsAreArray;

// Every rank's rows counted one token at a time, as vLLM 0.33's slot mapping places them: by blocks
// of so many tokens on all ranks together.
TEST(ContextParallelTest, RowsAreCountedTokenByToken) {
  for (int32_t num_ranks = 1; num_ranks <= 5; ++num_ranks) {
    for (int32_t interleave = 1; interleave <= 4; ++interleave) {
      for (int32_t rank = 0; rank < num_ranks; ++rank) {
        const ContextParallel parallel = {num_ranks, rank, interleave};
        const int64_t rows = 2 * interleave, block = rows * num_ranks;
        int64_t count = 0;
        for (int64_t p = 0; p < 100; ++p) {
          ASSERT_EQ(parallel.LocalLength(p), count);
          const int64_t offset = p % block;
          ASSERT_EQ(parallel.IsLocal(p), offset / interleave % num_ranks == rank);
          if (!parallel.IsLocal(p)) continue;
          ASSERT_EQ(parallel.LocalRow(p), count);
          ASSERT_EQ(parallel.LocalRow(p), p / block * rows +
                                              offset / (num_ranks * interleave) * interleave +
                                              offset % interleave);
          ++count;
        }
      }
    }
  }
}

MetadataBuilderOptions OfRank(int32_t rank) {
  return {.groups = {{.manager_block_size = 8,
                      .kernel_block_size = 2,
                      .num_blocks = 10,
                      .context_parallel = {2, rank, 2}}},
          .max_num_reqs = 4,
          .max_num_tokens = 32,
          .max_seq_len = 24};
}

// Blocks of 8 tokens on two ranks, two by two. Lengths, slots and tables of a rank:
// MetadataBuilderPropertyTest.
TEST(ContextParallelTest, ViewsHaveTheContextOfTheirRank) {
  const std::vector<RequestInput> requests = {{5, 6}, {9, 1}};
  const std::vector<int32_t> first = {3, 4}, second = {5, 6};
  const std::vector<absl::Span<const int32_t>> tables = {first, second};
  const std::vector<int64_t> common = {1};
  for (int32_t rank = 0; rank < 2; ++rank) {
    auto builder = AttentionMetadataBuilder::Create(OfRank(rank));
    ASSERT_TRUE(builder.ok()) << builder.status();
    ASSERT_EQ(builder->Build({.requests = requests,
                              .block_ids = tables,
                              .num_common_prefix_blocks = common,
                              .padded_num_reqs = 3,
                              .padded_num_tokens = 8}),
              absl::OkStatus());
    const CommonAttentionMetadata& meta = builder->metadata();
    EXPECT_EQ(meta.context_parallel.rank, rank);
    EXPECT_EQ(meta.max_local_context_len, rank == 0 ? 5 : 4);
    EXPECT_EQ(meta.common_prefix_len, 0);  // a cascade would count the context twice
    EXPECT_THAT(builder->decode_view().host_local_context_lens, ElementsAre(rank == 0 ? 5 : 4));
    EXPECT_THAT(builder->prefill_view().host_local_context_lens,
                ElementsAre(rank == 0 ? 3 : 2, 0));
    EXPECT_THAT(VirtualBatches().Build(meta, 8), Says("2 ranks"));
    EXPECT_THAT(WithBlockTable(meta, meta.block_table, meta.slot_mapping, 2).status(),
                Says("2 ranks"));
  }
}

TEST(ContextParallelTest, WhatCannotBeSpreadIsRefused) {
  const auto refuse = [](auto change, const char* words) {
    MetadataBuilderOptions options = OfRank(0);
    change(options.groups[0]);
    EXPECT_THAT(AttentionMetadataBuilder::Create(options).status(), Says(words));
  };
  refuse([](KvGroupConfig& g) { g.context_parallel = {2, 2, 1}; }, "rank is 2 of 2");
  refuse([](KvGroupConfig& g) { g.context_parallel = {0, 0, 1}; }, "rank is 0 of 0");
  refuse([](KvGroupConfig& g) { g.context_parallel = {2, -1, 1}; }, "rank is -1 of 2");
  refuse([](KvGroupConfig& g) { g.context_parallel = {5000, 0, 1}; }, "1 to 4096");
  refuse([](KvGroupConfig& g) { g.context_parallel.interleave = 3; },
         "interleave is 3; it must divide the 4 rows");
  refuse(
      [](KvGroupConfig& g) {
        g.context_parallel = {3, 0, 1};
      },
      "manager_block_size is 8; over 3 ranks it must be a multiple");
  refuse([](KvGroupConfig& g) { g.window = 4; },
         "2 ranks and the group a window, which cannot be spread");
  refuse([](KvGroupConfig& g) { g.compression_ratio = 2; }, "compressed rows");
  refuse([](KvGroupConfig& g) { g.sink_blocks = {1}; }, "sink blocks");
  refuse([](KvGroupConfig& g) { g.kernel_block_size = 8; },
         "block size of the manager is 4, of the kernel 8");
  std::vector<int32_t> starts = {0}, table;
  std::vector<int64_t> slots;
  SlotMappingArgs args = {.query_start_loc = ViewOf(absl::MakeConstSpan(starts)),
                          .positions = ViewOf(absl::MakeConstSpan(table)),
                          .block_table = ViewOf(absl::MakeConstSpan(table), {0, 4}),
                          .block_size = 4,
                          .slot_mapping = ViewOf(absl::MakeSpan(slots))};
  args.context_parallel = {2, 0, 3};
  EXPECT_THAT(ComputeSlotMapping(args), Says("ComputeSlotMapping: context_parallel"));
  args.context_parallel = {2, 0, 1};
  args.sink_rows = 4;
  EXPECT_THAT(ComputeSlotMapping(args), Says("sink_rows is 4 with 2 ranks"));
}

CommonAttentionMetadata BatchOf(const std::vector<int32_t>& starts, int32_t num_decodes) {
  CommonAttentionMetadata meta;
  meta.host_query_start_loc = starts;
  meta.num_reqs = static_cast<int32_t>(starts.size()) - 1;
  meta.num_decodes = num_decodes;
  return meta;
}

// Two decodes, then a prompt of 7 tokens in chunks of 2 (0 1, 2 3, 4 5, 6) and one of 1.
TEST(PrefillShardTest, HeadsAndTailsOfPromptsGoTogether) {
  const std::vector<int32_t> starts = {0, 1, 3, 10, 11};
  PrefillShard first, second;
  ASSERT_TRUE(first.Build(BatchOf(starts, 2), 2, 0).ok());
  ASSERT_TRUE(second.Build(BatchOf(starts, 2), 2, 1).ok());
  EXPECT_THAT(first.rows(), ElementsAre(0, 3, 4, 9, 10, -1));
  EXPECT_THAT(first.query_start_loc(), ElementsAre(0, 1, 1, 4, 5));
  EXPECT_THAT(first.query_positions(), ElementsAre(0, 0, 1, 6, 0));
  EXPECT_THAT(second.rows(), ElementsAre(1, 2, 5, 6, 7, 8));
  EXPECT_THAT(second.query_start_loc(), ElementsAre(0, 0, 2, 6, 6));
  EXPECT_THAT(second.query_positions(), ElementsAre(0, 1, 2, 3, 4, 5));
  EXPECT_THAT(first.restore(), ElementsAre(0, 6, 7, 1, 2, 8, 9, 10, 11, 3, 4));
  EXPECT_THAT(second.restore(), ElementsAreArray(first.restore()));

  // Refusals change nothing.
  EXPECT_THAT(first.Build(BatchOf(starts, 2), 2, 2), Says("rank is 2 of 2"));
  EXPECT_THAT(first.Build(BatchOf(starts, 5), 2, 0), Says("5 of them decodes"));
  EXPECT_THAT(first.Build(BatchOf({0, 3, 2}, 0), 2, 0),
              Says("host_query_start_loc[2] is 2, after 3"));
  CommonAttentionMetadata meta = BatchOf(starts, 2);
  meta.num_reqs = 9;
  EXPECT_THAT(first.Build(meta, 2, 0), Says("has 5 entries; 9 requests"));
  EXPECT_THAT(first.Build(BatchOf({0, INT32_MAX}, 1), 2, 0), Says("must fit"));
  EXPECT_THAT(first.rows(), ElementsAre(0, 3, 4, 9, 10, -1));
  ASSERT_TRUE(first.Build(BatchOf({0}, 0), 3, 2).ok());
  EXPECT_EQ(first.num_rows(), 0);
  EXPECT_THAT(first.restore(), ElementsAre());
}

}  // namespace
}  // namespace kvblocks::attention
