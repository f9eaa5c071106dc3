#include "examples/engine/model.h"

#include <algorithm>
#include <cmath>
#include <cstddef>

#include "absl/strings/str_cat.h"
#include "checks/status_macros.h"
#include "examples/engine/safetensors.h"
#include "kvblocks/attention_layer.h"
#include "kvblocks/tensor_view.h"

namespace kvblocks::engine {
namespace {

using attention::ViewOf;

size_t Size(int64_t n) { return static_cast<size_t>(n); }

// x + y, where y goes through a norm first if there is one.
void AddTo(std::vector<float>& x, std::vector<float> y, const std::vector<float>& norm, float eps) {
  if (!norm.empty()) RmsNorm(norm, eps, absl::MakeSpan(y));
  for (size_t i = 0; i < x.size(); ++i) x[i] += y[i];
}

std::vector<float> Normed(std::vector<float> x, const std::vector<float>& norm, float eps) {
  RmsNorm(norm, eps, absl::MakeSpan(x));
  return x;
}

}  // namespace

Model::Model(ModelConfig config, Weights weights)
    : config_(std::move(config)), weights_(std::move(weights)) {
  if (!config_.facts.compressed) return;
  for (int64_t p = 0; p < config_.num_positions(); ++p) {
    for (const bool cosine : {true, false}) {
      for (const float frequency : config_.rotary.frequencies) {
        const float angle = static_cast<float>(p) * frequency;
        cos_sin_.push_back((cosine ? std::cos(angle) : std::sin(angle)) * config_.rotary.scale);
      }
    }
  }
}

absl::StatusOr<Model> Model::Load(const std::string& folder) {
  KVBLOCKS_ASSIGN_OR_RETURN(ModelConfig config, ReadModelConfig(folder + "/config.json"));
  KVBLOCKS_ASSIGN_OR_RETURN(const Safetensors tensors, Safetensors::OpenModel(folder));
  KVBLOCKS_ASSIGN_OR_RETURN(Weights weights, ReadWeights(tensors, config));
  return Model(std::move(config), std::move(weights));
}

attention::LayerConfig Model::AttentionOf(int64_t layer) const {
  const ModelFacts& facts = config_.facts;
  attention::LayerConfig config;
  config.name = absl::StrCat("model.layers.", layer, ".attn");
  config.num_heads = facts.num_heads;
  config.scale = config_.attention_scale;
  config.soft_cap = config_.attention_soft_cap;
  if (facts.latent) {
    config.num_kv_heads = 1;
    config.head_size = facts.latent->qk_nope_head_dim + facts.latent->qk_rope_head_dim;
    config.latent_rank = facts.latent->kv_lora_rank;
    config.rotary_dim = facts.latent->qk_rope_head_dim;
    if (facts.indexer) {
      config.sparse = {.topk = facts.indexer->top_k,
                       .index_heads = facts.indexer->num_heads,
                       .index_dim = facts.indexer->head_dim};
      config.sparse.names.index = absl::StrCat("model.layers.", layer, ".indexer");
    }
  } else {
    config.num_kv_heads = facts.num_kv_heads;
    config.head_size = facts.head_size;
  }
  if (facts.layer_pattern[Size(layer)] == 'S') config.window = facts.window;
  if (facts.compressed) ConfigureCompressed(layer, &config);
  const std::vector<float>& sinks = weights_.layers[Size(layer)].sinks;
  if (!sinks.empty()) config.sinks = ViewOf(absl::MakeConstSpan(sinks));
  return config;
}

absl::StatusOr<std::vector<float>> Model::Embed(absl::Span<const int32_t> tokens) const {
  const Linear& table = weights_.embedding;
  const float scale = config_.is_gemma ? std::sqrt(static_cast<float>(table.in)) : 1.0f;
  std::vector<float> x;
  x.reserve(tokens.size() * Size(table.in));
  for (const int32_t token : tokens) {
    if (token < 0 || token >= table.out) {
      return absl::InvalidArgumentError(
          absl::StrCat("token ", token, ", expected 0 to ", table.out - 1));
    }
    const float* row = table.weight.data() + token * table.in;
    for (int64_t i = 0; i < table.in; ++i) x.push_back(row[i] * scale);
  }
  return x;
}

Model::Heads Model::Project(int64_t layer, const std::vector<float>& x) const {
  const LayerWeights& weights = weights_.layers[Size(layer)];
  const std::vector<float> in = Normed(x, weights.attention_norm, config_.norm_eps);
  Heads heads{.q = Apply(weights.q, in), .k = Apply(weights.k, in), .v = Apply(weights.v, in)};
  if (!weights.q_norm.empty()) {
    RmsNorm(weights.q_norm, config_.norm_eps, absl::MakeSpan(heads.q));
    RmsNorm(weights.k_norm, config_.norm_eps, absl::MakeSpan(heads.k));
  }
  return heads;
}

absl::StatusOr<std::vector<float>> Model::Attention(int64_t layer, const Step& step,
                                                    const std::vector<float>& x,
                                                    Attend attend) const {
  const ModelFacts& facts = config_.facts;
  const LayerWeights& weights = weights_.layers[Size(layer)];
  auto [q, k, v] = Project(layer, x);
  const bool is_window = facts.layer_pattern[Size(layer)] == 'S';
  const Rotary& rotary = is_window ? config_.window_rotary : config_.rotary;
  rotary.Rotate(step.positions, facts.num_heads, facts.head_size, 0, absl::MakeSpan(q));
  rotary.Rotate(step.positions, facts.num_kv_heads, facts.head_size, 0, absl::MakeSpan(k));
  std::vector<float> out(q.size());
  const auto tokens = static_cast<int64_t>(step.tokens.size());
  KVBLOCKS_RETURN_IF_ERROR(
      attend(layer, {.q = ViewOf(absl::MakeConstSpan(q), {tokens, weights.q.out}),
                     .k = ViewOf(absl::MakeConstSpan(k), {tokens, weights.k.out}),
                     .v = ViewOf(absl::MakeConstSpan(v), {tokens, weights.v.out}),
                     .out = ViewOf(absl::MakeSpan(out), {tokens, weights.q.out})}));
  return out;
}

// A head's query meets latent rows instead of its keys: the matrix that makes keys of rows is
// multiplied into the query, and the one that makes values into the output.
absl::StatusOr<std::vector<float>> Model::LatentAttention(int64_t layer, const Step& step,
                                                          const std::vector<float>& hidden,
                                                          Attend attend) const {
  constexpr float kRowEps = 1e-6f;  // of DeepSeek's inner norms, whatever the others have
  const LatentFacts& latent = *config_.facts.latent;
  const LayerWeights& weights = weights_.layers[Size(layer)];
  const int64_t heads = config_.facts.num_heads, rank = latent.kv_lora_rank;
  const int64_t plain = latent.qk_nope_head_dim, rotated = latent.qk_rope_head_dim;
  const int64_t size = plain + rotated, row = rank + rotated;
  const auto tokens = static_cast<int64_t>(step.tokens.size());

  const std::vector<float> x = Normed(hidden, weights.attention_norm, config_.norm_eps);
  const std::vector<float> queries =
      weights.latent.q_down.absent()
          ? x
          : Normed(Apply(weights.latent.q_down, x), weights.latent.q_norm, kRowEps);
  std::vector<float> q = Apply(weights.q, queries);
  config_.rotary.Rotate(step.positions, heads, size, plain, absl::MakeSpan(q));
  const std::vector<float> down = Apply(weights.latent.kv_down, x);
  std::vector<float> rows(Size(tokens * rank)), keys(Size(tokens * rotated));
  for (int64_t t = 0; t < tokens; ++t) {
    const float* from = down.data() + t * row;
    std::copy(from, from + rank, rows.data() + t * rank);
    std::copy(from + rank, from + row, keys.data() + t * rotated);
  }
  RmsNorm(weights.latent.row_norm, kRowEps, absl::MakeSpan(rows));
  config_.rotary.Rotate(step.positions, 1, rotated, 0, absl::MakeSpan(keys));

  std::vector<float> absorbed(Size(tokens * heads * row)), mixed(Size(tokens * heads * rank));
  for (int64_t h = 0; h < heads; ++h) {
    Multiply(q.data() + h * size, heads * size, weights.latent.keys.data() + h * plain * rank,
             false, absorbed.data() + h * row, heads * row, tokens, plain, rank);
  }
  for (int64_t i = 0; i < tokens * heads; ++i) {
    std::copy_n(q.data() + i * size + plain, rotated, absorbed.data() + i * row + rank);
  }
  attention::LayerTensors tensors{.q = ViewOf(absl::MakeConstSpan(absorbed), {tokens, heads, row}),
                                  .k = ViewOf(absl::MakeConstSpan(rows), {tokens, rank}),
                                  .v = ViewOf(absl::MakeConstSpan(keys), {tokens, rotated}),
                                  .out = ViewOf(absl::MakeSpan(mixed), {tokens, heads, rank})};
  Index index;
  attention::SparseTensors sparse;
  if (config_.facts.indexer) {
    index = MakeIndex(weights.latent.indexer, step, x, queries);
    const int64_t n = config_.facts.indexer->num_heads, dim = config_.facts.indexer->head_dim;
    sparse.index_q = ViewOf(absl::MakeConstSpan(index.q), {tokens, n, dim});
    sparse.index_k = ViewOf(absl::MakeConstSpan(index.k), {tokens, dim});
    sparse.index_weights = ViewOf(absl::MakeConstSpan(index.weights), {tokens, n});
    tensors.sparse = &sparse;
  }
  KVBLOCKS_RETURN_IF_ERROR(attend(layer, tensors));
  const int64_t values = latent.v_head_dim;
  std::vector<float> out(Size(tokens * heads * values));
  for (int64_t h = 0; h < heads; ++h) {
    Multiply(mixed.data() + h * rank, heads * rank,
             weights.latent.values.data() + h * values * rank, true, out.data() + h * values,
             heads * values, tokens, rank, values);
  }
  return out;
}

// What the indexer chooses rows by. It turns halves where attention turns pairs.
Model::Index Model::MakeIndex(const IndexerWeights& weights, const Step& step,
                              const std::vector<float>& x,
                              const std::vector<float>& queries) const {
  const IndexerFacts& facts = *config_.facts.indexer;
  Rotary rotary = config_.rotary;
  rotary.interleaved = false;
  Index index{.q = Apply(weights.q, queries),
              .k = Apply(weights.k, x),
              .weights = Apply(weights.weights, x)};
  LayerNorm(weights.norm, weights.norm_bias, 1e-6f, absl::MakeSpan(index.k));
  rotary.Rotate(step.positions, facts.num_heads, facts.head_dim, 0, absl::MakeSpan(index.q));
  rotary.Rotate(step.positions, 1, facts.head_dim, 0, absl::MakeSpan(index.k));
  const float scale = 1 / std::sqrt(static_cast<float>(facts.num_heads * facts.head_dim));
  for (float& weight : index.weights) weight *= scale;
  return index;
}

std::vector<float> Model::Dense(const Mlp& mlp, absl::Span<const float> x) const {
  std::vector<float> gate = Apply(mlp.gate, x);
  Gate(config_.activation, Apply(mlp.up, x), absl::MakeSpan(gate));
  return Apply(mlp.down, gate);
}

std::vector<float> Model::Feed(const LayerWeights& layer, const std::vector<float>& x,
                               absl::Span<const int32_t> tokens) const {
  if (layer.experts.empty()) return Dense(layer.mlp, x);
  const int64_t hidden = config_.facts.hidden_size;
  std::vector<float> sum(x.size());
  if (!layer.mlp.gate.absent()) sum = Dense(layer.mlp, x);
  // Which tokens take each expert, and with what weight.
  struct Choice {
    int64_t token;
    float weight;
  };
  std::vector<std::vector<Choice>> choices(layer.experts.size());
  const std::vector<float> logits = Apply(layer.router, x);
  for (int64_t t = 0; t < static_cast<int64_t>(x.size()) / hidden; ++t) {
    const auto row = absl::MakeConstSpan(logits).subspan(Size(t) * choices.size(), choices.size());
    const auto fixed = absl::MakeConstSpan(layer.fixed_experts);
    const auto own = Size(config_.routing.per_token);
    for (const ExpertShare& share :
         Route(config_.routing, layer.router_bias, row,
               fixed.empty() ? fixed : fixed.subspan(Size(tokens[Size(t)]) * own, own))) {
      choices[Size(share.expert)].push_back({t, share.weight});
    }
  }
  for (size_t e = 0; e < choices.size(); ++e) {
    std::vector<float> taken;
    for (const Choice& choice : choices[e]) {
      const auto row = x.begin() + choice.token * hidden;
      taken.insert(taken.end(), row, row + hidden);
    }
    if (taken.empty()) continue;
    const std::vector<float> made = Dense(layer.experts[e], taken);
    for (size_t i = 0; i < made.size(); ++i) {
      const Choice& choice = choices[e][i / Size(hidden)];
      sum[Size(choice.token * hidden) + i % Size(hidden)] += choice.weight * made[i];
    }
  }
  return sum;
}

void Model::Finish(int64_t layer, const std::vector<float>& attended, std::vector<float>& x) const {
  const LayerWeights& weights = weights_.layers[Size(layer)];
  const float eps = config_.norm_eps;
  AddTo(x, Apply(weights.o, attended), weights.after_attention_norm, eps);
  AddTo(x, Feed(weights, Normed(x, weights.mlp_norm, eps)), weights.after_mlp_norm, eps);
}

std::vector<float> Model::LogitsOf(std::vector<float> rows) const {
  RmsNorm(weights_.norm, config_.norm_eps, absl::MakeSpan(rows));
  std::vector<float> logits =
      Apply(weights_.head.absent() ? weights_.embedding : weights_.head, rows);
  if (config_.logit_soft_cap > 0) SoftCap(config_.logit_soft_cap, absl::MakeSpan(logits));
  return logits;
}

absl::StatusOr<std::vector<float>> Model::Forward(const Step& step, Attend attend) const {
  if (config_.num_streams > 1) return ForwardStreams(step, attend);
  KVBLOCKS_ASSIGN_OR_RETURN(std::vector<float> x, Embed(step.tokens));
  for (int64_t i = 0; i < config_.facts.num_layers(); ++i) {
    KVBLOCKS_ASSIGN_OR_RETURN(
        const std::vector<float> attended,
        config_.facts.latent ? LatentAttention(i, step, x, attend) : Attention(i, step, x, attend));
    Finish(i, attended, x);
  }
  const auto hidden = config_.facts.hidden_size;
  std::vector<float> last;
  for (const int32_t row : step.rows) {
    last.insert(last.end(), x.begin() + row * hidden, x.begin() + (row + 1) * hidden);
  }
  return LogitsOf(std::move(last));
}

}  // namespace kvblocks::engine
