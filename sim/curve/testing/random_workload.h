// Small random workloads that share, repeat and continue prompts, and what a real pool hits of
// them: for tests.

#ifndef KVBLOCKS_SIM_CURVE_TESTING_RANDOM_WORKLOAD_H_
#define KVBLOCKS_SIM_CURVE_TESTING_RANDOM_WORKLOAD_H_

#include <cstdint>
#include <random>
#include <vector>

#include "sim/simulation.h"
#include "sim/trace/trace_request.h"

namespace kvblocks::sim {

struct RandomWorkload {
  TraceInfo info;  // token ids
  std::vector<TraceRequest> requests;
  int64_t block_tokens = 0;
};

struct RandomWorkloadOptions {
  bool with_full_blocks = true;  // prompts that end with a block, whose last block is cached twice
  bool with_output_ids = true;
  int64_t most_requests = 25;
  double seconds_between = 0;  // arrivals, at most; 0: all at once
};

RandomWorkload MakeRandomWorkload(uint64_t seed, const RandomWorkloadOptions& options);

// One full-attention group of `num_usable` blocks and the null block, synchronous steps.
SimulationConfig ConfigOfPool(const RandomWorkload& workload, int64_t num_usable,
                              FreeOrder free_order, int64_t max_num_seqs);

struct RealHits {
  absl::Status status;
  SimulationResult result;
  // By row: blocks that the look-up at first admission found; -1: never admitted.
  std::vector<int64_t> hits;
};

RealHits HitsOfRealPool(const RandomWorkload& workload, const SimulationConfig& config,
                        const std::vector<EngineObserver*>& further_observers = {});

}  // namespace kvblocks::sim

#endif  // KVBLOCKS_SIM_CURVE_TESTING_RANDOM_WORKLOAD_H_
