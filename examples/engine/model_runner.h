// ModelRunner: computes the steps that the simulator's scheduler decides, on the block tables of
// its block manager. To the simulation it is an observer that also says how long each step took.
//
//   auto runner = ModelRunner::Create(model, plan, simulation_config, options);
//   Simulation::Create(config, reader, /*step_time=*/runner->get(), {runner->get(), ...});
//
// In OnStepScheduled blocks are taken, and nothing of the step is known to anybody else. There the
// runner builds the batch's metadata, once per KV-cache group, runs the model, whose layers store
// and attend in the memory that the plan lays out, and samples. A sampled token goes to
// spec.output_ids, which must have room for it: that is where the scheduler finds what later blocks
// are hashed from, and the next step its input. Drafts are verified, and how many were accepted
// goes to spec.accepted_drafts, which the scheduler reads likewise.
//
// The first error stays in status(), and nothing is computed behind it. Single-threaded, but for
// the threads of matrix products and attention.

#ifndef KVBLOCKS_EXAMPLES_ENGINE_MODEL_RUNNER_H_
#define KVBLOCKS_EXAMPLES_ENGINE_MODEL_RUNNER_H_

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <random>
#include <string_view>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "examples/engine/model.h"
#include "kvblocks/attention.h"
#include "kvblocks/plan.h"
#include "kvblocks/planned_memory.h"
#include "sim/cost/step_time_model.h"
#include "sim/engine/engine_observer.h"
#include "sim/simulation_config.h"

namespace kvblocks::engine {

struct RunnerOptions {
  attention::KvLayout kv_layout = attention::KvLayout::kNhd;  // of caches with heads
  int64_t kernel_blocks = 1;                                  // that a page of the plan is
  int threads = 0;        // of attention and matrix products; 0: one per processor
  float temperature = 0;  // 0: greedy
  uint64_t seed = 0;      // of sampling
  // Told of each token that is sampled, by its place in the output, and what from.
  std::function<void(const sim::SimRequest&, int64_t index, absl::Span<const float> logits)>
      on_logits = nullptr;
};

class ModelRunner final : public sim::EngineObserver, public sim::StepTimeModel {
 public:
  // The model must outlive it. Refuses plans with caches that the model's layers do not read.
  static absl::StatusOr<std::unique_ptr<ModelRunner>> Create(const Model& model, const Plan& plan,
                                                             const sim::SimulationConfig& config,
                                                             RunnerOptions options);

  const absl::Status& status() const { return status_; }
  // Of the cache, in the plan's tensors.
  const PlannedMemory& memory() const { return *memory_; }

  void OnRunStart(const sim::RunInfo& info) override { manager_ = info.manager; }
  void OnStepScheduled(const sim::StepRecord& step) override;

  // What the step that was scheduled last took.
  absl::StatusOr<sim::SimTime> StepTime(absl::Span<const sim::SequenceWork> work,
                                        const sim::Decodes& decodes) const override;
  bool adds_up_decodes() const override { return false; }
  std::string_view source() const override { return "measured on this machine"; }

 private:
  struct Layer {
    std::unique_ptr<attention::AttentionImpl> impl;
    attention::KvCacheView cache;
    attention::IndexCacheView index_cache;  // of sparse layers
    int metadata = 0;                       // which of the builder's
  };

  ModelRunner(const Model& model, RunnerOptions options);
  absl::Status AddLayers();
  absl::StatusOr<attention::IndexCacheView> IndexCacheOf(const LayerMemory& layer, int64_t dim);
  absl::Status AddSparseWork(const sim::SimulationConfig& config);
  int MetadataOf(const LayerMemory& layer);
  absl::Status Build(const sim::StepRecord& step);
  absl::Status Run(const sim::StepRecord& step);
  // A request that gets a token or more.
  struct Sampled {
    const sim::ScheduledRecord* record = nullptr;
    std::vector<int32_t> drafts;
  };
  static std::vector<int32_t> KnownTokens(const sim::SimRequest& request, int64_t begin,
                                          int64_t end);
  void Sample(const Sampled& sampled, absl::Span<const float> logits, size_t vocabulary);

  const Model& model_;
  const RunnerOptions options_;
  attention::ThreadPool threads_;
  std::mt19937_64 random_;
  std::optional<PlannedMemory> memory_;
  std::vector<Layer> layers_;  // of the model
  std::vector<std::byte> work_memory_;
  attention::SparseWork work_;                           // of all sparse layers
  std::vector<int> groups_;                              // the manager's group of each metadata
  std::vector<attention::KvGroupConfig> group_configs_;  // likewise
  std::optional<attention::AttentionMetadataBuilder> builder_;
  const KvCacheManager* manager_ = nullptr;
  sim::SimTime step_time_ = 1;
  absl::Status status_;

  std::vector<attention::RequestInput> inputs_;  // scratch of a step
  std::vector<absl::Span<const int32_t>> tables_;
};

}  // namespace kvblocks::engine

#endif  // KVBLOCKS_EXAMPLES_ENGINE_MODEL_RUNNER_H_
