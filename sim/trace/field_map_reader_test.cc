#include "sim/trace/field_map.h"

#include <string>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "sim/testing/trace_testing.h"
#include "sim/trace/line_rows.h"

namespace kvblocks::sim {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;
using testing::IsEmpty;

constexpr int64_t kSecond = 1000000000;

TraceReaderOptions Fields(const std::string& fields, int64_t block_size = 0) {
  TraceReaderOptions options;
  options.fields = fields;
  options.trace_block_size = block_size;
  return options;
}

TEST(FieldMapReaderTest, JsonPathsAndUnits) {
  const std::vector<TraceRequest> r = MustRead(R"({"t": 1500.25, "usage": {"in": 7, "out": "3"}, "who": "x", "p": -2})"
                     "\n"
                     R"({"t": "2e3", "usage": {"in": 9.0, "out": 4}, "who": null, "p": null})",
                     Fields("arrival_ms=t,input_length=usage.in,output_length=usage.out,tenant=who,"
                            "priority=p"));
  EXPECT_EQ(r[0].arrival_ns, 1500250000);
  EXPECT_EQ(r[0].tenant, "x");
  EXPECT_EQ(r[0].priority, -2);
  EXPECT_EQ(r[1].arrival_ns, 2 * kSecond);
  EXPECT_EQ(r[1].input_length, 9);
  EXPECT_EQ(r[1].tenant, "");
}

TEST(FieldMapReaderTest, InputsOfEncodersAreACountToo) {
  const std::vector<TraceRequest> r = MustRead("i,o,frames\n4,5,1500\n6,7,\n",
                     Fields("input_length=i,output_length=o,encoder_tokens=frames"));
  EXPECT_EQ(r[0].encoder_tokens, 1500);
  EXPECT_FALSE(r[1].encoder_tokens.has_value());
  EXPECT_THAT(TraceError("i,o,frames\n4,5,-3\n",
                         Fields("input_length=i,output_length=o,encoder_tokens=frames")),
              HasSubstr("got \"-3\", expected a whole number from 0 to 2147483647"));
}

TEST(FieldMapReaderTest, RowsWithoutArrivalFollowTheirSession) {
  const std::vector<TraceRequest> r = MustRead("s,t,i,o,d\na,5,1,1,\nb,,1,1,\na,,1,1,2\na,9,1,1,\n",
                     Fields("session=s,arrival_s=t,input_length=i,output_length=o,think_s=d"));
  ASSERT_EQ(r.size(), 4u);
  EXPECT_EQ(r[0].row, 1) << "the first of its session, without a time: at 0";
  EXPECT_EQ(r[1].row, 0);
  EXPECT_THAT(r[2].waits_for, ElementsAre(0));
  EXPECT_EQ(r[2].think_ns, 2 * kSecond);
  EXPECT_FALSE(r[2].has_arrival);
  EXPECT_THAT(r[3].waits_for, IsEmpty()) << "it has a time of its own";
}

TEST(FieldMapReaderTest, WithoutArrivalsAllAreThereFromTheStart) {
  const std::vector<TraceRequest> r =
      MustRead("i,o\n4,5\n6,7\n", Fields("input_length=i,output_length=o"));
  EXPECT_EQ(r[1].arrival_ns, 0);
  EXPECT_TRUE(r[1].has_arrival);
}

TEST(FieldMapReaderTest, BadMapsSayWhatIsWrong) {
  const auto error = [](const std::string& fields, int64_t block_size = 0) {
    return TraceError("i,o\n1,1\n", Fields(fields, block_size));
  };
  EXPECT_THAT(error("input_length=i"), HasSubstr("expected also output_length=COLUMN"));
  EXPECT_THAT(error("input_length=i,output_length"), HasSubstr("expected FIELD=COLUMN"));
  EXPECT_THAT(error("input_length=i,output_length="), HasSubstr("expected FIELD=COLUMN"));
  EXPECT_THAT(error("input_length=i,output_length=o,length=o"),
              HasSubstr("--fields: got \"length\", expected one of input_length, output_length"));
  EXPECT_THAT(error("input_length=i,output_length=i"), HasSubstr("expected each column once"));
  EXPECT_THAT(error("input_length=i,input_length=o"), HasSubstr("expected it beside no input"));
  EXPECT_THAT(error("arrival_s=a,arrival=b,input_length=i,output_length=o"),
              HasSubstr("expected it beside no arrival_s"));
  EXPECT_THAT(error("input_length=i,output_length=o,ids=h"), HasSubstr("--trace-block-size"));
  EXPECT_THAT(error("input_length=i,output_length=x"),
              HasSubstr("t:1: error: CSV header: got \"i,o\", expected a column x"));
  TraceReaderOptions options = Fields("input_length=i,output_length=o");
  options.format = "azure";
  EXPECT_THAT(TraceError("i,o\n", options), HasSubstr("--fields: got"));
}

TEST(FieldMapReaderTest, TextsAreUtf8) {
  const TraceReaderOptions options = Fields("input_length=i,output_length=o,tenant=t");
  EXPECT_EQ((*ReadTrace("i,o,t\n1,1,M\xc3\xbcller\n", options))[0].tenant, "M\xc3\xbcller");
  EXPECT_THAT(TraceError("i,o,t\n1,1,M\xfcller\n", options),
              HasSubstr("t:2: error: t: got \"M\\xfcller\", expected UTF-8"));
}

TEST(FieldMapReaderTest, BadRowsNameTheColumn) {
  const TraceReaderOptions options = Fields("input_length=i,output_length=o,arrival_s=t,ids=h", 16);
  const auto error = [&](const std::string& row) {
    return TraceError("i,o,t,h\n" + row + "\n", options);
  };
  EXPECT_THAT(error("1.5,1,0,"), HasSubstr("t:2: error: i: got \"1.5\", expected a whole number"));
  EXPECT_THAT(error(",1,0,"), HasSubstr("field i: got nothing, expected a value"));
  EXPECT_THAT(error("1,1,-3,"), HasSubstr("t: got \"-3\", expected a number that is not negative"));
  EXPECT_THAT(error("16,1,0,1 x"), HasSubstr("h: got \"x\", expected whole numbers"));
  EXPECT_THAT(error("16,1,0,18446744073709551616"), HasSubstr("h: got \"18446744073709551616\""));
  EXPECT_THAT(error("16,1,0"), HasSubstr("CSV row: got 3 fields, expected 4 (i,o,t,h)"));
  EXPECT_THAT(error("16,1,0,\"1"), HasSubstr("expected each quoted field to end with a quote"));
  EXPECT_THAT(error("99999999999,1,0,"), HasSubstr("i: got \"99999999999\""));
  EXPECT_THAT(TraceError("{\"i\": [[1]], \"o\": 1}", options),
              HasSubstr("i: got [, expected a string or a number"));
}

constexpr char kHeader[] = "TIMESTAMP,ContextTokens,GeneratedTokens\r\n";

TEST(AzurePresetTest, BadRowsNameTheField) {
  const auto error = [](const std::string& row) {
    return TraceError(std::string(kHeader) + "2023-11-16 10:00:00,1,1\n" + row + "\n");
  };
  EXPECT_THAT(error("2023-11-16 10:00:01,1,1,1"), HasSubstr("got 4 fields"));
  EXPECT_THAT(error("2023-11-16 10:00:01,1,1e3"), HasSubstr("GeneratedTokens: got \"1e3\""));
  EXPECT_THAT(error("2023-11-16 10:00:01,,1"), HasSubstr("field ContextTokens: got nothing"));
  EXPECT_THAT(error("2923-11-15 10:00:01,1,1"), HasSubstr("within 2^63 ns of 2023-11-16"));
}

TEST(AzurePresetTest, TheLastNanosecondOf64BitsIsATime) {
  const std::string begin = std::string(kHeader) + "1970-01-01 00:00:00,1,1\n";
  const std::vector<TraceRequest> last = MustRead(begin + "2262-04-11 23:47:16.854775807,1,1\n");
  EXPECT_EQ(last.back().arrival_ns, INT64_MAX);
  EXPECT_THAT(TraceError(begin + "2262-04-11 23:47:16.854775808,1,1\n"), HasSubstr("2^63 ns"));
}

TEST(AzurePresetTest, TheHeaderMayStandAlone) {
  EXPECT_TRUE(ReadTrace(kHeader)->empty());
}

constexpr const char* kBurst =
    "Timestamp,Model,Request tokens,Response tokens,Total tokens,Log Type\n";

TEST(BurstGptPresetTest, ColumnsAreFoundByNameAndRowsSelected) {
  const std::string content =
      "Log Type, Session ID ,Response tokens,Request tokens,Timestamp,Elapsed time,Model\n"
      "API log,\"a,b\",3,9,0.5,1.25,\"M \"\"1\"\"\"\n"
      "Conversation log,x,4,8,1,2,M2\n"
      "API log,,5,7,2,3,M2\n";
  EXPECT_EQ(Texts(MustRead(content)),
            "0 at 0.5: 9+3, session 1/0\n1 at 1: 8+4, session 2/0\n2 at 2: 7+5\n");
  TraceReaderOptions options;
  options.model_filter = "M \"1\"";
  EXPECT_EQ(Texts(MustRead(content, options)), "0 at 0.5: 9+3, session 1/0\n");
  options.model_filter = "M2";
  options.log_type = "API log";
  const auto reader = MustOpenString(content, options);
  EXPECT_EQ(reader->info().notes.at("zero_output"), "skip");
  EXPECT_EQ(Texts(MustRead(*reader)), "0 at 2: 7+5\n");
  EXPECT_EQ(reader->counters().not_selected, 2);
  EXPECT_THAT(TraceError("Timestamp,Request tokens,Response tokens\n1,1,1\n", options),
              HasSubstr("--model-filter: got \"M2\", expected a trace with a column"));
}

TEST(BurstGptPresetTest, ATotalThatIsNotTheSumIsAWarning) {
  auto reader = OpenTraceString(std::string(kBurst) + "5,M,472,18,491,API log\n", "t", {});
  ASSERT_TRUE(AllRequests(**reader).ok());
  ASSERT_EQ((*reader)->warnings().size(), 1u);
  EXPECT_THAT((*reader)->warnings()[0],
              HasSubstr("t:2: warning: Total tokens: got 491, expected 472 + 18"));
}

TEST(BurstGptPresetTest, BadRowsNameTheColumn) {
  const auto error = [](const std::string& row) { return TraceError(kBurst + row + "\n"); };
  EXPECT_THAT(error("x,M,1,1,2,API log"), HasSubstr("t:2: error: Timestamp: got \"x\""));
  EXPECT_THAT(error("1,M,-1,1,2,API log"), HasSubstr("Request tokens: got \"-1\""));
  EXPECT_THAT(error("1,M,1,,2,API log"), HasSubstr("field Response tokens: got nothing"));
  EXPECT_THAT(error("1,M,1,1"), HasSubstr("CSV row: got 4 fields, expected 6"));
  EXPECT_THAT(error("1e-10,M,1,1,2,API log"), HasSubstr("at most 9 digits after the point"));
  ExpectRefusals({{"Request tokens,Response tokens\n", "t:1: error: CSV header: got"},
                  {"Timestamp,Request tokens,Response tokens,Timestamp\n",
                   "got the column \"Timestamp\" twice"},
                  {"Request tokens" + std::string(5000, ',') + "\n",
                   "got 5001 columns, expected at most 1000"}});
}

TEST(VidurPresetTest, ArrivalsMayBeMissingAndAreRoundedToANanosecond) {
  auto r =
      ReadTrace("num_decode_tokens,num_prefill_tokens,arrived_at\n4,300,0.30000000000000004\n");
  ASSERT_TRUE(r.ok()) << r.status();
  EXPECT_EQ((*r)[0].arrival_ns, 300000000);
  EXPECT_EQ((*r)[0].input_length, 300);
  auto reader = OpenTraceString("num_prefill_tokens,num_decode_tokens\n1,2\n", "t", {});
  EXPECT_EQ((*reader)->dialect(), "no arrival times: all at 0");
}

TEST(LmcachePresetTest, LongHashesAreTheSameOnlyIfAllDigitsAre) {
  const auto ids = [](const std::string& hash) {
    auto r = ReadTrace(R"({"timestamp": 1, "chunk_size": 16, "seq_len": 16, "chunk_hashes": [")" +
                       hash + R"("]})");
    EXPECT_TRUE(r.ok()) << r.status();
    return r.ok() ? (*r)[0].content_ids : std::vector<int64_t>();
  };
  EXPECT_EQ(ids("0x1234567890abcdef1234567890abcdef"), ids("1234567890ABCDEF1234567890abcdef"));
  EXPECT_NE(ids("0x1234567890abcdef1234567890abcdef"), ids("1234567890ABCDEF1234567890abcdee"));
  EXPECT_EQ(ids("0x0000000000000000000f"), ids("f")) << "leading zeros are no digits";
  EXPECT_THAT(TraceError(R"({"timestamp": 1, "chunk_size": 16, "seq_len": 16,)"
                         R"( "chunk_hashes": ["0xfg"]})"),
              HasSubstr("chunk_hashes: got \"0xfg\", expected hexadecimal digits"));
}

