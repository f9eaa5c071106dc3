// A small serving engine: the simulator with a model in it.
//
// Scheduler, block manager and clock are those of kvsim replay: chunked prefill, prefix hits,
// preemption, hybrid groups. A ModelRunner computes each step, and the clock advances by what it
// took; between steps with nothing to do it jumps to the next arrival. So a run is one that
// kvsim replay can predict, and, with the recorded times, repeat to the block.

#ifndef KVBLOCKS_EXAMPLES_ENGINE_ENGINE_H_
#define KVBLOCKS_EXAMPLES_ENGINE_ENGINE_H_

#include <cstdint>
#include <memory>
#include <vector>

#include "absl/status/statusor.h"
#include "examples/engine/model.h"
#include "examples/engine/step_runner.h"
#include "kvblocks/plan.h"
#include "sim/engine/engine_observer.h"
#include "sim/simulation.h"
#include "sim/tiers/tier_connector.h"
#include "sim/trace/trace_reader.h"

namespace kvblocks::engine {

struct Served {
  // All that arrived, by row; output_ids are what the model answered, and accepted_drafts how many
  // it accepted in each step with drafts. Empty for requests that were rejected or aborted.
  std::vector<sim::TraceRequest> requests;
  sim::SimulationResult result;
  std::unique_ptr<sim::TraceReader> trace;  // at its end
};

// Serves a trace of token ids. `config` is for the plan's pool, whose configuration replaces its
// own. `tiers`, if any, get memory on the host, to which blocks are copied and from which they are
// loaded; the copies take the time that the connector says. InvalidArgument for traces without
// token ids, tokens outside of the vocabulary, and what Simulation and ModelRunner refuse. `place`:
// of caches and attention; null: the host. Memory: weights, the plan's tensors, the tiers' slots,
// and the requests.
absl::StatusOr<Served> Serve(const Model& model, const Plan& plan, sim::SimulationConfig config,
                             std::unique_ptr<sim::TraceReader> trace, const RunnerOptions& options,
                             const std::vector<sim::EngineObserver*>& observers = {},
                             sim::TierConnector* tiers = nullptr, AttentionPlace* place = nullptr);

// The same by a runner that was made for this plan and configuration, of a model with so many
// tokens in its vocabulary.
absl::StatusOr<Served> ServeBy(StepRunner& runner, int64_t vocabulary, const Plan& plan,
                               sim::SimulationConfig config,
                               std::unique_ptr<sim::TraceReader> trace,
                               const std::vector<sim::EngineObserver*>& observers = {},
                               sim::TierConnector* tiers = nullptr);

}  // namespace kvblocks::engine

#endif  // KVBLOCKS_EXAMPLES_ENGINE_ENGINE_H_
