// Whole replays of hand-written workloads, every figure computed by hand.

#include "sim/report/metrics.h"

#include <map>
#include <random>
#include <string>

#include "gtest/gtest.h"
#include "sim/replay_for_test.h"

namespace kvblocks::sim {
namespace {

namespace pb = ::kvblocks::report::v1;

class Rows final : public RequestRowSink {
 public:
  void OnRow(const RequestRow& row) override {
    latency[row.request->spec.id] = row.latency;
    lines[row.request->spec.id] = CsvRequestSink::Format(row);
  }
  std::map<std::string, std::optional<RequestLatency>> latency;
  std::map<std::string, std::string> lines;
};

struct Measured {
  pb::Report report;
  Rows rows;
  absl::Status status;
};

void Measure(Replay& replay, Measured* out, ReplayMetricsOptions options = {}) {
  options.rows = &out->rows;
  ReplayMetrics metrics(options);
  replay.further_observers = {&metrics};
  out->status = replay.Run();
  metrics.Fill(replay.result, &out->report);
}

template <typename Groups>
void ExpectGroupsAddUp(const Groups& groups, const pb::HitRates& whole) {
  int64_t requests = 0, queried = 0, hit = 0;
  for (const pb::HitGroup& group : groups) {
    requests += group.requests();
    hit += group.token_hit_rate().numerator();
    queried += group.token_hit_rate().denominator();
  }
  EXPECT_EQ(requests, whole.requests());
  EXPECT_EQ(hit, whole.token_hit_rate().numerator());
  EXPECT_EQ(queried, whole.token_hit_rate().denominator());
}

int64_t Blocks(const pb::MissCauses& misses, MissCause cause) {
  return misses.causes(static_cast<int>(cause)).blocks();
}

void ExpectCausesAddUp(const pb::Report& report) {
  for (const pb::MissCauses* misses : {&report.first_admission_misses(), &report.resume_misses()}) {
    int64_t sum = 0;
    for (const auto& cause : misses->causes()) sum += cause.blocks();
    EXPECT_EQ(sum, misses->missed_blocks());
  }
  const auto& rate = report.whole_run().full_block_hit_rate();
  EXPECT_EQ(report.first_admission_misses().missed_blocks(), rate.denominator() - rate.numerator());
  const auto& prompt = report.prompt_tokens();
  EXPECT_EQ(prompt.hit() + prompt.missed_full_blocks() + prompt.partial_blocks(), prompt.known());
  ExpectGroupsAddUp(report.hit_groups().tenants(), report.whole_run());
  ExpectGroupsAddUp(report.hit_groups().classes(), report.whole_run());
  ExpectGroupsAddUp(report.hit_groups().turns(), report.whole_run());
}

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
  EXPECT_EQ(latency.itl().count(), 16);
  EXPECT_DOUBLE_EQ(latency.itl().p50_ms(), 1000.0);
  EXPECT_DOUBLE_EQ(latency.itl().max_ms(), 5000.0);
  EXPECT_DOUBLE_EQ(latency.itl().mean_ms(), 1250.0);
  // 5 s is not above five medians.
  EXPECT_EQ(latency.stalls(), 0);
  EXPECT_DOUBLE_EQ(latency.tpot().mean_ms(), 1250.0);
  const pb::Preemption& preemption = m.report.preemption();
  EXPECT_EQ(preemption.preemptions(), 1);
  EXPECT_EQ(preemption.requests_affected(), 1);
  EXPECT_EQ(preemption.recomputed_tokens(), 4);
  EXPECT_EQ(preemption.resume_hit_tokens(), 8);
  EXPECT_EQ(preemption.worst_request(), "B");
  // Preempted by the step at 5, resumed by that at 9.
  EXPECT_DOUBLE_EQ(preemption.time_lost_s(), 4.0);
}

TEST(MetricsExamples, WE7_Counters) {
  Replay replay;
  AddWe7(replay);
  Measured m;
  Measure(replay, &m);
  const pb::Counters& counters = m.report.counters();
  EXPECT_EQ(counters.queried_tokens(), 16);
  EXPECT_EQ(counters.hit_tokens(), 0);
  EXPECT_EQ(counters.resume_queried_tokens(), 13);
  EXPECT_EQ(counters.resume_hit_tokens(), 8);
  EXPECT_EQ(counters.admissions(), 2);
  EXPECT_EQ(counters.resumes(), 1);
  ExpectCausesAddUp(m.report);
  EXPECT_EQ(Blocks(m.report.first_admission_misses(), MissCause::kFirstUse), 4);
  // B resumes with 13 tokens: two of three full blocks hit; the third was evicted.
  EXPECT_EQ(m.report.resume_misses().missed_blocks(), 1);
  EXPECT_EQ(Blocks(m.report.resume_misses(), MissCause::kEvicted), 1);
  // B lost it at 5 s, when A took one block, and misses it at 9 s.
  EXPECT_EQ(m.report.resume_misses().evicted().blocks(), 1);
  EXPECT_DOUBLE_EQ(m.report.resume_misses().evicted().max_age_s(), 4.0);
  EXPECT_EQ(m.report.resume_misses().evicted().max_distance_blocks(), 1);
}

TEST(MetricsTest, LegacyCountingTakesEveryAttemptAndResume) {
  Replay replay;
  AddWe7(replay);
  replay.config.scheduler.exact_steps = true;
  ReplayMetricsOptions options;
  options.hit_rates.legacy_counters = true;
  Measured m;
  Measure(replay, &m, options);
  // B is tried with its 13 known tokens at 6, 7, 8 and 9; none is cached for it alone that it
  // could not find: 8 hits each time.
  EXPECT_EQ(m.report.counters().attempts(), 2 + 4);
  EXPECT_EQ(m.report.counters().queried_tokens(), 16 + 4 * 13);
  EXPECT_EQ(m.report.counters().hit_tokens(), 4 * 8);
  EXPECT_EQ(m.report.counters().resume_hit_tokens(), 0);
  // The schedule is the same.
  EXPECT_EQ(m.report.totals().steps(), 13);
}

// The token of position i in a content that starts with `head` shared tokens.
std::vector<int64_t> Content(int64_t head, int64_t first, int64_t length) {
  std::vector<int64_t> content;
  for (int64_t i = 0; i < length; ++i) content.push_back(i < head ? i : first + i);
  return content;
}

TEST(MissCausesTest, LastTokenMustBeComputed) {
  // WE-4: an identical prompt of two full blocks may hit the first one only.
  Replay replay;
  const auto content = Content(8, 0, 8);
  replay.Add({.id = "A", .prompt = 8, .output = 1, .content = content});
  replay.Add({.id = "B", .prompt = 8, .output = 1, .at = 10, .content = content});
  replay.Add({.id = "C", .prompt = 9, .output = 1, .at = 20, .content = content});
  Measured m;
  Measure(replay, &m);
  ExpectCausesAddUp(m.report);
  EXPECT_EQ(Blocks(m.report.first_admission_misses(), MissCause::kFirstUse), 2);
  EXPECT_EQ(Blocks(m.report.first_admission_misses(), MissCause::kLastToken), 1);
  // B's copy of the second block is a duplicate.
  EXPECT_DOUBLE_EQ(m.report.pool().duplicate_blocks().peak(), 1.0);
  const pb::HitRates& rates = m.report.whole_run();
  EXPECT_EQ(rates.token_hit_rate().numerator(), 4 + 8);
  EXPECT_EQ(rates.token_hit_rate().denominator(), 8 + 8 + 9);
  EXPECT_EQ(rates.full_block_hit_rate().numerator(), 3);
  EXPECT_EQ(rates.full_block_hit_rate().denominator(), 6);
  EXPECT_EQ(rates.possible_hit_rate().denominator(), 4 + 8);
  EXPECT_DOUBLE_EQ(rates.possible_hit_rate().value(), 1.0);
  EXPECT_EQ(rates.request_hit_rate().numerator(), 2);
  EXPECT_DOUBLE_EQ(rates.mean_of_ratios(), (0.0 + 4.0 / 8 + 8.0 / 9) / 3);
}

TEST(MissCausesTest, EvictedBlocksWereSeen) {
  // WE-22: A again finds two of its three full blocks.
  Replay replay;
  replay.config.kv_cache.num_blocks = 6;
  const auto content = Content(13, 0, 13);
  replay.Add({.id = "A", .prompt = 13, .output = 1, .content = content});
  replay.Add({.id = "B", .prompt = 9, .output = 1, .at = 5});
  replay.Add({.id = "A2", .prompt = 13, .output = 1, .at = 10, .content = content});
  Measured m;
  Measure(replay, &m);
  ExpectCausesAddUp(m.report);
  EXPECT_EQ(Blocks(m.report.first_admission_misses(), MissCause::kFirstUse), 3 + 2);
  EXPECT_EQ(Blocks(m.report.first_admission_misses(), MissCause::kEvicted), 1);
  EXPECT_EQ(m.report.whole_run().possible_hit_rate().numerator(), 8);
  EXPECT_EQ(m.report.whole_run().possible_hit_rate().denominator(), 12);
  // A let go of its blocks at 1 s; B took three since, and A2 asks at 10 s.
  const pb::EvictedReuse& reuse = m.report.first_admission_misses().evicted();
  EXPECT_EQ(reuse.blocks(), 1);
  EXPECT_DOUBLE_EQ(reuse.mean_age_s(), 9.0);
  EXPECT_DOUBLE_EQ(reuse.p50_age_s(), 9.0);
  EXPECT_DOUBLE_EQ(reuse.max_age_s(), 9.0);
  EXPECT_EQ(reuse.p50_distance_blocks(), 3);
  EXPECT_EQ(reuse.max_distance_blocks(), 3);
  EXPECT_EQ(m.report.resume_misses().evicted().blocks(), 0);
}

TEST(MissCausesTest, HitsRenewTheLastUse) {
  // Five usable blocks. A and A2 (which hits all but the tail) share content; X and Y need four
  // blocks each. All run for one step.
  Replay replay;
  replay.config.kv_cache.num_blocks = 6;
  const auto content = Content(9, 0, 9);
  replay.Add({.id = "A", .prompt = 9, .output = 1, .content = content});
  replay.Add({.id = "A2", .prompt = 9, .output = 1, .at = 10, .content = content});
  replay.Add({.id = "X", .prompt = 13, .output = 1, .at = 20});
  replay.Add({.id = "Y", .prompt = 13, .output = 1, .at = 30});
  replay.Add({.id = "A3", .prompt = 9, .output = 1, .at = 40, .content = content});
  Measured m;
  Measure(replay, &m);
  ExpectCausesAddUp(m.report);
  EXPECT_EQ(m.report.whole_run().token_hit_rate().numerator(), 8);
  const pb::EvictedReuse& reuse = m.report.first_admission_misses().evicted();
  // Both blocks, since 11 s, when A2 ended: X and Y took four blocks each.
  EXPECT_EQ(reuse.blocks(), 2);
  EXPECT_EQ(reuse.blocks(), Blocks(m.report.first_admission_misses(), MissCause::kEvicted));
  EXPECT_DOUBLE_EQ(reuse.mean_age_s(), 29.0);
  EXPECT_EQ(reuse.mean_distance_blocks(), 8);
}

TEST(MissCausesTest, TheLastOfSeveralUsersCounts) {
  // A comes first and stays until 6 s; B shares its blocks and is done at 2 s.
  Replay replay;
  replay.config.kv_cache.num_blocks = 8;
  const auto content = Content(9, 0, 9);
  replay.Add({.id = "A", .prompt = 9, .output = 6, .content = content});
  replay.Add({.id = "B", .prompt = 9, .output = 1, .at = 1, .content = content});
  replay.Add({.id = "X", .prompt = 25, .output = 1, .at = 10});
  replay.Add({.id = "C", .prompt = 9, .output = 1, .at = 20, .content = content});
  Measured m;
  Measure(replay, &m);
  ExpectCausesAddUp(m.report);
  EXPECT_EQ(m.report.whole_run().token_hit_rate().numerator(), 8);
  const pb::EvictedReuse& reuse = m.report.first_admission_misses().evicted();
  EXPECT_EQ(reuse.blocks(), 2);
  EXPECT_DOUBLE_EQ(reuse.mean_age_s(), 14.0);
  EXPECT_EQ(reuse.mean_distance_blocks(), 7);
}

TEST(MissCausesTest, EarlierAdmissionsOfAStepAddToTheDistance) {
  // X and A2 enter in one step: X, which is first, takes the blocks that A2 asks for.
  Replay replay;
  replay.config.kv_cache.num_blocks = 9;
  const auto content = Content(9, 0, 9);
  replay.Add({.id = "A", .prompt = 9, .output = 1, .content = content});
  replay.Add({.id = "Z", .prompt = 9, .output = 1, .at = 5});
  replay.Add({.id = "X", .prompt = 17, .output = 1, .at = 10});
  replay.Add({.id = "A2", .prompt = 9, .output = 1, .at = 10, .content = content});
  Measured m;
  Measure(replay, &m);
  ExpectCausesAddUp(m.report);
  const pb::EvictedReuse& reuse = m.report.first_admission_misses().evicted();
  EXPECT_EQ(reuse.blocks(), Blocks(m.report.first_admission_misses(), MissCause::kEvicted));
  ASSERT_GT(reuse.blocks(), 0);
  EXPECT_DOUBLE_EQ(reuse.max_age_s(), 9.0);
  // Z took three and X five.
  EXPECT_EQ(reuse.max_distance_blocks(), 8);
}

TEST(MissCausesTest, NotYetComputedWhileAnotherRequestIsAtIt) {
  // A's 16 tokens take two steps of 8; B comes when 8 are done, with a budget for one block.
  Replay replay;
  replay.config.scheduler.max_num_batched_tokens = 12;
  replay.config.scheduler.long_prefill_token_threshold = 4;
  const auto content = Content(17, 0, 17);
  replay.Add({.id = "A", .prompt = 17, .output = 1, .content = content});
  replay.Add({.id = "B", .prompt = 17, .output = 1, .at = 1.5, .content = content});
  Measured m;
  Measure(replay, &m);
  ExpectCausesAddUp(m.report);
  // At 2 s A has computed 8 tokens and computes 4 more in the same step: three blocks hit.
  EXPECT_EQ(m.report.whole_run().token_hit_rate().numerator(), 12);
  EXPECT_EQ(Blocks(m.report.first_admission_misses(), MissCause::kNotYetComputed), 1);
  EXPECT_EQ(Blocks(m.report.first_admission_misses(), MissCause::kFirstUse), 4);
  EXPECT_EQ(m.report.whole_run().possible_hit_rate().denominator(), 16);
}

TEST(MissCausesTest, AnAbortedRequestLeavesWhatItComputed) {
  Replay replay;
  replay.config.scheduler.long_prefill_token_threshold = 4;
  const auto content = Content(17, 0, 17);
  replay.Add({.id = "A", .prompt = 17, .output = 1, .content = content, .abort_after = 1.5});
  replay.Add({.id = "B", .prompt = 17, .output = 1, .at = 10, .content = content});
  Measured m;
  Measure(replay, &m);
  ExpectCausesAddUp(m.report);
  // Two steps ran before the abort: 8 tokens. Nobody ever computed the other two blocks.
  EXPECT_EQ(m.report.whole_run().token_hit_rate().numerator(), 8);
  EXPECT_EQ(Blocks(m.report.first_admission_misses(), MissCause::kFirstUse), 4 + 2);
  EXPECT_EQ(m.report.whole_run().possible_hit_rate().denominator(), 8);
  EXPECT_EQ(m.report.totals().requests_aborted_by_trace(), 1);
}

TEST(MissCausesTest, ShortPrefixesMissTheirFirstBlock) {
  Replay replay;
  replay.Add({.id = "A", .prompt = 9, .output = 1, .content = Content(9, 0, 9)});
  replay.Add({.id = "B", .prompt = 9, .output = 1, .at = 10, .content = Content(3, 100, 9)});
  replay.Add({.id = "C", .prompt = 9, .output = 1, .at = 20, .content = Content(0, 200, 9)});
  Measured m;
  Measure(replay, &m);
  ExpectCausesAddUp(m.report);
  EXPECT_EQ(Blocks(m.report.first_admission_misses(), MissCause::kShort), 1);
  EXPECT_EQ(Blocks(m.report.first_admission_misses(), MissCause::kFirstUse), 5);
}

TEST(MissCausesTest, LookaheadDropsOneBlock) {
  // WE-27.
  Replay replay;
  replay.config.manager.use_eagle = true;
  const auto content = Content(9, 0, 9);
  replay.Add({.id = "A", .prompt = 9, .output = 1, .content = content});
  replay.Add({.id = "B", .prompt = 9, .output = 1, .at = 10, .content = content});
  Measured m;
  Measure(replay, &m);
  ExpectCausesAddUp(m.report);
  EXPECT_EQ(m.report.whole_run().token_hit_rate().numerator(), 4);
  EXPECT_EQ(Blocks(m.report.first_admission_misses(), MissCause::kLookahead), 1);
  EXPECT_EQ(m.report.whole_run().possible_hit_rate().denominator(), 8);
}

TEST(MissCausesTest, HybridGroupsAgreeOnAShorterHit) {
  Replay replay;
  replay.config.kv_cache.num_blocks = 14;
  replay.config.kv_cache.groups = {FullGroup(4), WindowGroup(4, 4)};
  const auto content = Content(17, 0, 17);
  replay.Add({.id = "A", .prompt = 17, .output = 1, .content = content});
  replay.Add({.id = "X", .prompt = 13, .output = 1, .at = 10});
  replay.Add({.id = "B", .prompt = 17, .output = 1, .at = 20, .content = content});
  Measured m;
  Measure(replay, &m);
  ASSERT_TRUE(m.status.ok()) << m.status;
  ExpectCausesAddUp(m.report);
  ASSERT_EQ(m.report.groups_size(), 2);
  EXPECT_EQ(m.report.groups(0).kind(), "full_attention");
  EXPECT_EQ(m.report.groups(1).kind(), "sliding_window");
  const auto& misses = m.report.first_admission_misses();
  // B's four full blocks are hit, or miss because they are gone or because the groups disagree.
  EXPECT_EQ(m.report.whole_run().full_block_hit_rate().numerator() +
                Blocks(misses, MissCause::kEvicted) + Blocks(misses, MissCause::kWindowOrAlignment),
            4);
}

// Requests as they are, for what Replay has no field for.
pb::Report MeasureRequests(std::vector<TraceRequest> requests, const TraceInfo& info,
                           const ReplayMetricsOptions& options = {}) {
  SimulationConfig config;
  config.kv_cache.num_blocks = 100;
  config.kv_cache.groups = {FullGroup(4)};
  config.manager.max_model_len = 1000;
  for (size_t i = 0; i < requests.size(); ++i) {
    requests[i].row = static_cast<int64_t>(i);
    requests[i].arrival_ns = static_cast<int64_t>(i) * 10'000'000'000;
    requests[i].output_length = 1;
  }
  VectorTraceReader reader(info, std::move(requests));
  const auto step_time = MakeFixedStepTime(kSecond);
  ReplayMetrics metrics(options);
  const auto simulation = Simulation::Create(config, &reader, step_time->get(), {&metrics});
  EXPECT_TRUE(simulation.ok()) << simulation.status();
  EXPECT_TRUE((*simulation)->Run().ok());
  pb::Report report;
  metrics.Fill((*simulation)->result(), &report);
  return report;
}

TEST(MissCausesTest, SaltAndAdapterSeparateEqualContents) {
  TraceInfo info;
  info.block_tokens = 1;
  TraceRequest plain, salted, adapted, other;
  plain.input_length = salted.input_length = adapted.input_length = 9;
  plain.content_ids = salted.content_ids = adapted.content_ids = Content(9, 0, 9);
  salted.salt = "s";
  adapted.adapter = "a";
  other = salted;
  other.content_ids = Content(0, 500, 9);
  // First use; under another salt; again: hits; under an adapter; other content under the salt.
  const pb::Report report = MeasureRequests({plain, salted, salted, adapted, other}, info);
  ExpectCausesAddUp(report);
  EXPECT_EQ(Blocks(report.first_admission_misses(), MissCause::kSaltOrAdapter), 2 + 2);
  EXPECT_EQ(Blocks(report.first_admission_misses(), MissCause::kFirstUse), 2 + 2);
  EXPECT_EQ(report.whole_run().token_hit_rate().numerator(), 8);
  // The plain content comes second: it exists under the salt only.
  const pb::Report reversed = MeasureRequests({salted, plain}, info);
  EXPECT_EQ(Blocks(reversed.first_admission_misses(), MissCause::kSaltOrAdapter), 2);
}

TEST(MissCausesTest, SessionLocalIdsAreNoSharedContent) {
  TraceInfo info;
  info.block_tokens = 1;
  info.scope = ContentScope::kSession;
  TraceRequest one;
  one.input_length = 9;
  one.content_ids = Content(9, 0, 9);
  one.session = 1;
  TraceRequest two = one;
  two.session = 2;
  const pb::Report report = MeasureRequests({one, two}, info);
  EXPECT_EQ(Blocks(report.first_admission_misses(), MissCause::kFirstUse), 4);
}

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

// Random small workloads: prompts branch off a few stems, pools are tight, requests are aborted.
void AddRandomRequests(uint64_t seed, Replay& replay) {
  std::mt19937_64 random(seed);
  const auto draw = [&](uint64_t n) { return static_cast<int64_t>(random() % n); };
  for (int i = 0; i < 25; ++i) {
    const int64_t prompt = 1 + draw(30);
    const int64_t shared = draw(static_cast<uint64_t>(prompt) + 1);
    const int64_t stem = 10'000 * draw(3);
    std::vector<int64_t> content;
    for (int64_t t = 0; t < prompt; ++t) {
      content.push_back(t < shared ? stem + t : 100'000 + 1000 * i + t);
    }
    replay.Add({.id = std::to_string(i),
                .prompt = prompt,
                .output = 1 + draw(12),
                .at = static_cast<double>(draw(40)) / 2,
                .content = content,
                .abort_after = draw(5) == 0 ? 0.5 + static_cast<double>(draw(8)) : 0.0});
  }
}

TEST(MissCausesTest, CausesAddUpOnRandomWorkloads) {
  int64_t preemptions = 0, evicted = 0, pending = 0, window = 0;
  for (uint64_t seed = 0; seed < 150; ++seed) {
    Replay replay;
    AddRandomRequests(seed, replay);
    replay.config.scheduler.max_num_batched_tokens = 8 + static_cast<int64_t>(seed % 20);
    // Long prompts leave room in a step for others, which then miss what is under way.
    if (seed % 2 == 0) replay.config.scheduler.long_prefill_token_threshold = 4;
    replay.config.kv_cache.num_blocks = seed % 3 == 2 ? 40 : 14 + static_cast<int64_t>(seed % 7);
    if (seed % 3 == 1) replay.config.manager.use_eagle = true;
    if (seed % 3 == 2) replay.config.kv_cache.groups = {FullGroup(4), WindowGroup(4, 6)};
    Measured m;
    Measure(replay, &m);
    ASSERT_TRUE(m.status.ok()) << m.status;
    ExpectCausesAddUp(m.report);
    const auto& first = m.report.first_admission_misses();
    const auto& possible = m.report.whole_run().possible_hit_rate();
    ASSERT_LE(possible.numerator(), possible.denominator());
    ASSERT_LE(possible.denominator(), m.report.whole_run().token_hit_rate().denominator());
    // With one group every evicted block was let go of by somebody.
    if (seed % 3 != 2) {
      ASSERT_EQ(first.evicted().blocks(), Blocks(first, MissCause::kEvicted));
    }
    // Resumes: known full blocks less those found.
    preemptions += m.report.preemption().preemptions();
    evicted += Blocks(first, MissCause::kEvicted);
    pending += Blocks(first, MissCause::kNotYetComputed);
    window += Blocks(first, MissCause::kWindowOrAlignment);
    if (seed % 3 != 1) {
      ASSERT_EQ(Blocks(first, MissCause::kLookahead), 0);
    }
    if (seed % 3 != 2) {
      ASSERT_EQ(Blocks(first, MissCause::kWindowOrAlignment), 0);
    }
  }
  // The workloads reach what they are for.
  EXPECT_GT(preemptions, 50);
  EXPECT_GT(evicted, 100);
  EXPECT_GT(pending, 20);
  EXPECT_GT(window, 5);
}

TEST(MissCausesTest, NothingIsEvictedFromALargePool) {
  for (uint64_t seed = 0; seed < 50; ++seed) {
    Replay replay;
    AddRandomRequests(seed, replay);
    Measured m;
    Measure(replay, &m);
    ExpectCausesAddUp(m.report);
    const auto& first = m.report.first_admission_misses();
    ASSERT_EQ(Blocks(first, MissCause::kEvicted), 0);
    // What an infinite cache could serve was hit, or was not computed yet.
    const auto& possible = m.report.whole_run().possible_hit_rate();
    ASSERT_LE(possible.denominator() - possible.numerator(),
              4 * Blocks(first, MissCause::kNotYetComputed));
    ASSERT_EQ(m.report.pool().evictions(), 0);
  }
}

TEST(MissCausesTest, PrefixCachingOffClassifiesNothing) {
  Replay replay;
  replay.config.manager.enable_caching = false;
  replay.Add({.id = "A", .prompt = 9, .output = 2});
  Measured m;
  Measure(replay, &m);
  ASSERT_TRUE(m.status.ok()) << m.status;
  EXPECT_EQ(m.report.first_admission_misses().missed_blocks(), 0);
  EXPECT_EQ(m.report.whole_run().token_hit_rate().denominator(), 9);
}

TEST(PoolMetricsTest, GaugesAreWeightedWithTime) {
  // WE-1 with ten blocks: A holds 2 blocks for 2 s and 3 for 1 s, then nothing runs for 2 s.
  Replay replay;
  replay.config.kv_cache.num_blocks = 10;
  replay.Add({.id = "A", .prompt = 7, .output = 3});
  replay.Add({.id = "B", .prompt = 0, .output = 1, .at = 5});  // rejected, but an event at 5 s
  Measured m;
  Measure(replay, &m);
  const pb::Pool& pool = m.report.pool();
  EXPECT_DOUBLE_EQ(pool.usage().mean(), (2 + 2 + 3) / 45.0);
  EXPECT_DOUBLE_EQ(pool.usage().peak(), 3 / 9.0);
  // Two full blocks keep their keys when A is gone.
  EXPECT_DOUBLE_EQ(pool.resident().mean(), (2 + 2 + 3 + 2 + 2) / 45.0);
  // 1 of 8 slots unused, then none, then 3 of 12.
  EXPECT_DOUBLE_EQ(pool.fragmentation().mean(), (1 + 0 + 3) / 28.0);
  EXPECT_DOUBLE_EQ(pool.fragmentation().peak(), 3 / 12.0);
  EXPECT_EQ(pool.peak_referenced_blocks(), 3);
  EXPECT_DOUBLE_EQ(pool.time_above_90_percent_s(), 0.0);
  EXPECT_DOUBLE_EQ(m.report.throughput().duration_s(), 5.0);
  EXPECT_DOUBLE_EQ(m.report.throughput().busy_share(), 0.6);
  EXPECT_DOUBLE_EQ(m.report.series().points(1).step_time_ms(), 1000.0);
  EXPECT_DOUBLE_EQ(m.report.series().points(4).step_time_ms(), 0.0);
  EXPECT_EQ(m.report.totals().requests_rejected(), 1);
}

TEST(PoolMetricsTest, GaugesReturnToZeroAfterPreemptionsAndAborts) {
  Replay replay;
  AddWe7(replay);
  replay.Add({.id = "C", .prompt = 4, .output = 10, .at = 20, .abort_after = 2.5});
  replay.Add({.id = "D", .prompt = 4, .output = 1, .at = 30});
  Measured m;
  Measure(replay, &m);
  const auto& points = m.report.series().points();
  ASSERT_GE(points.size(), 31);
  EXPECT_DOUBLE_EQ(points[25].usage(), 0.0);
  EXPECT_DOUBLE_EQ(points[25].running(), 0.0);
  EXPECT_GT(points[25].resident(), 0.0);
  EXPECT_GT(points[21].usage(), 0.0);
  // 4 computed tokens in one block, then one more per step: never more slots than two blocks.
  EXPECT_LT(m.report.pool().fragmentation().peak(), 1.0);
}

TEST(MetricsTest, OneTokenHasNoTpot) {
  Replay replay;
  replay.Add({.id = "A", .prompt = 4, .output = 1});
  Measured m;
  Measure(replay, &m);
  EXPECT_FALSE(m.rows.latency["A"]->tpot.has_value());
  EXPECT_EQ(m.report.latency().tpot().count(), 0);
  EXPECT_EQ(m.report.latency().ttft().count(), 1);
  EXPECT_EQ(m.rows.lines["A"], "0,A,0,4,1,1,length,,4,0,0,0,1000,1000,1000,,0,0,0,0,1000\r\n");
}

TEST(MetricsTest, DraftsOfOneStepComeAtGapZero) {
  // WE-15: token times 1, 2,2,2, 3, 4,4.
  Replay replay;
  replay.config.scheduler.num_draft_tokens = 2;
  replay.config.scheduler.num_lookahead_tokens = 2;
  replay.Add({.id = "A", .prompt = 6, .output = 7, .accepted = {2, 0, 1}});
  Measured m;
  Measure(replay, &m);
  EXPECT_EQ(m.report.latency().itl().count(), 6);
  EXPECT_DOUBLE_EQ(m.report.latency().itl().mean_ms(), 500.0);
  EXPECT_DOUBLE_EQ(m.report.latency().itl().min_ms(), 0.0);
  EXPECT_EQ(m.report.drafts().verified(), 6);
  EXPECT_EQ(m.report.drafts().accepted(), 3);
  EXPECT_EQ(m.report.drafts().rejected(), 3);
  EXPECT_DOUBLE_EQ(m.report.drafts().mean_accepted(), 1.0);
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
    Measured m;
    Measure(replay, &m, options);
    EXPECT_EQ(m.report.whole_run().token_hit_rate().numerator(), 16) << warmup;
    EXPECT_EQ(m.report.whole_run().token_hit_rate().denominator(), 36) << warmup;
    EXPECT_EQ(m.report.after_warmup().token_hit_rate().numerator(), 8) << warmup;
    EXPECT_EQ(m.report.after_warmup().token_hit_rate().denominator(), 18) << warmup;
    EXPECT_EQ(m.report.rolling_window().requests(), 4);
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
  Measured m;
  Measure(replay, &m, options);
  EXPECT_DOUBLE_EQ(m.report.throughput().duration_s(), 53.0);
  EXPECT_DOUBLE_EQ(m.report.throughput().requests_per_s(), 6 / 53.0);
  const pb::Throughput& steady = m.report.steady_throughput();
  // From the third request's admission to the last one's: three requests in 30 s.
  EXPECT_DOUBLE_EQ(steady.start_s(), 20.0);
  EXPECT_DOUBLE_EQ(steady.end_s(), 50.0);
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
  EXPECT_EQ(goodput.requests_good(), 3);
  EXPECT_EQ(goodput.requests_total(), 4);
  ASSERT_EQ(goodput.classes_size(), 3);
  EXPECT_EQ(goodput.classes(0).slo_class(), "");
  EXPECT_EQ(goodput.classes(0).requests_good(), 1);
  EXPECT_EQ(goodput.classes(1).slo_class(), "batch");
  EXPECT_EQ(goodput.classes(1).requests_good(), 0);
  EXPECT_EQ(goodput.classes(1).requests_total(), 1);
  EXPECT_EQ(goodput.classes(2).slo_class(), "chat");
  EXPECT_EQ(goodput.classes(2).requests_good(), 2);
  EXPECT_DOUBLE_EQ(goodput.classes(2).good_share(), 1.0);
  EXPECT_EQ(goodput.classes(2).objectives_size(), 1);
  // Without classes there is nothing to tell apart.
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

}  // namespace
}  // namespace kvblocks::sim
