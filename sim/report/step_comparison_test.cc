#include "kvblocks/sim/report/step_rows.h"

#include <memory>
#include <string>
#include <utility>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "kvblocks/sim/simulation_config.h"
#include "kvblocks/sim/testing/replay.h"
#include "kvblocks/sim/trace/byte_sink.h"

namespace kvblocks::sim {
namespace {

using testing::ElementsAre;

namespace pb = ::kvblocks::report::v1;

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

std::string Row(int step, const std::string& fields, char digest) {
  return std::to_string(step) + "," + fields + "," + std::string(16, digest) + "\r\n";
}

const pb::StepDifference::Column* Find(const pb::StepDifference& difference,
                                       const std::string& name) {
  for (const auto& column : difference.columns()) {
    if (column.name() == name) return &column;
  }
  return nullptr;
}

TEST(StepComparisonTest, EqualFilesAreTheSame) {
  const std::string text = Header("end_ms,running") + Row(0, "1,2", 'a') + Row(1, "3,2", 'b');
  const auto comparison = Compare(text, text);
  EXPECT_TRUE(comparison.same());
  EXPECT_EQ(comparison.equal_steps(), 2);
  EXPECT_FALSE(comparison.has_first_divergence());
  EXPECT_FALSE(comparison.has_first_difference());
  EXPECT_EQ(comparison.a(), "a.csv");
  const auto empty = Compare(Header("x"), Header("x"));
  EXPECT_TRUE(empty.same());
  EXPECT_EQ(empty.equal_steps(), 0);
}

TEST(StepComparisonTest, SchedulesPartWhereTheDigestsDo) {
  const auto comparison = Compare(
      Header("end_ms,running") + Row(0, "1,2", 'a') + Row(1, "3,2", 'b') + Row(2, "4,2", 'c'),
      Header("end_ms,running") + Row(0, "1,2", 'a') + Row(1, "3,5", 'd') + Row(2, "4,2", 'c'));
  EXPECT_FALSE(comparison.same());
  EXPECT_EQ(comparison.equal_steps(), 1);
  const auto& divergence = comparison.first_divergence();
  EXPECT_EQ(divergence.step(), 1);
  EXPECT_EQ(divergence.line_a(), 3);
  EXPECT_EQ(divergence.line_b(), 3);
  EXPECT_FALSE(Find(divergence, "end_ms")->differs());
  EXPECT_TRUE(Find(divergence, "running")->differs());
  EXPECT_EQ(Find(divergence, "running")->a(), "2");
  EXPECT_EQ(Find(divergence, "running")->b(), "5");
  EXPECT_FALSE(comparison.has_first_difference());
}

TEST(StepComparisonTest, TimesAloneDoNotMakeSchedulesPart) {
  const auto comparison = Compare(Header("end_ms") + Row(0, "1", 'a') + Row(1, "3", 'b'),
                                  Header("end_ms") + Row(0, "1", 'a') + Row(1, "4", 'b'));
  EXPECT_TRUE(comparison.same());
  EXPECT_EQ(comparison.first_difference().step(), 1);
  EXPECT_TRUE(Find(comparison.first_difference(), "end_ms")->differs());
  EXPECT_FALSE(Find(comparison.first_difference(), "digest")->differs());
}

TEST(StepComparisonTest, AFileThatEndsFirstHasNoState) {
  const std::string one = Header("x") + Row(0, "1", 'a');
  for (const bool a_is_shorter : {true, false}) {
    const std::string two = one + Row(1, "7", 'b');
    const auto comparison = a_is_shorter ? Compare(one, two) : Compare(two, one);
    EXPECT_FALSE(comparison.same());
    const auto& divergence = comparison.first_divergence();
    EXPECT_EQ(divergence.step(), 1);
    EXPECT_EQ(divergence.line_a(), a_is_shorter ? 0 : 3);
    EXPECT_EQ(divergence.line_b(), a_is_shorter ? 3 : 0);
    EXPECT_EQ(Find(divergence, "x")->has_a(), !a_is_shorter);
    EXPECT_EQ(Find(divergence, "x")->has_b(), a_is_shorter);
    EXPECT_TRUE(Find(divergence, "x")->differs());
  }
}

TEST(StepComparisonTest, AStepThatIsMissingIsADivergence) {
  const auto comparison = Compare(Header("x") + Row(0, "1", 'a') + Row(1, "1", 'b'),
                                  Header("x") + Row(0, "1", 'a') + Row(2, "1", 'b'));
  EXPECT_FALSE(comparison.same());
  EXPECT_TRUE(Find(comparison.first_divergence(), "step")->differs());
}

TEST(StepComparisonTest, ColumnsOfOneFileAreNamedAndLeftOut) {
  const auto comparison =
      Compare(Header("x,only_here") + Row(0, "1,2", 'a'), Header("new_one,x") + Row(0, "9,1", 'a'));
  EXPECT_TRUE(comparison.same());
  EXPECT_FALSE(comparison.has_first_difference());
  EXPECT_THAT(comparison.only_in_a(), ElementsAre("only_here"));
  EXPECT_THAT(comparison.only_in_b(), ElementsAre("new_one"));
}

TEST(StepComparisonTest, RequestsThatDifferAreListed) {
  const auto comparison = Compare(Header("requests") + Row(0, "-9 1:5+1+2 2:1 3:4 x", 'a'),
                                  Header("requests") + Row(0, "1:5+1+3 2:1 9:7+4 4:1 x", 'b'));
  const auto& divergence = comparison.first_divergence();
  EXPECT_EQ(Find(divergence, "requests"), nullptr);
  EXPECT_EQ(divergence.requests_differ(), 4);
  ASSERT_EQ(divergence.requests_size(), 4);
  EXPECT_EQ(divergence.requests(0).row(), "9");
  EXPECT_EQ(divergence.requests(0).a(), "preempted");
  EXPECT_EQ(divergence.requests(0).b(), "7+4");
  EXPECT_EQ(divergence.requests(1).a(), "5+1+2");
  EXPECT_EQ(divergence.requests(1).b(), "5+1+3");
  EXPECT_EQ(divergence.requests(2).row(), "3");
  EXPECT_FALSE(divergence.requests(2).has_b());
  EXPECT_EQ(divergence.requests(3).row(), "4");
  EXPECT_FALSE(divergence.requests(3).has_a());
}

TEST(StepComparisonTest, ManyRequestsAreCountedAndSomeListed) {
  std::string a, b;
  for (int i = 0; i < 100; ++i) {
    a += std::to_string(i) + ":1 ";
    b += std::to_string(i) + ":2 ";
  }
  const auto divergence =
      Compare(Header("requests") + Row(0, a, 'a'), Header("requests") + Row(0, b, 'b'))
          .first_divergence();
  EXPECT_EQ(divergence.requests_differ(), 100);
  EXPECT_EQ(divergence.requests_size(), 20);
}

TEST(StepComparisonTest, BadRowsAreErrors) {
  const std::string good = Header("x") + Row(0, "1", 'a');
  EXPECT_FALSE(TryCompare(good + "1,2", good).ok());
  EXPECT_FALSE(TryCompare(good, good + "1,2").ok());
}

// --- Real runs ---

std::string StepsOf(int64_t num_blocks, bool async = true, bool with_requests = true) {
  Replay replay;
  replay.config.scheduler.async = async;
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
  EXPECT_TRUE(Compare(StepsOf(20), StepsOf(20, true, false)).same());
}

TEST(StepComparisonTest, OrderBetweenReplicasIsNoDifference) {
  const std::string header = "step,end_ms,replica,digest\r\n";
  const std::string zero = "0,1,0,0000000000000001\r\n", one = "0,2,1,0000000000000002\r\n",
                    more = "1,3,0,0000000000000003\r\n", other = "1,3,0,0000000000000004\r\n";
  EXPECT_TRUE(Compare(header + zero + one + more, header + zero + more + one).same());
  EXPECT_TRUE(Compare(header + zero + one + more, header + one + zero + more).same());
  const auto parts = Compare(header + zero + one + more, header + one + zero + other);
  EXPECT_FALSE(parts.same());
  EXPECT_EQ(parts.equal_steps(), 2);
  EXPECT_EQ(parts.first_divergence().step(), 1);
  const auto shorter = Compare(header + zero + one, header + one + zero + more);
  EXPECT_FALSE(shorter.same());
  EXPECT_EQ(shorter.first_divergence().step(), 1);
  EXPECT_FALSE(Compare(header + zero + one, header + zero).same());
}

TEST(StepComparisonTest, ASmallerPoolPartsAtALaterStep) {
  const auto comparison = Compare(StepsOf(40), StepsOf(20));
  EXPECT_FALSE(comparison.same());
  EXPECT_GT(comparison.equal_steps(), 0);
  EXPECT_EQ(comparison.first_divergence().step(), comparison.equal_steps());
  EXPECT_GT(comparison.first_divergence().requests_differ(), 0);
  EXPECT_TRUE(Find(comparison.first_difference(), "free_blocks")->differs());
  EXPECT_EQ(comparison.first_difference().step(), 0);
}

TEST(StepComparisonTest, AnEngineThatWaitsForEachStepParts) {
  const auto comparison = Compare(StepsOf(25, /*async=*/true), StepsOf(25, /*async=*/false));
  EXPECT_FALSE(comparison.same());
  EXPECT_GT(comparison.first_divergence().requests_differ(), 0);
}

}  // namespace
}  // namespace kvblocks::sim
