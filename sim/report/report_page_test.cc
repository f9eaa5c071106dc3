#include "kvblocks/sim/report/report_page.h"

#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "gtest/gtest.h"
#include "kvblocks/sim/report/report_comparison.h"
#include "kvblocks/sim/report/report_json.h"
#include "kvblocks/sim/report/result_file.h"
#include "kvblocks/sim/testing/measured_replay.h"

namespace kvblocks::sim {
namespace {

// Pages are too long to be printed where they are not as expected.
bool Has(const std::string& page, const std::string& text) {
  return page.find(text) != std::string::npos;
}

pb::Report Example(int64_t num_blocks) {
  Replay replay;
  replay.config.scheduler.reserve_full_isl = false;
  replay.config.kv_cache.num_blocks = num_blocks;
  for (int i = 0; i < 30; ++i) {
    replay.Add({.id = absl::StrCat(i),
                .prompt = 10,
                .output = 6,
                .at = 1.0 * i,
                .content = Content(5, 100 * (i % 9), 10)});
  }
  Measured measured;
  ReplayMetricsOptions options;
  options.objectives = *ParseObjectives("ttft:4s:p90,tpot:2s");
  Measure(replay, &measured, options);
  pb::Report report = measured.report;
  report.mutable_config()->set_prefix_caching(true);
  report.mutable_config()->set_model("a-model");
  report.mutable_setup()->set_latency_is_meaningful(true);
  report.mutable_workload()->set_name("trace.jsonl");
  report.add_notes("a note");
  return report;
}

TEST(ReportPageTest, HasTablesAndChartsOfWhatTheReportHas) {
  const std::string page = ReportPage(Example(12));
  for (const char* title :
       {"Where prompt tokens went", "Hit rate", "Block pool", "Requests", "Computed tokens",
        "Step time", "Evictions", "Preemptions", "Time to first token", "Time per output token",
        "Whole requests", "Length of the prefix that was hit", "Reuse distance",
        "LRU position at hit"}) {
    EXPECT_TRUE(Has(page, absl::StrCat("<h3>", title, "</h3>"))) << title;
  }
  EXPECT_TRUE(Has(page, "{\"name\":\"SLO\",\"at\":4000,\"vertical\":true}"));
  EXPECT_TRUE(Has(page, "{\"name\":\"p90\",\"at\":90,\"vertical\":false}"));
  EXPECT_TRUE(Has(page, "a note"));
  EXPECT_TRUE(Has(page, "<th scope=\"row\">model</th><td>&quot;a-model&quot;</td>"));
  EXPECT_FALSE(Has(page, "<h3>Hit rate by turn of a session</h3>")) << "no sessions";
  EXPECT_FALSE(Has(page, "<h3>KV-cache groups</h3>")) << "one group";
}

TEST(ReportPageTest, WhatDidNotHappenHasNoChart) {
  const std::string page = ReportPage(Example(1000));
  EXPECT_FALSE(Has(page, "<h3>Evictions</h3>"));
  EXPECT_FALSE(Has(page, "<h3>Preemptions</h3>"));
  EXPECT_FALSE(Has(page, "<h3>Reuse distance</h3>"));
}

TEST(ReportPageTest, FixedTimeDrawsNoLatency) {
  pb::Report report = Example(12);
  report.mutable_setup()->set_latency_is_meaningful(false);
  const std::string page = ReportPage(report);
  EXPECT_FALSE(Has(page, "<h3>Time to first token</h3>"));
  EXPECT_FALSE(Has(page, "<caption>Latency, ms</caption>"));
  EXPECT_TRUE(Has(page, "says nothing about latency"));
}

TEST(ReportPageTest, AStoredReportIsDrawnAlike) {
  const pb::Report report = Example(12);
  const auto stored = ParseReport(*ToJson(report), "stored");
  ASSERT_TRUE(stored.ok()) << stored.status();
  EXPECT_TRUE(ReportPage(*stored) == ReportPage(report));
}

TEST(ReportPageTest, AnEmptyReportIsAPageToo) {
  const std::string page = ReportPage(pb::Report());
  EXPECT_TRUE(Has(page, "</html>"));
  EXPECT_FALSE(Has(page, "<figure"));
}

TEST(ReportPageTest, TwoRunsAreDrawnOverEachOther) {
  const pb::Report a = Example(12), b = Example(1000);
  pb::Comparison comparison;
  comparison.set_a("a.json");
  comparison.set_b("b.json");
  ASSERT_TRUE(CompareReports(a, b, {}, &comparison).ok());
  const std::string page = ComparisonPage(a, b, comparison);
  EXPECT_TRUE(Has(page, "\"name\":\"running, A\",\"style\":\"line\",\"color\":0"));
  EXPECT_TRUE(Has(page, "\"name\":\"running, B\",\"style\":\"dashed\",\"color\":0"));
  EXPECT_TRUE(Has(page, "\"name\":\"preemptions, B\"")) << "A has some";
  EXPECT_TRUE(Has(page, "pool.evictions"));
  EXPECT_TRUE(Has(page, "A: a.json, B: b.json"));
}

TEST(ReportPageTest, LongSeriesAreDrawnInFewPointsThatKeepTheirSums) {
  pb::Report report;
  report.mutable_config()->set_prefix_caching(true);
  report.mutable_series()->set_tick_s(2);
  for (int i = 0; i < 450; ++i) {
    pb::Point* point = report.mutable_series()->add_points();
    point->set_start_s(2 * i);
    point->set_running(i % 3);
    point->set_evictions(6);
    point->set_queried_tokens(100);
    point->set_hit_tokens(10 * (i % 3));
  }
  report.mutable_pool()->set_evictions(1);
  const std::string page = ReportPage(report);
  // Three ticks a point: 150 of them, in minutes.
  EXPECT_TRUE(Has(page,
                  "\"name\":\"running\",\"style\":\"line\",\"color\":0,"
                  "\"points\":[[0,1],[0.1,1],[0.2,1],"));
  EXPECT_TRUE(Has(page, "[14.9,1]]"));
  EXPECT_TRUE(Has(page, "\"points\":[[0,3],[0.1,3],")) << "evictions per second";
  EXPECT_TRUE(Has(page, "\"points\":[[0,10],[0.1,10],")) << "hit rate";
}

}  // namespace
}  // namespace kvblocks::sim
