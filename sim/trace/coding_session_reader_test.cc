#include <algorithm>
#include <cstdint>
#include <fstream>
#include <sstream>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "sim/testing/trace_testing.h"
#include "sim/trace/content_keys.h"
#include "sim/trace/trace_facts.h"
#include "sim/trace/validation.h"

namespace kvblocks::sim {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;
using testing::IsEmpty;
using testing::Not;

constexpr int64_t kSec = 1000000000;
constexpr const char* kFile = "sim/trace/testdata/coding_sessions.jsonl";

// A session with blocks of 4 tokens.
std::string Session(const std::string& id, const std::string& requests,
                    const std::string& more = "") {
  return absl::StrCat(R"({"id": ")", id, R"(", "block_size": 4, "hash_id_scope": "local", )", more,
                      R"("requests": [)", requests, "]}\n");
}

// A request of 4 tokens.
std::string Request(const std::string& t, const std::string& more = "") {
  return absl::StrCat(R"({"t": )", t, R"(, "type": "n", "in": 4, "out": 1, "hash_ids": [1])",
                      more.empty() ? "" : ", ", more, "}");
}

std::string Agent(const std::string& t, const std::string& requests) {
  return absl::StrCat(R"({"t": )", t, R"(, "type": "subagent", "requests": [)", requests, "]}");
}

std::vector<int64_t> ThinkTimes(const std::string& content) {
  std::vector<int64_t> out;
  for (const TraceRequest& r : MustRead(content)) out.push_back(r.think_ns);
  return out;
}

TEST(CodingSessionReaderTest, IdsOfTwoSessionsNeverMatch) {
  const auto reader = MustOpen(kFile);
  const auto facts = ComputeTraceFacts(*reader, {4});
  ASSERT_TRUE(facts.ok()) << facts.status();
  EXPECT_EQ(facts->sessions, 2);
  EXPECT_EQ(facts->block_refs, 2 + 3 + 2 + 1 + 2 + 1 + 3);
  EXPECT_EQ(facts->prefix_hits, 2 + 1 + 1 + 2) << "1, 2 of each session, and 9 of the sub-agents";
  const std::vector<TraceRequest> all =
      MustRead(Session("a", Request("0")) + Session("b", Request("0")));
  ASSERT_EQ(all.size(), 2u);
  EXPECT_EQ(all[0].content_ids, all[1].content_ids);
  EXPECT_NE(ScopeKey(reader->info(), all[0]), ScopeKey(reader->info(), all[1]));
}

TEST(CodingSessionReaderTest, GlobalIdsMatchAcrossSessions) {
  const std::string global =
      R"({"id": "a", "hash_id_scope": "global", "requests": [{"t": 0, "type": "s", "in": 64, "out": 1, "hash_ids": [5]}]})";
  std::string other = global;
  other[8] = 'b';
  const auto reader = MustOpenString(global + "\n" + other);
  EXPECT_EQ(reader->info().block_tokens, 64) << "the recorder's, if the file does not say";
  EXPECT_EQ(ComputeTraceFacts(*reader, {16})->prefix_hits, 1);
  EXPECT_THAT(TraceError(global + "\n" + Session("c", Request("0"), R"("x": 1, )")),
              HasSubstr("t:2: error: block_size: got 4, expected 64"));
  EXPECT_THAT(TraceError(Session("c", Request("0")) + global),
              HasSubstr("hash_id_scope: got global, expected local"));
}

TEST(CodingSessionReaderTest, WithoutThinkTimeTheRecordedGapCounts) {
  EXPECT_THAT(ThinkTimes(Session("a", Request("1", R"("api_time": 2.5)") + "," + Request("9"))),
              ElementsAre(0, 5500000000));
  EXPECT_THAT(ThinkTimes(Session("a", Request("1") + "," + Request("9"))),
              ElementsAre(0, 8 * kSec));
  EXPECT_THAT(ThinkTimes(Session("a", Request("1", R"("api_time": 20)") + "," + Request("9"))),
              ElementsAre(0, 0))
      << "never negative";
  EXPECT_THAT(ThinkTimes(Session("a", Request("1") + "," +
                                          Request("9", R"("think_time": null, "api_time": null)"))),
              ElementsAre(0, 8 * kSec))
      << "null means absent";
}

TEST(CodingSessionReaderTest, SubAgentsMayComeFirstAndNestAndBeEmpty) {
  const std::vector<TraceRequest> all = MustRead(Session(
      "a", Agent("0", Agent("1", Request("0"))) + "," + Agent("2", "") + "," + Request("5")));
  ASSERT_EQ(all.size(), 2u);
  EXPECT_EQ(all[0].id, "a/0/0/0");
  EXPECT_THAT(all[0].waits_for, IsEmpty());
  EXPECT_THAT(all[1].waits_for, ElementsAre(0));
  EXPECT_EQ(all[1].think_ns, 4 * kSec);
}

TEST(CodingSessionReaderTest, TimesMayGoBackwardsUnlessForbidden) {
  const std::string content = Session("a", Request("5") + "," + Request("3"));
  auto reader = OpenTraceString(content, "t", {});
  ASSERT_TRUE(reader.ok()) << reader.status();
  ASSERT_TRUE(AllRequests(**reader).ok());
  EXPECT_EQ((*reader)->counters().backwards, 1);
  TraceReaderOptions options;
  options.require_sorted = true;
  EXPECT_THAT(TraceError(content, options), HasSubstr("request 1: t: got 3000000000 ns"));
}

TEST(CodingSessionReaderTest, SaysWhatIsWrongWithARequest) {
  const auto error = [](const std::string& request) {
    return TraceError(Session("a", Request("0")) + Session("b", Request("0") + "," + request));
  };
  const std::string at = "t:2: error: request 1: ";
  ExpectRefusals(
      error,
      {{R"({"t": 0, "in": 4, "out": 1, "hash_ids": [1]})", at + "field type: got nothing"},
       {R"({"type": "n", "in": 4, "out": 1, "hash_ids": [1]})", at + "field t: got nothing"},
       {R"({"type": "n", "t": 0})", at + "field hash_ids: got nothing"},
       {R"({"type": "subagent", "t": 0})", at + "field requests: got"},
       {R"({"t": 0, "type": "x", "in": 4, "out": 1, "hash_ids": [1]})",
        at + "type: got \"x\", expected n, s or subagent"},
       {Request("-1"), at + "t: "},
       {Request("\"1\""), at + "t: got \"1\", expected a number"},
       {Request("0", R"("t": 1)"), at + "field t: got it twice"},
       {Request("0", R"("think_time": -2)"), at + "think_time: "},
       {Request("0", R"("requests": [])"), at + "requests: got a list in a request of type n"},
       {R"({"t": 0, "type": "n", "in": 1.5, "out": 1, "hash_ids": []})", at + "in: got 1.5"},
       {R"({"t": 0, "type": "n", "in": 2147483648, "out": 1, "hash_ids": []})",
        at + "in: got 2147483648"},
       {R"({"t": 0, "type": "n", "in": 2147483647, "out": 1, "hash_ids": []})",
        at + "in plus out: got 2147483648"},
       {R"({"t": 0, "type": "n", "in": 4, "out": 1, "hash_ids": "1"})",
        at + "hash_ids: got \"1\", expected a list"},
       {R"({"t": 0, "type": "n", "in": 9, "out": 1, "hash_ids": [1, 2, 3]})",
        at + "number of block ids: got 3, expected 2 for the full blocks of 9"},
       {R"({"t": 0, "type": "n", "in": 9, "out": 1, "hash_ids": [1]})",
        at + "number of block ids: got 1, expected 2"},
       {"7", "request 1: got 7, expected an object"},
       {Agent("0", Request("0") + ", 7"), "request 1/1: got 7, expected an object"}});
}

TEST(CodingSessionReaderTest, SaysWhatIsWrongWithASession) {
  const std::string good = Session("a", Request("0"));
  ExpectRefusals({{good + good, "t:2: error: id: got \"a\", that of an earlier"},
                  {good + Session("b", ""), "t:2: error: requests: got none"},
                  {good + Session("b", Agent("0", "")), "requests: got none"},
                  {good + R"({"id": "b", "block_size": 4})", "field requests: got nothing"}});
  EXPECT_THAT(TraceError(good + R"({"id": "b", "block_size": 0, "requests": {}})"),
              testing::AllOf(HasSubstr("block_size: got 0, expected a whole number from 1"),
                             HasSubstr("requests: got {")));
  EXPECT_THAT(TraceError(good + R"({"id": "b", "hash_id_scope": "?", "requests": []})"),
              HasSubstr("hash_id_scope: got \"?\", expected local or global"));
  EXPECT_THAT(TraceError(good + R"({"id": "b", "requests": [{"t": 0, ]})"), HasSubstr("JSON: got"));
  EXPECT_THAT(TraceError(good + good.substr(0, good.size() - 2)), HasSubstr("t:2:"));
}

TEST(CodingSessionReaderTest, ADocumentCanNeitherNestNorFailWithoutEnd) {
  std::string nested = Request("0");
  for (int i = 0; i < 8; ++i) nested = Agent("0", nested);
  EXPECT_EQ(MustRead(Session("a", nested)).size(), 1u);
  EXPECT_THAT(TraceError(Session("a", Agent("0", nested))),
              HasSubstr("sub-agents nested deeper than 8"));
  std::string deep = Request("0");
  for (int i = 0; i < 2000; ++i) deep = Agent("0", deep);
  EXPECT_THAT(TraceError(Session("a", deep)), Not(IsEmpty()));
  EXPECT_FALSE(ReadTrace(Session("a", Request("0", R"("stop": )" + std::string(5000, '[')))).ok());

  std::string many = "7";
  for (int i = 0; i < 100000; ++i) many += ",7";
  TraceReaderOptions options;
  options.max_errors = 1000;
  const std::string error = TraceError(Session("a", many), options);
  EXPECT_EQ(std::count(error.begin(), error.end(), '\n') + 1,
            20);
}

TEST(CodingSessionReaderTest, ABadSessionIsLeftOutAsAWhole) {
  TraceReaderOptions options;
  options.skip_bad_rows = true;
  const auto reader = MustOpenString(Session("x", "7") + Session("a", Request("0")) +
                                    Session("b", Request("0") + "," + Request("1", R"("out": 2)")) +
                                    Session("c", Request("0") + "," + Request("1")), options);
  const std::vector<TraceRequest> all = MustRead(*reader);
  ASSERT_EQ(all.size(), 3u);
  EXPECT_EQ(all[1].id, "c/0");
  EXPECT_THAT(all[2].waits_for, ElementsAre(all[1].row));
  EXPECT_EQ(reader->counters().bad_rows, 2);
  EXPECT_EQ(reader->counters().rows, 5) << "a bad session is one row";
}

TEST(CodingSessionReaderTest, ADamagedFirstSessionIsStillOne) {
  EXPECT_THAT(TraceError(R"({"id": "a", "hash_id_scope": "local", "requests": [{"hash_ids": [1]])"),
              HasSubstr("t:1:"));
  TraceReaderOptions options;
  options.skip_bad_rows = true;
  EXPECT_EQ(MustRead("{\"id\": 1, \"hash_id_scope\": \"local\", ]\n" + Session("a", Request("0")),
                     options)
                .size(),
            1u);
}

TEST(CodingSessionReaderTest, BlockSizeCanBeOverridden) {
  TraceReaderOptions options;
  options.format = "coding";
  options.trace_block_size = 2;
  EXPECT_THAT(TraceError(Session("a", Request("0")), options),
              HasSubstr("got 1, expected 2 for the full blocks of 4 tokens in blocks of 2"));
}

TEST(CodingSessionReaderTest, ValidationKnowsLocalIdsAndTheRecordersFields) {
  ValidationOptions options;
  const auto good = ValidateTrace(kFile, options);
  ASSERT_TRUE(good.ok()) << good.status();
  EXPECT_EQ(good->num_requests, 7);
  EXPECT_EQ(good->num_sessions, 2);
  EXPECT_EQ(good->num_errors() + good->num_warnings(), 0);
  // Within session two the sub-agent has 1 after 9; 1 of session one is another id.
  EXPECT_EQ(good->num_notes(), 1);
  const auto odd = ValidateTraceString(
      Session("a", Request("0", R"("tink_time": 3)"), R"("modells": [], )"), "t", options);
  ASSERT_TRUE(odd.ok()) << odd.status();
  EXPECT_EQ(odd->num_notes(), 2) << "fields that are not read";
}

}  // namespace
}  // namespace kvblocks::sim
