#include <string>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "sim/testing/trace_testing.h"
#include "sim/trace/content_keys.h"
#include "sim/trace/line_rows.h"
#include "sim/trace/trace_facts.h"

namespace kvblocks::sim {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;
using testing::IsEmpty;

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
  const auto reader = MustOpen("sim/trace/testdata/formats/applied_compute.jsonl");
  const std::vector<TraceRequest> r = MustRead(*reader);
  ASSERT_EQ(r.size(), 4u);
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
  ExpectRefusals({{row(R"("num_turns": 2, "assistant_response_length": [1])"),
                   "t:1: error: assistant_response_length: got 1 values, expected 2"},
                  {row(R"("num_turns": 2, "assistant_response_length": [1, 2])"),
                   "tool_call_output_length: got 0 values, expected 1"},
                  {row(R"("num_turns": 2, "assistant_response_length": [1, 2],)"
                       R"( "tool_call_output_length": [1], "tool_call_latency": [])"),
                   "tool_call_latency: got 0 values, expected 1"},
                  {row(R"("num_turns": 0, "assistant_response_length": [])"), "num_turns: got 0"},
                  {row(R"("num_turns": 2, "assistant_response_length": [2147483647, 1],)"
                       R"( "tool_call_output_length": [1])"),
                   "turn 0: got 2147483652 tokens of prompt and output"}});
  // Prompts that repeat each other add up.
  std::string answers = "1000000000", tools = "0";
  for (int i = 0; i < 40; ++i) answers += ", 1", tools += ", 0";
  EXPECT_THAT(TraceError(row(R"("num_turns": 41, "assistant_response_length": [)" + answers +
                             R"(], "tool_call_output_length": [)" + tools.substr(3) + "]")),
              HasSubstr("tokens in the prompts up to it"));
}

