#include <random>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "sim/testing/trace_testing.h"
#include "sim/trace/convert.h"
#include "sim/trace/record_stream.h"
#include "sim/trace/row_source.h"
#include "sim/trace/trace.pb.h"

namespace kvblocks::sim {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;

namespace pb = kvblocks::trace::v1;

constexpr char kText[] = R"(header { version: 1 name: "hand" block_tokens: 16 sorted: true }

strings { value: "acme" value: "fast" }

request { id: 4 arrival_delta_ns: 1000 input_length: 40 output_length: 2 ids: [7, 1, 1] tenant: 1 }

request {
  id: 9 arrival_delta_ns: 5 input_length: 48 output_length: 1
  copy_from: 1 copy_ids: 2 ids: -3 output_ids: 77
  priority: -2 session: 3 turn: 1 waits_for: 1 think_ns: 12 abort_after_ns: 99
  tenant: 1 slo_class: 2 accepted_drafts: [1, 0] min_tokens: 1
}
)";

std::string Binary(const std::string& text) {
  auto binary = NativeTextToBinary(text, "t");
  EXPECT_TRUE(binary.ok()) << binary.status();
  return binary.ok() ? *binary : "";
}

// A header and the given records.
std::string WithHeader(const std::string& records, const std::string& header = "block_tokens: 16") {
  return Binary("header { version: 1 " + header + " }\n\n" + records);
}

TEST(NativeReaderTest, ReadsEveryField) {
  const auto reader = MustOpenString(kText);
  EXPECT_EQ(reader->info().format, "native");
  EXPECT_EQ(reader->info().name, "hand");
  EXPECT_EQ(reader->info().block_tokens, 16);
  const std::vector<TraceRequest> requests = MustRead(*reader);
  ASSERT_EQ(requests.size(), 2u);
  EXPECT_THAT(requests[0].content_ids, ElementsAre(7, 8, 9));
  EXPECT_EQ(requests[0].tenant, "acme");
  EXPECT_EQ(requests[0].line, 3) << "the record's number";
  const TraceRequest& r = requests[1];
  EXPECT_EQ(r.id, "9");
  EXPECT_EQ(r.arrival_ns, 1005);
  EXPECT_THAT(r.content_ids, ElementsAre(7, 8, 5));
  EXPECT_THAT(r.output_ids, ElementsAre(77));
  EXPECT_EQ(r.priority, -2);
  EXPECT_EQ(r.session, 3u);
  EXPECT_EQ(r.turn, 1u);
  EXPECT_THAT(r.waits_for, ElementsAre(0));
  EXPECT_EQ(r.think_ns, 12);
  EXPECT_EQ(r.abort_after_ns, 99);
  EXPECT_EQ(r.slo_class, "fast");
  EXPECT_THAT(r.accepted_drafts, ElementsAre(1, 0));
  EXPECT_EQ(r.min_tokens, 1);
}

TEST(NativeReaderTest, TextErrorsNameTheLine) {
  EXPECT_THAT(TraceError("header { version: 1 }\n\nrequest {\n  nonsense: 1\n}\n"),
              HasSubstr("t:4:"));
}

TEST(NativeReaderTest, MissingFooterIsATruncatedFile) {
  const std::string binary = Binary(kText);
  RecordStream stream(ByteSourceOfString(binary), 1 << 20);
  ASSERT_TRUE(stream.Start().ok());
  std::string_view record;
  pb::Record parsed;
  while (!parsed.has_footer()) {
    ASSERT_TRUE(*stream.Next(&record));
    ASSERT_TRUE(parsed.ParseFromString(std::string(record)));
  }
  EXPECT_THAT(TraceError(binary.substr(0, static_cast<size_t>(stream.record_offset()))),
              HasSubstr("truncated file: got 2 requests and no footer"));
}

TEST(NativeReaderTest, FlippedBytesNeverPassUnseen) {
  const std::string binary = Binary(kText);
  const auto good = *ReadTrace(binary);
  for (size_t i = 0; i < binary.size(); ++i) {
    for (const char flip : {'\x01', '\x80', '\xff'}) {
      std::string bad = binary;
      bad[i] = static_cast<char>(bad[i] ^ flip);
      ASSERT_FALSE(ReadTrace(bad).ok()) << "byte " << i;
    }
  }
}

TEST(NativeReaderTest, HugeLengthsAllocateNothing) {
  ExpectRefusals({{std::string("KVTRACE1\xff\xff\xff\xff\x7f", 13),
                   "record length: got 34359738367 bytes, expected at most 16777216"},
                  {"KVTRACE1" + std::string(11, '\xff'), "64 bits"},
                  {std::string("KVTRACE1\x80\x80\x80\x04", 12), "truncated record"}});
}

TEST(NativeReaderTest, HeaderComesFirstOnceAndOfThisVersion) {
  EXPECT_THAT(TraceError(Binary("request { id: 1 }\n")), HasSubstr("expected a header"));
  EXPECT_THAT(TraceError(WithHeader("", R"(notes { key: "copy_window" value: "9999999999" })")),
              HasSubstr("note copy_window: got \"9999999999\""));
  EXPECT_THAT(TraceError("KVTRACE1"), HasSubstr("expected a header"));
  EXPECT_TRUE(ReadTrace(WithHeader(""))->empty());
}

