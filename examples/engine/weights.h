// Weights of a model, read from its safetensors by Hugging Face's names and turned into the form
// that the math takes: float32, one matrix per product.
//
// Each tensor must have the shape that the configuration says; what is there beside the expected is
// not read. Memory: four bytes per parameter.

#ifndef KVBLOCKS_EXAMPLES_ENGINE_WEIGHTS_H_
#define KVBLOCKS_EXAMPLES_ENGINE_WEIGHTS_H_

#include <cstdint>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "examples/engine/math.h"
#include "examples/engine/model_config.h"
#include "examples/engine/safetensors.h"

namespace kvblocks::engine {

struct Mlp {
  Linear gate, up, down;
};

// DeepSeek V3.2's indexer, which chooses the rows that a query reads.
struct IndexerWeights {
  Linear q, k, weights;
  std::vector<float> norm, norm_bias;  // of keys
};

// H heads, N and P values of a head without and with position, R of a latent row, V of a value.
struct LatentWeights {
  Linear q_down;  // absent: `LayerWeights::q` takes the layer's input
  std::vector<float> q_norm;
  Linear kv_down;               // to R and P values
  std::vector<float> row_norm;  // of R
  std::vector<float> keys;      // [H, N, R]: of a head's query to one of latent rows
  std::vector<float> values;    // [H, V, R]: of latent rows to a head's output
  IndexerWeights indexer;       // or absent
};

// DeepSeek V4: what makes rows that stand for several tokens.
struct CompressorWeights {
  Linear kv, score;
  std::vector<float> bias, norm;
};

// Its attention, whose rows are keys and values at once.
struct CompressedWeights {
  Linear q_down, kv, o_down;  // o_down [G * rank, H * D / G]: of each of G groups of heads its own
  std::vector<float> q_norm, kv_norm;
  CompressorWeights rows, index;  // of some layers
  Linear index_q, index_weights;
};

// How a layer collapses a token's streams, and spreads what it makes of them.
struct MixWeights {
  Linear project;
  std::vector<float> base, scale;
};

struct LayerWeights {
  std::vector<float> attention_norm, mlp_norm;
  std::vector<float> after_attention_norm, after_mlp_norm;  // of some models; else empty
  std::vector<float> q_norm, k_norm;                        // per head; likewise
  Linear q, k, v, o;
  LatentWeights latent;
  std::vector<float> sinks;
  Mlp mlp;  // of a dense layer, or the experts that all tokens take
  Linear router;
  std::vector<float> router_bias;  // of the choice alone; or empty
  std::vector<Mlp> experts;
  std::vector<int32_t> fixed_experts;  // [vocabulary, per token], or empty
  CompressedWeights compressed;
  MixWeights attention_mix, mlp_mix;
};

struct Weights {
  Linear embedding;  // [vocabulary, hidden]
  Linear head;       // absent: the embedding
  std::vector<float> norm;
  MixWeights mix;  // V4's, of final streams
  std::vector<LayerWeights> layers;
};

absl::StatusOr<Weights> ReadWeights(const Safetensors& tensors, const ModelConfig& config);

// MXFP4, as gpt-oss is published: rows of `in` values, two codes a byte, the low half first, and a
// power of two per 32 values; [experts, out, in] -> [experts, in, out].
std::vector<float> DequantiseMxfp4(absl::Span<const uint8_t> blocks,
                                   absl::Span<const uint8_t> scales, int64_t in, int64_t out);

}  // namespace kvblocks::engine

#endif  // KVBLOCKS_EXAMPLES_ENGINE_WEIGHTS_H_
