// CudaRunner: computes the simulator's steps on an NVIDIA GPU.
//
// Dense models of Llama's and Qwen3's shape in bf16. Attention is kvblocks' own, by AttentionLayers
// on the CUDA backend over the plan's tensors in device memory; products are a library's. Steps of
// decodes alone, padded to one of a list of sizes, are CUDA graphs, captured when a size first
// comes: the host then writes metadata and tokens, launches one graph, and waits for the tokens
// that were sampled. Other steps launch their kernels one by one. Steps in which a request has a
// mask have graphs of their own, whose bits are metadata like lengths.
//
// Memory: weights, the plan's tensors, activations and float logits of the largest step. Device 0;
// single-threaded.

#ifndef KVBLOCKS_EXAMPLES_ENGINE_CUDA_CUDA_RUNNER_H_
#define KVBLOCKS_EXAMPLES_ENGINE_CUDA_CUDA_RUNNER_H_

#include <array>
#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <utility>
#include <vector>

#include "absl/functional/function_ref.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "attention/cuda/kernels/params.h"
#include "examples/engine/cuda/cuda_place.h"
#include "examples/engine/cuda/device_array.h"
#include "examples/engine/cuda/device_weights.h"
#include "examples/engine/cuda/products.h"
#include "examples/engine/model_config.h"
#include "examples/engine/step_runner.h"
#include "kvblocks/attention.h"
#include "kvblocks/plan.h"
#include "sim/simulation_config.h"

namespace kvblocks::engine {

class CudaRunner final : public StepRunner {
 public:
  // What a step is made of.
  enum Part : unsigned {
    kAttention = 1,
    kRest = 2,
    kQkv = 4,
    kOut = 8,
    kGateUp = 16,
    kDown = 32,
    kHead = 64,
    kProducts = kQkv | kOut | kGateUp | kDown | kHead,
    kAll = kAttention | kRest | kProducts,
  };

  // The weights, all of `config`, and the products must outlive it. The plan must be of caches of
  // bf16. ResourceExhausted names the memory that there is not enough of.
  static absl::StatusOr<std::unique_ptr<CudaRunner>> Create(const ModelConfig& model,
                                                            const DeviceWeights& weights,
                                                            Products& products, const Plan& plan,
                                                            const sim::SimulationConfig& config,
                                                            RunnerOptions options);
  ~CudaRunner() override;

  // Captures the graphs and chooses the products of all steps before the first one, which would
  // take some seconds longer for it. Writes to the null block only.
  absl::Status WarmUp();

  struct LastStep {
    int64_t num_tokens = 0;
    bool is_graph = false;
    // From the start until metadata was built, it and the tokens were on their way, all was
    // enqueued, and tokens were on the host.
    double build_us = 0, upload_us = 0, issue_us = 0, total_us = 0;
  };
  const LastStep& last_step() const { return last_; }
  int64_t num_graph_steps() const { return num_graph_steps_; }

  // How long the device takes for these parts of the last step, which must have been a graph:
  // milliseconds of a replay. To be asked when nothing is to be computed any more: parts alone
  // leave activations and the last token's keys and values wrong.
  absl::StatusOr<double> TimePart(unsigned parts, int rounds);

 private:
  struct Layer {
    std::unique_ptr<attention::AttentionImpl> impl;
    attention::KvCacheView cache;
    int metadata = 0;
  };
  // A step as kernels see it.
  struct Batch {
    int64_t num_tokens = 0;    // with the padding of graphs
    int64_t num_sampled = 0;   // rows that logits are wanted of
    bool samples_all = false;  // every row, in order
    std::vector<attention::CommonAttentionMetadata> metadata = {};  // on the device, per group
  };

  CudaRunner(const ModelConfig& model, const DeviceWeights& weights, Products& products,
             RunnerOptions options);
  absl::Status AddLayers();
  absl::Status AddMetadata(const sim::SimulationConfig& config);
  absl::Status AllocateActivations(int64_t max_tokens, int64_t max_sampled);

  absl::Status Run(const sim::StepRecord& step) override;
  absl::Status UploadTokens(const StepTokens& tokens, int64_t num_padded);
  absl::Status Replay(const attention::GraphParameterSet& set);
  absl::StatusOr<void*> Capture(const Batch& batch, unsigned parts);
  Batch BatchOf(const attention::GraphParameterSet& set) const;
  // Those that a graph reads, of decodes alone, whose order is the step's.
  absl::StatusOr<attention::MaskRef> BitsOfGraph();
  absl::Status Forward(const Batch& batch, unsigned parts);
  absl::Status Attend(const Layer& layer, const Batch& batch);
  absl::Status Finish(const StepTokens& tokens);

  // If its part is among `parts`.
  absl::Status Multiply(unsigned part, const DeviceArray& weight, const DeviceArray& x,
                        int64_t rows, int64_t in, int64_t out, const DeviceArray& y,
                        bool float_out = false);
  absl::Status Norm(unsigned parts, const DeviceArray* added, const DeviceArray& weight,
                    int64_t rows);

  const ModelConfig& model_;
  const DeviceWeights& weights_;
  Products& products_;

  std::unique_ptr<CudaPlace> place_;
  attention::cuda::LaunchContext launch_;
  std::vector<Layer> layers_;
  std::optional<attention::GraphParameters> graphs_;
  std::map<std::pair<int64_t, bool>, void*> captured_;  // by the size of the set, and masked or not
  attention::AttentionMaskBuilder masks_, device_masks_;  // of graphs and of other steps
  const sim::StepRecord* step_ = nullptr;                 // that is being computed
  bool is_masked_ = false, fits_graph_ = false;           // it
  const attention::GraphParameterSet* last_set_ = nullptr;
  LastStep last_;
  int64_t num_graph_steps_ = 0;

  attention::ConstTensorView frequencies_;
  // Of a step, rows of tokens: the residual, what the norms make of it, queries with keys and
  // values, attention's output, gates with what they gate, the product of both, what is added to
  // the residual.
  DeviceArray x_, normed_, qkv_, attended_, gate_up_, gated_, added_;
  DeviceArray tokens_, rows_, last_rows_, logits_;
  DeviceArray results_;             // error flags and sampled tokens
  DeviceArray host_in_, host_out_;  // pinned: tokens and rows; results
  int64_t max_tokens_ = 0, max_sampled_ = 0;
};

}  // namespace kvblocks::engine

#endif  // KVBLOCKS_EXAMPLES_ENGINE_CUDA_CUDA_RUNNER_H_
