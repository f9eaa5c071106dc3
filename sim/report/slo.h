// Service level objectives: limits on a request's latency, and how many requests meet them.
//
// "ttft:2s:p99,tpot:50ms" - metric, limit, and optionally the percentile that must meet the limit
// over all requests; before the percentile a @ will do, too. A request is good if it meets every limit; one that was rejected or aborted is
// not. A request of one token has no TPOT and meets any limit on it.

#ifndef KVBLOCKS_SIM_REPORT_SLO_H_
#define KVBLOCKS_SIM_REPORT_SLO_H_

#include <cstdint>
#include <map>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "absl/status/statusor.h"
#include "kvblocks/sim/report/distribution.h"
#include "kvblocks/sim/report/report_section.h"

namespace kvblocks::sim {

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

#endif  // KVBLOCKS_SIM_REPORT_SLO_H_
