// FleetReplay: a trace through one replica, or several behind a router, as configured.
//
//   auto fleet = FleetReplay::Create(config);        // everything a user can get wrong
//   auto reader = OpenReplayTrace(config, (*fleet)->setup().reader);
//   absl::Status status = (*fleet)->Run(reader->get(), {.observers = {&mine}});
//   (*fleet)->Fill(**reader, &report);

#ifndef KVBLOCKS_SIM_COMMANDS_FLEET_REPLAY_H_
#define KVBLOCKS_SIM_COMMANDS_FLEET_REPLAY_H_

#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "sim/commands/event_export.h"
#include "sim/commands/fleet_input.h"
#include "sim/commands/progress_line.h"
#include "sim/commands/replay_exports.h"
#include "sim/commands/replay_setup.h"
#include "sim/fleet/fleet_metrics.h"
#include "sim/report/report.pb.h"
#include "sim/report/request_life.h"
#include "sim/report/request_rows.h"

namespace kvblocks::sim {

using ::kvblocks::config::v1::ReplayConfig;

class FleetReplay {
 public:
  // What listens to a run; nothing is owned.
  struct Listeners {
    std::vector<FleetObserver*> observers = {};       // of several replicas
    std::vector<EngineObserver*> of_the_only = {};    // of one
    AdmissionSink* misses = nullptr;                  // of one: why each admission missed
    RequestLife* life = nullptr;                      // of one: likewise, of one request
    CsvRequestSink* rows = nullptr;
    EventExport* events = nullptr;
    ReplayExports* exports = nullptr;  // open, with a name per replica
    ProgressLine* progress = nullptr;
  };

  // REQUIRES: an effective configuration. Fails as MakeReplaySetup and, for several replicas,
  // MakeFleetOptions and MakeHandoverOptions do.
  static absl::StatusOr<std::unique_ptr<FleetReplay>> Create(const ReplayConfig& config);
  ~FleetReplay();

  // Of the first replica. What concerns the trace is the same for all.
  const ReplaySetup& setup() const { return kinds_.front().setup; }
  const FleetOptions& options() const { return options_; }
  // Whether IsFleet: whether the report has replicas.
  bool is_fleet() const { return is_fleet_; }
  // For exports: "0", "1", ..., or "prefill 0", ..., "decode 0", ...
  std::vector<std::string> Names() const;
  // Of rows of requests, behind the others.
  std::string RowColumns() const {
    return !is_fleet_ ? "" : options_.handover ? FleetMetrics::HandoverColumns() : "replica";
  }

  // Once. Fails as Simulation::Run, and FailedPrecondition if every request was rejected.
  absl::Status Run(TraceReader* reader, const Listeners& listeners);
  // After the run.
  void Fill(const TraceReader& reader, ::kvblocks::report::v1::Report* report);

 private:
  class Rows;
  explicit FleetReplay(const ReplayConfig& config);
  absl::Status MakeKinds();
  absl::Status MakeFleet();
  absl::Status CheckRanks();
  absl::Status CheckSharedTiers() const;
  absl::StatusOr<ReplicaSetup> Attach(size_t replica, const TraceReader& reader,
                                      const Listeners& listeners);
  absl::Status RunOne(TraceReader* reader, const Listeners& listeners);
  absl::Status RunFleet(TraceReader* reader, const Listeners& listeners);
  template <typename AnyRun>
  absl::Status RunShown(AnyRun& run, ProgressLine* progress);
  absl::Status CheckEnd() const;
  void FillOne(size_t replica, const TraceReader& reader, ::kvblocks::report::v1::Report* report);
  void FillKinds(::kvblocks::report::v1::Report* report) const;

  struct Kind {
    ReplicaKind asked;
    ReplaySetup setup;
  };

  const ReplayConfig config_;
  const bool is_fleet_;
  FleetOptions options_;
  std::vector<Kind> kinds_;
  std::vector<size_t> kind_of_;            // by replica
  std::unique_ptr<FleetMetrics> metrics_;  // null: of one, or before the run
  std::vector<std::unique_ptr<Rows>> rows_;
  std::vector<std::unique_ptr<ReplayMetrics>> of_replicas_;
  std::vector<std::unique_ptr<TierConnector>> tiers_;  // of each replica; null: it has none
  FleetResult result_;                                 // of one only the replica's
};

}  // namespace kvblocks::sim

#endif  // KVBLOCKS_SIM_COMMANDS_FLEET_REPLAY_H_
