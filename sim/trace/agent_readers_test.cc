#include <string>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "sim/testing/trace_testing.h"
#include "sim/trace/content_keys.h"

namespace kvblocks::sim {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;
using testing::IsEmpty;

constexpr const char* kFolder = "sim/trace/testdata/formats/";

// How many leading blocks of `block` tokens of b's prompt are in a, once a has ended.
int64_t SharedBlocks(const TraceInfo& info, const TraceRequest& a, const TraceRequest& b,
                     int64_t block) {
  std::vector<absl::uint128> of_a, of_b;
  ContentKeys(info, a, block).AppendBlocks(a, a.input_length + a.output_length, &of_a);
  ContentKeys(info, b, block).AppendBlocks(b, b.input_length, &of_b);
  size_t shared = 0;
  while (shared < of_a.size() && shared < of_b.size() && of_a[shared] == of_b[shared]) ++shared;
  return static_cast<int64_t>(shared);
}

TEST(LlmServingSimReaderTest, FlatRowsAndSessionsMayStandInOneFile) {
  const auto reader = MustOpen(std::string(kFolder) + "llmservingsim.jsonl");
  auto requests = AllRequests(*reader);
  ASSERT_TRUE(requests.ok()) << requests.status();
  EXPECT_EQ(reader->info().block_tokens, 0);
  const std::vector<TraceRequest>& r = *requests;
  ASSERT_EQ(r.size(), 4u);
  EXPECT_EQ(r[0].session, 0u);
  EXPECT_EQ(r[1].arrival_ns, 500000) << "of the last row";
  EXPECT_EQ(r[2].session, 1u);
  EXPECT_EQ(r[3].session, 1u);
  EXPECT_EQ(r[3].turn, 1u);
  EXPECT_THAT(r[3].waits_for, ElementsAre(r[2].row));
  EXPECT_EQ(r[3].think_ns, 2000000000) << "the tool's time after the request before";
  EXPECT_FALSE(r[3].has_arrival);
}

TEST(LlmServingSimReaderTest, TokenIdsAreContent) {
  auto reader = OpenTrace(std::string(kFolder) + "llmservingsim_ids.jsonl", {});
  auto requests = AllRequests(**reader);
  ASSERT_TRUE(requests.ok()) << requests.status();
  // The second prompt goes on where the first answer ended.
  EXPECT_EQ(SharedBlocks((*reader)->info(), (*requests)[0], (*requests)[1], 1), 6);
}

TEST(LlmServingSimReaderTest, BadRowsNameTheField) {
  EXPECT_THAT(TraceError(R"({"input_toks": 1, "output_toks": 1, "arrival_time_ns": -1})"),
              HasSubstr("t:1: error: arrival_time_ns: got -1"));
  EXPECT_THAT(TraceError(R"({"arrival_time_ns": 0, "sub_requests": []})"),
              HasSubstr("sub_requests: got none, expected at least one"));
  EXPECT_THAT(TraceError(R"({"arrival_time_ns": 0, "sub_requests": [{"input_toks": 1}]})"),
              HasSubstr("sub_requests[0]: field output_toks: got nothing"));
  EXPECT_THAT(TraceError(R"({"arrival_time_ns": 0, "input_toks": 3, "sub_requests": )"
                         R"([{"input_toks": 1, "output_toks": 1}]})"),
              HasSubstr("sub_requests: got them beside lengths"));
  EXPECT_THAT(TraceError(R"({"input_toks": 2, "output_toks": 1, "arrival_time_ns": 0,)"
                         R"( "input_tok_ids": [1]})"),
              HasSubstr("token ids: got 1, expected 2, the input length"));
  const std::string session =
      R"({"session_id": "s", "arrival_time_ns": 0, "sub_requests": [{"input_toks": 1, "output_toks": 1}]})";
  EXPECT_THAT(TraceError(session + "\n" + session),
              HasSubstr("t:2: error: session_id: got \"s\", that of an earlier session"));
  EXPECT_THAT(TraceError(R"({"input_toks": 1, "output_toks": 1, "arrival_time_ns": 0,)"
                         R"( "input_tok_ids": [1]})"
                         "\n" +
                         session),
              HasSubstr("input_tok_ids: got nothing, expected a list as in the first good row"));
}

TEST(LlmServingSimReaderTest, ABadSessionIsLeftOutAsAWhole) {
  TraceReaderOptions options;
  options.skip_bad_rows = true;
  const std::vector<TraceRequest> r = MustRead(
      R"({"arrival_time_ns": 0, "sub_requests": [{"input_toks": 1, "output_toks": 1}, {}]})"
      "\n"
      R"({"arrival_time_ns": 5, "input_toks": 1, "output_toks": 1})",
      options);
  ASSERT_EQ(r.size(), 1u);
  EXPECT_EQ(r[0].arrival_ns, 5);
}

TEST(AppliedComputeReaderTest, APromptIsAllBeforeItAndTheToolsOutput) {
  const auto reader = MustOpen(std::string(kFolder) + "applied_compute.jsonl");
  const std::vector<TraceRequest> r = MustRead(*reader);
  ASSERT_EQ(r.size(), 4u);
  EXPECT_EQ(r[0].input_length, 1000);
  EXPECT_EQ(r[1].input_length, 1000 + 100 + 50);
  EXPECT_EQ(r[2].input_length, 1150 + 200 + 400);
  EXPECT_EQ(r[1].think_ns, 1500000000);
  EXPECT_EQ(r[2].think_ns, 250000000);
  EXPECT_THAT(r[2].waits_for, ElementsAre(1));
  EXPECT_THAT(r[3].waits_for, IsEmpty());
  // What turns share is exact to the token, prompt and output, for blocks of any size.
  const TraceInfo& info = reader->info();
  for (const int64_t block : {1, 16, 100, 512, 1024}) {
    EXPECT_EQ(SharedBlocks(info, r[0], r[1], block), 1100 / block) << block;
    EXPECT_EQ(SharedBlocks(info, r[1], r[2], block), 1350 / block) << block;
    EXPECT_EQ(SharedBlocks(info, r[0], r[3], block), 0) << "another session";
  }
}

TEST(AppliedComputeReaderTest, ListsMustFitTheTurns) {
  const auto row = [](const std::string& rest) {
    return R"({"input_prompt_length": 5, )" + rest + "}";
  };
  EXPECT_THAT(TraceError(row(R"("num_turns": 2, "assistant_response_length": [1])")),
              HasSubstr("t:1: error: assistant_response_length: got 1 values, expected 2"));
  EXPECT_THAT(TraceError(row(R"("num_turns": 2, "assistant_response_length": [1, 2])")),
              HasSubstr("tool_call_output_length: got 0 values, expected 1"));
  EXPECT_THAT(TraceError(row(R"("num_turns": 2, "assistant_response_length": [1, 2],)"
                             R"( "tool_call_output_length": [1], "tool_call_latency": [])")),
              HasSubstr("tool_call_latency: got 0 values, expected 1"));
  EXPECT_THAT(TraceError(row(R"("num_turns": 0, "assistant_response_length": [])")),
              HasSubstr("num_turns: got 0"));
  EXPECT_THAT(TraceError(row(R"("num_turns": 2, "assistant_response_length": [2147483647, 1],)"
                             R"( "tool_call_output_length": [1])")),
              HasSubstr("turn 0: got 2147483652 tokens of prompt and output"));
  // Prompts that repeat each other add up.
  std::string answers = "1000000000", tools = "0";
  for (int i = 0; i < 40; ++i) answers += ", 1", tools += ", 0";
  EXPECT_THAT(TraceError(row(R"("num_turns": 41, "assistant_response_length": [)" + answers +
                             R"(], "tool_call_output_length": [)" + tools.substr(3) + "]")),
              HasSubstr("tokens in the prompts up to it"));
}

TEST(TraceLabReaderTest, RoundsGoOnFromTheirPrefixAndWaitForTools) {
  const auto reader = MustOpen(std::string(kFolder) + "tracelab.jsonl");
  const std::vector<TraceRequest> r = MustRead(*reader);
  ASSERT_EQ(r.size(), 4u);
  EXPECT_EQ(r[2].session, r[0].session);
  EXPECT_EQ(r[2].input_length, 1150);
  EXPECT_THAT(r[2].waits_for, ElementsAre(r[0].row));
  EXPECT_EQ(r[2].think_ns, 1500000000) << "from the call to its result, which the next round has";
  EXPECT_THAT(r[3].waits_for, ElementsAre(r[1].row));
  EXPECT_EQ(r[3].think_ns, 3000000000) << "which the round of the call has";
  EXPECT_EQ(SharedBlocks(reader->info(), r[0], r[2], 10), 1100 / 10) << "to the token";
  EXPECT_EQ(SharedBlocks(reader->info(), r[1], r[3], 64), 640 / 64);
  EXPECT_EQ(SharedBlocks(reader->info(), r[0], r[3], 64), 0);
}

TEST(TraceLabReaderTest, BadRoundsNameWhatIsWrong) {
  const auto row = [](const std::string& rest) {
    return R"({"session_id": "a", "prefix_tokens": 0, "newly_append_tokens": 5)" + rest + "}";
  };
  EXPECT_THAT(TraceError(row("")), HasSubstr("t:1: error: field output_tokens: got nothing"));
  EXPECT_THAT(TraceError(row(R"(, "output_tokens": 1, "input_tokens_total": 6)")),
              HasSubstr("t:1: error: input_tokens_total: got 6, expected 5"));
  EXPECT_THAT(TraceError(row(R"(, "output_tokens": 67108864)")),
              HasSubstr("prompt and output: got 67108869 tokens, expected at most 67108864"));
  EXPECT_THAT(TraceError(row(R"(, "output_tokens": 1, "timing_events": [{"timestamp": "noon"}])")),
              HasSubstr("timing_events: timestamp: got \"noon\", expected a time like"));
  EXPECT_THAT(TraceError(row(R"(, "output_tokens": 1, "timing_events": 7)")),
              HasSubstr("timing_events: got 7"));
}

TEST(AiperfReaderTest, ATurnsPromptHasTheTurnsBefore) {
  const auto reader = MustOpen(std::string(kFolder) + "aiperf.jsonl");
  const std::vector<TraceRequest> requests = MustRead(*reader);
  const TraceRequest& first = requests[0];
  const TraceRequest& second = requests[1];
  const TraceRequest& other = requests[2];
  EXPECT_EQ(second.input_length, 700 + 100 + 200);
  EXPECT_THAT(second.waits_for, ElementsAre(0));
  EXPECT_EQ(second.think_ns, 2000000000);
  EXPECT_EQ(other.input_length, 64);
  EXPECT_EQ(SharedBlocks(reader->info(), first, second, 16), 800 / 16);
  EXPECT_EQ(SharedBlocks(reader->info(), first, other, 16), 0);
}

TEST(AiperfReaderTest, RowsWithHashesInBetweenAreErrors) {
  const std::string rest = R"("timestamp": 0, "input_length": 5, "output_length": 1)";
  EXPECT_THAT(TraceError("{" + rest + "}\n{" + rest + R"(, "hash_ids": [1]})"),
              HasSubstr("t:2: error: hash_ids: got it in a file whose first row has no hash_ids"));
  EXPECT_THAT(TraceError("{" + rest + R"(, "session_id": 1}
{"session_id": 1, "input_length": 2147483647, "output_length": 1})"),
              HasSubstr("t:2: error: input length: got 2147483648"));
}

TEST(MooncakeReaderTest, SequenceIdsTakeThePlaceOfHashIds) {
  const std::string first =
      R"({"timestamp": 0, "input_length": 20, "output_length": 12, "block_size": 16, )"
      R"("hash_ids": [1, 99], "sequence_hash_ids": [1, 2]})";
  const std::string second =
      R"({"timestamp": 9, "input_length": 40, "output_length": 1, "block_size": 16, )"
      R"("sequence_hash_ids": [1, 2, 3], "hash_ids": [1, 2, 77]})";
  const auto reader = MustOpenString(first + "\n" + second);
  const std::vector<TraceRequest> r = MustRead(*reader);
  EXPECT_TRUE(r[0].ids_cover_output);
  EXPECT_THAT(r[0].content_ids, ElementsAre(1, 2));
  EXPECT_EQ(SharedBlocks(reader->info(), r[0], r[1], 16), 2) << "the output is hit, too";
  EXPECT_EQ(SharedBlocks(reader->info(), r[0], r[1], 8), 4);
  EXPECT_THAT(TraceError(R"({"timestamp": 0, "input_length": 20, "output_length": 12, )"
                         R"("block_size": 16, "sequence_hash_ids": [1, 2, 3]})"),
              HasSubstr("number of block ids: got 3, expected 2 for 32 tokens"));
  EXPECT_THAT(TraceError(R"({"timestamp": 0, "input_length": 15, "output_length": 1, )"
                         R"("output_token_ids": [4], "block_size": 16, "sequence_hash_ids": [1]})"),
              HasSubstr("output token ids: got them beside sequence_hash_ids"));
}

}  // namespace
}  // namespace kvblocks::sim
