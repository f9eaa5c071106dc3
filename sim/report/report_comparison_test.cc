#include "kvblocks/sim/report/report_comparison.h"

#include <string>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "kvblocks/sim/testing/measured_replay.h"

namespace kvblocks::sim {
namespace {

using testing::HasSubstr;

pb::Comparison Compared(const pb::Report& a, const pb::Report& b,
                        const std::vector<std::string>& tolerances = {}, bool all = false) {
  ReportComparisonOptions options;
  const auto parsed = ToleranceSet::Parse(tolerances);
  EXPECT_TRUE(parsed.ok()) << parsed.status();
  options.tolerances = *parsed;
  options.all = all;
  pb::Comparison out;
  const absl::Status status = CompareReports(a, b, options, &out);
  EXPECT_TRUE(status.ok()) << status;
  return out;
}

const pb::MetricChange* Find(const pb::Comparison& comparison, const std::string& name) {
  for (const pb::MetricChange& change : comparison.changes()) {
    if (change.name() == name) return &change;
  }
  return nullptr;
}

pb::Report Sample() {
  pb::Report report;
  report.set_schema_version(1);
  report.set_outcome("complete");
  report.mutable_config()->set_num_blocks(100);
  report.mutable_whole_run()->mutable_token_hit_rate()->set_numerator(1000);
  report.mutable_whole_run()->mutable_token_hit_rate()->set_value(0.5);
  report.mutable_preemption()->set_preemptions(0);
  for (int i = 0; i < 4; ++i) report.mutable_series()->add_points()->set_usage(0.5);
  return report;
}

TEST(ReportComparisonTest, EqualReportsHaveNoChanges) {
  const auto comparison = Compared(Sample(), Sample(), {"0"});
  EXPECT_EQ(comparison.changes_size(), 0);
  EXPECT_EQ(comparison.configuration_size(), 0);
  EXPECT_EQ(comparison.metrics_changed(), 0);
  EXPECT_EQ(comparison.metrics_exceeded(), 0);
  EXPECT_GT(comparison.metrics(), 20);
  EXPECT_EQ(comparison.metrics_judged(), comparison.metrics());
}

TEST(ReportComparisonTest, ChangesAreAbsoluteAndRelative) {
  pb::Report b = Sample();
  b.mutable_whole_run()->mutable_token_hit_rate()->set_numerator(900);
  b.mutable_whole_run()->mutable_token_hit_rate()->set_value(0.25);
  b.mutable_preemption()->set_preemptions(3);
  const auto comparison = Compared(Sample(), b);
  EXPECT_EQ(comparison.metrics_changed(), 3);
  EXPECT_EQ(comparison.metrics_judged(), 0);
  const auto* hits = Find(comparison, "whole_run.token_hit_rate.numerator");
  ASSERT_NE(hits, nullptr);
  EXPECT_EQ(hits->a(), "1000");
  EXPECT_EQ(hits->b(), "900");
  EXPECT_EQ(hits->change(), "-100");
  EXPECT_DOUBLE_EQ(hits->relative(), -0.1);
  EXPECT_FALSE(hits->has_tolerance());
  const auto* rate = Find(comparison, "whole_run.token_hit_rate.value");
  EXPECT_EQ(rate->change(), "-0.25");
  EXPECT_DOUBLE_EQ(rate->relative(), -0.5);
  const auto* preemptions = Find(comparison, "preemption.preemptions");
  EXPECT_EQ(preemptions->change(), "3");
  EXPECT_FALSE(preemptions->has_relative()) << "there is no share of 0";
}

TEST(ReportComparisonTest, TolerancesJudgeByName) {
  pb::Report b = Sample();
  b.mutable_whole_run()->mutable_token_hit_rate()->set_numerator(995);
  EXPECT_EQ(Compared(Sample(), b, {"0.01"}).metrics_exceeded(), 0);
  EXPECT_EQ(Compared(Sample(), b, {"0.001"}).metrics_exceeded(), 1);
  const auto named = Compared(Sample(), b, {"0.01", "token_hit_rate:0"});
  EXPECT_EQ(named.metrics_exceeded(), 1);
  const auto* hits = Find(named, "whole_run.token_hit_rate.numerator");
  EXPECT_TRUE(hits->exceeded());
  EXPECT_EQ(hits->tolerance(), "token_hit_rate:0");
  EXPECT_EQ(Compared(Sample(), b, {"0", "whole_run:inf"}).metrics_exceeded(), 0);
  const auto other = Compared(Sample(), b, {"preemption:0"});
  EXPECT_EQ(other.metrics_exceeded(), 0);
  EXPECT_GT(other.metrics_judged(), 0);
  EXPECT_LT(other.metrics_judged(), 20) << "those of preemption alone";
}

TEST(ReportComparisonTest, ATolerancesNameMustBeThatOfAMetric) {
  ReportComparisonOptions options;
  options.tolerances = *ToleranceSet::Parse({"hit_rate.token:0"});
  pb::Comparison out;
  const std::string message(CompareReports(Sample(), Sample(), options, &out).message());
  EXPECT_THAT(message, HasSubstr("--tolerance: got \"hit_rate.token:0\""));
  EXPECT_THAT(message, HasSubstr("such as whole_run.token_hit_rate.numerator"));
  options.tolerances = *ToleranceSet::Parse({"nothing_like_it:0"});
  EXPECT_THAT(std::string(CompareReports(Sample(), Sample(), options, &out).message()),
              HasSubstr("such as whole_run.token_hit_rate or"));
}

TEST(ReportComparisonTest, LargeWholeNumbersAreExact) {
  pb::Report a = Sample(), b = Sample();
  constexpr int64_t kLarge = (int64_t{1} << 53) + 1;
  a.mutable_totals()->set_computed_tokens(kLarge);
  b.mutable_totals()->set_computed_tokens(kLarge - 1);
  const auto comparison = Compared(a, b, {"0"});
  ASSERT_EQ(comparison.metrics_exceeded(), 1);
  EXPECT_EQ(Find(comparison, "totals.computed_tokens")->a(), "9007199254740993");
  EXPECT_EQ(Find(comparison, "totals.computed_tokens")->change(), "-1");
}

TEST(ReportComparisonTest, TheConfigurationIsListedAndNotJudged) {
  pb::Report b = Sample();
  b.mutable_config()->set_num_blocks(50);
  b.mutable_config()->set_policy("priority");
  b.mutable_config()->mutable_kv_cache_config()->add_groups()->set_num_layers(8);
  const auto comparison = Compared(Sample(), b, {"0"});
  EXPECT_EQ(comparison.metrics_exceeded(), 0);
  ASSERT_GE(comparison.configuration_size(), 3);
  EXPECT_EQ(comparison.configuration(0).name(), "num_blocks");
  EXPECT_EQ(comparison.configuration(0).a(), "100");
  EXPECT_EQ(comparison.configuration(0).b(), "50");
  EXPECT_EQ(comparison.configuration(1).name(), "kv_cache_config.groups[].num_layers");
  EXPECT_FALSE(comparison.configuration(1).has_a());
  EXPECT_EQ(comparison.configuration(comparison.configuration_size() - 1).name(), "policy");
}

TEST(ReportComparisonTest, TextsExceedOnlyATolerancesOfZero) {
  pb::Report b = Sample();
  b.set_outcome("stopped");
  EXPECT_EQ(Compared(Sample(), b, {"0"}).metrics_exceeded(), 1);
  EXPECT_EQ(Compared(Sample(), b, {"0.01"}).metrics_exceeded(), 0);
  EXPECT_EQ(Compared(Sample(), b, {"0.01", "outcome:0"}).metrics_exceeded(), 1);
  const auto comparison = Compared(Sample(), b);
  EXPECT_EQ(Find(comparison, "outcome")->b(), "stopped");
  EXPECT_FALSE(Find(comparison, "outcome")->has_change());
}

TEST(ReportComparisonTest, WhatOneReportHasAloneExceedsAllButInf) {
  pb::Report b = Sample();
  b.mutable_goodput()->set_requests_good(5);
  for (const bool only_b : {true, false}) {
    const auto compared = [&](const std::vector<std::string>& tolerances) {
      return only_b ? Compared(Sample(), b, tolerances) : Compared(b, Sample(), tolerances);
    };
    EXPECT_GT(compared({"100"}).metrics_exceeded(), 0);
    EXPECT_EQ(compared({"100", "goodput:inf"}).metrics_exceeded(), 0);
    const auto comparison = compared({});
    const auto* good = Find(comparison, "goodput.requests_good");
    ASSERT_NE(good, nullptr);
    EXPECT_EQ(good->has_a(), !only_b);
    EXPECT_EQ(good->has_b(), only_b);
    EXPECT_FALSE(good->has_change());
  }
}

TEST(ReportComparisonTest, ListsWithoutNamesAreOneMetricPerField) {
  pb::Report b = Sample();
  b.mutable_series()->mutable_points(1)->set_usage(0.6);
  b.mutable_series()->mutable_points(2)->set_usage(0.1);
  b.mutable_series()->mutable_points(3)->set_usage(0.6);
  const auto comparison = Compared(Sample(), b, {"0.3"});
  const auto* usage = Find(comparison, "series.points[].usage");
  ASSERT_NE(usage, nullptr);
  EXPECT_EQ(usage->elements(), 4);
  EXPECT_EQ(usage->elements_changed(), 3);
  EXPECT_EQ(usage->element(), 2) << "the one that changed most";
  EXPECT_EQ(usage->b(), "0.1");
  EXPECT_TRUE(usage->exceeded());
  EXPECT_EQ(comparison.metrics_exceeded(), 1);
  EXPECT_EQ(comparison.metrics_changed(), 3);
  EXPECT_EQ(Find(comparison, "series.points[].running"), nullptr) << "equal";

  const auto all = Compared(Sample(), b, {}, true);
  EXPECT_EQ(Find(all, "series.points[].usage"), nullptr);
  EXPECT_EQ(Find(all, "series.points[3].usage")->b(), "0.6");
  EXPECT_EQ(all.changes_size(), all.metrics());
}

TEST(ReportComparisonTest, AnElementBeyondItsToleranceStandsForItsList) {
  pb::Report a = Sample(), b = Sample();
  // A large change within the tolerance, and a small one beyond it.
  a.mutable_series()->mutable_points(0)->set_usage(1000);
  b.mutable_series()->mutable_points(0)->set_usage(1050);
  b.mutable_series()->mutable_points(3)->set_usage(0.6);
  const auto comparison = Compared(a, b, {"0.1"});
  const auto* usage = Find(comparison, "series.points[].usage");
  ASSERT_NE(usage, nullptr);
  EXPECT_EQ(usage->element(), 3);
  EXPECT_TRUE(usage->exceeded());
}

TEST(ReportComparisonTest, ListsOfDifferentLengthDiffer) {
  pb::Report b = Sample();
  b.mutable_series()->add_points();
  EXPECT_GT(Compared(Sample(), b, {"1000"}).metrics_exceeded(), 0);
  EXPECT_EQ(Compared(Sample(), b, {"0", "series:inf"}).metrics_exceeded(), 0);
}

TEST(ReportComparisonTest, ElementsMeetByName) {
  pb::Report a = Sample(), b = Sample();
  for (const char* name : {"x", "y"}) a.mutable_hit_groups()->add_tenants()->set_name(name);
  for (const char* name : {"y", "z", "x"}) b.mutable_hit_groups()->add_tenants()->set_name(name);
  const auto comparison = Compared(a, b);
  EXPECT_EQ(Find(comparison, "hit_groups.tenants[x].name"), nullptr);
  EXPECT_EQ(Find(comparison, "hit_groups.tenants[y].name"), nullptr);
  EXPECT_FALSE(Find(comparison, "hit_groups.tenants[z].name")->has_a());
}

TEST(ReportComparisonTest, RealReplaysWithTwoPoolsDifferWhereTheyShould) {
  const auto report = [](int64_t num_blocks) {
    Replay replay;
    replay.config.kv_cache.num_blocks = num_blocks;
    for (int i = 0; i < 8; ++i) {
      replay.Add({.id = std::to_string(i),
                  .prompt = 12,
                  .output = 2,
                  .at = i * 5.0,
                  .content = Content(8, (i % 4) * 100, 12)});
    }
    Measured measured;
    Measure(replay, &measured);
    EXPECT_TRUE(measured.status.ok());
    return measured.report;
  };
  EXPECT_EQ(Compared(report(50), report(50), {"0"}).metrics_exceeded(), 0);
  const auto comparison = Compared(report(50), report(8), {"0"});
  EXPECT_GT(comparison.metrics_exceeded(), 0);
  EXPECT_NE(Find(comparison, "pool.evictions"), nullptr);
  EXPECT_EQ(Find(comparison, "workload.input_tokens"), nullptr);
}

}  // namespace
}  // namespace kvblocks::sim
