// Model: a decoder of a Hugging Face checkpoint, all of it but attention, which the caller does.
//
//   auto model = Model::Load(folder);
//   auto logits = model->Forward({.tokens = ids, .positions = positions, .rows = last},
//                                [&](int64_t layer, const attention::LayerTensors& tensors) {...});
//
// One code runs Llama, Mistral, Qwen, Gemma, gpt-oss and DeepSeek: what differs is in the
// configuration and in which weights there are. V4's layers have a file of their own. Queries and
// keys come rotated; those of latent attention are in the form that AttentionLayer takes: the query
// absorbed, the latent row and its rotary part in place of keys and values.
//
// Cost: the matrix products; activations are allocated per step. Never changes after Load.

#ifndef KVBLOCKS_EXAMPLES_ENGINE_MODEL_H_
#define KVBLOCKS_EXAMPLES_ENGINE_MODEL_H_

#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "absl/functional/function_ref.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "examples/engine/model_config.h"
#include "examples/engine/weights.h"
#include "kvblocks/attention_backend.h"

namespace kvblocks::engine {

class Model {
 public:
  // T tokens of all requests, one after another.
  struct Step {
    absl::Span<const int32_t> tokens, positions;  // [T]
    absl::Span<const int32_t> rows;               // whose logits are wanted
  };
  // Stores the layer's new keys and values and fills `out`.
  using Attend = absl::FunctionRef<absl::Status(int64_t layer, const attention::LayerTensors&)>;

  // A folder with config.json and model*.safetensors.
  static absl::StatusOr<Model> Load(const std::string& folder);
  // REQUIRES: weights of the shapes that the configuration says.
  static Model Of(ModelConfig config, Weights weights) {
    return Model(std::move(config), std::move(weights));
  }

  const ModelConfig& config() const { return config_; }
  const Weights& weights() const { return weights_; }
  // What attention must know of a layer, which has the name of its cache in a plan; its sinks are a
  // view of the model's.
  attention::LayerConfig AttentionOf(int64_t layer) const;

  // The logits of step.rows, [rows, vocabulary]. InvalidArgument for a token that is none of the
  // vocabulary; else errors are attend's.
  absl::StatusOr<std::vector<float>> Forward(const Step& step, Attend attend) const;

  // The same in parts, for whoever has more to do between them: rows of the embedding; what a layer
  // that is not latent makes of rows, not rotated; what it adds to them once they attended; and
  // logits of final rows.
  struct Heads {
    std::vector<float> q, k, v;
  };
  absl::StatusOr<std::vector<float>> Embed(absl::Span<const int32_t> tokens) const;
  Heads Project(int64_t layer, const std::vector<float>& x) const;
  void Finish(int64_t layer, const std::vector<float>& attended, std::vector<float>& x) const;
  std::vector<float> LogitsOf(std::vector<float> rows) const;

 private:
  Model(ModelConfig config, Weights weights);

  // [T, heads, head size], before the layer's last product; of `x` as the layer gets it.
  absl::StatusOr<std::vector<float>> Attention(int64_t layer, const Step& step,
                                               const std::vector<float>& x, Attend attend) const;
  absl::StatusOr<std::vector<float>> LatentAttention(int64_t layer, const Step& step,
                                                     const std::vector<float>& x,
                                                     Attend attend) const;
  struct Index {
    std::vector<float> q, k, weights;
  };
  Index MakeIndex(const IndexerWeights& weights, const Step& step, const std::vector<float>& x,
                  const std::vector<float>& queries) const;
  std::vector<float> Dense(const Mlp& mlp, absl::Span<const float> x) const;
  // `tokens` are read where they choose the experts.
  std::vector<float> Feed(const LayerWeights& layer, const std::vector<float>& x,
                          absl::Span<const int32_t> tokens = {}) const;

  // DeepSeek V4 (model_v4.cc). Of streams [T, M, hidden]: how a part of a layer takes and gives.
  struct Mix {
    std::vector<float> collapsed;  // [T, hidden]
    std::vector<float> post;       // [T, M]: of the part's output, to each stream
    std::vector<float> streams;    // [T, M, M]: of each stream, to each
  };
  absl::StatusOr<std::vector<float>> ForwardStreams(const Step& step, Attend attend) const;
  absl::StatusOr<std::vector<float>> CompressedAttention(int64_t layer, const Step& step,
                                                         const std::vector<float>& x,
                                                         Attend attend) const;
  Mix MixOf(const MixWeights& weights, const std::vector<float>& streams) const;
  std::vector<float> Spread(const Mix& mix, const std::vector<float>& out,
                            const std::vector<float>& streams) const;
  void ConfigureCompressed(int64_t layer, attention::LayerConfig* config) const;

  ModelConfig config_;
  Weights weights_;
  std::vector<float> cos_sin_;  // V4's, of compressed rows: [positions, rotated values]
};

}  // namespace kvblocks::engine

#endif  // KVBLOCKS_EXAMPLES_ENGINE_MODEL_H_
