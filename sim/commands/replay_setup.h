// ReplaySetup: what a configuration message comes to - the structures that reader, simulation, time
// model and metrics are made from.
//
// Everything that a user can get wrong is found here, before a trace is opened. Messages name the
// option, its value and what is expected.

#ifndef KVBLOCKS_SIM_COMMANDS_REPLAY_SETUP_H_
#define KVBLOCKS_SIM_COMMANDS_REPLAY_SETUP_H_

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "sim/config.pb.h"
#include "sim/cost/step_time_model.h"
#include "sim/report/metrics.h"
#include "sim/simulation.h"
#include "sim/simulation_config.h"
#include "sim/tiers/tier_connector.h"
#include "sim/trace/trace_reader.h"

namespace kvblocks::sim {

using ::kvblocks::config::v1::ReplayConfig;

struct ReplaySetup {
  // As asked for, with the limits that the engine chooses for the device.
  ReplayConfig config;
  SimulationConfig simulation;
  std::unique_ptr<StepTimeModel> step_time;
  // Without tiers: none. The step time is that above.
  std::optional<TierConnector::Options> tiers;
  TraceReaderOptions reader;
  ReplayMetricsOptions metrics;

  std::string model;  // names as the catalogue has them
  std::string device;
  double node_gb_per_s = 0;       // of a device to other nodes
  std::string num_blocks_source;  // "given", or the sum
  std::string plan;               // policy: "upstream", "exact"; "given" for listed groups
  std::string layout;             // of the pool, if it was planned
  int64_t block_bytes = 0;        // on one device, of the largest stage; 0 in the native layout
  int64_t chunk_bytes = 0;        // likewise, in the native layout only
  // What a device has beside the model, if the pool was not sized by it; negative: nothing.
  std::optional<int64_t> beside_model_bytes;
  bool latency_is_meaningful = false;
  bool is_lockstep = false;  // with other ranks of its replica
  std::string note;  // what the clock leaves out, and what tiers hold; may be empty
};

// Whether the caller runs all data-parallel ranks of a replica, of which the setup is that of one.
enum class SeveralRanks { kRefused, kTaken };

// REQUIRES: an effective configuration, all fields set and in range. InvalidArgument for several
// ranks unless they are taken.
absl::StatusOr<ReplaySetup> MakeReplaySetup(const ReplayConfig& config,
                                            SeveralRanks ranks = SeveralRanks::kRefused);

// What a block of each KV-cache group takes on one device.
std::vector<int64_t> GroupBlockBytes(const SimulationConfig& simulation);

// What a replay of `reader` runs with: zero_output may be the trace's to say.
SimulationConfig ConfigFor(const ReplaySetup& setup, const TraceReader& reader);

// For commands that do not follow tiers: InvalidArgument if there are some.
absl::Status RefuseTiers(const ReplaySetup& setup);

// The tiers behind the device; null if there are none. Of a replica of a fleet, with what the first
// one shares.
absl::StatusOr<std::unique_ptr<TierConnector>> MakeTiers(const ReplaySetup& setup,
                                                         int64_t replica = 0,
                                                         const TierConnector* with = nullptr);

// Says to tiers whose blocks they take. InvalidArgument for what they cannot take.
absl::Status AttachTiers(const KvCacheManager& manager, TierConnector* tiers);

// A replay of `reader`, which like `setup`, the observers and the tiers must outlive it.
// InvalidArgument if there are tiers and the caller does not follow them (null).
absl::StatusOr<std::unique_ptr<Simulation>> MakeSimulation(
    const ReplaySetup& setup, TraceReader* reader, const std::vector<EngineObserver*>& observers,
    TierConnector* tiers = nullptr);
// The same of one replica that has all it needs; `tiers`: its connector.
absl::StatusOr<std::unique_ptr<Simulation>> MakeSimulation(const ReplicaSetup& replica,
                                                           TraceReader* reader,
                                                           TierConnector* tiers);

// The reader's part alone.
absl::StatusOr<TraceReaderOptions> MakeReaderOptions(const ReplayConfig& config);

}  // namespace kvblocks::sim

#endif  // KVBLOCKS_SIM_COMMANDS_REPLAY_SETUP_H_
