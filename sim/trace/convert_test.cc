#include "sim/trace/convert.h"

#include <algorithm>
#include <cstdint>
#include <fstream>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "rapidcheck/gtest.h"
#include "sim/testing/trace_testing.h"
#include "sim/trace/trace_facts.h"

namespace kvblocks::sim {
namespace {

using testing::HasSubstr;
using testing::IsEmpty;

std::string Rewrite(const std::string& content, TraceFormat format) {
  auto reader = OpenTraceString(content, "t", {});
  EXPECT_TRUE(reader.ok()) << reader.status();
  if (!reader.ok()) return "";
  std::string out;
  auto sink = ByteSinkToString(&out);
  NativeWriterOptions narrow;
  narrow.copy_window = 3;
  narrow.copy_window_ids = 20;
  const auto writer = MakeTraceWriter(std::move(sink), format, narrow);
  const auto report = CopyTrace(**reader, *writer);
  EXPECT_TRUE(report.ok()) << report.status();
  return out;
}

// One access of an oracle file.
struct Access {
  uint64_t time, object, size;
  int64_t next;
};

std::vector<Access> Accesses(const std::string& bytes) {
  constexpr size_t kRecord = 24;
  EXPECT_EQ(bytes.size() % kRecord, 0u);
  const auto number = [&](size_t at, size_t num_bytes) {
    uint64_t value = 0;
    for (size_t i = num_bytes; i-- > 0;) {
      value = value << 8 | static_cast<unsigned char>(bytes[at + i]);
    }
    return value;
  };
  std::vector<Access> accesses;
  for (size_t at = 0; at + kRecord <= bytes.size(); at += kRecord) {
    accesses.push_back({.time = number(at, 4),
                        .object = number(at + 4, 8),
                        .size = number(at + 12, 4),
                        .next = static_cast<int64_t>(number(at + 16, 8))});
  }
  return accesses;
}

TEST(ConvertToOracleTest, HasOneAccessPerBlockOfAPromptAndTheNextOne) {
  // SM-50: a block is its path, so id 3 behind 9 is not id 3 behind 1 and 2.
  const std::vector<Access> accesses = Accesses(Rewrite(
      R"({"timestamp": 0, "input_length": 1100, "output_length": 5, "hash_ids": [1, 2, 3]}
{"timestamp": 2999, "input_length": 1024, "output_length": 5, "hash_ids": [9, 3]}
{"timestamp": 70000, "input_length": 1100, "output_length": 5, "hash_ids": [1, 2, 4]}
{"timestamp": 70000, "input_length": 512, "output_length": 5, "hash_ids": [1]}
)",
      TraceFormat::kOracle));
  ASSERT_EQ(accesses.size(), 9u);
  const uint64_t times[] = {0, 0, 0, 2, 2, 70, 70, 70, 70};
  const uint64_t sizes[] = {512, 512, 76, 512, 512, 512, 512, 76, 512};
  const int64_t next[] = {6, 7, -1, -1, -1, 9, -1, -1, -1};
  for (size_t i = 0; i < accesses.size(); ++i) {
    EXPECT_EQ(accesses[i].time, times[i]) << i;
    EXPECT_EQ(accesses[i].size, sizes[i]) << i;
    EXPECT_EQ(accesses[i].next, next[i]) << i;
    for (size_t j = 0; j < i; ++j) {
      const bool is_same =
          (i == 5 && j == 0) || (i == 6 && j == 1) || (i == 8 && (j == 0 || j == 5));
      EXPECT_EQ(accesses[i].object == accesses[j].object, is_same) << i << " and " << j;
    }
  }
}

TEST(ConvertToOracleTest, NeedsContent) {
  const auto reader = MustOpenString(
      "TIMESTAMP,ContextTokens,GeneratedTokens\n2023-11-16 18:15:46.6805900,374,44\n");
  std::string out;
  auto writer = MakeTraceWriter(ByteSinkToString(&out), TraceFormat::kOracle);
  const auto report = CopyTrace(*reader, *writer);
  EXPECT_THAT(std::string(report.status().message()), HasSubstr("a trace of lengths only"));
}

// Equal but for the request's place in its file.
std::vector<TraceRequest> WithoutLines(std::vector<TraceRequest> requests) {
  for (TraceRequest& request : requests) request.line = 0;
  return requests;
}

std::string RandomText() {
  std::string text;
  const int length = *rc::gen::inRange(0, 4);
  for (int i = 0; i < length; ++i) text += *rc::gen::element('a', 'b', '"', '\\', '\n', '\t');
  return text;
}

// A trace in arrival order with every field in use.
std::vector<TraceRequest> RandomTrace(int64_t block_tokens) {
  std::vector<TraceRequest> requests;
  const int count = *rc::gen::inRange(1, 12);
  int64_t arrival = 0;
  for (int i = 0; i < count; ++i) {
    TraceRequest r;
    r.row = i;
    r.id = std::to_string(i * 3);
    arrival += *rc::gen::inRange<int64_t>(0, 3) * *rc::gen::inRange<int64_t>(1, 2000000);
    r.arrival_ns = arrival;
    r.input_length = *rc::gen::inRange<int64_t>(0, 100);
    r.output_length = *rc::gen::inRange<int64_t>(0, 5);
    if (block_tokens > 0) {
      int64_t n = r.input_length / block_tokens;
      if (r.input_length % block_tokens != 0 && *rc::gen::inRange(0, 2) == 0) ++n;
      for (int64_t k = 0; k < n; ++k) {
        const int64_t small = *rc::gen::inRange<int64_t>(0, 3);
        r.content_ids.push_back(*rc::gen::inRange(0, 9) == 0 ? INT64_MIN + small : small);
      }
    }
    if (*rc::gen::inRange(0, 2) == 0) {
      for (int64_t k = 0; k < r.output_length; ++k) {
        r.output_ids.push_back(*rc::gen::inRange<uint32_t>(0, 4000000000u));
      }
    }
    r.min_tokens = *rc::gen::inRange<int64_t>(0, 3);
    if (*rc::gen::inRange(0, 2) == 0) r.encoder_tokens = *rc::gen::inRange<int64_t>(0, 3);
    r.priority = *rc::gen::inRange(-5, 5);
    r.session = *rc::gen::element<uint64_t>(0, 0, 1, 2, 900);
    if (r.session != 0) r.turn = *rc::gen::inRange<uint32_t>(0, 9);
    for (int k = 0; k < i; ++k) {
      if (*rc::gen::inRange(0, 6) == 0) r.waits_for.push_back(k);
    }
    if (!r.waits_for.empty()) {
      r.think_ns = *rc::gen::inRange<int64_t>(0, 10000000);
      // Rows are in arrival order, so the latest dependency is the last one.
      r.has_arrival = arrival > requests[static_cast<size_t>(r.waits_for.back())].arrival_ns;
    }
    r.abort_after_ns = *rc::gen::inRange<int64_t>(0, 3) * 1234567;
    r.tenant = RandomText();
    r.slo_class = RandomText();
    r.adapter = RandomText();
    r.salt = RandomText();
    const int drafts = *rc::gen::inRange(0, 3);
    for (int k = 0; k < drafts; ++k) r.accepted_drafts.push_back(*rc::gen::inRange<uint32_t>(0, 5));
    requests.push_back(r);
  }
  return requests;
}

std::string Written(const std::vector<TraceRequest>& requests, int64_t block_tokens) {
  std::string out;
  auto writer = MakeNativeWriter(ByteSinkToString(&out));
  TraceInfo info;
  info.block_tokens = block_tokens;
  RC_ASSERT(writer->Begin(info).ok());
  for (const TraceRequest& request : requests) RC_ASSERT(writer->Write(request).ok());
  RC_ASSERT(writer->Finish().ok());
  return out;
}

RC_GTEST_PROP(ConvertProperty, EveryRequestSurvivesNativeAndMooncake, ()) {
  const int64_t block_tokens = *rc::gen::element<int64_t>(0, 16, 512);
  const std::vector<TraceRequest> requests = RandomTrace(block_tokens);
  const std::string native = Written(requests, block_tokens);
  const auto read = ReadTrace(native);
  RC_ASSERT(read.ok());
  RC_ASSERT(WithoutLines(*read) == requests);
  const std::string mooncake = Rewrite(native, TraceFormat::kMooncake);
  const auto from_mooncake = ReadTrace(mooncake);
  RC_ASSERT(from_mooncake.ok());
  RC_ASSERT(WithoutLines(*from_mooncake) == requests);
  // And back, with a copy window that forgets.
  const auto back = ReadTrace(Rewrite(mooncake, TraceFormat::kNative));
  RC_ASSERT(back.ok());
  RC_ASSERT(WithoutLines(*back) == requests);
}

class ConvertTest : public testing::Test {
 protected:
  std::string Path(const std::string& name) const {
    return testing::TempDir() + "/convert_" + name;
  }
  std::string WriteFile(const std::string& name, const std::string& content) const {
    std::ofstream(Path(name), std::ios::binary) << content;
    return Path(name);
  }
  std::vector<TraceRequest> ReadFile(const std::string& path) const {
    auto reader = OpenTrace(path, {});
    EXPECT_TRUE(reader.ok()) << reader.status();
    return reader.ok() ? *AllRequests(**reader) : std::vector<TraceRequest>();
  }
};

TEST_F(ConvertTest, SortAcceptsAnyOrder) {
  const std::string in =
      WriteFile("unsorted.jsonl", Row("9") + Row("7") + Row("5") + Row("3") + Row("1"));
  ConvertOptions options;
  options.reader.reorder_window = 1;
  const auto refused = ConvertTrace(in, Path("sorted.kvt"), TraceFormat::kNative, options);
  EXPECT_THAT(std::string(refused.status().message()), HasSubstr("kvsim convert --sort"));
  EXPECT_FALSE(OpenTrace(Path("sorted.kvt"), {}).ok()) << "nothing half-written";
  options.sort = true;
  ASSERT_TRUE(ConvertTrace(in, Path("sorted.kvt"), TraceFormat::kNative, options).ok());
  const auto requests = ReadFile(Path("sorted.kvt"));
  ASSERT_EQ(requests.size(), 5u);
  EXPECT_EQ(requests[0].id, "4") << "ids stay those of the first file";
  EXPECT_EQ(requests[0].row, 0);
  EXPECT_EQ(requests[4].arrival_ns, 9000000);
}

TEST_F(ConvertTest, LossesAreNamed) {
  const std::string in = WriteFile(
      "names.jsonl",
      R"({"request_id": "x", "timestamp": 1, "input_length": 8, "output_length": 1, "priority": 2, "hash_ids": [3]})");
  const auto native = ConvertTrace(in, Path("names.kvt"), TraceFormat::kNative, {});
  ASSERT_TRUE(native.ok());
  EXPECT_EQ(native->losses.size(), 1u);
  const auto csv = ConvertTrace(in, Path("names.csv"), TraceFormat::kCsv, {});
  ASSERT_TRUE(csv.ok());
  EXPECT_EQ(csv->losses.size(), 2u) << "content, and the priority";
}

int64_t SharedTokens(const std::string& path) {
  auto reader = OpenTrace(path, {});
  EXPECT_TRUE(reader.ok()) << reader.status();
  return reader.ok() ? ComputeTraceFacts(**reader, {})->shared_tokens : -1;
}

// Equal ids of two sessions are different contents, and Mooncake's ids hold everywhere.
TEST_F(ConvertTest, IdsOfSessionsStayApartInMooncake) {
  std::string sessions;
  for (const char* name : {"a", "b", "c"}) {
    absl::StrAppend(&sessions, R"({"id": ")", name,
                    R"(", "block_size": 4, "hash_id_scope": "local", "requests": [)"
                    R"({"t": 0, "type": "n", "in": 8, "out": 1, "hash_ids": [1, 2]}, )"
                    R"({"t": 1, "type": "n", "in": 13, "out": 1, "hash_ids": [1, 2, 3]}]})",
                    "\n");
  }
  const std::string in = WriteFile("sessions.jsonl", sessions);
  for (const TraceFormat format : {TraceFormat::kNative, TraceFormat::kMooncake}) {
    const std::string out = Path("sessions.out");
    const auto report = ConvertTrace(in, out, format, {});
    ASSERT_TRUE(report.ok()) << report.status();
    EXPECT_EQ(SharedTokens(out), SharedTokens(in));
    EXPECT_EQ(SharedTokens(out), 3 * 8);
    const bool says_so = std::any_of(
        report->losses.begin(), report->losses.end(),
        [](const std::string& loss) { return loss.find("content ids") != std::string::npos; });
    EXPECT_EQ(says_so, format == TraceFormat::kMooncake);
  }
}

