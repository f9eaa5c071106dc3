// ModelConfig: what the engine must know of a model beside the facts that its cache is planned
// from: norms, scales, soft caps, rotary embeddings, routing.
//
// All of it comes from the config.json of a checkpoint. ModelFromHfConfig checks the text and reads
// the facts; what is read here is a number in a range or a word of a list. Errors read
// "FILE: FIELD: got VALUE, expected WHAT".

#ifndef KVBLOCKS_EXAMPLES_ENGINE_MODEL_CONFIG_H_
#define KVBLOCKS_EXAMPLES_ENGINE_MODEL_CONFIG_H_

#include <algorithm>
#include <cstdint>
#include <string>

#include "absl/status/statusor.h"
#include "examples/engine/math.h"
#include "examples/engine/routing.h"
#include "kvblocks/model_facts.h"

namespace kvblocks::engine {

struct ModelConfig {
  ModelFacts facts;
  float norm_eps = 1e-6f;
  // Norms multiply by 1 + weight, stand behind attention and MLP, too, and embeddings are scaled by
  // the root of their size.
  bool is_gemma = false;
  Activation activation;
  float attention_scale = 0;                         // 0: the root of the head's size
  float attention_soft_cap = 0, logit_soft_cap = 0;  // 0: none
  Rotary rotary;
  Rotary window_rotary;  // of layers with a window, and of V4 with nothing else
  // Layers with experts: from this one on, every `expert_layer_step`th.
  int64_t first_expert_layer = 0, expert_layer_step = 1;
  Routing routing;
  int64_t num_fixed_layers = 0;  // the first ones, where a token's id says which experts it takes
  // DeepSeek V4: streams of each token, that layers mix in so many rounds; 1: the token itself.
  int64_t num_streams = 1, mix_rounds = 0;
  float mix_eps = 0;

  // That compressed rows can have; a table of them is made.
  int64_t num_positions() const {
    return std::min<int64_t>(facts.max_position_embeddings, int64_t{1} << 20);
  }
  bool has_experts(int64_t layer) const {
    return facts.experts && layer >= first_expert_layer && layer % expert_layer_step == 0;
  }
};

// InvalidArgument also for models that the catalogue knows and the engine does not run.
absl::StatusOr<ModelConfig> ReadModelConfig(const std::string& path);

}  // namespace kvblocks::engine

#endif  // KVBLOCKS_EXAMPLES_ENGINE_MODEL_CONFIG_H_
