// DeviceWeights: a dense model's weights in device memory, as CudaRunner takes them: bf16, one
// matrix [out, in] per product, those of queries, keys and values in one, and those of gate and up.

#ifndef KVBLOCKS_EXAMPLES_ENGINE_CUDA_DEVICE_WEIGHTS_H_
#define KVBLOCKS_EXAMPLES_ENGINE_CUDA_DEVICE_WEIGHTS_H_

#include <cstdint>
#include <functional>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "examples/engine/cuda/device_array.h"
#include "examples/engine/model_config.h"
#include "examples/engine/weights.h"

namespace kvblocks::engine {

float RoundToBf16(float value);

struct DeviceWeights {
  struct Layer {
    DeviceArray attention_norm, mlp_norm;
    DeviceArray q_norm, k_norm;  // per head, or absent
    DeviceArray qkv, o, gate_up, down;
  };
  DeviceArray embedding, head;  // the latter absent: the embedding
  DeviceArray norm;
  std::vector<Layer> layers;

  // Unimplemented, with what it is, for models that are not of Llama's or Qwen3's shape: full
  // attention with heads, dense gated MLPs, no biases.
  static absl::Status Check(const ModelConfig& config, const Weights& weights = {});
  // Rounded to bf16.
  static absl::StatusOr<DeviceWeights> Upload(const ModelConfig& config, const Weights& weights) {
    return Make(config, weights, false, nullptr);
  }
  // Norms of ones, and matrices that `fill` fills: so many values of bf16 about so large.
  using Fill = std::function<absl::Status(const DeviceArray&, int64_t count, float deviation)>;
  static absl::StatusOr<DeviceWeights> Random(const ModelConfig& config, bool head_norms,
                                              const Fill& fill) {
    return Make(config, {}, head_norms, fill);
  }

  // What a decode step reads of them: all but the embedding, of which it reads a row per token.
  int64_t BytesPerStep() const;

 private:
  static absl::StatusOr<DeviceWeights> Make(const ModelConfig& config, const Weights& from,
                                            bool head_norms, const Fill& fill);
};

}  // namespace kvblocks::engine

#endif  // KVBLOCKS_EXAMPLES_ENGINE_CUDA_DEVICE_WEIGHTS_H_
