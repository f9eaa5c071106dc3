// Index operations of CUDA against those of the host.

#include "attention/cuda/index_ops.h"

#include <algorithm>
#include <random>
#include <string>
#include <type_traits>
#include <utility>
#include <vector>

#include "absl/types/span.h"
#include "attention/cuda/kernels/runtime.h"
#include "attention/testing/says.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "kvblocks/device_types.h"

namespace kvblocks::attention::cuda {
namespace {

using testing::Each;
using testing::ElementsAre;

constexpr DeviceId kDevice = {DeviceKind::kCuda, 0};

void MustSucceed(Error error) { ASSERT_EQ(error, 0) << ErrorName(error); }

// Elements on the host and, from a call of device() to one of Fetch(), on the device.
template <typename T>
class Values {
 public:
  explicit Values(std::vector<T> all)
      : values(std::move(all)), extents_{static_cast<int64_t>(values.size())} {}
  Values(std::vector<T> all, int64_t rows) : Values(std::move(all)) {
    extents_ = {rows, rows == 0 ? 0 : static_cast<int64_t>(values.size()) / rows};
  }
  Values(const Values&) = delete;
  ~Values() {
    if (memory_ != nullptr) (void)FreeDevice(memory_);
  }

  TensorView host() {
    return TensorView::Contiguous(reinterpret_cast<std::byte*>(values.data()), DTypeOf<T>(),
                                  extents_);
  }
  TensorView device() {
    if (memory_ == nullptr) MustSucceed(AllocateDevice(Bytes() + 1, &memory_));
    MustSucceed(CopyAsync(memory_, values.data(), Bytes(), nullptr));
    return TensorView::Contiguous(static_cast<std::byte*>(memory_), DTypeOf<T>(), extents_,
                                  kDevice);
  }
  std::vector<T> Fetch() {
    std::vector<T> fetched(values.size());
    MustSucceed(CopyAsync(fetched.data(), memory_, Bytes(), nullptr));
    MustSucceed(Synchronize(nullptr));
    return fetched;
  }

  std::vector<T> values;

