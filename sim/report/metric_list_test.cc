#include "sim/report/metric_list.h"

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
#include "sim/report/report.pb.h"

namespace kvblocks::sim {
namespace {

using testing::Contains;
using testing::Key;
using testing::Not;
using testing::Pair;

namespace pb = ::kvblocks::report::v1;

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

// Sets every field of a message, one element in each list and the first of fields that exclude each other, and counts
// the leaves.
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