TEST(TraceLabReaderTest, BadRoundsNameWhatIsWrong) {
  const auto row = [](const std::string& rest) {
    return R"({"session_id": "a", "prefix_tokens": 0, "newly_append_tokens": 5)" + rest + "}";
  };
  ExpectRefusals({{row(""), "t:1: error: field output_tokens: got nothing"},
                  {row(R"(, "output_tokens": 1, "input_tokens_total": 6)"),
                   "t:1: error: input_tokens_total: got 6, expected 5"},
                  {row(R"(, "output_tokens": 67108864)"),
                   "prompt and output: got 67108869 tokens, expected at most 67108864"},
                  {row(R"(, "output_tokens": 1, "timing_events": [{"timestamp": "noon"}])"),
                   "timing_events: timestamp: got \"noon\", expected a time like"},
                  {row(R"(, "output_tokens": 1, "timing_events": 7)"), "timing_events: got 7"}});
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

std::string Conversation(const std::vector<std::pair<std::string, std::string>>& messages) {
  std::string text;
  for (const auto& [role, value] : messages) {
    text +=
        (text.empty() ? "" : ", ") + ("{\"from\": \"" + role + "\", \"value\": \"" + value) + "\"}";
  }
  return "{\"conversations\": [" + text + "]}";
}

TEST(PseudoTokensTest, EqualBeginningsHaveEqualTokens) {
  const PseudoTokens tokens(4);
  std::vector<uint32_t> a, b;
  tokens.AppendText("the same begin, one end", &a);
  tokens.AppendText("the same begin, two ends", &b);
  EXPECT_EQ(tokens.NumberOf("the same begin, one end"), 6);
  ASSERT_EQ(a.size(), 6u);
  for (size_t i = 0; i < 4; ++i) EXPECT_EQ(a[i], b[i]);
  EXPECT_NE(a[4], b[4]);
  EXPECT_EQ(tokens.NumberOf(""), 0);
  // Pinned, as files and reports must be the same everywhere.
  EXPECT_EQ(a[0], 2343657161u);
  std::vector<uint32_t> role, end;
  PseudoTokens::AppendRole("user", &role);
  tokens.AppendText("user", &end);
  EXPECT_NE(role, end);
}

// SM-45.
TEST(ShareGptReaderTest, FirstTurnsAreFilteredAsBenchmarksDo) {
  const std::string good = Conversation({{"human", std::string(40, 'a')}, {"gpt", "0123456789ab"}});
  const std::string short_answer = Conversation({{"human", std::string(40, 'a')}, {"gpt", "ab"}});
  const std::string long_prompt =
      Conversation({{"human", std::string(5000, 'a')}, {"gpt", "0123456789ab"}});
  const std::string long_sum =
      Conversation({{"human", std::string(4000, 'a')}, {"gpt", std::string(5000, 'b')}});
  const std::string no_answer = Conversation({{"human", "hello"}});
  const std::string file =
      "[" + good + "," + short_answer + "," + long_prompt + "," + long_sum + "," + no_answer + "]";
  auto r = ReadTrace(file);
  ASSERT_TRUE(r.ok()) << r.status();
  ASSERT_EQ(r->size(), 1u);
  EXPECT_EQ((*r)[0].input_length, 10 + 3) << "two roles and an end";
  EXPECT_EQ((*r)[0].output_length, 3 + 1) << "and its end";
  TraceReaderOptions options;
  options.sharegpt = "first-turn-all";
  r = ReadTrace(file, options);
  ASSERT_TRUE(r.ok()) << r.status();
  EXPECT_EQ(r->size(), 4u);
  auto reader = OpenTraceString(file, "t", {});
  ASSERT_TRUE(AllRequests(**reader).ok());
  EXPECT_EQ((*reader)->counters().not_selected, 4);
  EXPECT_TRUE((*reader)->info().pseudo_tokens);
  const auto facts = ComputeTraceFacts(**OpenTraceString(file, "t", {}), {});
  ASSERT_TRUE(facts.ok()) << facts.status();
  EXPECT_THAT(FormatTraceFacts(*facts), HasSubstr("pseudo-tokens"));
}

TEST(ShareGptReaderTest, SessionsRepeatTheirHistory) {
  TraceReaderOptions options;
  options.sharegpt = "sessions";
  const auto reader = MustOpen("sim/trace/testdata/formats/sharegpt.json", options);
  const std::vector<TraceRequest> requests = MustRead(*reader);
  ASSERT_EQ(requests.size(), 3u);
  // Both of the first conversation wait for nothing but each other and come first.
  const auto turn = [&](const std::string& id) -> const TraceRequest& {
    for (const TraceRequest& r : requests) {
      if (r.id == id) return r;
    }
    return requests.front();
  };
  const TraceRequest& first = turn("0");
  const TraceRequest& second = turn("1");
  EXPECT_THAT(second.waits_for, ElementsAre(0));
  EXPECT_EQ(second.session, first.session);
  EXPECT_EQ(second.turn, 1u);
  EXPECT_NE(turn("2").session, first.session);
  // The second prompt is the first one, its answer, and more.
  std::vector<int64_t> begin = first.content_ids;
  begin.insert(begin.end(), first.output_ids.begin(), first.output_ids.end());
  ASSERT_GT(second.content_ids.size(), begin.size());
  EXPECT_TRUE(std::equal(begin.begin(), begin.end(), second.content_ids.begin()));
}

TEST(ShareGptReaderTest, BytesPerTokenScaleLengths) {
  TraceReaderOptions options;
  options.sharegpt = "first-turn-all";
  options.bytes_per_token = 10;
  const std::vector<TraceRequest> r = MustRead(
      "[" + Conversation({{"user", std::string(41, 'x')}, {"assistant", "y"}}) + "]", options);
  EXPECT_EQ(r[0].input_length, 5 + 3);
  options.bytes_per_token = 0;
  EXPECT_THAT(TraceError("[]", options), HasSubstr("--bytes-per-token: got 0"));
}

TEST(ShareGptReaderTest, ErrorsNameElementMessageAndPlace) {
  const std::string good = Conversation({{"human", "hello there"}, {"gpt", "0123456789ab"}});
  EXPECT_THAT(TraceError("[" + good + ",\n {\"conversations\": [{\"from\": \"human\"}]}]"),
              HasSubstr("t:2: error: element 2: message 0: field value: got nothing"));
  EXPECT_THAT(TraceError("[" + good + ", {\"conversations\": 5}]"),
              HasSubstr("element 2: conversations: got 5, expected a list"));
  EXPECT_THAT(TraceError("[" + good + ", {}]"), HasSubstr("element 2: field conversations: got"));
  EXPECT_THAT(TraceError("[" + good + ", {\"conversations\": [{\"from\": 1, \"value\": []}]}]"),
              HasSubstr("message 0: from: got 1, expected a string"));
  EXPECT_THAT(TraceError("[" + good), HasSubstr("(a truncated file)"));
  EXPECT_THAT(TraceError("[" + good + ", {\"id\": \"x"), HasSubstr("(a truncated file)"));
  EXPECT_THAT(TraceError("[" + good + ",]"), HasSubstr("expected an element after the comma"));
  EXPECT_THAT(TraceError("[" + good + "] 5"), HasSubstr("expected nothing after the array"));
  EXPECT_THAT(TraceError("[" + good + " " + good + "]"), HasSubstr("error: element 1: JSON: got"));
  EXPECT_TRUE(ReadTrace("\xef\xbb\xbf [ ]\n")->empty());
}

TEST(ShareGptReaderTest, ColumnsCountFromTheLine) {
  const std::string error = TraceError("[  {\"conversations\": [{\"from\" \"x\"}]}]");
  EXPECT_THAT(error, testing::MatchesRegex("t:1:[0-9]+: error: element 1: .*"));
  const int column = std::stoi(error.substr(4));
  EXPECT_GE(column, 20);
  EXPECT_LE(column, 40);
}

TEST(ShareGptReaderTest, HistoriesOfHistoriesAreBounded) {
  std::vector<std::pair<std::string, std::string>> messages;
  for (int i = 0; i < 3000; ++i) {
    messages.push_back({i % 2 == 0 ? "human" : "gpt", std::string(100, 'a')});
  }
  TraceReaderOptions options;
  options.sharegpt = "sessions";
  EXPECT_THAT(TraceError("[" + Conversation(messages) + "]", options),
              HasSubstr("tokens in all prompts, expected at most 16777216"));
}

TEST(ShareGptReaderTest, LongElementsAreBadRowsAndTheNextOneIsRead) {
  const std::string good = Conversation({{"human", "hello there"}, {"gpt", "0123456789ab"}});
  const std::string longer =
      Conversation({{"human", std::string(900, 'a')}, {"gpt", "0123456789"}});
  TraceReaderOptions options;
  options.max_line_bytes = 500;
  options.skip_bad_rows = true;
  const auto reader = MustOpenString("[" + longer + "," + good + "]", options);
  EXPECT_EQ(AllRequests(*reader)->size(), 1u);
  EXPECT_EQ(reader->counters().bad_rows, 1);
  EXPECT_THAT(reader->warnings()[0], HasSubstr("element 1: length: got"));
}

}  // namespace
}  // namespace kvblocks::sim
