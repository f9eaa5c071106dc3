// Sink blocks in front of every table: what becomes of tables, lengths, slots and lists.
//
// Lengths of encoders, as layers of cross attention are given them.

#include <string>
#include <vector>

#include "attention/metadata/slot_mapping.h"
#include "attention/testing/says.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "kvblocks/attention_metadata.h"

namespace kvblocks::attention {
namespace {

using testing::ElementsAre;

MetadataBuilderOptions WithSinks() {
  return {.groups = {{.manager_block_size = 4, .kernel_block_size = 2, .num_blocks = 20},
                     {.manager_block_size = 4,
                      .kernel_block_size = 2,
                      .num_blocks = 20,
                      .window = 3,
                      .sink_blocks = {2, 1}}},
          .max_num_reqs = 3,
          .max_num_tokens = 16,
          .max_seq_len = 12};
}

// Tables, lengths and slots: MetadataBuilderPropertyTest; lists: IndexOpsPropertyTest.
TEST(SinkRowsTest, PromptsBehindThemAreExtends) {
  auto builder = AttentionMetadataBuilder::Create(WithSinks());
  ASSERT_TRUE(builder.ok()) << builder.status();
  const std::vector<RequestInput> requests = {{0, 3}, {9, 1}};
  const std::vector<int32_t> a = {5}, b = {6, 7, 8};
  const std::vector<absl::Span<const int32_t>> tables = {a, a, b, b};
  ASSERT_EQ(builder->Build({.requests = requests, .block_ids = tables}), absl::OkStatus());
  const CommonAttentionMetadata& plain = builder->metadata(0);
  const CommonAttentionMetadata& meta = builder->metadata(1);
  EXPECT_EQ(plain.max_seq_len, 10);
  EXPECT_EQ(plain.num_extends, 0);
  EXPECT_EQ(meta.max_seq_len, 18);
  EXPECT_EQ(meta.num_extends, 1);
  EXPECT_EQ(meta.num_prefills, 1);
  EXPECT_THAT(VirtualBatches().Build(meta, 4), Says("8 sink rows"));
  std::vector<int32_t> lists(4 * 11), lens(4);
  WindowIndicesArgs windows = {.window = 3,
                               .sink_rows = 8,
                               .query_start_loc = meta.query_start_loc,
                               .seq_lens = plain.seq_lens,  // which lack the sinks
                               .block_table = meta.block_table,
                               .block_size = 2,
                               .num_blocks = 40,
                               .indices = ViewOf(absl::MakeSpan(lists), {4, 11}),
                               .lens = ViewOf(absl::MakeSpan(lens))};
  EXPECT_THAT(BuildSwaIndices(windows),
              Says("request 1: seq_lens is 3, less than its 3 new tokens and 8 sink rows"));
  windows.sink_rows = -1;
  EXPECT_THAT(BuildSwaIndices(windows), Says("sink_rows is -1"));
}

TEST(SinkRowsTest, TheyAreACommonPrefixWhereThereIsNoWindow) {
  MetadataBuilderOptions options = WithSinks();
  options.groups[1].window = 0;
  auto builder = AttentionMetadataBuilder::Create(options);
  ASSERT_TRUE(builder.ok()) << builder.status();
  const std::vector<RequestInput> requests = {{7, 1}, {9, 1}};
  const std::vector<int32_t> a = {5, 6}, b = {5, 7, 8};
  const std::vector<absl::Span<const int32_t>> tables = {a, a, b, b};
  const std::vector<int64_t> common = {1, 1};
  ASSERT_TRUE(builder->Build({.requests = requests,
                              .block_ids = tables,
                              .num_common_prefix_blocks = common})
                  .ok());
  EXPECT_EQ(builder->metadata(0).common_prefix_len, 4);
  EXPECT_EQ(builder->metadata(1).common_prefix_len, 12);
}

TEST(SinkRowsTest, SlotsOfTheLearnedRowsAreThoseOfTheirBlocks) {
  const KvGroupConfig group = WithSinks().groups[1];
  std::vector<int64_t> slots(8);
  FillSinkSlots(group, slots.data());
  EXPECT_THAT(slots, ElementsAre(8, 9, 10, 11, 4, 5, 6, 7));
}

TEST(SinkRowsTest, BadSinkBlocksAreRefused) {
  const auto refuse = [](auto change, const char* words) {
    MetadataBuilderOptions options = WithSinks();
    change(options.groups[1]);
    EXPECT_THAT(AttentionMetadataBuilder::Create(options).status(), Says(words));
  };
  for (const std::vector<int32_t>& bad : {std::vector<int32_t>{20}, {-1}, {0}, {3, 4, 3}}) {
    refuse([&](KvGroupConfig& g) { g.sink_blocks = bad; },
           "distinct ids from 0 to 19, but not the null block 0");
  }
  refuse([](KvGroupConfig& g) { g.compression_ratio = 2, g.kernel_block_size = 1; },
         "a compressed cache has no sink rows");

  auto builder = AttentionMetadataBuilder::Create(WithSinks());
  ASSERT_TRUE(builder.ok());
  const RequestInput request = {2, 3};
  const std::vector<int32_t> good = {5, 6}, writes_to_sink = {5, 2};
  const std::vector<absl::Span<const int32_t>> tables = {good, writes_to_sink};
  const absl::Status status = builder->Build({.requests = {&request, 1}, .block_ids = tables});
  EXPECT_THAT(status, Says("block id 1 of KV group 1 is 2, a sink block"));
  EXPECT_EQ(builder->metadata(1).num_reqs, 0);
}

TEST(CrossMetadataTest, LengthsOfEncodersFollowTheOrderOfRows) {
  auto builder = AttentionMetadataBuilder::Create({.groups = {{.manager_block_size = 4,
                                                               .kernel_block_size = 4,
                                                               .num_blocks = 20,
                                                               .sink_blocks = {1}}},
                                                   .max_num_reqs = 4,
                                                   .max_num_tokens = 16,
                                                   .max_seq_len = 12});
  ASSERT_TRUE(builder.ok()) << builder.status();
  const std::vector<RequestInput> requests = {{0, 3}, {5, 1}, {2, 1}};
  const std::vector<int32_t> a = {5}, b = {6, 7}, c = {8};
  const std::vector<absl::Span<const int32_t>> tables = {a, b, c};
  const std::vector<int32_t> lens = {30, 0, 1500};
  BatchInput input = {.requests = requests, .block_ids = tables, .padded_num_reqs = 4};
  input.encoder_lens = lens;
  ASSERT_TRUE(builder->Build(input).ok());
  const CommonAttentionMetadata meta = builder->cross_metadata();
  EXPECT_THAT(builder->permutation(), ElementsAre(1, 2, 0));
  EXPECT_THAT(meta.host_seq_lens, ElementsAre(0, 1500, 30, 0));
  EXPECT_EQ(meta.seq_lens.as<int32_t>(), meta.host_seq_lens.data());
  EXPECT_THAT(meta.host_query_start_loc, ElementsAre(0, 1, 2, 5, 5));
  EXPECT_EQ(meta.max_seq_len, 1500);  // encoders are as long as they like
  EXPECT_FALSE(meta.causal);
  EXPECT_EQ(meta.sink_rows, 0);
  EXPECT_TRUE(meta.block_table.absent() && meta.slot_mapping.absent());
  // Uploaded with everything else.
  const absl::Span<const std::byte> storage = builder->storage();
  EXPECT_GE(meta.seq_lens.data, storage.data());
  EXPECT_LT(meta.seq_lens.data, storage.data() + storage.size());

  const auto refuse = [&](const std::vector<int32_t>& bad, const char* words) {
    BatchInput other = input;
    other.encoder_lens = bad;
    EXPECT_THAT(builder->Build(other), Says(words));
    EXPECT_THAT(builder->cross_metadata().host_seq_lens, ElementsAre(0, 1500, 30, 0));
  };
  refuse({1, 2}, "encoder_lens has 2 entries; it must have one for each of 3");
  refuse({1, -2, 3}, "request 1: encoder_lens is -2");
  refuse({1, INT32_MAX, 3}, "together 2147483648");

  input.encoder_lens = {};
  ASSERT_TRUE(builder->Build(input).ok());
  EXPECT_THAT(builder->cross_metadata().host_seq_lens, ElementsAre(0, 0, 0, 0));
}

}  // namespace
}  // namespace kvblocks::attention
