// Roofline: a step takes as long as its arithmetic at peak rate or its memory traffic at peak
// bandwidth, whichever is longer, each divided by an efficiency; plus communication between tensor
// parallel ranks and fixed host costs.
//
// Counted: reading the weights (of a mixture of experts, the expected share that the step's tokens
// route to; with data parallelism those of all ranks, which also send their tokens to the experts
// and back), reading and writing the caches of each layer kind (see attention_cost.h), matrix
// products, attention, the output head at sampled positions, and copies of blocks, which come
// before the layers. Not counted: graph padding, kernel quantisation, imbalance of experts. The
// default efficiencies are starting values for a calibration, not promises.
//
// Coefficients are whole picoseconds per token, per context token and per attended pair, rounded
// once; on fast devices with many ranks the rounding of the last can reach a few percent of the
// attention's arithmetic.

#ifndef KVBLOCKS_SIM_COST_ROOFLINE_H_
#define KVBLOCKS_SIM_COST_ROOFLINE_H_

#include <cstdint>
#include <initializer_list>
#include <memory>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "kvblocks/model_facts.h"
#include "sim/cost/sim_time.h"
#include "sim/cost/step_time_model.h"

namespace kvblocks::sim {

struct RooflineOptions {
  DeviceFacts device;
  ModelFacts model;
  int64_t tensor_parallel = 1;
  // Such groups of ranks, each with the whole attention, that share the experts. StepTime is that
  // of a step in which each has as much to do as this one.
  int64_t data_parallel = 1;
  // Ranks that share the rows of a cache, each reading its part; what they exchange is not counted.
  int64_t decode_context_parallel = 1;
  double compute_efficiency = 0.6;  // eta_F
  double memory_efficiency = 0.85;  // eta_B
  double kv_bytes_per_element = 2;
  // How the cache is stored, as LayerCacheOptions says it; empty: kv_bytes_per_element counts. Only
  // the format knows the bytes of quantised rows with scales.
  std::string kv_cache_dtype = "";
  SimTime fixed_time = kMillisecond;             // per step; 0.2 ms where the runtime overlaps it
  SimTime time_per_layer = 0;                    // per layer and step: launches, norms, routers
  SimTime time_per_sequence = 0;                 // per scheduled request
  SimTime allreduce_latency = 5 * kMicrosecond;  // each, with tensor parallelism; two per layer
  std::string calibration = "";  // what the numbers above were fitted on; empty: nothing
};

// What copying a device's memory costs: each byte is read and written.
class CopyRate {
 public:
  explicit CopyRate(const RooflineOptions& options);
  SimTime TimeOf(int64_t bytes) const;

 private:
  int64_t per_mib_;  // picoseconds
};

absl::Status Validate(const RooflineOptions& options);

// The same for options of other clocks: the first field of `prefix` outside its bounds is refused.
template <typename T>
struct Bounded {
  absl::string_view field;
  T value, low, high;
};
absl::Status CheckCounts(absl::string_view prefix, std::initializer_list<Bounded<int64_t>> counts);
absl::Status CheckNumbers(absl::string_view prefix, std::initializer_list<Bounded<double>> numbers);
absl::Status CheckTimes(absl::string_view prefix, std::initializer_list<Bounded<SimTime>> times);

absl::StatusOr<std::unique_ptr<StepTimeModel>> MakeRoofline(const RooflineOptions& options);

}  // namespace kvblocks::sim

#endif  // KVBLOCKS_SIM_COST_ROOFLINE_H_
