// SM-47: prompts that go on from earlier ones, by a guess.

#include "sim/trace/turn_links.h"

#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "sim/testing/trace_testing.h"

namespace kvblocks::sim {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;

// Blocks of 10 tokens; one row a second.
std::string Trace(const std::vector<std::string>& rows) {
  std::string text;
  for (size_t i = 0; i < rows.size(); ++i) {
    absl::StrAppend(&text, "{\"timestamp\": ", 1000 * i, ", \"block_size\": 10, ", rows[i], "}\n");
  }
  return text;
}
std::string Row(int64_t input, int64_t output, const std::string& ids) {
  return absl::StrCat("\"input_length\": ", input, ", \"output_length\": ", output,
                      ", \"hash_ids\": [", ids, "]");
}

std::vector<TraceRequest> Linked(const std::string& trace, std::string* note = nullptr) {
  TraceReaderOptions options;
  options.link_turns = true;
  auto reader = OpenTraceString(trace, "t", options);
  EXPECT_TRUE(reader.ok()) << reader.status();
  if (!reader.ok()) return {};
  if (note != nullptr) *note = (*reader)->info().notes.at(kTurnLinksNote);
  auto requests = AllRequests(**reader);
  EXPECT_TRUE(requests.ok()) << requests.status();
  return *requests;
}

TEST(TurnLinksTest, SM47AnOutputIsWhatTheNextPromptHasInItsPlace) {
  // 25 tokens and 8 of output; the next prompt has 40, the one behind it 61.
  std::string note;
  const auto r = Linked(Trace({Row(25, 8, "1, 2, 3"), Row(40, 5, "1, 2, 4, 5"),
                               Row(61, 2, "1, 2, 4, 5, 6, 7, 8"), Row(30, 2, "1, 9, 10")}),
                        &note);
  ASSERT_EQ(r.size(), 4u);
  EXPECT_TRUE(r[0].ids_cover_output);
  EXPECT_THAT(r[0].content_ids, ElementsAre(1, 2, 4, 5));
  EXPECT_THAT(r[1].content_ids, ElementsAre(1, 2, 4, 5, 6));
  EXPECT_FALSE(r[2].ids_cover_output);
  EXPECT_THAT(r[2].content_ids, ElementsAre(1, 2, 4, 5, 6, 7, 8));
  EXPECT_FALSE(r[3].ids_cover_output) << "no prompt goes on from it";
  // Hits of 131: without links 2, 4 and 1 blocks of 156 tokens; with them 3, 4 and 1.
  EXPECT_THAT(note, HasSubstr("2 of 4 requests are taken to go on"));
  EXPECT_THAT(note, HasSubstr("hits 51.28 % of prompt tokens, and 44.87 % without"));
}

// The end of the second prompt becomes what the third one has, and so does the first one's output
// that lies there.
TEST(TurnLinksTest, SM47LinksGoThroughSeveralTurns) {
  const auto r =
      Linked(Trace({Row(10, 14, "1"), Row(25, 10, "1, 2, 3"), Row(50, 1, "1, 2, 4, 5, 6")}));
  EXPECT_THAT(r[0].content_ids, ElementsAre(1, 2, 4));
  EXPECT_THAT(r[1].content_ids, ElementsAre(1, 2, 4, 5));
}

TEST(TurnLinksTest, SM47WhatCannotGoOnIsNotLinked) {
  // Too short; another path; no full block in common; its end is somebody else's, too.
  for (const auto& rows : std::vector<std::vector<std::string>>{
           {Row(25, 8, "1, 2, 3"), Row(32, 5, "1, 2, 4, 5")},
           {Row(25, 8, "1, 2, 3"), Row(40, 5, "1, 9, 4, 5")},
           {Row(5, 8, "1"), Row(40, 5, "2, 3, 4, 5")},
           {Row(25, 8, "1, 2, 3"), Row(25, 9, "1, 2, 3"), Row(33, 5, "1, 2, 4, 5")}}) {
    for (const TraceRequest& request : Linked(Trace(rows))) EXPECT_FALSE(request.ids_cover_output);
  }
}

TEST(TurnLinksTest, SM47OnlyTracesThatSayNothingElseAreGuessedAt) {
  const auto error = [](const std::string& trace) {
    TraceReaderOptions options;
    options.link_turns = true;
    return std::string(OpenTraceString(trace, "t", options).status().message());
  };
  EXPECT_THAT(error("TIMESTAMP,ContextTokens,GeneratedTokens\n2023-11-16 18:17:03,5,6\n"),
              HasSubstr("--link-turns: got a trace of lengths, expected block ids"));
  EXPECT_THAT(error(Trace({absl::StrCat("\"session_id\": 4, ", Row(10, 1, "1"))})),
              HasSubstr("got a trace with sessions"));
}

}  // namespace
}  // namespace kvblocks::sim
