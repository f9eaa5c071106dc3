// Slots, window lists, compressed lists and virtual batches: worked examples and bad input.

#include <limits>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/types/span.h"
#include "attention/metadata/slot_mapping.h"
#include "attention/testing/says.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "kvblocks/attention_metadata.h"

namespace kvblocks::attention {
namespace {

using testing::ElementsAre;
using testing::ElementsAreArray;

// A tensor with its memory.
template <typename T>
struct Tensor {
  std::vector<T> values;
  std::vector<int64_t> extents;

  explicit Tensor(std::vector<T> the_values)
      : values(std::move(the_values)), extents({static_cast<int64_t>(values.size())}) {}
  Tensor(std::vector<T> the_values, int64_t rows)
      : values(std::move(the_values)),
        extents({rows, rows == 0 ? 0 : static_cast<int64_t>(values.size()) / rows}) {}
  TensorView view() {
    return TensorView::Contiguous(reinterpret_cast<std::byte*>(values.data()), DTypeOf<T>(),
                                  extents);
  }
};
using IntTensor = Tensor<int32_t>;
using Longs = Tensor<int64_t>;

void ExpectOk(const absl::Status& status) { EXPECT_EQ(status, absl::OkStatus()); }

void ExpectError(const absl::Status& status, absl::StatusCode code, const std::string& words) {
  EXPECT_EQ(status.code(), code) << status;
  EXPECT_THAT(status, Says(words));
}
constexpr auto kBad = absl::StatusCode::kInvalidArgument;
constexpr auto kOutOfRange = absl::StatusCode::kOutOfRange;

// --- Slots ---

std::vector<int64_t> SlotsOf(std::vector<int32_t> starts, std::vector<int32_t> positions,
                             std::vector<int32_t> table, int64_t num_padded) {
  const int64_t num_reqs = static_cast<int64_t>(starts.size()) - 1;
  IntTensor s(std::move(starts)), p(std::move(positions)), t(std::move(table), num_reqs);
  Longs slots(std::vector<int64_t>(static_cast<size_t>(num_padded), 77));
  ExpectOk(ComputeSlotMapping({.query_start_loc = s.view(),
                                .positions = p.view(),
                                .block_table = t.view(),
                                .block_size = 16,
                                .num_blocks = 100,
                                .null_blocks = {.first = 50, .count = 2},
                                .slot_mapping = slots.view()}));
  return slots.values;
}

TEST(SlotMappingTest, Ex01Slots) {
  EXPECT_THAT(SlotsOf({0, 3, 6}, {0, 1, 2, 0, 1, 2}, {0, 1}, 6), ElementsAre(0, 1, 2, 16, 17, 18));
  EXPECT_THAT(SlotsOf({0, 1, 2, 3}, {3, 2, 1}, {2, 0, 1}, 3), ElementsAre(35, 2, 17));
  EXPECT_THAT(SlotsOf({0, 4}, {14, 15, 16, 17}, {7, 3, 9}, 6),
              ElementsAre(126, 127, 48, 49, -1, -1));
}

TEST(SlotMappingTest, TokensOfTheNullBlockAreNotStored) {
  EXPECT_THAT(SlotsOf({0, 3}, {0, 16, 32}, {50, 51, 52}, 3), ElementsAre(-1, -1, 832));
}

TEST(SlotMappingTest, NullBlocksMayEndAtTheLargestId) {
  constexpr int32_t kMax = std::numeric_limits<int32_t>::max();
  const NullBlocks last = {.first = kMax, .count = 1};
  EXPECT_TRUE(last.contains(kMax));
  EXPECT_FALSE(last.contains(0));
  EXPECT_TRUE((NullBlocks{.first = -2, .count = kMax}).contains(0));
}

TEST(SlotMappingTest, Ex02Expansion) {
  ASSERT_TRUE(BlockExpansion(32, 16).ok());
  EXPECT_EQ(*BlockExpansion(32, 16), 2);
  std::vector<int32_t> out(6);
  ExpandBlockIds({0, 1, 2}, 2, out.data());
  EXPECT_THAT(out, ElementsAre(0, 1, 2, 3, 4, 5));
  out.resize(4);
  ExpandBlockIds({5, 2}, 2, out.data());
  EXPECT_THAT(out, ElementsAre(10, 11, 4, 5));
  ExpectError(BlockExpansion(16, 32).status(), kBad, "manager is 16, of the kernel 32");
  ExpectError(BlockExpansion(24, 16).status(), kBad, "positive multiple");
  ExpectError(BlockExpansion(16, 0).status(), kBad, "of the kernel 0");
}

TEST(SlotMappingTest, BadInputChangesNothing) {
  const auto refuse = [](auto change, absl::StatusCode code, const std::string& words) {
    IntTensor starts({0, 1, 3}), positions({20, 0, 1}), table({4, 5, 6, 7}, 2);
    Longs slots({77, 77, 77});
    SlotMappingArgs args = {.query_start_loc = starts.view(),
                            .positions = positions.view(),
                            .block_table = table.view(),
                            .block_size = 16,
                            .num_blocks = 8,
                            .null_blocks = {},
                            .slot_mapping = slots.view()};
    ExpectOk(ComputeSlotMapping(args));
    EXPECT_THAT(slots.values, ElementsAre(84, 96, 97));
    slots.values.assign(3, 77);
    change(args, starts.values, positions.values, table.values);
    ExpectError(ComputeSlotMapping(args), code, words);
    EXPECT_THAT(slots.values, ElementsAre(77, 77, 77));
  };
  refuse([](auto& a, auto&, auto&, auto&) { a.block_size = 0; }, kBad, "block_size is 0");
  refuse([](auto&, auto& s, auto&, auto&) { s[0] = 1; }, kBad, "query_start_loc[0] is 1");
  refuse([](auto&, auto& s, auto&, auto&) { s[1] = 4; }, kBad, "query_start_loc[2] is 3");
  refuse([](auto&, auto&, auto& p, auto&) { p[2] = -1; }, kOutOfRange, "request 1 needs rows -1");
  refuse([](auto&, auto&, auto& p, auto&) { p[0] = 32; }, kOutOfRange, "request 0 needs rows 32");
  refuse([](auto&, auto&, auto&, auto& t) { t[2] = 8; }, kOutOfRange,
         "request 1: block_table[1, 0] is 8");
  refuse([](auto&, auto&, auto&, auto& t) { t[1] = -1; }, kOutOfRange,
         "request 0: block_table[0, 1] is -1");
  refuse([](auto& a, auto&, auto&, auto&) { a.positions = *a.positions.Slice(0, 0, 2); }, kBad,
         "positions is i32[2]");
  refuse([](auto& a, auto&, auto&, auto&) { a.slot_mapping.dtype = DType::kI32; }, kBad,
         "slot_mapping is i32[3]");
  refuse([](auto& a, auto&, auto&, auto&) { a.block_table = *a.block_table.Slice(0, 0, 1); },
         kBad, "block_table is i32[1, 2]");
  refuse([](auto& a, auto&, auto&, auto&) { a.block_table.device.kind = DeviceKind::kCuda; },
         kBad, "on cuda:0");
}

// --- Windows ---

struct WindowCase {
  IntTensor starts, lens, table, indices, counts;

