// A recorded schedule as what the simulator takes: a configuration and a list of trace requests.

#ifndef KVBLOCKS_TESTS_CONFORMANCE_SCHEDULE_WORKLOAD_H_
#define KVBLOCKS_TESTS_CONFORMANCE_SCHEDULE_WORKLOAD_H_

#include <vector>

#include "absl/status/statusor.h"
#include "kvblocks/sim/simulation_config.h"
#include "kvblocks/sim/trace/trace_request.h"
#include "kvblocks/tests/conformance/schedule.h"

namespace kvblocks::conformance {

// InvalidArgument for what no simulation can be made of.
absl::StatusOr<sim::SimulationConfig> MakeSimulationConfig(const Schedule& schedule);
// InvalidArgument if the engine derived other values from the settings than the simulator does.
absl::Status CheckDerived(const ScheduleDerived& recorded, const sim::SimulationConfig& config,
                          const KvCacheManager& manager);

// Every token of every document has a number of its own, so two tokens are equal iff document and
// position are; outputs of row r are the document 100000 + r.
absl::StatusOr<std::vector<sim::TraceRequest>> MakeTraceRequests(const Schedule& schedule);

}  // namespace kvblocks::conformance

#endif  // KVBLOCKS_TESTS_CONFORMANCE_SCHEDULE_WORKLOAD_H_
