#include "sim/trace/measurement.h"

#include <cstdlib>
#include <string>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "sim/testing/trace_testing.h"

namespace kvblocks::sim {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;
using testing::IsEmpty;

constexpr const char* kMeasurements = "sim/trace/testdata/formats/";

Measurement Measured(const std::string& file) {
  auto measured = ReadMeasurement(kMeasurements + file, {});
  EXPECT_TRUE(measured.ok()) << measured.status();
  return measured.ok() ? *measured : Measurement();
}

std::string MeasurementError(const std::string& content) {
  return std::string(ReadMeasurementString(content, "m", {}).status().message());
}

TEST(MeasurementTest, AiperfTimesHaveUnitsAndCountFromTheFirstDay) {
  const Measurement m = Measured("aiperf_profile.jsonl");
  EXPECT_EQ(m.format, "aiperf-profile");
  EXPECT_EQ(m.day_one, "2025-10-09");
  EXPECT_EQ(m.num_warmup, 1);
  EXPECT_EQ(m.num_failed, 1);
  ASSERT_EQ(m.requests.size(), 3u);
  const MeasuredRequest& first = m.requests[0];
  EXPECT_EQ(first.line, 2);
  EXPECT_EQ(first.session, "c1");
  EXPECT_EQ(first.turn, 0);
  EXPECT_EQ(first.start_ns, (8 * 3600 + 53 * 60 + 21) * 1000 * kMs);
  EXPECT_EQ(first.input_length, 512);
  EXPECT_EQ(first.output_length, 8);
  EXPECT_EQ(first.ttft_ns, 200250000);
  EXPECT_EQ(first.latency_ns, 900250000);
  EXPECT_EQ(first.tpot_ns, 100 * kMs) << "as the file says";
  EXPECT_THAT(first.itl_ns, ElementsAre(99500000, 100500000));
  EXPECT_EQ(first.queue_ns, -1);
  EXPECT_EQ(m.requests[1].error, "ServerError: busy");
  const MeasuredRequest& last = m.requests[2];
  EXPECT_EQ(last.latency_ns, 700 * kMs);
  EXPECT_EQ(last.ttft_ns, 50 * kMs);
  EXPECT_EQ(last.tpot_ns, 50 * kMs) << "650 ms over 13 gaps";
  EXPECT_THAT(last.itl_ns, IsEmpty());
}

TEST(MeasurementTest, VllmBenchLatencyIsTheSumOfItsParts) {
  const Measurement m = Measured("vllm_bench.json");
  EXPECT_EQ(m.format, "vllm-bench");
  EXPECT_EQ(m.day_one, "");
  ASSERT_EQ(m.requests.size(), 3u);
  EXPECT_EQ(m.requests[0].start_ns, 27536500 * kMs);
  EXPECT_EQ(m.requests[0].ttft_ns, 250 * kMs);
  EXPECT_THAT(m.requests[0].itl_ns, ElementsAre(10 * kMs, 20 * kMs));
  EXPECT_EQ(m.requests[0].latency_ns, 280 * kMs);
  EXPECT_EQ(m.requests[0].tpot_ns, 15 * kMs);
  EXPECT_EQ(m.requests[1].start_ns, 27537000 * kMs) << "rounded to 1 ns";
  EXPECT_THAT(m.requests[1].itl_ns, ElementsAre(30 * kMs));
  EXPECT_EQ(m.requests[2].error, "timeout");
  EXPECT_EQ(m.requests[2].ttft_ns, -1) << "what a failed request did is not measured";
}

TEST(MeasurementTest, RequestLogsCountFromTheQueue) {
  const Measurement m = Measured("request_log.jsonl");
  EXPECT_EQ(m.format, "request-log");
  ASSERT_EQ(m.requests.size(), 2u);
  EXPECT_EQ(m.requests[0].id, "bench-0");
  EXPECT_EQ(m.requests[0].queue_ns, 250000);
  EXPECT_EQ(m.requests[0].ttft_ns, 500 * kMs);
  EXPECT_EQ(m.requests[0].latency_ns, 1500 * kMs);
  EXPECT_EQ(m.requests[0].tpot_ns, 100 * kMs);
  EXPECT_EQ(m.requests[1].tpot_ns, -1) << "one token has no gap";
}

TEST(MeasurementTest, SpansOfOpenTelemetryHaveAStartAndALatency) {
  const Measurement m = Measured("otel_genai.jsonl");
  EXPECT_EQ(m.format, "otel-genai");
  EXPECT_EQ(m.num_failed, 1);
  ASSERT_EQ(m.requests.size(), 3u) << "a span of something else is none";
  EXPECT_EQ(m.requests[0].id, "0a");
  EXPECT_EQ(m.requests[0].session, "a");
  EXPECT_EQ(m.requests[0].input_length, 512);
  EXPECT_EQ(m.requests[0].output_length, 64);
  EXPECT_EQ(m.requests[0].latency_ns, 900 * kMs);
  EXPECT_EQ(m.requests[0].ttft_ns, -1);
  EXPECT_EQ(m.requests[1].start_ns - m.requests[0].start_ns, 1000 * kMs);
  EXPECT_EQ(m.requests[2].error, "overloaded");
  const auto span = [](const std::string& rest) {
    return MeasurementError(R"({"resourceSpans": [{"scopeSpans": [{"spans": [{)" + rest +
                            R"("attributes": [{"key": "gen_ai.usage.input_tokens", )"
                            R"("value": {"intValue": "-5"}}]}]}]}]})");
  };
  EXPECT_THAT(span(""), HasSubstr("span 0: gen_ai.usage.input_tokens: got \"-5\""));
  EXPECT_THAT(span(""), HasSubstr("span 0: field startTimeUnixNano: got nothing"));
  EXPECT_THAT(span(R"("startTimeUnixNano": "1e30", )"),
              HasSubstr("span 0: startTimeUnixNano: got \"1e30\""));
  EXPECT_THAT(MeasurementError(R"({"resourceSpans": 5})"),
              HasSubstr("m:1: error: resourceSpans: got 5, expected a list"));
}

TEST(MeasurementTest, AsAWorkloadItHasStartsAndLengthsOfWhatSucceeded) {
  const auto reader = MustOpen(std::string(kMeasurements) + "vllm_bench.json");
  const std::vector<TraceRequest> requests = MustRead(*reader);
  ASSERT_EQ(requests.size(), 2u);
  EXPECT_EQ(requests[1].arrival_ns, 27537000 * kMs);
  EXPECT_EQ(requests[1].output_length, 2);
  EXPECT_EQ(reader->counters().not_selected, 1);
  EXPECT_EQ(reader->dialect(), "lengths of a measurement, 1 failed requests left out");
  // Without starts all are there from the beginning.
  const std::vector<TraceRequest> old = MustRead(R"({"input_lens": [5, 6], "output_lens": [1, 2]})");
  EXPECT_EQ(old[1].arrival_ns, 0);
}

TEST(MeasurementTest, BadFilesSayWhatIsWrong) {
  ExpectRefusals(
      MeasurementError,
      {{R"({"input_lens": [1], "output_lens": [1, 2]})",
        "m:1: error: output_lens: got 2 values, expected 1 as in input_lens"},
       {R"({"input_lens": [1], "output_lens": [1], "itls": [[-1]]})",
        "itls: got \"-1\", expected a number that is not negative"},
       {R"({"completed": 1, "total_input_tokens": 1})", "--save-detailed"},
       {R"({"input_lens": [3000000000], "output_lens": [1]})", "input_lens: got 3000000000"},
       {R"({"input_lens": [1], "output_lens": [1], "errors": ["x"]})",
        "got 1 failed and 0 warm-up requests, expected one that succeeded"},
       {R"({"metadata": {"request_start_ns": 1}, "metrics": {}})",
        "field metrics.input_sequence_length.value: got nothing"},
       {R"({"metadata": {}, "metrics": {"request_latency": {"value": 1, "unit": "weeks"}}})",
        "metrics.request_latency.unit: got \"weeks\", expected ns, us, ms, s or sec"},
       {R"({"input_toks": 1, "output_toks": 1, "arrival_time": 1, "queued_ts": 5,)"
        R"( "first_token_ts": 4, "last_token_ts": 6})",
        "first_token_ts: got 4000000000 ns, expected at least 5000000000 ns"},
       {"num_prefill_tokens,num_decode_tokens\n1,1\n",
        "got a file of the format vidur, expected aiperf-profile"}});
  // A sum of gaps beyond 64 bits is no crash.
  EXPECT_EQ(MeasurementError(R"({"input_lens": [1], "output_lens": [3], "ttfts": [1], )"
                             R"("itls": [[9223372036, 9223372036]]})"),
            "");
}

TEST(MeasurementTest, PublishedRunsHaveTheFiguresOfTheirReports) {
  const char* shared = std::getenv("KVBLOCKS_SHARED");
  if (shared == nullptr) GTEST_SKIP() << "set KVBLOCKS_SHARED to the folder that holds traces/";
  struct {
    const char* run;
    double ttft_ms, tpot_ms, latency_ms;
  } const runs[] = {{"RTX4090_Llama-3.1-8B", 65457, 32.45, 86578},
                    {"RTXPRO6000_Llama-3.1-8B", 7097, 32.46, 28201}};
  for (const auto& run : runs) {
    auto m = ReadMeasurement(
        std::string(shared) + "/traces/vllm-measured/" + run.run + "/requests.jsonl", {});
    ASSERT_TRUE(m.ok()) << m.status();
    ASSERT_EQ(m->requests.size(), 300u);
    double ttft = 0, tpot = 0, latency = 0;
    for (const MeasuredRequest& r : m->requests) {
      ttft += static_cast<double>(r.ttft_ns) / 300e6;
      tpot += static_cast<double>(r.tpot_ns) / 300e6;
      latency += static_cast<double>(r.latency_ns) / 300e6;
    }
    EXPECT_NEAR(ttft, run.ttft_ms, 1);
    EXPECT_NEAR(tpot, run.tpot_ms, 0.01);
    EXPECT_NEAR(latency, run.latency_ms, 1);
  }
}

}  // namespace
}  // namespace kvblocks::sim