TEST(NativeReaderTest, CopiesMustStayWithinTheWindow) {
  const std::string first = "request { id: 1 input_length: 32 ids: [1, 2] }\n\n";
  const auto second = [&](const std::string& fields,
                          const std::string& header = "block_tokens: 16") {
    return TraceError(
        WithHeader(first + "request { id: 2 input_length: 32 ids: 5 " + fields + " }\n", header));
  };
  EXPECT_EQ(second("copy_from: 1 copy_ids: 1"), "");
  EXPECT_THAT(second("copy_from: 2 copy_ids: 1"), HasSubstr("copy_from: got 2 records back"));
  EXPECT_THAT(second("copy_from: 4294967295 copy_ids: 1"), HasSubstr("copy_from"));
  EXPECT_THAT(second("copy_from: 1 copy_ids: 3"), HasSubstr("copy_ids: got 3, expected at most 2"));
  EXPECT_THAT(second("copy_ids: 1"), HasSubstr("without copy_from"));
  EXPECT_THAT(second("copy_from: 1 copy_ids: 4294967295"), HasSubstr("content ids: got"));
  EXPECT_THAT(TraceError(WithHeader(
                  first + "request { id: 2 }\n\nrequest { id: 3 input_length: 16 copy_from: 2 "
                          "copy_ids: 1 }\n",
                  R"(block_tokens: 16 notes { key: "copy_window" value: "1" })")),
              HasSubstr("copy_from: got 2 records back"));
}

TEST(NativeReaderTest, BadRequestsAreNamedByRecordAndByte) {
  const auto error = [](const std::string& fields) {
    return TraceError(WithHeader("request { id: 1 }\n\nrequest { id: 2 " + fields + " }\n"));
  };
  ExpectRefusals(error, {{"waits_for: 2", "waits_for: got 2 records back, expected 1 to 1 (rec"},
                         {"waits_for: 0", "waits_for: got 0"},
                         {"think_ns: 9223372036854775808", "think_ns"}});
  EXPECT_THAT(TraceError(WithHeader("request { arrival_delta_ns: 9223372036854775807 }\n\n"
                                    "request { id: 1 arrival_delta_ns: 1 }\n")),
              HasSubstr("beyond 64 bits"));
}

// No other form could hold them, so they are refused here and not when the trace is converted.
TEST(NativeReaderTest, CountsBeyondTheLongestRequestAreRefused) {
  EXPECT_THAT(TraceError(WithHeader("request { id: 1 min_tokens: 2147483648 }\n")),
              HasSubstr("min_tokens: got 2147483648, expected 0 to 2147483647"));
  EXPECT_TRUE(ReadTrace(WithHeader("request { id: 1 min_tokens: 2147483647 }\n")).ok());
  EXPECT_THAT(TraceError(WithHeader("request { id: 1 encoder_tokens: 2147483648 }\n")),
              HasSubstr("encoder_tokens: got 2147483648, expected 0 to 2147483647"));
  EXPECT_TRUE(ReadTrace(WithHeader("request { id: 1 encoder_tokens: 2147483647 }\n")).ok());
  EXPECT_THAT(TraceError(WithHeader("", "block_tokens: 2147483648")),
              HasSubstr("block_tokens: got 2147483648, expected 0 to 2147483647"));
  EXPECT_TRUE(ReadTrace(WithHeader("", "block_tokens: 2147483647")).ok());
}

TEST(NativeReaderTest, SortedIsAPromise) {
  const std::string records =
      "request { id: 1 arrival_delta_ns: 9 }\n\nrequest { id: 2 arrival_delta_ns: -5 }\n";
  EXPECT_EQ(TraceError(WithHeader(records)), "");
  EXPECT_THAT(TraceError(WithHeader(records, "sorted: true")), HasSubstr("says that it is sorted"));
}

TEST(NativeReaderTest, FooterMustFitTheRecords) {
  const auto error = [](const std::string& footer) {
    return TraceError(WithHeader(
        "request { id: 1 input_length: 3 output_length: 4 }\n\nfooter { " + footer + " }\n",
        "block_tokens: 0"));
  };
  EXPECT_THAT(error("num_requests: 2"), HasSubstr("footer num_requests: got 2, expected 1"));
  EXPECT_THAT(error("num_requests: 1 input_tokens: 4"), HasSubstr("footer input_tokens: got 4"));
  EXPECT_THAT(error("num_requests: 1 input_tokens: 3"), HasSubstr("footer output_tokens: got 0"));
  EXPECT_THAT(error("num_requests: 1 input_tokens: 3 output_tokens: 4 xxh64_of_records: 5"),
              HasSubstr("footer xxh64_of_records: got 5"));
  EXPECT_THAT(TraceError(Binary(kText) + Binary(kText).substr(8)), HasSubstr("after the footer"));
}

