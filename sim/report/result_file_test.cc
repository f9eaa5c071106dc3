#include "kvblocks/sim/report/result_file.h"

#include <string>
#include <utility>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "kvblocks/sim/report/report_json.h"
#include "kvblocks/sim/trace/byte_sink.h"

namespace kvblocks::sim {
namespace {

using testing::HasSubstr;
using testing::Not;

namespace pb = ::kvblocks::report::v1;

absl::StatusOr<ResultFile> Open(std::string text) {
  return OpenResult(ByteSourceOfString(std::move(text)), "r");
}

std::string ErrorOf(std::string text) {
  return std::string(Open(std::move(text)).status().message());
}

pb::Report Sample() {
  pb::Report report;
  report.set_schema_version(1);
  report.set_outcome("complete");
  report.mutable_totals()->set_computed_tokens((int64_t{1} << 53) + 1);
  report.mutable_pool()->mutable_usage()->set_mean(1.0 / 3);
  report.mutable_config()->set_seed(~uint64_t{0});
  report.mutable_series()->add_points()->set_usage(0.1);
  return report;
}

TEST(ResultFileTest, ReportsReadBackToTheLastDigit) {
  const auto file = Open(*ToJson(Sample()));
  ASSERT_TRUE(file.ok()) << file.status();
  ASSERT_NE(file->report, nullptr);
  EXPECT_EQ(file->steps, nullptr);
  EXPECT_EQ(file->report->SerializeAsString(), Sample().SerializeAsString());
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
  ASSERT_TRUE((*sink)->Write(*ToJson(Sample())).ok());
  ASSERT_TRUE((*sink)->Close().ok());
  const std::string other = testing::TempDir() + "/steps.csv";
  ASSERT_EQ(std::rename(path.c_str(), other.c_str()), 0);
  const auto file = OpenResultFile(other);
  ASSERT_TRUE(file.ok()) << file.status();
  EXPECT_NE(file->report, nullptr);
}

TEST(ResultFileTest, EveryTruncationIsAnError) {
  std::string json = *ToJson(Sample());
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
  EXPECT_THAT(ErrorOf("{\"schema_version\": 2}"), HasSubstr("schema_version: got 2, expected 1"));
  EXPECT_THAT(ErrorOf("{\"schema_version\": 7, \"of_the_future\": {\"x\": [1]}}"),
              HasSubstr("schema_version: got 7, expected 1"));
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
