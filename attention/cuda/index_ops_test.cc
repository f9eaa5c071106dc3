// Index operations of CUDA against those of the host.

#include "attention/cuda/index_ops.h"

#include <algorithm>
#include <random>
#include <string>
#include <utility>
#include <vector>

#include "attention/cuda/testing/on_device.h"
#include "attention/ops/visit_views.h"
#include "attention/testing/paged_case.h"
#include "attention/testing/says.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "kvblocks/device_types.h"

namespace kvblocks::attention::cuda {
namespace {

using testing::Each;
using testing::ElementsAre;
using Visitor = HostTensorOps::Visitor;

void VisitViews(SlotMappingArgs& a, const Visitor& visit) {
  VisitEach(visit, a.query_start_loc, a.positions, a.block_table, a.slot_mapping);
}
void VisitViews(CompressedSlotsArgs& a, const Visitor& visit) {
  VisitEach(visit, a.query_start_loc, a.positions, a.block_table, a.slot_mapping);
}
void VisitViews(WindowIndicesArgs& a, const Visitor& visit) {
  VisitEach(visit, a.query_start_loc, a.seq_lens, a.block_table, a.indices, a.lens);
}
void VisitViews(TopkSlotsArgs& a, const Visitor& visit) {
  VisitEach(visit, a.query_start_loc, a.indices, a.block_table, a.slots, a.counts);
}
void VisitViews(DenseCompressedIndicesArgs& a, const Visitor& visit) {
  VisitEach(visit, a.query_start_loc, a.positions, a.indices, a.lens);
}
void VisitViews(PrefillIndicesArgs& a, const Visitor& visit) {
  VisitEach(visit, a.query_start_loc, a.seq_lens, a.topk, a.indices, a.lens);
}
void VisitViews(InputTokensArgs& a, const Visitor& visit) {
  VisitEach(visit, a.query_start_loc, a.request_rows, a.num_computed, a.token_ids,
            a.logits_start_loc, a.last_rows, a.sampled, a.drafts, a.input_ids, a.positions,
            a.logits_indices);
}

template <typename Args>
using CudaOp = absl::Status (*)(const ExecContext&, const Args&);
template <typename Args>
using HostOp = absl::Status (*)(const Args&);

// Runs a CUDA operation on copies of its tensors.
template <typename Args>
absl::Status RunCuda(const ExecContext& context, CudaOp<Args> op, Args args) {
  return RowsOnDevice().RunOnDevice(
      context, [&](const Visitor& visitor) { VisitViews(args, visitor); },
      [&](const ExecContext& on_device) { return op(on_device, args); });
}
// ... and returns the error flags it raised.
template <typename Args>
uint32_t FlagsOf(CudaOp<Args> op, const Args& args) {
  Flagged flagged;
  EXPECT_EQ(RunCuda(flagged.context, op, args), absl::OkStatus());
  return flagged.bits;
}
// That it does what the host's does, without flags.
template <typename Args>
void ExpectSame(HostOp<Args> host, CudaOp<Args> op, const Args& args,
                const std::vector<Tensor*>& outputs) {
  ExpectSameBytes(
      outputs, [&](const ExecContext&) { return host(args); },
      [&](const ExecContext& context) { return RunCuda(context, op, args); });
}

Tensor List(const std::vector<double>& values) {
  return IntTensor(values, {static_cast<int64_t>(values.size())});
}
Tensor Table(const std::vector<double>& values, int64_t rows) {
  return IntTensor(values, {rows, rows == 0 ? 0 : static_cast<int64_t>(values.size()) / rows});
}
Tensor Fresh(int64_t rows, int64_t width) {
  return IntTensor(std::vector<double>(static_cast<size_t>(rows * width), 77), {rows, width});
}
Tensor Fresh(int64_t rows) { return List(std::vector<double>(static_cast<size_t>(rows), 77)); }
Tensor FreshSlots(int64_t rows) {
  return SlotTensor(std::vector<double>(static_cast<size_t>(rows), 77));
}

// --- Worked examples, and what the device alone can see ---

WindowIndicesArgs WindowOfFour(const Tensor& starts, const Tensor& lens, const Tensor& table,
                               Tensor& indices, Tensor& counts) {
  return {.window = 4,
          .query_start_loc = starts.view,
          .seq_lens = lens.view,
          .block_table = table.view,
          .block_size = 2,
          .num_blocks = 10,
          .indices = indices.view,
          .lens = counts.view};
}

TEST(CudaIndexOpsTest, Ex12WindowIndices) {
  const auto lists_of = [](const std::vector<double>& row, double length, double query_len,
                           int64_t padded, uint32_t flags) {
    const Tensor starts = List({0, query_len}), lens = List({length}), table = Table(row, 1);
    Tensor indices = Fresh(padded, 4), counts = Fresh(padded);
    const WindowIndicesArgs args = WindowOfFour(starts, lens, table, indices, counts);
    EXPECT_EQ(FlagsOf(CudaBuildSwaIndices, args), flags);
    return std::make_pair(indices.Get(), counts.Get());
  };
  auto [longer, longer_lens] = lists_of({9, 4, 7, 1}, 7, 2, 2, 0);
  EXPECT_THAT(longer, ElementsAre(8, 9, 14, 15, 9, 14, 15, 2));
  EXPECT_THAT(longer_lens, ElementsAre(4, 4));
  auto [shorter, shorter_lens] = lists_of({9, 4}, 3, 3, 5, 0);  // and two padding tokens
  EXPECT_THAT(shorter, ElementsAre(18, -1, -1, -1, 18, 19, -1, -1, 18, 19, 8, -1,  //
                                   -1, -1, -1, -1, -1, -1, -1, -1));
  EXPECT_THAT(shorter_lens, ElementsAre(1, 2, 3, 0, 0));
  // Blocks before the window are not looked at; those in it that the cache has not are left out.
  EXPECT_EQ(lists_of({-7, 4, 7, 1}, 7, 2, 2, 0).first, longer);
  auto [bad, bad_lens] = lists_of({9, 4, 10, 1}, 7, 2, 2, kBadBlock);
  EXPECT_THAT(bad, ElementsAre(8, 9, -1, -1, 9, -1, -1, 2));
  EXPECT_THAT(bad_lens, ElementsAre(4, 4));
  // The table covers 8 positions of 10.
  auto [beyond, beyond_lens] = lists_of({9, 4, 7, 1}, 10, 2, 2, kLengthClamped);
  EXPECT_THAT(beyond, ElementsAre(15, 2, 3, -1, 2, 3, -1, -1));
  EXPECT_THAT(beyond_lens, ElementsAre(3, 2));
  // More tokens than the request has in all, or than there are rows.
  auto [before, before_lens] = lists_of({9, 4}, 1, 2, 2, kLengthClamped);
  EXPECT_THAT(before, ElementsAre(-1, -1, -1, -1, 18, -1, -1, -1));
  EXPECT_THAT(before_lens, ElementsAre(0, 1));
  EXPECT_THAT(lists_of({9, 4}, 3, 3, 2, kLengthClamped).second, ElementsAre(1, 2));
}

TEST(CudaIndexOpsTest, Ex13Topk) {
  const Tensor one = List({0, 1}), row = Table({3, 8, 1}, 1);
  Tensor topk = Table({0, 65, -1, 130, 9, 9, 9, 9}, 2), out = Fresh(2, 4), counts = Fresh(2);
  TopkSlotsArgs args = {.query_start_loc = one.view,
                        .indices = topk.view,
                        .block_table = row.view,
                        .block_size = 64,
                        .num_blocks = 9,
                        .slots = out.view,
                        .counts = counts.view};
  EXPECT_EQ(FlagsOf(CudaBuildTopkSlots, args), 0u);
  EXPECT_THAT(out.Get(), ElementsAre(192, 513, -1, 66, -1, -1, -1, -1));
  EXPECT_THAT(counts.Get(), ElementsAre(3, 0));
  const auto expect_in_place = [&](std::vector<double> rows, std::vector<double> slots_of_first,
                                   int32_t count, uint32_t flags) {
    rows.resize(8, 9);
    topk.Set(rows);
    args.indices = args.slots = topk.view;
    EXPECT_EQ(FlagsOf(CudaBuildTopkSlots, args), flags);
    slots_of_first.resize(8, -1);
    EXPECT_EQ(topk.Get(), slots_of_first);
    EXPECT_THAT(counts.Get(), ElementsAre(count, 0));
  };
  expect_in_place({0, 65, -1, 130}, {192, 513, -1, 66}, 3, 0);
  // Rows past the table and blocks past the cache.
  expect_in_place({0, 192, -1, 130}, {192, -1, -1, 66}, 2, kBadIndex);
  args.num_blocks = 3;
  expect_in_place({0, 192, -1, 130}, {-1, -1, -1, 66}, 1, kBadIndex | kBadBlock);
}

TEST(CudaIndexOpsTest, Ex14PrefillCombination) {
  const Tensor starts = List({0, 0, 3}), lens = List({0, 9});
  Tensor topk = Table({0, 1, 0, 1, 0, 1}, 3);
  Tensor indices = Fresh(4, 6), counts = Fresh(4), narrow = Fresh(4, 4);
  PrefillIndicesArgs args = {.ratio = 4,
                             .window = 4,
                             .rows_per_request = 32,
                             .compressed_rows = 8,
                             .query_start_loc = starts.view,
                             .seq_lens = lens.view,
                             .topk = topk.view,
                             .indices = indices.view,
                             .lens = counts.view};
  EXPECT_EQ(FlagsOf(CudaCombinePrefillIndices, args), 0u);
  EXPECT_THAT(counts.Get(), ElementsAre(5, 6, 6, 0));
  // A row that the compressed region has not.
  topk.Set({0, 1, 0, 8, 0, 1});
  EXPECT_EQ(FlagsOf(CudaCombinePrefillIndices, args), kBadIndex);
  EXPECT_THAT(indices.Get(), ElementsAre(32, 40, 41, 42, 43, -1,  //
                                         32, -1, 41, 42, 43, 44,  //
                                         32, 33, 42, 43, 44, 45,  //
                                         -1, -1, -1, -1, -1, -1));
  // Six tokens are gathered into a buffer of five.
  topk.Set({0, 1, 0, 1, 0, 1});
  args.rows_per_request = 13;
  EXPECT_EQ(FlagsOf(CudaCombinePrefillIndices, args), kLengthClamped);
  EXPECT_THAT(indices.Get(), ElementsAre(13, 21, 22, 23, 24, -1,  //
                                         13, 14, 22, 23, 24, 25,  //
                                         13, 14, 23, 24, 25, -1,  //
                                         -1, -1, -1, -1, -1, -1));
  EXPECT_THAT(counts.Get(), ElementsAre(5, 6, 5, 0));
  // A layer with a window only.
  args = {.window = 4,
          .rows_per_request = 32,
          .query_start_loc = starts.view,
          .seq_lens = lens.view,
          .indices = narrow.view,
          .lens = counts.view};
  EXPECT_EQ(FlagsOf(CudaCombinePrefillIndices, args), 0u);
  EXPECT_THAT(narrow.Get(), ElementsAre(32, 33, 34, 35, 33, 34, 35, 36, 34, 35, 36, 37,  //
                                        -1, -1, -1, -1));
}

TEST(CudaIndexOpsTest, BadPositionsAndBlocksGetNoSlot) {
  Tensor starts = List({0, 3, 5}), positions = List({-1, 5, 8, 0, 4}), slots = FreshSlots(6);
  const Tensor table = Table({3, 4, 5, -1}, 2);
  SlotMappingArgs args = {.query_start_loc = starts.view,
                          .positions = positions.view,
                          .block_table = table.view,
                          .block_size = 4,
                          .num_blocks = 5,
                          .slot_mapping = slots.view};
  EXPECT_EQ(FlagsOf(CudaComputeSlotMapping, args), kLengthClamped | kBadBlock);
  EXPECT_THAT(slots.Get(), ElementsAre(-1, 17, -1, -1, -1, -1));
  // More tokens than positions, and a count below zero.
  starts.Set({0, 1, 9});
  args.positions = *args.positions.Slice(0, 1, 2);
  EXPECT_EQ(FlagsOf(CudaComputeSlotMapping, args), kLengthClamped);
  EXPECT_THAT(slots.Get(), ElementsAre(17, -1, -1, -1, -1, -1));
  starts.Set({0, 1, -9});
  EXPECT_EQ(FlagsOf(CudaComputeSlotMapping, args), kLengthClamped);
  EXPECT_THAT(slots.Get(), Each(-1));

  Tensor indices = Fresh(2, 3), lens = Fresh(3);
  starts.Set({0, 1, 2});
  positions.Set({-5, 2, 0, 0, 0});
  const DenseCompressedIndicesArgs dense = {.ratio = 2,
                                            .query_start_loc = starts.view,
                                            .positions = positions.view,
                                            .indices = indices.view,
                                            .lens = lens.view};
  EXPECT_EQ(FlagsOf(CudaBuildDenseCompressedIndices, dense), kLengthClamped);
  EXPECT_THAT(indices.Get(), ElementsAre(-1, -1, -1, 0, -1, -1));
  EXPECT_THAT(lens.Get(), ElementsAre(0, 1, 0));
}

TEST(CudaIndexOpsTest, ShapesAndDevicesAreCheckedAsOnTheHost) {
  const Tensor starts = List({0, 1}), lens = List({3}), table = Table({1, 2}, 1);
  Tensor indices = Fresh(1, 4), counts = Fresh(1);
  const auto refuse = [&](auto change, const std::string& words) {
    WindowIndicesArgs args = WindowOfFour(starts, lens, table, indices, counts);
    // Refused before anybody looks at the elements, wherever they are.
    ExecContext context;
    context.device = {DeviceKind::kCuda, 0};
    const auto place = [&](auto& view) { view.device = context.device; };
    VisitViews(args, {place, place});
    change(args);
    const absl::Status status = CudaBuildSwaIndices(context, args);
    EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument);
    EXPECT_THAT(status, Says(words));
  };
  refuse([](auto& a) { a.window = 5; }, "indices is i32[1, 4]");
  refuse([](auto& a) { a.window = 0; }, "window is 0");
  refuse([](auto& a) { a.block_size = 0; }, "block_size is 0");
  refuse([](auto& a) { a.seq_lens.device = {}; }, "on host; the context is on cuda:0");
  refuse([](auto& a) { a.lens = *a.indices.Select(0, 0); }, "shares memory");
  refuse([](auto& a) { a.query_start_loc = {}; }, "query_start_loc is absent");
  EXPECT_THAT(indices.Get(), Each(77));
}

// --- Random batches ---

// Requests with distinct blocks, some without tokens, and padding behind them.
struct IndexBatch {
  int64_t block_size, columns, num_padded;
  std::vector<double> starts = {0}, lens, positions, table;

