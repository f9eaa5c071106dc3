// What engine_gpu's commands share.

#ifndef KVBLOCKS_EXAMPLES_ENGINE_CUDA_ENGINE_GPU_H_
#define KVBLOCKS_EXAMPLES_ENGINE_CUDA_ENGINE_GPU_H_

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "examples/engine/cuda/device_weights.h"
#include "examples/engine/cuda/products.h"
#include "examples/engine/model_config.h"

namespace kvblocks::engine {

struct SpeedOptions {
  std::string model = "llama-3.1-8b";  // of the catalogue
  std::vector<int64_t> requests = {1, 16, 64, 256};
  int64_t context = 1024;         // tokens of each prompt
  int64_t prefill_tokens = 8192;  // of the step that is timed, and the most of any
};

// Prints bytes per second that the device reads, then a line per number of requests, and one of
// the prefill. What fails is printed, and the rest goes on; the first error is returned.
absl::Status MeasureSpeed(Products& products, const SpeedOptions& options);

// A model of these facts, with what has no influence on speed, and weights made on the device.
struct RandomDeviceModel {
  ModelConfig config;
  DeviceWeights weights;
};
absl::StatusOr<RandomDeviceModel> MakeRandomModel(const ModelFacts& facts);

}  // namespace kvblocks::engine

#endif  // KVBLOCKS_EXAMPLES_ENGINE_CUDA_ENGINE_GPU_H_