 private:
  size_t Bytes() const { return values.size() * sizeof(T); }
  std::vector<int64_t> extents_;
  void* memory_ = nullptr;
};
using Ints = Values<int32_t>;
using Longs = Values<int64_t>;
Ints Fresh(int64_t rows, int64_t width) {
  return Ints(std::vector<int32_t>(static_cast<size_t>(rows * width), 77), rows);
}
Ints Fresh(int64_t rows) { return Ints(std::vector<int32_t>(static_cast<size_t>(rows), 77)); }
Longs FreshSlots(int64_t rows) {
  return Longs(std::vector<int64_t>(static_cast<size_t>(rows), 77));
}

// Runs a CUDA operation; the error flags it raised.
template <typename Args>
uint32_t FlagsOf(absl::Status (*op)(const ExecContext&, const Args&), const Args& args) {
  Ints bits(std::vector<int32_t>{0});
  DeviceErrorFlags flags{bits.device().as<uint32_t>()};
  ExecContext context;
  context.device = kDevice;
  context.error_flags = &flags;
  EXPECT_EQ(op(context, args), absl::OkStatus());
  return static_cast<uint32_t>(bits.Fetch()[0]);
}

void ExpectOk(const absl::Status& status) { EXPECT_EQ(status, absl::OkStatus()); }

// --- Worked examples ---

TEST(CudaIndexOpsTest, Ex12WindowIndices) {
  const auto lists_of = [](std::vector<int32_t> row, int32_t length, int32_t query_len,
                           int64_t padded, uint32_t flags) {
    Ints starts({0, query_len}), lens({length}), table(std::move(row), 1);
    Ints indices = Fresh(padded, 4), counts = Fresh(padded);
    const WindowIndicesArgs args = {.window = 4,
                                    .query_start_loc = starts.device(),
                                    .seq_lens = lens.device(),
                                    .block_table = table.device(),
                                    .block_size = 2,
                                    .num_blocks = 10,
                                    .indices = indices.device(),
                                    .lens = counts.device()};
    EXPECT_EQ(FlagsOf(CudaBuildSwaIndices, args), flags);
    return std::make_pair(indices.Fetch(), counts.Fetch());
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
  Ints one({0, 1}), topk({0, 65, -1, 130, 9, 9, 9, 9}, 2), row({3, 8, 1}, 1);
  Ints out = Fresh(2, 4), counts = Fresh(2);
  TopkSlotsArgs args = {.query_start_loc = one.device(),
                        .indices = topk.device(),
                        .block_table = row.device(),
                        .block_size = 64,
                        .num_blocks = 9,
                        .slots = out.device(),
                        .counts = counts.device()};
  EXPECT_EQ(FlagsOf(CudaBuildTopkSlots, args), 0u);
  EXPECT_THAT(out.Fetch(), ElementsAre(192, 513, -1, 66, -1, -1, -1, -1));
  EXPECT_THAT(counts.Fetch(), ElementsAre(3, 0));
  const auto expect_in_place = [&](std::vector<int32_t> slots_of_first, int32_t count,
                                   uint32_t flags) {
    args.indices = args.slots = topk.device();
    EXPECT_EQ(FlagsOf(CudaBuildTopkSlots, args), flags);
    slots_of_first.resize(8, -1);
    EXPECT_EQ(topk.Fetch(), slots_of_first);
    EXPECT_THAT(counts.Fetch(), ElementsAre(count, 0));
  };
  expect_in_place({192, 513, -1, 66}, 3, 0);
  // Rows past the table and blocks past the cache.
  topk.values[1] = 192;
  expect_in_place({192, -1, -1, 66}, 2, kBadIndex);
  args.num_blocks = 3;
  expect_in_place({-1, -1, -1, 66}, 1, kBadIndex | kBadBlock);
}

TEST(CudaIndexOpsTest, Ex14PrefillCombination) {
  Ints starts({0, 0, 3}), lens({0, 9}), topk({0, 1, 0, 1, 0, 1}, 3);
  Ints indices = Fresh(4, 6), counts = Fresh(4), narrow = Fresh(4, 4);
  PrefillIndicesArgs args = {.ratio = 4,
                             .window = 4,
                             .rows_per_request = 32,
                             .compressed_rows = 8,
                             .query_start_loc = starts.device(),
                             .seq_lens = lens.device(),
                             .topk = topk.device(),
                             .indices = indices.device(),
                             .lens = counts.device()};
  EXPECT_EQ(FlagsOf(CudaCombinePrefillIndices, args), 0u);
  EXPECT_THAT(indices.Fetch(), ElementsAre(32, 40, 41, 42, 43, -1,  //
                                           32, 33, 41, 42, 43, 44,  //
                                           32, 33, 42, 43, 44, 45,  //
                                           -1, -1, -1, -1, -1, -1));
  EXPECT_THAT(counts.Fetch(), ElementsAre(5, 6, 6, 0));
  // A row that the compressed region has not.
  topk.values[3] = 8;
  args.topk = topk.device();
  EXPECT_EQ(FlagsOf(CudaCombinePrefillIndices, args), kBadIndex);
  EXPECT_THAT(indices.Fetch(), ElementsAre(32, 40, 41, 42, 43, -1,  //
                                           32, -1, 41, 42, 43, 44,  //
                                           32, 33, 42, 43, 44, 45,  //
                                           -1, -1, -1, -1, -1, -1));
  // Six tokens are gathered into a buffer of five.
  topk.values[3] = 1;
  args.topk = topk.device();
  args.rows_per_request = 13;
  EXPECT_EQ(FlagsOf(CudaCombinePrefillIndices, args), kLengthClamped);
  EXPECT_THAT(indices.Fetch(), ElementsAre(13, 21, 22, 23, 24, -1,  //
                                           13, 14, 22, 23, 24, 25,  //
                                           13, 14, 23, 24, 25, -1,  //
                                           -1, -1, -1, -1, -1, -1));
  EXPECT_THAT(counts.Fetch(), ElementsAre(5, 6, 5, 0));
  // A layer with a window only.
  args = {.window = 4,
          .rows_per_request = 32,
          .query_start_loc = starts.device(),
          .seq_lens = lens.device(),
          .indices = narrow.device(),
          .lens = counts.device()};
  EXPECT_EQ(FlagsOf(CudaCombinePrefillIndices, args), 0u);
  EXPECT_THAT(narrow.Fetch(), ElementsAre(32, 33, 34, 35, 33, 34, 35, 36, 34, 35, 36, 37,  //
                                          -1, -1, -1, -1));
}

// --- What the device alone can see ---

TEST(CudaIndexOpsTest, BadPositionsAndBlocksGetNoSlot) {
  Ints starts({0, 3, 5}), positions({-1, 5, 8, 0, 4}), table({3, 4, 5, -1}, 2);
  Longs slots = FreshSlots(6);
  SlotMappingArgs args = {.query_start_loc = starts.device(),
                          .positions = positions.device(),
                          .block_table = table.device(),
                          .block_size = 4,
                          .num_blocks = 5,
                          .slot_mapping = slots.device()};
  EXPECT_EQ(FlagsOf(CudaComputeSlotMapping, args), kLengthClamped | kBadBlock);
  EXPECT_THAT(slots.Fetch(), ElementsAre(-1, 17, -1, -1, -1, -1));
  // More tokens than positions, and a count below zero.
  starts.values = {0, 1, 9};
  args.query_start_loc = starts.device();
  args.positions = *args.positions.Slice(0, 1, 2);
  EXPECT_EQ(FlagsOf(CudaComputeSlotMapping, args), kLengthClamped);
  EXPECT_THAT(slots.Fetch(), ElementsAre(17, -1, -1, -1, -1, -1));
  starts.values = {0, 1, -9};
  args.query_start_loc = starts.device();
  EXPECT_EQ(FlagsOf(CudaComputeSlotMapping, args), kLengthClamped);
  EXPECT_THAT(slots.Fetch(), Each(-1));

  Ints indices = Fresh(2, 3), lens = Fresh(3);
  starts.values = {0, 1, 2};
  positions.values = {-5, 2, 0, 0, 0};
  const DenseCompressedIndicesArgs dense = {.ratio = 2,
                                            .query_start_loc = starts.device(),
                                            .positions = positions.device(),
                                            .indices = indices.device(),
                                            .lens = lens.device()};
  EXPECT_EQ(FlagsOf(CudaBuildDenseCompressedIndices, dense), kLengthClamped);
  EXPECT_THAT(indices.Fetch(), ElementsAre(-1, -1, -1, 0, -1, -1));
  EXPECT_THAT(lens.Fetch(), ElementsAre(0, 1, 0));
}

TEST(CudaIndexOpsTest, ShapesAndDevicesAreCheckedAsOnTheHost) {
  Ints starts({0, 1}), lens({3}), table({1, 2}, 1), indices = Fresh(1, 4), counts = Fresh(1);
  const WindowIndicesArgs good = {.window = 4,
                                  .query_start_loc = starts.device(),
                                  .seq_lens = lens.device(),
                                  .block_table = table.device(),
                                  .block_size = 2,
                                  .num_blocks = 10,
                                  .indices = indices.device(),
                                  .lens = counts.device()};
  ExecContext context;
  context.device = kDevice;
  const auto refuse = [&](auto change, const std::string& words) {
    WindowIndicesArgs args = good;
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
  EXPECT_THAT(indices.Fetch(), Each(77));
}

// --- Random batches ---

// Requests with distinct blocks, some without tokens, and padding behind them.
struct IndexBatch {
  int64_t block_size, columns, num_padded;
  std::vector<int32_t> starts = {0}, lens, positions, table;

  IndexBatch(std::mt19937_64& random, int64_t num_requests) {
    const auto draw = [&](int64_t low, int64_t high) {
      return std::uniform_int_distribution<int64_t>(low, high)(random);
    };
    block_size = draw(1, 5);
    columns = (40 + block_size - 1) / block_size + draw(0, 2);
    int32_t next = 0;
    for (int64_t b = 0; b < num_requests; ++b) {
      const int64_t length = draw(0, 40);
      const int64_t most =
          num_requests > 8 || draw(0, 3) > 0 ? std::min<int64_t>(2, length) : length;
      const int64_t query_len = draw(0, most);
      starts.push_back(starts.back() + static_cast<int32_t>(query_len));
      lens.push_back(static_cast<int32_t>(length));
      for (int64_t p = length - query_len; p < length; ++p) {
        positions.push_back(static_cast<int32_t>(p));
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
    const auto draw = [&](int64_t low, int64_t high) {
      return std::uniform_int_distribution<int64_t>(low, high)(random);
    };
    Ints starts(batch.starts), lens(batch.lens), positions(batch.positions);
    Ints table(batch.table, num_requests);
    const int64_t ratio = draw(1, 5), capacity = draw(1, 40), window = draw(1, 70);

    const auto on_device = [&](auto& args) {
      args.query_start_loc = starts.device();
      if constexpr (requires { args.positions; }) args.positions = positions.device();
      if constexpr (requires { args.seq_lens; }) args.seq_lens = lens.device();
      if constexpr (requires { args.block_table; }) args.block_table = table.device();
    };
    const auto on_host = [&](auto args) {
      args.query_start_loc = starts.host();
      if constexpr (requires { args.positions; }) args.positions = positions.host();
      if constexpr (requires { args.seq_lens; }) args.seq_lens = lens.host();
      if constexpr (requires { args.block_table; }) args.block_table = table.host();
      if constexpr (requires { args.block_size; }) args.block_size = batch.block_size;
      if constexpr (requires { args.num_blocks; }) args.num_blocks = 100'003;
      return args;
    };
    const auto compare_slots = [&](auto host, auto cuda, auto args) {
      Longs expected = FreshSlots(rows), actual = FreshSlots(rows);
      args = on_host(args);
      args.slot_mapping = expected.host();
      ExpectOk(host(args));
      on_device(args);
      args.slot_mapping = actual.device();
      EXPECT_EQ(FlagsOf(cuda, args), 0u);
      EXPECT_EQ(actual.Fetch(), expected.values);
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

    const auto compare_lists = [&](auto host, auto cuda, auto args, int64_t width,
                                   Ints* topk = nullptr) {
      Ints expected = Fresh(rows, width), expected_lens = Fresh(rows + 1);
      Ints actual = Fresh(rows, width), actual_lens = Fresh(rows + 1);
      args = on_host(args);
      args.indices = expected.host();
      args.lens = expected_lens.host();
      if constexpr (requires { args.topk; }) args.topk = topk->host();
      ExpectOk(host(args));
      on_device(args);
      if constexpr (requires { args.topk; }) args.topk = topk->device();
      args.indices = actual.device();
      args.lens = actual_lens.device();
      EXPECT_EQ(FlagsOf(cuda, args), 0u);
      EXPECT_EQ(actual.Fetch(), expected.values);
      EXPECT_EQ(actual_lens.Fetch(), expected_lens.values);
      return expected.values;
    };
    compare_lists(BuildSwaIndices, CudaBuildSwaIndices, WindowIndicesArgs{.window = window},
                  window);
    // Sink rows come before all queries, and slots are those of the rows behind them.
    int64_t sink_rows = draw(0, 9);
    for (int64_t b = 0; b < num_requests; ++b) {
      const int64_t query_len = batch.starts[b + 1] - batch.starts[b];
      if (query_len > 0) sink_rows = std::min<int64_t>(sink_rows, batch.lens[b] - query_len);
    }
    compare_lists(BuildSwaIndices, CudaBuildSwaIndices,
                  WindowIndicesArgs{.window = window, .sink_rows = sink_rows}, sink_rows + window);
    std::vector<int32_t> own_positions = batch.positions;
    for (int32_t& position : own_positions) position -= static_cast<int32_t>(sink_rows);
    std::swap(positions.values, own_positions);
    compare_slots(ComputeSlotMapping, CudaComputeSlotMapping,
                  SlotMappingArgs{.null_blocks = {7, 3}, .sink_rows = sink_rows});
    std::swap(positions.values, own_positions);
    const std::vector<int32_t> dense =
        compare_lists(BuildDenseCompressedIndices, CudaBuildDenseCompressedIndices,
                      DenseCompressedIndicesArgs{.ratio = ratio}, capacity);
    Ints list(dense, rows);
    compare_lists(CombinePrefillIndices, CudaCombinePrefillIndices,
                  PrefillIndicesArgs{.ratio = ratio,
                                     .window = window,
                                     .rows_per_request = 40 / ratio + 80,
                                     .compressed_rows = 40 / ratio},
                  capacity + window, &list);

    Ints slots = Fresh(rows, capacity), counts = Fresh(rows);
    TopkSlotsArgs topk = on_host(TopkSlotsArgs{});
    topk.indices = list.host();
    topk.slots = slots.host();
    topk.counts = counts.host();
    ExpectOk(BuildTopkSlots(topk));
    Ints actual_counts = Fresh(rows);
    on_device(topk);
    topk.indices = topk.slots = list.device();
    topk.counts = actual_counts.device();
    EXPECT_EQ(FlagsOf(CudaBuildTopkSlots, topk), 0u);
    EXPECT_EQ(list.Fetch(), slots.values);
    EXPECT_EQ(actual_counts.Fetch(), counts.values);
  }
}

// --- Input tokens ---

// A batch of requests, some of which the last step sampled, with drafts or without.
TEST(CudaIndexOpsTest, RandomStepsGetTheInputTokensOfTheHost) {
  std::mt19937_64 random(7);
  const auto draw = [&](int64_t low, int64_t high) {
    return static_cast<int32_t>(std::uniform_int_distribution<int64_t>(low, high)(random));
  };
  for (int round = 0; round < 60; ++round) {
    SCOPED_TRACE(round);
    const int64_t max_len = 30, table_rows = draw(1, 6), num_drafts = draw(0, 4);
    const int32_t num_requests = round % 10 == 0 ? 0 : draw(1, round % 7 == 0 ? 600 : 6);
    const int64_t last_rows = draw(1, 5);
    const auto ids_of = [&](int64_t rows, int64_t width) {
      std::vector<int32_t> ids(static_cast<size_t>(rows * width));
      for (int32_t& id : ids) id = draw(1000, 1 << 20);
      return Values<int32_t>(std::move(ids), rows);
    };
    Ints token_ids = ids_of(table_rows, max_len), sampled = ids_of(last_rows, draw(1, 3));
    Ints drafts = ids_of(last_rows, num_drafts);
    std::vector<int32_t> starts = {0}, logits_starts = {0}, rows, computed, last;
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
    const int32_t num_padded = draw(0, 2);
    for (int32_t b = 0; b < num_padded; ++b) {
      starts.push_back(starts.back());
      logits_starts.push_back(logits_starts.back());
      for (auto* list : {&rows, &computed, &last}) list->push_back(0);
    }
    const int32_t num_logits = logits_starts.back(), num_tokens = starts.back();
    Ints starts_values(starts), logits_values(logits_starts), rows_values(rows);
    Ints computed_values(computed), last_values(last);
    const bool wide = draw(0, 1) == 1, with_last = draw(0, 3) > 0, with_drafts = draw(0, 1) == 1;
    const int64_t num_ids = num_tokens + draw(0, 3);
    Longs wide_ids = FreshSlots(num_ids), wide_expected = FreshSlots(num_ids);
    Ints ids = Fresh(num_ids), expected_ids = Fresh(num_ids);
    Ints positions = Fresh(num_tokens + draw(0, 3)), indices = Fresh(num_logits + draw(0, 3));
    Ints expected_positions = Fresh(static_cast<int64_t>(positions.values.size()));
    Ints expected_indices = Fresh(static_cast<int64_t>(indices.values.size()));
    const auto args_of = [&](auto side, TensorView to, Ints& at, Ints& logits) {
      InputTokensArgs args = {.query_start_loc = side(starts_values),
                              .request_rows = side(rows_values),
                              .num_computed = side(computed_values),
                              .token_ids = side(token_ids),
                              .input_ids = to,
                              .positions = side(at),
                              .logits_indices = side(logits)};
      if (with_logits) args.logits_start_loc = side(logits_values);
      if (with_last) args.last_rows = side(last_values), args.sampled = side(sampled);
      if (with_last && with_drafts) args.drafts = side(drafts);
      return args;
    };
    ExpectOk(GatherInputTokens(args_of([](auto& v) { return v.host(); },
                                        wide ? wide_expected.host() : expected_ids.host(),
                                        expected_positions, expected_indices)));
    EXPECT_EQ(FlagsOf(CudaGatherInputTokens,
                      args_of([](auto& v) { return v.device(); },
                              wide ? wide_ids.device() : ids.device(), positions, indices)),
              0u);
    if (wide) {
      EXPECT_EQ(wide_ids.Fetch(), wide_expected.values);
    } else {
      EXPECT_EQ(ids.Fetch(), expected_ids.values);
    }
    EXPECT_EQ(positions.Fetch(), expected_positions.values);
    EXPECT_EQ(indices.Fetch(), expected_indices.values);
  }
}

TEST(CudaIndexOpsTest, BadRowsPositionsAndDraftsGiveTokenZero) {
  Ints starts({0, 1, 2, 3, 6}), rows({0, 5, 0, 0}), computed({0, 0, 4, 0}), last({-1, -1, -1, 0});
  Ints token_ids({11, 12, 13, 14}, 1), logits({0, 1, 1, 1, 4}), sampled({50}, 1), drafts({60}, 1);
  Ints ids = Fresh(6), indices = Fresh(5);
  InputTokensArgs args = {.query_start_loc = starts.device(),
                          .request_rows = rows.device(),
                          .num_computed = computed.device(),
                          .token_ids = token_ids.device(),
                          .logits_start_loc = logits.device(),
                          .last_rows = last.device(),
                          .sampled = sampled.device(),
                          .drafts = drafts.device(),
                          .input_ids = ids.device(),
                          .logits_indices = indices.device()};
  EXPECT_EQ(FlagsOf(CudaGatherInputTokens, args), kBadIndex | kLengthClamped);
  EXPECT_THAT(ids.Fetch(), ElementsAre(11, 0, 0, 50, 60, 0));
  EXPECT_THAT(indices.Fetch(), ElementsAre(0, 3, 4, 5, 5));
  // A row that the last step had not, more rows to sample behind than tokens, too few ids.
  last.values[3] = 1;
  args.last_rows = last.device();
  logits.values = {0, 2, 2, 2, 4};
  args.logits_start_loc = logits.device();
  EXPECT_EQ(FlagsOf(CudaGatherInputTokens, args), kBadIndex | kLengthClamped);
  EXPECT_THAT(ids.Fetch(), ElementsAre(11, 0, 0, 11, 0, 0));
  EXPECT_THAT(indices.Fetch(), ElementsAre(0, 0, 4, 5, 5));
  args.input_ids.extent[0] = 4;
  args.logits_start_loc = {};
  EXPECT_EQ(FlagsOf(CudaGatherInputTokens, args) & kLengthClamped, kLengthClamped);
}

}  // namespace
}  // namespace kvblocks::attention::cuda
