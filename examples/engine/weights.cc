#include "examples/engine/weights.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <string>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/types/span.h"

namespace kvblocks::engine {
namespace {

// The first error stays; what is read behind it is empty.
class Reader {
 public:
  Reader(const Safetensors& tensors, const ModelConfig& config)
      : tensors_(tensors), config_(config), facts_(config.facts) {}

  std::vector<float> Floats(const std::string& name, const std::vector<int64_t>& shape) {
    if (!status_.ok()) return {};
    auto values = tensors_.Floats(name, shape);
    if (values.ok()) return *std::move(values);
    status_ = values.status();
    return {};
  }
  std::vector<float> Norm(const std::string& name, int64_t size) {
    std::vector<float> weight = Floats(name + ".weight", {size});
    for (float& value : weight) value += config_.is_gemma ? 1.0f : 0.0f;
    return weight;
  }
  Linear Matrix(const std::string& name, int64_t in, int64_t out) {
    Linear linear{.in = in, .out = out, .weight = Floats(name + ".weight", {out, in})};
    if (tensors_.Has(name + ".bias")) linear.bias = Floats(name + ".bias", {out});
    return linear;
  }

  Mlp ReadMlp(const std::string& name, int64_t size) {
    const int64_t hidden = facts_.hidden_size;
    const bool v4 = facts_.compressed.has_value();
    return {.gate = Matrix(name + (v4 ? ".w1" : ".gate_proj"), hidden, size),
            .up = Matrix(name + (v4 ? ".w3" : ".up_proj"), hidden, size),
            .down = Matrix(name + (v4 ? ".w2" : ".down_proj"), size, hidden)};
  }
  void ReadAttention(const std::string& name, LayerWeights& layer);
  void ReadLatent(const std::string& name, LayerWeights& layer);
  void ReadExperts(const std::string& name, LayerWeights& layer);
  void ReadFusedExperts(const std::string& name, LayerWeights& layer);
  // [experts, in, out] of a fused tensor, dequantised if it is in MXFP4.
  std::vector<float> FusedWeights(const std::string& name, int64_t in, int64_t out);
  LayerWeights ReadLayer(int64_t index);
  LayerWeights ReadCompressedLayer(int64_t index);
  MixWeights ReadMix(const std::string& name, int64_t out, int64_t scales);
  CompressorWeights ReadCompressor(const std::string& name, int64_t ratio, int64_t size);

  const absl::Status& status() const { return status_; }

