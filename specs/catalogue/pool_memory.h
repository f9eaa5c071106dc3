// CacheBytesInMemory: how much of a device's memory the weights and the reserves leave for the cache.
//
//   CacheBytesInMemory({.device = *catalogue.FindDevice("h200"), .model = *model})
//
// What activations take is the engine's to know: measured values of one version and device stand in,
// or the caller's.

#ifndef KVBLOCKS_SPECS_CATALOGUE_POOL_MEMORY_H_
#define KVBLOCKS_SPECS_CATALOGUE_POOL_MEMORY_H_

#include <cstdint>
#include <string>

#include "absl/status/statusor.h"
#include "kvblocks/specs/catalogue/model_facts.h"

namespace kvblocks {

struct PoolMemory {
  DeviceFacts device;
  ModelFacts model;
  int64_t tensor_parallel = 1;
  // Such groups of ranks, each with all of the weights but for the experts, which all of them divide.
  int64_t data_parallel = 1;
  double utilization = 0.9;  // share of the device memory that may be used
  // Memory that is neither weights nor cache. Estimates, unless those of MeasuredReservesOf are set.
  double activation_gb = 2.0;
  double graph_gb = 1.0;
  double draft_weights_gb = 0;  // of a drafter, over all ranks
};

// What vLLM 0.19 was seen to use beside weights and cache, by architecture and ranks, on H100: peak
// of its profiling run, and what other libraries hold. Graphs are captured when the pool has its
// size, from what the utilization leaves free.
struct MeasuredReserves {
  double activation_gb = 0;
  double other_gb = 0;
  std::string source;
};
MeasuredReserves MeasuredReservesOf(const ModelFacts& model, int64_t num_ranks);

// What the model's weights take on one device.
double WeightGbPerDevice(const PoolMemory& memory);

// On one device. InvalidArgument for bad fields; ResourceExhausted, with the sums, if nothing is
// left.
absl::StatusOr<int64_t> CacheBytesInMemory(const PoolMemory& memory);

}  // namespace kvblocks

#endif  // KVBLOCKS_SPECS_CATALOGUE_POOL_MEMORY_H_
