#include "sim/report/human_table.h"

#include <sstream>
#include <string>

#include "absl/strings/str_replace.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "sim/report/comparison.pb.h"
#include "sim/report/validation_report.h"
#include "sim/testing/message_fields.h"

namespace kvblocks::sim {
namespace {

using testing::HasSubstr;
using testing::Not;

namespace pb = ::kvblocks::report::v1;

// --- Comparison table ---

pb::Comparison Sample() {
  return WithFields(pb::Comparison(), R"(
      a: "a.json" b: "b.json" passed: true metrics: 100 metrics_changed: 2
      configuration { name: "num_blocks" a: "2000" b: "1500" }
      changes { name: "counters.hit_tokens" a: "392256" b: "306432" change: "-85824"
                relative: -0.2188 })");
}

std::string Format(const pb::Comparison& comparison) { return FormatComparison(comparison, false); }

TEST(ComparisonTableTest, ShowsConfigurationChangesAndResult) {
  const std::string text = Format(Sample());
  EXPECT_THAT(text, HasSubstr("a  a.json\nb  b.json\n"));
  EXPECT_THAT(text, testing::ContainsRegex("  num_blocks +2,000 +1,500\n"));
  EXPECT_THAT(
      text, testing::ContainsRegex("  counters.hit_tokens +392,256 +306,432 +-85,824 +-21.88 %\n"));
  EXPECT_THAT(text, HasSubstr("result        different: 2 of 100 metrics differ, no tolerance"));
  EXPECT_THAT(text, Not(HasSubstr("\033")));
  EXPECT_THAT(FormatComparison(Sample(), true), HasSubstr("\033[1m"));
}

TEST(ComparisonTableTest, WhatExceedsItsToleranceIsMarked) {
  pb::Comparison comparison =
      WithFields(Sample(), "passed: false metrics_judged: 50 metrics_exceeded: 1");
  comparison.mutable_changes(0)->set_exceeded(true);
  const std::string text = Format(comparison);
  EXPECT_THAT(text, HasSubstr("-21.88 % !\n"));
  EXPECT_THAT(text, HasSubstr("failed: 2 of 100 metrics differ, 1 of 50 exceed their tolerance"));
}

TEST(ComparisonTableTest, ValuesOfAllSizesAreReadable) {
  const pb::Comparison comparison = WithFields(pb::Comparison(), R"(
      changes { name: "tiny" a: "1" b: "2" change: "1" relative: 1e-7 }
      changes { name: "huge" a: "1" b: "2" change: "1" relative: 1e9 }
      changes { name: "from_zero" a: "0" b: "2" change: "2" }
      changes { name: "real" a: "0.3333333333333333" b: "12345678901234567890123"
                change: "1e+22" relative: 1 }
      changes { name: "only_in_b" b: "7" })");
  const std::string text = Format(comparison);
  EXPECT_THAT(text, HasSubstr("+1e-05 %"));
  EXPECT_THAT(text, HasSubstr("+1e+11 %"));
  EXPECT_THAT(text, HasSubstr("from 0"));
  EXPECT_THAT(text, HasSubstr("0.333333"));
  EXPECT_THAT(text, HasSubstr("1.23457e+22"));
  EXPECT_THAT(text, testing::ContainsRegex("only_in_b +- +7"));
}

TEST(ComparisonTableTest, LinesFitThePageWhateverTheNames) {
  const pb::Comparison comparison = WithFields(
      Sample(),
      absl::StrReplaceAll(R"(
          changes { name: "N80" a: "-9223372036854775808" b: "9223372036854775807"
                    change: "18446744073709551615" relative: -1e300 exceeded: true }
          changes { name: "outcome" a: "X500\033[31m" b: "\n\n" }
          configuration { name: "trace" a: "/a/long/path/P100" }
          schedule { first_divergence {
            columns { name: "x" a: "A300" b: "\033" }
            requests { row: "D100" a: "5+S100" b: "5+S100+8" } requests_differ: 3 } })",
                          {{"N80", std::string(80, 'n')},
                           {"X500", std::string(500, 'x')},
                           {"P100", std::string(100, 'p')},
                           {"A300", std::string(300, 'a')},
                           {"D100", std::string(100, '1')},
                           {"S100", std::string(100, '7')}}));
  std::istringstream lines(Format(comparison));
  bool is_path_whole = false;
  for (std::string line; std::getline(lines, line);) {
    // Names of files are not cut.
    const bool is_path = line == "    a  /a/long/path/" + std::string(100, 'p');
    is_path_whole = is_path_whole || is_path;
    EXPECT_TRUE(line.size() <= 100u || is_path) << line;
    EXPECT_EQ(line.find('\033'), std::string::npos) << line;
  }
  EXPECT_TRUE(is_path_whole);
}

TEST(ComparisonTableTest, SchedulesStandSideBySide) {
  pb::Comparison comparison = WithFields(Sample(), R"(
      schedule { equal_steps: 4272 judged: true first_divergence {
        step: 4272 line_a: 4274 columns { name: "running" a: "2" differs: true }
        requests { row: "17" a: "64+101+102+103+104+105+106+107+108+109+110+111+112"
                   b: "64+101+102+103+104+105+106+107+108+109+110+111+113" }
        requests_differ: 1 } })");
  auto* request =
      comparison.mutable_schedule()->mutable_first_divergence()->mutable_requests(0);
  const std::string text = Format(comparison);
  EXPECT_THAT(text, HasSubstr("schedules part at step 4272, after 4,272 equal steps !"));
  EXPECT_THAT(text, testing::ContainsRegex("a, line 4274 +b has ended"));
  EXPECT_THAT(text, testing::ContainsRegex("! running +2 +-\n"));
  EXPECT_THAT(text, testing::ContainsRegex("! 17 +\\.\\.\\.\\+112 +\\.\\.\\.\\+113\n"));
  EXPECT_THAT(text, HasSubstr("request 17 has block 112 in a and block 113 in b\n"));
  EXPECT_LT(text.find("schedules part"), text.find("metric "));
  request->set_b("63+101");
  EXPECT_THAT(Format(comparison), HasSubstr("request 17 has tokens 64 in a and tokens 63 in b\n"));
  request->set_b("64+101");
  EXPECT_THAT(Format(comparison),
              HasSubstr("request 17 has block 102 in a and no further block in b\n"));
  comparison.clear_schedule();
  comparison = WithFields(comparison, "schedule { same: true equal_steps: 9 }");
  EXPECT_THAT(Format(comparison), HasSubstr("schedules are the same in all 9 steps"));
}

// --- Validation report ---

TraceValidation Validated(const std::string& content, int64_t max_messages = 20) {
  ValidationOptions options;
  options.max_messages = max_messages;
  const auto validation = ValidateTraceString(content, "t.jsonl", options);
  EXPECT_TRUE(validation.ok()) << validation.status();
  return *validation;
}

std::string Row(const std::string& fields) {
  return "{\"block_size\": 16, \"output_length\": 2, " + fields + "}\n";
}

std::string Good(int time) {
  return Row("\"timestamp\": " + std::to_string(time) +
             ", \"input_length\": 20, \"hash_ids\": [1, 2]");
}

TEST(ValidationReportTest, WarningsAreBadOnlyIfStrict) {
  const TraceValidation clean = Validated(Good(1));
  EXPECT_TRUE(IsGood(clean, false));
  EXPECT_TRUE(IsGood(clean, true));
  const TraceValidation warned = Validated(Good(1) + "\n" + Good(2));
  EXPECT_TRUE(IsGood(warned, false));
  EXPECT_FALSE(IsGood(warned, true));
  const TraceValidation bad = Validated("{\n");
  EXPECT_FALSE(IsGood(bad, false));
  const TraceValidation noted = Validated(Good(2) + Good(1));
  EXPECT_EQ(noted.num_notes(), 1);
  EXPECT_TRUE(IsGood(noted, true)) << "notes are never counted against a trace";
}

TEST(ValidationReportTest, TheTableHasFactsCountsMessagesAndVerdict) {
  const std::string text = FormatValidation(
      Validated(Good(1000) + Row("\"timestamp\": 3, \"request_id\": \"q\\u0007\"") + Good(500)),
      false, false);
  EXPECT_THAT(text, HasSubstr("trace         t.jsonl: mooncake, with block_size, "));
  EXPECT_THAT(text, HasSubstr("rows          3: 2 good, 1 bad"));
  EXPECT_THAT(text, HasSubstr("prompts       40 tokens, at most 20; 4 content ids"));
  EXPECT_THAT(text, HasSubstr("arrivals      0.5 s to 1 s, 1 row earlier than the row before"));
  EXPECT_THAT(text, HasSubstr("error    missing-field       2"));
  EXPECT_THAT(text, HasSubstr("t.jsonl:2: error: field input_length: got nothing, expected a value "
                              "[request q\\x07]\n"));
  EXPECT_THAT(text, HasSubstr("result        bad: 2 errors, 0 warnings, 1 note\n"));
  EXPECT_THAT(FormatValidation(Validated("{\"a\": 1}"), false, false),
              HasSubstr("t.jsonl: of no format that can be read"));
}

TEST(ValidationReportTest, AllThatIsNotListedIsCounted) {
  std::string rows = Good(1);
  for (int i = 0; i < 30; ++i) rows += "{}\n";
  const std::string text = FormatValidation(Validated(rows, 2), false, false);
  EXPECT_THAT(text, HasSubstr("and 116 more (--max-messages)"));
  const std::string none = FormatValidation(Validated(rows, 0), false, false);
  EXPECT_THAT(none, Not(HasSubstr("t.jsonl:2")));
  EXPECT_THAT(none, HasSubstr("and 120 more"));
}

TEST(ValidationReportTest, LinesOfFactsAndCountsFitThePage) {
  std::istringstream lines(FormatValidation(
      Validated(Good(2) + Good(1) + "{\n\n" + Row("\"x\": 1") + Good(0), 0), true, false));
  for (std::string line; std::getline(lines, line);) EXPECT_LE(line.size(), 100u) << line;
}

TEST(ValidationReportTest, TheMessageHasThePartsOfEachProblem) {
  const auto proto = ToProto(Validated(Good(1) + Row("\"timestamp\": \"x\", \"input_length\": 20, "
                                                     "\"hash_ids\": [1], \"request_id\": 7")),
                             true);
  EXPECT_FIELDS(proto, "schema_version 1, good false, strict true, errors 1");
  ASSERT_EQ(proto.problems_size(), 1);
  const auto& problem = proto.problems(0);
  EXPECT_FIELDS(problem, "kind value, line 2, row 1, field timestamp");
  EXPECT_EQ(problem.value(), "\"x\"");
  EXPECT_EQ(problem.expected(), "a number");
  EXPECT_EQ(problem.message(), "t.jsonl:2: error: timestamp: got \"x\", expected a number");
  EXPECT_EQ(proto.counts(0).count(), 1);
}

}  // namespace
}  // namespace kvblocks::sim