 private:
  const Safetensors& tensors_;
  const ModelConfig& config_;
  const ModelFacts& facts_;
  absl::Status status_;
};

void Reader::ReadAttention(const std::string& name, LayerWeights& layer) {
  const int64_t hidden = facts_.hidden_size, size = facts_.head_size;
  const int64_t queries = facts_.num_heads * size, keys = facts_.num_kv_heads * size;
  layer.q = Matrix(name + ".q_proj", hidden, queries);
  layer.k = Matrix(name + ".k_proj", hidden, keys);
  layer.v = Matrix(name + ".v_proj", hidden, keys);
  layer.o = Matrix(name + ".o_proj", queries, hidden);
  if (tensors_.Has(name + ".q_norm.weight")) {
    layer.q_norm = Norm(name + ".q_norm", size);
    layer.k_norm = Norm(name + ".k_norm", size);
  }
  if (facts_.sink_bias) layer.sinks = Floats(name + ".sinks", {facts_.num_heads});
}

void Reader::ReadLatent(const std::string& name, LayerWeights& layer) {
  const LatentFacts& latent = *facts_.latent;
  const int64_t hidden = facts_.hidden_size, heads = facts_.num_heads, rank = latent.kv_lora_rank;
  const int64_t plain = latent.qk_nope_head_dim, values = latent.v_head_dim;
  const int64_t queries = heads * (plain + latent.qk_rope_head_dim);
  if (latent.q_lora_rank > 0) {
    layer.latent.q_down = Matrix(name + ".q_a_proj", hidden, latent.q_lora_rank);
    layer.latent.q_norm = Norm(name + ".q_a_layernorm", latent.q_lora_rank);
    layer.q = Matrix(name + ".q_b_proj", latent.q_lora_rank, queries);
  } else {
    layer.q = Matrix(name + ".q_proj", hidden, queries);
  }
  layer.latent.kv_down =
      Matrix(name + ".kv_a_proj_with_mqa", hidden, rank + latent.qk_rope_head_dim);
  layer.latent.row_norm = Norm(name + ".kv_a_layernorm", rank);
  layer.o = Matrix(name + ".o_proj", heads * values, hidden);
  if (facts_.indexer) {
    const IndexerFacts& index = *facts_.indexer;
    const std::string own = name + ".indexer";
    layer.latent.indexer = {
        .q = Matrix(own + ".wq_b", latent.q_lora_rank, index.num_heads * index.head_dim),
        .k = Matrix(own + ".wk", hidden, index.head_dim),
        .weights = Matrix(own + ".weights_proj", hidden, index.num_heads),
        .norm = Floats(own + ".k_norm.weight", {index.head_dim}),
        .norm_bias = Floats(own + ".k_norm.bias", {index.head_dim})};
  }
  const Linear up = Matrix(name + ".kv_b_proj", rank, heads * (plain + values));
  if (up.absent()) return;
  auto row = up.weight.begin();
  for (int64_t h = 0; h < heads; ++h) {
    layer.latent.keys.insert(layer.latent.keys.end(), row, row + plain * rank);
    row += plain * rank;
    layer.latent.values.insert(layer.latent.values.end(), row, row + values * rank);
    row += values * rank;
  }
}

void Reader::ReadExperts(const std::string& name, LayerWeights& layer) {
  const ExpertFacts& experts = *facts_.experts;
  layer.router = Matrix(name + ".gate", facts_.hidden_size, experts.num_experts);
  if (facts_.compressed) layer.router.bias.clear();  // V4's is of the choice alone
  if (config_.routing.scores == Routing::Scores::kSigmoid) {
    layer.router_bias = Floats(name + ".gate.e_score_correction_bias", {experts.num_experts});
  }
  for (int64_t e = 0; e < experts.num_experts && status_.ok(); ++e) {
    layer.experts.push_back(ReadMlp(absl::StrCat(name, ".experts.", e), experts.intermediate_size));
  }
  if (experts.num_shared_experts > 0 || facts_.compressed) {
    layer.mlp = ReadMlp(name + ".shared_experts", experts.shared_intermediate_size);
  }
}

std::vector<float> Reader::FusedWeights(const std::string& name, int64_t in, int64_t out) {
  const int64_t experts = facts_.experts->num_experts;
  if (!tensors_.Has(name + "_blocks")) return Floats(name, {experts, in, out});
  const auto blocks = tensors_.Bytes(name + "_blocks", {experts, out, in / 32, 16});
  const auto scales = tensors_.Bytes(name + "_scales", {experts, out, in / 32});
  for (const auto& status : {blocks.status(), scales.status()}) status_.Update(status);
  if (!status_.ok()) return {};
  return DequantiseMxfp4(*blocks, *scales, in, out);
}

// gpt-oss: all experts in one tensor, [in, out] each, columns of gate and up by turns.
void Reader::ReadFusedExperts(const std::string& name, LayerWeights& layer) {
  const int64_t hidden = facts_.hidden_size, size = facts_.experts->intermediate_size;
  const int64_t experts = facts_.experts->num_experts;
  layer.router = Matrix(name + ".router", hidden, experts);
  const auto both = FusedWeights(name + ".experts.gate_up_proj", hidden, 2 * size);
  const auto both_bias = Floats(name + ".experts.gate_up_proj_bias", {experts, 2 * size});
  const auto down = FusedWeights(name + ".experts.down_proj", size, hidden);
  const auto down_bias = Floats(name + ".experts.down_proj_bias", {experts, hidden});
  if (!status_.ok()) return;
  // Every `step`th column of an expert from `first` on, as rows.
  const auto take = [](const std::vector<float>& weights, const std::vector<float>& bias,
                       int64_t expert, int64_t in, int64_t columns, int64_t first, int64_t step) {
    Linear linear{.in = in, .out = columns / step};
    for (int64_t column = first; column < columns; column += step) {
      for (int64_t i = 0; i < in; ++i) {
        linear.weight.push_back(weights[static_cast<size_t>((expert * in + i) * columns + column)]);
      }
      linear.bias.push_back(bias[static_cast<size_t>(expert * columns + column)]);
    }
    return linear;
  };
  for (int64_t e = 0; e < experts; ++e) {
    layer.experts.push_back({.gate = take(both, both_bias, e, hidden, 2 * size, 0, 2),
                             .up = take(both, both_bias, e, hidden, 2 * size, 1, 2),
                             .down = take(down, down_bias, e, size, hidden, 0, 1)});
  }
}

LayerWeights Reader::ReadLayer(int64_t index) {
  const std::string name = absl::StrCat("model.layers.", index);
  const int64_t hidden = facts_.hidden_size;
  LayerWeights layer;
  layer.attention_norm = Norm(name + ".input_layernorm", hidden);
  if (config_.is_gemma) {
    layer.after_attention_norm = Norm(name + ".post_attention_layernorm", hidden);
    layer.mlp_norm = Norm(name + ".pre_feedforward_layernorm", hidden);
    layer.after_mlp_norm = Norm(name + ".post_feedforward_layernorm", hidden);
  } else {
    layer.mlp_norm = Norm(name + ".post_attention_layernorm", hidden);
  }
  if (facts_.latent) {
    ReadLatent(name + ".self_attn", layer);
  } else {
    ReadAttention(name + ".self_attn", layer);
  }
  if (!config_.has_experts(index)) {
    layer.mlp = ReadMlp(name + ".mlp", facts_.intermediate_size);
  } else if (facts_.family == "gpt_oss") {
    ReadFusedExperts(name + ".mlp", layer);
  } else {
    ReadExperts(name + ".mlp", layer);
  }
  return layer;
}

MixWeights Reader::ReadMix(const std::string& name, int64_t out, int64_t scales) {
  const int64_t in = config_.num_streams * facts_.hidden_size;
  return {.project = {.in = in, .out = out, .weight = Floats(name + "_fn", {out, in})},
          .base = Floats(name + "_base", {out}),
          .scale = Floats(name + "_scale", {scales})};
}

CompressorWeights Reader::ReadCompressor(const std::string& name, int64_t ratio, int64_t size) {
  const int64_t columns = (ratio == 4 ? 2 : 1) * size;
  return {.kv = Matrix(name + ".wkv", facts_.hidden_size, columns),
          .score = Matrix(name + ".wgate", facts_.hidden_size, columns),
          .bias = Floats(name + ".ape", {ratio, columns}),
          .norm = Norm(name + ".norm", size)};
}

// DeepSeek V4, by the names of its own files.
LayerWeights Reader::ReadCompressedLayer(int64_t index) {
  const std::string name = absl::StrCat("model.layers.", index), own = name + ".attn";
  const int64_t hidden = facts_.hidden_size, size = facts_.head_size;
  const int64_t queries = facts_.num_heads * size, streams = config_.num_streams;
  const CompressedFacts& facts = *facts_.compressed;
  const ExpertFacts& experts = *facts_.experts;
  LayerWeights layer;
  layer.attention_norm = Norm(name + ".attn_norm", hidden);
  layer.mlp_norm = Norm(name + ".ffn_norm", hidden);
  layer.attention_mix = ReadMix(name + ".hc_attn", (2 + streams) * streams, 3);
  layer.mlp_mix = ReadMix(name + ".hc_ffn", (2 + streams) * streams, 3);
  layer.sinks = Floats(own + ".attn_sink", {facts_.num_heads});
  layer.q = Matrix(own + ".wq_b", facts.q_lora_rank, queries);
  layer.o = Matrix(own + ".wo_b", facts.o_groups * facts.o_lora_rank, hidden);
  CompressedWeights& to = layer.compressed;
  to.q_down = Matrix(own + ".wq_a", hidden, facts.q_lora_rank);
  to.q_norm = Norm(own + ".q_norm", facts.q_lora_rank);
  to.kv = Matrix(own + ".wkv", hidden, size);
  to.kv_norm = Norm(own + ".norm", size);
  to.o_down = Matrix(own + ".wo_a", queries / facts.o_groups, facts.o_groups * facts.o_lora_rank);
  const char letter = facts_.layer_pattern[static_cast<size_t>(index)];
  if (letter != 'W') to.rows = ReadCompressor(own + ".compressor", letter == '4' ? 4 : 128, size);
  if (letter == '4') {
    const IndexerFacts& indexer = *facts_.indexer;
    to.index = ReadCompressor(own + ".indexer.compressor", 4, indexer.head_dim);
    to.index_q =
        Matrix(own + ".indexer.wq_b", facts.q_lora_rank, indexer.num_heads * indexer.head_dim);
    to.index_weights = Matrix(own + ".indexer.weights_proj", hidden, indexer.num_heads);
  }
  ReadExperts(name + ".ffn", layer);
  const std::string gate = name + ".ffn.gate";
  if (index < config_.num_fixed_layers) {
    auto fixed = tensors_.Ints(gate + ".tid2eid", {facts_.vocab_size, experts.experts_per_token});
    status_.Update(fixed.status());
    if (fixed.ok()) layer.fixed_experts = *std::move(fixed);
    for (const int32_t expert : layer.fixed_experts) {
      if (expert >= 0 && expert < experts.num_experts) continue;
      status_.Update(absl::InvalidArgumentError(absl::StrCat(
          gate, ".tid2eid: got expert ", expert, ", expected 0 to ", experts.num_experts - 1)));
    }
  } else {
    layer.router_bias = Floats(gate + ".bias", {experts.num_experts});
  }
  return layer;
}

}  // namespace

std::vector<float> DequantiseMxfp4(absl::Span<const uint8_t> blocks,
                                   absl::Span<const uint8_t> scales, int64_t in, int64_t out) {
  constexpr std::array<float, 8> kValues = {0, 0.5f, 1, 1.5f, 2, 3, 4, 6};
  std::vector<float> weights(2 * blocks.size());
  for (size_t i = 0; i < weights.size(); ++i) {
    const int code = blocks[i / 2] >> (i % 2 * 4) & 15;
    const float scale = std::ldexp(code & 8 ? -1.0f : 1.0f, scales[i / 32] - 127);
    const auto row = static_cast<int64_t>(i) / in, column = static_cast<int64_t>(i) % in;
    weights[static_cast<size_t>((row / out * in + column) * out + row % out)] =
        scale * kValues[static_cast<size_t>(code & 7)];
  }
  return weights;
}

absl::StatusOr<Weights> ReadWeights(const Safetensors& tensors, const ModelConfig& config) {
  const ModelFacts& facts = config.facts;
  Reader reader(tensors, config);
  Weights weights;
  weights.embedding = reader.Matrix("model.embed_tokens", facts.hidden_size, facts.vocab_size);
  if (!facts.tied_embeddings) {
    weights.head =
        reader.Matrix(facts.compressed ? "head" : "lm_head", facts.hidden_size, facts.vocab_size);
  }
  weights.norm = reader.Norm("model.norm", facts.hidden_size);
  if (facts.compressed) weights.mix = reader.ReadMix("model.hc_head.hc", config.num_streams, 1);
  for (int64_t i = 0; i < facts.num_layers() && reader.status().ok(); ++i) {
    weights.layers.push_back(facts.compressed ? reader.ReadCompressedLayer(i)
                                              : reader.ReadLayer(i));
  }
  if (!reader.status().ok()) return reader.status();
  return weights;
}

}  // namespace kvblocks::engine
