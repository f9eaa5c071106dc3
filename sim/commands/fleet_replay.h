// FleetReplay: a trace through several replicas behind a router, as a configuration asks for them.
//
//   auto fleet = FleetReplay::Create(config);        // everything a user can get wrong
//   auto reader = OpenReplayTrace(config, (*fleet)->setup().reader);
//   absl::Status status = (*fleet)->Run(reader->get(), {.observers = {&mine}});
//   (*fleet)->Fill(**reader, &report);

#ifndef KVBLOCKS_SIM_COMMANDS_FLEET_REPLAY_H_
#define KVBLOCKS_SIM_COMMANDS_FLEET_REPLAY_H_

#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "sim/commands/event_export.h"
#include "sim/commands/fleet_input.h"
#include "sim/commands/progress_line.h"
#include "sim/commands/replay_exports.h"
#include "sim/commands/replay_setup.h"
#include "sim/commands/replica_kinds.h"
#include "sim/fleet/fleet.pb.h"
#include "sim/fleet/fleet_metrics.h"
#include "sim/fleet/split_metrics.h"
#include "sim/report/request_life.h"
#include "sim/report/request_rows.h"

namespace kvblocks::sim {

class FleetReplay {
 public:
  // What listens to a run; nothing is owned.
  struct Listeners {
    std::vector<FleetObserver*> observers = {};
    CsvRequestSink* rows = nullptr;
    EventExport* events = nullptr;
    ReplayExports* exports = nullptr;  // open, with a name per replica
    ProgressLine* progress = nullptr;
  };

  // REQUIRES: an effective configuration. Fails as MakeReplaySetup, MakeFleetOptions and
  // MakeSplitOptions do.
  static absl::StatusOr<std::unique_ptr<FleetReplay>> Create(
      const ::kvblocks::config::v1::ReplayConfig& config);
  ~FleetReplay();

  // Of the first replica. What concerns the trace is the same for all.
  const ReplaySetup& setup() const { return kinds_.front().setup; }
  const FleetOptions& options() const { return options_; }
  size_t num_replicas() const { return num_replicas_; }
  // For exports: "0", "1", ..., or "prefill 0", ..., "decode 0", ...
  std::vector<std::string> Names() const;
  // Of rows of requests, behind the others.
  std::string RowColumns() const { return split_ ? SplitMetrics::RowColumns() : "replica"; }

  // Once. Fails as a replay of one does.
  absl::Status Run(TraceReader* reader, const Listeners& listeners);
  // After the run.
  void Fill(const TraceReader& reader, ::kvblocks::fleet::v1::FleetReport* report);

 private:
  class Rows;
  class RouterRows;
  bool SharesTiers() const;
  absl::Status CheckRanks();
  absl::Status CheckSharedTiers() const;
  absl::Status AddTiersTo(size_t replica, ReplicaSetup* setup);
  void FillKinds(::kvblocks::fleet::v1::FleetReport* report) const;
  explicit FleetReplay(const ::kvblocks::config::v1::ReplayConfig& config);
  absl::Status RunReplicas(TraceReader* reader, const Listeners& listeners,
                           std::vector<ReplicaSetup> replicas);
  template <typename AnyFleet>
  absl::Status RunShown(AnyFleet& fleet, ProgressLine* progress);

  struct Kind {
    ReplicaKind asked;
    ReplaySetup setup;
  };

  const ::kvblocks::config::v1::ReplayConfig config_;
  FleetOptions options_;
  std::optional<SplitOptions> split_;  // instead of a router
  std::vector<Kind> kinds_;
  std::vector<size_t> kind_of_;  // by replica
  size_t num_replicas_ = 0;
  // One of the two.
  std::unique_ptr<FleetMetrics> metrics_;
  std::unique_ptr<SplitMetrics> split_metrics_;
  std::vector<std::unique_ptr<Rows>> rows_;
  std::unique_ptr<RouterRows> router_rows_;
  std::vector<std::unique_ptr<ReplayMetrics>> of_replicas_;
  std::vector<std::unique_ptr<TierConnector>> tiers_;  // of each replica; null: it has none
  FleetResult result_;  // of a split only the replicas'
  SplitResult split_result_;
};

// Why the request went where it went. NotFound if it was not sent anywhere.
absl::Status ExplainRouting(const ::kvblocks::config::v1::ReplayConfig& config,
                            const RequestSelector& selector, bool quiet,
                            ::kvblocks::fleet::v1::RoutingExplanation* out);

}  // namespace kvblocks::sim

#endif  // KVBLOCKS_SIM_COMMANDS_FLEET_REPLAY_H_
