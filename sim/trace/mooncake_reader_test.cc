#include <string>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "sim/testing/trace_testing.h"

namespace kvblocks::sim {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;
using testing::IsEmpty;

TEST(MooncakeReaderTest, AcceptsTheDialects) {
  const std::vector<TraceRequest> requests = MustRead(
      R"({"request_id": "a", "created_time": 0.5, "input_tokens": 20, "output_tokens": 2, "block_size": 16, "hash_ids": [1, 2], "priority": -3, "output_token_ids": [7, 8], "x": {"y": [1, "z", null, true, 1.5e3]}, "delay": null}
{"request_id": 9, "wait_for": ["a"], "delay": 1.5, "tool_wait_ms": 2, "input_length": 40, "output_length": 1, "block_size": 16, "hash_ids": [1, 2]}
)");
  const TraceRequest& a = requests[0];
  EXPECT_EQ(a.arrival_ns, 500000);
  EXPECT_EQ(a.priority, -3);
  EXPECT_THAT(a.output_ids, ElementsAre(7, 8));
  const TraceRequest& b = requests[1];
  EXPECT_EQ(b.id, "9");
  EXPECT_THAT(b.waits_for, ElementsAre(0));
  EXPECT_FALSE(b.has_arrival);
  EXPECT_EQ(b.arrival_ns, a.arrival_ns);
  EXPECT_EQ(b.think_ns, 3500000);
  EXPECT_EQ(b.content_ids.size(), 2u) << "floor(40 / 16) ids: the rest is unique";
}

TEST(MooncakeReaderTest, EncodersInputsAreWhatTheRowSays) {
  const std::vector<TraceRequest> requests = MustRead(Row("1") + Row("2", R"("encoder_tokens": 0)") +
                                  Row("3", R"("encoder_tokens": 1500)") +
                                  Row("4", R"("encoder_tokens": null)"));
  EXPECT_FALSE(requests[0].encoder_tokens.has_value());
  EXPECT_EQ(requests[1].encoder_tokens, 0);
  EXPECT_EQ(requests[2].encoder_tokens, 1500);
  EXPECT_FALSE(requests[3].encoder_tokens.has_value());
  for (const char* bad : {"-1", "2147483648", "1.5", "\"1500\"", "[1500]", "true"}) {
    EXPECT_THAT(TraceError(Row("1", std::string("\"encoder_tokens\": ") + bad)),
                HasSubstr("encoder_tokens: got "))
        << bad;
  }
}

TEST(MooncakeReaderTest, SessionsAreClosedLoops) {
  const std::vector<TraceRequest> requests = MustRead(
      Row("1", R"("session_id": "s")") + Row("2", R"("session_id": "t")") +
      R"({"session_id": "s", "delay": 5, "input_length": 8, "output_length": 2, "block_size": 0, "hash_ids": []})"
      "\n" +
      Row("9", R"("session_id": "s")") + Row("10", R"("session_id": "t", "wait_for": [])"));
  const std::vector<TraceRequest>& r = requests;  // rows 0, 2, 1, 3, 4: row 2 arrives with row 0
  EXPECT_EQ(r[1].row, 2);
  EXPECT_EQ(r[1].session, 1u);
  EXPECT_EQ(r[1].turn, 1u);
  EXPECT_THAT(r[1].waits_for, ElementsAre(0));
  EXPECT_FALSE(r[1].has_arrival);
  EXPECT_EQ(r[2].session, 2u);
  EXPECT_EQ(r[3].turn, 2u);
  EXPECT_THAT(r[3].waits_for, ElementsAre(2));
  EXPECT_TRUE(r[3].has_arrival);
  EXPECT_THAT(r[4].waits_for, IsEmpty()) << "an explicit list stands alone";
}

TEST(MooncakeReaderTest, ArrivalIsNeverBeforeThatOfADependency) {
  const auto requests =
      ReadTrace(Row("5", R"("request_id": 1)") + Row("3", R"("request_id": 2, "wait_for": [1])"));
  EXPECT_EQ((*requests)[1].row, 1);
  EXPECT_EQ((*requests)[1].arrival_ns, 5000000);
  EXPECT_FALSE((*requests)[1].has_arrival);
}

TEST(MooncakeReaderTest, IntegerSessionsKeepTheirNumbers) {
  const auto requests = ReadTrace(Row("1", R"("session_id": 70)") + Row("2", R"("session_id": 0)") +
                                  Row("3", R"("session_id": 70)"));
  EXPECT_EQ((*requests)[0].session, 70u);
  EXPECT_EQ((*requests)[1].session, uint64_t{1} << 63);
  EXPECT_THAT((*requests)[2].waits_for, ElementsAre(0));
}

struct BadRow {
  const char* text;
  const char* message;
};

class MooncakeBadRows : public testing::TestWithParam<BadRow> {};

TEST_P(MooncakeBadRows, AreErrorsThatNameTheProblem) {
  TraceReaderOptions options;
  options.format = "mooncake";
  // As the first row and after a good one.
  EXPECT_THAT(TraceError(std::string(GetParam().text) + "\n", options),
              HasSubstr(GetParam().message));
  const std::string second = TraceError(
      std::string(
          R"({"timestamp": 0, "input_length": 600, "output_length": 1, "hash_ids": [1, 2]})") +
          "\n" + GetParam().text,
      options);
  EXPECT_THAT(second, HasSubstr("t:2"));
  EXPECT_THAT(second, HasSubstr(GetParam().message));
}

#define ROW(timestamp, input, output, ids)                                                 \
  "{\"timestamp\": " timestamp ", \"input_length\": " input ", \"output_length\": " output \
  ", \"hash_ids\": " ids "}"

INSTANTIATE_TEST_SUITE_P(
    All, MooncakeBadRows,
    testing::Values(
        BadRow{"{", "JSON"}, BadRow{"nonsense", "JSON"}, BadRow{"[1]", "JSON"}, BadRow{"7", "JSON"},
        BadRow{"{} {}", "JSON"}, BadRow{"{\"a\": tru}", "JSON"}, BadRow{"{\"a\": nul}", "JSON"},
        BadRow{"{\"a\": [1, 2}", "JSON"}, BadRow{"{\"a\": {\"b\": 01}}", "JSON"},
        BadRow{"{\"a\": \"\xff\xfe\"}", "JSON"}, BadRow{"{\"a\" 1}", "JSON"},
        BadRow{"{\"a\": \"unclosed}", "JSON"}, BadRow{"{\"a\": 1,}", "JSON"},
        BadRow{ROW("NaN", "8", "1", "[1]"), "timestamp: got"},
        BadRow{ROW("Infinity", "8", "1", "[1]"), "got"},
        BadRow{ROW("1e400", "8", "1", "[1]"), "timestamp: got \"1e400\""},
        BadRow{ROW("0.0000001", "8", "1", "[1]"), "digits after the point"},
        BadRow{ROW("\"5\"", "8", "1", "[1]"), "timestamp: got \"5\", expected a number"},
        BadRow{ROW("1", "-8", "1", "[1]"), "input_length: got -8"},
        BadRow{ROW("1", "1e18", "1", "[1]"), "input_length: got 1e18"},
        BadRow{ROW("1", "1000000000000000000", "1", "[1]"), "input_length: got"},
        BadRow{ROW("1", "2147483648", "1", "[1]"), "input_length: got 2147483648"},
        BadRow{ROW("1", "99999999999999999999999", "1", "[1]"), "input_length: got"},
        BadRow{ROW("1", "8.0", "1", "[1]"), "input_length: got 8.0"},
        BadRow{ROW("1", "\"8\"", "1", "[1]"), "input_length: got \"8\""},
        BadRow{ROW("1", "8", "true", "[1]"), "output_length: got true"},
        BadRow{ROW("1", "8", "1", "[1.5]"), "hash_ids: got 1.5"},
        BadRow{ROW("1", "8", "1", "[1, \"2\"]"), "hash_ids: got \"2\""},
        BadRow{ROW("1", "8", "1", "{}"), "hash_ids: got"},
        BadRow{ROW("1", "8", "1", "7"), "hash_ids: got 7"},
        BadRow{ROW("1", "512", "1", "[1, 2]"), "number of block ids: got 2, expected 1 for"},
        BadRow{"{\"timestamp\": 1, \"output_length\": 1, \"hash_ids\": []}",
               "field input_length: got nothing"},
        BadRow{"{\"timestamp\": 1, \"input_length\": 1, \"hash_ids\": []}", "field output_length"},
        BadRow{"{\"timestamp\": 1, \"input_length\": 1, \"output_length\": 1}", "field hash_ids"},
        BadRow{"{\"output_token_ids\": [4294967296]}", "output_token_ids: got 4294967296"},
        BadRow{"{\"priority\": 2147483648}", "priority: got 2147483648"},
        BadRow{"{\"request_id\": [1]}", "request_id: got"},
        BadRow{"{\"wait_for\": \"a\"}", "wait_for: got \"a\", expected a list"},
        BadRow{"{\"delay\": 9223372036854.0, \"tool_wait_ms\": 9223372036854.0}",
               "sum of delays"}));

TEST(MooncakeReaderTest, DependenciesMustPointBack) {
  const auto row = [](const char* id, const char* wait) {
    return Row("1", std::string("\"request_id\": \"") + id + "\", \"wait_for\": [" + wait + "]");
  };
  ExpectRefusals({{row("a", "") + row("b", "\"zz\""),
                   "t:2: error: wait_for: got \"zz\", expected the request_id of an earlier"},
                  {row("a", "\"b\"") + row("b", "\"a\""), "close a cycle"},
                  {row("a", "\"a\""), "the request itself, expected no cycle"},
                  {row("a", "") + row("a", ""), "t:2: error: request_id: got \"a\""}});
  EXPECT_EQ(TraceError(row("a", "") + row("b", "\"a\", \"a\"")), "");
  EXPECT_THAT(TraceError(row("a", "") + Row("2")), HasSubstr("field request_id: got nothing"));
}

TEST(MooncakeReaderTest, WaitingForASkippedRowIsBadToo) {
  TraceReaderOptions options;
  options.skip_bad_rows = true;
  const std::string trace = Row("1", R"("request_id": 1)") + Row("-1", R"("request_id": 2)") +
                            Row("3", R"("request_id": 3, "wait_for": [2])") +
                            Row("4", R"("request_id": 4, "wait_for": [1])");
  const auto requests = ReadTrace(trace, options);
  ASSERT_EQ(requests->size(), 2u);
  EXPECT_EQ((*requests)[1].row, 3);
}

TEST(MooncakeReaderTest, BlockSizeComesFromTheFirstRowOrTheOption) {
  const std::string row =
      R"({"timestamp": 1, "input_length": 32, "output_length": 1, "block_size": 16, "hash_ids": [1, 2]})"
      "\n";
  const std::string other =
      R"({"timestamp": 1, "input_length": 32, "output_length": 1, "block_size": 8, "hash_ids": [1, 2, 3, 4]})";
  EXPECT_THAT(TraceError(row + other), HasSubstr("block_size: got 8, expected 16"));
  TraceReaderOptions options;
  options.trace_block_size = 17;
  auto reader = OpenTraceString(row, "t", options);
  EXPECT_EQ((*reader)->info().block_tokens, 17);
  EXPECT_TRUE(AllRequests(**reader).ok());
}

TEST(MooncakeReaderTest, IdChecksFindSecondParentsAndTokenCounts) {
  const std::string trace =
      R"({"timestamp": 1, "input_length": 20, "output_length": 1, "block_size": 16, "hash_ids": [1, 2]}
{"timestamp": 1, "input_length": 32, "output_length": 1, "block_size": 16, "hash_ids": [1, 2]}
{"timestamp": 1, "input_length": 32, "output_length": 1, "block_size": 16, "hash_ids": [3, 2]}
)";
  TraceReaderOptions options;
  options.check_ids = true;
  auto reader = OpenTraceString(trace, "t", options);
  ASSERT_TRUE(AllRequests(**reader).ok());
  EXPECT_EQ((*reader)->counters().ids_with_two_parents, 1);
  EXPECT_EQ((*reader)->counters().ids_with_two_token_counts, 1);
  EXPECT_THAT((*reader)->warnings(),
              ElementsAre("t:2: warning: block id 2: got 16 tokens, expected 4 as on line 1"));
  options.ids_are_unique = true;
  EXPECT_THAT(TraceError(trace, options), HasSubstr("t:3: error: block id: got 2 after other ids"));
}

TEST(MooncakeReaderTest, TokenIdsMustCoverThePrompt) {
  EXPECT_THAT(
      TraceError(
          R"({"timestamp": 1, "input_length": 3, "output_length": 1, "block_size": 1, "hash_ids": [5, 6]})"),
      HasSubstr("token ids: got 2, expected 3"));
}

TEST(MooncakeReaderTest, DeepNestingIsAnError) {
  EXPECT_THAT(TraceError("{\"a\": " + std::string(5000, '[') + std::string(5000, ']') + "}"),
              HasSubstr("JSON"));
}

TEST(MooncakeReaderTest, SyntaxErrorsNameTheColumn) {
  EXPECT_THAT(TraceError(Row("1") + "{\"timestamp\": 1, \"x\" 5}\n"),
              testing::ContainsRegex("t:2:[0-9]+: error: JSON"));
}

}  // namespace
}  // namespace kvblocks::sim
