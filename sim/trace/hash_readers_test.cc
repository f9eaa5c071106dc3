#include <map>
#include <string>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "sim/testing/trace_testing.h"
#include "sim/trace/trace_facts.h"

namespace kvblocks::sim {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;
using testing::IsEmpty;

TEST(BailianReaderTest, ChildrenOfAMissingParentShareASession) {
  const std::string row =
      R"(, "timestamp": 1, "input_length": 5, "output_length": 1, "hash_ids": []})";
  const std::vector<TraceRequest> r = MustRead(R"({"chat_id": 1, "parent_chat_id": 9)" + row + "\n" +
                     R"({"chat_id": 2, "parent_chat_id": 9)" + row + "\n" +
                     R"({"chat_id": 3, "parent_chat_id": 2)" + row + "\n" + R"({"chat_id": 4)" +
                     row + "\n");
  EXPECT_EQ(r[0].session, r[1].session);
  EXPECT_EQ(r[2].session, r[1].session);
  EXPECT_NE(r[3].session, r[1].session);
}

TEST(BailianReaderTest, BadRowsNameTheField) {
  EXPECT_THAT(TraceError(R"({"chat_id": 1, "timestamp": 0, "input_length": 32, "hash_ids": [1]})"),
              HasSubstr("t:1: error: field output_length: got nothing"));
  EXPECT_THAT(TraceError(R"({"chat_id": 1, "timestamp": 0.0000000001, "input_length": 32,)"
                         R"( "output_length": 1, "hash_ids": [1, 2]})"),
              HasSubstr("timestamp: got \"0.0000000001\", expected at most 9 digits"));
  EXPECT_THAT(TraceError(R"({"chat_id": 1, "timestamp": 0, "input_length": 100,)"
                         R"( "output_length": 1, "hash_ids": [1, 2]})"),
              HasSubstr("number of block ids: got 2, expected 7 or 6 for 100 tokens"));
}

TEST(DynamoReaderTest, HashesHave64BitsAndOtherRecordsAreCounted) {
  const auto reader = MustOpen("sim/trace/testdata/formats/dynamo.jsonl");
  const std::vector<TraceRequest> r = MustRead(*reader);
  EXPECT_EQ(reader->dialect(), "arrivals as recorded, 2 other records left out");
  EXPECT_EQ(reader->info().notes.at("day_one"), "2025-10-09");
  EXPECT_EQ(static_cast<uint64_t>(r[0].content_ids[0]), 14879255164875371896u);
}

TEST(DynamoReaderTest, WhatHadNotEndedIsNotWaitedFor) {
  const auto record = [](const std::string& id, int start_ms, int end_ms) {
    return R"({"schema": "dynamo.request.trace.v1", "event_type": "request_end", )"
           R"("event_time_unix_ms": )" +
           std::to_string(end_ms) + R"(, "agent_context": {"session_id": "s"}, "request": )" +
           R"({"request_id": ")" + id + R"(", "request_received_ms": )" + std::to_string(start_ms) +
           R"(, "output_tokens": 1, "replay": {"trace_block_size": 64, "input_length": 1, )" +
           R"("input_sequence_hashes": []}}})" + "\n";
  };
  TraceReaderOptions options;
  options.closed_loop = true;
  // b began and ended while a ran.
  const std::vector<TraceRequest> r =
      MustRead(record("b", 8000, 9000) + record("a", 0, 20000), options);
  for (const TraceRequest& request : r) EXPECT_THAT(request.waits_for, IsEmpty()) << request.id;
}

TEST(DynamoReaderTest, BadRecordsNameTheField) {
  const std::string begin =
      R"({"schema": "dynamo.request.trace.v1", "event_type": "request_end", )";
  ExpectRefusals(
      {{begin + R"("request": {"output_tokens": 1}})",
        "field request.request_received_ms: got nothing"},
       {begin + R"("request": 5})", "request: got 5, expected an object"},
       {R"({"schema": "dynamo.request.trace.v9", "event_type": "request_end"})",
        "expected \"dynamo.request.trace.v1\""},
       {begin + R"("request": {"replay": {"input_sequence_hashes": [18446744073709551616]}}})",
        "got 18446744073709551616, expected whole numbers from 0 to 2^64-1"},
       {begin + R"("request": {"request_received_ms": 9223372036855}})",
        "request_received_ms: got 9223372036855"}});
}

constexpr const char* kTrace = "sim/trace/testdata/formats/ragpulse/0_trace.jsonl";

std::map<std::string, std::string> SideFiles() {
  return {{"1_sys_prompt.jsonl", R"({"sys_prompt_id": 1, "token_length": 4})"},
          {"2_passages.jsonl", R"({"passage_id": 1, "token_length": 3})"},
          {"3_history.jsonl", ""},
          {"4_user_input.jsonl", ""},
          {"5_web_search.jsonl", ""}};
}

std::string RagError(const std::string& row, const std::map<std::string, std::string>& files,
                     TraceReaderOptions options = {}) {
  options.side_files = &files;
  return TraceError(row, options);
}

std::string RagRow(int input, const std::string& ids) {
  return R"({"timestamp": "1", "input_length": )" + std::to_string(input) +
         R"(, "output_length": 1, "hash_ids": )" + ids + "}\n";
}

// SM-48.
TEST(RagPulseReaderTest, ComponentsAreLaidOutInOrderAndTheTemplateIsNobodysElse) {
  const auto reader = MustOpen(kTrace);
  const std::vector<TraceRequest> r = MustRead(*reader);
  ASSERT_EQ(r.size(), 3u);
  EXPECT_EQ(r[0].arrival_ns, 12000000000) << "the times of the file have no order";
  EXPECT_EQ(r[2].arrival_ns, 45500000000);
  EXPECT_EQ(r[1].session, r[2].session);
  // The same component is the same tokens, wherever it stands.
  const auto& a = r[0].content_ids;
  const auto& b = r[1].content_ids;
  EXPECT_TRUE(std::equal(a.begin(), a.begin() + 43, b.begin()));
  EXPECT_NE(a[43], b[43]);
  for (size_t i = 60; i < b.size(); ++i) EXPECT_LT(b[i], 0) << "template";
  EXPECT_NE(a.back(), b.back());
}

TEST(RagPulseReaderTest, TheOrderDecidesWhatIsShared) {
  TraceReaderOptions options;
  options.rag_order = "user_input,sys_prompt,passages,history,web_search";
  const auto reader = MustOpen(kTrace, options);
  EXPECT_EQ(reader->dialect(), "components: " + options.rag_order);
  const auto facts = ComputeTraceFacts(*reader, {16});
  ASSERT_TRUE(facts.ok()) << facts.status();
  EXPECT_EQ(facts->shared_tokens, 4 + 23 + 20) << "the third after the first";
  for (const char* order : {"", "sys_prompt", "sys_prompt,passages,history,web_search,web_search",
                            "sys_prompt,passages,history,web_search,user_input,", "a,b,c,d,e",
                            "sys_prompt,passages,history,web_search,user_input,user_input"}) {
    options.rag_order = order;
    EXPECT_THAT(std::string(OpenTrace(kTrace, options).status().message()),
                HasSubstr("--rag-order: got"))
        << order;
  }
}

TEST(RagPulseReaderTest, LengthsComeFromAnotherFolderIfAsked) {
  TraceReaderOptions options;
  options.rag_lengths = "sim/trace/testdata/formats";
  EXPECT_THAT(std::string(OpenTrace(kTrace, options).status().message()),
              HasSubstr("got no file sim/trace/testdata/formats/1_sys_prompt.jsonl"));
  options.rag_lengths += "/ragpulse";
  EXPECT_TRUE(OpenTrace(kTrace, options).ok());
}

TEST(RagPulseReaderTest, BadSideFilesSayWhere) {
  const std::string row = RagRow(4, R"({"sys_prompt": [1]})");
  auto files = SideFiles();
  EXPECT_EQ(RagError(row, files), "");
  files.erase("5_web_search.jsonl");
  EXPECT_THAT(RagError(row, files), HasSubstr("got no file 5_web_search.jsonl"));
  files = SideFiles();
  files["2_passages.jsonl"] = "\n{\"passage_id\": 1}";
  EXPECT_THAT(RagError(row, files),
              HasSubstr("2_passages.jsonl:2: error: field token_length: got nothing"));
  files["2_passages.jsonl"] = "{\"passage_id\": 1, \"token_length\": -1}";
  EXPECT_THAT(RagError(row, files), HasSubstr("2_passages.jsonl:1: error: token_length: got -1"));
  files["2_passages.jsonl"] =
      "{\"passage_id\": 1, \"token_length\": 1}\n"
      "{\"passage_id\": 1, \"token_length\": 2}";
  EXPECT_THAT(RagError(row, files),
              HasSubstr("2_passages.jsonl:2: error: passage_id: got 1 again"));
  files["2_passages.jsonl"] = "{\"passage_id\": ";
  EXPECT_THAT(RagError(row, files), HasSubstr("2_passages.jsonl:1"));
}

TEST(RagPulseReaderTest, BadRowsNameTheField) {
  const auto files = SideFiles();
  EXPECT_THAT(
      RagError(RagRow(9, R"({"sys_prompt": [1, 2]})"), files),
      HasSubstr("t:1: error: hash_ids.sys_prompt: got 2, expected an id whose length stands "
                "in 1_sys_prompt.jsonl"));
  EXPECT_THAT(RagError(RagRow(6, R"({"sys_prompt": [1], "passages_ids": [1]})"), files),
              HasSubstr("input_length: got 6, expected at least 7, the sum of its components"));
  EXPECT_THAT(RagError(RagRow(2000000000, R"({"sys_prompt": [1]})"), files),
              HasSubstr("input_length: got 2000000000, expected at most 16777216"));
  EXPECT_THAT(RagError(RagRow(6, "{}"), files), HasSubstr("field hash_ids: got no component"));
  TraceReaderOptions options;
  options.format = "ragpulse";
  EXPECT_THAT(RagError(RagRow(6, "[1]"), files, options),
              HasSubstr("hash_ids: got [, expected an object"));
}

TEST(RagPulseReaderTest, CutAnywhereItIsReadOrRefused) {
  const auto files = SideFiles();
  const std::string row = RagRow(4, R"({"sys_prompt": [1]})");
  TraceReaderOptions options;
  options.format = "ragpulse";
  for (size_t size = 1; size + 1 < row.size(); ++size) {
    EXPECT_THAT(RagError(row.substr(0, size), files, options), testing::StartsWith("t:1")) << size;
  }
}

}  // namespace
}  // namespace kvblocks::sim