TEST(LmcachePresetTest, ChunksHaveOneSizePerFile) {
  const std::string rest = R"(, "seq_len": 0, "chunk_hashes": []})";
  EXPECT_THAT(TraceError(R"({"timestamp": 1, "chunk_size": 16)" + rest + "\n" +
                         R"({"timestamp": 1, "chunk_size": 32)" + rest),
              HasSubstr("t:2: error: chunk_size: got 32, expected 16 as in the first good row"));
}

// SM-46.
TEST(VllmCustomPresetTest, TextsAndTokenIds) {
  const std::vector<TraceRequest> r =
      MustRead("{\"prompt\": [3, 1, 2]}\n{\"prompt\": [], \"output_tokens\": 5}\n");
  EXPECT_THAT(r[0].content_ids, ElementsAre(3, 1, 2));
  EXPECT_EQ(r[0].output_length, 0);
  EXPECT_THAT(r[1].content_ids, IsEmpty());
  auto reader = OpenTrace("sim/trace/testdata/formats/vllm_custom.jsonl", {});
  EXPECT_TRUE((*reader)->info().pseudo_tokens);
  EXPECT_EQ(AllRequests(**reader)->at(1).priority, 1);
  ExpectRefusals({{"{\"prompt\": \"abc\"}\n{\"prompt\": [1]}\n",
                   "t:2: error: prompt: got token ids, expected a text"},
                  {"{\"prompt\": 5}\n", "prompt: got 5, expected a list"},
                  {"{\"prompt\": \"a\", \"output_tokens\": -1}", "output_tokens: got \"-1\""}});
}

