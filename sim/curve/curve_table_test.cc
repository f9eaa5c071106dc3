#include "sim/curve/curve_table.h"

#include <string>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_split.h"
#include "absl/strings/string_view.h"
#include "gtest/gtest.h"

namespace kvblocks::sim {
namespace {

namespace pb = ::kvblocks::report::v1;

pb::CurveReport MakeReport() {
  pb::CurveReport report;
  report.set_trace("t");
  report.set_mode("order");
  report.set_counted_blocks("engine");
  report.set_block_tokens(16);
  report.set_block_bytes(1 << 20);
  report.set_model("m");
  report.set_device("d");
  report.set_tensor_parallel(2);
  report.set_device_blocks(1'000);
  report.set_prompt_tokens(160'000);
  report.set_prompt_blocks(10'000);
  report.set_possible_hits(5'000);
  report.set_possible_hit_tokens(80'000);
  report.set_smallest_pool(100);
  report.set_full_pool(4'096);
  for (const auto& [share, num_blocks] : std::vector<std::pair<double, int64_t>>{
           {0.5, 100}, {0.9, 1'024}, {0.95, 2'048}, {0.99, 3'000}, {1.0, 4'096}}) {
    pb::CurveAnswer* answer = report.add_answers();
    answer->set_share_of_possible(share);
    answer->set_num_blocks(num_blocks);
    answer->set_tokens(16 * num_blocks);
    answer->set_gib(static_cast<double>(num_blocks) / 1024);
    answer->set_devices(static_cast<double>(num_blocks) / 1'000);
  }
  for (const int64_t num_blocks : {50, 1'000, 2'000}) {
    pb::CurvePoint* point = report.add_points();
    point->set_num_blocks(num_blocks);
    point->set_hits(2 * num_blocks);
    point->set_hit_rate(static_cast<double>(num_blocks) / 5'000);
    point->set_is_row(num_blocks != 2'000);
    point->set_too_small_for_some(num_blocks < 100);
    if (num_blocks == 1'000) point->set_label("<- device");
  }
  return report;
}

std::string Sentences(pb::CurveReport report) {
  AddSentences(&report);
  return absl::StrJoin(report.sentences(), "\n");
}

TEST(CurveTableTest, AnswersSayBlocksTokensBytesAndDevices) {
  const std::string text = Sentences(MakeReport());
  EXPECT_TRUE(absl::StrContains(text,
                                "90 % of the possible hits need 1,024 blocks = 16,384 tokens = "
                                "1 GiB for m on each device: 1.02 times what 2 x d leaves"))
      << text;
  EXPECT_TRUE(absl::StrContains(text, "50 % of the possible hits need no more than the smallest"))
      << text;
  EXPECT_TRUE(absl::StrContains(text,
                                "From 90 % to 95 % costs 1,024 blocks = 1 GiB more, which saves "
                                "4,000 prompt tokens per GiB"))
      << text;
  EXPECT_TRUE(absl::StrContains(text, "The cache of 2 x d (1,000 blocks) hits 20.00 %")) << text;
  EXPECT_TRUE(absl::StrContains(text, "Twice as much memory adds 20.00 points")) << text;
  EXPECT_TRUE(absl::StrContains(text, "at best 2 times less prefill work")) << text;
}

TEST(CurveTableTest, NothingToHitIsSaid) {
  pb::CurveReport report = MakeReport();
  report.set_possible_hits(0);
  EXPECT_EQ(Sentences(report), "No cache of any size could hit a block of this workload.");
}

TEST(CurveTableTest, APoolOffTheCurveHasNoSentence) {
  pb::CurveReport report = MakeReport();
  report.mutable_points(1)->set_too_small_for_some(true);
  EXPECT_FALSE(absl::StrContains(Sentences(report), "The cache of"));
}

TEST(CurveTableTest, TableHasTheRowsAlone) {
  const std::string table = FormatCurve(MakeReport(), false);
  EXPECT_TRUE(absl::StrContains(table, "            50 "));
  EXPECT_TRUE(absl::StrContains(table, " *\n"));
  EXPECT_TRUE(absl::StrContains(table, "<- device\n"));
  EXPECT_FALSE(absl::StrContains(table, "         2,000 "));
  EXPECT_FALSE(absl::StrContains(table, "Belady"));
  for (const absl::string_view line : absl::StrSplit(table, '\n')) EXPECT_LE(line.size(), 100u);
}

TEST(CurveTableTest, WhatEndedAReplayIsWrapped) {
  pb::CurveReport report = MakeReport();
  report.add_replays()->set_problem(
      "a long message about a pool that is far too small for a model with many groups and windows");
  const std::string table = FormatCurve(report, false);
  EXPECT_TRUE(absl::StrContains(table, "a long message"));
  for (const absl::string_view line : absl::StrSplit(table, '\n')) EXPECT_LE(line.size(), 100u);
}

TEST(CurveTableTest, CsvHasAllPoints) {
  pb::CurveReport report = MakeReport();
  report.mutable_points(0)->set_static_hits(7);
  const std::string csv = CurveCsv(report);
  const std::vector<std::string> lines = absl::StrSplit(csv, '\n');
  ASSERT_EQ(lines.size(), 5u);
  EXPECT_EQ(lines[3], "2000,0,0,4000,0.4,0,0,0,0,0");
  EXPECT_EQ(lines[1], "50,0,0,100,0.01,0,0,0,7,1");
}

TEST(CurveTableTest, CsvOfReplaysHasThem) {
  pb::CurveReport report;
  report.set_mode("replays");
  pb::CurveReplay* replay = report.add_replays();
  replay->set_num_blocks(10);
  replay->set_hit_tokens(64);
  replay->set_prompt_tokens(128);
  replay->set_hit_rate(0.5);
  replay->set_requests(3);
  replay->set_rejected(1);
  EXPECT_EQ(CurveCsv(report),
            "num_blocks,gib,hit_tokens,prompt_tokens,hit_rate,preemptions,requests,rejected\n"
            "10,0,64,128,0.5,0,3,1\n");
}

}  // namespace
}  // namespace kvblocks::sim