TEST(NativeReaderTest, UnknownFieldsAreKeptWhenRewritten) {
  // Field 300 of a newer version, in the header and in a request.
  const auto with_field = [](auto* message) {
    message->GetReflection()->MutableUnknownFields(message)->AddVarint(300, 42);
  };
  std::string records;
  RecordHash hash;
  const auto put = [&](const pb::Record& record) {
    AppendRecord(record.SerializeAsString(), &records, &hash);
  };
  pb::Record header;
  header.mutable_header()->set_version(1);
  with_field(header.mutable_header());
  put(header);
  pb::Record request;
  request.mutable_request()->set_id(5);
  with_field(request.mutable_request());
  put(request);
  pb::Record footer;
  footer.mutable_footer()->set_num_requests(1);
  footer.mutable_footer()->set_xxh64_of_records(hash.value());
  put(footer);

  const auto reader = MustOpenString("KVTRACE1" + records);
  std::string out;
  auto writer = MakeNativeWriter(ByteSinkToString(&out));
  ASSERT_TRUE(CopyTrace(*reader, *writer).ok());
  auto again = OpenTraceString(out, "t", {});
  ASSERT_TRUE(again.ok()) << again.status();
  EXPECT_FALSE((*again)->info().unknown_fields.empty());
  EXPECT_EQ((*again)->info().unknown_fields, reader->info().unknown_fields);
  EXPECT_EQ((*AllRequests(**again))[0].unknown_fields, reader->info().unknown_fields);
}

TEST(NativeWriterTest, CopiesFromTheLongestCommonPrefix) {
  std::string out;
  auto writer = MakeNativeWriter(ByteSinkToString(&out));
  TraceInfo info;
  info.block_tokens = 16;
  ASSERT_TRUE(writer->Begin(info).ok());
  const std::vector<std::vector<int64_t>> ids = {{1, 2, 3}, {1, 9, 8}, {1, 2, 4}, {1, 9, 8}};
  for (size_t i = 0; i < ids.size(); ++i) {
    TraceRequest r;
    r.row = static_cast<int64_t>(i);
    r.id = std::to_string(i);
    r.input_length = 48;
    r.content_ids = ids[i];
    ASSERT_TRUE(writer->Write(r).ok());
  }
  ASSERT_TRUE(writer->Finish().ok());
  RecordStream stream(ByteSourceOfString(out), 1 << 20);
  ASSERT_TRUE(stream.Start().ok());
  std::string_view bytes;
  std::vector<std::string> copies;  // COPY_FROM:COPY_IDS of those that copy
  while (*stream.Next(&bytes)) {
    pb::Record record;
    ASSERT_TRUE(record.ParseFromString(std::string(bytes)));
    const pb::Request& request = record.request();
    if (request.copy_ids() == 0) continue;
    copies.push_back(absl::StrCat(request.copy_from(), ":", request.copy_ids()));
  }
  EXPECT_THAT(copies, ElementsAre("1:1", "2:2", "2:3"));
}

TEST(NativeWriterTest, MisuseIsRefused) {
  std::string out;
  NativeWriterOptions wide;
  wide.copy_window = int64_t{1} << 40;
  EXPECT_FALSE(MakeNativeWriter(ByteSinkToString(&out), wide)->Begin({}).ok())
      << "no reader would accept it";
  auto writer = MakeNativeWriter(ByteSinkToString(&out));
  ASSERT_TRUE(writer->Begin({}).ok());
  TraceRequest r;
  r.id = "0";
  r.arrival_ns = 5;
  ASSERT_TRUE(writer->Write(r).ok());
  r.arrival_ns = 4;
  EXPECT_FALSE(writer->Write(r).ok()) << "not in arrival order";
  r.arrival_ns = 6;
  r.waits_for = {17};
  EXPECT_FALSE(writer->Write(r).ok()) << "a row that was not written";
}

TEST(NativeReaderTest, StringsAndRecordsAreBounded) {
  const auto record = [](const std::string& bytes) {
    std::string length;
    AppendRecordLength(bytes.size(), &length);
    return length + bytes;
  };
  pb::Record header, strings;
  header.mutable_header()->set_version(1);
  strings.mutable_strings()->add_value(std::string(size_t{1} << 20, 'x'));
  std::string many = "KVTRACE1" + record(header.SerializeAsString());
  const std::string start = many;
  for (int i = 0; i < 65; ++i) many += record(strings.SerializeAsString());
  EXPECT_THAT(TraceError(many), HasSubstr("strings: got 66 of 68157440 bytes, expected at most"));
  (*header.mutable_header()->mutable_notes())["copy_window_ids"] = "33554433";
  EXPECT_THAT(TraceError("KVTRACE1" + record(header.SerializeAsString())),
              HasSubstr("note copy_window_ids: got \"33554433\", expected 0 to 33554432"));
  std::string length;
  AppendRecordLength((size_t{16} << 20) + 1, &length);
  EXPECT_THAT(TraceError(start + length),
              HasSubstr("record length: got 16777217 bytes, expected at most 16777216"));
}

}  // namespace
}  // namespace kvblocks::sim
