// ServerMetrics: a run as a server's /metrics would show it - the names, meanings and buckets of
// vLLM's Prometheus metrics, and more under kvsim_ - in OpenMetrics text.
//
//   ServerMetrics server({.model = "llama-3.1-8b", .max_model_len = 131072});
//   ReplayMetrics metrics({.latency = {.sink = &server}, .rows = &server, .admissions = &server});
//   auto simulation = Simulation::Create(config, reader, step_time, {&metrics, &server});
//   (*simulation)->Run();
//   server.Text()
//
// Without a tick the text is one scrape at the end of the run. With one it has a point per tick of
// simulated time, with timestamps, which Prometheus takes as history. Counters and histograms only
// grow, so when there are max_points every other point goes and the tick doubles; nothing
// of what happened is lost.
//
// Memory: 3 KB per point. Cost: about 10 ns per output token that has a record, O(1) per step.

#ifndef KVBLOCKS_SIM_REPORT_SERVER_METRICS_H_
#define KVBLOCKS_SIM_REPORT_SERVER_METRICS_H_

#include <array>
#include <cstdint>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "absl/types/span.h"
#include "sim/engine/engine_observer.h"
#include "sim/report/latency_metrics.h"
#include "sim/report/miss_classifier.h"
#include "sim/report/request_rows.h"

namespace kvblocks::sim {

class ServerMetrics : public EngineObserver,
                      public LatencySink,
                      public RequestRowSink,
                      public AdmissionSink {
 public:
  static constexpr size_t kDefaultMaxPoints = 1000;

  struct Options {
    std::string model = {};
    std::string engine = "0";               // which of a deployment's engines this is
    int64_t max_model_len = 0;              // tokens; buckets of lengths end there
    SimTime tick = 0;                       // 0: one point, without a timestamp
    size_t max_points = kDefaultMaxPoints;  // even
    int64_t epoch_seconds = 0;              // what time 0 of the run is in timestamps
    // Look-ups are counted at every attempt, as with HitRateMetrics' legacy counters.
    bool count_attempts = false;
    // Without kvsim_missed_blocks, where nobody tells OnMisses.
    bool leave_out_misses = false;
    // Blocks may come from elsewhere: what the pool does not have is looked up there.
    bool has_connector = false;
    int64_t num_draft_tokens = 0;  // per step and request
    // What clients asked for comes by OnMaxTokens and OnAnswers; otherwise each request is one
    // answer, and asked for the output that it has.
    bool is_told_parameters = false;
    // Labels of vllm:cache_config_info.
    std::vector<std::pair<std::string, std::string>> cache_config = {};
  };
  explicit ServerMetrics(Options options);

  // --- As an observer, after ReplayMetrics ---
  bool NeedsEveryRecord() const override { return false; }
  void OnRunStart(const RunInfo& info) override;
  void OnArrival(const SimRequest& request, SimTime now) override;
  void OnAdmissionAttempt(const AdmissionRecord& record, SimTime now) override;
  void OnAdmission(const AdmissionRecord& record, SimTime now) override;
  void OnPreemption(const PreemptionRecord& record, SimTime now) override;
  void OnStepScheduled(const StepRecord& step) override;
  void OnStepFinished(const StepRecord& step) override;
  void OnRunEnd(SimTime now) override;

  // --- From ReplayMetrics ---
  void OnFirstToken(const SimRequest& request, const RequestProgress& progress, SimTime ttft,
                    SimTime now) override;
  void OnGaps(SimTime gap, int64_t count, SimTime now) override;
  void OnRow(const RequestRow& row) override;
  bool wants_runs() const override { return false; }
  void OnMisses(const AdmissionRecord& record, const AdmissionMisses& misses,
                const RequestProgress& progress, SimTime now) override;

  // --- With is_told_parameters ---
  // Of a sequence that finished: the most tokens that it might have had.
  void OnMaxTokens(int64_t max_tokens, SimTime now);
  // Of a request whose sequences all finished: how many, and the longest one's output tokens.
  void OnAnswers(int64_t count, int64_t most_tokens, SimTime now);

  // Takes the pool's gauges. Steps do so; for what changes it between them.
  void ReadPool();

  // After the run.
  std::string Text() const;

 private:
  enum Counter {
    kQueries,
    kHits,
    kExternalQueries,
    kExternalHits,
    kPromptTokens,
    kPromptTokensCached,    // all of them
    kPromptTokensExternal,  // those from elsewhere
    kGenerationTokens,
    kPreemptions,
    kStops,
    kLengths,
    kAborts,
    kErrors,
    kRejections,
    kDrafts,
    kDraftTokens,
    kAcceptedTokens,
    kSteps,
    kBusyPicoseconds,
    kPrefillTokens,
    kDecodeTokens,
    kEvictions,
    kResumeQueries,
    kResumeHits,
    kFirstMiss,  // and the other reasons
    kNumCounters = kFirstMiss + static_cast<int>(kNumMissReasons)
  };
  enum Gauge { kRunning, kWaiting, kUsed, kCached, kFree, kNumGauges };
  enum Histogram {
    kTtft,
    kItl,
    kTpot,
    kE2e,
    kQueue,
    kInference,
    kPrefill,
    kDecode,
    kPrefillKvTokens,
    kPromptLength,
    kOutputLength,
    kMostOutput,
    kAnswers,
    kMaxTokens,
    kRequestPreemptions,
    kIterationTokens,
    kStepTokens,
    kNumHistograms
  };
  struct HistogramName {
    const char* name;
    const char* help;
    absl::Span<const double> bounds;  // empty: 1, 2, 5, 10, ... up to the longest sequence

    // Values are picoseconds; else they are counts.
    bool is_time() const { return std::string_view(name).ends_with("_seconds"); }
  };
  static const std::array<HistogramName, kNumHistograms> kHistograms;
  struct Buckets {
    std::vector<double> bounds;
    std::vector<int64_t> limits;  // bounds in units of the values, inclusive
  };
  struct HistogramState {
    std::vector<int64_t> counts;  // per bucket, the one without limit last
    int64_t count = 0;
    __int128 sum = 0;
  };
  struct Point {
    SimTime time = 0;
    std::array<int64_t, kNumCounters> counters = {};
    std::array<int64_t, kNumGauges> gauges = {};
    std::array<HistogramState, kNumHistograms> histograms;
    std::vector<int64_t> accepted_drafts;  // per position
  };

  // Before an event at `now` is counted.
  void Advance(SimTime now);
  void Count(Counter counter, int64_t by) { state_.counters[counter] += by; }
  void Observe(Histogram histogram, int64_t value, int64_t count = 1);
  const Options options_;
  const KvCacheManager* manager_ = nullptr;
  std::array<Buckets, kNumHistograms> buckets_;
  Point state_;
  std::vector<Point> points_;
  SimTime tick_;
  SimTime next_tick_;
  int64_t computed_prompts_at_last_step_ = 0;  // tokens
  SimTime device_until_ = 0;
  int64_t usable_blocks_ = 0;
};

}  // namespace kvblocks::sim

#endif  // KVBLOCKS_SIM_REPORT_SERVER_METRICS_H_