  WindowCase(std::vector<int32_t> row, int32_t length, int32_t query_len, int64_t padded)
      : starts({0, query_len}),
        lens({length}),
        table(std::move(row), 1),
        indices(std::vector<int32_t>(static_cast<size_t>(padded) * 4, 99), padded),
        counts(std::vector<int32_t>(static_cast<size_t>(padded), 99)) {}
  WindowIndicesArgs args() {
    return {.window = 4,
            .query_start_loc = starts.view(),
            .seq_lens = lens.view(),
            .block_table = table.view(),
            .block_size = 2,
            .num_blocks = 10,
            .indices = indices.view(),
            .lens = counts.view()};
  }
};

TEST(WindowIndicesTest, Ex12WindowIndices) {
  WindowCase longer({9, 4, 7, 1}, 7, 2, 2);
  ExpectOk(BuildSwaIndices(longer.args()));
  EXPECT_THAT(longer.indices.values, ElementsAre(8, 9, 14, 15, 9, 14, 15, 2));
  EXPECT_THAT(longer.counts.values, ElementsAre(4, 4));
  WindowCase shorter({9, 4}, 3, 3, 5);  // and two padding tokens
  ExpectOk(BuildSwaIndices(shorter.args()));
  EXPECT_THAT(shorter.indices.values, ElementsAre(18, -1, -1, -1, 18, 19, -1, -1, 18, 19, 8, -1,  //
                                                  -1, -1, -1, -1, -1, -1, -1, -1));
  EXPECT_THAT(shorter.counts.values, ElementsAre(1, 2, 3, 0, 0));
}

TEST(WindowIndicesTest, BlocksBeforeTheWindowAreNotRead) {
  WindowCase poisoned({-7, 4, 7, 1}, 7, 2, 2);  // first key is 2
  ExpectOk(BuildSwaIndices(poisoned.args()));
  EXPECT_THAT(poisoned.indices.values, ElementsAre(8, 9, 14, 15, 9, 14, 15, 2));
}

TEST(WindowIndicesTest, BadInputChangesNothing) {
  const auto refuse = [](auto change, absl::StatusCode code, const std::string& words) {
    WindowCase c({9, 4, 7, 1}, 7, 2, 2);
    WindowIndicesArgs args = c.args();
    change(c, args);
    ExpectError(BuildSwaIndices(args), code, words);
    EXPECT_THAT(c.indices.values, testing::Each(99));
    EXPECT_THAT(c.counts.values, testing::Each(99));
  };
  refuse([](auto&, auto& a) { a.window = 0; }, kBad, "window is 0");
  refuse([](auto&, auto& a) { a.window = 5; }, kBad, "indices is i32[2, 4]");
  refuse([](auto& c, auto&) { c.lens.values[0] = 1; }, kBad, "request 0: seq_lens is 1");
  refuse([](auto& c, auto&) { c.lens.values[0] = 9; }, kOutOfRange, "request 0 needs rows 4 to 8");
  refuse([](auto& c, auto&) { c.table.values[3] = 10; }, kOutOfRange, "block_table[0, 3] is 10");
  refuse([](auto& c, auto&) { c.starts.values[1] = 3; }, kBad, "indices is i32[2, 4]");
  refuse(
      [](auto& c, auto& a) {
        c.table.values[3] = std::numeric_limits<int32_t>::max() / 2 + 1;  // slots beyond int32
        a.num_blocks = 0;
      },
      kOutOfRange, "block_table[0, 3] is 1073741824");
}

// --- Compressed caches ---

TEST(CompressedIndicesTest, Ex13CompressedSlotsAndTopk) {
  IntTensor starts({0, 6}), positions({3, 4, 5, 6, 7, 8}), table({5}, 1);
  Longs slots(std::vector<int64_t>(8, 77));
  ExpectOk(BuildCompressedSlots({.ratio = 4,
                                  .query_start_loc = starts.view(),
                                  .positions = positions.view(),
                                  .block_table = table.view(),
                                  .block_size = 2,
                                  .num_blocks = 6,
                                  .slot_mapping = slots.view()}));
  EXPECT_THAT(slots.values, ElementsAre(10, -1, -1, -1, 11, -1, -1, -1));

  IntTensor one({0, 1}), topk({0, 65, -1, 130, 9, 9, 9, 9}, 2), row({3, 8, 1}, 1);
  IntTensor out(std::vector<int32_t>(8, 77), 2), counts({77, 77});
  const TopkSlotsArgs args = {.query_start_loc = one.view(),
                              .indices = topk.view(),
                              .block_table = row.view(),
                              .block_size = 64,
                              .num_blocks = 9,
                              .slots = out.view(),
                              .counts = counts.view()};
  ExpectOk(BuildTopkSlots(args));
  EXPECT_THAT(out.values, ElementsAre(192, 513, -1, 66, -1, -1, -1, -1));
  EXPECT_THAT(counts.values, ElementsAre(3, 0));

  topk.values[1] = 192;
  out.values.assign(8, 77);
  ExpectError(BuildTopkSlots(args), kOutOfRange, "request 0 needs rows 192");
  EXPECT_THAT(out.values, testing::Each(77));
}

struct PrefillCase {
  IntTensor starts{{0, 0, 3}}, lens{{0, 9}}, topk{{0, 1, 0, 1, 0, 1}, 3};
  IntTensor indices{std::vector<int32_t>(24, 77), 4}, counts{{77, 77, 77, 77}};

