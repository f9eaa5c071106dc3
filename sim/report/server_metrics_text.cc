// ServerMetrics: the text.

#include <functional>

#include "absl/strings/str_cat.h"
#include "sim/report/metric_list.h"
#include "sim/report/open_metrics.h"
#include "sim/report/server_metrics.h"
#include "sim/trace/decimal.h"

namespace kvblocks::sim {
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
        text.Sample("_bucket",
                    {{"le", b < bounds.size() ? BucketBound(bounds[b]) : "+Inf"}},
                    absl::StrCat(seen), times[i]);
      }
      text.Sample("_count", {}, absl::StrCat(state.count), times[i]);
      text.Sample("_sum", {},
                  row.is_time() ? ExactSeconds(state.sum) : ExactText(state.sum), times[i]);
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
