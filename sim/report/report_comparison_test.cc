#include "sim/report/report_comparison.h"

#include <cmath>
#include <limits>
#include <map>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "gmock/gmock.h"
#include "google/protobuf/descriptor.h"
#include "google/protobuf/text_format.h"
#include "gtest/gtest.h"
#include "sim/report/metric_list.h"
#include "sim/report/report.pb.h"
#include "sim/testing/measured_replay.h"
#include "sim/testing/message_fields.h"

namespace kvblocks::sim {
namespace {

namespace pb = ::kvblocks::report::v1;
using testing::Contains;
using testing::ElementsAre;
using testing::HasSubstr;
using testing::Key;
using testing::Not;
using testing::Pair;

// --- Tolerance ---

Tolerance Parsed(const std::string& text) {
  const auto tolerance = Tolerance::Parse(text);
  EXPECT_TRUE(tolerance.ok()) << tolerance.status();
  return *tolerance;
}

MetricNumber Whole(int64_t value) { return __int128{value}; }

bool Allows(const std::string& text, int64_t a, int64_t b) {
  return Parsed(text).Allows(Whole(a), Whole(b));
}
bool AllowsReal(const std::string& text, double a, double b) {
  return Parsed(text).Allows(MetricNumber(a), MetricNumber(b));
}

TEST(ToleranceTest, RelativeChange) {
  EXPECT_TRUE(Allows("0.01", 1000, 1010));
  EXPECT_FALSE(Allows("0.01", 1000, 1011));
  EXPECT_TRUE(Allows("1%", 1000, 990));
  EXPECT_FALSE(Allows("1%", 1000, 989));
  EXPECT_TRUE(Allows("1/3", 3, 4));
  EXPECT_TRUE(Allows("0", 7, 7));
  EXPECT_FALSE(Allows("0", 7, 8));
  EXPECT_TRUE(Allows("0.5", -10, -15));
  EXPECT_FALSE(Allows("0.5", -10, -16));
  EXPECT_FALSE(Allows("1000", 0, 1)) << "no share of nothing";
  EXPECT_TRUE(Allows("1000", 0, 0));
  EXPECT_TRUE(AllowsReal("0.01", 1.0, 1.005));
  EXPECT_FALSE(AllowsReal("0.01", 1.0, 1.02));
}

TEST(ToleranceTest, AbsoluteChange) {
  EXPECT_TRUE(Allows("x:abs:5", 0, 5));
  EXPECT_FALSE(Allows("x:abs:5", 0, 6));
  EXPECT_TRUE(Allows("abs:5", 10, 5));
  EXPECT_FALSE(AllowsReal("abs:0.5", 1.0, 1.6));
  EXPECT_TRUE(AllowsReal("abs:0.5", 1.0, 0.6));
}

TEST(ToleranceTest, WholeNumbersAreComparedExactly) {
  constexpr int64_t kLarge = (int64_t{1} << 53) + 1;
  EXPECT_FALSE(Allows("0", kLarge, kLarge - 1)) << "equal as doubles";
  constexpr int64_t kMin = std::numeric_limits<int64_t>::min();
  constexpr int64_t kMax = std::numeric_limits<int64_t>::max();
  EXPECT_TRUE(Allows("2", kMin, kMax));
  EXPECT_FALSE(Allows("2", kMax, kMin));
  EXPECT_TRUE(Allows("1000000000000000000", kMax, kMin));
  EXPECT_FALSE(Allows("0.000000000000000001", kMax, kMax - 10));
  EXPECT_TRUE(Allows("0.000000000000000001", kMax, kMax - 9));
}

TEST(ToleranceTest, OddNumbersAreOnlyEqualToThemselves) {
  const double nan = std::nan(""), inf = INFINITY;
  EXPECT_TRUE(AllowsReal("0", nan, nan));
  EXPECT_FALSE(AllowsReal("1000", nan, 1));
  EXPECT_FALSE(AllowsReal("1000", 1, nan));
  EXPECT_TRUE(AllowsReal("0", inf, inf));
  EXPECT_FALSE(AllowsReal("1000", inf, -inf));
  EXPECT_FALSE(AllowsReal("1000", 1, inf));
  EXPECT_TRUE(AllowsReal("inf", 1, nan));
  EXPECT_TRUE(AllowsReal("0", 0.0, -0.0));
}

TEST(ToleranceTest, NamesHaveParts) {
  EXPECT_THAT(SplitMetricName("a.b[c.d].e"), ElementsAre("a", "b[c.d]", "e"));
  EXPECT_THAT(SplitMetricName("a[b[c].d].e]."), ElementsAre("a[b[c].d]", "e]", ""));
  const auto matches = [](const std::string& name, const std::string& metric) {
    return Parsed(name + ":0").Matches(SplitMetricName(metric));
  };
  EXPECT_TRUE(matches("token_hit_rate", "whole_run.token_hit_rate.value"));
  EXPECT_TRUE(matches("whole_run.token_hit_rate", "whole_run.token_hit_rate.value"));
  EXPECT_FALSE(matches("whole_run.value", "whole_run.token_hit_rate.value"));
  EXPECT_FALSE(matches("hit_rate", "whole_run.token_hit_rate.value"));
  EXPECT_TRUE(matches("causes", "misses.causes[evicted].tokens"));
  EXPECT_TRUE(matches("causes.tokens", "misses.causes[evicted].tokens"));
  EXPECT_TRUE(matches("causes[evicted]", "misses.causes[evicted].tokens"));
  EXPECT_FALSE(matches("causes[first use]", "misses.causes[evicted].tokens"));
  EXPECT_TRUE(matches("tenants[a.b:c]", "tenants[a.b:c].requests"));
  EXPECT_TRUE(Parsed("0").Matches({"anything"}));
  EXPECT_TRUE(matches("points", "series.points[].usage"));
}

TEST(ToleranceTest, TheMostSpecificOneCountsAndOfSeveralTheLast) {
  const auto set = ToleranceSet::Parse(
      {"0.01", "latency:0.1", "latency.ttft:0.2", "0.02", "latency.tpot:0.3", "latency.tpot:0.4"});
  ASSERT_TRUE(set.ok());
  EXPECT_EQ(set->Find("counters.hits")->text(), "0.02");
  EXPECT_EQ(set->Find("latency.e2e.p50_ms")->text(), "latency:0.1");
  EXPECT_EQ(set->Find("latency.ttft.p50_ms")->text(), "latency.ttft:0.2");
  EXPECT_EQ(set->Find("latency.tpot.p50_ms")->text(), "latency.tpot:0.4");
  EXPECT_EQ(ToleranceSet::Parse({"x:1"})->Find("y"), nullptr);
  EXPECT_EQ(ToleranceSet().Find("y"), nullptr);
}

TEST(ToleranceTest, TextsThatMakeNoSenseAreErrors) {
  for (const char* text : {"",
                           ":", "x", "x:", ":5", "x:abs:", ":abs:5", "-1", "x:-1", "5%%", "%",
                           "nan", "1e400", "x:abs:5%", "a..b:1", ".a:1", "a.:1", "0x10", "1,5",
                           "x:infinity", "1/0", "0.00000000000000000001",
                           "0.000000000000000001%"}) {
    const auto tolerance = Tolerance::Parse(text);
    EXPECT_FALSE(tolerance.ok()) << text;
    if (tolerance.ok()) continue;
    EXPECT_THAT(std::string(tolerance.status().message()),
                HasSubstr("--tolerance: got \"" + std::string(text) + "\", expected"));
  }
}

// --- Report comparison ---

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

pb::Report AReport() {
  return WithFields(pb::Report(), R"(
      schema_version: 1 outcome: "complete" config { num_blocks: 100 }
      whole_run { token_hit_rate { numerator: 1000 value: 0.5 } } preemption { preemptions: 0 }
      series { points { usage: 0.5 } points { usage: 0.5 } points { usage: 0.5 }
               points { usage: 0.5 } })");
}

TEST(ReportComparisonTest, EqualReportsHaveNoChanges) {
  const auto comparison = Compared(AReport(), AReport(), {"0"});
  EXPECT_EQ(comparison.changes_size(), 0);
  EXPECT_EQ(comparison.configuration_size(), 0);
  EXPECT_FIELDS(comparison, "metrics_changed 0, metrics_exceeded 0");
  EXPECT_GT(comparison.metrics(), 20);
  EXPECT_EQ(comparison.metrics_judged(), comparison.metrics());
}

TEST(ReportComparisonTest, ChangesAreAbsoluteAndRelative) {
  pb::Report b = AReport();
  b.mutable_whole_run()->mutable_token_hit_rate()->set_numerator(900);
  b.mutable_whole_run()->mutable_token_hit_rate()->set_value(0.25);
  b.mutable_preemption()->set_preemptions(3);
  const auto comparison = Compared(AReport(), b);
  EXPECT_FIELDS(comparison, "metrics_changed 3, metrics_judged 0");
  const auto* hits = Find(comparison, "whole_run.token_hit_rate.numerator");
  ASSERT_NE(hits, nullptr);
  EXPECT_FIELDS(*hits, "a 1000, b 900, change -100, relative -0.1, tolerance none");
  EXPECT_FIELDS(*Find(comparison, "whole_run.token_hit_rate.value"),
                "change -0.25, relative -0.5");
  // There is no share of 0.
  EXPECT_FIELDS(*Find(comparison, "preemption.preemptions"), "change 3, relative none");
}

TEST(ReportComparisonTest, TolerancesJudgeByName) {
  pb::Report b = AReport();
  b.mutable_whole_run()->mutable_token_hit_rate()->set_numerator(995);
  EXPECT_EQ(Compared(AReport(), b, {"0.01"}).metrics_exceeded(), 0);
  EXPECT_EQ(Compared(AReport(), b, {"0.001"}).metrics_exceeded(), 1);
  const auto named = Compared(AReport(), b, {"0.01", "token_hit_rate:0"});
  EXPECT_EQ(named.metrics_exceeded(), 1);
  const auto* hits = Find(named, "whole_run.token_hit_rate.numerator");
  EXPECT_FIELDS(*hits, "exceeded true, tolerance token_hit_rate:0");
  EXPECT_EQ(Compared(AReport(), b, {"0", "whole_run:inf"}).metrics_exceeded(), 0);
  const auto other = Compared(AReport(), b, {"preemption:0"});
  EXPECT_EQ(other.metrics_exceeded(), 0);
  EXPECT_GT(other.metrics_judged(), 0);
  EXPECT_LT(other.metrics_judged(), 20) << "those of preemption alone";
}

TEST(ReportComparisonTest, ATolerancesNameMustBeThatOfAMetric) {
  ReportComparisonOptions options;
  options.tolerances = *ToleranceSet::Parse({"hit_rate.token:0"});
  pb::Comparison out;
  const std::string message(CompareReports(AReport(), AReport(), options, &out).message());
  EXPECT_THAT(message, HasSubstr("--tolerance: got \"hit_rate.token:0\""));
  EXPECT_THAT(message, HasSubstr("such as whole_run.token_hit_rate.numerator"));
  options.tolerances = *ToleranceSet::Parse({"nothing_like_it:0"});
  EXPECT_THAT(std::string(CompareReports(AReport(), AReport(), options, &out).message()),
              HasSubstr("such as whole_run.token_hit_rate or"));
}

TEST(ReportComparisonTest, LargeWholeNumbersAreExact) {
  pb::Report a = AReport(), b = AReport();
  constexpr int64_t kLarge = (int64_t{1} << 53) + 1;
  a.mutable_totals()->set_computed_tokens(kLarge);
  b.mutable_totals()->set_computed_tokens(kLarge - 1);
  const auto comparison = Compared(a, b, {"0"});
  ASSERT_EQ(comparison.metrics_exceeded(), 1);
  EXPECT_FIELDS(*Find(comparison, "totals.computed_tokens"), "a 9007199254740993, change -1");
}

TEST(ReportComparisonTest, TheConfigurationIsListedAndNotJudged) {
  pb::Report b = AReport();
  b.mutable_config()->set_num_blocks(50);
  b.mutable_config()->set_policy("priority");
  b.mutable_config()->mutable_kv_cache_config()->add_groups()->set_num_layers(8);
  const auto comparison = Compared(AReport(), b, {"0"});
  EXPECT_EQ(comparison.metrics_exceeded(), 0);
  ASSERT_GE(comparison.configuration_size(), 3);
  EXPECT_FIELDS(comparison.configuration(0), "name num_blocks, a 100, b 50");
  EXPECT_FIELDS(comparison.configuration(1), "name kv_cache_config.groups[].num_layers, a none");
  EXPECT_EQ(comparison.configuration(comparison.configuration_size() - 1).name(), "policy");
}

TEST(ReportComparisonTest, TextsExceedOnlyATolerancesOfZero) {
  pb::Report b = AReport();
  b.set_outcome("stopped");
  EXPECT_EQ(Compared(AReport(), b, {"0"}).metrics_exceeded(), 1);
  EXPECT_EQ(Compared(AReport(), b, {"0.01"}).metrics_exceeded(), 0);
  EXPECT_EQ(Compared(AReport(), b, {"0.01", "outcome:0"}).metrics_exceeded(), 1);
  const auto comparison = Compared(AReport(), b);
  EXPECT_FIELDS(*Find(comparison, "outcome"), "b stopped, change none");
}

TEST(ReportComparisonTest, WhatOneReportHasAloneExceedsAllButInf) {
  pb::Report b = AReport();
  b.mutable_goodput()->set_requests_good(5);
  for (const bool only_b : {true, false}) {
    const auto compared = [&](const std::vector<std::string>& tolerances) {
      return only_b ? Compared(AReport(), b, tolerances) : Compared(b, AReport(), tolerances);
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
  pb::Report b = AReport();
  b.mutable_series()->mutable_points(1)->set_usage(0.6);
  b.mutable_series()->mutable_points(2)->set_usage(0.1);
  b.mutable_series()->mutable_points(3)->set_usage(0.6);
  const auto comparison = Compared(AReport(), b, {"0.3"});
  const auto* usage = Find(comparison, "series.points[].usage");
  ASSERT_NE(usage, nullptr);
  // The element is the one that changed most.
  EXPECT_FIELDS(*usage, "elements 4, elements_changed 3, element 2, b 0.1, exceeded true");
  EXPECT_FIELDS(comparison, "metrics_exceeded 1, metrics_changed 3");
  EXPECT_EQ(Find(comparison, "series.points[].running"), nullptr) << "equal";

  const auto all = Compared(AReport(), b, {}, true);
  EXPECT_EQ(Find(all, "series.points[].usage"), nullptr);
  EXPECT_EQ(Find(all, "series.points[3].usage")->b(), "0.6");
  EXPECT_EQ(all.changes_size(), all.metrics());
}

TEST(ReportComparisonTest, AnElementBeyondItsToleranceStandsForItsList) {
  pb::Report a = AReport(), b = AReport();
  // A large change within the tolerance, and a small one beyond it.
  a.mutable_series()->mutable_points(0)->set_usage(1000);
  b.mutable_series()->mutable_points(0)->set_usage(1050);
  b.mutable_series()->mutable_points(3)->set_usage(0.6);
  const auto comparison = Compared(a, b, {"0.1"});
  const auto* usage = Find(comparison, "series.points[].usage");
  ASSERT_NE(usage, nullptr);
  EXPECT_FIELDS(*usage, "element 3, exceeded true");
}

TEST(ReportComparisonTest, ListsOfDifferentLengthDiffer) {
  pb::Report b = AReport();
  b.mutable_series()->add_points();
  EXPECT_GT(Compared(AReport(), b, {"1000"}).metrics_exceeded(), 0);
  EXPECT_EQ(Compared(AReport(), b, {"0", "series:inf"}).metrics_exceeded(), 0);
}

TEST(ReportComparisonTest, ElementsMeetByName) {
  pb::Report a = AReport(), b = AReport();
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

std::vector<Metric> MetricsOf(const google::protobuf::Message& message,
                              const std::vector<std::string>& skip = {}) {
  auto metrics = ListMetrics(message, skip);
  EXPECT_TRUE(metrics.ok()) << metrics.status();
  return metrics.ok() ? *std::move(metrics) : std::vector<Metric>();
}

std::map<std::string, std::string> Texts(const google::protobuf::Message& message) {
  std::map<std::string, std::string> texts;
  for (const Metric& metric : MetricsOf(message)) {
    EXPECT_TRUE(texts.emplace(metric.name, MetricText(metric)).second) << metric.name;
  }
  return texts;
}

TEST(MetricListTest, FieldsAreNamedByTheirPlace) {
  pb::Report report;
  report.mutable_whole_run()->mutable_token_hit_rate()->set_numerator(7);
  report.set_outcome("complete");
  report.add_notes("first");
  const auto texts = Texts(report);
  EXPECT_THAT(texts, Contains(Pair("whole_run.token_hit_rate.numerator", "7")));
  EXPECT_THAT(texts, Contains(Pair("whole_run.token_hit_rate.denominator", "0")));
  EXPECT_THAT(texts, Contains(Pair("whole_run.window", "")));
  EXPECT_THAT(texts, Contains(Pair("outcome", "complete")));
  EXPECT_THAT(texts, Contains(Pair("notes[0]", "first")));
  EXPECT_THAT(texts, Not(Contains(Key("goodput.met")))) << "absent";
}

TEST(MetricListTest, ElementsAreNamedByTheirFirstText) {
  pb::Report report;
  for (const char* cause : {"evicted", "first use", "evicted", "a.b]["}) {
    report.mutable_resume_misses()->add_causes()->set_cause(cause);
  }
  report.mutable_hit_groups()->add_tenants()->set_name("");
  auto* prefix = report.mutable_hit_groups()->add_top_prefixes();
  prefix->mutable_hits()->set_name("ab\n");
  prefix->set_first_row(9);
  const auto texts = Texts(report);
  EXPECT_THAT(texts, Contains(Key("resume_misses.causes[evicted].blocks")));
  EXPECT_THAT(texts, Contains(Key("resume_misses.causes[first use].blocks")));
  EXPECT_THAT(texts, Contains(Key("resume_misses.causes[evicted#2].blocks")));
  EXPECT_THAT(texts, Contains(Key("resume_misses.causes[a.b\\x5d\\x5b].blocks")));
  EXPECT_THAT(texts, Contains(Key("hit_groups.tenants[].requests")));
  EXPECT_THAT(texts, Contains(Pair("hit_groups.top_prefixes[ab\\n].first_row", "9")));
}

TEST(MetricListTest, ElementsWithoutNamesBelongToAList) {
  pb::Report report;
  report.mutable_series()->add_points()->set_usage(0.25);
  report.mutable_series()->add_points();
  bool found = false;
  for (const Metric& metric : MetricsOf(report.series())) {
    if (metric.name != "points[1].usage") continue;
    found = true;
    EXPECT_EQ(metric.list, "points[].usage");
    EXPECT_EQ(metric.element, 1);
  }
  EXPECT_TRUE(found);
}

TEST(MetricListTest, FieldsCanBeLeftOut) {
  pb::Report report;
  report.mutable_config()->set_num_blocks(1);
  for (const Metric& metric : MetricsOf(report, {"config", "schema_version"})) {
    EXPECT_EQ(metric.name.find("config"), std::string::npos);
    EXPECT_NE(metric.name, "schema_version");
  }
}

// Sets every field of a message, one element in each list and the first of fields that exclude each
// other, and counts the leaves.
int64_t FillAll(google::protobuf::Message* message, int depth) {
  using google::protobuf::FieldDescriptor;
  const auto* r = message->GetReflection();
  int64_t leaves = 0;
  for (int i = 0; i < message->GetDescriptor()->field_count(); ++i) {
    const FieldDescriptor* field = message->GetDescriptor()->field(i);
    const bool is_list = field->is_repeated();
    const auto* choice = field->real_containing_oneof();
    if (choice != nullptr && choice->field(0) != field) continue;
    const bool is_message = field->cpp_type() == FieldDescriptor::CPPTYPE_MESSAGE;
    if (is_message && depth <= 6) {
      leaves += FillAll(is_list ? r->AddMessage(message, field) : r->MutableMessage(message, field),
                        depth + 1);
    }
    if (is_message) continue;
    ++leaves;
    const bool is_flag = field->cpp_type() == FieldDescriptor::CPPTYPE_BOOL;
    const bool is_text = field->cpp_type() == FieldDescriptor::CPPTYPE_STRING;
    EXPECT_TRUE(google::protobuf::TextFormat::ParseFieldValueFromString(
        is_flag ? "true" : is_text ? "'t'" : "5", field, message))
        << field->full_name() << " has a type that no test fills";
  }
  return leaves;
}

TEST(MetricListTest, EveryFieldOfTheReportIsAMetric) {
  pb::Report report;
  const int64_t leaves = FillAll(&report, 0);
  std::set<std::string> names;
  for (const Metric& metric : MetricsOf(report)) {
    EXPECT_TRUE(names.insert(metric.name).second) << metric.name;
  }
  EXPECT_EQ(static_cast<int64_t>(names.size()), leaves);
}

TEST(MetricListTest, NamesAreCutAndStayApart) {
  pb::Report report;
  for (const char* end : {"1", "2"}) {
    report.mutable_resume_misses()->add_causes()->set_cause(std::string(5000, 'x') + end);
  }
  EXPECT_THAT(Texts(report),
              Contains(Key("resume_misses.causes[" + std::string(80, 'x') + "#2].blocks")));
}

TEST(MetricListTest, AReportThatIsMadeToHurtIsRefused) {
  pb::Report report;
  pb::Goodput* goodput = report.mutable_goodput();
  for (int depth = 0; depth < 90; ++depth) {
    goodput->set_slo_class(std::string(80, 'x'));
    goodput = goodput->add_classes();
  }
  for (int i = 0; i < 20000; ++i) goodput->add_objectives();
  EXPECT_EQ(ListMetrics(report).status().code(), absl::StatusCode::kResourceExhausted);
}

TEST(MetricListTest, TextsHaveAllDigits) {
  EXPECT_EQ(ExactText(0.1), "0.1");
  EXPECT_EQ(ExactText(1.0 / 3), "0.3333333333333333");
  EXPECT_EQ(ExactText(__int128{std::numeric_limits<int64_t>::min()}), "-9223372036854775808");
  EXPECT_EQ(ExactText(__int128{std::numeric_limits<uint64_t>::max()}), "18446744073709551615");
  EXPECT_EQ(ExactText(-__int128{std::numeric_limits<uint64_t>::max()}), "-18446744073709551615");
  EXPECT_EQ(ExactText(__int128{0}), "0");
}

}  // namespace
}  // namespace kvblocks::sim
