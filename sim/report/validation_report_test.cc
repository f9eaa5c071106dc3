#include "kvblocks/sim/report/validation_report.h"

#include <sstream>
#include <string>

#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace kvblocks::sim {
namespace {

using testing::HasSubstr;
using testing::Not;

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
  EXPECT_EQ(proto.schema_version(), 1u);
  EXPECT_FALSE(proto.good());
  EXPECT_TRUE(proto.strict());
  EXPECT_EQ(proto.errors(), 1);
  ASSERT_EQ(proto.problems_size(), 1);
  const auto& problem = proto.problems(0);
  EXPECT_EQ(problem.kind(), "value");
  EXPECT_EQ(problem.line(), 2);
  EXPECT_EQ(problem.row(), 1);
  EXPECT_EQ(problem.field(), "timestamp");
  EXPECT_EQ(problem.value(), "\"x\"");
  EXPECT_EQ(problem.expected(), "a number");
  EXPECT_EQ(problem.message(), "t.jsonl:2: error: timestamp: got \"x\", expected a number");
  EXPECT_EQ(proto.counts(0).count(), 1);
}

}  // namespace
}  // namespace kvblocks::sim
