#include "sim/report/server_metrics.h"

#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_replace.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "sim/report/open_metrics.h"
#include "sim/testing/measured_replay.h"
#include "sim/testing/output_readers.h"

namespace kvblocks::sim {
namespace {

namespace pb = ::kvblocks::report::v1;

using testing::HasSubstr;

struct Served {
  std::string text;
  OpenMetrics metrics;
  pb::Report report;
};

Served Serve(Replay& replay, ServerMetrics::Options options = {}, bool is_legacy = false) {
  options.model = "m";
  options.max_model_len = 100'000;
  options.count_attempts = is_legacy;
  ServerMetrics server(std::move(options));
  ReplayMetricsOptions measured;
  measured.hit_rates.legacy_counters = is_legacy;
  measured.latency.sink = &server;
  measured.rows = &server;
  measured.admissions = &server;
  ReplayMetrics metrics(measured);
  replay.is_watching = false;
  replay.further_observers = {&metrics, &server};
  EXPECT_TRUE(replay.Run().ok());
  Served out;
  out.text = server.Text();
  out.metrics = ReadOpenMetrics(out.text);
  EXPECT_EQ(out.metrics.error, "");
  metrics.Fill(replay.result, &out.report);
  return out;
}

// Preemptions, hits and evictions.
void FillBusy(Replay& replay) {
  replay.config.scheduler.async = true;
  replay.config.scheduler.max_num_batched_tokens = 16;
  replay.config.scheduler.reserve_full_isl = false;
  replay.config.kv_cache.num_blocks = 16;
  for (int i = 0; i < 30; ++i) {
    const int64_t prompt = 6 + i % 7;
    replay.Add({.id = absl::StrCat(i),
                .prompt = prompt,
                .output = 1 + (11 * i) % 17,
                .at = 1.0 * i,
                .content = Content(5, 100 * (i % 3), prompt)});
  }
}

TEST(ServerMetricsTest, SumsAreThoseOfTheReport) {
  Replay replay;
  FillBusy(replay);
  const Served served = Serve(replay);
  const OpenMetrics& m = served.metrics;
  const pb::Report& r = served.report;
  ASSERT_GT(r.preemption().preemptions(), 0);
  ASSERT_GT(r.counters().hit_tokens(), 0);
  EXPECT_EQ(m.Value("vllm:num_preemptions_total"), r.preemption().preemptions());
  EXPECT_EQ(m.Value("vllm:prefix_cache_queries_total"), r.counters().queried_tokens());
  EXPECT_EQ(m.Value("vllm:prefix_cache_hits_total"), r.counters().hit_tokens());
  EXPECT_EQ(m.Value("kvsim_resume_prefix_cache_queries_total"),
            r.counters().resume_queried_tokens());
  EXPECT_EQ(m.Value("kvsim_resume_prefix_cache_hits_total"), r.counters().resume_hit_tokens());
  EXPECT_EQ(m.Value("vllm:prompt_tokens_total"), r.workload().input_tokens());
  EXPECT_EQ(m.Value("vllm:prompt_tokens_cached_total"), r.prompt_tokens().hit());
  EXPECT_EQ(m.Value("vllm:prompt_tokens_by_source_total", "local_compute") +
                m.Value("vllm:prompt_tokens_by_source_total", "local_cache_hit"),
            m.Value("vllm:prompt_tokens_total"));
  EXPECT_EQ(m.Value("vllm:generation_tokens_total"), r.totals().output_tokens());
  EXPECT_EQ(m.Value("vllm:request_success_total", "finished_reason=\"length\""),
            r.totals().requests_finished());
  EXPECT_EQ(m.Value("kvsim_steps_total"), r.totals().steps());
  EXPECT_EQ(m.Value("kvsim_computed_tokens_total", "prefill") +
                m.Value("kvsim_computed_tokens_total", "decode"),
            r.totals().computed_tokens());
  EXPECT_EQ(m.Value("kvsim_evictions_total"), r.pool().evictions());
  for (const pb::MissCause& cause : r.first_admission_misses().causes()) {
    EXPECT_EQ(m.Value("kvsim_missed_blocks_total", absl::StrCat("\"", cause.cause(), "\"")),
              cause.blocks());
  }
  EXPECT_EQ(m.Value("kvsim_step_tokens_sum"), r.totals().computed_tokens());
  EXPECT_EQ(m.Value("vllm:iteration_tokens_total_count"), r.totals().steps());
  EXPECT_EQ(m.Value("vllm:iteration_tokens_total_sum"),
            r.workload().input_tokens() - r.prompt_tokens().hit() + r.totals().output_tokens());
  EXPECT_EQ(m.Value("vllm:request_num_preemptions_sum"), r.preemption().preemptions());
  EXPECT_EQ(m.Value("vllm:request_params_n_sum"), r.totals().requests_finished());
  EXPECT_EQ(m.Value("vllm:request_params_max_tokens_sum"), r.totals().output_tokens());
  EXPECT_EQ(m.Value("vllm:request_max_num_generation_tokens_sum"), r.totals().output_tokens());
  EXPECT_EQ(m.Value("vllm:prompt_tokens_cached_by_source_total", "device"),
            r.counters().hit_tokens());
  EXPECT_EQ(m.Value("vllm:request_generation_tokens_sum"), r.totals().output_tokens());
  EXPECT_EQ(m.Value("vllm:request_prompt_tokens_sum"), r.workload().input_tokens());
  EXPECT_EQ(m.Value("vllm:request_prefill_kv_computed_tokens_sum"),
            r.workload().input_tokens() - r.prompt_tokens().hit());
  const struct {
    const char* name;
    const pb::Distribution& distribution;
  } latencies[] = {{"vllm:time_to_first_token_seconds", r.latency().ttft()},
                   {"vllm:inter_token_latency_seconds", r.latency().itl()},
                   {"vllm:e2e_request_latency_seconds", r.latency().e2e()},
                   {"vllm:request_queue_time_seconds", r.latency().queueing()},
                   {"vllm:request_prefill_time_seconds", r.latency().prefill()}};
  for (const auto& [name, distribution] : latencies) {
    const auto count = static_cast<double>(distribution.count());
    EXPECT_EQ(m.Value(absl::StrCat(name, "_count")), count) << name;
    EXPECT_NEAR(m.Value(absl::StrCat(name, "_sum")), distribution.mean_ms() * count / 1e3, 1e-6)
        << name;
  }
  // One of one token has no TPOT in the report, and 0 here.
  EXPECT_NEAR(m.Value("vllm:request_time_per_output_token_seconds_sum"),
              r.latency().tpot().mean_ms() * static_cast<double>(r.latency().tpot().count()) / 1e3,
              1e-6);
  EXPECT_EQ(m.Value("vllm:request_time_per_output_token_seconds_count"),
            r.totals().requests_finished());
  EXPECT_EQ(m.Value("vllm:request_inference_time_seconds_sum"),
            m.Value("vllm:request_prefill_time_seconds_sum") +
                m.Value("vllm:request_decode_time_seconds_sum"));
  EXPECT_EQ(m.Value("vllm:num_requests_running"), 0);
  EXPECT_EQ(m.Value("vllm:num_requests_waiting"), 0);
  EXPECT_EQ(m.Value("vllm:kv_cache_usage_perc"), 0);
}

TEST(ServerMetricsTest, LegacyCountersAreThoseOfTheReport) {
  Replay replay;
  FillBusy(replay);
  replay.config.scheduler.exact_steps = true;
  const Served served = Serve(replay, {}, true);
  EXPECT_EQ(served.metrics.Value("vllm:prefix_cache_queries_total"),
            served.report.counters().queried_tokens());
  EXPECT_EQ(served.metrics.Value("vllm:prefix_cache_hits_total"),
            served.report.counters().hit_tokens());
}

TEST(ServerMetricsTest, BucketsAreVllms) {
  Replay replay;
  replay.Add({.id = "A", .prompt = 7, .output = 3});
  const Served served = Serve(replay);
  // 1 s is inside its bucket.
  EXPECT_THAT(served.text, HasSubstr("vllm:time_to_first_token_seconds_bucket{model_name=\"m\","
                                     "engine=\"0\",le=\"0.75\"} 0\n"));
  EXPECT_THAT(served.text, HasSubstr("vllm:time_to_first_token_seconds_bucket{model_name=\"m\","
                                     "engine=\"0\",le=\"1.0\"} 1\n"));
  EXPECT_THAT(served.text, HasSubstr("vllm:time_to_first_token_seconds_bucket{model_name=\"m\","
                                     "engine=\"0\",le=\"2560.0\"} 1\n"));
  EXPECT_THAT(served.text, HasSubstr("vllm:inter_token_latency_seconds_bucket{model_name=\"m\","
                                     "engine=\"0\",le=\"80.0\"} 2\n"));
  EXPECT_THAT(served.text, HasSubstr("vllm:request_prompt_tokens_bucket{model_name=\"m\","
                                     "engine=\"0\",le=\"100000.0\"} 1\n"));
  EXPECT_EQ(served.metrics.Value("vllm:inter_token_latency_seconds_sum"), 2);
  EXPECT_EQ(served.metrics.types.at("vllm:iteration_tokens_total"), "histogram");
}

TEST(ServerMetricsTest, AcceptedDraftsAreCountedByPosition) {
  Replay replay;
  replay.config.scheduler.num_draft_tokens = 3;
  replay.config.scheduler.acceptance.fixed = 2;
  replay.Add({.id = "A", .prompt = 4, .output = 30});
  const OpenMetrics m = Serve(replay, {.num_draft_tokens = 3}).metrics;
  const std::string name = "vllm:spec_decode_num_accepted_tokens_per_pos_total";
  EXPECT_GT(m.Value(name, "position=\"1\""), 0);
  EXPECT_EQ(m.Value(name, "position=\"2\""), 0);
  EXPECT_EQ(m.Value(name, "position=\"0\"") + m.Value(name, "position=\"1\""),
            m.Value("vllm:spec_decode_num_accepted_tokens_total"));
}

TEST(ServerMetricsTest, RequestsThatEndOtherwiseAreCountedByReason) {
  Replay replay;
  replay.config.scheduler.max_num_seqs = 1;
  replay.Add({.id = "big", .prompt = 100'001, .output = 1});
  replay.Add({.id = "A", .prompt = 4, .output = 50, .abort_after = 5});
  replay.Add({.id = "B", .prompt = 4, .output = 50, .abort_after = 3});
  const Served served = Serve(replay);
  EXPECT_EQ(served.metrics.Value("kvsim_rejections_total"), 1);
  EXPECT_EQ(served.metrics.Value("vllm:request_success_total", "\"abort\""), 2);
  EXPECT_EQ(served.metrics.Value("vllm:request_success_total", "\"length\""), 0);
  EXPECT_EQ(served.metrics.Value("vllm:time_to_first_token_seconds_count"), 1) << "A's";
  EXPECT_EQ(served.metrics.Value("vllm:e2e_request_latency_seconds_count"), 0);
  EXPECT_EQ(served.metrics.Value("vllm:num_requests_waiting"), 0);
}

TEST(ServerMetricsTest, ATickMakesAHistory) {
  Replay replay;
  replay.Add({.id = "A", .prompt = 4, .output = 6});
  const Served served = Serve(replay, {.tick = 2 * kSecond, .epoch_seconds = 1'000});
  const auto& tokens =
      served.metrics.samples.at("vllm:generation_tokens_total{engine=\"0\",model_name=\"m\"}");
  // As a scrape right before the events of that time sees it; the end once.
  const std::vector<std::pair<double, double>> expected = {
      {1000, 0}, {1002, 1}, {1004, 3}, {1006, 6}};
  EXPECT_EQ(tokens, expected);
  const auto& running =
      served.metrics.samples.at("vllm:num_requests_running{engine=\"0\",model_name=\"m\"}");
  EXPECT_EQ(running[1].second, 1);
  EXPECT_EQ(running[3].second, 0);
}

TEST(ServerMetricsTest, LongHistoriesGetCoarserAndLoseNothing) {
  Replay replay;
  replay.Add({.id = "A", .prompt = 4, .output = 60});
  const Served served = Serve(replay, {.tick = kSecond, .max_points = 20});
  const auto& tokens =
      served.metrics.samples.at("vllm:generation_tokens_total{engine=\"0\",model_name=\"m\"}");
  EXPECT_LE(tokens.size(), 20u);
  EXPECT_GE(tokens.size(), 10u);
  EXPECT_EQ(tokens.back(), (std::pair<double, double>(60, 60)));
  EXPECT_EQ(tokens[1], (std::pair<double, double>(4, 3)));
}

TEST(ServerMetricsTest, LabelsAreEscaped) {
  Replay replay;
  replay.Add({.id = "A", .prompt = 4, .output = 1});
  const Served served = Serve(replay, {.cache_config = {{"cache_dtype", "a\"b\\c\nd"}}});
  EXPECT_THAT(served.text, HasSubstr("cache_dtype=\"a\\\"b\\\\c\\nd\""));
}

TEST(OpenMetricsTest, BoundsAreWrittenAsClientsDo) {
  EXPECT_EQ(BucketBound(0.001), "0.001");
  EXPECT_EQ(BucketBound(1), "1.0");
  EXPECT_EQ(BucketBound(16384), "16384.0");
  EXPECT_EQ(BucketBound(500000), "500000.0");
  EXPECT_EQ(BucketBound(1e6), "1e+06");
  EXPECT_EQ(BucketBound(5e6), "5e+06");
}

// The reader refuses what a scraper would.
TEST(OpenMetricsTest, EnginesShareTheirFamilies) {
  const auto text_of = [](ServerMetrics::Options options) {
    Replay replay;
    replay.Add({.id = "A", .prompt = 4, .output = 2});
    return Serve(replay, std::move(options)).text;
  };
  const std::string first = text_of({.engine = "0"});
  const std::string second = text_of({.engine = "1", .num_draft_tokens = 2});
  EXPECT_EQ(MergeOpenMetrics({first}), first);
  const std::string both = MergeOpenMetrics({first, second});
  EXPECT_EQ(ReadOpenMetrics(both).error, "");
  EXPECT_THAT(both, HasSubstr("vllm:num_preemptions_total{model_name=\"m\",engine=\"0\"} 0\n"
                              "vllm:num_preemptions_total{model_name=\"m\",engine=\"1\"} 0\n"));
  EXPECT_THAT(both, HasSubstr("accepted_tokens_per_pos")) << "a family that only the second has";
}

TEST(OpenMetricsTest, TheReaderIsStrict) {
  Replay replay;
  replay.Add({.id = "A", .prompt = 4, .output = 2});
  const std::string text = Serve(replay, {.tick = kSecond}).text;
  const auto error = [&](const std::string& from, const std::string& to) {
    const std::string broken = absl::StrReplaceAll(text, {{from, to}});
    EXPECT_NE(broken, text) << from;
    return ReadOpenMetrics(broken).error;
  };
  EXPECT_THAT(error("# EOF\n", ""), HasSubstr("no end mark"));
  EXPECT_THAT(error("le=\"+Inf\"", "le=\"1e+09\""), HasSubstr("+Inf"));
  EXPECT_THAT(error("le=\"1.0\"", "le=\"1\""), HasSubstr("bad le"));
  EXPECT_THAT(error("kvsim_steps_total{", "kvsim_steps{"), HasSubstr("suffix"));
  EXPECT_THAT(error("# TYPE kvsim_evictions counter", "# TYPE kvsim_steps counter"),
              HasSubstr("a family twice"));
  EXPECT_THAT(error("} 1 1.000\n", "} 1 0.000\n"), HasSubstr("times do not rise"));
  EXPECT_THAT(error("engine=\"0\"", "engine=0"), HasSubstr("label"));
}

}  // namespace
}  // namespace kvblocks::sim
