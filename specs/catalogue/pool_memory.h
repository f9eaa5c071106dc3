// CacheBytesInMemory: how much of a device's memory the weights and the reserves leave for the cache.
//
//   CacheBytesInMemory({.device = *catalogue.FindDevice("h200"), .model = *model})
//
// An upper bound without measured values: what activations and graphs take is the engine's to know.

#ifndef KVBLOCKS_SPECS_CATALOGUE_POOL_MEMORY_H_
#define KVBLOCKS_SPECS_CATALOGUE_POOL_MEMORY_H_

#include <cstdint>

#include "absl/status/statusor.h"
#include "kvblocks/specs/catalogue/model_facts.h"

namespace kvblocks {

struct PoolMemory {
  DeviceFacts device;
  ModelFacts model;
  int64_t tensor_parallel = 1;
  double utilization = 0.9;  // share of the device memory that may be used
  // Memory that is neither weights nor cache. Estimates.
  double activation_gb = 2.0;
  double graph_gb = 1.0;
};

// On one device. InvalidArgument for bad fields; ResourceExhausted, with the sums, if nothing is
// left.
absl::StatusOr<int64_t> CacheBytesInMemory(const PoolMemory& memory);

}  // namespace kvblocks

#endif  // KVBLOCKS_SPECS_CATALOGUE_POOL_MEMORY_H_
