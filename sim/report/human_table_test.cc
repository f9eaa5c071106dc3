#include "sim/report/human_table.h"

#include <simdjson.h>

#include <algorithm>
#include <sstream>
#include <string>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_replace.h"
#include "absl/strings/str_split.h"
#include "gmock/gmock.h"
#include "google/protobuf/any.pb.h"
#include "gtest/gtest.h"
#include "sim/report/comparison.pb.h"
#include "sim/report/miss_classifier.h"
#include "sim/report/report.pb.h"
#include "sim/report/report_json.h"
#include "sim/report/validation_report.h"
#include "sim/testing/message_fields.h"

namespace kvblocks::sim {
namespace {

namespace pb = ::kvblocks::report::v1;
using testing::HasSubstr;
using testing::Not;

// The largest figures that a report can hold, in every section.
pb::Report Crowded() {
  constexpr const char* kLatency = "{ count: HUGE mean_ms: 9.2e9 max_ms: 9.2e9 } ";
  std::string text = R"(
      config { prefix_caching: true free_order: "unhashed_first" policy: "priority"
               model: "a-model-with-a-rather-long-name" device: "a-device-with-a-long-name-too"
               slo: "ttft:2s:p99,tpot:50ms,e2e:1min:p99.9,queueing:500ms:p50" }
      workload { requests_arrived: HUGE input_tokens: HUGE requested_output_tokens: HUGE
                 last_arrival_s: 9e6 }
      setup { latency_is_meaningful: true time_source: "roofline, uncalibrated"
              num_blocks: 2147483647 block_tokens: 16777216 capacity_tokens: HUGE
              num_blocks_source: "device: 80 GB x 0.9 - weights 16.1 GB - activations 2 GB" }
      whole_run { token_hit_rate { numerator: HUGE denominator: HUGE value: 1 }
                  possible_hit_rate { numerator: HUGE denominator: HUGE value: 1 } }
      prompt_tokens { known: HUGE hit: HUGE }
      first_admission_misses { evicted { blocks: HUGE p50_age_s: 252 p50_distance_blocks: 12000 } }
      groups {} pool { evictions: HUGE }
      preemption { preemptions: HUGE requests_affected: HUGE recomputed_tokens: HUGE
                   time_lost_s: 1e6 }
      drafts { verified: HUGE } goodput { met: false }
      steady_throughput { output_tokens_per_s: 1e12 end_s: 9e6 }
      totals { requests_rejected: HUGE requests_aborted: HUGE
               first_rejection: "request 17: prompt 100000 + output 2000 tokens need 6375 blocks, but the pool has 99 usable" }
      notes: "a note that is long enough to be wrapped at least once, because it goes on"
      latency { )";
  for (const char* name : {"queueing", "ttft", "tpot", "itl", "e2e"}) {
    absl::StrAppend(&text, name, kLatency);
  }
  pb::Report report =
      WithFields(pb::Report(), absl::StrReplaceAll(text + "}", {{"HUGE", "999999999999"}}));
  report.mutable_workload()->set_name(std::string(300, 'x'));
  report.mutable_preemption()->set_worst_request(std::string(200, 'r'));
  for (const MissReason reason : kClassifiedReasons) {
    auto* c = report.mutable_first_admission_misses()->add_causes();
    *c = WithFields(*c, "blocks: 999999999 tokens: 999999999");
    c->set_cause(std::string(MissReasonName(reason)));
    c->set_meaning(std::string(MissReasonMeaning(reason)));
  }
  for (int i = 0; i < 100; ++i) {
    for (auto* group :
         {report.mutable_hit_groups()->add_tenants(), report.mutable_hit_groups()->add_classes(),
          report.mutable_hit_groups()->add_turns(),
          report.mutable_hit_groups()->add_top_prefixes()->mutable_hits()}) {
      group->set_name(i == 3 ? std::string(16, 'f')
                             : "a\033tenant with a name " + std::to_string(i));
      group->set_requests(999'999'999'999);
      *group->mutable_token_hit_rate() = report.whole_run().token_hit_rate();
    }
  }
  for (int i = 0; i < 9; ++i) {
    *report.mutable_goodput()->add_classes() = WithFields(
        pb::Goodput(), "slo_class: 'a class with a long name, too' good_share: 1");
  }
  return report;
}

std::vector<std::string> Lines(const std::string& text) {
  std::vector<std::string> lines = absl::StrSplit(text, '\n');
  EXPECT_TRUE(lines.back().empty()) << "the last line is not ended";
  lines.pop_back();
  return lines;
}

TEST(HumanTableTest, FitsOneScreen) {
  const auto lines = Lines(FormatReport(Crowded(), /*color=*/false));
  EXPECT_LE(lines.size(), 61u);
  bool is_name_whole = false;
  for (const std::string& line : lines) {
    // The name of a file is not cut.
    const bool is_name = line == "workload      " + std::string(300, 'x');
    is_name_whole = is_name_whole || is_name;
    if (is_name) continue;
    EXPECT_LE(line.size(), 100u) << line;
    EXPECT_TRUE(std::ranges::all_of(line, [](char c) { return c >= ' ' && c <= '~'; })) << line;
    EXPECT_TRUE(line.empty() || line.back() != ' ') << line;
  }
  EXPECT_TRUE(is_name_whole);
}

TEST(HumanTableTest, TimesNameTheSourcesThatHaveAShare) {
  const auto text_of = [](const std::string& shares) {
    return FormatReport(WithFields(Crowded(), "setup { time_shares {" + shares + "} }"), false);
  };
  EXPECT_THAT(FormatReport(Crowded(), false), Not(HasSubstr("constants")));
  EXPECT_THAT(
      text_of("kernels: 0.825 roofline: 0.125 constants: 0.05"),
      HasSubstr("\n              from kernel tables 82.50 %, the roofline 12.50 %, constants "
                "5.00 %\n"));
  EXPECT_THAT(text_of("roofline: 0.75 constants: 0.25"),
              HasSubstr(" from the roofline 75.00 %, constants 25.00 %\n"));
}

// Three lines more, for those who asked for it.
TEST(HumanTableTest, RetentionIsTold) {
  EXPECT_THAT(FormatReport(Crowded(), false), Not(HasSubstr("retain")));
  const pb::Report report = WithFields(Crowded(), R"(
      config { retain: "first:tokens=1024:priority=80,shared:uses=3:priority=60,session:ttl=300s" }
      pool { retention { cap: 119 peak: 118 hits: 4344 begun: 26347 expired: 1 displaced: 11704
                         taken: 14524 refused: 2000 } })");
  const std::string text = FormatReport(report, /*color=*/false);
  for (const std::string& line : Lines(text)) {
    if (line == "workload      " + std::string(300, 'x')) continue;
    EXPECT_LE(line.size(), 100u) << line;
  }
  EXPECT_THAT(text, HasSubstr(
      "\nretained      at most 118 blocks of 119 allowed; 4,344 hits of retained blocks\n"
      "              26,347 in all: 1 expired, 11,704 gave way to others, 14,524 were reused since "
      "nothing\n              else was free; 2,000 refused at the cap\n"));
  EXPECT_THAT(text, HasSubstr("session:ttl=300s"));
}

TEST(HumanTableTest, TimesHaveTheUnitThatFits) {
  auto report = Crowded();
  auto* latency = report.mutable_latency();
  latency->mutable_itl()->set_mean_ms(9.26);
  latency->mutable_ttft()->set_mean_ms(1.25e4);
  latency->mutable_ttft()->set_max_ms(1'234'567.0);
  const std::string text = FormatReport(report, false);
  EXPECT_THAT(text, HasSubstr("\n              ITL per gap, ms               9.3 "));
  EXPECT_THAT(text, HasSubstr("\n              TTFT, s                      12.5 "));
  EXPECT_THAT(text, HasSubstr(" 1,235\n"));
  EXPECT_THAT(text, HasSubstr("\n              E2E, min                  153,333 "));
}

TEST(HumanTableTest, SharesOfNothingAreNotZero) {
  auto report = Crowded();
  report.mutable_whole_run()->mutable_full_block_hit_rate()->Clear();
  report.mutable_workload()->set_requests_arrived(1);
  const std::string text = FormatReport(report, false);
  EXPECT_THAT(text, HasSubstr("blocks n/a, requests n/a"));
  EXPECT_THAT(text, HasSubstr("1 request, "));
}

TEST(HumanTableTest, ThePoolIsStatedInBytes) {
  auto report = Crowded();
  report.mutable_groups()->Clear();
  report.mutable_setup()->set_num_blocks(1000);
  report.mutable_setup()->set_block_bytes(2'000'000);
  report.mutable_config()->set_tensor_parallel(1);
  EXPECT_THAT(FormatReport(report, false), HasSubstr(" tokens, 2 GB, unhashed_first"));
  report.mutable_config()->set_tensor_parallel(8);
  const std::string text = FormatReport(report, false);
  EXPECT_THAT(text, HasSubstr(" tokens, 2 GB per device and 16.0 GB\n"));
}

TEST(HumanTableTest, MeaningsOfMissesAreNotCut) {
  const std::string text = FormatReport(Crowded(), /*color=*/false);
  for (const MissReason reason : kClassifiedReasons) {
    const std::string meaning(MissReasonMeaning(reason));
    EXPECT_THAT(text, HasSubstr(meaning + "\n"));
  }
}

TEST(HumanTableTest, EvictedBlocksSayWhenTheyWereUsed) {
  auto report = Crowded();
  EXPECT_THAT(FormatReport(report, false),
              HasSubstr("  last used 4 min 12 s / 12,000 blocks earlier at the median\n"));
  report.mutable_first_admission_misses()->clear_evicted();
  EXPECT_THAT(FormatReport(report, false), Not(HasSubstr("last used")));
}

int LinesBetween(const std::string& text, const std::string& from, const std::string& to) {
  const size_t a = text.find("\n" + from), b = text.find("\n" + to);
  EXPECT_NE(a, std::string::npos) << from;
  EXPECT_NE(b, std::string::npos) << to;
  return static_cast<int>(std::count(text.begin() + static_cast<std::ptrdiff_t>(a),
                                     text.begin() + static_cast<std::ptrdiff_t>(b), '\n'));
}

TEST(HumanTableTest, GroupsTakeTwoLinesEach) {
  auto report = Crowded();
  std::string text = FormatReport(report, false);
  EXPECT_EQ(LinesBetween(text, "by tenant", "by class"), 2);
  EXPECT_EQ(LinesBetween(text, "by class", "by turn"), 2);
  EXPECT_EQ(LinesBetween(text, "by turn", "pool use"), 2);
  EXPECT_THAT(text, HasSubstr(" more\n"));
  EXPECT_THAT(text, Not(HasSubstr("top prefixes")));
  // One group is the whole run.
  auto* groups = report.mutable_hit_groups();
  groups->clear_tenants();
  groups->add_tenants()->set_name("only");
  EXPECT_THAT(FormatReport(report, false), Not(HasSubstr("by tenant")));
  groups->add_tenants();
  EXPECT_THAT(FormatReport(report, false), HasSubstr("by tenant     only n/a   (none) n/a\n"));
}

TEST(HumanTableTest, TopPrefixesAreShownOnRequest) {
  auto report = Crowded();
  report.mutable_config()->set_top_prefixes(3);
  for (const std::string& line : Lines(FormatReport(report, false))) {
    EXPECT_TRUE(line.size() <= 100u || line.ends_with("xxx")) << line;
  }
  EXPECT_EQ(LinesBetween(FormatReport(report, false), "top prefixes", "pool use"), 4);
}

TEST(HumanTableTest, ColorOnlyAddsEscapes) {
  const std::string plain = FormatReport(Crowded(), false);
  std::string colored = FormatReport(Crowded(), true);
  EXPECT_NE(plain, colored);
  for (const char* escape : {"\033[1m", "\033[0m"}) {
    for (size_t at; (at = colored.find(escape)) != std::string::npos;) colored.erase(at, 4);
  }
  EXPECT_EQ(plain, colored);
}

TEST(HumanTableTest, AnEmptyReportIsNoDivisionByZero) {
  const std::string text = FormatReport(::kvblocks::report::v1::Report(), false);
  EXPECT_THAT(text, Not(HasSubstr("nan")));
  EXPECT_THAT(text, Not(HasSubstr("inf")));
}

TEST(HumanTableTest, ThousandsAreGrouped) {
  EXPECT_EQ(WithThousands(0), "0");
  EXPECT_EQ(WithThousands(999), "999");
  EXPECT_EQ(WithThousands(1000), "1,000");
  EXPECT_EQ(WithThousands(-1234567), "-1,234,567");
}

// --- Comparison table ---

pb::Comparison Sample() {
  return WithFields(pb::Comparison(), R"(
      a: "a.json" b: "b.json" passed: true metrics: 100 metrics_changed: 2
      configuration { name: "num_blocks" a: "2000" b: "1500" }
      changes { name: "counters.hit_tokens" a: "392256" b: "306432" change: "-85824"
                relative: -0.2188 })");
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

TEST(ComparisonTableTest, TheHeadlineComesFirst) {
  pb::Comparison comparison;
  for (const char* name :
       {"counters.hit_tokens", "preemption.preemptions", "latency.ttft.p99_ms", "a.z"}) {
    auto* change = comparison.add_changes();
    change->set_name(name);
    change->set_a("1");
    change->set_b("2");
    change->set_change("1");
  }
  const std::string text = Format(comparison);
  size_t last = 0;
  for (const char* part : {"headline ", "latency.ttft.p99_ms", "preemption.preemptions", "metric ",
                           "counters.hit_tokens", "a.z"}) {
    const size_t at = text.find(part);
    ASSERT_NE(at, std::string::npos) << part;
    EXPECT_GT(at, last) << part;
    last = at;
  }
}

TEST(ComparisonTableTest, WhatExceedsItsToleranceIsMarked) {
  pb::Comparison comparison =
      WithFields(Sample(), "passed: false metrics_judged: 50 metrics_exceeded: 1");
  comparison.mutable_changes(0)->set_exceeded(true);
  const std::string text = Format(comparison);
  EXPECT_THAT(text, HasSubstr("-21.88 % !\n"));
  EXPECT_THAT(text, HasSubstr("failed: 2 of 100 metrics differ, 1 of 50 exceed their tolerance"));
}

TEST(ComparisonTableTest, ValuesOfAllSizesAreReadable) {
  const pb::Comparison comparison = WithFields(pb::Comparison(), R"(
      changes { name: "tiny" a: "1" b: "2" change: "1" relative: 1e-7 }
      changes { name: "huge" a: "1" b: "2" change: "1" relative: 1e9 }
      changes { name: "from_zero" a: "0" b: "2" change: "2" }
      changes { name: "real" a: "0.3333333333333333" b: "12345678901234567890123"
                change: "1e+22" relative: 1 }
      changes { name: "only_in_b" b: "7" })");
  const std::string text = Format(comparison);
  EXPECT_THAT(text, HasSubstr("+1e-05 %"));
  EXPECT_THAT(text, HasSubstr("+1e+11 %"));
  EXPECT_THAT(text, HasSubstr("from 0"));
  EXPECT_THAT(text, HasSubstr("0.333333"));
  EXPECT_THAT(text, HasSubstr("1.23457e+22"));
  EXPECT_THAT(text, testing::ContainsRegex("only_in_b +- +7"));
}

TEST(ComparisonTableTest, LinesFitThePageWhateverTheNames) {
  const pb::Comparison comparison = WithFields(
      Sample(),
      absl::StrReplaceAll(R"(
          changes { name: "N80" a: "-9223372036854775808" b: "9223372036854775807"
                    change: "18446744073709551615" relative: -1e300 exceeded: true }
          changes { name: "outcome" a: "X500\033[31m" b: "\n\n" }
          configuration { name: "trace" a: "/a/long/path/P100" }
          schedule { first_divergence {
            columns { name: "x" a: "A300" b: "\033" }
            requests { row: "D100" a: "5+S100" b: "5+S100+8" } requests_differ: 3 } })",
                          {{"N80", std::string(80, 'n')},
                           {"X500", std::string(500, 'x')},
                           {"P100", std::string(100, 'p')},
                           {"A300", std::string(300, 'a')},
                           {"D100", std::string(100, '1')},
                           {"S100", std::string(100, '7')}}));
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
  pb::Comparison comparison = WithFields(Sample(), R"(
      schedule { equal_steps: 4272 judged: true first_divergence {
        step: 4272 line_a: 4274 columns { name: "running" a: "2" differs: true }
        requests { row: "17" a: "64+101+102+103+104+105+106+107+108+109+110+111+112"
                   b: "64+101+102+103+104+105+106+107+108+109+110+111+113" }
        requests_differ: 1 } })");
  auto* request =
      comparison.mutable_schedule()->mutable_first_divergence()->mutable_requests(0);
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
  comparison.clear_schedule();
  comparison = WithFields(comparison, "schedule { same: true equal_steps: 9 }");
  EXPECT_THAT(Format(comparison), HasSubstr("schedules are the same in all 9 steps"));
}

// --- Validation report ---

TraceValidation Validated(const std::string& content, int64_t max_messages = 20) {
  ValidationOptions options;
  options.max_messages = max_messages;
  const auto validation = ValidateTraceString(content, "t.jsonl", options);
  EXPECT_TRUE(validation.ok()) << validation.status();
  return *validation;
}

std::string Row(const std::string& fields) {
  return "{\"block_size\": 16, \"output_length\": 2, " + fields + "}\n";
}

std::string Good(int time) {
  return Row("\"timestamp\": " + std::to_string(time) +
             ", \"input_length\": 20, \"hash_ids\": [1, 2]");
}

TEST(ValidationReportTest, WarningsAreBadOnlyIfStrict) {
  const TraceValidation clean = Validated(Good(1));
  EXPECT_TRUE(IsGood(clean, false));
  EXPECT_TRUE(IsGood(clean, true));
  const TraceValidation warned = Validated(Good(1) + "\n" + Good(2));
  EXPECT_TRUE(IsGood(warned, false));
  EXPECT_FALSE(IsGood(warned, true));
  const TraceValidation bad = Validated("{\n");
  EXPECT_FALSE(IsGood(bad, false));
  const TraceValidation noted = Validated(Good(2) + Good(1));
  EXPECT_EQ(noted.num_notes(), 1);
  EXPECT_TRUE(IsGood(noted, true)) << "notes are never counted against a trace";
}

TEST(ValidationReportTest, TheTableHasFactsCountsMessagesAndVerdict) {
  const std::string text = FormatValidation(
      Validated(Good(1000) + Row("\"timestamp\": 3, \"request_id\": \"q\\u0007\"") + Good(500)),
      false, false);
  EXPECT_THAT(text, HasSubstr("trace         t.jsonl: mooncake, with block_size, "));
  EXPECT_THAT(text, HasSubstr("rows          3: 2 good, 1 bad"));
  EXPECT_THAT(text, HasSubstr("prompts       40 tokens, at most 20; 4 content ids"));
  EXPECT_THAT(text, HasSubstr("arrivals      0.5 s to 1 s, 1 row earlier than the row before"));
  EXPECT_THAT(text, HasSubstr("error    missing-field       2"));
  EXPECT_THAT(text, HasSubstr("t.jsonl:2: error: field input_length: got nothing, expected a value "
                              "[request q\\x07]\n"));
  EXPECT_THAT(text, HasSubstr("result        bad: 2 errors, 0 warnings, 1 note\n"));
  EXPECT_THAT(FormatValidation(Validated("{\"a\": 1}"), false, false),
              HasSubstr("t.jsonl: of no format that can be read"));
}

TEST(ValidationReportTest, AllThatIsNotListedIsCounted) {
  std::string rows = Good(1);
  for (int i = 0; i < 30; ++i) rows += "{}\n";
  const std::string text = FormatValidation(Validated(rows, 2), false, false);
  EXPECT_THAT(text, HasSubstr("and 116 more (--max-messages)"));
  const std::string none = FormatValidation(Validated(rows, 0), false, false);
  EXPECT_THAT(none, Not(HasSubstr("t.jsonl:2")));
  EXPECT_THAT(none, HasSubstr("and 120 more"));
}

TEST(ValidationReportTest, LinesOfFactsAndCountsFitThePage) {
  std::istringstream lines(FormatValidation(
      Validated(Good(2) + Good(1) + "{\n\n" + Row("\"x\": 1") + Good(0), 0), true, false));
  for (std::string line; std::getline(lines, line);) EXPECT_LE(line.size(), 100u) << line;
}

TEST(ValidationReportTest, TheMessageHasThePartsOfEachProblem) {
  const auto proto = ToProto(Validated(Good(1) + Row("\"timestamp\": \"x\", \"input_length\": 20, "
                                                     "\"hash_ids\": [1], \"request_id\": 7")),
                             true);
  EXPECT_FIELDS(proto, "schema_version 1, good false, strict true, errors 1");
  ASSERT_EQ(proto.problems_size(), 1);
  const auto& problem = proto.problems(0);
  EXPECT_FIELDS(problem, "kind value, line 2, row 1, field timestamp");
  EXPECT_EQ(problem.value(), "\"x\"");
  EXPECT_EQ(problem.expected(), "a number");
  EXPECT_EQ(problem.message(), "t.jsonl:2: error: timestamp: got \"x\", expected a number");
  EXPECT_EQ(proto.counts(0).count(), 1);
}

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
