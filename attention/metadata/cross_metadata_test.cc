// Lengths of encoders, as layers of cross attention are given them.

#include <string>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "kvblocks/attention/metadata/metadata_builder.h"

namespace kvblocks::attention {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;

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
