// Leaving requests out of steps changes nothing: reports, rows and pools are the same, to the byte,
// as when every request is looked at in every step.

#include <cstdlib>
#include <string>

#include "gtest/gtest.h"
#include "kvblocks/model_facts.h"
#include "rapidcheck/gtest.h"
#include "sim/cost/kernel_tables.h"
#include "sim/cost/roofline.h"
#include "sim/cost/table_clock.h"
#include "sim/report/report_json.h"
#include "sim/report/server_metrics.h"
#include "sim/report/timeline.h"
#include "sim/testing/draw.h"
#include "sim/testing/measured_replay.h"
#include "sim/testing/output_readers.h"
#include "sim/trace/trace_reader.h"

namespace kvblocks::sim {
namespace {

namespace pb = ::kvblocks::report::v1;

// Counts what was left out.
class SkipCounter final : public EngineObserver {
 public:
  bool NeedsEveryRecord() const override { return false; }
  void OnStepFinished(const StepRecord& step) override {
    num_skipped += step.num_skipped;
    num_records += static_cast<int64_t>(step.scheduled.size());
  }
  int64_t num_skipped = 0;
  int64_t num_records = 0;
};

std::unique_ptr<StepTimeModel> SmallRoofline() {
  RooflineOptions options;
  options.device = *Catalogue::BuiltIn().FindDevice("h100-sxm");
  options.model = *Catalogue::BuiltIn().FindModel("llama-3.1-8b");
  options.fixed_time = 500 * kMillisecond;
  options.time_per_sequence = 3 * kMillisecond;
  // So that contexts of some hundred tokens matter beside the weights.
  options.kv_bytes_per_element = 8;
  options.memory_efficiency = 0.01;
  auto model = MakeRoofline(options);
  EXPECT_TRUE(model.ok()) << model.status();
  return *std::move(model);
}

// Pools from much too small to ample, so that requests are skipped, visited again and preempted.
void Fill(Replay& replay, ReplayMetricsOptions& metrics, uint64_t seed) {
  Draw draw(seed);
  SimulationConfig& config = replay.config;
  const int64_t block_size = int64_t{1} << draw(0, 5);
  const int64_t longest = draw(20, 300);
  config.kv_cache.groups = {FullGroup(block_size)};
  if (draw.OneIn(6)) {
    config.kv_cache.groups.push_back(FullGroup(draw(1, 3) * block_size));
    config.kv_cache.groups.back().layer_names = {"second"};
  }
  if (draw.OneIn(8)) config.kv_cache.groups.push_back(WindowGroup(block_size, draw(2, 40)));
  config.kv_cache.num_blocks = 2 + draw(1, 8) * (longest / block_size + draw(1, 20));
  config.manager.max_model_len = draw.OneIn(3) ? longest : 100000;
  config.manager.enable_caching = !draw.OneIn(5);
  config.manager.free_order = draw.OneIn(3) ? FreeOrder::kAppendAll : FreeOrder::kUnhashedFirst;
  if (draw.OneIn(4)) config.manager.watermark = 0.1;
  SchedulerOptions& scheduler = config.scheduler;
  scheduler.async = !draw.OneIn(3);
  scheduler.max_num_batched_tokens = draw.OneIn(3) ? draw(6, 30) : draw(30, 300);
  scheduler.max_num_seqs = draw(1, 12);
  if (draw.OneIn(4)) scheduler.long_prefill_token_threshold = draw(2, 40);
  if (draw.OneIn(6)) {
    scheduler.enable_chunked_prefill = false;
    scheduler.max_num_batched_tokens = config.manager.max_model_len;
  }
  if (draw.OneIn(2)) {
    scheduler.policy = static_cast<SchedulingPolicy>(
        draw(0, static_cast<int64_t>(SchedulingPolicy::kNoEvict)));
    if (!config.manager.enable_caching && OrdersByPrefix(scheduler.policy)) {
      scheduler.policy = SchedulingPolicy::kPriority;
    }
  }
  DrawRules(draw, scheduler);
  if (draw.OneIn(8)) {
    // In half of the cases with lookahead hashes.
    ASSERT_TRUE(ApplyDrafts({.drafter = draw.OneIn(2) ? Drafter::kMtp : Drafter::kNgram,
                             .num_draft_tokens = draw(1, 3)},
                            &config)
                    .ok());
    scheduler.acceptance = {.kind = AcceptanceModel::Kind::kIid, .probabilities = {0.6}};
  }
  config.host_time_per_step = draw(0, 2) * 100 * kMillisecond;
  config.host_time_per_request = draw(0, 1) * 10 * kMillisecond;
  if (draw.OneIn(4)) config.max_queue_time = draw(5, 80) * kSecond;
  if (draw.OneIn(5)) config.concurrency = draw(1, 5);
  config.zero_output = draw.OneIn(2) ? ZeroOutput::kOne : ZeroOutput::kPrefill;
  config.check_invariants = draw.OneIn(4);

  metrics.series_tick = draw(1, 20) * 250 * kMillisecond;
  metrics.series_max_points = static_cast<size_t>(draw(4, 200));
  // Few values are kept, then the sketch takes over.
  if (draw.OneIn(2)) metrics.latency.max_exact_runs = static_cast<size_t>(draw(1, 60));
  metrics.objectives = *ParseObjectives("ttft:4s:p90,tpot:1200ms");

  const bool with_aborts = draw.OneIn(3);
  const int64_t count = draw(1, 14);
  const int64_t spread = draw(0, 200);
  double at = 0;
  for (int64_t i = 0; i < count; ++i) {
    at += static_cast<double>(draw(0, spread)) / 8.0;
    ReplayRequest request;
    request.id = std::to_string(i);
    request.prompt = draw(1, draw.OneIn(2) ? longest : 20);
    request.output = draw(0, draw.OneIn(2) ? longest : 10);
    request.at = at;
    request.priority = static_cast<int32_t>(draw(0, 2));
    if (draw.OneIn(2)) {
      const int64_t document = draw(0, 2);
      for (int64_t t = 0; t < request.prompt; ++t) {
        request.content.push_back(t < 40 ? t : 1000 * document + t);
      }
    }
    if (with_aborts && draw.OneIn(3)) request.abort_after = static_cast<double>(draw(1, 800)) / 8;
    if (i > 0 && draw.OneIn(6)) {
      request.waits_for = {draw(0, i - 1)};
      request.think = static_cast<double>(draw(0, 8)) / 4.0;
    }
    replay.Add(request);
  }
}

struct Outcome {
  std::string status, json;
  std::string timeline, served;
  std::map<std::string, std::string> rows;
  SimulationResult result;
  std::vector<BlockId> free_queue, keyed_blocks;
  PoolGauges gauges;
  int64_t num_skipped = 0, num_records = 0, output_tokens = 0;
};

Outcome RunCase(uint64_t seed, const StepTimeModel* step_time, bool exact_steps) {
  Replay replay;
  ReplayMetricsOptions options;
  Fill(replay, options, seed);
  replay.step_time = step_time;
  replay.is_watching = false;
  replay.config.scheduler.exact_steps = exact_steps;
  Rows rows;
  ServerMetrics server({.max_model_len = 100'000, .tick = 5 * kSecond, .max_points = 20});
  RequestRowList row_sinks;
  row_sinks.Add(&rows);
  row_sinks.Add(&server);
  options.rows = &row_sinks;
  options.latency.sink = &server;
  options.admissions = &server;
  ReplayMetrics metrics(options);
  SkipCounter counter;
  Outcome out;
  TimelineFile timeline_file(ByteSinkToString(&out.timeline));
  Timeline timeline(&timeline_file);
  replay.further_observers = {&metrics, &counter, &timeline, &server};
  out.status = replay.Run().ToString();
  if (replay.result.num_iterations == 0) return out;  // refused
  pb::Report report;
  metrics.Fill(replay.result, &report);
  out.json = *ToJson(report);
  EXPECT_TRUE(timeline_file.Close().ok());
  if (seed % 8 == 0) out.served = server.Text();  // long to write and to read
  out.output_tokens = report.totals().output_tokens();
  out.rows = rows.lines;
  out.result = replay.result;
  out.free_queue = replay.free_queue;
  out.keyed_blocks = replay.keyed_blocks;
  out.gauges = metrics.pool_gauges();
  out.num_skipped = counter.num_skipped;
  out.num_records = counter.num_records;
  return out;
}

// Workloads per property case, of which there are 100.
#ifdef NDEBUG
constexpr uint64_t kWorkloads = 30;
#else
constexpr uint64_t kWorkloads = 8;
#endif

RC_GTEST_PROP(ExactSteps, MakeNoDifference, (uint64_t first_seed)) {
  const auto roofline = SmallRoofline();
  for (uint64_t seed = first_seed; seed - first_seed < kWorkloads; ++seed) {
    const StepTimeModel* step_time = seed % 3 == 0 ? roofline.get() : nullptr;
    const Outcome fast = RunCase(seed, step_time, false);
    const Outcome exact = RunCase(seed, step_time, true);
    if (fast.result.num_iterations == 0) RC_FAIL(fast.status);
    RC_ASSERT(fast.status == exact.status);
    RC_ASSERT(fast.json == exact.json);
    RC_ASSERT(fast.rows == exact.rows);
    RC_ASSERT(fast.timeline == exact.timeline);
    RC_ASSERT(fast.served == exact.served);
    if (!fast.served.empty()) RC_ASSERT(ReadOpenMetrics(fast.served).error == "");
    const TraceEvents events = ParseTraceEvents(fast.timeline);
    RC_ASSERT(events.error == "");
    RC_ASSERT(events.Overlap() == "");
    RC_ASSERT(fast.result == exact.result);
    RC_ASSERT(fast.free_queue == exact.free_queue);
    RC_ASSERT(fast.keyed_blocks == exact.keyed_blocks);
    RC_ASSERT(exact.num_skipped == 0);
    RC_ASSERT(fast.num_skipped + fast.num_records == exact.num_records);
    if (fast.status != "OK") continue;
    RC_ASSERT(events.Sum("output_tokens") == fast.output_tokens);
    // Nobody is left who holds or has computed anything.
    for (const Outcome* out : {&fast, &exact}) {
      RC_ASSERT(out->gauges.referenced == 0);
      RC_ASSERT(out->gauges.slots == 0);
      RC_ASSERT(out->gauges.computed == 0);
    }
  }
}

TEST(ExactStepsTest, ManyDecodesAreLeftOutInTheseWorkloads) {
  int64_t num_skipped = 0, num_records = 0;
  for (uint64_t seed = 0; seed < 200; ++seed) {
    const Outcome fast = RunCase(seed, nullptr, false);
    num_skipped += fast.num_skipped;
    num_records += fast.num_records;
  }
  EXPECT_GT(num_skipped, num_records / 5);
}

TEST(ExactStepsTest, ObserverThatNeedsRecordsGetsThem) {
  for (const bool is_watching : {false, true}) {
    Replay replay;
    replay.config.scheduler.async = true;
    replay.is_watching = is_watching;
    SkipCounter counter;
    replay.further_observers = {&counter};
    replay.config.kv_cache.groups = {FullGroup(64)};
    replay.config.kv_cache.num_blocks = 400;
    replay.Add({.id = "A", .prompt = 60, .output = 1000});
    ASSERT_TRUE(replay.Run().ok());
    EXPECT_EQ(counter.num_skipped + counter.num_records, 1000);
    if (is_watching) {
      EXPECT_EQ(counter.num_skipped, 0);
      EXPECT_EQ(replay.token_times["A"].size(), 1000);
    } else {
      // One record or two per block.
      EXPECT_LE(counter.num_records, 40);
    }
  }
}

// The published traces, where they are.
TEST(ExactStepsTest, MakeNoDifferenceOnPublishedTraces) {
  const char* shared = std::getenv("KVBLOCKS_SHARED");
  if (shared == nullptr) GTEST_SKIP() << "set KVBLOCKS_SHARED to the folder that holds traces/";
  RooflineOptions roofline;
  roofline.device = *Catalogue::BuiltIn().FindDevice("h100-sxm");
  roofline.model = *Catalogue::BuiltIn().FindModel("llama-3.1-8b");
  const auto estimated = MakeRoofline(roofline);
  ASSERT_TRUE(estimated.ok()) << estimated.status();
  const auto tables = LoadKernelTables(FindKernelTablesFile(), "h100-sxm");
  ASSERT_TRUE(tables.ok()) << tables.status();
  TableClockOptions table_clock;
  table_clock.layers.roofline = roofline;
  const auto measured = MakeTableClock(*tables, table_clock);
  ASSERT_TRUE(measured.ok()) << measured.status();
  struct {
    const char* trace;
    int64_t block_size, num_blocks;
    const StepTimeModel* step_time;
  } const cases[] = {{"conversation_trace.jsonl.gz", 512, 10000, estimated->get()},
                     {"conversation_trace.jsonl.gz", 512, 1200, measured->get()},
                     {"conversation_trace.jsonl.gz", 64, 40000, measured->get()},
                     {"synthetic_trace.jsonl.gz", 128, 20000, estimated->get()}};
  for (const auto& c : cases) {
    std::string json[2];
    for (const bool exact_steps : {false, true}) {
      TraceReaderOptions options;
      options.limit = 4000;
      auto reader = OpenTrace(std::string(shared) + "/traces/mooncake/" + c.trace, options);
      ASSERT_TRUE(reader.ok()) << reader.status();
      Replay defaults;
      SimulationConfig config = defaults.config;
      config.kv_cache.groups = {FullGroup(c.block_size)};
      config.kv_cache.num_blocks = c.num_blocks;
      config.manager.max_model_len = 1 << 20;
      config.scheduler = SchedulerOptions();
      config.scheduler.exact_steps = exact_steps;
      config.check_invariants = false;
      ReplayMetrics metrics({});
      const auto simulation =
          Simulation::Create(config, reader->get(), c.step_time, {&metrics});
      ASSERT_TRUE(simulation.ok()) << simulation.status();
      ASSERT_TRUE((*simulation)->Run().ok());
      pb::Report report;
      metrics.Fill((*simulation)->result(), &report);
      json[exact_steps] = *ToJson(report);
    }
    EXPECT_EQ(json[0], json[1]) << c.trace << " at " << c.block_size;
  }
}

}  // namespace
}  // namespace kvblocks::sim
