// Whole replays of hand-written workloads, every figure computed by hand.

#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "gtest/gtest.h"
#include "sim/testing/measured_replay.h"
#include "sim/testing/message_fields.h"

namespace kvblocks::sim {
namespace {

namespace pb = ::kvblocks::report::v1;

void AddWe7(Replay& replay) {
  replay.config.kv_cache.num_blocks = 7;
  replay.Add({.id = "A", .prompt = 8, .output = 9});
  replay.Add({.id = "B", .prompt = 8, .output = 9});
}

TEST(MetricsExamples, WE31_LatenciesOfWE7) {
  Replay replay;
  AddWe7(replay);
  Measured m;
  Measure(replay, &m);
  ASSERT_TRUE(m.status.ok()) << m.status;
  const auto& a = m.rows.latency["A"];
  const auto& b = m.rows.latency["B"];
  ASSERT_TRUE(a && b);
  EXPECT_EQ(a->queueing, 0);
  EXPECT_EQ(a->ttft, kSecond);
  EXPECT_EQ(a->e2e, 9 * kSecond);
  EXPECT_EQ(a->tpot, kSecond);
  EXPECT_EQ(b->ttft, kSecond);
  EXPECT_EQ(b->e2e, 13 * kSecond);
  EXPECT_EQ(b->tpot, 3 * kSecond / 2);
  const pb::Latency& latency = m.report.latency();
  // A: eight gaps of 1 s. B: seven of 1 s and one of 5 s.
  EXPECT_FIELDS(latency.itl(), "count 16, p50_ms 1000, max_ms 5000, mean_ms 1250");
  // 5 s is not above five medians.
  EXPECT_FIELDS(latency, "stalls 0, tpot.mean_ms 1250");
  const pb::Preemption& preemption = m.report.preemption();
  EXPECT_FIELDS(preemption,
                "preemptions 1, requests_affected 1, recomputed_tokens 4, resume_hit_tokens 8, "
                "worst_request B");
  // Preempted by the step at 5, resumed by that at 9.
  EXPECT_DOUBLE_EQ(preemption.time_lost_s(), 4.0);
  // Both first tokens came at 1 s.
  ASSERT_GE(m.report.series().points_size(), 2);
  EXPECT_FIELDS(m.report.series().points(1), "first_tokens 2, ttft_ms 1000");
  EXPECT_EQ(m.report.series().points(2).first_tokens(), 0);
  ExpectCausesAddUp(m.report);
}

TEST(MetricsExamples, WE7_Counters) {
  Replay replay;
  AddWe7(replay);
  const pb::Report report = ReportOf(replay);
  const pb::Counters& counters = report.counters();
  EXPECT_FIELDS(counters,
                "queried_tokens 16, hit_tokens 0, resume_queried_tokens 13, resume_hit_tokens 8, "
                "admissions 2, resumes 1");
  EXPECT_EQ(Blocks(report.first_admission_misses(), MissReason::kFirstUse), 4);
  // B resumes with 13 tokens: two of three full blocks hit; the third was evicted.
  EXPECT_EQ(report.resume_misses().missed_blocks(), 1);
  EXPECT_EQ(Blocks(report.resume_misses(), MissReason::kEvicted), 1);
  // B lost it at 5 s, when A took one block, and misses it at 9 s.
  EXPECT_FIELDS(report.resume_misses().evicted(), "blocks 1, max_age_s 4, max_distance_blocks 1");
}

TEST(MetricsExamples, WE19_MetricsOfAnAsynchronousRun) {
  Replay replay;
  replay.config.scheduler.async = true;
  AddWe7(replay);
  Measured m;
  Measure(replay, &m);
  ASSERT_TRUE(m.status.ok()) << m.status;
  EXPECT_EQ(m.rows.latency["A"]->ttft, kSecond);
  EXPECT_EQ(m.rows.latency["A"]->e2e, 9 * kSecond);
  EXPECT_EQ(m.rows.latency["B"]->e2e, 13 * kSecond);
  EXPECT_FIELDS(m.report,
                "latency.itl.count 16, latency.itl.max_ms 5000, preemption.recomputed_tokens 4, "
                "totals.wasted_tokens 0");
  // Preempted when the step for 5 was scheduled, at 4; resumed at 9.
  EXPECT_FIELDS(m.report, "preemption.time_lost_s 5, throughput.busy_share 1");
  EXPECT_DOUBLE_EQ(m.report.series().points(8).step_time_ms(), 1000.0);
  EXPECT_DOUBLE_EQ(m.report.series().points(3).running(), 2.0);
  EXPECT_DOUBLE_EQ(m.report.series().points(4).running(), 1.0);
  ExpectCausesAddUp(m.report);
}

TEST(MetricsTest, WaitForTheDeviceIsPrefillNotQueueing) {
  Replay replay;
  replay.config.scheduler.async = true;
  replay.Add({.id = "A", .prompt = 4, .output = 6});
  replay.Add({.id = "B", .prompt = 4, .output = 1, .at = 1.5});
  Measured m;
  Measure(replay, &m);
  // Scheduled at 2, when the step until 3 was under way; its token comes at 4.
  EXPECT_EQ(m.rows.latency["B"]->queueing, kSecond / 2);
  EXPECT_EQ(m.rows.latency["B"]->prefill, 2 * kSecond);
}

TEST(MetricsTest, LegacyCountingTakesEveryAttemptAndResume) {
  Replay replay;
  AddWe7(replay);
  replay.config.scheduler.exact_steps = true;
  ReplayMetricsOptions options;
  options.hit_rates.legacy_counters = true;
  const pb::Report report = ReportOf(replay, options);
  // B is tried with its 13 known tokens at 6, 7, 8 and 9; none is cached for it alone that it
  // could not find: 8 hits each time.
  EXPECT_EQ(report.counters().attempts(), 2 + 4);
  EXPECT_EQ(report.counters().queried_tokens(), 16 + 4 * 13);
  EXPECT_EQ(report.counters().hit_tokens(), 4 * 8);
  EXPECT_EQ(report.counters().resume_hit_tokens(), 0);
  int64_t queried = 0, hit = 0;
  for (const auto& point : report.series().points()) {
    queried += point.queried_tokens();
    hit += point.hit_tokens();
  }
  EXPECT_EQ(queried, report.counters().queried_tokens());
  EXPECT_EQ(hit, report.counters().hit_tokens());
  // The schedule is the same.
  EXPECT_EQ(report.totals().steps(), 13);
}

TEST(PoolMetricsTest, GaugesAreWeightedWithTime) {
  // WE-1 with ten blocks: A holds 2 blocks for 2 s and 3 for 1 s, then nothing runs for 2 s.
  Replay replay;
  replay.config.kv_cache.num_blocks = 10;
  replay.Add({.id = "A", .prompt = 7, .output = 3});
  replay.Add({.id = "B", .prompt = 0, .output = 1, .at = 5});  // rejected, but an event at 5 s
  const pb::Report report = ReportOf(replay);
  const pb::Pool& pool = report.pool();
  EXPECT_DOUBLE_EQ(pool.usage().mean(), (2 + 2 + 3) / 45.0);
  EXPECT_DOUBLE_EQ(pool.usage().peak(), 3 / 9.0);
  // Two full blocks keep their keys when A is gone.
  EXPECT_DOUBLE_EQ(pool.resident().mean(), (2 + 2 + 3 + 2 + 2) / 45.0);
  // 1 of 8 slots unused, then none, then 3 of 12.
  EXPECT_DOUBLE_EQ(pool.fragmentation().mean(), (1 + 0 + 3) / 28.0);
  EXPECT_DOUBLE_EQ(pool.fragmentation().peak(), 3 / 12.0);
  EXPECT_FIELDS(pool, "peak_referenced_blocks 3, time_above_90_percent_s 0");
  EXPECT_DOUBLE_EQ(report.throughput().duration_s(), 5.0);
  EXPECT_DOUBLE_EQ(report.throughput().busy_share(), 0.6);
  EXPECT_DOUBLE_EQ(report.series().points(1).step_time_ms(), 1000.0);
  EXPECT_DOUBLE_EQ(report.series().points(4).step_time_ms(), 0.0);
  EXPECT_EQ(report.totals().requests_rejected(), 1);
}

TEST(MetricsTest, WhoIsPreemptedAgainIsAffectedOnce) {
  int64_t again = 0;
  for (int64_t num_blocks = 13; num_blocks < 30; ++num_blocks) {
    Replay replay;
    replay.config.kv_cache.num_blocks = num_blocks;
    replay.config.scheduler.reserve_full_isl = false;
    for (const char* id : {"A", "B", "C"}) replay.Add({.id = id, .prompt = 8, .output = 40});
    const pb::Preemption preemption = ReportOf(replay).preemption();
    EXPECT_LE(preemption.requests_affected(), 3) << num_blocks;
    again += preemption.preemptions() - preemption.requests_affected();
  }
  EXPECT_GT(again, 0);
}

class PoolGauges : public ::testing::TestWithParam<bool> {};

INSTANTIATE_TEST_SUITE_P(SyncAndAsync, PoolGauges, ::testing::Bool());

TEST_P(PoolGauges, ReturnToZeroAfterPreemptionsAbortsAndRejectedDrafts) {
  Replay replay;
  replay.config.scheduler.async = GetParam();
  AddWe7(replay);
  if (GetParam()) {
    // Steps under way at the ends, of the preempted request, too.
    replay.config.kv_cache.num_blocks = 8;
    replay.config.scheduler.num_draft_tokens = 2;
  }
  replay.Add({.id = "C", .prompt = 4, .output = 10, .at = 20, .abort_after = 2.5});
  replay.Add({.id = "D", .prompt = 4, .output = 1, .at = 30});
  const pb::Report report = ReportOf(replay);
  const auto& points = report.series().points();
  ASSERT_GE(points.size(), 31);
  EXPECT_FIELDS(points[25], "usage 0, running 0");
  EXPECT_GT(points[25].resident(), 0.0);
  EXPECT_GT(points[21].usage(), 0.0);
  // 4 computed tokens in one block, then one more per step: never more slots than two blocks.
  EXPECT_LT(report.pool().fragmentation().peak(), 1.0);
  EXPECT_GT(report.preemption().preemptions(), 0);
  EXPECT_EQ(report.totals().requests_aborted(), 1);
  EXPECT_DOUBLE_EQ(points[29].waiting(), 0.0);
}

// Counted at the first step, and again when a quarter of the pool was handed out.
TEST(GroupOccupancyTest, TellsGroupsApart) {
  Replay replay;
  replay.config.kv_cache.num_blocks = 41;
  replay.config.kv_cache.groups = {FullGroup(4), WindowGroup(4, 6)};
  replay.config.manager.semantics.retention_interval.reset();  // windows are kept everywhere
  std::vector<int64_t> content(20);
  for (size_t t = 0; t < content.size(); ++t) content[t] = static_cast<int64_t>(t);
  // Five blocks in each group, for one step of 1 s; then A is gone, but cached.
  replay.Add({.id = "A", .prompt = 20, .output = 1, .content = content});
  // Five hits in the full group, of which the window needs two; ten new blocks in each.
  replay.Add({.id = "B", .prompt = 60, .output = 1, .at = 1, .content = content});
  const pb::Report report = ReportOf(replay);
  const auto& full = report.groups(0);
  const auto& window = report.groups(1);
  EXPECT_DOUBLE_EQ(full.live_blocks().peak(), 15);
  EXPECT_DOUBLE_EQ(full.live_blocks().mean(), 10);
  EXPECT_DOUBLE_EQ(full.cached_blocks().peak(), 0);
  EXPECT_FIELDS(window, "live_blocks.peak 12, cached_blocks.peak 3");
}

TEST(GroupOccupancyTest, OneGroupHasThePoolsGauges) {
  Replay replay;
  replay.Add({.id = "A", .prompt = 9, .output = 2});
  const pb::Report report = ReportOf(replay);
  EXPECT_FALSE(report.groups(0).has_live_blocks());
  EXPECT_GT(report.pool().usage().peak(), 0);
}

TEST(MetricsTest, OneTokenHasNoTpot) {
  Replay replay;
  replay.Add({.id = "A", .prompt = 4, .output = 1});
  Measured m;
  Measure(replay, &m);
  EXPECT_FALSE(m.rows.latency["A"]->tpot.has_value());
  EXPECT_FIELDS(m.report.latency(), "tpot.count 0, ttft.count 1");
  EXPECT_EQ(m.rows.lines["A"], "0,A,0,4,1,1,length,,4,0,0,0,1000,1000,1000,,0,0,0,0,1000\r\n");
}

TEST(MetricsTest, DraftsOfOneStepComeAtGapZero) {
  // WE-15: token times 1, 2,2,2, 3, 4,4.
  Replay replay;
  replay.config.scheduler.num_draft_tokens = 2;
  replay.config.scheduler.num_lookahead_tokens = 2;
  replay.Add({.id = "A", .prompt = 6, .output = 7, .accepted = {2, 0, 1}});
  const pb::Report report = ReportOf(replay);
  EXPECT_FIELDS(report,
                "latency.itl.count 6, latency.itl.mean_ms 500, latency.itl.min_ms 0, "
                "drafts.verified 6, drafts.accepted 3, drafts.rejected 3, drafts.mean_accepted 1");
}

TEST(MetricsTest, WarmupLeavesOutTheFirstRequests) {
  for (const char* warmup : {"0.5", "2", "15s"}) {
    Replay replay;
    const auto content = Content(9, 0, 9);
    for (int i = 0; i < 4; ++i) {
      replay.Add({.id = std::string(1, static_cast<char>('A' + i)),
                  .prompt = 9,
                  .output = 1,
                  .at = 10.0 * i,
                  .content = i == 3 ? std::vector<int64_t>() : content});
    }
    ReplayMetricsOptions options;
    options.hit_rates.warmup = *ParseWarmup(warmup);
    const pb::Report report = ReportOf(replay, options);
    EXPECT_EQ(report.whole_run().token_hit_rate().numerator(), 16) << warmup;
    EXPECT_EQ(report.whole_run().token_hit_rate().denominator(), 36) << warmup;
    EXPECT_EQ(report.after_warmup().token_hit_rate().numerator(), 8) << warmup;
    EXPECT_EQ(report.after_warmup().token_hit_rate().denominator(), 18) << warmup;
    EXPECT_EQ(report.rolling_window().requests(), 4);
  }
}

TEST(MetricsTest, SteadyThroughputLeavesOutBothEnds) {
  // One request per 10 s, three tokens in three steps each; the last one ends at 53 s.
  Replay replay;
  for (int i = 0; i < 6; ++i) {
    replay.Add({.id = std::to_string(i), .prompt = 5, .output = 3, .at = 10.0 * i});
  }
  ReplayMetricsOptions options;
  options.hit_rates.warmup = *ParseWarmup("2");
  options.cooldown = *ParseWarmup("0.2", "cooldown");
  const pb::Report report = ReportOf(replay, options);
  EXPECT_DOUBLE_EQ(report.throughput().duration_s(), 53.0);
  EXPECT_DOUBLE_EQ(report.throughput().requests_per_s(), 6 / 53.0);
  const pb::Throughput& steady = report.steady_throughput();
  // From the third request's admission to the last one's: three requests in 30 s.
  EXPECT_FIELDS(steady, "start_s 20, end_s 50");
  EXPECT_DOUBLE_EQ(steady.requests_per_s(), 3 / 30.0);
  EXPECT_DOUBLE_EQ(steady.input_tokens_per_s(), 15 / 30.0);
  EXPECT_DOUBLE_EQ(steady.output_tokens_per_s(), 9 / 30.0);
  EXPECT_DOUBLE_EQ(steady.computed_tokens_per_s(), 21 / 30.0);
  EXPECT_DOUBLE_EQ(steady.busy_share(), 0.3);
  EXPECT_DOUBLE_EQ(steady.mean_batch_requests(), 1.0);
  EXPECT_DOUBLE_EQ(steady.mean_step_tokens(), 21 / 9.0);
  EXPECT_EQ(steady.window(), "without the first 2 requests and the last 20 %");
}

TEST(MetricsTest, GoodputOfClasses) {
  // Every request that runs has its token after 1 s.
  TraceInfo info;
  TraceRequest chat, batch, none;
  chat.input_length = batch.input_length = none.input_length = 5;
  chat.slo_class = "chat";
  batch.slo_class = "batch";
  batch.input_length = 5000;  // longer than any sequence may be: rejected
  ReplayMetricsOptions options;
  options.objectives = *ParseObjectives("ttft:1s:p99");
  const pb::Report report = MeasureRequests({chat, chat, batch, none}, info, options);
  const pb::Goodput& goodput = report.goodput();
  EXPECT_FIELDS(goodput, "requests_good 3, requests_total 4");
  ASSERT_EQ(goodput.classes_size(), 3);
  EXPECT_EQ(goodput.classes(0).slo_class(), "");
  EXPECT_EQ(goodput.classes(0).requests_good(), 1);
  EXPECT_FIELDS(goodput.classes(1), "slo_class batch, requests_good 0, requests_total 1");
  EXPECT_FIELDS(goodput.classes(2), "slo_class chat, requests_good 2, good_share 1");
  EXPECT_EQ(goodput.classes(2).objectives_size(), 1);
  // Without classes there is nothing to separate.
  EXPECT_EQ(MeasureRequests({none, none}, info, options).goodput().classes_size(), 0);
}

TEST(MetricsTest, RefusesOddWarmups) {
  for (const char* text : {"", "-1", "1.5", "abc", "0.1234567", "10 s", "2.0"}) {
    EXPECT_FALSE(ParseWarmup(text).ok()) << text;
  }
}

TEST(RequestRowsTest, FieldsAreQuotedWhereTheyMust) {
  EXPECT_EQ(CsvField("plain"), "plain");
  EXPECT_EQ(CsvField("a,b"), "\"a,b\"");
  EXPECT_EQ(CsvField("a\"b"), "\"a\"\"b\"");
  EXPECT_EQ(CsvField("a\nb"), "\"a\nb\"");
}

TEST(RequestRowsTest, RejectedRequestsSayWhy) {
  Replay replay;
  replay.config.kv_cache.num_blocks = 4;
  replay.Add({.id = "big, really", .prompt = 40, .output = 1});
  Measured m;
  Measure(replay, &m);
  const std::string& line = m.rows.lines["big, really"];
  EXPECT_EQ(line.find("0,\"big, really\",0,40,0,1,rejected,"), 0u) << line;
  EXPECT_NE(line.find("--num-blocks"), std::string::npos) << line;
}

// --- Hit groups ---

// Hits by tenant, class, turn and prefix.
void ExpectGroup(const pb::HitGroup& group, const std::string& name, int64_t requests, int64_t hit,
                 int64_t queried) {
  EXPECT_EQ(group.name(), name);
  EXPECT_EQ(group.requests(), requests) << name;
  EXPECT_EQ(group.token_hit_rate().numerator(), hit) << name;
  EXPECT_EQ(group.token_hit_rate().denominator(), queried) << name;
}

TEST(HitGroupsTest, TenantsClassesTurnsAndPrefixes) {
  TraceInfo info;
  info.block_tokens = 1;
  TraceRequest first;  // of a session of tenant t
  first.input_length = 9;
  first.content_ids = Content(9, 0, 9);
  first.tenant = "t";
  first.slo_class = "chat";
  first.session = 1;
  TraceRequest second = first;  // hits two blocks
  second.input_length = 13;
  second.content_ids = Content(13, 0, 13);
  second.turn = 1;
  TraceRequest late = second;  // hits three blocks less the last token's: 12 tokens
  late.turn = 40;
  TraceRequest other;  // nobody's
  other.input_length = 5;
  other.content_ids = Content(0, 500, 5);
  TraceRequest again = other;  // hits one block
  TraceRequest tiny;
  tiny.input_length = 3;
  tiny.content_ids = Content(3, 0, 3);
  const pb::Report report = MeasureRequests({first, second, late, other, again, tiny}, info);
  ExpectCausesAddUp(report);
  const pb::HitGroups& groups = report.hit_groups();
  ASSERT_EQ(groups.tenants_size(), 2);
  ExpectGroup(groups.tenants(0), "t", 3, 8 + 12, 9 + 13 + 13);
  ExpectGroup(groups.tenants(1), "", 3, 4, 5 + 5 + 3);
  ASSERT_EQ(groups.classes_size(), 2);
  ExpectGroup(groups.classes(0), "chat", 3, 20, 35);
  ASSERT_EQ(groups.turns_size(), 3);
  ExpectGroup(groups.turns(0), "0", 4, 4, 9 + 5 + 5 + 3);
  ExpectGroup(groups.turns(1), "1", 1, 8, 13);
  ExpectGroup(groups.turns(2), ">= 16", 1, 12, 13);
  // The prompt of three tokens fills no block.
  EXPECT_EQ(groups.distinct_prefixes(), 2);
  ASSERT_EQ(groups.top_prefixes_size(), 2);
  ExpectGroup(groups.top_prefixes(0).hits(), groups.top_prefixes(0).hits().name(), 3, 20, 35);
  EXPECT_EQ(groups.top_prefixes(0).hits().name().size(), 16u);
  EXPECT_EQ(groups.top_prefixes(0).first_row(), 0);
  ExpectGroup(groups.top_prefixes(1).hits(), groups.top_prefixes(1).hits().name(), 2, 4, 10);
  EXPECT_EQ(groups.top_prefixes(1).first_row(), 3);
}

TEST(HitGroupsTest, ListsHaveAnEndAndStillAddUp) {
  TraceInfo info;
  info.block_tokens = 1;
  std::vector<TraceRequest> requests;
  for (int i = 0; i < 120; ++i) {
    TraceRequest request;
    request.input_length = 5;
    request.content_ids = Content(0, 1000 * (i / 2), 5);
    request.tenant = "tenant " + std::to_string(i);
    requests.push_back(request);
  }
  const pb::Report report = MeasureRequests(requests, info);
  ExpectCausesAddUp(report);
  const pb::HitGroups& groups = report.hit_groups();
  ASSERT_EQ(groups.tenants_size(), 100);
  ExpectGroup(groups.tenants(99), "(21 others)", 21,
              groups.tenants(99).token_hit_rate().numerator(), 21 * 5);
  EXPECT_EQ(groups.distinct_prefixes(), 60);
  // All have four hit tokens: the first ones are listed.
  ASSERT_EQ(groups.top_prefixes_size(), 10);
  for (int i = 0; i < 10; ++i) EXPECT_EQ(groups.top_prefixes(i).first_row(), 2 * i);
}

// --- Hit reuse ---

// Where hits are found, and what groups hold over time.
TEST(HitReuseTest, SaysPlaceAndDistanceOfFreeBlocks) {
  // Seven usable blocks; each request takes three, of which the last has no key and is free first.
  Replay replay;
  replay.config.kv_cache.num_blocks = 8;
  const auto content = Content(9, 0, 9);
  replay.Add({.id = "A", .prompt = 9, .output = 1, .content = content});
  replay.Add({.id = "B", .prompt = 9, .output = 1, .at = 10});
  replay.Add({.id = "C", .prompt = 9, .output = 1, .at = 15});
  replay.Add({.id = "A2", .prompt = 9, .output = 1, .at = 20, .content = content});
  const pb::Report report = ReportOf(replay);
  // As many blocks as the pool has were handed out before A2. The queue is then: C's last block,
  // A's second and first, two of B, two of C.
  const pb::HitReuse& reuse = report.hit_reuse();
  EXPECT_FIELDS(reuse, "admissions 1, hit_blocks 2, in_use_blocks 0");
  ASSERT_EQ(reuse.blocks_by_place_size(), 20);
  for (int i = 0; i < 20; ++i) {
    EXPECT_EQ(reuse.blocks_by_place(i), i == 1 * 20 / 7 || i == 2 * 20 / 7 ? 1 : 0) << i;
  }
  // B and C took three blocks each.
  ASSERT_EQ(reuse.distance_quantiles_blocks_size(), 101);
  EXPECT_EQ(reuse.distance_quantiles_blocks(0), 6);
  EXPECT_EQ(reuse.distance_quantiles_blocks(100), 6);
}

TEST(HitReuseTest, BlocksInUseHaveNoPlace) {
  Replay replay;
  replay.config.kv_cache.num_blocks = 8;
  const auto content = Content(9, 0, 9);
  replay.Add({.id = "A", .prompt = 9, .output = 1, .content = content});
  replay.Add({.id = "B", .prompt = 9, .output = 1, .at = 5});
  replay.Add({.id = "A2", .prompt = 9, .output = 3, .at = 10, .content = content});
  replay.Add({.id = "A3", .prompt = 9, .output = 1, .at = 11, .content = content});
  const pb::Report report = ReportOf(replay);
  const pb::HitReuse& reuse = report.hit_reuse();
  EXPECT_FIELDS(reuse, "admissions 1, hit_blocks 2, in_use_blocks 2");
  for (const int64_t count : reuse.blocks_by_place()) EXPECT_EQ(count, 0);
  EXPECT_EQ(reuse.distance_quantiles_blocks_size(), 0);
}

TEST(HitReuseTest, GroupsAreCountedOverTime) {
  Replay replay;
  replay.config.kv_cache.groups.push_back(WindowGroup(4, 8));
  replay.config.kv_cache.num_blocks = 40;
  for (int i = 0; i < 3000; ++i) {
    replay.Add({.id = absl::StrCat(i), .prompt = 14 + i % 7, .output = 2, .at = 2.0 * i});
  }
  const pb::Report report = ReportOf(replay);
  const auto& samples = report.group_occupancy();
  ASSERT_EQ(report.groups_size(), 2);
  // 3,000 requests of some 9 blocks and a count per 10 of them: too many to be kept.
  EXPECT_GE(samples.size(), 200);
  EXPECT_LE(samples.size(), 400);
  EXPECT_GT(samples[samples.size() - 1].time_s(), 5000);
  EXPECT_EQ(samples[0].time_s(), 0);
  for (int i = 0; i < samples.size(); ++i) {
    if (i > 0) {
      EXPECT_GT(samples[i].time_s(), samples[i - 1].time_s());
    }
    ASSERT_EQ(samples[i].live_blocks_size(), 2);
    ASSERT_EQ(samples[i].cached_blocks_size(), 2);
    int64_t all = 0;
    for (int g = 0; g < 2; ++g) {
      EXPECT_LE(samples[i].live_blocks(g), report.groups(g).live_blocks().peak());
      EXPECT_LE(samples[i].cached_blocks(g), report.groups(g).cached_blocks().peak());
      all += samples[i].live_blocks(g) + samples[i].cached_blocks(g);
    }
    EXPECT_LE(all, 39);
    EXPECT_GT(all, 0);
  }
}

}  // namespace
}  // namespace kvblocks::sim