  PrefillIndicesArgs args() {
    return {.ratio = 4,
            .window = 4,
            .rows_per_request = 32,
            .compressed_rows = 8,
            .query_start_loc = starts.view(),
            .seq_lens = lens.view(),
            .topk = topk.view(),
            .indices = indices.view(),
            .lens = counts.view()};
  }
};

TEST(CompressedIndicesTest, Ex14PrefillCombination) {
  EXPECT_EQ(WindowGatherLen(3, 9, 4), 6);
  PrefillCase c;
  ExpectOk(CombinePrefillIndices(c.args()));
  EXPECT_THAT(c.indices.values, ElementsAre(32, 40, 41, 42, 43, -1,  //
                                            32, 33, 41, 42, 43, 44,  //
                                            32, 33, 42, 43, 44, 45,  //
                                            -1, -1, -1, -1, -1, -1));
  EXPECT_THAT(c.counts.values, ElementsAre(5, 6, 6, 0));
}

TEST(CompressedIndicesTest, LayersWithAWindowOnlyHaveNoTopk) {
  PrefillCase c;
  IntTensor indices(std::vector<int32_t>(16, 77), 4);
  PrefillIndicesArgs args = c.args();
  args.topk = {};
  args.indices = indices.view();
  ExpectError(CombinePrefillIndices(args), kBad, "topk is absent, but ratio is 4");
  args.ratio = 1;
  args.compressed_rows = 0;
  ExpectOk(CombinePrefillIndices(args));
  EXPECT_THAT(indices.values, ElementsAre(32, 33, 34, 35, 33, 34, 35, 36, 34, 35, 36, 37,  //
                                          -1, -1, -1, -1));
}

TEST(CompressedIndicesTest, BadInputChangesNothing) {
  const auto refuse = [](auto change, absl::StatusCode code, const std::string& words) {
    PrefillCase c;
    PrefillIndicesArgs args = c.args();
    change(c, args);
    ExpectError(CombinePrefillIndices(args), code, words);
    EXPECT_THAT(c.indices.values, testing::Each(77));
  };
  refuse([](auto&, auto& a) { a.ratio = 0; }, kBad, "ratio is 0");
  refuse([](auto&, auto& a) { a.window = 0; }, kBad, "window is 0");
  refuse([](auto&, auto& a) { a.rows_per_request = 13; }, kOutOfRange, "request 1 gathers 6");
  refuse([](auto&, auto& a) { a.compressed_rows = 33; }, kBad, "compressed_rows 33");
  refuse([](auto&, auto& a) { a.rows_per_request = int64_t{1} << 40; }, kBad, "fit in i32");
  refuse([](auto& c, auto&) { c.topk.values[3] = 8; }, kOutOfRange, "topk[1, 1] is 8");
  refuse([](auto& c, auto&) { c.lens.values[1] = 2; }, kBad, "request 1: seq_lens is 2");

  IntTensor starts({0, 1}), positions({7}), table({5}, 1);
  Longs slots(std::vector<int64_t>{77});
  CompressedSlotsArgs args = {.ratio = 4,
                              .query_start_loc = starts.view(),
                              .positions = positions.view(),
                              .block_table = table.view(),
                              .block_size = 1,
                              .num_blocks = 6,
                              .slot_mapping = slots.view()};
  ExpectError(BuildCompressedSlots(args), kOutOfRange, "request 0 needs rows 1 to 1");
  positions.values[0] = -4;
  ExpectError(BuildCompressedSlots(args), kOutOfRange, "positions[0] is -4");
  args.ratio = 0;
  ExpectError(BuildCompressedSlots(args), kBad, "ratio is 0");
  EXPECT_THAT(slots.values, ElementsAre(77));
}

// --- Any of them ---

TEST(IndexOpsTest, OutputsShareNoMemory) {
  IntTensor ints(std::vector<int32_t>(64, 0));
  Longs longs(std::vector<int64_t>(8, 0));
  IntTensor starts({0, 2}), table({0, 1}, 1), lens({2});
  const auto at = [](TensorView memory, int64_t begin, std::initializer_list<int64_t> extents) {
    int64_t size = 1;
    for (const int64_t extent : extents) size *= extent;
    return *memory.Slice(0, begin, begin + size)
                ->Reshape(absl::MakeConstSpan(extents.begin(), extents.size()));
  };
  const TensorView words = *longs.view().Bitcast(DType::kU8)->Bitcast(DType::kI32);
  ExpectError(ComputeSlotMapping({.query_start_loc = starts.view(),
                                    .positions = at(words, 2, {2}),
                                    .block_table = table.view(),
                                    .block_size = 4,
                                    .slot_mapping = at(longs.view(), 0, {2})}),
                kBad, "slot_mapping shares memory with positions");
  ExpectError(BuildCompressedSlots({.query_start_loc = starts.view(),
                                      .positions = at(words, 2, {2}),
                                      .block_table = table.view(),
                                      .block_size = 4,
                                      .slot_mapping = at(longs.view(), 0, {2})}),
                kBad, "slot_mapping shares memory with positions");
  ExpectError(BuildSwaIndices({.window = 4,
                                 .query_start_loc = starts.view(),
                                 .seq_lens = lens.view(),
                                 .block_table = table.view(),
                                 .block_size = 4,
                                 .indices = at(ints.view(), 0, {2, 4}),
                                 .lens = at(ints.view(), 7, {2})}),
                kBad, "indices shares memory with lens");
  const TopkSlotsArgs topk = {.query_start_loc = starts.view(),
                              .indices = at(ints.view(), 0, {2, 4}),
                              .block_table = table.view(),
                              .block_size = 4,
                              .slots = at(ints.view(), 0, {2, 4}),
                              .counts = at(ints.view(), 8, {2})};
  ExpectOk(BuildTopkSlots(topk));
  TopkSlotsArgs shifted = topk;
  shifted.slots = at(ints.view(), 1, {2, 4});
  shifted.counts = at(ints.view(), 9, {2});
  ExpectError(BuildTopkSlots(shifted), kBad, "slots shares memory with indices");
  ExpectError(BuildDenseCompressedIndices({.query_start_loc = starts.view(),
                                             .positions = at(ints.view(), 3, {2}),
                                             .indices = at(ints.view(), 0, {2, 4}),
                                             .lens = at(ints.view(), 8, {2})}),
                kBad, "indices shares memory with positions");
  ExpectError(CombinePrefillIndices({.window = 4,
                                       .rows_per_request = 8,
                                       .query_start_loc = starts.view(),
                                       .seq_lens = lens.view(),
                                       .indices = at(ints.view(), 0, {2, 4}),
                                       .lens = at(ints.view(), 7, {2})}),
                kBad, "indices shares memory with lens");
}

TEST(IndexOpsTest, TensorsWithoutMemoryAreRefused) {
  IntTensor starts({0, 2}), positions({0, 1}), table({0, 1}, 1);
  Longs slots({77, 77});
  SlotMappingArgs args = {.query_start_loc = starts.view(),
                          .positions = positions.view(),
                          .block_table = table.view(),
                          .block_size = 4,
                          .slot_mapping = slots.view()};
  for (ConstTensorView* view : {&args.query_start_loc, &args.positions, &args.block_table}) {
    const ConstTensorView good = *view;
    view->data = nullptr;
    ExpectError(ComputeSlotMapping(args), kBad, "null data");
    *view = good;
    view->data = good.data + 1;
    ExpectError(ComputeSlotMapping(args), kBad, "align it");
    *view = good;
    view->extent[view->rank - 1] = -1;
    ExpectError(ComputeSlotMapping(args), kBad, "extent -1");
    *view = good;
  }
  EXPECT_THAT(slots.values, ElementsAre(77, 77));
}

// --- Virtual batches ---

struct Ex11Batch {
  std::vector<int32_t> starts = {0, 4, 14, 19}, lens = {6, 17, 9};
  IntTensor table{{}, 0};
  CommonAttentionMetadata meta;

