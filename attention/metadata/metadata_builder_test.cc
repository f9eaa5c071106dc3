#include "kvblocks/attention_metadata.h"

#include <limits>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/types/span.h"
#include "attention/testing/says.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace kvblocks::attention {
namespace {

using testing::ElementsAre;

std::vector<int32_t> Ints(const ConstTensorView& view) {
  return {view.as<int32_t>(), view.as<int32_t>() + view.num_elements()};
}
std::vector<int64_t> Slots(const CommonAttentionMetadata& meta) {
  const ConstTensorView& view = meta.slot_mapping;
  return {view.as<int64_t>(), view.as<int64_t>() + view.num_elements()};
}
std::vector<int32_t> Row(const CommonAttentionMetadata& meta, int64_t b) {
  const int64_t columns = meta.block_table.extent[1];
  const int32_t* row = meta.block_table.as<int32_t>() + b * columns;
  return {row, row + columns};
}

// A step by value: requests, and their block ids of each group.
struct Step {
  std::vector<RequestInput> requests = {};
  std::vector<std::vector<int32_t>> tables = {};
  BatchInput input = {};

  BatchInput Input() {
    spans.assign(tables.begin(), tables.end());
    BatchInput batch = input;
    batch.requests = requests;
    batch.block_ids = spans;
    return batch;
  }
  std::vector<absl::Span<const int32_t>> spans = {};
};

MetadataBuilderOptions SmallOptions() {
  return {.groups = {{.manager_block_size = 4, .kernel_block_size = 4, .num_blocks = 100}},
          .max_num_reqs = 8,
          .max_num_tokens = 32,
          .max_seq_len = 40};
}

AttentionMetadataBuilder NewBuilder(const MetadataBuilderOptions& options) {
  absl::StatusOr<AttentionMetadataBuilder> builder = AttentionMetadataBuilder::Create(options);
  EXPECT_TRUE(builder.ok()) << builder.status();
  return *std::move(builder);
}

// A fresh prefill, a decode and an extend, given in that order.
Step MixedStep() {
  return {.requests = {{0, 6, 6}, {9, 1, 5}, {4, 3, 20}},
          .tables = {{11, 12}, {21, 22, 23}, {31, 32}}};
}

TEST(MetadataBuilderTest, OrdersDecodesThenExtendsThenFreshPrefills) {
  AttentionMetadataBuilder builder = NewBuilder(SmallOptions());
  Step step = MixedStep();
  ASSERT_EQ(builder.Build(step.Input()), absl::OkStatus());
  const CommonAttentionMetadata& meta = builder.metadata();
  EXPECT_THAT(builder.permutation(), ElementsAre(1, 2, 0));
  EXPECT_THAT(Ints(meta.query_start_loc), ElementsAre(0, 1, 4, 10));
  EXPECT_THAT(meta.host_query_start_loc, ElementsAre(0, 1, 4, 10));
  EXPECT_THAT(Ints(meta.seq_lens), ElementsAre(10, 7, 6));
  EXPECT_THAT(Ints(meta.positions), ElementsAre(9, 4, 5, 6, 0, 1, 2, 3, 4, 5));
  EXPECT_THAT(Slots(meta), ElementsAre(93, 128, 129, 130, 44, 45, 46, 47, 48, 49));
  EXPECT_THAT(Row(meta, 0), ElementsAre(21, 22, 23, 0, 0, 0, 0, 0, 0, 0));
  EXPECT_THAT(Row(meta, 1), ElementsAre(31, 32, 0, 0, 0, 0, 0, 0, 0, 0));
  EXPECT_EQ(meta.num_reqs, 3);
  EXPECT_EQ(meta.num_actual_tokens, 10);
  EXPECT_EQ(meta.max_query_len, 6);
  EXPECT_EQ(meta.max_seq_len, 10);
  EXPECT_EQ(meta.num_decodes, 1);
  EXPECT_EQ(meta.num_decode_tokens, 1);
  EXPECT_EQ(meta.num_extends, 1);
  EXPECT_EQ(meta.num_prefills, 2);
  EXPECT_EQ(meta.num_prefill_tokens, 9);
  EXPECT_EQ(meta.attn_state, AttentionState::kChunkedPrefill);
  EXPECT_TRUE(meta.token_to_req.absent());
  EXPECT_TRUE(meta.attn_mask.null());
}

TEST(MetadataBuilderTest, TokenToReqAppearsOnDemandInAllGroups) {
  MetadataBuilderOptions options = SmallOptions();
  options.groups.push_back(options.groups[0]);
  AttentionMetadataBuilder builder = NewBuilder(options);
  Step step = {.requests = {{4, 1}, {0, 2}}, .tables = {{1, 2}, {3, 4}, {5}, {6}}};
  step.input.padded_num_tokens = 4;
  ASSERT_EQ(builder.Build(step.Input()), absl::OkStatus());
  EXPECT_THAT(Ints(builder.token_to_req()), ElementsAre(0, 1, 1, -1));
  EXPECT_THAT(Ints(builder.metadata(1).token_to_req), ElementsAre(0, 1, 1, -1));
  EXPECT_THAT(Slots(builder.metadata(1)), ElementsAre(16, 24, 25, -1));
  ASSERT_EQ(builder.Build(step.Input()), absl::OkStatus());
  EXPECT_TRUE(builder.metadata().token_to_req.absent());
}

// EX-2, and slots that follow.
TEST(MetadataBuilderTest, Ex02ManagerBlocksExpandToKernelBlocks) {
  MetadataBuilderOptions options = SmallOptions();
  options.groups = {
      {.manager_block_size = 32, .kernel_block_size = 16, .num_blocks = 9, .null_block = -1}};
  options.max_seq_len = 96;
  AttentionMetadataBuilder builder = NewBuilder(options);
  Step step = {.requests = {{95, 1}, {30, 4}}, .tables = {{0, 1, 2}, {5, 3}}};
  ASSERT_EQ(builder.Build(step.Input()), absl::OkStatus());
  const CommonAttentionMetadata& meta = builder.metadata();
  EXPECT_THAT(Row(meta, 0), ElementsAre(0, 1, 2, 3, 4, 5));
  EXPECT_THAT(Row(meta, 1), ElementsAre(10, 11, 6, 7, 0, 0));
  EXPECT_THAT(Slots(meta), ElementsAre(95, 190, 191, 96, 97));
  EXPECT_EQ(meta.block_size, 16);
  EXPECT_EQ(builder.FindGroup({16, 0, 1}), 0);
  EXPECT_EQ(builder.FindGroup({16, 0, 4}), std::nullopt);
}

TEST(MetadataBuilderTest, BlocksOutsideTheWindowMayBeAnything) {
  MetadataBuilderOptions options = SmallOptions();
  options.groups[0].window = 3;
  AttentionMetadataBuilder builder = NewBuilder(options);
  // Query at 13 sees 11, 12, 13: blocks 2 and 3.
  Step step = {.requests = {{13, 1}}, .tables = {{-5, 1 << 30, 8, 9}}};
  ASSERT_EQ(builder.Build(step.Input()), absl::OkStatus());
  EXPECT_THAT(Row(builder.metadata(), 0), ElementsAre(0, 0, 8, 9, 0, 0, 0, 0, 0, 0));
  step.requests[0].num_computed_tokens = 9;  // sees 7: block 1
  const absl::Status refused = builder.Build(step.Input());
  EXPECT_TRUE(absl::IsOutOfRange(refused)) << refused;
  EXPECT_THAT(refused, Says("request 0: block id 1 of KV group 0 is 1073741824"));
}

// What is in them: MetadataBuilderPropertyTest.
TEST(MetadataBuilderTest, PaddedRowsBelongToTheOnlyPhaseThereIs) {
  AttentionMetadataBuilder builder = NewBuilder(SmallOptions());
  Step step = {.requests = {{5, 1}}, .tables = {{1, 2}}};
  step.input.padded_num_reqs = 3;
  step.input.padded_num_tokens = 4;
  ASSERT_EQ(builder.Build(step.Input()), absl::OkStatus());
  EXPECT_EQ(builder.metadata().attn_state, AttentionState::kDecodeOnly);
  EXPECT_EQ(builder.decode_view().host_seq_lens.size(), 3u);
}

AttentionState StateOfStep(std::vector<RequestInput> requests, SplitOptions split = {}) {
  MetadataBuilderOptions options = SmallOptions();
  options.split = split;
  AttentionMetadataBuilder builder = NewBuilder(options);
  Step step = {.requests = std::move(requests)};
  for (size_t i = 0; i < step.requests.size(); ++i) {
    step.tables.emplace_back();
    for (int32_t k = 1; k <= 10; ++k) step.tables[i].push_back(static_cast<int32_t>(10 * i) + k);
  }
  EXPECT_TRUE(builder.Build(step.Input()).ok());
  return builder.metadata().attn_state;
}

TEST(MetadataBuilderTest, StateTellsWhatTheBatchConsistsOf) {
  EXPECT_EQ(StateOfStep({{0, 5}, {0, 2}}), AttentionState::kPrefillNoCache);
  EXPECT_EQ(StateOfStep({{0, 5}, {0, 1}}), AttentionState::kPrefillNoCache);
  EXPECT_EQ(StateOfStep({{0, 5}, {3, 2}}), AttentionState::kPrefillCacheHit);
  EXPECT_EQ(StateOfStep({{4, 1}, {0, 1}}), AttentionState::kDecodeOnly);
  EXPECT_EQ(StateOfStep({{4, 3}, {4, 1}}, {.decode_threshold = 3}), AttentionState::kSpecDecoding);
  EXPECT_EQ(StateOfStep({{4, 1}, {0, 5}}), AttentionState::kChunkedPrefill);
  EXPECT_EQ(StateOfStep({{4, 1, 9}}, {.short_extends_are_decodes = false}),
            AttentionState::kPrefillCacheHit);
  EXPECT_EQ(StateOfStep({}), AttentionState::kDecodeOnly);
  EXPECT_STREQ(Name(AttentionState::kSpecDecoding), "spec_decoding");
}

TEST(MetadataBuilderTest, UniformDecodesHaveTheCommonestLength) {
  MetadataBuilderOptions options = SmallOptions();
  options.split = {.decode_threshold = 3, .require_uniform = true};
  AttentionMetadataBuilder builder = NewBuilder(options);
  Step step = {.requests = {{4, 1}, {4, 3}, {4, 2}, {4, 3}, {0, 6}},
               .tables = {{1, 2}, {3, 4}, {5, 6}, {7, 8}, {9, 10}}};
  ASSERT_EQ(builder.Build(step.Input()), absl::OkStatus());
  EXPECT_THAT(builder.permutation(), ElementsAre(1, 3, 0, 2, 4));
  EXPECT_EQ(builder.metadata().num_decodes, 2);
  EXPECT_EQ(builder.metadata().num_decode_tokens, 6);
  EXPECT_EQ(builder.metadata().num_extends, 2);
  step.requests[3].num_scheduled_tokens = 2;  // 2 and 3 new tokens twice each: the longer wins
  step.requests[0].num_scheduled_tokens = 3;
  ASSERT_EQ(builder.Build(step.Input()), absl::OkStatus());
  EXPECT_THAT(builder.permutation(), ElementsAre(0, 1, 2, 3, 4));
  EXPECT_EQ(builder.metadata().num_decode_tokens, 6);
}

TEST(MetadataBuilderTest, ViewsSliceTheSameBuffers) {
  AttentionMetadataBuilder builder = NewBuilder(SmallOptions());
  Step step = MixedStep();
  step.input.padded_num_reqs = 5;
  step.input.padded_num_tokens = 12;
  ASSERT_EQ(builder.Build(step.Input()), absl::OkStatus());
  const CommonAttentionMetadata& meta = builder.metadata();
  const CommonAttentionMetadata& decode = builder.decode_view();
  EXPECT_EQ(decode.seq_lens.data, meta.seq_lens.data);
  EXPECT_THAT(decode.host_query_start_loc, ElementsAre(0, 1));
  EXPECT_THAT(Slots(decode), ElementsAre(93));
  EXPECT_EQ(decode.num_reqs, 1);
  EXPECT_EQ(decode.num_prefills, 0);
  EXPECT_EQ(decode.max_seq_len, 10);
  EXPECT_EQ(decode.max_query_len, 1);
  EXPECT_EQ(decode.attn_state, AttentionState::kDecodeOnly);
  const CommonAttentionMetadata& prefill = builder.prefill_view();
  EXPECT_THAT(prefill.host_query_start_loc, ElementsAre(0, 3, 9, 9, 9));
  EXPECT_THAT(Ints(prefill.query_start_loc), ElementsAre(0, 3, 9, 9, 9));
  EXPECT_THAT(prefill.host_seq_lens, ElementsAre(7, 6, 0, 0));
  EXPECT_THAT(Slots(prefill), ElementsAre(128, 129, 130, 44, 45, 46, 47, 48, 49, -1, -1));
  EXPECT_EQ(prefill.block_table.data, meta.block_table.At(1, 0));
  EXPECT_EQ(prefill.num_reqs, 2);
  EXPECT_EQ(prefill.num_actual_tokens, 9);
  EXPECT_EQ(prefill.num_decodes, 0);
  EXPECT_EQ(prefill.max_seq_len, 7);
  EXPECT_EQ(prefill.attn_state, AttentionState::kPrefillCacheHit);
  EXPECT_EQ(&builder.prefill_view(), &prefill);  // cached

  step.requests[1].num_computed_tokens = 8;
  ASSERT_EQ(builder.Build(step.Input()), absl::OkStatus());
  EXPECT_THAT(builder.decode_view().host_seq_lens, ElementsAre(9));
  EXPECT_EQ(builder.decode_view().max_seq_len, 9);

  CommonAttentionMetadata incomplete = meta;
  incomplete.host_prefill_query_start_loc = {};
  EXPECT_TRUE(absl::IsFailedPrecondition(PrefillView(incomplete).status()));
}

TEST(MetadataBuilderTest, AnotherGroupTakesOverLengths) {
  AttentionMetadataBuilder builder = NewBuilder(SmallOptions());
  Step step = MixedStep();
  ASSERT_EQ(builder.Build(step.Input()), absl::OkStatus());
  const std::vector<int32_t> table(3 * 20, 1);
  const std::vector<int64_t> slots(10, 5);
  const ConstTensorView table_view = ViewOf(absl::MakeConstSpan(table), {3, 20});
  const ConstTensorView slots_view = ViewOf(absl::MakeConstSpan(slots));
  const auto other = WithBlockTable(builder.metadata(), table_view, slots_view, 2);
  ASSERT_TRUE(other.ok()) << other.status();
  EXPECT_EQ(other->block_table.data, table_view.data);
  EXPECT_EQ(other->slot_mapping.data, slots_view.data);
  EXPECT_EQ(other->block_size, 2);
  EXPECT_EQ(other->seq_lens.data, builder.metadata().seq_lens.data);
  const auto small = ViewOf(absl::MakeConstSpan(table), {2, 30});
  EXPECT_TRUE(
      absl::IsInvalidArgument(WithBlockTable(builder.metadata(), small, slots_view, 2).status()));
  EXPECT_TRUE(absl::IsInvalidArgument(
      WithBlockTable(builder.metadata(), table_view, table_view, 2).status()));
  EXPECT_TRUE(absl::IsInvalidArgument(
      WithBlockTable(builder.metadata(), table_view, slots_view, 0).status()));
}

TEST(MetadataBuilderTest, CommonPrefixEndsWhereTheFirstQueryBegins) {
  MetadataBuilderOptions options = SmallOptions();
  options.groups[0] = {.manager_block_size = 8, .kernel_block_size = 4, .num_blocks = 100};
  options.groups.push_back(
      {.manager_block_size = 8, .kernel_block_size = 4, .num_blocks = 100, .window = 6});
  AttentionMetadataBuilder builder = NewBuilder(options);
  Step step = {.requests = {{23, 1}, {14, 4}},
               .tables = {{1, 2, 3}, {1, 2, 3}, {1, 2, 4}, {1, 2, 4}}};
  const std::vector<int64_t> common = {2, 2};
  step.input.num_common_prefix_blocks = common;
  ASSERT_EQ(builder.Build(step.Input()), absl::OkStatus());
  EXPECT_EQ(builder.metadata(0).common_prefix_len, 12);  // 16 shared, but a query stands at 14
  EXPECT_EQ(builder.metadata(1).common_prefix_len, 0);   // windows have no common keys
}

// --- Masks ---

// A template for causal steps, a window mask for groups that have one.
absl::Status AttachSomeMasks(const KvGroupConfig& config, CommonAttentionMetadata* meta) {
  if (!meta->causal) return absl::OkStatus();
  meta->attn_mask.form = MaskForm::kTemplate;
  if (config.window > 0) meta->swa_mask.form = MaskForm::kTemplate;
  return meta->max_seq_len > 30 ? absl::FailedPreconditionError("not prewarmed") : absl::OkStatus();
}

TEST(MetadataBuilderTest, MasksAreAttachedWhereTheBackendAsks) {
  MetadataBuilderOptions options = SmallOptions();
  options.groups.push_back(options.groups[0]);
  options.groups[1].window = 5;
  options.attach_masks = AttachSomeMasks;
  AttentionMetadataBuilder builder = NewBuilder(options);
  Step step = {.requests = {{4, 1}}, .tables = {{1, 2}, {3, 4}}};
  ASSERT_EQ(builder.Build(step.Input()), absl::OkStatus());
  EXPECT_FALSE(builder.metadata(0).attn_mask.null());
  EXPECT_TRUE(builder.metadata(0).swa_mask.null());
  EXPECT_FALSE(builder.metadata(1).attn_mask.null());
  EXPECT_FALSE(builder.metadata(1).swa_mask.null());
  EXPECT_TRUE(builder.metadata(1).custom_mask.null());

  step.requests[0].num_computed_tokens = 31;
  step.tables.assign(2, {1, 2, 3, 4, 5, 6, 7, 8});
  EXPECT_TRUE(absl::IsFailedPrecondition(builder.Build(step.Input())));
  EXPECT_FALSE(builder.metadata(1).swa_mask.null());
  EXPECT_EQ(builder.metadata(1).max_seq_len, 5);

  step.input.causal = false;
  ASSERT_EQ(builder.Build(step.Input()), absl::OkStatus());
  EXPECT_TRUE(builder.metadata(0).attn_mask.null());
  EXPECT_TRUE(builder.metadata(1).swa_mask.null());
  EXPECT_FALSE(builder.metadata(0).causal);
}

// --- Bad input ---

class BadInputTest : public testing::Test {
 protected:
  void SetUp() override {
    Step step = MixedStep();
    ASSERT_EQ(builder_.Build(step.Input()), absl::OkStatus());
    const absl::Span<const std::byte> storage = builder_.storage();
    before_.assign(storage.begin(), storage.end());
  }

