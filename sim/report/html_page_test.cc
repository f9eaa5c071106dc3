#include "sim/report/report_json.h"

#include <simdjson.h>

#include <string>

#include "absl/strings/match.h"
#include "google/protobuf/any.pb.h"
#include "gtest/gtest.h"
#include "sim/report/comparison.pb.h"
#include "sim/report/report.pb.h"

namespace kvblocks::sim {
namespace {

namespace pb = ::kvblocks::report::v1;

constexpr char kBegin[] = "<script type=\"application/json\" id=\"report\">";

// What page.js reads: all up to what a browser takes for the end of the element.
std::string DataOf(const std::string& page) {
  const size_t from = page.find(kBegin) + sizeof kBegin - 1;
  return page.substr(from, page.find('<', from) - from);
}

TEST(HtmlPageTest, HoldsTheReportAsJsonAndFetchesNothing) {
  pb::Report report;
  report.mutable_workload()->set_name("trace.jsonl");
  report.mutable_workload()->set_requests_arrived(int64_t{1} << 60);
  const auto page = HtmlPage(report);
  ASSERT_TRUE(page.ok()) << page.status();
  simdjson::dom::parser parser;
  const std::string text = DataOf(*page);
  auto data = parser.parse(text);
  ASSERT_EQ(data.error(), simdjson::SUCCESS);
  EXPECT_EQ(simdjson::minify(data.value()),
            R"({"kind":"Report","report":{"workload":{"name":"trace.jsonl",)"
            R"("requests_arrived":"1152921504606846976"}}})");
  for (const char* fetch : {"src=", "href=", "@import", "url(", "fetch(", "XMLHttpRequest",
                            "innerHTML", "document.write", "eval("}) {
    EXPECT_FALSE(absl::StrContains(*page, fetch)) << fetch;
  }
  EXPECT_TRUE(absl::StrContains(*page, "default-src 'none'"));
  EXPECT_TRUE(absl::StrContains(*page, "prefers-color-scheme: dark"));
  EXPECT_TRUE(absl::StrContains(*page, "@media print"));
}

TEST(HtmlPageTest, TextsCannotEndTheElement) {
  const std::string hostile = "</script><script>alert(1)</script><!--<script>\\\"\n\xE2\x80\xA8";
  pb::Report report;
  report.mutable_workload()->set_name(hostile);
  report.mutable_config()->set_trace(hostile);
  report.add_notes(hostile);
  const auto page = HtmlPage(report);
  ASSERT_TRUE(page.ok());
  simdjson::dom::parser parser;
  const std::string text = DataOf(*page);
  auto data = parser.parse(text);
  ASSERT_EQ(data.error(), simdjson::SUCCESS);
  EXPECT_EQ(std::string(data["report"]["workload"]["name"].get_string().value()), hostile);
  EXPECT_EQ(std::string(data["report"]["notes"].at(0).get_string().value()), hostile);
  EXPECT_FALSE(absl::StrContains(*page, "alert(1)</script>"));
}

TEST(HtmlPageTest, HoldsWhatIsBesideTheReport) {
  pb::Report a, b;
  a.mutable_workload()->set_name("one");
  b.mutable_workload()->set_name("two");
  pb::Comparison comparison;
  comparison.set_same(true);
  const auto page = HtmlPage(comparison, {{"a", &a}, {"b", &b}});
  ASSERT_TRUE(page.ok());
  simdjson::dom::parser parser;
  const std::string text = DataOf(*page);
  EXPECT_EQ(simdjson::minify(parser.parse(text).value()),
            R"({"kind":"Comparison","report":{"same":true},)"
            R"("a":{"workload":{"name":"one"}},"b":{"workload":{"name":"two"}}})");
}

TEST(HtmlPageTest, WhatHasNoJsonHasNoPage) {
  google::protobuf::Any unknown;
  unknown.set_type_url("type.googleapis.com/no.such.Type");
  unknown.set_value("\x08\x01");
  EXPECT_FALSE(HtmlPage(unknown).ok());
  EXPECT_FALSE(HtmlPage(pb::Report(), {{"other", &unknown}}).ok());
}

}  // namespace
}  // namespace kvblocks::sim
