#include "sim/commands/curve_run.h"

#include <vector>

#include "gtest/gtest.h"

namespace kvblocks::sim {
namespace {

namespace pb = ::kvblocks::report::v1;

pb::CurveReport ReportOf(int64_t smallest, int64_t full, int64_t device) {
  pb::CurveReport report;
  report.set_smallest_pool(smallest);
  report.set_full_pool(full);
  report.set_device_blocks(device);
  report.set_block_tokens(16);
  report.set_block_bytes(1 << 20);
  report.set_prompt_tokens(16'000);
  report.set_prompt_blocks(1'000);
  report.set_possible_hits(500);
  return report;
}

std::vector<int64_t> Rows(const std::vector<CurveSize>& sizes) {
  std::vector<int64_t> rows;
  for (const CurveSize& size : sizes) {
    if (size.is_row) rows.push_back(size.num_blocks);
  }
  return rows;
}

using Numbers = std::vector<int64_t>;

TEST(CurvePointsTest, RowsGoFromTheSmallestPoolToAllHits) {
  CurveOptions options;
  options.num_points = 0;
  const auto sizes = ChooseSizes(options, 0, ReportOf(30, 1'200, 0));
  EXPECT_EQ(Rows(sizes), (Numbers{50, 100, 200, 500, 1'000, 1'200}));
  EXPECT_EQ(sizes.back().label, "<- all hits");
}

TEST(CurvePointsTest, TheDeviceAndTwiceThatAreRowsToo) {
  CurveOptions options;
  options.num_points = 0;
  EXPECT_EQ(Rows(ChooseSizes(options, 77, ReportOf(30, 200, 60))),
            (Numbers{50, 60, 77, 100, 120, 200}));
  // Twice a pool that hits all is no news.
  EXPECT_EQ(Rows(ChooseSizes(options, 0, ReportOf(30, 200, 150))), (Numbers{50, 100, 150, 200}));
}

TEST(CurvePointsTest, GivenSizesAreTheRows) {
  CurveOptions options;
  options.sizes = {500, 20};
  options.num_points = 0;
  EXPECT_EQ(Rows(ChooseSizes(options, 0, ReportOf(30, 1'200, 0))), (Numbers{20, 500}));
}

TEST(CurvePointsTest, FurtherPointsAreEvenByRatio) {
  CurveOptions options;
  options.sizes = {50};
  options.num_points = 3;
  const auto sizes = ChooseSizes(options, 0, ReportOf(10, 1'000, 0));
  Numbers all;
  for (const CurveSize& size : sizes) all.push_back(size.num_blocks);
  EXPECT_EQ(all, (Numbers{10, 50, 100, 1'000}));
  EXPECT_EQ(Rows(sizes), Numbers{50});
}

TEST(CurvePointsTest, PointsHaveRatesAndBytes) {
  pb::CurveReport report = ReportOf(30, 1'200, 0);
  AddPoints({{20, true, ""}, {1'024, true, ""}}, [](int64_t size) { return size / 8; }, &report);
  ASSERT_EQ(report.points_size(), 2);
  EXPECT_TRUE(report.points(0).too_small_for_some());
  const pb::CurvePoint& point = report.points(1);
  EXPECT_FALSE(point.too_small_for_some());
  EXPECT_EQ(point.hits(), 128);
  EXPECT_EQ(point.tokens(), 16'384);
  EXPECT_EQ(point.gib(), 1.0);
  EXPECT_DOUBLE_EQ(point.hit_rate(), 0.128);
  EXPECT_DOUBLE_EQ(point.share_of_possible(), 0.256);
}

TEST(CurvePointsTest, AnswersAreTheSmallestPools) {
  google::protobuf::RepeatedPtrField<pb::CurveAnswer> answers;
  // Each hit needs two blocks more.
  AddAnswers(
      201, 16, 1 << 20, 100, [](int64_t hits) { return 2 * hits; }, &answers);
  ASSERT_EQ(answers.size(), 5);
  EXPECT_EQ(answers[0].num_blocks(), 202);  // 100.5 hits are 101
  EXPECT_EQ(answers[1].num_blocks(), 362);
  EXPECT_EQ(answers[4].num_blocks(), 402);
  EXPECT_DOUBLE_EQ(answers[4].devices(), 4.02);
}

TEST(CurveOptionsTest, WhatSaysNothingIsRefused) {
  ReplayConfig given;
  CurveOptions options;
  EXPECT_TRUE(CheckCurveOptions(options, given).ok());
  given.set_max_num_seqs(3);
  EXPECT_FALSE(CheckCurveOptions(options, given).ok());
  options.mode = "schedule";
  EXPECT_TRUE(CheckCurveOptions(options, given).ok());
  options.block_sizes = {16};
  EXPECT_FALSE(CheckCurveOptions(options, given).ok());
  options.block_sizes.clear();
  options.sample_paths = 0.1;
  EXPECT_FALSE(CheckCurveOptions(options, given).ok());
}

}  // namespace
}  // namespace kvblocks::sim
