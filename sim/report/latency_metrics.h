// LatencyMetrics: the section `latency` - when tokens came out, per request and over all.
//
// ITL are the gaps between a request's tokens; further tokens of one step come at gap 0. All but
// ITL (see RequestLatency) are counted for requests that reach their length. Also keeps what
// RequestProgress says of output. Cost: about 5 ns per output token, of skipped decodes nothing.

#ifndef KVBLOCKS_SIM_REPORT_LATENCY_METRICS_H_
#define KVBLOCKS_SIM_REPORT_LATENCY_METRICS_H_

#include <cstdint>
#include <map>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "absl/status/statusor.h"
#include "sim/report/distribution.h"
#include "sim/report/report_section.h"

namespace kvblocks::sim {

// Takes latencies as they come, those of requests that will not finish included.
class LatencySink {
 public:
  virtual ~LatencySink() = default;
  // `ttft`: arrival to first token.
  virtual void OnFirstToken(const SimRequest& request, const RequestProgress& progress,
                            SimTime ttft, SimTime now) = 0;
  // So many tokens came so long after the token before them, of the same request each.
  virtual void OnGaps(SimTime gap, int64_t count, SimTime now) = 0;
};

// In milliseconds, with percentiles.
void FillDistribution(Distribution& values, ::kvblocks::report::v1::Distribution* out);

class LatencyMetrics final : public ReportSection {
 public:
  struct Options {
    SimTime client_rtt = 0;
    double stall_factor = 5.0;  // a gap above so many median gaps is a stall
    size_t max_exact_runs = Distribution::kDefaultMaxRuns;
    LatencySink* sink = nullptr;  // not owned
  };
  LatencyMetrics(const Options& options, SharedFacts* facts);

  void OnStepFinished(const StepRecord& step) override;
  void OnSkippedDecodes(const SimRequest& request, int64_t num_steps) override;
  void OnFinish(const SimRequest& request, SimTime now) override;

  void Fill(const ReplayEnd& end, ::kvblocks::report::v1::Report* report) override;

 private:
  void AddGaps(SimTime gap, int64_t count, SimTime now);

  const Options options_;
  SharedFacts* const facts_;
  SimTime last_step_end_ = RequestProgress::kNever;
  std::vector<SimTime> other_gaps_;  // scratch
  enum Kind { kQueueing, kTtft, kPrefill, kE2e, kTpot, kItl, kNormalized, kNumKinds };
  std::vector<Distribution> values_;  // by kind
};

// Service level objectives: limits on a request's latency, and how many requests meet them.
//
// "ttft:2s:p99,tpot:50ms" - metric, limit, and optionally the percentile that must meet the limit
// over all requests; before the percentile a @ will do, too. A request is good if it meets every
// limit; one that was rejected or aborted is not. A request of one token has no TPOT and meets any
// limit on it.
enum class SloMetric { kTtft, kTpot, kE2e, kQueueing };

struct Objective {
  SloMetric metric = SloMetric::kTtft;
  SimTime limit = 0;
  int64_t percentile = 0;  // hundredths of a percent; 0: none
};

// An empty text has no objectives.
absl::StatusOr<std::vector<Objective>> ParseObjectives(std::string_view text);

class GoodputMetrics {
 public:
  explicit GoodputMetrics(std::vector<Objective> objectives);

  void OnFinish(const RequestLatency& latency);
  // Rejected or aborted.
  void OnFailure() { ++total_; }

  void Fill(double duration_s, ::kvblocks::report::v1::Goodput* out);

 private:
  std::vector<Objective> objectives_;
  std::vector<int64_t> good_of_;
  std::vector<Distribution> values_;  // of objectives with a percentile
  int64_t good_ = 0;
  int64_t total_ = 0;
};

// The section `goodput`: all requests, and those of each latency class.
class GoodputSection final : public ReportSection {
 public:
  GoodputSection(std::vector<Objective> objectives, const SharedFacts* facts)
      : objectives_(std::move(objectives)), facts_(facts), all_(objectives_) {}

  void OnRejection(const SimRequest& request, SimTime now) override { OnFinish(request, now); }
  void OnFinish(const SimRequest& request, SimTime now) override;
  void Fill(const ReplayEnd& end, ::kvblocks::report::v1::Report* out) override;

 private:
  GoodputMetrics& OfClass(const std::string& name);

  const std::vector<Objective> objectives_;
  const SharedFacts* const facts_;
  GoodputMetrics all_;
  std::map<std::string, GoodputMetrics> classes_;
};

}  // namespace kvblocks::sim

#endif  // KVBLOCKS_SIM_REPORT_LATENCY_METRICS_H_
