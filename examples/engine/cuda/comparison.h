// Comparison: the same requests served by CudaRunner in bf16 and by the engine on the CPU in
// float32, token by token.
//
// A request is compared up to the first token that differs: behind it the two have other inputs. A
// token may differ where the CPU's two best logits are nearly the same.

#ifndef KVBLOCKS_EXAMPLES_ENGINE_CUDA_COMPARISON_H_
#define KVBLOCKS_EXAMPLES_ENGINE_CUDA_COMPARISON_H_

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "examples/engine/cuda/products.h"
#include "examples/engine/golden.h"
#include "examples/engine/model.h"

namespace kvblocks::engine {

// Random tokens; every second prompt begins as the one before it. Answers are unknown.
Golden RandomPrompts(const std::vector<int64_t>& lengths, int64_t vocabulary);

// A model of a few layers of Llama's shape, or, with norms of heads, of Qwen3's; weights are values
// of bf16 from a seed.
Model RandomModel(int64_t num_layers, int64_t hidden, int64_t num_heads, int64_t num_kv_heads,
                  int64_t head_size, bool head_norms, uint32_t seed);

struct Comparison {
  int64_t num_tokens = 0;   // compared
  int64_t num_excused = 0;  // different, with a margin of at most the one given
  int64_t num_wrong = 0;    // different, with a larger one
  double max_error = 0;     // of a logit
  double rms_error = 0;     // of logits, as a share of their own
  int64_t num_steps = 0, num_graph_steps = 0;

  std::string Text() const;
};
// `masked`: some requests have documents or masks of their own.
absl::StatusOr<Comparison> CompareWithCpu(const Model& model, Products& products, double margin,
                                          bool masked = false);
// Settings whose caches and attention are the GPU's.
Settings OnGpu();

}  // namespace kvblocks::engine

#endif  // KVBLOCKS_EXAMPLES_ENGINE_CUDA_COMPARISON_H_
