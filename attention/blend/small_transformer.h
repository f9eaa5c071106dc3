// SmallTransformer: a decoder of random weights in plain code, to show and test what blending of
// cached chunks does to a model's output.
//
// Pre-norm layers of grouped-query attention and SwiGLU, RMSNorm without weights, rotary embedding,
// tied embedding and output head. Weights are normal, scaled by fan-in, and follow from the seed
// alone. Every row is computed by itself, in float64 in a fixed order, and rounded to float32 per
// layer, so a row's bits do not depend on what else is in a batch. Nothing is trained: outputs mean
// nothing, differences between them do.

#ifndef KVBLOCKS_ATTENTION_BLEND_SMALL_TRANSFORMER_H_
#define KVBLOCKS_ATTENTION_BLEND_SMALL_TRANSFORMER_H_

#include <cstdint>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "kvblocks/attention/blend/blend_run.h"
#include "kvblocks/attention/ops/attention_ops.h"

namespace kvblocks::attention {

struct SmallTransformerConfig {
  int num_layers = 6;
  int64_t vocabulary = 128;
  int64_t hidden_size = 48;
  int64_t num_heads = 4, num_kv_heads = 2, head_dim = 12;
  int64_t ffn_size = 96;
  double theta = 10000;
  // Queries times this: how far attention is from the mean over all keys.
  double sharpness = 1;
  uint64_t seed = 1;
};

// A prompt prefilled in full.
struct PrefilledPrompt {
  std::vector<int32_t> ids;
  std::vector<float> hidden;             // [n, E], final
  std::vector<std::vector<float>> k, v;  // [layer]: [n, Hkv, D], K not rotated
};

class SmallTransformer {
 public:
  explicit SmallTransformer(const SmallTransformerConfig& config);

  const SmallTransformerConfig& config() const { return config_; }
  // Shapes and rotary embedding filled in; check layers, ranking and mask at their defaults.
  BlendConfig blend_config() const;

  std::vector<float> Embed(absl::Span<const int32_t> ids) const;  // [n, E]
  // Of one final hidden row.
  std::vector<double> Logits(absl::Span<const float> hidden) const;

  // The callbacks of a layer, over float32 rows.
  absl::Status Project(int layer, const ConstTensorView& hidden, const TensorView& q,
                       const TensorView& k, const TensorView& v) const;
  absl::Status Finish(int layer, const ConstTensorView& attention, const TensorView& hidden) const;
  // With `ops` for attention. Both must outlive the result.
  BlendModel Model(const AttentionOps& ops, const ExecContext& context) const;

  // Plain causal prefill of a prompt alone, without any of the blending code.
  absl::StatusOr<PrefilledPrompt> Prefill(const AttentionOps& ops, const ExecContext& context,
                                          absl::Span<const int32_t> ids) const;

 private:
  struct Layer {
    std::vector<float> q, k, v;   // [out, E]
    std::vector<float> o;         // [E, H * D]
    std::vector<float> gate, up;  // [F, E]
    std::vector<float> down;      // [E, F]
  };

  SmallTransformerConfig config_;
  std::vector<float> embedding_;  // [vocabulary, E]
  std::vector<Layer> layers_;
};

// The chunk of a prompt that was prefilled alone; views on `prompt`, which must outlive them.
struct ChunkViews {
  ChunkViews() = default;
  ChunkViews(ChunkViews&&) = default;  // a copy's chunk would look into the original
  ChunkViews& operator=(ChunkViews&&) = default;

  std::vector<ConstTensorView> k, v;
  BlendChunk chunk;
};
ChunkViews ViewsOf(const PrefilledPrompt& prompt, const SmallTransformerConfig& config,
                   int64_t num_leading_tokens);

}  // namespace kvblocks::attention

#endif  // KVBLOCKS_ATTENTION_BLEND_SMALL_TRANSFORMER_H_
