#include "kvblocks/sim/trace/civil_time.h"

#include "gtest/gtest.h"

namespace kvblocks::sim {
namespace {

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
