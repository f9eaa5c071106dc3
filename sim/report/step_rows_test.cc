#include "kvblocks/sim/report/step_rows.h"

#include <memory>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_split.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "kvblocks/sim/testing/replay.h"

namespace kvblocks::sim {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;

// The rows, header included, without line ends.
std::vector<std::string> Rows(Replay& replay, bool with_requests) {
  std::string text;
  StepFile file(ByteSinkToString(&text), with_requests);
  StepRows rows(&file);
  replay.further_observers = {&rows};
  EXPECT_TRUE(replay.Run().ok());
  EXPECT_TRUE(file.Close().ok());
  std::vector<std::string> lines = absl::StrSplit(text, "\r\n");
  EXPECT_EQ(lines.back(), "") << "the last row has its end, too";
  lines.pop_back();
  return lines;
}

std::string Column(const std::vector<std::string>& rows, size_t row, const std::string& name) {
  const std::vector<std::string> names = absl::StrSplit(rows[0], ',');
  const std::vector<std::string> fields = absl::StrSplit(rows[row], ',');
  EXPECT_EQ(names.size(), fields.size());
  for (size_t i = 0; i < names.size(); ++i) {
    if (names[i] == name) return fields[i];
  }
  ADD_FAILURE() << "no column " << name;
  return "";
}

std::vector<std::string> ColumnOf(const std::vector<std::string>& rows, const std::string& name) {
  std::vector<std::string> values;
  for (size_t i = 1; i < rows.size(); ++i) values.push_back(Column(rows, i, name));
  return values;
}

Replay Small(int64_t num_blocks) {
  Replay replay;
  replay.config.kv_cache.num_blocks = num_blocks;
  replay.Add({.id = "A", .prompt = 7, .output = 3});
  replay.Add({.id = "B", .prompt = 4, .output = 2});
  return replay;
}

TEST(StepRowsTest, OneRowPerStepWithStateAndBlocks) {
  Replay replay = Small(10);
  const std::vector<std::string> rows = Rows(replay, true);
  ASSERT_EQ(rows.size(), 4u);
  EXPECT_EQ(rows[0] + "\r\n", StepFile::Header(true));
  EXPECT_THAT(rows[1], HasSubstr("0,0,1000,11,11,0,2,2,0,6,0,3,0,0:7+1+2 1:4+3,"));
  EXPECT_THAT(rows[2], HasSubstr("1,1000,2000,2,0,2,2,2,0,5,0,1,0,0:1 1:1+4,"));
  EXPECT_THAT(rows[3], HasSubstr("2,2000,3000,1,0,1,1,1,0,"));
  EXPECT_EQ(Column(rows, 1, "digest").size(), 16u);
}

TEST(StepRowsTest, HitTokensAreThoseOfWhoEnters) {
  Replay replay;
  replay.Add({.id = "A", .prompt = 9, .output = 1, .content = {1, 2, 3, 4, 5, 6, 7, 8, 9}});
  replay.Add({.id = "B", .prompt = 9, .output = 2, .at = 2, .content = {1, 2, 3, 4, 5, 6, 7, 8, 9}});
  replay.Add({.id = "C", .prompt = 6, .output = 1, .at = 2, .content = {1, 2, 3, 4, 5, 6}});
  const std::vector<std::string> rows = Rows(replay, false);
  EXPECT_THAT(ColumnOf(rows, "hit_tokens"), ElementsAre("0", "12", "0"));
}

TEST(StepRowsTest, WithoutRequestsTheRestIsTheSame) {
  Replay with = Small(10), without = Small(10);
  const std::vector<std::string> long_rows = Rows(with, true);
  const std::vector<std::string> rows = Rows(without, false);
  ASSERT_EQ(rows.size(), long_rows.size());
  EXPECT_EQ(rows[0] + "\r\n", StepFile::Header(false));
  for (const char* column : {"step", "end_ms", "tokens", "free_blocks", "digest"}) {
    EXPECT_EQ(ColumnOf(rows, column), ColumnOf(long_rows, column)) << column;
  }
}

TEST(StepRowsTest, PreemptionsStandWithTheNextStep) {
  Replay replay;
  replay.config.kv_cache.num_blocks = 6;
  replay.config.scheduler.reserve_full_isl = false;
  replay.Add({.id = "A", .prompt = 8, .output = 9});
  replay.Add({.id = "B", .prompt = 8, .output = 9});
  const std::vector<std::string> rows = Rows(replay, true);
  int64_t preempted = 0;
  std::string requests;
  for (size_t i = 1; i < rows.size(); ++i) {
    const int64_t here = std::stoll(Column(rows, i, "preempted"));
    preempted += here;
    if (here > 0) requests = Column(rows, i, "requests");
  }
  EXPECT_EQ(preempted, replay.result.scheduler.num_preemptions);
  EXPECT_GT(preempted, 0);
  EXPECT_EQ(requests.substr(0, 3), "-1 ");
}

TEST(StepRowsTest, GroupsAreNamed) {
  Replay replay;
  replay.config.kv_cache.groups = {FullGroup(4), WindowGroup(4, 8)};
  replay.Add({.id = "A", .prompt = 4, .output = 1});
  EXPECT_THAT(ColumnOf(Rows(replay, true), "requests"), ElementsAre("0:4+1+2@1"));
}

TEST(StepRowsTest, TokensAddUpToTheTotals) {
  Replay replay = Small(10);
  int64_t tokens = 0;
  const std::vector<std::string> rows = Rows(replay, false);
  for (const std::string& text : ColumnOf(rows, "tokens")) tokens += std::stoll(text);
  EXPECT_EQ(tokens, replay.result.scheduler.num_computed);
  EXPECT_EQ(static_cast<int64_t>(rows.size()) - 1, replay.result.scheduler.num_steps);
}

TEST(StepRowsTest, DigestsAreThoseOfTheSchedule) {
  Replay replay = Small(10), again = Small(10);
  const auto first = ColumnOf(Rows(replay, false), "digest");
  EXPECT_EQ(first, ColumnOf(Rows(again, false), "digest"));
  EXPECT_EQ(std::set<std::string>(first.begin(), first.end()).size(), first.size());

  // Another size of the pool changes the blocks taken from some step on, never before.
  Replay larger = Small(20);
  EXPECT_EQ(ColumnOf(Rows(larger, false), "digest"), first) << "the same blocks, as none is reused";

  // Later arrivals change nothing before them; other times alone change nothing at all.
  Replay later = Small(10);
  later.Add({.id = "C", .prompt = 4, .output = 1, .at = 2});
  const auto changed = ColumnOf(Rows(later, false), "digest");
  EXPECT_EQ(changed[0], first[0]);
  EXPECT_EQ(changed[1], first[1]);
  EXPECT_NE(changed[2], first[2]);
  Replay shifted;
  shifted.config.kv_cache.num_blocks = 10;
  shifted.Add({.id = "A", .prompt = 7, .output = 3, .at = 5});
  shifted.Add({.id = "B", .prompt = 4, .output = 2, .at = 5});
  EXPECT_EQ(ColumnOf(Rows(shifted, false), "digest"), first);
}

class FailingSink final : public ByteSink {
 public:
  absl::Status Write(std::string_view) override { return absl::DataLossError("disk full"); }
  absl::Status Close() override { return absl::OkStatus(); }
};

TEST(StepRowsTest, ErrorsOfTheFileAreReportedByClose) {
  StepFile file(std::make_unique<FailingSink>(), false);
  EXPECT_EQ(file.Close().message(), "disk full");
}

TEST(StepRowsTest, RowsOfSeveralReplicasSayWhose) {
  std::string text;
  StepFile file(ByteSinkToString(&text), /*with_requests=*/false, /*has_replicas=*/true);
  StepRows first(&file, "0"), second(&file, "1");
  Replay replay = Small(10);
  replay.further_observers = {&first, &second};
  EXPECT_TRUE(replay.Run().ok());
  EXPECT_TRUE(file.Close().ok());
  std::vector<std::string> lines = absl::StrSplit(text, "\r\n", absl::SkipEmpty());
  const std::vector<std::string> replicas = ColumnOf(lines, "replica");
  ASSERT_GT(replicas.size(), 2u);
  for (size_t i = 0; i < replicas.size(); ++i) EXPECT_EQ(replicas[i], i % 2 == 0 ? "0" : "1");
  EXPECT_EQ(first.digest(), second.digest()) << "each replica has a digest of its own";
}

}  // namespace
}  // namespace kvblocks::sim
