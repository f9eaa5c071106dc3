#include <string>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "sim/testing/trace_testing.h"
#include "sim/trace/line_rows.h"
#include "sim/trace/trace_facts.h"

namespace kvblocks::sim {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;

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
  const std::vector<TraceRequest> r = MustRead("[" + Conversation({{"user", std::string(41, 'x')}, {"assistant", "y"}}) + "]",
                     options);
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
