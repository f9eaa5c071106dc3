#include "sim/cost/sim_time.h"

#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace kvblocks::sim {
namespace {

using ::testing::HasSubstr;

TEST(SimTimeTest, DurationsParseExactly) {
  EXPECT_EQ(*ParseDuration("1s"), kSecond);
  EXPECT_EQ(*ParseDuration("20ms"), 20 * kMillisecond);
  EXPECT_EQ(*ParseDuration("1.5us"), 1500 * kNanosecond);
  EXPECT_EQ(*ParseDuration("250ns"), 250 * kNanosecond);
  EXPECT_EQ(*ParseDuration("3ps"), 3);
  EXPECT_EQ(*ParseDuration("2min"), 120 * kSecond);
  EXPECT_EQ(*ParseDuration("1.5h"), 5400 * kSecond);
  EXPECT_EQ(*ParseDuration("0s"), 0);
  EXPECT_EQ(*ParseDuration("0.000000000001s"), 1);
  EXPECT_EQ(*ParseDuration("1.0000ns"), 1000);
  EXPECT_EQ(*ParseDuration("9223372036854775807ps"), kMaxSimTime);
}

TEST(SimTimeTest, BadDurationsAreRefusedWithTheReason) {
  const std::pair<const char*, const char*> bad[] = {{"", "no number"},
                                                     {"s", "no number"},
                                                     {"-1s", "no number"},
                                                     {"1", "no unit"},
                                                     {"1 s", "unknown unit"},
                                                     {"1weeks", "unknown unit"},
                                                     {"1.s", "no digit"},
                                                     {"1.2.3s", "two points"},
                                                     {".5s", "no number"},
                                                     {"0.5ps", "whole number"},
                                                     {"1.0001ns", "whole number"},
                                                     {"nan", "no number"},
                                                     {"9223372037s", "106 days"},
                                                     {"99999999999999999999ps", "106 days"},
                                                     {"9223372036854775.808ms", "106 days"}};
  for (const auto& [text, reason] : bad) {
    const auto parsed = ParseDuration(text);
    ASSERT_FALSE(parsed.ok()) << text;
    EXPECT_EQ(parsed.status().code(), absl::StatusCode::kInvalidArgument);
    EXPECT_THAT(parsed.status().message(), HasSubstr(reason)) << text;
  }
}

TEST(SimTimeTest, FormattingIsExactAndParsesBack) {
  EXPECT_EQ(FormatDuration(0), "0s");
  EXPECT_EQ(FormatDuration(kSecond), "1s");
  EXPECT_EQ(FormatDuration(1500 * kMicrosecond), "1.5ms");
  EXPECT_EQ(FormatDuration(-kSecond), "-1s");
  EXPECT_EQ(FormatDuration(90 * kSecond), "90s");
  EXPECT_EQ(FormatDuration(std::numeric_limits<int64_t>::min()), "-9223372.036854775808s");
  for (SimTime time : {SimTime{1}, SimTime{999}, SimTime{1001}, 123'456'789'012'345, kMaxSimTime}) {
    EXPECT_EQ(*ParseDuration(FormatDuration(time)), time);
  }
}

TEST(SimTimeTest, OverflowIsAnEmptyAnswer) {
  EXPECT_EQ(CheckedAdd(kMaxSimTime, 1), std::nullopt);
  EXPECT_EQ(CheckedAdd(kMaxSimTime - 1, 1), kMaxSimTime);
  EXPECT_EQ(CheckedMultiply(kMaxSimTime / 2 + 1, 2), std::nullopt);
  EXPECT_EQ(FromNanoseconds(9223372036854775807), std::nullopt);
  EXPECT_EQ(FromNanoseconds(5), 5000);
}

}  // namespace
}  // namespace kvblocks::sim
