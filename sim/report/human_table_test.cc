#include "sim/report/human_table.h"

#include <algorithm>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_replace.h"
#include "absl/strings/str_split.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "sim/report/miss_classifier.h"
#include "sim/testing/message_fields.h"

namespace kvblocks::sim {
namespace {

using testing::HasSubstr;
using testing::Not;

namespace pb = ::kvblocks::report::v1;

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
    EXPECT_TRUE(std::all_of(line.begin(), line.end(), [](char c) { return c >= ' ' && c <= '~'; }))
        << line;
    EXPECT_TRUE(line.empty() || line.back() != ' ') << line;
  }
  EXPECT_TRUE(is_name_whole);
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
  EXPECT_THAT(text, HasSubstr("blocks n/a   requests n/a"));
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

}  // namespace
}  // namespace kvblocks::sim
