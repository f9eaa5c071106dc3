// Measurement: what a real server did with each request of a run, from the files that load
// generators and servers write. One struct for all of them, so that comparing, calibrating and
// replaying as a workload begin with the same numbers.
//
//   absl::StatusOr<Measurement> measured = ReadMeasurement("profile_export.jsonl", {});
//   for (const MeasuredRequest& r : measured->requests) Use(r.start_ns, r.ttft_ns, r.latency_ns);
//
// Files, recognised by their first record:
//   aiperf-profile  AIPerf's profile_export.jsonl, one request per line
//   vllm-bench    the result of `vllm bench serve --save-detailed`: one JSON object per line, with
//                 one array per quantity (start_times may be missing, as in older versions)
//   request-log   one request per line: request_id, input_toks, output_toks, arrival_time (Unix
//                 seconds), queued_ts, scheduled_ts, first_token_ts, last_token_ts (seconds of one
//                 monotonic clock); times to tokens count from queued_ts
//   otel-genai    OpenTelemetry: one export request of OTLP/JSON per line. Spans with
//                 gen_ai.usage.input_tokens and gen_ai.usage.output_tokens are requests, and
//                 gen_ai.conversation.id is their session; the latency is the span's. Other spans
//                 are ignored
//
// Always: times are whole nanoseconds, rounded to the nearest, because the clocks that wrote them
// were floating point; nothing measured is negative; -1 (an empty list for gaps) means that the
// file does not say. `requests` has the order of the file. Requests that failed are there, with
// their error and whatever was measured; AIPerf's warm-up requests are counted and left out.
//
// Names: ttft is from the request's start to its first output token, latency to its last one. The
// time per output token is (latency - ttft) / (output - 1), one figure per request; AIPerf calls it
// inter-token latency. ITL here is one figure per gap between two tokens (or chunks).

#ifndef KVBLOCKS_SIM_TRACE_MEASUREMENT_H_
#define KVBLOCKS_SIM_TRACE_MEASUREMENT_H_

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "sim/trace/trace_reader.h"

namespace kvblocks::sim {

struct MeasuredRequest {
  int64_t row = 0;      // position in the file, from 0
  int64_t line = 0;     // physical line, from 1
  std::string id;       // empty if the file gives none
  std::string session;  // conversation; empty: none
  int64_t turn = -1;    // in the conversation, from 0

  // When the client sent it. Unix times count from midnight (UTC) of the day of the first request;
  // other clocks as the file says.
  int64_t start_ns = -1;
  int64_t input_length = 0;   // tokens
  int64_t output_length = 0;  // tokens

  int64_t queue_ns = -1;        // from start to when it was scheduled first
  int64_t ttft_ns = -1;         // from start to the first output token
  int64_t latency_ns = -1;      // from start to the last output token
  int64_t tpot_ns = -1;         // time per output token; -1 also for outputs of one token
  std::vector<int64_t> itl_ns;  // gaps between output tokens, in order

  std::string error;  // empty: it succeeded

  bool failed() const { return !error.empty(); }
};

struct Measurement {
  std::string file;
  std::string format;   // "aiperf-profile", "vllm-bench", "request-log" or "otel-genai"
  std::string day_one;  // "2026-11-22" where times count from a day, else empty
  std::vector<MeasuredRequest> requests;
  int64_t num_failed = 0;
  int64_t num_warmup = 0;  // left out
};

// Reads a whole file, compressed or not; "-" is standard input. Of `options` only the format (auto,
// or one of the above), max_errors, skip_bad_rows and the limits on lines and windows count. Bad
// rows are errors of the form that OpenTrace gives. A file without a successful request is an
// error.
//
// As a trace (OpenTrace) such a file is a workload of lengths: arrivals are the starts, outputs the
// lengths that were made. Requests that failed are left out and counted as not selected; a file
// without starts has all requests arrive at 0.
absl::StatusOr<Measurement> ReadMeasurement(const std::string& path,
                                            const TraceReaderOptions& options);
// The same for content in memory; `name` stands for the file in messages.
absl::StatusOr<Measurement> ReadMeasurementString(std::string content, const std::string& name,
                                                  const TraceReaderOptions& options);

}  // namespace kvblocks::sim

#endif  // KVBLOCKS_SIM_TRACE_MEASUREMENT_H_
