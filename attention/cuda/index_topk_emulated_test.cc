// IndexTopk's kernels against sums in float64: small integers, whose sums are exact, so that ties
// are many and lists must be the same.

#include <algorithm>
#include <cstdint>
#include <limits>
#include <random>
#include <utility>
#include <vector>

#include "attention/cuda/cuda_call.h"
#include "attention/cuda/enqueue_ops.h"
#include "attention/cuda/kernels/indexer.h"
#include "attention/cuda/kernels/indexer_scores.h"
#include "attention/ops/visit_views.h"
#include "attention/testing/topk_case.h"
#include "gtest/gtest.h"
#include "kvblocks/attention_cuda.h"
#include "kvblocks/device_types.h"

namespace kvblocks::attention::cuda {
namespace {

struct Device {
  int capability = 90, multiprocessors = 132;
  int64_t workspace_bytes = 1 << 20;
};

// Runs the operation and compares lists; returns the flags.
uint32_t FlagsOf(TopkCase& topk, const Device& device) {
  struct alignas(16) Sixteen {
    uint32_t words[4] = {~0u, ~0u, ~0u, ~0u};
  };
  std::vector<Sixteen> memory(device.workspace_bytes / 16);
  uint32_t flags = 0;
  LaunchContext launch;
  launch.error_flags = &flags;
  launch.compute_capability = device.capability;
  launch.num_multiprocessors = device.multiprocessors;
  launch.workspace = reinterpret_cast<unsigned char*>(memory.data());
  launch.workspace_bytes = memory.size() * 16;
  CudaCall call("IndexTopk", launch);
  // As on a GPU, where the host sees no values.
  ExecContext context;
  context.device = {DeviceKind::kCuda, 0};
  IndexTopkArgs args = topk.Args();
  VisitViews(args, [&](auto& view) { view.device = context.device; });
  const auto checked = Cuda().Check(context, args);
  EXPECT_TRUE(checked.ok()) << checked.status();
  if (checked.ok()) {
    EXPECT_EQ(Enqueue(call, *checked), absl::OkStatus());
  }
  topk.ExpectChosen();
  return flags;
}

void ExpectExact(TopkOptions options, const Device& device = {}) {
  SCOPED_TRACE(testing::Message() << options.DebugString() << "; sm_" << device.capability << ", "
                                  << device.multiprocessors << " multiprocessors, "
                                  << device.workspace_bytes << " bytes");
  options.seed = static_cast<uint64_t>(options.width);
  TopkCase topk(options);
  EXPECT_EQ(FlagsOf(topk, device), 0u);
}

// Once with mma.sync, once with wgmma.
void ExpectExactByBoth(const TopkOptions& options, Device device = {}) {
  for (const int capability : {80, 90}) {
    device.capability = capability;
    ExpectExact(options, device);
  }
}

TEST(IndexTopkEmulatedTest, TensorCoresScoreEveryTypeAndShape) {
  ExpectExactByBoth({});
  ExpectExactByBoth({.lengths = {517, 3, 130}, .q_lens = {1, 1, 1}, .block_size = 64, .heads = 5});
  ExpectExactByBoth({.q = DType::kBF16, .spread = 1});
  ExpectExactByBoth({.q = DType::kF16});
  ExpectExactByBoth({.q = DType::kF16, .cache = DType::kF16});
  ExpectExactByBoth({.block_size = 3, .q = DType::kBF16, .cache = DType::kBF16});
  ExpectExactByBoth({.q = DType::kF8E4M3, .cache = DType::kBF16});
  ExpectExactByBoth({.lengths = {1300}, .width = 5, .ratio = 4, .as_slots = false});
  ExpectExactByBoth({.lengths = {300}, .width = 300});  // all
  ExpectExactByBoth({.lengths = {300}, .width = 299});
}

// Tokens of a block share keys; blocks hold tokens of several requests, and padding.
TEST(IndexTopkEmulatedTest, TokensOfARequestShareKeys) {
  ExpectExactByBoth({.lengths = {290}, .q_lens = {8}, .width = 20});
  ExpectExactByBoth({.lengths = {290}, .q_lens = {2}, .width = 20});
  // The last row that some see is the first of a warpgroup's.
  ExpectExactByBoth({.lengths = {262}, .q_lens = {8}, .width = 20});
  ExpectExactByBoth({.lengths = {131, 521}, .q_lens = {4, 7}, .width = 20, .ratio = 4});
  ExpectExactByBoth({.lengths = {150, 60, 200}, .q_lens = {4, 3, 6}, .padding = 3, .heads = 9});
  ExpectExactByBoth(
      {.lengths = {140, 7, 0, 160}, .q_lens = {5, 7, 0, 11}, .padding = 9, .width = 3, .ratio = 4},
      {.multiprocessors = 1});
}

TEST(IndexTopkEmulatedTest, OtherShapesAreScoredPortably) {
  ExpectExact({.lengths = {200}, .heads = 65});
  ExpectExact({.lengths = {200, 40}, .q_lens = {3, 2}, .heads = 3, .dim = 64});
  ExpectExact({.lengths = {600}, .heads = 2, .q = DType::kF32}, {.multiprocessors = 1});
  ExpectExact({.lengths = {100}, .heads = 2, .cache = DType::kF32});
}

// Which kernel takes rows; those of tensor cores tell them by 32 bits in units of 16 bytes.
TEST(IndexTopkEmulatedTest, CachesOf64GiBAreScoredPortably) {
  alignas(16) unsigned char data[16] = {};
  IndexTopkParams good;
  good.q = {data, 64 * 128, 128, DType::kF8E4M3};
  good.heads = 64;
  good.rows.data = data, good.rows.dim = 128;
  good.rows.planar = true, good.rows.block_size = 64, good.rows.block_stride = 64 * 132;
  good.rows.num_blocks = (int64_t{1} << 36) / (64 * 132);
  EXPECT_TRUE(TakesIndexScores(good));
  const auto takes = [&](const auto& change) {
    IndexTopkParams params = good;
    change(params);
    return TakesIndexScores(params);
  };
  EXPECT_FALSE(takes([](auto& p) { ++p.rows.num_blocks; }));
  EXPECT_FALSE(takes([](auto& p) { p.rows.block_stride = -64 * 132; }));
  EXPECT_FALSE(takes([](auto& p) { p.rows.block_stride += 4; }));
  EXPECT_FALSE(takes([](auto& p) { p.rows.dim = 64; }));
  EXPECT_FALSE(takes([](auto& p) { p.heads = 65; }));
  EXPECT_FALSE(takes([](auto& p) { p.q.element = DType::kF32; }));
  const auto plain = [](auto& p) {
    p.rows.planar = false, p.rows.element = p.q.element = DType::kBF16;
    p.rows.row_stride = 128, p.rows.block_stride = 64 * 128, p.rows.num_blocks = 1000;
  };
  EXPECT_TRUE(takes([&](auto& p) { plain(p); }));
  EXPECT_FALSE(takes([&](auto& p) {
    plain(p);
    p.rows.row_stride = int64_t{1} << 30;  // rows of 64 blocks in turn
  }));
}

// As many tokens at a time as there is room for.
TEST(IndexTopkEmulatedTest, ASmallWorkspaceTakesMoreLaunches) {
  ExpectExact({.lengths = {150, 130}, .q_lens = {7, 6}, .heads = 8}, {.workspace_bytes = 152 * 4});
  ExpectExact({.lengths = {150, 130}, .q_lens = {7, 6}, .heads = 8}, {.workspace_bytes = 152 * 12});
  ExpectExactByBoth({.lengths = {150}, .q_lens = {20}, .heads = 8},
                    {.workspace_bytes = 152 * 4 * 11});
}

// Blocks of a cluster select together, and without clusters one does.
TEST(IndexTopkEmulatedTest, LongListsAreSelectedByClusters) {
  for (const int capability : {80, 90}) {
    for (const int64_t width : {1, 2048}) {
      for (const int spread : {1, 4}) {
        ExpectExact({.lengths = {33'003},
                     .block_size = 64,
                     .heads = 1,
                     .dim = 4,
                     .width = width,
                     .q = DType::kF32,
                     .spread = spread},
                    {.capability = capability});
      }
    }
  }
  ExpectExact({.lengths = {16'400, 70, 16'390},
               .q_lens = {1, 1, 1},
               .block_size = 64,
               .heads = 1,
               .dim = 4,
               .width = 512,
               .q = DType::kF32});
}

// Blocks of few threads where tokens are many, up to the rows that their warps hold, and beyond.
TEST(IndexTopkEmulatedTest, ManyTokensAreSelectedByBlocksOfFewThreads) {
  for (const int64_t length : {1'025, 8'192, 8'193}) {
    for (const int spread : {1, 4}) {
      ExpectExact({.lengths = {length, 600},
                   .q_lens = {2, 1},
                   .block_size = 64,
                   .heads = 3,
                   .dim = 4,
                   .width = 512,
                   .q = DType::kF32,
                   .spread = spread},
                  {.multiprocessors = 2});
    }
  }
}

// Warps hold some of their keys, and load the others again in every pass.
TEST(IndexTopkEmulatedTest, MoreRowsThanWarpsHoldAreSelected) {
  ExpectExact({.lengths = {67'001},
               .block_size = 64,
               .heads = 3,
               .dim = 4,
               .width = 2048,
               .q = DType::kF32,
               .spread = 9},
              {.multiprocessors = 1});
}

TEST(IndexTopkEmulatedTest, WhatIsNotANumberAndBadBlocksComeLast) {
  const std::pair<int64_t, int> cases[] = {{64, 80}, {64, 90}, {65, 90}};
  for (const auto& [heads, capability] : cases) {
    const Device device = {.capability = capability};
    TopkCase topk({.lengths = {200, 90},
                   .q_lens = {2, 1},
                   .heads = heads,
                   .width = heads == 64 ? 60 : 180,
                   .seed = 3});
    topk.SetCode(topk.SlotOf(0, 5), 77, 0x7f);
    topk.SetScale(topk.SlotOf(0, 6), std::numeric_limits<float>::quiet_NaN());
    for (int64_t row = 20; row < 40; ++row) topk.SetScale(topk.SlotOf(0, row), -8);
    topk.weight(2, 3) = std::numeric_limits<float>::quiet_NaN();
    EXPECT_EQ(FlagsOf(topk, device), 0u);
    topk.table(0, 3) = 1000;
    topk.table(0, 4) = std::numeric_limits<int32_t>::min();
    EXPECT_EQ(FlagsOf(topk, device), uint32_t{kBadBlock});
  }
}

// Where keys of other tiles were before.
TEST(IndexTopkEmulatedTest, BadBlocksBehindManyTilesComeLast) {
  for (const int capability : {80, 90}) {
    for (const int64_t block_size : {5, 16}) {
      const TopkOptions options = {.lengths = {1'200},
                                   .q_lens = {2},
                                   .block_size = block_size,
                                   .heads = 9,
                                   .width = 1'170,
                                   .seed = 5};
      SCOPED_TRACE(options.DebugString());
      TopkCase topk(options);
      for (const int64_t row : {0, 300, 790, 1'100}) topk.table(0, row / block_size) = -1;
      EXPECT_EQ(FlagsOf(topk, {.capability = capability, .multiprocessors = 1}),
                uint32_t{kBadBlock});
    }
  }
}

// Where a warp's keys of a tile are of one block, 32 tiles of 384 rows are looked up at a time.
TEST(IndexTopkEmulatedTest, PiecesOfManyTilesAreLookedUpAgain) {
  TopkCase topk({.lengths = {13'000}, .block_size = 64, .heads = 2, .width = 12'900, .seed = 7});
  EXPECT_EQ(FlagsOf(topk, {.multiprocessors = 1}), 0u);
  for (const int64_t row : {12'287, 12'800}) topk.table(0, row / 64) = -1;
  EXPECT_EQ(FlagsOf(topk, {.multiprocessors = 1}), uint32_t{kBadBlock});
}

TEST(IndexTopkEmulatedTest, RandomBatches) {
  std::mt19937_64 random(11);
  const auto draw = [&](int64_t low, int64_t high) { return IntegerDraw(random, low, high); };
  for (int i = 0; i < 40; ++i) {
    TopkOptions options;
    options.lengths = options.q_lens = {};
    const int64_t most_queries = draw(1, 9);
    for (int64_t b = draw(1, 4); b > 0; --b) {
      options.lengths.push_back(draw(0, 280));
      options.q_lens.push_back(draw(0, std::min(most_queries, options.lengths.back())));
    }
    options.padding = draw(0, 2);
    options.block_size = draw(1, 40);
    options.heads = draw(1, 66);
    options.width = draw(1, 100);
    options.ratio = draw(0, 1) == 0 ? 1 : 4;
    const DType types[] = {DType::kF8E4M3, DType::kF16, DType::kBF16};
    options.q = types[draw(0, 2)];
    options.cache = draw(0, 2) > 0 ? DType::kU8 : types[draw(1, 2)];
    options.spread = static_cast<int>(draw(1, 5));
    ExpectExact(options, {.capability = draw(0, 1) == 0 ? 80 : 90,
                          .multiprocessors = static_cast<int>(draw(1, 8)),
                          .workspace_bytes = 1200 * draw(1, 20)});
    if (HasFailure()) return;
  }
}

}  // namespace
}  // namespace kvblocks::attention::cuda