TEST(FieldPresetsTest, AFileMayLackOnlyWhatIsOptional) {
  // An empty number is none; an empty text is no text.
  const std::vector<TraceRequest> r =
      MustRead("arrived_at,num_prefill_tokens,num_decode_tokens\n1,2,3\n");
  EXPECT_THAT(TraceError("arrived_at,num_prefill_tokens,num_decode_tokens\n,2,3\n"),
              HasSubstr("t:2: error: field arrived_at: got nothing"));
  EXPECT_THAT(TraceError(R"({"chunk_size": 16, "seq_len": 0, "chunk_hashes": []})"),
              HasSubstr("t:1: error: field timestamp: got nothing"));
}

TEST(FieldPresetsTest, NumbersOfJsonAreNumbersAndTextsAreTexts) {
  const auto error = [](const std::string& time, const std::string& size, const std::string& hash) {
    return TraceError(R"({"timestamp": )" + time + R"(, "chunk_size": )" + size +
                      R"(, "seq_len": 16, "chunk_hashes": [)" + hash + "]}");
  };
  EXPECT_EQ(error("1", "16", "\"1\""), "");
  EXPECT_THAT(error("\"1\"", "16", "\"1\""), HasSubstr("timestamp: got \"1\", expected a number"));
  EXPECT_THAT(error("1", "16.0", "\"1\""), HasSubstr("chunk_size: got \"16.0\", expected a whole"));
  EXPECT_THAT(error("1", "0", "\"1\""), HasSubstr("chunk_size: got \"0\", expected a whole"));
  EXPECT_THAT(error("1", "16", "1"), HasSubstr("chunk_hashes: got 1, expected a string"));
}

