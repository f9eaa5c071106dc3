// ModelRunner: computes the steps that the simulator's scheduler decides, on the block tables of
// its block manager. The model is the CPU's; caches and attention have a place, the host or a
// device.
//
//   auto runner = ModelRunner::Create(model, plan, simulation_config, options);
//   Simulation::Create(config, reader, /*step_time=*/runner->get(), {runner->get(), ...});
//
// It builds the batch's metadata, once per KV-cache group, runs the model, whose layers store and
// attend in the memory that the plan lays out, and samples; StepRunner says what of it others see.
// Single-threaded, but for the threads of matrix products and attention.

#ifndef KVBLOCKS_EXAMPLES_ENGINE_MODEL_RUNNER_H_
#define KVBLOCKS_EXAMPLES_ENGINE_MODEL_RUNNER_H_

#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "examples/engine/attention_place.h"
#include "examples/engine/blender.h"
#include "examples/engine/model.h"
#include "examples/engine/step_runner.h"
#include "kvblocks/attention.h"
#include "kvblocks/plan.h"
#include "sim/simulation_config.h"

namespace kvblocks::engine {

class ModelRunner final : public StepRunner {
 public:
  // Model and place must outlive it; null: the host. Refuses plans with caches that the model's
  // layers do not read.
  static absl::StatusOr<std::unique_ptr<ModelRunner>> Create(const Model& model, const Plan& plan,
                                                             const sim::SimulationConfig& config,
                                                             RunnerOptions options,
                                                             AttentionPlace* place = nullptr);

 private:
  struct Layer {
    std::unique_ptr<attention::AttentionImpl> impl;
    attention::KvCacheView cache;
    int metadata = 0;  // which of the builder's
    // Of sparse layers: their further caches, and metadata of those of V4.
    attention::SparseTensors sparse;
    int compressed = 0, states = 0;
    AttentionPlace::Memory work_memory;
  };

  ModelRunner(const Model& model, RunnerOptions options, AttentionPlace* place);
  absl::Status AddLayers();
  absl::StatusOr<attention::IndexCacheView> IndexCacheOf(const LayerMemory& layer, int64_t dim);
  absl::Status AddSparseCaches(const attention::LayerConfig& config, Layer& layer,
                               size_t* num_caches);
  absl::Status AddSparseWork(const sim::SimulationConfig& config);
  absl::Status Run(const sim::StepRecord& step) override;
  // By the window of a layer, if some request of the step has a mask: what all new tokens see.
  absl::StatusOr<std::map<int64_t, attention::MaskRef>> MasksOf(const sim::StepRecord& step);
  absl::Status AddBlender();
  // Row by row of the batch, of prompts that this step ends.
  absl::StatusOr<std::vector<std::optional<attention::BlendSession>>> SessionsOf(
      const sim::StepRecord& step) const;
  absl::Status KeepChunks(const sim::StepRecord& step);
  absl::Status Attend(const Layer& layer, const attention::LayerTensors& tensors,
                      const std::map<int64_t, attention::MaskRef>& masks);

  const Model& model_;
  attention::ThreadPool threads_;
  AttentionPlace host_;
  AttentionPlace& place_;
  std::vector<Layer> layers_;  // of the model
  std::optional<attention::AttentionMetadataBuilder> builder_;
  attention::AttentionMaskBuilder masks_;
  std::optional<Blender> blender_;  // if some request is one of chunks
};

}  // namespace kvblocks::engine

#endif  // KVBLOCKS_EXAMPLES_ENGINE_MODEL_RUNNER_H_