  IndexBatch(std::mt19937_64& random, int64_t num_requests) {
    const auto draw = [&](int64_t low, int64_t high) { return IntegerDraw(random, low, high); };
    block_size = draw(1, 5);
    columns = (40 + block_size - 1) / block_size + draw(0, 2);
    int32_t next = 0;
    for (int64_t b = 0; b < num_requests; ++b) {
      const int64_t length = draw(0, 40);
      const int64_t most =
          num_requests > 8 || draw(0, 3) > 0 ? std::min<int64_t>(2, length) : length;
      const int64_t query_len = draw(0, most);
      starts.push_back(starts.back() + static_cast<double>(query_len));
      lens.push_back(static_cast<double>(length));
      for (int64_t p = length - query_len; p < length; ++p) {
        positions.push_back(static_cast<double>(p));
      }
      for (int64_t c = 0; c < columns; ++c) table.push_back(next++ * 7 % 100'003);
    }
    num_padded = static_cast<int64_t>(positions.size()) + draw(0, 3);
  }
};

// T-22 has the host's lists equal the dense predicates; these equal the host's.
TEST(CudaIndexOpsTest, RandomBatchesGetTheListsOfTheHost) {
  std::mt19937_64 random(1);
  for (const int64_t num_requests : {0, 1, 2, 3, 5, 31, 32, 33, 70, 1100}) {
    SCOPED_TRACE(num_requests);
    const IndexBatch batch(random, num_requests);
    const int64_t rows = batch.num_padded;
    const auto draw = [&](int64_t low, int64_t high) { return IntegerDraw(random, low, high); };
    const Tensor starts = List(batch.starts), lens = List(batch.lens);
    Tensor positions = List(batch.positions), table = Table(batch.table, num_requests);
    const int64_t ratio = draw(1, 5), capacity = draw(1, 40), window = draw(1, 70);

    const auto of_batch = [&](auto args) {
      args.query_start_loc = starts.view;
      if constexpr (requires { args.positions; }) args.positions = positions.view;
      if constexpr (requires { args.seq_lens; }) args.seq_lens = lens.view;
      if constexpr (requires { args.block_table; }) args.block_table = table.view;
      if constexpr (requires { args.block_size; }) args.block_size = batch.block_size;
      if constexpr (requires { args.num_blocks; }) args.num_blocks = 100'003;
      return args;
    };
    const auto compare_slots = [&](auto host, auto cuda, auto args) {
      Tensor slots = FreshSlots(rows);
      args = of_batch(args);
      args.slot_mapping = slots.view;
      ExpectSame<decltype(args)>(host, cuda, args, {&slots});
    };
    compare_slots(ComputeSlotMapping, CudaComputeSlotMapping,
                  SlotMappingArgs{.null_blocks = {7, 3}});
    for (int32_t rank = 0; rank < 3; ++rank) {
      const auto interleave = static_cast<int32_t>(batch.block_size % 2 == 0 ? 2 : 1);
      compare_slots(ComputeSlotMapping, CudaComputeSlotMapping,
                    SlotMappingArgs{.null_blocks = {7, 3},
                                    .context_parallel = {3, rank, interleave}});
    }
    compare_slots(BuildCompressedSlots, CudaBuildCompressedSlots,
                  CompressedSlotsArgs{.ratio = ratio});

    const auto compare_lists = [&](auto host, auto cuda, auto args, int64_t width) {
      Tensor indices = Fresh(rows, width), counts = Fresh(rows + 1);
      args = of_batch(args);
      args.indices = indices.view;
      args.lens = counts.view;
      ExpectSame<decltype(args)>(host, cuda, args, {&indices, &counts});
      return indices;
    };
    compare_lists(BuildSwaIndices, CudaBuildSwaIndices, WindowIndicesArgs{.window = window},
                  window);
    // Sink rows come before all queries, and slots are those of the rows behind them.
    int64_t sink_rows = draw(0, 9);
    for (int64_t b = 0; b < num_requests; ++b) {
      const auto query_len = static_cast<int64_t>(batch.starts[b + 1] - batch.starts[b]);
      const int64_t context = static_cast<int64_t>(batch.lens[b]) - query_len;
      if (query_len > 0) sink_rows = std::min(sink_rows, context);
    }
    compare_lists(BuildSwaIndices, CudaBuildSwaIndices,
                  WindowIndicesArgs{.window = window, .sink_rows = sink_rows}, sink_rows + window);
    std::vector<double> own_positions = batch.positions;
    for (double& position : own_positions) position -= static_cast<double>(sink_rows);
    positions.Set(own_positions);
    compare_slots(ComputeSlotMapping, CudaComputeSlotMapping,
                  SlotMappingArgs{.null_blocks = {7, 3}, .sink_rows = sink_rows});
    positions.Set(batch.positions);
    Tensor list = compare_lists(BuildDenseCompressedIndices, CudaBuildDenseCompressedIndices,
                                DenseCompressedIndicesArgs{.ratio = ratio}, capacity);
    compare_lists(CombinePrefillIndices, CudaCombinePrefillIndices,
                  PrefillIndicesArgs{.ratio = ratio,
                                     .window = window,
                                     .rows_per_request = 40 / ratio + 80,
                                     .compressed_rows = 40 / ratio,
                                     .topk = list.view},
                  capacity + window);

    Tensor counts = Fresh(rows);
    TopkSlotsArgs topk = of_batch(TopkSlotsArgs{});
    topk.indices = topk.slots = list.view;
    topk.counts = counts.view;
    ExpectSame<TopkSlotsArgs>(BuildTopkSlots, CudaBuildTopkSlots, topk, {&list, &counts});
  }
}

// --- Input tokens ---

// A batch of requests, some of which the last step sampled, with drafts or without.
TEST(CudaIndexOpsTest, RandomStepsGetTheInputTokensOfTheHost) {
  std::mt19937_64 random(7);
  const auto draw = [&](int64_t low, int64_t high) {
    return static_cast<int32_t>(IntegerDraw(random, low, high));
  };
  for (int round = 0; round < 60; ++round) {
    SCOPED_TRACE(round);
    const int64_t max_len = 30, table_rows = draw(1, 6), num_drafts = draw(0, 4);
    const int32_t num_requests = round % 10 == 0 ? 0 : draw(1, round % 7 == 0 ? 600 : 6);
    const int64_t last_rows = draw(1, 5);
    const auto ids_of = [&](int64_t rows, int64_t width) {
      std::vector<double> ids(static_cast<size_t>(rows * width));
      for (double& id : ids) id = draw(1000, 1 << 20);
      return IntTensor(ids, {rows, width});
    };
    const Tensor token_ids = ids_of(table_rows, max_len), sampled = ids_of(last_rows, draw(1, 3));
    const Tensor drafts = ids_of(last_rows, num_drafts);
    std::vector<double> starts = {0}, logits_starts = {0}, rows, computed, last;
    const bool with_logits = draw(0, 2) > 0;
    for (int32_t b = 0; b < num_requests; ++b) {
      const int32_t count = draw(with_logits ? 0 : 1, 7);
      const int32_t logits = with_logits ? draw(0, std::min<int64_t>(count, num_drafts + 1)) : 1;
      starts.push_back(starts.back() + count);
      logits_starts.push_back(logits_starts.back() + logits);
      rows.push_back(draw(0, table_rows - 1));
      computed.push_back(draw(0, max_len - count));
      last.push_back(draw(-1, last_rows - 1));
    }
    // Rows of a padded batch have no tokens.
    for (int32_t padding = draw(0, 2); padding > 0; --padding) {
      starts.push_back(starts.back());
      logits_starts.push_back(logits_starts.back());
      for (auto* list : {&rows, &computed, &last}) list->push_back(0);
    }
    const auto num_logits = static_cast<int64_t>(logits_starts.back());
    const auto num_tokens = static_cast<int64_t>(starts.back());
    const bool with_last = draw(0, 3) > 0;
    const int64_t num_ids = num_tokens + draw(0, 3);
    Tensor ids = draw(0, 1) == 1 ? FreshSlots(num_ids) : Fresh(num_ids);
    Tensor positions = Fresh(num_tokens + draw(0, 3)), indices = Fresh(num_logits + draw(0, 3));
    const Tensor starts_list = List(starts), logits_list = List(logits_starts);
    const Tensor rows_list = List(rows), computed_list = List(computed), last_list = List(last);
    InputTokensArgs args = {.query_start_loc = starts_list.view,
                            .request_rows = rows_list.view,
                            .num_computed = computed_list.view,
                            .token_ids = token_ids.view,
                            .input_ids = ids.view,
                            .positions = positions.view,
                            .logits_indices = indices.view};
    if (with_logits) args.logits_start_loc = logits_list.view;
    if (with_last) args.last_rows = last_list.view, args.sampled = sampled.view;
    if (with_last && draw(0, 1) == 1) args.drafts = drafts.view;
    ExpectSame<InputTokensArgs>(GatherInputTokens, CudaGatherInputTokens, args,
                                {&ids, &positions, &indices});
  }
}

TEST(CudaIndexOpsTest, BadRowsPositionsAndDraftsGiveTokenZero) {
  const Tensor starts = List({0, 1, 2, 3, 6}), rows = List({0, 5, 0, 0});
  const Tensor computed = List({0, 0, 4, 0}), token_ids = Table({11, 12, 13, 14}, 1);
  const Tensor sampled = Table({50}, 1), drafts = Table({60}, 1);
  Tensor last = List({-1, -1, -1, 0}), logits = List({0, 1, 1, 1, 4});
  Tensor ids = Fresh(6), indices = Fresh(5);
  InputTokensArgs args = {.query_start_loc = starts.view,
                          .request_rows = rows.view,
                          .num_computed = computed.view,
                          .token_ids = token_ids.view,
                          .logits_start_loc = logits.view,
                          .last_rows = last.view,
                          .sampled = sampled.view,
                          .drafts = drafts.view,
                          .input_ids = ids.view,
                          .logits_indices = indices.view};
  EXPECT_EQ(FlagsOf(CudaGatherInputTokens, args), kBadIndex | kLengthClamped);
  EXPECT_THAT(ids.Get(), ElementsAre(11, 0, 0, 50, 60, 0));
  EXPECT_THAT(indices.Get(), ElementsAre(0, 3, 4, 5, 5));
  // A row that the last step had not, more rows to sample behind than tokens, too few ids.
  last.Set({-1, -1, -1, 1});
  logits.Set({0, 2, 2, 2, 4});
  EXPECT_EQ(FlagsOf(CudaGatherInputTokens, args), kBadIndex | kLengthClamped);
  EXPECT_THAT(ids.Get(), ElementsAre(11, 0, 0, 11, 0, 0));
  EXPECT_THAT(indices.Get(), ElementsAre(0, 0, 4, 5, 5));
  args.input_ids.extent[0] = 4;
  args.logits_start_loc = {};
  EXPECT_EQ(FlagsOf(CudaGatherInputTokens, args) & kLengthClamped, kLengthClamped);
}

}  // namespace
}  // namespace kvblocks::attention::cuda