  Ex11Batch() {
    for (int32_t i = 0; i < 30; ++i) table.values.push_back(i);
    table.extents = {3, 10};
    meta.block_table = table.view();
    meta.block_size = 2;
    meta.num_reqs = 3;
    meta.num_actual_tokens = 19;
    meta.host_query_start_loc = starts;
    meta.host_seq_lens = lens;
  }
};

TEST(VirtualBatchesTest, Ex11VirtualBatches) {
  Ex11Batch batch;
  VirtualBatches pieces;
  ExpectOk(pieces.Build(batch.meta, 4));
  const CommonAttentionMetadata meta = pieces.metadata();
  EXPECT_EQ(meta.num_reqs, 8);
  EXPECT_THAT(meta.host_query_start_loc, ElementsAre(0, 2, 4, 5, 9, 13, 14, 18, 19));
  EXPECT_THAT(meta.host_seq_lens, ElementsAre(4, 2, 4, 4, 4, 1, 4, 1));
  std::vector<int32_t> starts, rows;
  for (const VirtualBatches::Piece& piece : pieces.pieces()) starts.push_back(piece.start);
  EXPECT_THAT(starts, ElementsAre(0, 4, 4, 8, 12, 16, 4, 8));
  const std::vector<int32_t> table(meta.block_table.as<int32_t>(),
                                   meta.block_table.as<int32_t>() + 16);
  EXPECT_THAT(table, ElementsAre(0, 1, 2, 3, 12, 13, 14, 15, 16, 17, 18, 19, 22, 23, 24, 25));
  EXPECT_EQ(meta.max_query_len, 4);
  EXPECT_EQ(meta.max_seq_len, 4);
}

TEST(VirtualBatchesTest, AnotherGroupReplacesTheRows) {
  Ex11Batch batch, other;
  VirtualBatches pieces;
  ExpectOk(pieces.Build(batch.meta, 4));
  // Blocks of 4: one per piece.
  other.table.values = {100, 101, 102, 103, 104, 110, 111, 112, 113, 114, 120, 121, 122, 123, 124};
  other.table.extents = {3, 5};
  other.meta.block_table = other.table.view();
  other.meta.block_size = 4;
  ExpectOk(pieces.UpdateBlockTable(other.meta));
  const CommonAttentionMetadata meta = pieces.metadata();
  EXPECT_EQ(meta.block_size, 4);
  EXPECT_EQ(meta.block_table.extent[1], 1);
  const std::vector<int32_t> table(meta.block_table.as<int32_t>(),
                                   meta.block_table.as<int32_t>() + 8);
  EXPECT_THAT(table, ElementsAre(100, 101, 111, 112, 113, 114, 121, 122));

  other.lens[1] = 16;
  other.starts = {0, 4, 13, 18};
  EXPECT_TRUE(absl::IsFailedPrecondition(pieces.UpdateBlockTable(other.meta)));
  EXPECT_EQ(pieces.metadata().num_reqs, 8);
}

TEST(VirtualBatchesTest, PiecesHavePhasesLikeAnyBatch) {
  Ex11Batch batch;
  batch.starts = {0, 1, 11, 16};  // the first piece is now a decode
  batch.meta.num_actual_tokens = 16;
  const std::vector<int64_t> slots(16, 3);
  batch.meta.slot_mapping = ViewOf(absl::MakeConstSpan(slots));
  VirtualBatches pieces;
  ExpectOk(pieces.Build(batch.meta, 4));
  const CommonAttentionMetadata meta = pieces.metadata();
  EXPECT_THAT(meta.host_query_start_loc, ElementsAre(0, 1, 2, 6, 10, 11, 15, 16));
  EXPECT_EQ(meta.num_decodes, 2);
  EXPECT_EQ(meta.num_prefill_tokens, 14);
  const absl::StatusOr<CommonAttentionMetadata> prefill = PrefillView(meta);
  ASSERT_TRUE(prefill.ok()) << prefill.status();
  EXPECT_THAT(prefill->host_query_start_loc, ElementsAre(0, 4, 8, 9, 13, 14));
  EXPECT_THAT(prefill->host_seq_lens, ElementsAre(4, 4, 1, 4, 1));
  EXPECT_EQ(prefill->slot_mapping.extent[0], 14);
}

TEST(VirtualBatchesTest, RequestsWithoutQueriesGiveNoPieces) {
  Ex11Batch batch;
  batch.starts = {0, 4, 4, 9};
  VirtualBatches pieces;
  ExpectOk(pieces.Build(batch.meta, 4));
  EXPECT_EQ(pieces.pieces().size(), 4u);
  EXPECT_EQ(pieces.pieces()[2].request, 2);
  batch.meta.num_reqs = 0;
  ExpectOk(pieces.Build(batch.meta, 4));
  EXPECT_EQ(pieces.metadata().num_reqs, 0);
}

TEST(VirtualBatchesTest, AChunkBeyondTheTableLeavesRequestsWhole) {
  Ex11Batch batch;
  VirtualBatches pieces;
  ExpectOk(pieces.Build(batch.meta, int64_t{1} << 62));
  const CommonAttentionMetadata meta = pieces.metadata();
  EXPECT_THAT(meta.host_seq_lens, ElementsAre(6, 17, 9));
  EXPECT_EQ(meta.block_table.extent[1], 10);
  const std::vector<int32_t> table(meta.block_table.as<int32_t>(),
                                   meta.block_table.as<int32_t>() + 30);
  EXPECT_EQ(table, batch.table.values);
}

TEST(VirtualBatchesTest, BadInputChangesNothing) {
  Ex11Batch good;
  VirtualBatches pieces;
  ExpectOk(pieces.Build(good.meta, 4));
  const auto refuse = [&](auto change, int64_t chunk, absl::StatusCode code,
                          const std::string& words) {
    Ex11Batch batch;
    change(batch);
    ExpectError(pieces.Build(batch.meta, chunk), code, words);
    EXPECT_EQ(pieces.pieces().size(), 8u);
  };
  refuse([](auto&) {}, 3, kBad, "chunk is 3 and block_size 2");
  refuse([](auto&) {}, 0, kBad, "chunk is 0");
  refuse([](auto& b) { b.lens[2] = 4; }, 4, kBad, "request 2: seq_lens is 4, less than its 5");
  refuse([](auto& b) { b.starts[0] = 1; }, 4, kBad, "query_start_loc[0] is 1");
  refuse([](auto& b) { b.starts[1] = 20; }, 4, kBad, "query_start_loc[2] is 14");
  refuse([](auto& b) { b.meta.num_reqs = -1; }, 4, kBad, "-1 requests");
  refuse([](auto& b) { b.meta.custom_mask.form = MaskForm::kShared; }, 4, kBad, "custom_mask");
  refuse([](auto& b) { b.lens[1] = 21; }, 4, kOutOfRange, "request 1 needs rows 8 to 20");
  refuse([](auto& b) { b.table.values[12] = -1; }, 4, kOutOfRange, "block_table[1, 2] is -1");
  refuse([](auto& b) { b.meta.num_reqs = 4; }, 4, kBad, "4 requests need 5");
}

}  // namespace
}  // namespace kvblocks::attention
