#include "sim/trace/decimal.h"

#include <string>

#include "gtest/gtest.h"

namespace kvblocks::sim {
namespace {

TEST(DecimalTest, MillisecondsBecomeNanosecondsExactly) {
  EXPECT_EQ(*ParseScaledDecimal("46.926808", 6), 46926808);
  EXPECT_EQ(*ParseScaledDecimal("0", 6), 0);
  EXPECT_EQ(*ParseScaledDecimal("-0.0", 6), 0);
  EXPECT_EQ(*ParseScaledDecimal("1.5e3", 6), 1500000000);
  EXPECT_EQ(*ParseScaledDecimal("1500E-3", 6), 1500000);
  EXPECT_EQ(*ParseScaledDecimal("0.1000000000", 6), 100000);
  EXPECT_EQ(*ParseScaledDecimal("0e999999999999999999999", 9), 0);
  // 0.1 + 0.2 style values that binary floating point rounds.
  EXPECT_EQ(*ParseScaledDecimal("9007199254.740993", 6), 9007199254740993);
  EXPECT_EQ(*ParseScaledDecimal("9223372036.854775807", 9), 9223372036854775807);
}

TEST(DecimalTest, RejectsWhatIsNotAnExactNonNegativeNumber) {
  for (const char* text :
       {"",   "-",  "NaN", "nan", "Infinity", "-Infinity", "inf",   "0x10", "1,5",   "1.",
        ".5", "1e", "1e+", "1 ",  " 1",       "+1",        "1_000", "--1",  "1e5.5", "1..2"}) {
    EXPECT_FALSE(ParseScaledDecimal(text, 6).ok()) << text;
  }
  EXPECT_FALSE(ParseScaledDecimal("-1", 6).ok());
  EXPECT_FALSE(ParseScaledDecimal("-0.000001", 6).ok());
  EXPECT_FALSE(ParseScaledDecimal("0.0000001", 6).ok()) << "a tenth of a nanosecond";
  EXPECT_FALSE(ParseScaledDecimal("9223372036.854775808", 9).ok());
  EXPECT_FALSE(ParseScaledDecimal("1e400", 6).ok());
  EXPECT_FALSE(ParseScaledDecimal("1e999999999999999999999", 6).ok());
  EXPECT_FALSE(ParseScaledDecimal("1e-999999999999999999999", 6).ok());
}

TEST(DecimalTest, MessageNamesTheValueAndStaysShort) {
  EXPECT_EQ(ParseScaledDecimal("abc", 6).status().message(),
            "got \"abc\", expected a decimal number");
  EXPECT_LT(ParseScaledDecimal(std::string(1000000, '9'), 6).status().message().size(), 200u);
}

TEST(DecimalTest, RatiosAreInLowestTerms) {
  EXPECT_EQ(*ParseRational("3"), (Rational{3, 1}));
  EXPECT_EQ(*ParseRational("1.50"), (Rational{3, 2}));
  EXPECT_EQ(*ParseRational("6/4"), (Rational{3, 2}));
  EXPECT_EQ(*ParseRational("0"), (Rational{0, 1}));
  EXPECT_EQ(*ParseRational("0.1"), (Rational{1, 10}));
  for (const char* text :
       {"", "x", "1/0", "-1", "1/2/3", "1/", "/2", "1e30", "0.0000000000000000001"}) {
    EXPECT_FALSE(ParseRational(text).ok()) << text;
  }
}

TEST(DecimalTest, SizesMayHaveUnits) {
  const std::pair<const char*, int64_t> counts[] = {
      {"0", 0},        {"131072", 131072},    {"-1", -1},
      {"128k", 128000}, {"128K", 131072},     {"1.5k", 1500},
      {"2m", 2000000},  {"2M", 2 * 1048576}, {"1T", int64_t{1} << 40}};
  for (const auto& [text, count] : counts) EXPECT_EQ(ParseCount(text), count) << text;
  for (const char* text : {"", "k", "1kk", "1.5", "-1k", "0.0001k", "1 k", "1ki", "9e18k"}) {
    EXPECT_EQ(ParseCount(text), std::nullopt) << text;
  }
  const std::pair<const char*, int64_t> bytes[] = {
      {"64GiB", int64_t{64} << 30}, {"10GB", 10'000'000'000}, {"1.5kB", 1500}, {"0.7KiB", 716}};
  for (const auto& [text, size] : bytes) EXPECT_EQ(ParseBytes(text), size) << text;
  for (const char* text : {"", "64", "0GB", "0.5B", "1Gb", "GB", "-1GB", "9000000000TB"}) {
    EXPECT_EQ(ParseBytes(text), std::nullopt) << text;
  }
}

TEST(DecimalTest, RoundedToTheNearestHalvesUp) {
  EXPECT_EQ(*ParseRoundedDecimal("0.30000000000000004", 9), 300000000);
  EXPECT_EQ(*ParseRoundedDecimal("27537.000000000123", 9), 27537000000000);
  EXPECT_EQ(*ParseRoundedDecimal("0.4999", 0), 0);
  EXPECT_EQ(*ParseRoundedDecimal("0.5", 0), 1);
  EXPECT_EQ(*ParseRoundedDecimal("1.5", 0), 2);
  EXPECT_EQ(*ParseRoundedDecimal("0.05", 0), 0);
  EXPECT_EQ(*ParseRoundedDecimal("1e-400", 9), 0);
  EXPECT_EQ(*ParseRoundedDecimal("0.0000000009", 9), 1);
  EXPECT_EQ(*ParseRoundedDecimal("9223372036854775806.5", 0), INT64_MAX);
  EXPECT_FALSE(ParseRoundedDecimal("9223372036854775807.5", 0).ok());
  EXPECT_FALSE(ParseRoundedDecimal("-0.1", 0).ok());
  EXPECT_FALSE(ParseRoundedDecimal("nan", 9).ok());
  EXPECT_FALSE(ParseRoundedDecimal("1e19", 0).ok());
}

TEST(DecimalTest, WholePartsAreGroupedByThousands) {
  const std::pair<const char*, const char*> cases[] = {
      {"", ""},           {"7", "7"},           {"999", "999"},         {"1000", "1,000"},
      {"-12", "-12"},     {"-1234", "-1,234"},  {"+100000", "+100,000"}, {"1234567", "1,234,567"},
      {"1234.5678", "1,234.5678"}, {"9454.55 %", "9,454.55 %"}, {"0.12345", "0.12345"}};
  for (const auto& [number, grouped] : cases) EXPECT_EQ(GroupThousands(number), grouped);
}

TEST(DecimalTest, FormatIsTheShortestExactForm) {
  EXPECT_EQ(FormatScaledDecimal(46926808, 6), "46.926808");
  EXPECT_EQ(FormatScaledDecimal(1000000, 6), "1");
  EXPECT_EQ(FormatScaledDecimal(1, 6), "0.000001");
  EXPECT_EQ(FormatScaledDecimal(0, 6), "0");
}

}  // namespace
}  // namespace kvblocks::sim
