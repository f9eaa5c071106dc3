#include "sim/trace/trace_reader.h"

#include <sys/stat.h>

#include <algorithm>
#include <cstdio>
#include <fstream>
#include <string>
#include <thread>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "sim/testing/trace_testing.h"
#include "sim/trace/row_source.h"

namespace kvblocks::sim {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;

std::vector<int64_t> Arrivals(const std::string& content, const TraceReaderOptions& options = {}) {
  auto requests = ReadTrace(content, options);
  EXPECT_TRUE(requests.ok()) << requests.status();
  std::vector<int64_t> arrivals;
  if (requests.ok()) {
    for (const TraceRequest& r : *requests) arrivals.push_back(r.arrival_ns);
  }
  return arrivals;
}

std::vector<int64_t> Rows(const std::string& content, const TraceReaderOptions& options = {}) {
  auto requests = ReadTrace(content, options);
  EXPECT_TRUE(requests.ok()) << requests.status();
  std::vector<int64_t> rows;
  if (requests.ok()) {
    for (const TraceRequest& r : *requests) rows.push_back(r.row);
  }
  return rows;
}

TEST(TraceReaderTest, OrderIsByArrivalThenRow) {
  const std::string trace = Row("5") + Row("1") + Row("5") + Row("0") + Row("1");
  EXPECT_THAT(Rows(trace), ElementsAre(3, 1, 4, 0, 2));
  auto reader = OpenTraceString(trace, "t", {});
  ASSERT_TRUE(AllRequests(**reader).ok());
  EXPECT_EQ((*reader)->counters().backwards, 2);
}

TEST(TraceReaderTest, WindowBoundsWhatIsHeldAndHowLateARowMayBe) {
  TraceReaderOptions options;
  options.reorder_window = 2;
  const std::string late = Row("3") + Row("4") + Row("1") + Row("5");
  EXPECT_THAT(Rows(late, options), ElementsAre(2, 0, 1, 3));
  const std::string error =
      TraceError(Row("3") + Row("4") + Row("5") + Row("1") + Row("6"), options);
  EXPECT_THAT(error, HasSubstr("t:4: error: timestamp"));
  EXPECT_THAT(error, HasSubstr("as on line 1"));
  EXPECT_THAT(error, HasSubstr("kvsim convert --sort"));

  std::string longer;
  for (int i = 0; i < 100; ++i) longer += Row(std::to_string(i));
  auto reader = OpenTraceString(longer, "t", options);
  ASSERT_TRUE(AllRequests(**reader).ok());
  EXPECT_EQ((*reader)->counters().peak_held_requests, 3);
}

TEST(TraceReaderTest, BytesBoundWhatIsHeldAsWell) {
  const auto with_ids = [](const std::string& time) {
    std::string ids;
    for (int i = 0; i < 1000; ++i) ids += i == 0 ? "1" : ",1";
    return R"({"timestamp": )" + time +
           R"(, "input_length": 16000, "output_length": 1, "block_size": 16, "hash_ids": [)" + ids +
           "]}\n";
  };
  std::string trace;
  for (int i = 0; i < 100; ++i) trace += with_ids(std::to_string(10 + i));
  TraceReaderOptions options;
  options.reorder_bytes = 100'000;  // a dozen of these requests
  auto reader = OpenTraceString(trace, "t", options);
  ASSERT_TRUE(AllRequests(**reader).ok());
  EXPECT_LT((*reader)->counters().peak_held_bytes, 120'000);
  EXPECT_LT((*reader)->counters().peak_held_requests, 15);

  const std::string error = TraceError(trace + with_ids("0"), options);
  EXPECT_THAT(error, HasSubstr("t:101: error: timestamp: got 0 ns"));
  EXPECT_THAT(error,
              HasSubstr("100000 bytes, the most that is held to sort; kvsim convert --sort"));

  options.spread = true;
  std::string same;
  for (int i = 0; i < 100; ++i) same += with_ids("10");
  EXPECT_THAT(TraceError(same, options), HasSubstr("--spread: got more than 100000 bytes"));
}

TEST(TraceReaderTest, APipeIsNotReadAgain) {
  const std::string path = testing::TempDir() + "/pipe_not_read_again";
  ASSERT_EQ(mkfifo(path.c_str(), 0600), 0);
  std::thread writer([&] { std::ofstream(path) << Row("1"); });
  auto reader = OpenTrace(path, {});
  EXPECT_TRUE(reader.ok() && AllRequests(**reader).ok());
  writer.join();
  EXPECT_THAT(std::string((*reader)->Restart().message()), HasSubstr("restart: got a pipe"));
  std::remove(path.c_str());
}

TEST(TraceReaderTest, BadRowsAreListedUpToALimitAndCounted) {
  TraceReaderOptions options;
  options.max_errors = 2;
  const std::string trace = Row("1") + "{\n" + Row("-1") + Row("2") + "[]\n" + "x\n";
  const std::string error = TraceError(trace, options);
  EXPECT_THAT(error, HasSubstr("t:2"));
  EXPECT_THAT(error, HasSubstr("t:3: error: timestamp: got \"-1\""));
  EXPECT_THAT(error, HasSubstr("and 2 more errors"));
  EXPECT_EQ(std::count(error.begin(), error.end(), '\n'), 2);

  options.skip_bad_rows = true;
  const auto reader = MustOpenString(trace, options);
  EXPECT_EQ(AllRequests(*reader)->size(), 2u);
  EXPECT_EQ(reader->counters().bad_rows, 4);
  EXPECT_EQ(reader->counters().rows, 6);
  EXPECT_EQ(reader->warnings().size(), 2u);
}

TEST(TraceReaderTest, AllProblemsOfARowAreListed) {
  const std::string error = TraceError(
      Row("1", R"("request_id": 1)") +
      R"({"timestamp": -1, "input_length": "x", "priority": [1], "block_size": 0, "hash_ids": []})"
      "\n" +
      R"({"request_id": 1, "timestamp": 2, "input_length": 8, "output_length": 2, "block_size": 0, "hash_ids": [1], "wait_for": [7, 8]})");
  EXPECT_THAT(error, HasSubstr("t:2: error: timestamp: got \"-1\""));
  EXPECT_THAT(error, HasSubstr("t:2: error: input_length: got \"x\""));
  EXPECT_THAT(error, HasSubstr("t:2: error: priority: got ["));
  EXPECT_THAT(error, HasSubstr("t:2: error: field output_length: got nothing"));
  EXPECT_THAT(error, HasSubstr("t:3: error: content ids: got 1, expected none"));
  EXPECT_THAT(error, HasSubstr("t:3: error: request_id: got \"1\", also that of row 1"));
  EXPECT_THAT(error, HasSubstr("t:3: error: wait_for: got \"7\""));
  EXPECT_THAT(error, HasSubstr("t:3: error: wait_for: got \"8\""));
  EXPECT_EQ(std::count(error.begin(), error.end(), '\n'), 7);
}

// Such a row never leaves the reader, so nothing may wait for it.
TEST(TraceReaderTest, ARowThatIsTooLateCannotBeWaitedFor) {
  TraceReaderOptions options;
  options.reorder_window = 1;
  options.skip_bad_rows = true;
  const std::string trace = Row("10", R"("request_id": 1)") + Row("20", R"("request_id": 2)") +
                            Row("5", R"("request_id": 3)") +
                            Row("30", R"("request_id": 4, "wait_for": [3])");
  const auto reader = MustOpenString(trace, options);
  EXPECT_EQ(AllRequests(*reader)->size(), 2u);
  EXPECT_EQ(reader->counters().bad_rows, 2);
}

TEST(TraceReaderTest, ADamagedFirstRowLeavesTheOthersReadable) {
  const std::string good =
      R"({"timestamp": 1, "input_length": 32, "output_length": 1, "block_size": 16, "hash_ids": [1, 2]})"
      "\n";
  const std::string damaged = R"({"timestamp": 1, "hash_ids": [1, 2})"
                              "\n";
  EXPECT_THAT(TraceError(damaged + good),
              testing::ContainsRegex("^t:1:[0-9]+: error: .*JSON: got"));
  TraceReaderOptions options;
  options.skip_bad_rows = true;
  const auto reader = MustOpenString(damaged + damaged + good + good, options);
  EXPECT_EQ(reader->info().block_tokens, 16) << "the first good row decides";
  EXPECT_EQ(AllRequests(*reader)->size(), 2u);
  EXPECT_EQ(reader->counters().bad_rows, 2);
}

TEST(TraceReaderTest, StandardInputIsReadOnce) {
  const std::string path = testing::TempDir() + "/stdin.jsonl";
  std::ofstream(path) << Row("1") << Row("2");
  ASSERT_NE(std::freopen(path.c_str(), "r", stdin), nullptr);
  const auto reader = MustOpen("-");
  EXPECT_EQ(AllRequests(*reader)->size(), 2u);
  EXPECT_THAT(std::string(reader->Restart().message()), HasSubstr("standard input"));
}

TEST(TraceReaderTest, NameIsThatOfTheFileWithoutFolders) {
  EXPECT_EQ((*OpenTraceString(Row("1"), "a/b/c.jsonl", {}))->info().name, "c.jsonl");
}

TEST(TraceReaderTest, BlankLinesAreAWarningExceptAtTheEnd) {
  auto reader = OpenTraceString(Row("1") + "\n \n" + Row("2") + "\n\n", "t", {});
  ASSERT_TRUE(AllRequests(**reader).ok());
  EXPECT_EQ((*reader)->counters().blank_lines, 2);
  EXPECT_THAT((*reader)->warnings(), ElementsAre(HasSubstr("t:2: warning: blank lines: got 2")));
}

TEST(TraceReaderTest, TruncatedStreamNamesTheLastGoodLine) {
  // A gzip stream with a stored (uncompressed) block that ends too early.
  const std::string rows = Row("1") + Row("2");
  std::string stored = std::string("\x1f\x8b\x08\0\0\0\0\0\0\x03\x00", 11);
  stored += {static_cast<char>(rows.size() + 50), 0};
  stored += {static_cast<char>(~(rows.size() + 50)), static_cast<char>(0xff)};
  stored += rows;
  EXPECT_EQ(TraceError(stored),
            "t:3: error: truncated gzip stream: got its end, expected more data (the last good "
            "line is 2)");
}

TEST(TraceReaderTest, SelectionByTimeSampleAndLimit) {
  std::string trace;
  for (int i = 0; i < 10; ++i) trace += Row(std::to_string(i));
  TraceReaderOptions options;
  options.start_ns = 3 * kMs;
  options.end_ns = 8 * kMs;
  EXPECT_THAT(Rows(trace, options), ElementsAre(3, 4, 5, 6, 7));
  options.limit = 2;
  EXPECT_THAT(Rows(trace, options), ElementsAre(3, 4));
  options.limit = 0;
  EXPECT_TRUE(Rows(trace, options).empty());
}

TEST(TraceReaderTest, SampleKeepsWholeSessionsAndGrowsWithTheRatio) {
  std::string trace;
  for (int i = 0; i < 2000; ++i) {
    trace += Row(std::to_string(i), "\"session_id\": " + std::to_string(1 + i % 500));
  }
  TraceReaderOptions options;
  options.sample = {1, 4};
  const std::vector<int64_t> quarter = Rows(trace, options);
  EXPECT_GT(quarter.size(), 350u);
  EXPECT_LT(quarter.size(), 650u);
  EXPECT_EQ(quarter.size() % 4, 0u) << "all four turns or none";
  options.sample = {1, 2};
  const std::vector<int64_t> half = Rows(trace, options);
  EXPECT_TRUE(std::includes(half.begin(), half.end(), quarter.begin(), quarter.end()));
  options.sample = {1, 1};
  EXPECT_EQ(Rows(trace, options).size(), 2000u);
  options.sample = {0, 1};
  EXPECT_TRUE(Rows(trace, options).empty());
}

TEST(TraceReaderTest, DependenciesOnWhatIsLeftOutAreDropped) {
  const std::string trace =
      Row("1", "\"session_id\": 1") + Row("5", "\"session_id\": 1") + Row("6", "\"session_id\": 1");
  TraceReaderOptions options;
  options.start_ns = 2 * kMs;
  const auto requests = ReadTrace(trace, options);
  ASSERT_EQ(requests->size(), 2u);
  EXPECT_TRUE((*requests)[0].waits_for.empty());
  EXPECT_THAT((*requests)[1].waits_for, ElementsAre(1));
}

TEST(TraceReaderTest, SpreadRebaseAndSpeedup) {
  const std::string trace = Row("10") + Row("10") + Row("10") + Row("16") + Row("16");
  TraceReaderOptions options;
  options.spread = true;
  EXPECT_THAT(Arrivals(trace, options),
              ElementsAre(10 * kMs, 12 * kMs, 14 * kMs, 16 * kMs, 16 * kMs));
  options.rebase = true;
  EXPECT_THAT(Arrivals(trace, options), ElementsAre(0, 2 * kMs, 4 * kMs, 6 * kMs, 6 * kMs));
  options.speedup = {3, 2};
  EXPECT_THAT(Arrivals(trace, options), ElementsAre(0, 4 * kMs / 3, 8 * kMs / 3, 4 * kMs, 4 * kMs));
  options.speedup = {0, 1};
  EXPECT_THAT(TraceError(trace, options), HasSubstr("--speedup"));
}

TEST(TraceReaderTest, SpreadLeavesRowsWithoutATimeWithWhatTheyWaitFor) {
  const std::string follows =
      R"({"input_length": 8, "output_length": 2, "block_size": 0, "hash_ids": [], "session_id": 1})"
      "\n";
  const std::string trace = Row("10", "\"session_id\": 1") + Row("10", "\"session_id\": 2") +
                            follows + follows + Row("16", "\"session_id\": 3");
  TraceReaderOptions options;
  options.spread = true;
  EXPECT_THAT(Arrivals(trace, options),
              ElementsAre(10 * kMs, 10 * kMs, 10 * kMs, 13 * kMs, 16 * kMs));
  EXPECT_THAT(Rows(trace, options), ElementsAre(0, 2, 3, 1, 4));
}

TEST(TraceReaderTest, FormatsAreDetectedByTheFirstRecord) {
  const auto error = [](const std::string& content) { return TraceError(content); };
  const auto format = [](const std::string& content) {
    return DetectFormat(content, "t").value_or("none");
  };
  EXPECT_EQ(format(R"({"arrival_time_ns": 1})"), "llmservingsim");
  EXPECT_EQ(format(R"({"sub_requests": []})"), "llmservingsim");
  EXPECT_EQ(format(R"({"event_type": "tool_start", "tool": {}})"), "dynamo");
  EXPECT_EQ(format(R"({"input_length": 1, "timestamp": 0})"), "aiperf");
  EXPECT_EQ(format(R"({"completed": 1, "total_input_tokens": 5})"), "vllm-bench");
  EXPECT_THAT(error(R"({"requests": [], "hash_id_scope": "local"})"),
              HasSubstr("t:1: error: field id: got nothing"));
  EXPECT_THAT(error(R"({"hash_ids": [1], "prompt": "x"})"),
              HasSubstr("fits mooncake and vllm-custom, expected exactly one"));
  EXPECT_THAT(error(R"({"a": 1})"), HasSubstr("(--trace-format, or --fields"));
  EXPECT_THAT(error(""), HasSubstr("empty file"));
  EXPECT_THAT(error("\n\n"), HasSubstr("empty file"));
  EXPECT_THAT(error("%PDF-1.4"), HasSubstr("expected a JSON object"));
  EXPECT_THAT(error("{\n"), HasSubstr("t:1"));
  EXPECT_THAT(error(std::string(3, '\0') + "\xff"), HasSubstr("\\x00"));
  TraceReaderOptions options;
  options.format = "parquet";
  EXPECT_THAT(TraceError("x", options), HasSubstr("--trace-format: got \"parquet\""));
}

TEST(TraceReaderTest, FirstLineBeyondTheLimitIsAnError) {
  TraceReaderOptions options;
  options.max_line_bytes = 100;
  EXPECT_FALSE(ReadTrace(std::string(100000, ' ') + Row("1"), options).ok());
  options.format = "mooncake";
  EXPECT_THAT(TraceError(std::string(100000, '{') + "\n" + Row("1"), options),
              HasSubstr("t:1: error: line length: got 100000 bytes"));
}

TEST(TraceReaderTest, FormatOptionOverridesDetection) {
  TraceReaderOptions options;
  options.format = "azure";
  EXPECT_THAT(TraceError(Row("1"), options), HasSubstr("CSV header"));
}

TEST(TraceReaderTest, SlowDownBeyondTheClockIsAnError) {
  TraceReaderOptions options;
  options.speedup = {1, 1000000000000};
  EXPECT_THAT(TraceError(Row("10000000"), options), HasSubstr("--speedup"));
}

}  // namespace
}  // namespace kvblocks::sim
