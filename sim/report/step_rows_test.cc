#include "sim/report/step_rows.h"

#include <memory>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_split.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "sim/simulation_config.h"
#include "sim/testing/message_fields.h"
#include "sim/testing/replay.h"
#include "sim/trace/byte_sink.h"

namespace kvblocks::sim {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;

namespace pb = ::kvblocks::report::v1;

// --- Step rows ---

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
  replay.Add(
      {.id = "B", .prompt = 9, .output = 2, .at = 2, .content = {1, 2, 3, 4, 5, 6, 7, 8, 9}});
  replay.Add({.id = "C", .prompt = 6, .output = 1, .at = 2, .content = {1, 2, 3, 4, 5, 6}});
  const std::vector<std::string> rows = Rows(replay, false);
  EXPECT_THAT(ColumnOf(rows, "hit_tokens"), ElementsAre("0", "12", "0"));
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

// --- Step comparison ---

absl::StatusOr<pb::ScheduleComparison> TryCompare(std::string a, std::string b) {
  const auto reader_a = StepReader::Create(ByteSourceOfString(std::move(a)), "a.csv");
  const auto reader_b = StepReader::Create(ByteSourceOfString(std::move(b)), "b.csv");
  if (!reader_a.ok()) return reader_a.status();
  if (!reader_b.ok()) return reader_b.status();
  return CompareSteps(**reader_a, **reader_b);
}

pb::ScheduleComparison Compare(std::string a, std::string b) {
  const auto comparison = TryCompare(std::move(a), std::move(b));
  EXPECT_TRUE(comparison.ok()) << comparison.status();
  return comparison.ok() ? *comparison : pb::ScheduleComparison();
}

std::string Header(const std::string& columns) { return "step," + columns + ",digest\r\n"; }

std::string RowOf(int step, const std::string& fields, char digest) {
  return std::to_string(step) + "," + fields + "," + std::string(16, digest) + "\r\n";
}

const pb::StepDifference::Column* FindRow(const pb::StepDifference& difference,
                                       const std::string& name) {
  for (const auto& column : difference.columns()) {
    if (column.name() == name) return &column;
  }
  return nullptr;
}

TEST(StepComparisonTest, EqualFilesAreTheSame) {
  const std::string text = Header("end_ms,running") + RowOf(0, "1,2", 'a') + RowOf(1, "3,2", 'b');
  const auto comparison = Compare(text, text);
  EXPECT_FIELDS(comparison,
                "same true, equal_steps 2, first_divergence none, first_difference none, a a.csv");
  const auto empty = Compare(Header("x"), Header("x"));
  EXPECT_FIELDS(empty, "same true, equal_steps 0");
}

TEST(StepComparisonTest, SchedulesPartWhereTheDigestsDo) {
  const auto comparison = Compare(
      Header("end_ms,running") + RowOf(0, "1,2", 'a') + RowOf(1, "3,2", 'b') + RowOf(2, "4,2", 'c'),
      Header("end_ms,running") + RowOf(0, "1,2", 'a') + RowOf(1, "3,5", 'd') +
          RowOf(2, "4,2", 'c'));
  EXPECT_FIELDS(comparison, "same false, equal_steps 1");
  const auto& divergence = comparison.first_divergence();
  EXPECT_FIELDS(divergence, "step 1, line_a 3, line_b 3");
  EXPECT_FALSE(FindRow(divergence, "end_ms")->differs());
  EXPECT_TRUE(FindRow(divergence, "running")->differs());
  EXPECT_EQ(FindRow(divergence, "running")->a(), "2");
  EXPECT_EQ(FindRow(divergence, "running")->b(), "5");
  EXPECT_FALSE(comparison.has_first_difference());
}

TEST(StepComparisonTest, TimesAloneDoNotMakeSchedulesPart) {
  const auto comparison = Compare(Header("end_ms") + RowOf(0, "1", 'a') + RowOf(1, "3", 'b'),
                                  Header("end_ms") + RowOf(0, "1", 'a') + RowOf(1, "4", 'b'));
  EXPECT_FIELDS(comparison, "same true, first_difference.step 1");
  EXPECT_TRUE(FindRow(comparison.first_difference(), "end_ms")->differs());
  EXPECT_FALSE(FindRow(comparison.first_difference(), "digest")->differs());
}

TEST(StepComparisonTest, AFileThatEndsFirstHasNoState) {
  const std::string one = Header("x") + RowOf(0, "1", 'a');
  for (const bool a_is_shorter : {true, false}) {
    const std::string two = one + RowOf(1, "7", 'b');
    const auto comparison = a_is_shorter ? Compare(one, two) : Compare(two, one);
    EXPECT_FALSE(comparison.same());
    const auto& divergence = comparison.first_divergence();
    EXPECT_EQ(divergence.step(), 1);
    EXPECT_EQ(divergence.line_a(), a_is_shorter ? 0 : 3);
    EXPECT_EQ(divergence.line_b(), a_is_shorter ? 3 : 0);
    EXPECT_EQ(FindRow(divergence, "x")->has_a(), !a_is_shorter);
    EXPECT_EQ(FindRow(divergence, "x")->has_b(), a_is_shorter);
    EXPECT_TRUE(FindRow(divergence, "x")->differs());
  }
}

TEST(StepComparisonTest, AStepThatIsMissingIsADivergence) {
  const auto comparison = Compare(Header("x") + RowOf(0, "1", 'a') + RowOf(1, "1", 'b'),
                                  Header("x") + RowOf(0, "1", 'a') + RowOf(2, "1", 'b'));
  EXPECT_FALSE(comparison.same());
  EXPECT_TRUE(FindRow(comparison.first_divergence(), "step")->differs());
}

TEST(StepComparisonTest, ColumnsOfOneFileAreNamedAndLeftOut) {
  const auto comparison =
      Compare(Header("x,only_here") + RowOf(0, "1,2", 'a'),
              Header("new_one,x") + RowOf(0, "9,1", 'a'));
  EXPECT_FIELDS(comparison, "same true, first_difference none");
  EXPECT_THAT(comparison.only_in_a(), ElementsAre("only_here"));
  EXPECT_THAT(comparison.only_in_b(), ElementsAre("new_one"));
}

TEST(StepComparisonTest, RequestsThatDifferAreListed) {
  const auto comparison = Compare(Header("requests") + RowOf(0, "-9 1:5+1+2 2:1 3:4 x", 'a'),
                                  Header("requests") + RowOf(0, "1:5+1+3 2:1 9:7+4 4:1 x", 'b'));
  const auto& divergence = comparison.first_divergence();
  EXPECT_EQ(FindRow(divergence, "requests"), nullptr);
  EXPECT_EQ(divergence.requests_differ(), 4);
  ASSERT_EQ(divergence.requests_size(), 4);
  EXPECT_FIELDS(divergence.requests(0), "row 9, a preempted, b 7+4");
  EXPECT_FIELDS(divergence.requests(1), "a 5+1+2, b 5+1+3");
  EXPECT_FIELDS(divergence.requests(2), "row 3, b none");
  EXPECT_FIELDS(divergence.requests(3), "row 4, a none");
}

TEST(StepComparisonTest, ManyRequestsAreCountedAndSomeListed) {
  std::string a, b;
  for (int i = 0; i < 100; ++i) {
    a += std::to_string(i) + ":1 ";
    b += std::to_string(i) + ":2 ";
  }
  const auto divergence =
      Compare(Header("requests") + RowOf(0, a, 'a'), Header("requests") + RowOf(0, b, 'b'))
          .first_divergence();
  EXPECT_EQ(divergence.requests_differ(), 100);
  EXPECT_EQ(divergence.requests_size(), 20);
}

TEST(StepComparisonTest, BadRowsAreErrors) {
  const std::string good = Header("x") + RowOf(0, "1", 'a');
  EXPECT_FALSE(TryCompare(good + "1,2", good).ok());
  EXPECT_FALSE(TryCompare(good, good + "1,2").ok());
}

// --- Real runs ---

std::string StepsOf(int64_t num_blocks, bool with_requests = true) {
  Replay replay;
  replay.config.scheduler.async = true;
  replay.config.kv_cache.num_blocks = num_blocks;
  // Each prompt shares its beginning with the one two before it, and the pool cannot hold them all.
  for (int i = 0; i < 12; ++i) {
    std::vector<int64_t> content;
    for (int k = 0; k < 14; ++k) content.push_back(k < 9 ? (i % 2) * 100 + k : i * 1000 + k);
    replay.Add(
        {.id = std::to_string(i), .prompt = 15, .output = 7, .at = i * 2.0, .content = content});
  }
  std::string text;
  StepFile file(ByteSinkToString(&text), with_requests);
  StepRows rows(&file);
  replay.further_observers = {&rows};
  EXPECT_TRUE(replay.Run().ok());
  EXPECT_TRUE(file.Close().ok());
  return text;
}

TEST(StepComparisonTest, TheSameConfigurationSchedulesAlike) {
  EXPECT_TRUE(Compare(StepsOf(20), StepsOf(20)).same());
  EXPECT_TRUE(Compare(StepsOf(20), StepsOf(20, false)).same());
}

TEST(StepComparisonTest, OrderBetweenReplicasIsNoDifference) {
  const std::string header = "step,end_ms,replica,digest\r\n";
  const std::string zero = "0,1,0,0000000000000001\r\n", one = "0,2,1,0000000000000002\r\n",
                    more = "1,3,0,0000000000000003\r\n", other = "1,3,0,0000000000000004\r\n";
  EXPECT_TRUE(Compare(header + zero + one + more, header + zero + more + one).same());
  EXPECT_TRUE(Compare(header + zero + one + more, header + one + zero + more).same());
  const auto parts = Compare(header + zero + one + more, header + one + zero + other);
  EXPECT_FIELDS(parts, "same false, equal_steps 2, first_divergence.step 1");
  const auto shorter = Compare(header + zero + one, header + one + zero + more);
  EXPECT_FIELDS(shorter, "same false, first_divergence.step 1");
  EXPECT_FALSE(Compare(header + zero + one, header + zero).same());
}

TEST(StepComparisonTest, ASmallerPoolPartsAtALaterStep) {
  const auto comparison = Compare(StepsOf(40), StepsOf(20));
  EXPECT_FALSE(comparison.same());
  EXPECT_GT(comparison.equal_steps(), 0);
  EXPECT_EQ(comparison.first_divergence().step(), comparison.equal_steps());
  EXPECT_GT(comparison.first_divergence().requests_differ(), 0);
  EXPECT_TRUE(FindRow(comparison.first_difference(), "free_blocks")->differs());
  EXPECT_EQ(comparison.first_difference().step(), 0);
}

}  // namespace
}  // namespace kvblocks::sim
