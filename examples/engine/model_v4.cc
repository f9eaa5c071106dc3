// DeepSeek V4: layers that attend to a window and to rows of several tokens, and a token's streams,
// which layers collapse and mix.

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <utility>

#include "absl/strings/str_cat.h"
#include "checks/status_macros.h"
#include "examples/engine/model.h"
#include "kvblocks/attention_layer.h"
#include "kvblocks/tensor_view.h"

namespace kvblocks::engine {

using attention::ViewOf;

void Model::ConfigureCompressed(int64_t layer, attention::LayerConfig* config) const {
  const ModelFacts& facts = config_.facts;
  const CompressedWeights& weights = weights_.layers[static_cast<size_t>(layer)].compressed;
  const char letter = facts.layer_pattern[static_cast<size_t>(layer)];
  const int64_t rotated = facts.compressed->qk_rope_head_dim, size = facts.head_size;
  const std::string name = absl::StrCat("model.layers.", layer);
  config->name = name + ".swa";
  config->num_kv_heads = 1;
  config->window = facts.window;
  config->latent_rank = size;  // rows are keys and values as a whole
  attention::SparseConfig& sparse = config->sparse;
  sparse.compress_ratio = letter == 'W' ? 1 : letter == '4' ? 4 : 128;
  if (letter == 'W') return;
  const auto compressor = [&](const CompressorWeights& from, int64_t columns) {
    const int64_t ratio = sparse.compress_ratio;
    return attention::SparseConfig::Compressor{
        ViewOf(absl::MakeConstSpan(from.bias), {ratio, columns * (letter == '4' ? 2 : 1)}),
        ViewOf(absl::MakeConstSpan(from.norm))};
  };
  sparse.compressor = compressor(weights.rows, size);
  sparse.norm_eps = config_.norm_eps;
  sparse.cos_sin = ViewOf(absl::MakeConstSpan(cos_sin_), {config_.num_positions(), rotated});
  sparse.names = {.compressed = name + ".attn", .states = name + ".compressor_state"};
  if (letter != '4') return;
  sparse.overlap = true;
  sparse.topk = facts.indexer->top_k;
  sparse.index_heads = facts.indexer->num_heads;
  sparse.index_dim = facts.indexer->head_dim;
  sparse.index_compressor = compressor(weights.index, sparse.index_dim);
  sparse.names.index = name + ".indexer";
  sparse.names.index_states = name + ".indexer_compressor_state";
}

absl::StatusOr<std::vector<float>> Model::CompressedAttention(int64_t layer, const Step& step,
                                                              const std::vector<float>& x,
                                                              Attend attend) const {
  const ModelFacts& facts = config_.facts;
  const LayerWeights& weights = weights_.layers[static_cast<size_t>(layer)];
  const CompressedWeights& own = weights.compressed;
  const bool is_window = facts.layer_pattern[static_cast<size_t>(layer)] == 'W';
  Rotary rotary = is_window ? config_.window_rotary : config_.rotary;
  const int64_t heads = facts.num_heads, size = facts.head_size;
  const int64_t rotated = facts.compressed->qk_rope_head_dim;
  const auto tokens = static_cast<int64_t>(step.tokens.size());
  const float eps = config_.norm_eps;

  std::vector<float> queries = Apply(own.q_down, x);
  RmsNorm(own.q_norm, eps, absl::MakeSpan(queries));
  std::vector<float> q = Apply(weights.q, queries), kv = Apply(own.kv, x);
  RmsNorm(std::vector<float>(static_cast<size_t>(size), 1.0f), eps, absl::MakeSpan(q));
  RmsNorm(own.kv_norm, eps, absl::MakeSpan(kv));
  rotary.Rotate(step.positions, heads, size, size - rotated, absl::MakeSpan(q));
  rotary.Rotate(step.positions, 1, size, size - rotated, absl::MakeSpan(kv));
  std::vector<float> out(q.size());
  attention::SparseTensors sparse;
  attention::LayerTensors tensors{.q = ViewOf(absl::MakeConstSpan(q), {tokens, heads, size}),
                                  .k = ViewOf(absl::MakeConstSpan(kv), {tokens, size}),
                                  .out = ViewOf(absl::MakeSpan(out), {tokens, heads, size}),
                                  .sparse = &sparse};
  // Empty where the layer has none.
  const auto columns = [&](const std::vector<float>& values) {
    return values.empty() ? attention::ConstTensorView()
                          : ViewOf(absl::MakeConstSpan(values),
                                   {tokens, static_cast<int64_t>(values.size()) / tokens});
  };
  const auto apply = [&](const Linear& linear, const std::vector<float>& in) {
    return linear.absent() ? std::vector<float>() : Apply(linear, in);
  };
  const std::vector<float> row_kv = apply(own.rows.kv, x), row_score = apply(own.rows.score, x);
  const std::vector<float> key_kv = apply(own.index.kv, x), key_score = apply(own.index.score, x);
  std::vector<float> index_q = apply(own.index_q, queries), share = apply(own.index_weights, x);
  sparse.compressor.kv = columns(row_kv);
  sparse.compressor.score = columns(row_score);
  if (!index_q.empty()) {
    const int64_t n = facts.indexer->num_heads, dim = facts.indexer->head_dim;
    rotary.Rotate(step.positions, n, dim, dim - rotated, absl::MakeSpan(index_q));
    for (float& value : share) value /= std::sqrt(static_cast<float>(n * dim));
    sparse.index_compressor.kv = columns(key_kv);
    sparse.index_compressor.score = columns(key_score);
    sparse.index_q = ViewOf(absl::MakeConstSpan(index_q), {tokens, n, dim});
    sparse.index_weights = columns(share);
  }
  KVBLOCKS_RETURN_IF_ERROR(attend(layer, tensors));
  // Rows came rotated; what is taken of them turns back.
  for (float& frequency : rotary.frequencies) frequency = -frequency;
  rotary.Rotate(step.positions, heads, size, size - rotated, absl::MakeSpan(out));
  const int64_t groups = facts.compressed->o_groups, rank = facts.compressed->o_lora_rank;
  const int64_t in = heads * size / groups;
  std::vector<float> grouped(static_cast<size_t>(tokens * groups * rank));
  for (int64_t g = 0; g < groups; ++g) {
    Multiply(out.data() + g * in, heads * size, own.o_down.weight.data() + g * rank * in, true,
             grouped.data() + g * rank, groups * rank, tokens, in, rank);
  }
  return Apply(weights.o, grouped);
}

Model::Mix Model::MixOf(const MixWeights& weights, const std::vector<float>& streams) const {
  const int64_t m = config_.num_streams, hidden = config_.facts.hidden_size;
  const auto width = static_cast<size_t>(m * hidden);
  const auto sigmoid = [](float value) { return 1 / (1 + std::exp(-value)); };
  std::vector<float> normed = streams;
  RmsNorm(std::vector<float>(width, 1.0f), config_.norm_eps, absl::MakeSpan(normed));
  const std::vector<float> made = Apply(weights.project, normed);
  const auto tokens = static_cast<int64_t>(streams.size() / width);
  Mix mix;
  mix.collapsed.resize(static_cast<size_t>(tokens * hidden));
  for (int64_t t = 0; t < tokens; ++t) {
    const float* const own = made.data() + t * weights.project.out;
    const auto value = [&](int64_t i, size_t part) {
      return own[i] * weights.scale[part] + weights.base[static_cast<size_t>(i)];
    };
    for (int64_t i = 0; i < m; ++i) {
      const float share = sigmoid(value(i, 0)) + config_.mix_eps;
      for (int64_t k = 0; k < hidden; ++k) {
        mix.collapsed[static_cast<size_t>(t * hidden + k)] +=
            share * streams[static_cast<size_t>((t * m + i) * hidden + k)];
      }
    }
    if (weights.project.out == m) continue;  // nothing is spread behind the last layer
    for (int64_t i = 0; i < m; ++i) mix.post.push_back(2 * sigmoid(value(m + i, 1)));
    // Near a matrix whose rows and columns add up to 1.
    std::vector<float> square;
    for (int64_t i = 0; i < m; ++i) {
      std::vector<float> row;
      for (int64_t j = 0; j < m; ++j) row.push_back(value(2 * m + i * m + j, 2));
      Softmax(absl::MakeSpan(row));
      for (const float share : row) square.push_back(share + config_.mix_eps);
    }
    const auto divide = [&](int64_t along, int64_t across) {
      for (int64_t i = 0; i < m; ++i) {
        float sum = config_.mix_eps;
        for (int64_t j = 0; j < m; ++j) sum += square[static_cast<size_t>(i * across + j * along)];
        for (int64_t j = 0; j < m; ++j) square[static_cast<size_t>(i * across + j * along)] /= sum;
      }
    };
    divide(m, 1);
    for (int64_t round = 1; round < config_.mix_rounds; ++round) divide(1, m), divide(m, 1);
    mix.streams.insert(mix.streams.end(), square.begin(), square.end());
  }
  return mix;
}

std::vector<float> Model::Spread(const Mix& mix, const std::vector<float>& out,
                                 const std::vector<float>& streams) const {
  const auto m = static_cast<size_t>(config_.num_streams);
  const auto hidden = static_cast<size_t>(config_.facts.hidden_size);
  std::vector<float> next(streams.size());
  for (size_t row = 0; row < next.size() / hidden; ++row) {
    const size_t t = row / m, j = row % m;
    for (size_t k = 0; k < hidden; ++k) {
      float sum = mix.post[row] * out[t * hidden + k];
      for (size_t i = 0; i < m; ++i) {
        sum += mix.streams[(t * m + i) * m + j] * streams[(t * m + i) * hidden + k];
      }
      next[row * hidden + k] = sum;
    }
  }
  return next;
}

absl::StatusOr<std::vector<float>> Model::ForwardStreams(const Step& step, Attend attend) const {
  const int64_t m = config_.num_streams, hidden = config_.facts.hidden_size;
  KVBLOCKS_ASSIGN_OR_RETURN(const std::vector<float> embedded, Embed(step.tokens));
  std::vector<float> streams;
  for (auto row = embedded.begin(); row != embedded.end(); row += hidden) {
    for (int64_t i = 0; i < m; ++i) streams.insert(streams.end(), row, row + hidden);
  }
  for (int64_t i = 0; i < config_.facts.num_layers(); ++i) {
    const LayerWeights& layer = weights_.layers[static_cast<size_t>(i)];
    Mix mix = MixOf(layer.attention_mix, streams);
    RmsNorm(layer.attention_norm, config_.norm_eps, absl::MakeSpan(mix.collapsed));
    KVBLOCKS_ASSIGN_OR_RETURN(const std::vector<float> attended,
                              CompressedAttention(i, step, mix.collapsed, attend));
    streams = Spread(mix, attended, streams);
    mix = MixOf(layer.mlp_mix, streams);
    RmsNorm(layer.mlp_norm, config_.norm_eps, absl::MakeSpan(mix.collapsed));
    streams = Spread(mix, Feed(layer, mix.collapsed, step.tokens), streams);
  }
  std::vector<float> last;
  for (const int32_t row : step.rows) {
    const auto at = streams.begin() + row * m * hidden;
    last.insert(last.end(), at, at + m * hidden);
  }
  return LogitsOf(MixOf(weights_.mix, last).collapsed);
}

}  // namespace kvblocks::engine
