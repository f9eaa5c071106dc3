#include <fstream>
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

constexpr int64_t kSecond = 1000000000;

std::vector<TraceRequest> Sample(const std::string& file, const TraceReaderOptions& options = {}) {
  auto reader = OpenTrace("sim/trace/testdata/formats/" + file, options);
  EXPECT_TRUE(reader.ok()) << reader.status();
  auto requests = AllRequests(**reader);
  EXPECT_TRUE(requests.ok()) << requests.status();
  return requests.ok() ? *requests : std::vector<TraceRequest>();
}

TEST(BailianReaderTest, ConversationsAreSessionsAndArriveAsRecorded) {
  const std::vector<TraceRequest> r = Sample("bailian.jsonl");
  ASSERT_EQ(r.size(), 4u);
  EXPECT_EQ(r[0].id, "7");
  EXPECT_EQ(r[0].arrival_ns, kSecond / 4);
  EXPECT_EQ(r[0].slo_class, "text");
  EXPECT_EQ(r[2].session, r[0].session);
  EXPECT_EQ(r[2].turn, 1u);
  EXPECT_NE(r[1].session, r[0].session);
  EXPECT_THAT(r[2].waits_for, IsEmpty());
  EXPECT_EQ(r[3].turn, 3u) << "the turns before are in another file";
}

// SM-42.
TEST(BailianReaderTest, InAClosedLoopAChildWaitsForItsParent) {
  TraceReaderOptions options;
  options.closed_loop = true;
  const std::vector<TraceRequest> r = Sample("bailian.jsonl", options);
  EXPECT_THAT(r[2].waits_for, ElementsAre(0));
  EXPECT_EQ(r[2].arrival_ns, 20125 * kSecond / 1000) << "and not before its own time";
  EXPECT_THAT(r[3].waits_for, IsEmpty()) << "the parent is not in the file";
}

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
  auto requests = AllRequests(*reader);
  ASSERT_TRUE(requests.ok()) << requests.status();
  EXPECT_EQ(reader->dialect(), "arrivals as recorded, 2 other records left out");
  EXPECT_EQ(reader->info().notes.at("day_one"), "2025-10-09");
  EXPECT_EQ(reader->info().block_tokens, 64);
  const std::vector<TraceRequest>& r = *requests;
  ASSERT_EQ(r.size(), 3u);
  EXPECT_EQ(static_cast<uint64_t>(r[0].content_ids[0]), 14879255164875371896u);
  EXPECT_EQ(r[0].content_ids[1], -1) << "2^64-1";
  EXPECT_EQ(r[1].arrival_ns - r[0].arrival_ns, 3 * kSecond);
  EXPECT_EQ(r[2].session, r[0].session);
  EXPECT_EQ(r[2].turn, 1u);
  EXPECT_THAT(r[2].waits_for, IsEmpty());
}

TEST(DynamoReaderTest, InAClosedLoopRequestsFollowTheirSessionAndItsParent) {
  TraceReaderOptions options;
  options.closed_loop = true;
  const std::vector<TraceRequest> r = Sample("dynamo.jsonl", options);
  ASSERT_EQ(r.size(), 3u);
  // All but the first have no time of their own and stay in the order of the file.
  EXPECT_EQ(r[1].id, "r2");
  EXPECT_THAT(r[1].waits_for, ElementsAre(0)) << "the parent's last request";
  EXPECT_EQ(r[1].think_ns, kSecond / 2);
  EXPECT_EQ(r[2].id, "r3");
  EXPECT_THAT(r[2].waits_for, ElementsAre(0)) << "its own session's last request";
  EXPECT_EQ(r[2].think_ns, 3500 * kSecond / 1000);
  EXPECT_FALSE(r[2].has_arrival);
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
  const std::vector<TraceRequest> r = MustRead(record("b", 8000, 9000) + record("a", 0, 20000), options);
  for (const TraceRequest& request : r) EXPECT_THAT(request.waits_for, IsEmpty()) << request.id;
}

TEST(DynamoReaderTest, BadRecordsNameTheField) {
  const std::string begin =
      R"({"schema": "dynamo.request.trace.v1", "event_type": "request_end", )";
  EXPECT_THAT(TraceError(begin + R"("request": {"output_tokens": 1}})"),
              HasSubstr("field request.request_received_ms: got nothing"));
  EXPECT_THAT(TraceError(begin + R"("request": 5})"),
              HasSubstr("request: got 5, expected an object"));
  EXPECT_THAT(TraceError(R"({"schema": "dynamo.request.trace.v9", "event_type": "request_end"})"),
              HasSubstr("expected \"dynamo.request.trace.v1\""));
  EXPECT_THAT(
      TraceError(begin +
                 R"("request": {"replay": {"input_sequence_hashes": [18446744073709551616]}}})"),
      HasSubstr("got 18446744073709551616, expected whole numbers from 0 to 2^64-1"));
  EXPECT_THAT(TraceError(begin + R"("request": {"request_received_ms": 9223372036855}})"),
              HasSubstr("request_received_ms: got 9223372036855"));
}

}  // namespace
}  // namespace kvblocks::sim