TEST(FieldPresetsTest, EachIsATraceFormatWithAMapOfItsOwn) {
  for (const FieldPreset& preset : FieldPresets()) {
    SCOPED_TRACE(preset.format);
    EXPECT_THAT(TraceFormats(), testing::Contains(std::string(preset.format)));
    EXPECT_TRUE(ParseFieldMap(preset.fields, true).ok());
    EXPECT_EQ(preset.shapes.empty(), !preset.csv_begin.empty() || !preset.csv_part.empty());
  }
}

TEST(CivilTimeTest, TimestampForms) {
  const auto time = [](const char* text) { return ParseAzureTimestamp(text).value(); };
  const absl::Time epoch = absl::UnixEpoch();
  EXPECT_EQ(time("1970-01-02 00:00:01"), epoch + absl::Hours(24) + absl::Seconds(1));
  EXPECT_EQ(time("1970-01-01T00:00:00.123456789Z"), epoch + absl::Nanoseconds(123456789));
  EXPECT_EQ(time("1970-01-01 00:00:00.1+00:00"), epoch + absl::Milliseconds(100));
  EXPECT_EQ(time("2024-03-01 00:30:00+01:00"), time("2024-02-29 23:30:00"));
  EXPECT_EQ(time("2023-12-31 23:30:00-01:00"), time("2024-01-01 00:30:00"));
  EXPECT_EQ(time("9999-12-31 23:59:59.999999999") - time("0000-01-01 00:00:00"),
            absl::Hours(24) * 3652425 - absl::Nanoseconds(1)) << "exact whatever the year";
  for (const char* bad :
       {"", "2023-11-16", "2023-13-01 00:00:00", "2023-02-29 00:00:00", "2023-11-16 24:00:00",
        "2023-11-16 00:60:00", "2023-11-16 00:00:60", "2023-11-16 00:00:00.", "x",
        "2023-11-16 00:00:00.1234567890", "2023-11-16 00:00:00+0100", "2023-11-16 00:00:00 ",
        "23-11-16 00:00:00", "2023-11-16 00:00:00Zx", "2023/11/16 00:00:00",
        "2023-11-16 00:00:00+24:00", "2023-11-16 00:00:00-01:60", " 2023-11-16 00:00:00",
        "2023-11-16 00:00:00.1 Z", "2023-00-16 00:00:00", "+023-11-16 00:00:00"}) {
    EXPECT_FALSE(ParseAzureTimestamp(bad).ok()) << bad;
  }
}

TEST(CivilTimeTest, FormattedTimestampsReadBack) {
  const absl::Time time = absl::FromUnixSeconds(1700158623) + absl::Nanoseconds(979960000);
  EXPECT_EQ(FormatAzureTimestamp(time), "2023-11-16 18:17:03.9799600");
  EXPECT_EQ(FormatAzureTimestamp(absl::UnixEpoch() + absl::Hours(24) + absl::Nanoseconds(1)),
            "1970-01-02 00:00:00.000000001");
  EXPECT_EQ(FormatDay(absl::FromCivil(absl::CivilDay(7, 1, 2), absl::UTCTimeZone())), "0007-01-02");
}

}  // namespace
}  // namespace kvblocks::sim
