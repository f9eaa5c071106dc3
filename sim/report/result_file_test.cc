#include "sim/report/result_file.h"

#include <string>
#include <utility>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "sim/report/report_json.h"
#include "sim/report/step_rows.h"
#include "sim/trace/byte_sink.h"

namespace kvblocks::sim {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;
using testing::Not;

namespace pb = ::kvblocks::report::v1;

// --- Step reader ---

absl::StatusOr<std::unique_ptr<StepReader>> OpenSteps(std::string text) {
  return StepReader::Create(ByteSourceOfString(std::move(text)), "s.csv");
}

// The first error of header or rows, or "".
std::string StepErrorOf(std::string text) {
  const auto reader = OpenSteps(std::move(text));
  if (!reader.ok()) return std::string(reader.status().message());
  StepRow row;
  while (true) {
    const auto more = (*reader)->Next(&row);
    if (!more.ok()) return std::string(more.status().message());
    if (!*more) return "";
  }
}

constexpr char kHeader[] = "step,tokens,digest\r\n";
constexpr char kDigest[] = "00000000deadbeef";

TEST(StepReaderTest, ReadsRowsByName) {
  const auto reader =
      OpenSteps(std::string(kHeader) + "0,7," + kDigest + "\r\n3,,ffffffffffffffff\n");
  ASSERT_TRUE(reader.ok()) << reader.status();
  EXPECT_THAT((*reader)->columns(), ElementsAre("step", "tokens", "digest"));
  StepRow row;
  ASSERT_TRUE(*(*reader)->Next(&row));
  EXPECT_EQ(row.line, 2);
  EXPECT_EQ(row.step, 0);
  EXPECT_EQ(row.digest, 0xdeadbeefu);
  EXPECT_THAT(row.fields, ElementsAre("0", "7", kDigest));
  ASSERT_TRUE(*(*reader)->Next(&row));
  EXPECT_EQ(row.step, 3);
  EXPECT_EQ(row.digest, ~uint64_t{0});
  EXPECT_FALSE(*(*reader)->Next(&row));
  EXPECT_FALSE(*(*reader)->Next(&row));
}

TEST(StepReaderTest, IsRecognisedByItsHeader) {
  EXPECT_TRUE(StepReader::Recognises(kHeader));
  EXPECT_TRUE(StepReader::Recognises("\xef\xbb\xbfstep,x"));
  for (const char* other : {"", "step", "steps,", "{\"step\": 1}", "row,id,"}) {
    EXPECT_FALSE(StepReader::Recognises(other)) << other;
  }
}

TEST(StepReaderTest, BadFilesNameLineAndValue) {
  const std::string good = std::string(kHeader) + "0,7," + kDigest + "\r\n";
  EXPECT_EQ(StepErrorOf(good), "");
  EXPECT_THAT(StepErrorOf(""), HasSubstr("s.csv:1: error: header: got \"\""));
  EXPECT_THAT(StepErrorOf("row,id\n"), HasSubstr("s.csv:1: error: header: got \"row,id\""));
  EXPECT_THAT(StepErrorOf("step,tokens\n"), HasSubstr("header: got no column digest"));
  EXPECT_THAT(StepErrorOf("step,digest,step\n"), HasSubstr("header: got column \"step\""));
  EXPECT_THAT(StepErrorOf("step,,digest\n"), HasSubstr("header: got column \"\""));
  EXPECT_THAT(StepErrorOf("step,A\x1b,digest\n"), HasSubstr("got column \"A\\x1b\""));
  EXPECT_THAT(StepErrorOf("step," + std::string(200, ',') + "\n"), HasSubstr("202 columns"));
  EXPECT_THAT(StepErrorOf(good + "1,8\n"),
              HasSubstr("s.csv:3: error: row: got 2 fields, expected 3"));
  EXPECT_THAT(StepErrorOf(good + "1,8,9,9\n"), HasSubstr("row: got 4 fields"));
  EXPECT_THAT(StepErrorOf(good + "\n"), HasSubstr("s.csv:3: error: row: got 1 fields"));
  for (const char* step : {"0", "-1", "x", "", "1.5", "1e3", "99999999999999999999", " 1"}) {
    EXPECT_THAT(StepErrorOf(good + step + ",8," + kDigest + "\n"),
                HasSubstr("s.csv:3: error: step: got"))
        << step;
  }
  for (const char* digest : {"", "abc", "00000000DEADBEEF", "00000000deadbeef0", "-0000000deadbeef",
                             "00000000deadbee "}) {
    EXPECT_THAT(StepErrorOf(good + "1,8," + digest), HasSubstr("s.csv:3: error: digest: got"))
        << digest;
  }
}

TEST(StepReaderTest, EveryTruncationOfARowIsAnError) {
  const std::string text = std::string(kHeader) + "0,7," + kDigest + "\r\n";
  for (size_t size = 0; size < text.size() - 2; ++size) {
    // What ends between two rows is whole.
    if (size == sizeof(kHeader) - 2 || size == sizeof(kHeader) - 3 || size == sizeof(kHeader) - 1) {
      continue;
    }
    EXPECT_NE(StepErrorOf(text.substr(0, size)), "") << size;
  }
}

TEST(StepReaderTest, DamagedArchivesNameTheLastGoodLine) {
  const std::string gzip("\x1f\x8b\x08\0\0\0\0\0\0\x03\x01\x05", 12);
  EXPECT_THAT(StepErrorOf(gzip), HasSubstr("s.csv:1: error: truncated gzip stream"));
}

// --- Result file ---

absl::StatusOr<ResultFile> Open(std::string text) {
  return OpenResult(ByteSourceOfString(std::move(text)), "r");
}

std::string ErrorOf(std::string text) {
  return std::string(Open(std::move(text)).status().message());
}

pb::Report SampleResult() {
  pb::Report report;
  report.set_schema_version(kReportSchemaVersion);
  report.set_outcome("complete");
  report.mutable_totals()->set_computed_tokens((int64_t{1} << 53) + 1);
  report.mutable_pool()->mutable_usage()->set_mean(1.0 / 3);
  report.mutable_config()->set_seed(~uint64_t{0});
  report.mutable_series()->add_points()->set_usage(0.1);
  return report;
}

TEST(ResultFileTest, ReportsReadBackToTheLastDigit) {
  const auto file = Open(*ToJson(SampleResult()));
  ASSERT_TRUE(file.ok()) << file.status();
  ASSERT_NE(file->report, nullptr);
  EXPECT_EQ(file->steps, nullptr);
  EXPECT_EQ(file->report->SerializeAsString(), SampleResult().SerializeAsString());
}

// Numbers that not every reader of JSON has exactly stay texts.
TEST(ResultFileTest, WholeNumbersAreNumbersUpToTwoToThe53) {
  pb::Report report = SampleResult();
  report.mutable_totals()->set_steps(int64_t{1} << 53);
  report.mutable_totals()->set_output_tokens(-7);
  report.mutable_config()->set_trace("12");
  report.mutable_config()->set_speedup("a \\ \"3\": {");
  report.add_notes("5");
  report.add_notes("6");
  const std::string json = *ToJson(report);
  EXPECT_THAT(json, HasSubstr("\"computed_tokens\": \"9007199254740993\""));
  EXPECT_THAT(json, HasSubstr("\"steps\": 9007199254740992,"));
  EXPECT_THAT(json, HasSubstr("\"output_tokens\": -7,"));
  EXPECT_THAT(json, HasSubstr("\"seed\": \"18446744073709551615\""));
  EXPECT_THAT(json, HasSubstr("\"trace\": \"12\""));
  const auto file = Open(json);
  ASSERT_TRUE(file.ok()) << file.status();
  EXPECT_EQ(file->report->SerializeAsString(), report.SerializeAsString());
}

TEST(ResultFileTest, StepFilesAreRecognised) {
  const auto file = Open("step,tokens,digest\r\n0,1,0123456789abcdef\r\n");
  ASSERT_TRUE(file.ok()) << file.status();
  EXPECT_EQ(file->report, nullptr);
  ASSERT_NE(file->steps, nullptr);
  StepRow row;
  EXPECT_TRUE(*file->steps->Next(&row));
  EXPECT_EQ(row.step, 0);
}

TEST(ResultFileTest, FilesMayBeCompressedAndNamesMayLie) {
  const std::string path = testing::TempDir() + "/report.json.gz";
  auto sink = OpenByteSink(path);
  ASSERT_TRUE(sink.ok());
  ASSERT_TRUE((*sink)->Write(*ToJson(SampleResult())).ok());
  ASSERT_TRUE((*sink)->Close().ok());
  const std::string other = testing::TempDir() + "/steps.csv";
  ASSERT_EQ(std::rename(path.c_str(), other.c_str()), 0);
  const auto file = OpenResultFile(other);
  ASSERT_TRUE(file.ok()) << file.status();
  EXPECT_NE(file->report, nullptr);
}

TEST(ResultFileTest, EveryTruncationIsAnError) {
  std::string json = *ToJson(SampleResult());
  json.resize(json.find_last_of('}') + 1);
  for (size_t size = 0; size < json.size(); size += 1 + size / 50) {
    EXPECT_NE(ErrorOf(json.substr(0, size)), "") << size;
  }
  EXPECT_THAT(ErrorOf(json.substr(0, 100)), HasSubstr("r: error: JSON: got 100 bytes without"));
  EXPECT_THAT(ErrorOf(json.substr(0, 100)), HasSubstr("truncated?"));
}

TEST(ResultFileTest, OtherFilesAreRefusedByWhatTheyAre) {
  EXPECT_THAT(ErrorOf(""), HasSubstr("r: error: content: got nothing"));
  EXPECT_THAT(ErrorOf("\n\n"), HasSubstr("content: got nothing"));
  EXPECT_THAT(ErrorOf("row,id,arrival_ms\r\n"), HasSubstr("content: got \"row,id,arrival_ms\""));
  EXPECT_THAT(ErrorOf("[]"), HasSubstr("content: got \"[]\""));
  EXPECT_THAT(ErrorOf("{\"a\": \x1b[31m}"), Not(HasSubstr("\x1b")));
  EXPECT_THAT(ErrorOf("{\"timestamp\": 1}\n{\"timestamp\": 2}\n"),
              HasSubstr("JSON: got something"));
  EXPECT_THAT(ErrorOf("{\"schema_version\": 1, \"name\": \"x\"}"), HasSubstr("name: Cannot find"));
  EXPECT_THAT(ErrorOf("{}"), HasSubstr("schema_version: got nothing"));
  EXPECT_THAT(ErrorOf("{\"outcome\": \"complete\"}"), HasSubstr("schema_version: got nothing"));
  EXPECT_THAT(ErrorOf("{\"schema_version\": \"x\"}"), HasSubstr("JSON: got something else"));
  EXPECT_THAT(ErrorOf("{\"schema_version\": 1, \"totals\": {\"steps\": 1e999}}"),
              HasSubstr("JSON"));
  EXPECT_THAT(ErrorOf("{\"schema_version\": 1, \"totals\": {\"steps\": \"9223372036854775808\"}}"),
              HasSubstr("JSON"));
}

TEST(ResultFileTest, OtherSchemaVersionsAreNamed) {
  EXPECT_EQ(ErrorOf("{\"schema_version\": 1}"), "");
  EXPECT_EQ(ErrorOf("{\"schema_version\": 2}"), "");
  EXPECT_THAT(ErrorOf("{\"schema_version\": 3}"),
              HasSubstr("schema_version: got 3, expected 1 or 2"));
  EXPECT_THAT(ErrorOf("{\"schema_version\": 4294967295}"),
              HasSubstr("schema_version: got 4294967295, expected 1 or 2"));
  EXPECT_THAT(ErrorOf("{\"schema_version\": 7, \"of_the_future\": {\"x\": [1]}}"),
              HasSubstr("schema_version: got 7, expected 1 or 2"));
}

TEST(ResultFileTest, DeepNestingIsAnError) {
  std::string deep = "{\"schema_version\": 1, \"goodput\": ";
  for (int i = 0; i < 10000; ++i) deep += "{\"classes\": [";
  EXPECT_THAT(ErrorOf(deep + "}"), HasSubstr("r: error: JSON"));
}

TEST(ResultFileTest, FilesThatCannotBeReadAreErrors) {
  EXPECT_THAT(std::string(OpenResultFile("/nosuchfolder/x").status().message()),
              HasSubstr("cannot open"));
  EXPECT_FALSE(OpenResultFile("/").ok());
}

}  // namespace
}  // namespace kvblocks::sim
