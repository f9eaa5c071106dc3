#include "kvblocks/sim/report/step_rows.h"

#include <string>
#include <utility>

#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace kvblocks::sim {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;

absl::StatusOr<std::unique_ptr<StepReader>> Open(std::string text) {
  return StepReader::Create(ByteSourceOfString(std::move(text)), "s.csv");
}

// The first error of header or rows, or "".
std::string ErrorOf(std::string text) {
  const auto reader = Open(std::move(text));
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
  const auto reader = Open(std::string(kHeader) + "0,7," + kDigest + "\r\n3,,ffffffffffffffff\n");
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
  EXPECT_EQ(ErrorOf(good), "");
  EXPECT_THAT(ErrorOf(""), HasSubstr("s.csv:1: error: header: got \"\""));
  EXPECT_THAT(ErrorOf("row,id\n"), HasSubstr("s.csv:1: error: header: got \"row,id\""));
  EXPECT_THAT(ErrorOf("step,tokens\n"), HasSubstr("header: got no column digest"));
  EXPECT_THAT(ErrorOf("step,digest,step\n"), HasSubstr("header: got column \"step\""));
  EXPECT_THAT(ErrorOf("step,,digest\n"), HasSubstr("header: got column \"\""));
  EXPECT_THAT(ErrorOf("step,A\x1b,digest\n"), HasSubstr("got column \"A\\x1b\""));
  EXPECT_THAT(ErrorOf("step," + std::string(200, ',') + "\n"), HasSubstr("202 columns"));
  EXPECT_THAT(ErrorOf(good + "1,8\n"), HasSubstr("s.csv:3: error: row: got 2 fields, expected 3"));
  EXPECT_THAT(ErrorOf(good + "1,8,9,9\n"), HasSubstr("row: got 4 fields"));
  EXPECT_THAT(ErrorOf(good + "\n"), HasSubstr("s.csv:3: error: row: got 1 fields"));
  for (const char* step : {"0", "-1", "x", "", "1.5", "1e3", "99999999999999999999", " 1"}) {
    EXPECT_THAT(ErrorOf(good + step + ",8," + kDigest + "\n"),
                HasSubstr("s.csv:3: error: step: got"))
        << step;
  }
  for (const char* digest : {"", "abc", "00000000DEADBEEF", "00000000deadbeef0", "-0000000deadbeef",
                             "00000000deadbee "}) {
    EXPECT_THAT(ErrorOf(good + "1,8," + digest), HasSubstr("s.csv:3: error: digest: got"))
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
    EXPECT_NE(ErrorOf(text.substr(0, size)), "") << size;
  }
}

TEST(StepReaderTest, DamagedArchivesNameTheLastGoodLine) {
  const std::string gzip("\x1f\x8b\x08\0\0\0\0\0\0\x03\x01\x05", 12);
  EXPECT_THAT(ErrorOf(gzip), HasSubstr("s.csv:1: error: truncated gzip stream"));
}

}  // namespace
}  // namespace kvblocks::sim