TEST_F(ConvertTest, TokenIdsOfTenantsAreRefusedByMooncake) {
  const std::string in = WriteFile("tenants.txtpb", R"(header { version: 1 block_tokens: 1 scope: TENANT }

    strings { value: "a" }

    request { id: 1 input_length: 2 output_length: 1 tenant: 1 ids: 7 ids: 1 }
  )");
  const auto refused = ConvertTrace(in, Path("tenants.jsonl"), TraceFormat::kMooncake, {});
  EXPECT_THAT(std::string(refused.status().message()), HasSubstr("content ids: got token ids"));
  EXPECT_FALSE(OpenTrace(Path("tenants.jsonl"), {}).ok());
}

TEST_F(ConvertTest, CsvKeepsTheDayAndNeedsAStartWithinIt) {
  const std::string csv =
      "TIMESTAMP,ContextTokens,GeneratedTokens\n2023-11-16 18:17:03.9799600,4808,10\n"
      "2023-11-17 00:00:00.0000000,3,1\n";
  EXPECT_EQ(Rewrite(csv, TraceFormat::kCsv), csv);
  const std::string late = WriteFile("late.jsonl", Row("86400000"));
  const auto refused = ConvertTrace(late, Path("late.csv"), TraceFormat::kCsv, {});
  EXPECT_THAT(std::string(refused.status().message()), HasSubstr("--rebase"));
}

TEST_F(ConvertTest, CsvRefusesDaysThatItCannotSay) {
  const std::string in = WriteFile("last_day.txtpb", R"(header {
    version: 1 notes { key: "day_one" value: "9999-12-31" } }

    request { id: 1 }

    request { id: 2 arrival_delta_ns: 86400000000000 }
  )");
  const auto refused = ConvertTrace(in, Path("last_day.csv"), TraceFormat::kCsv, {});
  EXPECT_THAT(std::string(refused.status().message()),
              HasSubstr("got the day 10000-01-01, expected one up to 9999-12-31"));
}

TEST_F(ConvertTest, FormatNames) {
  EXPECT_EQ(*ParseTraceFormat("csv"), TraceFormat::kCsv);
  EXPECT_EQ(*ParseTraceFormat("native"), TraceFormat::kNative);
  EXPECT_EQ(*ParseTraceFormat("mooncake"), TraceFormat::kMooncake);
  EXPECT_EQ(*ParseTraceFormat("oracle"), TraceFormat::kOracle);
  EXPECT_FALSE(ParseTraceFormat("parquet").ok());
}

}  // namespace
}  // namespace kvblocks::sim
