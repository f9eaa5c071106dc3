// Sink blocks in front of every table: what becomes of tables, lengths, slots and lists.
//
// Lengths of encoders, as layers of cross attention are given them.

#include <string>
#include <vector>

#include "attention/metadata/slot_mapping.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "kvblocks/attention_metadata.h"

namespace kvblocks::attention {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;

template <typename T>
std::vector<T> Elements(const ConstTensorView& view) {
  return {view.as<T>(), view.as<T>() + view.num_elements()};
}

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

TEST(SinkRowsTest, TablesBeginWithThemAndLengthsCountThem) {
  auto builder = AttentionMetadataBuilder::Create(WithSinks());
  ASSERT_TRUE(builder.ok()) << builder.status();
  const std::vector<RequestInput> requests = {{0, 3}, {9, 1}};
  const std::vector<int32_t> a = {5}, b = {6, 7, 8};
  const std::vector<absl::Span<const int32_t>> tables = {a, a, b, b};
  const std::vector<int64_t> common = {2, 2};
  for (int again = 0; again < 2; ++again) {
    ASSERT_TRUE(builder
                    ->Build({.requests = requests,
                             .block_ids = tables,
                             .num_common_prefix_blocks = common,
                             .padded_num_reqs = 3,
                             .padded_num_tokens = 5})
                    .ok());
    const CommonAttentionMetadata& plain = builder->metadata(0);
    const CommonAttentionMetadata& meta = builder->metadata(1);
    EXPECT_EQ(plain.sink_rows, 0);
    EXPECT_THAT(Elements<int32_t>(plain.seq_lens), ElementsAre(10, 3, 0));
    EXPECT_EQ(meta.sink_rows, 8);
    EXPECT_THAT(Elements<int32_t>(meta.seq_lens), ElementsAre(18, 11, 0));
    EXPECT_THAT(meta.host_seq_lens, ElementsAre(18, 11, 0));
    EXPECT_EQ(meta.max_seq_len, 18);
    EXPECT_EQ(plain.max_seq_len, 10);
    // Positions and slots are the requests' own.
    EXPECT_THAT(Elements<int32_t>(meta.positions), ElementsAre(9, 0, 1, 2, 0));
    EXPECT_THAT(Elements<int64_t>(meta.slot_mapping), ElementsAre(33, 20, 21, 22, -1));
    // Blocks that the window has left are null, those of the sinks are not.
    EXPECT_THAT(Elements<int32_t>(meta.block_table),
                ElementsAre(4, 5, 2, 3, 0, 0, 14, 15, 16, 17,  //
                            4, 5, 2, 3, 10, 11, 0, 0, 0, 0,    //
                            4, 5, 2, 3, 0, 0, 0, 0, 0, 0));
    EXPECT_EQ(meta.num_extends, 1);  // the prompt has rows before it
    EXPECT_EQ(meta.num_prefills, 1);
    EXPECT_EQ(plain.num_extends, 0);
    // On the fly, from the table.
    std::vector<int64_t> slots(5, 77);
    ASSERT_TRUE(ComputeSlotMapping({.query_start_loc = meta.query_start_loc,
                                    .positions = meta.positions,
                                    .block_table = meta.block_table,
                                    .block_size = 2,
                                    .num_blocks = 40,
                                    .null_blocks = {0, 2},
                                    .sink_rows = 8,
                                    .slot_mapping = ViewOf(absl::MakeSpan(slots))})
                    .ok());
    EXPECT_EQ(slots, Elements<int64_t>(meta.slot_mapping));
    // A list for each token: sinks, then its window.
    std::vector<int32_t> lists(5 * 11, 77), lens(5, 77);
    WindowIndicesArgs windows = {.window = 3,
                                 .sink_rows = 8,
                                 .query_start_loc = meta.query_start_loc,
                                 .seq_lens = meta.seq_lens,
                                 .block_table = meta.block_table,
                                 .block_size = 2,
                                 .num_blocks = 40,
                                 .indices = ViewOf(absl::MakeSpan(lists), {5, 11}),
                                 .lens = ViewOf(absl::MakeSpan(lens))};
    ASSERT_TRUE(BuildSwaIndices(windows).ok());
    EXPECT_THAT(lens, ElementsAre(11, 9, 10, 11, 0));
    EXPECT_THAT(lists, ElementsAre(8, 9, 10, 11, 4, 5, 6, 7, 31, 32, 33,   //
                                   8, 9, 10, 11, 4, 5, 6, 7, 20, -1, -1,   //
                                   8, 9, 10, 11, 4, 5, 6, 7, 20, 21, -1,   //
                                   8, 9, 10, 11, 4, 5, 6, 7, 20, 21, 22,   //
                                   -1, -1, -1, -1, -1, -1, -1, -1, -1, -1, -1));
    EXPECT_THAT(std::string(VirtualBatches().Build(meta, 4).message()), HasSubstr("8 sink rows"));

    windows.seq_lens = plain.seq_lens;  // which lack the sinks
    EXPECT_THAT(std::string(BuildSwaIndices(windows).message()),
                HasSubstr("request 1: seq_lens is 3, less than its 3 new tokens and 8 sink rows"));
    windows.sink_rows = -1;
    EXPECT_THAT(std::string(BuildSwaIndices(windows).message()), HasSubstr("sink_rows is -1"));
  }
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
  const auto refusal = [](auto change) {
    MetadataBuilderOptions options = WithSinks();
    change(options.groups[1]);
    return std::string(AttentionMetadataBuilder::Create(options).status().message());
  };
  for (const std::vector<int32_t>& bad :
       {std::vector<int32_t>{20}, {-1}, {0}, {3, 4, 3}}) {
    EXPECT_THAT(refusal([&](KvGroupConfig& g) { g.sink_blocks = bad; }),
                HasSubstr("distinct ids from 0 to 19, but not the null block 0"));
  }
  EXPECT_THAT(refusal([](KvGroupConfig& g) { g.compression_ratio = 2, g.kernel_block_size = 1; }),
              HasSubstr("a compressed cache has no sink rows"));

  auto builder = AttentionMetadataBuilder::Create(WithSinks());
  ASSERT_TRUE(builder.ok());
  const RequestInput request = {2, 3};
  const std::vector<int32_t> good = {5, 6}, writes_to_sink = {5, 2};
  const std::vector<absl::Span<const int32_t>> tables = {good, writes_to_sink};
  const absl::Status status = builder->Build({.requests = {&request, 1}, .block_ids = tables});
  EXPECT_THAT(std::string(status.message()),
              HasSubstr("block id 1 of KV group 1 is 2, a sink block"));
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

  const auto refusal = [&](const std::vector<int32_t>& bad) {
    BatchInput other = input;
    other.encoder_lens = bad;
    const absl::Status status = builder->Build(other);
    EXPECT_THAT(builder->cross_metadata().host_seq_lens, ElementsAre(0, 1500, 30, 0));
    return std::string(status.message());
  };
  EXPECT_THAT(refusal({1, 2}), HasSubstr("encoder_lens has 2 entries; it must have one for each of 3"));
  EXPECT_THAT(refusal({1, -2, 3}), HasSubstr("request 1: encoder_lens is -2"));
  EXPECT_THAT(refusal({1, INT32_MAX, 3}), HasSubstr("together 2147483648"));

  input.encoder_lens = {};
  ASSERT_TRUE(builder->Build(input).ok());
  EXPECT_THAT(builder->cross_metadata().host_seq_lens, ElementsAre(0, 0, 0, 0));
}

}  // namespace
}  // namespace kvblocks::attention
