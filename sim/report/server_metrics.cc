#include "sim/report/server_metrics.h"

#include <algorithm>
#include <cmath>
#include <functional>
#include <utility>

#include "absl/strings/str_cat.h"
#include "sim/report/metric_list.h"
#include "sim/report/open_metrics.h"
#include "sim/report/pool_metrics.h"
#include "sim/trace/decimal.h"

namespace kvblocks::sim {
namespace {

// The buckets of vLLM 0.19 to 0.33, in seconds.
constexpr double kFirstTokenBounds[] = {0.001, 0.005, 0.01, 0.02, 0.04, 0.06, 0.08, 0.1,
                                        0.25,  0.5,   0.75, 1,    2.5,  5,    7.5,  10,
                                        20,    40,    80,   160,  640,  2560};
constexpr double kTokenBounds[] = {0.01, 0.025, 0.05, 0.075, 0.1, 0.15, 0.2, 0.3, 0.4, 0.5,
                                   0.75, 1,     2.5,  5,     7.5, 10,   20,  40,  80};
constexpr double kRequestBounds[] = {0.3, 0.5, 0.8, 1,  1.5, 2,  2.5, 5,   10,  15,  20,
                                     30,  40,  50,  60, 120, 240, 480, 960, 1920, 7680};
constexpr double kStepBounds[] = {1,   8,   16,   32,   64,   128,  256,
                                  512, 1024, 2048, 4096, 8192, 16384};
constexpr double kAnswerBounds[] = {1, 2, 5, 10, 20};
constexpr double kPreemptionBounds[] = {1, 2, 3, 4, 5, 10, 20};

// 1, 2, 5, 10, ... up to the longest sequence.
std::vector<double> LengthBounds(int64_t max_model_len) {
  std::vector<double> bounds;
  const auto most = static_cast<double>(max_model_len);
  for (double power = 1; power <= most; power *= 10) {
    for (const double digit : {1.0, 2.0, 5.0}) {
      if (digit * power <= most) bounds.push_back(digit * power);
    }
  }
  return bounds;
}

}  // namespace

// In the order of Histogram.
const std::array<ServerMetrics::HistogramName, ServerMetrics::kNumHistograms>
    ServerMetrics::kHistograms = {{
        {"vllm:time_to_first_token_seconds", "Time to first token.", kFirstTokenBounds},
        {"vllm:inter_token_latency_seconds", "Gaps between a request's tokens.", kTokenBounds},
        {"vllm:request_time_per_output_token_seconds",
         "Mean gap of a finished request; 0 of one token.", kTokenBounds},
        {"vllm:e2e_request_latency_seconds", "Arrival to last token.", kRequestBounds},
        {"vllm:request_queue_time_seconds", "Arrival to first scheduling.", kRequestBounds},
        {"vllm:request_inference_time_seconds", "First scheduling to last token.", kRequestBounds},
        {"vllm:request_prefill_time_seconds", "First scheduling to first token.", kRequestBounds},
        {"vllm:request_decode_time_seconds", "First token to last token.", kRequestBounds},
        {"vllm:request_prefill_kv_computed_tokens",
         "Prompt tokens of a finished request that were computed, not hit.", {}},
        {"vllm:request_prompt_tokens", "Prompt tokens of a finished request.", {}},
        {"vllm:request_generation_tokens", "Output tokens of a finished request.", {}},
        {"vllm:request_max_num_generation_tokens",
         "Output tokens of the longest answer of a finished request.", {}},
        {"vllm:request_params_n", "Answers that a finished request asked for.", kAnswerBounds},
        {"vllm:request_params_max_tokens",
         "The most output tokens that a finished request might have had.", {}},
        {"vllm:request_num_preemptions", "Preemptions of a finished request.", kPreemptionBounds},
        {"vllm:iteration_tokens_total",
         "Per step: what was not hit of the prompts whose first token came, and output tokens.",
         kStepBounds},
        {"kvsim_step_tokens", "Tokens computed per step.", kStepBounds},
    }};

ServerMetrics::ServerMetrics(Options options)
    : options_(std::move(options)), tick_(options_.tick), next_tick_(0) {
  for (size_t h = 0; h < kNumHistograms; ++h) {
    const HistogramName& row = kHistograms[h];
    Buckets& buckets = buckets_[h];
    buckets.bounds = row.bounds.empty() ? LengthBounds(options_.max_model_len)
                                        : std::vector<double>(row.bounds.begin(), row.bounds.end());
    const double scale = row.is_time() ? static_cast<double>(kSecond) : 1;
    for (const double b : buckets.bounds) buckets.limits.push_back(std::llround(b * scale));
    state_.histograms[h].counts.assign(buckets.limits.size() + 1, 0);
  }
  state_.accepted_drafts.assign(static_cast<size_t>(options_.num_draft_tokens), 0);
}

void ServerMetrics::Observe(Histogram histogram, int64_t value, int64_t count) {
  const std::vector<int64_t>& limits = buckets_[histogram].limits;
  HistogramState& state = state_.histograms[histogram];
  const auto it = std::ranges::lower_bound(limits, value);
  state.counts[static_cast<size_t>(it - limits.begin())] += count;
  state.count += count;
  state.sum += static_cast<__int128>(value) * count;
}

void ServerMetrics::Advance(SimTime now) {
  if (options_.tick > 0) {
    while (next_tick_ <= now) {
      state_.time = next_tick_;
      points_.push_back(state_);
      if (points_.size() >= options_.max_points) {
        for (size_t i = 2; i < points_.size(); i += 2) points_[i / 2] = std::move(points_[i]);
        points_.resize((points_.size() + 1) / 2);
        tick_ = 2 * std::min(tick_, kMaxSimTime / 2);
        next_tick_ = points_.back().time;
      }
      next_tick_ = CheckedAdd(next_tick_, tick_).value_or(INT64_MAX);
    }
  }
  state_.time = std::max(state_.time, now);
}

void ServerMetrics::ReadPool() {
  const PoolBlocks blocks = CountPoolBlocks(manager_->pool());
  state_.gauges[kUsed] = blocks.referenced;
  state_.gauges[kCached] = blocks.resident - blocks.referenced;
  state_.gauges[kFree] = blocks.usable - blocks.resident;
  state_.counters[kEvictions] = manager_->pool().num_evictions();
}

// --- Events ---

void ServerMetrics::OnRunStart(const RunInfo& info) {
  manager_ = info.manager;
  usable_blocks_ = CountPoolBlocks(manager_->pool()).usable;
  ReadPool();
}

void ServerMetrics::OnArrival(const SimRequest&, SimTime now) {
  Advance(now);
  ++state_.gauges[kWaiting];
}

void ServerMetrics::OnAdmissionAttempt(const AdmissionRecord& record, SimTime now) {
  Advance(now);
  if (!options_.count_attempts) return;
  Count(kQueries, record.num_queried_tokens);
  Count(kHits, record.num_hit_tokens);
}

void ServerMetrics::OnAdmission(const AdmissionRecord& record, SimTime now) {
  Advance(now);
  ++state_.gauges[kRunning];
  --state_.gauges[kWaiting];
  if (options_.count_attempts) return;
  Count(record.is_resume ? kResumeQueries : kQueries, record.num_queried_tokens);
  Count(record.is_resume ? kResumeHits : kHits, record.num_hit_tokens);
  if (record.is_resume || !options_.has_connector) return;
  Count(kExternalQueries, record.num_queried_tokens - record.num_hit_tokens);
  Count(kExternalHits, record.num_external_tokens);
}

void ServerMetrics::OnMisses(const AdmissionRecord& record, const AdmissionMisses& misses,
                             const RequestProgress&, SimTime now) {
  Advance(now);
  if (record.is_resume) return;
  for (size_t i = 0; i < kNumMissReasons; ++i) {
    state_.counters[static_cast<size_t>(kFirstMiss) + i] += misses.blocks[i];
  }
}

void ServerMetrics::OnPreemption(const PreemptionRecord&, SimTime now) {
  Advance(now);
  Count(kPreemptions, 1);
  --state_.gauges[kRunning];
  ++state_.gauges[kWaiting];
}

void ServerMetrics::OnStepScheduled(const StepRecord& step) {
  Advance(step.start);
  ReadPool();
}

void ServerMetrics::OnFirstToken(const SimRequest& request, const RequestProgress& progress,
                                 SimTime ttft, SimTime now) {
  Advance(now);
  Observe(kTtft, ttft);
  Count(kPromptTokens, request.num_prompt);
  // What came first was known from the beginning, so hits lie in the prompt.
  const int64_t hits = std::min(progress.num_hit_tokens, request.num_prompt);
  const int64_t external = std::min(progress.num_external_tokens, request.num_prompt - hits);
  Count(kPromptTokensCached, hits + external);
  Count(kPromptTokensExternal, external);
}

void ServerMetrics::OnGaps(SimTime gap, int64_t count, SimTime now) {
  Advance(now);
  Observe(kItl, gap, count);
}

void ServerMetrics::OnStepFinished(const StepRecord& step) {
  Advance(step.end);
  int64_t emitted = step.num_skipped;
  for (size_t i = 0; i < step.outputs.size(); ++i) {
    const ScheduledRecord& record = step.scheduled[i];
    const OutputRecord& output = step.outputs[i];
    emitted += output.num_emitted;
    if (record.num_verified_drafts == 0) continue;
    Count(kDrafts, record.is_padded ? 0 : 1);
    Count(kDraftTokens, record.num_verified_drafts);
    Count(kAcceptedTokens, output.num_accepted_drafts);
    const auto accepted = static_cast<size_t>(output.num_accepted_drafts);
    for (size_t d = 0; d < std::min(accepted, state_.accepted_drafts.size()); ++d) {
      ++state_.accepted_drafts[d];
    }
  }
  Count(kGenerationTokens, emitted);
  Count(kSteps, 1);
  // In a pipeline steps run side by side.
  Count(kBusyPicoseconds, step.end - std::max(step.device_start, device_until_));
  device_until_ = step.end;
  Count(kPrefillTokens, step.num_prefill_tokens);
  Count(kDecodeTokens, step.num_decode_tokens);
  const int64_t prompts = state_.counters[kPromptTokens] - state_.counters[kPromptTokensCached] -
                          computed_prompts_at_last_step_;
  computed_prompts_at_last_step_ += prompts;
  Observe(kIterationTokens, prompts + emitted);
  Observe(kStepTokens, step.num_tokens);
  ReadPool();
}

void ServerMetrics::OnRow(const RequestRow& row) {
  if (row.progress == nullptr) return;  // never reached the server
  Advance(row.end);
  const SimRequest& request = *row.request;
  --state_.gauges[row.progress->is_running ? kRunning : kWaiting];
  const FinishReason reason = request.finish_reason;
  const Counter ended = reason == FinishReason::kRejected ? kRejections
                        : reason == FinishReason::kAbort  ? kAborts
                        : reason == FinishReason::kStop   ? kStops
                        : reason == FinishReason::kLength ? kLengths
                                                          : kErrors;
  Count(ended, 1);
  // No step is to come that reads it.
  if (ended == kAborts || ended == kErrors) ReadPool();
  if ((ended != kStops && ended != kLengths) || !row.latency) return;
  const RequestProgress& progress = *row.progress;
  Observe(kTpot, row.latency->tpot.value_or(0));
  Observe(kE2e, row.latency->e2e);
  Observe(kQueue, row.latency->queueing);
  Observe(kInference, progress.last_output - progress.first_scheduled);
  Observe(kPrefill, row.latency->prefill);
  Observe(kDecode, progress.last_output - progress.first_output);
  Observe(kPrefillKvTokens,
          request.num_prompt - std::min(progress.num_hit_tokens + progress.num_external_tokens,
                                        request.num_prompt));
  Observe(kPromptLength, request.num_prompt);
  Observe(kOutputLength, progress.num_outputs);
  Observe(kRequestPreemptions, request.num_preemptions);
  if (options_.is_told_parameters) return;
  OnMaxTokens(request.max_output, row.end);
  OnAnswers(1, progress.num_outputs, row.end);
}

void ServerMetrics::OnMaxTokens(int64_t max_tokens, SimTime now) {
  Advance(now);
  Observe(kMaxTokens, max_tokens);
}

void ServerMetrics::OnAnswers(int64_t count, int64_t most_tokens, SimTime now) {
  Advance(now);
  Observe(kAnswers, count);
  Observe(kMostOutput, most_tokens);
}

void ServerMetrics::OnRunEnd(SimTime now) { Advance(now); }

// --- The text ---
namespace {

constexpr int kPicosecondExponent = 12;

// Picoseconds as seconds, exact.
std::string ExactSeconds(__int128 picoseconds) {
  const auto whole = static_cast<int64_t>(picoseconds / kSecond);
  const auto rest = static_cast<int64_t>(picoseconds % kSecond);
  // "0.25" without the 0.
  const std::string fraction = FormatScaledDecimal(rest, kPicosecondExponent);
  return absl::StrCat(whole, rest == 0 ? "" : fraction.substr(1));
}

}  // namespace

std::string ServerMetrics::Text() const {
  std::vector<Point> points = points_;
  // Prometheus keeps milliseconds.
  while (!points.empty() && points.back().time / kMillisecond >= state_.time / kMillisecond) {
    points.pop_back();
  }
  points.push_back(state_);
  std::vector<std::string> times(points.size());
  if (options_.tick > 0) {
    for (size_t i = 0; i < points.size(); ++i) {
      times[i] = absl::StrCat(options_.epoch_seconds + points[i].time / kSecond, ".",
                              absl::Dec(points[i].time % kSecond / kMillisecond, absl::kZeroPad3));
    }
  }

  OpenMetricsText text({{"model_name", options_.model}, {"engine", options_.engine}});
  // One series: its value at each point.
  const auto series = [&](const char* suffix, const MetricLabels& labels,
                          const std::function<std::string(const Point&)>& value) {
    for (size_t i = 0; i < points.size(); ++i) {
      text.Sample(suffix, labels, value(points[i]), times[i]);
    }
  };
  // What does not happen here, but has its place on boards.
  const auto none = [&](const char* suffix, const MetricLabels& labels) {
    series(suffix, labels, [](const Point&) { return std::string("0"); });
  };
  const auto gauge = [&](const MetricLabels& labels, Gauge which) {
    series("", labels, [=](const Point& p) { return absl::StrCat(p.gauges[which]); });
  };
  const auto counter = [&](const MetricLabels& labels, int which) {
    series("_total", labels,
           [=](const Point& p) { return absl::StrCat(p.counters[static_cast<size_t>(which)]); });
  };
  const auto counter_family = [&](const char* name, const char* help, int which) {
    text.BeginFamily(name, "counter", "", help);
    counter({}, which);
  };

  text.BeginFamily("vllm:cache_config", "info", "", "What was simulated.");
  series("_info", options_.cache_config, [](const Point&) { return std::string("1"); });
  text.BeginFamily("vllm:num_requests_running", "gauge", "", "Requests running.");
  gauge({}, kRunning);
  text.BeginFamily("vllm:num_requests_waiting", "gauge", "",
                   "Requests waiting, preempted ones included.");
  gauge({}, kWaiting);
  text.BeginFamily("vllm:num_requests_waiting_by_reason", "gauge", "",
                   "Requests waiting, by what they wait for.");
  gauge({{"reason", "capacity"}}, kWaiting);
  none("", {{"reason", "deferred"}});
  text.BeginFamily("vllm:engine_sleep_state", "gauge", "", "Always awake.");
  series("", {{"sleep_state", "awake"}}, [](const Point&) { return std::string("1"); });
  none("", {{"sleep_state", "weights_offloaded"}});
  none("", {{"sleep_state", "discard_all"}});
  text.BeginFamily("vllm:kv_cache_usage_perc", "gauge", "",
                   "Referenced blocks as a share of the usable ones, 0 to 1.");
  series("", {}, [&](const Point& p) {
    return absl::StrCat(usable_blocks_ == 0 ? 0.0
                                            : static_cast<double>(p.gauges[kUsed]) /
                                                  static_cast<double>(usable_blocks_));
  });

  counter_family("vllm:num_preemptions", "Preemptions.", kPreemptions);
  counter_family("vllm:prefix_cache_queries", "Tokens looked up in the prefix cache.", kQueries);
  counter_family("vllm:prefix_cache_hits", "Tokens found in the prefix cache.", kHits);
  counter_family("vllm:external_prefix_cache_queries",
                 "Tokens looked up in tiers behind the device.", kExternalQueries);
  counter_family("vllm:external_prefix_cache_hits", "Tokens found there.", kExternalHits);
  for (const char* name : {"vllm:mm_cache_queries", "vllm:mm_cache_hits"}) {
    text.BeginFamily(name, "counter", "", "None: prompts are text.");
    none("_total", {});
  }
  counter_family("vllm:prompt_tokens", "Prompt tokens of requests whose first token came.",
                 kPromptTokens);
  text.BeginFamily("vllm:prompt_tokens_by_source", "counter", "", "Those, by their source.");
  series("_total", {{"source", "local_compute"}}, [](const Point& p) {
    return absl::StrCat(p.counters[kPromptTokens] - p.counters[kPromptTokensCached]);
  });
  series("_total", {{"source", "local_cache_hit"}}, [](const Point& p) {
    return absl::StrCat(p.counters[kPromptTokensCached] - p.counters[kPromptTokensExternal]);
  });
  counter({{"source", "external_kv_transfer"}}, kPromptTokensExternal);
  counter_family("vllm:prompt_tokens_cached", "Those found in the prefix cache, or behind it.",
                 kPromptTokensCached);
  text.BeginFamily("vllm:prompt_tokens_cached_by_source", "counter", "",
                   "Tokens found at first admissions, by where.");
  counter({{"source", "device"}}, kHits);
  for (const char* source : {"host", "p2p", "disk"}) none("_total", {{"source", source}});
  counter({{"source", "external_unspecified"}}, kExternalHits);
  counter_family("vllm:generation_tokens", "Output tokens.", kGenerationTokens);
  text.BeginFamily("vllm:request_success", "counter", "", "Requests that ended, by reason.");
  counter({{"finished_reason", "stop"}}, kStops);
  counter({{"finished_reason", "length"}}, kLengths);
  counter({{"finished_reason", "abort"}}, kAborts);
  counter({{"finished_reason", "error"}}, kErrors);
  none("_total", {{"finished_reason", "repetition"}});
  text.BeginFamily("vllm:admission_rejections", "counter", "",
                   "None: no queue of an engine has a limit here.");
  none("_total", {{"reason", "max_num_queued_reqs"}});
  none("_total", {{"reason", "max_num_queued_tokens"}});
  counter_family("vllm:spec_decode_num_drafts", "Verifications of drafts.", kDrafts);
  counter_family("vllm:spec_decode_num_draft_tokens", "Drafts verified.", kDraftTokens);
  counter_family("vllm:spec_decode_num_accepted_tokens", "Drafts accepted.", kAcceptedTokens);
  if (options_.num_draft_tokens > 0) {
    text.BeginFamily("vllm:spec_decode_num_accepted_tokens_per_pos", "counter", "",
                     "Drafts accepted, by their position.");
    for (size_t d = 0; d < state_.accepted_drafts.size(); ++d) {
      series("_total", {{"position", absl::StrCat(d)}},
             [d](const Point& p) { return absl::StrCat(p.accepted_drafts[d]); });
    }
  }

  for (size_t h = 0; h < kNumHistograms; ++h) {
    const HistogramName& row = kHistograms[h];
    const std::vector<double>& bounds = buckets_[h].bounds;
    text.BeginFamily(row.name, "histogram", row.is_time() ? "seconds" : "", row.help);
    for (size_t i = 0; i < points.size(); ++i) {
      const HistogramState& state = points[i].histograms[h];
      int64_t seen = 0;
      for (size_t b = 0; b < state.counts.size(); ++b) {
        seen += state.counts[b];
        text.Sample("_bucket", {{"le", b < bounds.size() ? BucketBound(bounds[b]) : "+Inf"}},
                    absl::StrCat(seen), times[i]);
      }
      text.Sample("_count", {}, absl::StrCat(state.count), times[i]);
      text.Sample("_sum", {}, row.is_time() ? ExactSeconds(state.sum) : ExactText(state.sum),
                  times[i]);
    }
  }

  counter_family("kvsim_rejections", "Requests that can never run, and were refused at arrival.",
                 kRejections);
  counter_family("kvsim_steps", "Steps that computed something.", kSteps);
  text.BeginFamily("kvsim_device_busy_seconds", "counter", "seconds", "Time in steps.");
  series("_total", {}, [](const Point& p) { return ExactSeconds(p.counters[kBusyPicoseconds]); });
  text.BeginFamily("kvsim_computed_tokens", "counter", "", "Tokens computed, by kind of request.");
  counter({{"kind", "prefill"}}, kPrefillTokens);
  counter({{"kind", "decode"}}, kDecodeTokens);
  text.BeginFamily("kvsim_blocks", "gauge", "", "Usable blocks by state.");
  gauge({{"state", "used"}}, kUsed);
  gauge({{"state", "cached"}}, kCached);
  gauge({{"state", "free"}}, kFree);
  counter_family("kvsim_evictions", "Cached blocks lost to reuse.", kEvictions);
  counter_family("kvsim_resume_prefix_cache_queries",
                 "Tokens looked up by preempted requests that came back.", kResumeQueries);
  counter_family("kvsim_resume_prefix_cache_hits", "Tokens that they found.", kResumeHits);
  if (!options_.leave_out_misses) {
    text.BeginFamily("kvsim_missed_blocks", "counter", "",
                     "Full blocks of prompts that first admissions missed, by cause.");
    for (const MissReason reason : kClassifiedReasons) {
      counter({{"cause", std::string(MissReasonName(reason))}},
              static_cast<int>(kFirstMiss) + static_cast<int>(reason));
    }
  }
  text.BeginFamily("kvsim_simulated_seconds", "gauge", "seconds", "Simulated time.");
  series("", {}, [](const Point& p) { return ExactSeconds(p.time); });
  return text.Finish();
}

}  // namespace kvblocks::sim
