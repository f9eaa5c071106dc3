// StepRunner: what runners of the simulator's steps have in common, whatever they compute on.
//
// To the simulation a runner is an observer that also says how long each step took. In
// OnStepScheduled blocks are taken, and nothing of the step is known to anybody else. There it runs
// the step. A sampled token goes to spec.output_ids, which must have room for it: that is where the
// scheduler finds what later blocks are hashed from, and the next step its input. Drafts are
// verified, and how many were accepted goes to spec.accepted_drafts, which the scheduler reads
// likewise.
//
// The first error stays in status(), and nothing is computed behind it. Single-threaded.

#ifndef KVBLOCKS_EXAMPLES_ENGINE_STEP_RUNNER_H_
#define KVBLOCKS_EXAMPLES_ENGINE_STEP_RUNNER_H_

#include <cstddef>
#include <cstdint>
#include <functional>
#include <optional>
#include <random>
#include <string_view>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "examples/engine/attention_place.h"
#include "examples/engine/request_attention.h"
#include "kvblocks/attention.h"
#include "kvblocks/cache_blend.h"
#include "kvblocks/plan.h"
#include "kvblocks/planned_memory.h"
#include "sim/cost/step_time_model.h"
#include "sim/engine/engine_observer.h"
#include "sim/simulation_config.h"

namespace kvblocks::engine {

// Drafts of an n-gram drafter, `count` tokens for behind `known`: those behind the latest earlier
// place of its last three tokens, or two, or one; where nothing is left, the last token again.
// O(known). REQUIRES: known is not empty.
std::vector<int32_t> NgramDrafts(absl::Span<const int32_t> known, int64_t count);

struct RunnerOptions {
  attention::KvLayout kv_layout = attention::KvLayout::kNhd;  // of caches with heads
  int64_t kernel_blocks = 1;                                  // that a page of the plan is
  int threads = 0;                  // of attention and matrix products; 0: one per processor
  float temperature = 0;            // 0: greedy
  uint64_t seed = 0;                // of sampling
  RequestAttentions requests = {};  // those that ask for more than causal attention
  double blend_ratio = 0.16;        // of the tokens of blended chunks, to be computed again
  // Called for each token that is sampled, by its place in the output, and what from.
  std::function<void(const sim::SimRequest&, int64_t index, absl::Span<const float> logits)>
      on_logits = nullptr;
  // Called for each step in which prompts were blended, by layer.
  std::function<void(absl::Span<const attention::BlendLayerReport>)> on_blend = nullptr;
};

class StepRunner : public sim::EngineObserver, public sim::StepTimeModel {
 public:
  const absl::Status& status() const { return status_; }
  const RunnerOptions& options() const { return options_; }
  // Around the attention of each layer; null: none. Must outlive the steps.
  void set_hooks(attention::LayerHooks* hooks) { hooks_ = hooks; }
  // Of the cache, in the plan's tensors.
  const PlannedMemory& memory() const { return *memory_; }

  void OnRunStart(const sim::RunInfo& info) override { manager_ = info.manager; }
  void OnStepScheduled(const sim::StepRecord& step) override;

  // What the step that was scheduled last took.
  absl::StatusOr<sim::SimTime> StepTimeAmong(absl::Span<const sim::SequenceWork> work,
                                             const sim::Decodes& decodes,
                                             const sim::StepPeers& peers) const override;
  bool adds_up_decodes() const override { return false; }
  std::string_view source() const override { return "measured on this machine"; }

 protected:
  // A request that gets a token or more.
  struct Sampled {
    const sim::ScheduledRecord* record = nullptr;
    std::vector<int32_t> drafts;
  };
  // The tokens of a step, request by request, and the rows that tokens are sampled from: of each
  // of `sampled` one, and one behind each draft.
  struct StepTokens {
    std::vector<int32_t> tokens, positions, rows;
    std::vector<Sampled> sampled;
  };

  explicit StepRunner(RunnerOptions options)
      : options_(std::move(options)), random_(options_.seed) {}

  // Tokens [begin, end) of prompt and output.
  static std::vector<int32_t> KnownTokens(const sim::SimRequest& request, int64_t begin,
                                          int64_t end);
  // Null: causal attention.
  const RequestAttention* AttentionOf(const sim::SimRequest& request) const;
  // Unimplemented for what no runner here does.
  static absl::Status CheckConfig(const sim::SimulationConfig& config);
  // Fills memory_ with what the plan asks for, in tensors of the place.
  absl::Status TakeMemory(const Plan& plan, AttentionPlace& place);
  // A layer's cache and which metadata it reads; Unimplemented or InvalidArgument if memory_ has
  // none that it can attend to.
  absl::StatusOr<attention::KvCacheView> CacheOf(const attention::LayerConfig& config,
                                                 int* metadata);
  // Which metadata a layer reads; layers of one group whose blocks have the same numbers share it.
  int MetadataOf(const LayerMemory& layer);
  attention::MetadataBuilderOptions BuilderOptions(const sim::SimulationConfig& config) const;

  // Computes the step and hands what it sampled to Take.
  virtual absl::Status Run(const sim::StepRecord& step) = 0;
  // For the metadata builder; good until the next call.
  absl::StatusOr<attention::BatchInput> InputOf(const sim::StepRecord& step);
  // `permutation`: the builder's order of requests.
  static StepTokens TokensOf(const sim::StepRecord& step, absl::Span<const int32_t> permutation);
  // Whether some request of the step has a mask.
  bool IsMasked(const sim::StepRecord& step) const;
  // What all new tokens see in a layer with this window, or 0, row by row of the batch.
  absl::StatusOr<attention::MaskRef> MaskOf(const sim::StepRecord& step,
                                            absl::Span<const int32_t> permutation, int64_t window,
                                            attention::AttentionMaskBuilder& masks) const;
  // By the rows of `tokens`: logits [rows, vocabulary], the likeliest tokens, or both. The latter
  // alone is enough unless wants_logits().
  void Take(const StepTokens& tokens, absl::Span<const float> logits,
            absl::Span<const int32_t> greedy = {});
  bool wants_logits() const { return options_.temperature > 0 || options_.on_logits; }

  const RunnerOptions options_;
  attention::LayerHooks* hooks_ = nullptr;
  std::vector<AttentionPlace::Memory> tensors_;  // the plan's
  std::optional<PlannedMemory> memory_;
  std::vector<int> groups_;                              // the manager's group of each metadata
  std::vector<attention::KvGroupConfig> group_configs_;  // likewise

 private:
  void Sample(const Sampled& sampled, absl::Span<const float> logits,
              absl::Span<const int32_t> greedy);

  std::mt19937_64 random_;
  const KvCacheManager* manager_ = nullptr;
  sim::SimTime step_time_ = 1;
  absl::Status status_;

  std::vector<attention::RequestInput> inputs_;  // scratch of a step
  std::vector<absl::Span<const int32_t>> tables_;
};

}  // namespace kvblocks::engine

#endif  // KVBLOCKS_EXAMPLES_ENGINE_STEP_RUNNER_H_
