#include "kvblocks/sim/report/human_table.h"

#include <algorithm>
#include <string>
#include <vector>

#include "absl/strings/str_split.h"
#include "gtest/gtest.h"
#include "kvblocks/sim/report/miss_classifier.h"

namespace kvblocks::sim {
namespace {

// The largest figures that a report can hold, in every section.
::kvblocks::report::v1::Report Crowded() {
  constexpr int64_t kHuge = 999'999'999'999;
  ::kvblocks::report::v1::Report report;
  auto* config = report.mutable_config();
  config->set_prefix_caching(true);
  config->set_free_order("unhashed_first");
  config->set_policy("priority");
  config->set_model("a-model-with-a-rather-long-name");
  config->set_device("a-device-with-a-long-name-too");
  config->set_slo("ttft:2s:p99,tpot:50ms,e2e:1min:p99.9,queueing:500ms:p50");
  auto* workload = report.mutable_workload();
  workload->set_name(std::string(300, 'x'));
  workload->set_requests_arrived(kHuge);
  workload->set_input_tokens(kHuge);
  workload->set_requested_output_tokens(kHuge);
  workload->set_last_arrival_s(9e6);
  auto* setup = report.mutable_setup();
  setup->set_latency_is_meaningful(true);
  setup->set_time_source("roofline, uncalibrated");
  setup->set_num_blocks(2147483647);
  setup->set_block_tokens(1 << 24);
  setup->set_capacity_tokens(kHuge);
  setup->set_num_blocks_source("device: 80 GB x 0.9 - weights 16.1 GB - activations 2 GB");
  for (auto* ratio : {report.mutable_whole_run()->mutable_token_hit_rate(),
                      report.mutable_whole_run()->mutable_possible_hit_rate()}) {
    ratio->set_numerator(kHuge);
    ratio->set_denominator(kHuge);
    ratio->set_value(1.0);
  }
  report.mutable_prompt_tokens()->set_known(kHuge);
  report.mutable_prompt_tokens()->set_hit(kHuge);
  for (const MissReason reason : kClassifiedReasons) {
    auto* c = report.mutable_first_admission_misses()->add_causes();
    c->set_cause(std::string(MissReasonName(reason)));
    c->set_blocks(999'999'999);
    c->set_tokens(999'999'999);
    c->set_meaning(std::string(MissReasonMeaning(reason)));
  }
  auto* reuse = report.mutable_first_admission_misses()->mutable_evicted();
  reuse->set_blocks(kHuge);
  reuse->set_p50_age_s(252.0);
  reuse->set_p50_distance_blocks(12'000);
  for (int i = 0; i < 100; ++i) {
    for (auto* group :
         {report.mutable_hit_groups()->add_tenants(), report.mutable_hit_groups()->add_classes(),
          report.mutable_hit_groups()->add_turns(),
          report.mutable_hit_groups()->add_top_prefixes()->mutable_hits()}) {
      group->set_name(i == 3 ? std::string(16, 'f')
                             : "a\033tenant with a name " + std::to_string(i));
      group->set_requests(kHuge);
      *group->mutable_token_hit_rate() = report.whole_run().token_hit_rate();
    }
  }
  report.add_groups();
  report.mutable_pool()->set_evictions(kHuge);
  auto* preemption = report.mutable_preemption();
  preemption->set_preemptions(kHuge);
  preemption->set_requests_affected(kHuge);
  preemption->set_recomputed_tokens(kHuge);
  preemption->set_time_lost_s(1e6);
  preemption->set_worst_request(std::string(200, 'r'));
  auto* latency = report.mutable_latency();
  for (auto* d : {latency->mutable_queueing(), latency->mutable_ttft(), latency->mutable_tpot(),
                  latency->mutable_itl(), latency->mutable_e2e()}) {
    d->set_count(kHuge);
    d->set_mean_ms(9.2e9);
    d->set_max_ms(9.2e9);
  }
  report.mutable_drafts()->set_verified(kHuge);
  report.mutable_goodput()->set_met(false);
  for (int i = 0; i < 9; ++i) {
    auto* of_class = report.mutable_goodput()->add_classes();
    of_class->set_slo_class("a class with a long name, too");
    of_class->set_good_share(1.0);
  }
  report.mutable_steady_throughput()->set_output_tokens_per_s(1e12);
  report.mutable_steady_throughput()->set_end_s(9e6);
  report.mutable_totals()->set_requests_rejected(kHuge);
  report.mutable_totals()->set_requests_aborted(kHuge);
  report.mutable_totals()->set_first_rejection(
      "request 17: prompt 100000 + output 2000 tokens need 6375 blocks, but the pool has 99 "
      "usable");
  report.add_notes("a note that is long enough to be wrapped at least once, because it goes on");
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
  ::kvblocks::report::v1::Report report = Crowded();
  EXPECT_EQ(FormatReport(report, /*color=*/false).find("retain"), std::string::npos);
  report.mutable_config()->set_retain(
      "first:tokens=1024:priority=80,shared:uses=3:priority=60,session:ttl=300s");
  auto* retention = report.mutable_pool()->mutable_retention();
  retention->set_cap(119);
  retention->set_peak(118);
  retention->set_hits(4'344);
  retention->set_begun(26'347);
  retention->set_expired(1);
  retention->set_displaced(11'704);
  retention->set_taken(14'524);
  retention->set_refused(2'000);
  const std::string text = FormatReport(report, /*color=*/false);
  for (const std::string& line : Lines(text)) {
    if (line == "workload      " + std::string(300, 'x')) continue;
    EXPECT_LE(line.size(), 100u) << line;
  }
  EXPECT_NE(text.find("\nretained      at most 118 blocks of 119 allowed; 4,344 hits of retained "
                      "blocks\n              26,347 in all: 1 expired, 11,704 gave way to others, "
                      "14,524 were reused since nothing\n              else was free; 2,000 refused "
                      "at the cap\n"),
            std::string::npos)
      << text;
  EXPECT_NE(text.find("session:ttl=300s"), std::string::npos) << text;
}

TEST(HumanTableTest, TimesHaveTheUnitThatFits) {
  auto report = Crowded();
  auto* latency = report.mutable_latency();
  latency->mutable_itl()->set_mean_ms(9.26);
  latency->mutable_ttft()->set_mean_ms(1.25e4);
  latency->mutable_ttft()->set_max_ms(1'234'567.0);
  const std::string text = FormatReport(report, false);
  EXPECT_NE(text.find("\n              ITL per gap, ms               9.3 "), std::string::npos) << text;
  EXPECT_NE(text.find("\n              TTFT, s                      12.5 "), std::string::npos) << text;
  EXPECT_NE(text.find(" 1,235\n"), std::string::npos) << text;
  EXPECT_NE(text.find("\n              E2E, min                  153,333 "), std::string::npos) << text;
}

TEST(HumanTableTest, SharesOfNothingAreNotZero) {
  auto report = Crowded();
  report.mutable_whole_run()->mutable_full_block_hit_rate()->Clear();
  report.mutable_workload()->set_requests_arrived(1);
  const std::string text = FormatReport(report, false);
  EXPECT_NE(text.find("blocks n/a   requests n/a"), std::string::npos) << text;
  EXPECT_NE(text.find("1 request, "), std::string::npos) << text;
}

TEST(HumanTableTest, ThePoolIsStatedInBytes) {
  auto report = Crowded();
  report.mutable_groups()->Clear();
  report.mutable_setup()->set_num_blocks(1000);
  report.mutable_setup()->set_block_bytes(2'000'000);
  report.mutable_config()->set_tensor_parallel(1);
  EXPECT_NE(FormatReport(report, false).find(" tokens, 2 GB, unhashed_first"), std::string::npos);
  report.mutable_config()->set_tensor_parallel(8);
  const std::string text = FormatReport(report, false);
  EXPECT_NE(text.find(" tokens, 2 GB per device and 16.0 GB\n"), std::string::npos) << text;
}

TEST(HumanTableTest, MeaningsOfMissesAreNotCut) {
  const std::string text = FormatReport(Crowded(), /*color=*/false);
  for (const MissReason reason : kClassifiedReasons) {
    const std::string meaning(MissReasonMeaning(reason));
    EXPECT_NE(text.find(meaning + "\n"), std::string::npos) << meaning;
  }
}

TEST(HumanTableTest, EvictedBlocksSayWhenTheyWereUsed) {
  auto report = Crowded();
  EXPECT_NE(FormatReport(report, false)
                .find("  last used 4 min 12 s / 12,000 blocks earlier at the median\n"),
            std::string::npos);
  report.mutable_first_admission_misses()->clear_evicted();
  EXPECT_EQ(FormatReport(report, false).find("last used"), std::string::npos);
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
  EXPECT_NE(text.find(" more\n"), std::string::npos);
  EXPECT_EQ(text.find("top prefixes"), std::string::npos);
  // One group is the whole run.
  auto* groups = report.mutable_hit_groups();
  groups->clear_tenants();
  groups->add_tenants()->set_name("only");
  EXPECT_EQ(FormatReport(report, false).find("by tenant"), std::string::npos);
  groups->add_tenants();
  EXPECT_NE(FormatReport(report, false).find("by tenant     only n/a   (none) n/a\n"),
            std::string::npos);
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
  EXPECT_EQ(text.find("nan"), std::string::npos);
  EXPECT_EQ(text.find("inf"), std::string::npos);
}

TEST(HumanTableTest, ThousandsAreGrouped) {
  EXPECT_EQ(WithThousands(0), "0");
  EXPECT_EQ(WithThousands(999), "999");
  EXPECT_EQ(WithThousands(1000), "1,000");
  EXPECT_EQ(WithThousands(-1234567), "-1,234,567");
}

}  // namespace
}  // namespace kvblocks::sim
