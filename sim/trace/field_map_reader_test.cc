#include <string>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "kvblocks/sim/testing/trace_testing.h"

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

TEST(FieldMapReaderTest, CsvColumnsInAnyOrderAndQuotes) {
  const TraceReaderOptions options = Fields(
      "arrival=when,session=user,output_length=completion_tokens,input_length=prompt_tokens,"
      "ids=blocks",
      16);
  auto reader = OpenTrace("sim/trace/testdata/formats/fields.csv", options);
  ASSERT_TRUE(reader.ok()) << reader.status();
  EXPECT_EQ((*reader)->info().format, "fields");
  EXPECT_EQ((*reader)->info().notes.at("day_one"), "2026-11-22");
  auto requests = AllRequests(**reader);
  ASSERT_TRUE(requests.ok()) << requests.status();
  const std::vector<TraceRequest>& r = *requests;
  ASSERT_EQ(r.size(), 2u);
  EXPECT_THAT(r[0].content_ids, ElementsAre(1, 2, 3));
  EXPECT_THAT(r[1].content_ids, ElementsAre(1, 2, 4));
  EXPECT_EQ(r[0].arrival_ns, 18 * 3600 * kSecond);
  EXPECT_EQ(r[1].arrival_ns - r[0].arrival_ns, 3 * kSecond / 2);
  EXPECT_NE(r[0].session, r[1].session);
}

TEST(FieldMapReaderTest, JsonPathsAndUnits) {
  auto r = ReadTrace(R"({"t": 1500.25, "usage": {"in": 7, "out": "3"}, "who": "x", "p": -2})"
                     "\n"
                     R"({"t": "2e3", "usage": {"in": 9.0, "out": 4}, "who": null, "p": null})",
                     Fields("arrival_ms=t,input_length=usage.in,output_length=usage.out,tenant=who,"
                            "priority=p"));
  ASSERT_TRUE(r.ok()) << r.status();
  EXPECT_EQ((*r)[0].arrival_ns, 1500250000);
  EXPECT_EQ((*r)[0].tenant, "x");
  EXPECT_EQ((*r)[0].priority, -2);
  EXPECT_EQ((*r)[1].arrival_ns, 2 * kSecond);
  EXPECT_EQ((*r)[1].input_length, 9);
  EXPECT_EQ((*r)[1].tenant, "");
}

TEST(FieldMapReaderTest, InputsOfEncodersAreACountToo) {
  auto r = ReadTrace("i,o,frames\n4,5,1500\n6,7,\n",
                     Fields("input_length=i,output_length=o,encoder_tokens=frames"));
  ASSERT_TRUE(r.ok()) << r.status();
  EXPECT_EQ((*r)[0].encoder_tokens, 1500);
  EXPECT_FALSE((*r)[1].encoder_tokens.has_value());
  EXPECT_THAT(TraceError("i,o,frames\n4,5,-3\n",
                         Fields("input_length=i,output_length=o,encoder_tokens=frames")),
              HasSubstr("got \"-3\", expected a whole number from 0 to 2147483647"));
}

TEST(FieldMapReaderTest, RowsWithoutArrivalFollowTheirSession) {
  auto r = ReadTrace("s,t,i,o,d\na,5,1,1,\nb,,1,1,\na,,1,1,2\na,9,1,1,\n",
                     Fields("session=s,arrival_s=t,input_length=i,output_length=o,think_s=d"));
  ASSERT_TRUE(r.ok()) << r.status();
  ASSERT_EQ(r->size(), 4u);
  EXPECT_EQ((*r)[0].row, 1) << "the first of its session, without a time: at 0";
  EXPECT_EQ((*r)[1].row, 0);
  EXPECT_THAT((*r)[2].waits_for, ElementsAre(0));
  EXPECT_EQ((*r)[2].think_ns, 2 * kSecond);
  EXPECT_FALSE((*r)[2].has_arrival);
  EXPECT_THAT((*r)[3].waits_for, IsEmpty()) << "it has a time of its own";
}

TEST(FieldMapReaderTest, WithoutArrivalsAllAreThereFromTheStart) {
  auto r = ReadTrace("i,o\n4,5\n6,7\n", Fields("input_length=i,output_length=o"));
  ASSERT_TRUE(r.ok()) << r.status();
  EXPECT_EQ((*r)[1].arrival_ns, 0);
  EXPECT_TRUE((*r)[1].has_arrival);
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

}  // namespace
}  // namespace kvblocks::sim