  // Refuses with the code and these words, and leaves every byte of the step before.
  void ExpectRefused(Step step, absl::StatusCode code, const std::string& words) {
    const absl::Status status = builder_.Build(step.Input());
    EXPECT_EQ(status.code(), code) << status;
    EXPECT_THAT(status, Says(words));
    const absl::Span<const std::byte> storage = builder_.storage();
    EXPECT_TRUE(std::equal(storage.begin(), storage.end(), before_.begin(), before_.end()));
    EXPECT_EQ(builder_.metadata().num_reqs, 3);
    EXPECT_THAT(builder_.permutation(), ElementsAre(1, 2, 0));
  }

  AttentionMetadataBuilder builder_ = NewBuilder(SmallOptions());
  std::vector<std::byte> before_;
};

TEST_F(BadInputTest, IsRefusedAndChangesNothing) {
  using Code = absl::StatusCode;
  const Step good = MixedStep();
  Step step = good;
  step.requests[2].num_computed_tokens = -1;
  ExpectRefused(step, Code::kInvalidArgument, "request 2: num_computed_tokens -1");
  step = good;
  step.requests[1].num_scheduled_tokens = 0;
  ExpectRefused(step, Code::kInvalidArgument,
                "request 1: num_computed_tokens 9, num_scheduled_tokens 0");
  step = good;
  step.requests[1].num_prompt_tokens = -7;
  ExpectRefused(step, Code::kInvalidArgument, "num_prompt_tokens -7");
  step = good;
  step.requests[1].num_computed_tokens = 40;
  ExpectRefused(step, Code::kOutOfRange, "request 1: 40 computed and 1 scheduled");
  step = good;
  step.requests[1].num_computed_tokens = INT64_MAX;
  ExpectRefused(step, Code::kOutOfRange, "request 1: 9223372036854775807 computed");
  step = good;
  step.tables[2] = {31};
  ExpectRefused(step, Code::kOutOfRange, "request 2: KV group 0 has 1 block ids for 7 tokens");
  step = good;
  step.tables[1][0] = -3;
  ExpectRefused(step, Code::kOutOfRange, "request 1: block id 0 of KV group 0 is -3");
  step = good;
  step.tables[0][1] = 100;
  ExpectRefused(step, Code::kOutOfRange, "request 0: block id 1 of KV group 0 is 100");
  step = good;
  step.tables[2][1] = 23;  // requests 1 and 2 write to different rows...
  step.requests[1].num_computed_tokens = 11;
  EXPECT_TRUE(NewBuilder(SmallOptions()).Build(step.Input()).ok());
  step.requests[1].num_computed_tokens = 10;  // ...and to the same
  ExpectRefused(step, Code::kInvalidArgument,
                "request 2: slot 94 of KV group 0 is also written by request 1");
  step = good;
  step.tables[0] = {12, 12};
  ExpectRefused(step, Code::kInvalidArgument, "slot 48 of KV group 0 is also written by request 0");
  step = good;
  step.tables.pop_back();
  ExpectRefused(step, Code::kInvalidArgument, "block_ids has 2 lists; 3 requests of 1 KV groups");
  step = good;
  step.input.padded_num_reqs = 2;
  ExpectRefused(step, Code::kInvalidArgument, "padded_num_reqs is 2");
  step = good;
  step.input.padded_num_tokens = 9;
  ExpectRefused(step, Code::kInvalidArgument, "padded_num_tokens is 9");
  step = good;
  step.input.padded_num_reqs = 9;
  ExpectRefused(step, Code::kResourceExhausted, "9 requests");
  step = good;
  step.input.padded_num_tokens = 33;
  ExpectRefused(step, Code::kResourceExhausted, "33 scheduled tokens");
  step = good;
  step.requests[0].num_scheduled_tokens = 32;
  step.tables[0] = {1, 2, 3, 4, 5, 6, 7, 8};
  ExpectRefused(step, Code::kResourceExhausted, "36 scheduled tokens");
  step = good;
  const std::vector<int64_t> two = {1, 1}, negative = {-1};
  step.input.num_common_prefix_blocks = two;
  ExpectRefused(step, Code::kInvalidArgument, "num_common_prefix_blocks has 2 entries");
  step.input.num_common_prefix_blocks = negative;
  ExpectRefused(step, Code::kInvalidArgument, "num_common_prefix_blocks has -1");
}

TEST(MetadataBuilderTest, LongTablesAreCheckedThroughout) {
  MetadataBuilderOptions options = SmallOptions();
  options.max_seq_len = 400;
  AttentionMetadataBuilder builder = NewBuilder(options);
  for (size_t k = 0; k < 70; ++k) {
    for (const int32_t bad : {-1, 100, 101}) {
      Step step = {.requests = {{279, 1}}, .tables = {std::vector<int32_t>(70, 99)}};
      ASSERT_EQ(builder.Build(step.Input()), absl::OkStatus());
      step.tables[0][k] = bad;
      EXPECT_TRUE(absl::IsOutOfRange(builder.Build(step.Input()))) << k << " " << bad;
    }
  }
}

TEST(MetadataBuilderTest, ImpossibleConfigurationsAreRefused) {
  const auto refuse = [](auto change, const std::string& words) {
    MetadataBuilderOptions options = SmallOptions();
    change(options);
    const absl::Status status = AttentionMetadataBuilder::Create(options).status();
    EXPECT_TRUE(absl::IsInvalidArgument(status)) << status;
    EXPECT_THAT(status, Says(words));
  };
  refuse([](auto& o) { o.groups.clear(); }, "groups is empty");
  refuse([](auto& o) { o.groups[0].kernel_block_size = 3; }, "block size of the manager is 4");
  refuse([](auto& o) { o.groups[0].kernel_block_size = 0; }, "of the kernel 0");
  refuse([](auto& o) { o.groups[0].manager_block_size = 0; }, "manager_block_size is 0");
  refuse([](auto& o) { o.groups[0].compression_ratio = 3; }, "compression_ratio is 3");
  refuse([](auto& o) { o.groups[0].compression_ratio = 4; }, "of the kernel 4");
  refuse([](auto& o) { o.groups[0].window = -1; }, "window is -1");
  refuse([](auto& o) { o.groups[0].num_blocks = 0; }, "num_blocks is 0");
  refuse([](auto& o) { o.groups[0].null_block = 100; }, "null_block is 100");
  refuse([](auto& o) { o.max_num_reqs = -1; }, "max_num_reqs is -1");
  refuse([](auto& o) { o.max_seq_len = int64_t{1} << 40; }, "max_seq_len is 1099511627776");
  refuse([](auto& o) { o.max_seq_len = o.max_num_reqs = 1'000'000'000; }, "lower a bound");
  refuse([](auto& o) { o.split.decode_threshold = 0; }, "decode_threshold is 0");
}

TEST(MetadataBuilderTest, BoundsBeyondTheMemoryOfTheMachineAreRefused) {
  MetadataBuilderOptions options = SmallOptions();
  options.groups[0].num_blocks = std::numeric_limits<int32_t>::max();
  // With 4 bytes for each block of each group, 2^47 bytes: more than any machine has.
  options.groups = std::vector<KvGroupConfig>(1 << 14, options.groups[0]);
  const absl::Status status = AttentionMetadataBuilder::Create(options).status();
  EXPECT_TRUE(absl::IsResourceExhausted(status)) << status;
  EXPECT_THAT(status, Says("16384 KV groups take"));
}

// EX-20: decodes, prefills, decode tokens, prefill tokens.
TEST(SplitCountsTest, Ex20TheOrderIsTrusted) {
  const auto count = [](std::vector<int32_t> query_lens, SplitOptions options) {
    std::vector<int32_t> starts = {0};
    for (const int32_t q : query_lens) starts.push_back(starts.back() + q);
    const BatchSplit split = SplitCounts(starts, {}, {}, options);
    return std::vector<int32_t>{split.num_decodes, split.num_prefills, split.num_decode_tokens,
                                split.num_prefill_tokens};
  };
  EXPECT_THAT(count({1, 1, 3, 1}, {.decode_threshold = 1}), ElementsAre(2, 2, 2, 4));
  EXPECT_THAT(count({1, 2, 2, 7}, {.decode_threshold = 2}), ElementsAre(3, 1, 5, 7));
  EXPECT_THAT(count({4, 1}, {.decode_threshold = 1}), ElementsAre(0, 2, 0, 5));
  // Uniform decodes stop at another length, but not at padding.
  const SplitOptions uniform = {.decode_threshold = 3, .require_uniform = true};
  EXPECT_THAT(count({2, 2, 1}, uniform), ElementsAre(2, 1, 4, 1));
  EXPECT_THAT(count({3, 3, 0, 0}, uniform), ElementsAre(4, 0, 6, 0));
  EXPECT_THAT(count({}, {}), ElementsAre(0, 0, 0, 0));
  EXPECT_EQ(SplitCounts({}, {}, {}, {}), BatchSplit());
}

TEST(SplitCountsTest, ShortExtendsMayBePrefills) {
  const std::vector<int32_t> starts = {0, 1, 2, 6}, lens = {5, 3, 4};
  const std::vector<uint8_t> in_prompt = {0, 1, 1};
  const BatchSplit split =
      SplitCounts(starts, lens, in_prompt, {.short_extends_are_decodes = false});
  EXPECT_EQ(split.num_decodes, 1);
  EXPECT_EQ(split.num_extends, 1);
  EXPECT_EQ(split.num_prefills, 2);
  EXPECT_EQ(SplitCounts(starts, lens, in_prompt, {}).num_decodes, 2);
}

}  // namespace
}  // namespace kvblocks::attention
