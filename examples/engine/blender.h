// Blender: CacheBlend of an engine (kvblocks/cache_blend.h). It keeps what prompts that are chunks
// of others left in the cache, and runs steps in which such others are prefilled.
//
// Chunks are found by their tokens; of a prompt those are blended that come before the first one
// that is not kept. For models whose attention RunBlend computes: heads in one KV group, without
// windows, positions turned by the powers of one base. Memory: what was kept, in float32 where the
// caches are, for good.

#ifndef KVBLOCKS_EXAMPLES_ENGINE_BLENDER_H_
#define KVBLOCKS_EXAMPLES_ENGINE_BLENDER_H_

#include <cstdint>
#include <map>
#include <optional>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "examples/engine/attention_place.h"
#include "examples/engine/model.h"
#include "kvblocks/attention.h"
#include "kvblocks/cache_blend.h"

namespace kvblocks::engine {

class Blender {
 public:
  // Unimplemented says what of the model cannot be blended.
  static absl::Status Check(const Model& model);
  // Layers as they attend, by `configs`, and their caches; `ratio`: of the chunks' tokens, how many
  // are computed again behind the first layer. The model, which Check must take, and the place of
  // the caches must outlive it.
  static absl::StatusOr<Blender> Create(const Model& model,
                                        std::vector<attention::BlendLayer> layers,
                                        std::vector<attention::LayerConfig> configs, double ratio,
                                        AttentionPlace* place);

  // Keeps keys and values of row `row` of the place's batch whose prompt, the tokens, has been
  // computed.
  absl::Status Keep(const std::vector<int32_t>& tokens, int64_t row);
  // Of a prompt that begins with chunks of these lengths, so many of whose tokens are computed;
  // none if nothing can be reused. Views on what is kept.
  absl::StatusOr<std::optional<attention::BlendSession>> SessionOf(absl::Span<const int32_t> tokens,
                                                                   absl::Span<const int64_t> chunks,
                                                                   int64_t num_computed) const;
  // A step of `tokens`, with a session or null for each row of the batch. Logits of `rows` of them,
  // which sessions must be left with: behind their chunks. Of hooks, or null, layers wait.
  absl::StatusOr<std::vector<float>> Run(absl::Span<const attention::BlendSession* const> sessions,
                                         const Model::Step& step, attention::LayerHooks* hooks,
                                         std::vector<attention::BlendLayerReport>* report) const;

 private:
  struct Kept {
    AttentionPlace::Memory memory;
    std::vector<attention::ConstTensorView> k, v;  // per layer [tokens, Hkv, D], keys as cached
    std::vector<int32_t> positions;
  };

  Blender(const Model& model, attention::BlendConfig config,
          std::vector<attention::BlendLayer> layers, std::vector<attention::LayerConfig> configs,
          AttentionPlace* place)
      : model_(&model),
        config_(std::move(config)),
        layers_(std::move(layers)),
        configs_(std::move(configs)),
        place_(place) {}

  const Model* model_;
  attention::BlendConfig config_;
  std::vector<attention::BlendLayer> layers_;
  std::vector<attention::LayerConfig> configs_;
  AttentionPlace* place_;
  std::map<std::vector<int32_t>, Kept> kept_;  // by tokens
};

}  // namespace kvblocks::engine

#endif  // KVBLOCKS_EXAMPLES_ENGINE_BLENDER_H_
