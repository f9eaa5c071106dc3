#include "kvblocks/sim/report/human_table.h"

#include <sstream>
#include <string>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "kvblocks/sim/report/comparison.pb.h"

namespace kvblocks::sim {
namespace {

using testing::HasSubstr;
using testing::Not;

namespace pb = ::kvblocks::report::v1;

pb::MetricChange* Add(pb::Comparison& comparison, const std::string& name, const std::string& a,
                      const std::string& b, const std::string& change, double relative) {
  auto* metric = comparison.add_changes();
  metric->set_name(name);
  metric->set_a(a);
  metric->set_b(b);
  metric->set_change(change);
  metric->set_relative(relative);
  return metric;
}

pb::Comparison Sample() {
  pb::Comparison comparison;
  comparison.set_a("a.json");
  comparison.set_b("b.json");
  comparison.set_passed(true);
  comparison.set_metrics(100);
  comparison.set_metrics_changed(2);
  auto* field = comparison.add_configuration();
  field->set_name("num_blocks");
  field->set_a("2000");
  field->set_b("1500");
  Add(comparison, "counters.hit_tokens", "392256", "306432", "-85824", -0.2188);
  return comparison;
}

std::string Format(const pb::Comparison& comparison) { return FormatComparison(comparison, false); }

TEST(ComparisonTableTest, ShowsConfigurationChangesAndResult) {
  const std::string text = Format(Sample());
  EXPECT_THAT(text, HasSubstr("a  a.json\nb  b.json\n"));
  EXPECT_THAT(text, testing::ContainsRegex("  num_blocks +2,000 +1,500\n"));
  EXPECT_THAT(
      text, testing::ContainsRegex("  counters.hit_tokens +392,256 +306,432 +-85,824 +-21.88 %\n"));
  EXPECT_THAT(text, HasSubstr("result        different: 2 of 100 metrics differ, no tolerance"));
  EXPECT_THAT(text, Not(HasSubstr("\033")));
  EXPECT_THAT(FormatComparison(Sample(), true), HasSubstr("\033[1m"));
}

TEST(ComparisonTableTest, WhatExceedsItsToleranceIsMarked) {
  pb::Comparison comparison = Sample();
  comparison.set_passed(false);
  comparison.set_metrics_judged(50);
  comparison.set_metrics_exceeded(1);
  comparison.mutable_changes(0)->set_exceeded(true);
  const std::string text = Format(comparison);
  EXPECT_THAT(text, HasSubstr("-21.88 % !\n"));
  EXPECT_THAT(text, HasSubstr("failed: 2 of 100 metrics differ, 1 of 50 exceed their tolerance"));
}

TEST(ComparisonTableTest, ValuesOfAllSizesAreReadable) {
  pb::Comparison comparison;
  Add(comparison, "tiny", "1", "2", "1", 1e-7);
  Add(comparison, "huge", "1", "2", "1", 1e9);
  auto* from_zero = Add(comparison, "from_zero", "0", "2", "2", 0);
  from_zero->clear_relative();
  Add(comparison, "real", "0.3333333333333333", "12345678901234567890123", "1e+22", 1);
  auto* alone = comparison.add_changes();
  alone->set_name("only_in_b");
  alone->set_b("7");
  const std::string text = Format(comparison);
  EXPECT_THAT(text, HasSubstr("+1e-05 %"));
  EXPECT_THAT(text, HasSubstr("+1e+11 %"));
  EXPECT_THAT(text, HasSubstr("from 0"));
  EXPECT_THAT(text, HasSubstr("0.333333"));
  EXPECT_THAT(text, HasSubstr("1.23457e+22"));
  EXPECT_THAT(text, testing::ContainsRegex("only_in_b +- +7"));
}

TEST(ComparisonTableTest, LinesFitThePageWhateverTheNames) {
  pb::Comparison comparison = Sample();
  Add(comparison, std::string(80, 'n'), "-9223372036854775808", "9223372036854775807",
      "18446744073709551615", -1e300)
      ->set_exceeded(true);
  auto* text = comparison.add_changes();
  text->set_name("outcome");
  text->set_a(std::string(500, 'x') + "\033[31m");
  text->set_b("\n\n");
  auto* field = comparison.add_configuration();
  field->set_name("trace");
  field->set_a("/a/long/path/" + std::string(100, 'p'));
  auto* divergence = comparison.mutable_schedule()->mutable_first_divergence();
  auto* column = divergence->add_columns();
  column->set_name("x");
  column->set_a(std::string(300, 'a'));
  column->set_b("\033");
  auto* request = divergence->add_requests();
  divergence->set_requests_differ(3);
  request->set_row(std::string(100, '1'));
  request->set_a("5+" + std::string(100, '7'));
  request->set_b("5+" + std::string(100, '7') + "+8");
  std::istringstream lines(Format(comparison));
  bool is_path_whole = false;
  for (std::string line; std::getline(lines, line);) {
    // Names of files are not cut.
    const bool is_path = line == "    a  /a/long/path/" + std::string(100, 'p');
    is_path_whole = is_path_whole || is_path;
    EXPECT_TRUE(line.size() <= 100u || is_path) << line;
    EXPECT_EQ(line.find('\033'), std::string::npos) << line;
  }
  EXPECT_TRUE(is_path_whole);
}

TEST(ComparisonTableTest, SchedulesStandSideBySide) {
  pb::Comparison comparison = Sample();
  auto* schedule = comparison.mutable_schedule();
  schedule->set_equal_steps(4272);
  schedule->set_judged(true);
  auto* divergence = schedule->mutable_first_divergence();
  divergence->set_step(4272);
  divergence->set_line_a(4274);
  auto* column = divergence->add_columns();
  column->set_name("running");
  column->set_a("2");
  column->set_differs(true);
  auto* request = divergence->add_requests();
  divergence->set_requests_differ(1);
  request->set_row("17");
  request->set_a("64+101+102+103+104+105+106+107+108+109+110+111+112");
  request->set_b("64+101+102+103+104+105+106+107+108+109+110+111+113");
  const std::string text = Format(comparison);
  EXPECT_THAT(text, HasSubstr("schedules part at step 4272, after 4,272 equal steps !"));
  EXPECT_THAT(text, testing::ContainsRegex("a, line 4274 +b has ended"));
  EXPECT_THAT(text, testing::ContainsRegex("! running +2 +-\n"));
  EXPECT_THAT(text, testing::ContainsRegex("! 17 +\\.\\.\\.\\+112 +\\.\\.\\.\\+113\n"));
  EXPECT_THAT(text, HasSubstr("request 17 has block 112 in a and block 113 in b\n"));
  EXPECT_LT(text.find("schedules part"), text.find("metric "));
  request->set_b("63+101");
  EXPECT_THAT(Format(comparison), HasSubstr("request 17 has tokens 64 in a and tokens 63 in b\n"));
  request->set_b("64+101");
  EXPECT_THAT(Format(comparison),
              HasSubstr("request 17 has block 102 in a and no further block in b\n"));
  schedule->Clear();
  schedule->set_same(true);
  schedule->set_equal_steps(9);
  EXPECT_THAT(Format(comparison), HasSubstr("schedules are the same in all 9 steps"));
}

}  // namespace
}  // namespace kvblocks::sim
