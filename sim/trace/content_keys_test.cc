#include "sim/trace/content_keys.h"

#include <algorithm>
#include <cstdint>
#include <string>
#include <tuple>
#include <vector>

#include "absl/strings/str_cat.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "rapidcheck/gtest.h"
#include "sim/testing/trace_testing.h"
#include "sim/trace/trace_reader.h"

namespace kvblocks::sim {
namespace {

using Keys = std::vector<absl::uint128>;
using Symbol = std::tuple<int, std::vector<int64_t>, int64_t>;
using testing::ElementsAre;
using testing::HasSubstr;

TraceRequest Prompt(int64_t row, int64_t input, std::vector<int64_t> ids) {
  TraceRequest request;
  request.row = row;
  request.input_length = input;
  request.content_ids = std::move(ids);
  return request;
}

TraceInfo BlockIds(int64_t block_tokens) {
  TraceInfo info;
  info.block_tokens = block_tokens;
  return info;
}

Keys KeysOf(const TraceInfo& info, const TraceRequest& request, int64_t block, int64_t tokens,
            int64_t lookahead = 0) {
  Keys keys;
  ContentKeys(info, request, block, "", lookahead).AppendBlocks(request, tokens, &keys);
  return keys;
}

int64_t CommonBlocks(const Keys& a, const Keys& b) {
  return std::mismatch(a.begin(), a.begin() + static_cast<int64_t>(std::min(a.size(), b.size())),
                       b.begin())
             .first -
         a.begin();
}

TEST(ContentKeysExamples, WE32_KeysFromTraceIds) {
  const TraceInfo info = BlockIds(512);
  const TraceRequest first = Prompt(0, 1300, {7, 9, 12});
  const TraceRequest later = Prompt(1, 1100, {7, 9, 13});
  const TraceRequest same = Prompt(2, 1300, {7, 9, 12});

  EXPECT_EQ(KeysOf(info, first, 64, 1300).size(), 20u);
  EXPECT_EQ(CommonBlocks(KeysOf(info, first, 64, 1300), KeysOf(info, later, 64, 1100)), 16);
  EXPECT_EQ(CommonBlocks(KeysOf(info, first, 512, 1300), KeysOf(info, later, 512, 1100)), 2);
  EXPECT_EQ(CommonBlocks(KeysOf(info, first, 1024, 1300), KeysOf(info, later, 1024, 1100)), 1);
  EXPECT_EQ(CommonBlocks(KeysOf(info, first, 64, 1300), KeysOf(info, same, 64, 1299)), 20);
  // Blocks 0-7 depend on id 7 only, 8-15 on 7>9, 16-19 on all three.
  EXPECT_EQ(CommonBlocks(KeysOf(info, first, 64, 1300),
                         KeysOf(info, Prompt(3, 1300, {7, 8, 12}), 64, 1300)),
            8);
}

TEST(ContentKeysTest, ScopeSeparatesSaltsAdaptersSessionsTenantsAndTraces) {
  TraceInfo info = BlockIds(16);
  TraceRequest base = Prompt(0, 16, {1});
  const auto key = [&](const TraceInfo& i, const TraceRequest& r, const char* trace = "") {
    Keys keys;
    ContentKeys(i, r, 16, trace).AppendBlocks(r, 16, &keys);
    return keys.at(0);
  };
  TraceRequest salted = base;
  salted.salt = "x";
  TraceRequest adapted = base;
  adapted.adapter = "x";
  EXPECT_NE(key(info, base), key(info, salted));
  EXPECT_NE(key(info, base), key(info, adapted));
  EXPECT_NE(key(info, salted), key(info, adapted));
  EXPECT_NE(key(info, base, "a"), key(info, base, "b"));

  TraceRequest other = base;
  other.session = 2;
  other.tenant = "t";
  EXPECT_EQ(key(info, base), key(info, other));
  info.scope = ContentScope::kTenant;
  EXPECT_NE(key(info, base), key(info, other));
  info.scope = ContentScope::kSession;
  EXPECT_NE(key(info, base), key(info, other));
  TraceRequest same_session = other;
  same_session.row = 5;
  EXPECT_EQ(key(info, same_session), key(info, other));
}

TEST(ContentKeysTest, BlockSizesFarAboveThePromptGiveNothing) {
  EXPECT_TRUE(KeysOf(BlockIds(16), Prompt(0, 64, {1, 2, 3, 4}), int64_t{1} << 62, 64).empty());
  EXPECT_TRUE(KeysOf(BlockIds(int64_t{1} << 62), Prompt(0, 64, {1}), 128, 64).empty());
  EXPECT_EQ(KeysOf(BlockIds(int64_t{1} << 62), Prompt(0, 64, {1}), 32, 64).size(), 2u);
}

// One symbol per token, spelled out: kind, the ids so far or the request, offset or token id.

std::vector<Symbol> NaiveSymbols(const TraceInfo& info, const TraceRequest& r, int64_t tokens) {
  std::vector<Symbol> symbols;
  for (int64_t p = 0; p < tokens; ++p) {
    const int64_t id_index = info.block_tokens > 0 ? p / info.block_tokens : 0;
    const int64_t output = p - r.input_length;
    if (p < r.input_length && id_index < static_cast<int64_t>(r.content_ids.size())) {
      if (info.block_tokens == 1) {
        symbols.push_back({1, {}, r.content_ids[static_cast<size_t>(p)]});
      } else {
        symbols.push_back({0,
                           {r.content_ids.begin(), r.content_ids.begin() + id_index + 1},
                           p % info.block_tokens});
      }
    } else if (output >= 0 && output < static_cast<int64_t>(r.output_ids.size())) {
      symbols.push_back({1, {}, r.output_ids[static_cast<size_t>(output)]});
    } else {
      symbols.push_back({2, {r.row}, p});
    }
  }
  return symbols;
}

TraceRequest RandomRequest(int64_t row, int64_t bt) {
  TraceRequest r;
  r.row = *rc::gen::inRange<int64_t>(0, 2) == 0 ? row : 7;
  r.input_length = *rc::gen::inRange<int64_t>(1, 60);
  r.output_length = *rc::gen::inRange<int64_t>(0, 20);
  if (bt > 0) {
    const int64_t floor_ids = r.input_length / bt;
    const bool partial = *rc::gen::inRange(0, 2) == 0;
    const int64_t n = partial || bt == 1 ? (r.input_length + bt - 1) / bt : floor_ids;
    for (int64_t i = 0; i < n; ++i) r.content_ids.push_back(*rc::gen::inRange<int64_t>(0, 2));
  }
  if (*rc::gen::inRange(0, 2) == 0) {
    for (int64_t i = 0; i < r.output_length; ++i) {
      r.output_ids.push_back(*rc::gen::inRange<uint32_t>(0, 2));
    }
  }
  return r;
}

// Of symbols behind a block that its key covers as well.
int64_t RandomLookahead() { return *rc::gen::element<int64_t>(0, 0, 1, 3, 9); }

RC_GTEST_PROP(ContentKeysProperty, KeysAreEqualIffSymbolsAre, ()) {
  const TraceInfo info = BlockIds(*rc::gen::element<int64_t>(0, 1, 2, 3, 4, 8, 16));
  const int64_t block = *rc::gen::element<int64_t>(1, 2, 3, 4, 8, 12, 32);
  const TraceRequest a = RandomRequest(0, info.block_tokens);
  const TraceRequest b = RandomRequest(1, info.block_tokens);
  if (a.row == b.row) RC_PRE(a.input_length == b.input_length && a.output_ids == b.output_ids);
  const int64_t tokens_a = a.input_length + a.output_length;
  const int64_t tokens_b = b.input_length + b.output_length;
  const std::vector<Symbol> symbols_a = NaiveSymbols(info, a, tokens_a);
  const std::vector<Symbol> symbols_b = NaiveSymbols(info, b, tokens_b);
  const int64_t lookahead = RandomLookahead();
  const Keys keys_a = KeysOf(info, a, block, tokens_a, lookahead);
  const Keys keys_b = KeysOf(info, b, block, tokens_b, lookahead);
  RC_ASSERT(static_cast<int64_t>(keys_a.size()) ==
            std::max<int64_t>(tokens_a - lookahead, 0) / block);
  for (size_t i = 0; i < keys_a.size(); ++i) {
    for (size_t j = 0; j < keys_b.size(); ++j) {
      const int64_t end = static_cast<int64_t>(i + 1) * block + lookahead;
      const bool equal = i == j && std::equal(symbols_a.begin(), symbols_a.begin() + end,
                                              symbols_b.begin(), symbols_b.begin() + end);
      RC_ASSERT((keys_a[i] == keys_b[j]) == equal);
    }
  }
}

RC_GTEST_PROP(ContentKeysProperty, GrowingInAnyStepsGivesTheSameKeys, ()) {
  const TraceInfo info = BlockIds(*rc::gen::element<int64_t>(0, 1, 2, 3, 4, 8, 16));
  const int64_t block = *rc::gen::element<int64_t>(1, 2, 3, 4, 8, 12, 32);
  const TraceRequest r = RandomRequest(0, info.block_tokens);
  const int64_t tokens = r.input_length + r.output_length;
  const int64_t lookahead = RandomLookahead();
  ContentKeys grown(info, r, block, "", lookahead);
  Keys keys;
  for (int64_t known = 0; known < tokens;) {
    known += *rc::gen::inRange<int64_t>(1, 9);
    grown.AppendBlocks(r, std::min(known, tokens), &keys);
  }
  RC_ASSERT(keys == KeysOf(info, r, block, tokens, lookahead));
  RC_ASSERT(grown.num_blocks() == static_cast<int64_t>(keys.size()));
}

// SM-47: prompts that go on from earlier ones, by a guess.
// Blocks of 10 tokens; one row a second.
std::string Trace(const std::vector<std::string>& rows) {
  std::string text;
  for (size_t i = 0; i < rows.size(); ++i) {
    absl::StrAppend(&text, "{\"timestamp\": ", 1000 * i, ", \"block_size\": 10, ", rows[i], "}\n");
  }
  return text;
}
std::string IdsRow(int64_t input, int64_t output, const std::string& ids) {
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
  const auto r = Linked(Trace({IdsRow(25, 8, "1, 2, 3"), IdsRow(40, 5, "1, 2, 4, 5"),
                               IdsRow(61, 2, "1, 2, 4, 5, 6, 7, 8"), IdsRow(30, 2, "1, 9, 10")}),
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
  const auto r = Linked(Trace(
      {IdsRow(10, 14, "1"), IdsRow(25, 10, "1, 2, 3"), IdsRow(50, 1, "1, 2, 4, 5, 6")}));
  EXPECT_THAT(r[0].content_ids, ElementsAre(1, 2, 4));
  EXPECT_THAT(r[1].content_ids, ElementsAre(1, 2, 4, 5));
}

TEST(TurnLinksTest, SM47WhatCannotGoOnIsNotLinked) {
  // Too short; another path; no full block in common; its end is somebody else's, too.
  for (const auto& rows : std::vector<std::vector<std::string>>{
           {IdsRow(25, 8, "1, 2, 3"), IdsRow(32, 5, "1, 2, 4, 5")},
           {IdsRow(25, 8, "1, 2, 3"), IdsRow(40, 5, "1, 9, 4, 5")},
           {IdsRow(5, 8, "1"), IdsRow(40, 5, "2, 3, 4, 5")},
           {IdsRow(25, 8, "1, 2, 3"), IdsRow(25, 9, "1, 2, 3"), IdsRow(33, 5, "1, 2, 4, 5")}}) {
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
  EXPECT_THAT(error(Trace({absl::StrCat("\"session_id\": 4, ", IdsRow(10, 1, "1"))})),
              HasSubstr("got a trace with sessions"));
}

}  // namespace
}  // namespace kvblocks::sim
