#include "tests/deepseek_v4/stack_model.h"

#include <algorithm>
#include <cmath>
#include <random>
#include <utility>

#include "attention/cache/quantised_rows.h"
#include "attention/tensor/small_floats.h"
#include "attention/testing/dense_oracle.h"
#include "attention/testing/latent_case.h"
#include "kvblocks/kv_cache_view.h"

namespace kvblocks::attention {
namespace {

// weights [out, in] times x.
std::vector<double> Multiply(const std::vector<double>& weights, const std::vector<double>& x) {
  std::vector<double> y(weights.size() / x.size());
  for (size_t i = 0; i < y.size(); ++i) {
    for (size_t j = 0; j < x.size(); ++j) y[i] += weights[i * x.size() + j] * x[j];
  }
  return y;
}

void Normalise(absl::Span<double> x) {
  double squares = 0;
  for (const double value : x) squares += value * value;
  const double factor = 1 / std::sqrt(squares / static_cast<double>(x.size()) + 1e-6);
  for (double& value : x) value *= factor;
}

double Dot(const double* a, const double* b, int64_t count) {
  double sum = 0;
  for (int64_t i = 0; i < count; ++i) sum += a[i] * b[i];
  return sum;
}

}  // namespace

StackModel::StackModel(const StackConfig& config) : config_(config) {
  std::mt19937_64 random(config.seed);
  const auto draw = [&](int64_t count, double deviation) {
    std::vector<double> values(count);
    // Sums of uniform numbers, the same with every standard library.
    for (double& value : values) {
      double sum = -6;
      for (int i = 0; i < 12; ++i) sum += static_cast<double>(random() >> 11) * 0x1p-53;
      value = static_cast<float>(sum * deviation);
    }
    return values;
  };
  const int64_t e = config.hidden, h = config.heads, d = config.row(), di = config.index_dim;
  const double scale = 1 / std::sqrt(static_cast<double>(e));
  embedding_ = draw(config.vocabulary * e, 1);
  for (const LayerKind kind : config.layers) {
    Layer& layer = layers_.emplace_back();
    const int64_t parts = StackConfig::Parts(kind), ratio = StackConfig::Ratio(kind);
    layer.q = draw(h * d * e, scale), layer.kv = draw(d * e, scale);
    layer.out = draw(e * h * config.Value(kind),
                     1.7 / std::sqrt(static_cast<double>(h * config.Value(kind))));
    layer.mix = draw(e * e, scale);
    layer.sinks = draw(h, 1);
    if (ratio > 1) {
      layer.compress_kv = draw(parts * d * e, scale),
      layer.compress_score = draw(parts * d * e, scale);
      layer.compressor = {draw(ratio * parts * d, 1), draw(d, 1)};
    }
    if (StackConfig::HasIndexer(kind)) {
      layer.index_q = draw(config.index_heads * di * e, scale);
      layer.index_weights = draw(config.index_heads * e, scale);
      layer.index_k = draw(di * e, scale);
    }
    if (kind == LayerKind::kC4) {
      layer.index_kv = draw(parts * di * e, scale), layer.index_score = draw(parts * di * e, scale);
      layer.index_compressor = {draw(ratio * parts * di, 1), draw(di, 1)};
    }
  }
}

std::vector<double> StackModel::Embed(int32_t token) const {
  const auto row = embedding_.begin() + token % config_.vocabulary * config_.hidden;
  return {row, row + config_.hidden};
}

void StackModel::Rotate(absl::Span<double> row, double position) const {
  const int64_t first = static_cast<int64_t>(row.size()) - config_.rotary;
  for (int64_t i = 0; i < config_.rotary / 2; ++i) {
    const double angle =
        position * std::pow(config_.theta,
                            -2.0 * static_cast<double>(i) / static_cast<double>(config_.rotary));
    double& x = row[first + 2 * i];
    double& y = row[first + 2 * i + 1];
    const double rotated = x * std::cos(angle) - y * std::sin(angle);
    y = x * std::sin(angle) + y * std::cos(angle);
    x = rotated;
  }
}

TokenInputs StackModel::Project(size_t l, const std::vector<double>& hidden,
                                int64_t position) const {
  const Layer& layer = layers_[l];
  std::vector<double> x = hidden;
  Normalise(absl::MakeSpan(x));
  const auto of = [&](const std::vector<double>& weights) {
    return weights.empty() ? std::vector<double>() : Multiply(weights, x);
  };
  TokenInputs in;
  in.q = of(layer.q), in.kv = of(layer.kv);
  const auto p = static_cast<double>(position);
  const auto rotate_each = [&](std::vector<double>& rows, int64_t size, bool normalise) {
    for (size_t i = 0; i < rows.size(); i += size) {
      const absl::Span<double> row = absl::MakeSpan(rows).subspan(i, size);
      if (normalise) Normalise(row);
      Rotate(row, p);
    }
  };
  rotate_each(in.q, config_.row(), true);
  rotate_each(in.kv, config_.row(), true);
  in.compress_kv = of(layer.compress_kv), in.compress_score = of(layer.compress_score);
  in.index_kv = of(layer.index_kv), in.index_score = of(layer.index_score);
  in.index_q = of(layer.index_q), in.index_weights = of(layer.index_weights);
  in.index_k = of(layer.index_k);
  rotate_each(in.index_q, config_.index_dim, false);
  rotate_each(in.index_k, config_.index_dim, false);
  return in;
}

void StackModel::Finish(size_t l, std::vector<double> attended, int64_t position,
                        std::vector<double>& hidden) const {
  const int64_t value = config_.Value(config_.layers[l]);
  // Values were rotated with their keys; V3.2's are not.
  for (int64_t h = 0; value == config_.row() && h < config_.heads; ++h) {
    Rotate(absl::MakeSpan(attended).subspan(h * value, value), -static_cast<double>(position));
  }
  const std::vector<double> out = Multiply(layers_[l].out, attended);
  for (size_t i = 0; i < hidden.size(); ++i) hidden[i] += out[i];
  std::vector<double> x = hidden;
  Normalise(absl::MakeSpan(x));
  const std::vector<double> mixed = Multiply(layers_[l].mix, x);
  for (size_t i = 0; i < hidden.size(); ++i) hidden[i] += std::tanh(mixed[i]);
}

// --- Without caches ---

namespace {

// What a cache of codes makes of a row.
std::vector<double> StoredRow(const StackConfig& config, LayerKind kind, bool compressed,
                              std::vector<double> row) {
  if (!config.has_codes()) return row;
  if (config.stored_as == StoredAs::kRecords) {
    const KvRowFormat format = StackConfig::RecordOf(kind, compressed);
    for (double& value : row) value = static_cast<float>(value);
    std::vector<std::byte> record(ShapeOf(format).bytes);
    EncodeMlaRecord(format, row.data(), record.data());
    DecodeMlaRecord(format, record.data(), row.data());
    return row;
  }
  uint16_t rotary[kMlaRotaryValues];
  for (int64_t i = 0; i < kMlaRotaryValues; ++i) {
    rotary[i] = DoubleToBF16(static_cast<float>(row[config.latent + i]));
  }
  for (int64_t i = 0; i < config.latent; ++i) row[i] = static_cast<float>(row[i]);
  if (kind == LayerKind::kV32) {
    std::byte record[kMla656Bytes];
    EncodeMla656(row.data(), rotary, record);
    DecodeMla656(record, row.data());
  } else {
    std::byte block[kMla584RecordBytes + kMla584ScaleBytes];
    EncodeMla584(row.data(), rotary, block, /*block_size=*/1, /*offset=*/0);
    DecodeMla584(block, 1, 0, row.data());
  }
  return row;
}
std::vector<double> StoredKey(const StackConfig& config, std::vector<double> key) {
  if (!config.has_codes()) return key;
  double amax = 0;
  for (double& value : key) {
    value = static_cast<float>(value);
    amax = std::max(amax, std::abs(value));
  }
  const double scale = IndexRowScale(amax, /*power_of_two=*/true);
  for (double& value : key) value = E4M3ToDouble(DoubleToE4M3(value / scale)) * scale;
  return key;
}

// Row w of a compressor: of tokens [w * ratio, (w + 1) * ratio), with overlap also of those before.
std::vector<double> CompressedRow(const StackModel& model, LayerKind kind,
                                  const std::vector<std::vector<double>>& kv,
                                  const std::vector<std::vector<double>>& score,
                                  const StackModel::Compressor& weights, int64_t w, bool swapped) {
  const int64_t ratio = StackConfig::Ratio(kind), parts = StackConfig::Parts(kind);
  const auto dim = static_cast<int64_t>(weights.norm.size());
  std::vector<double> row(dim);
  for (int64_t d = 0; d < dim; ++d) {
    double sum = 0;
    for (int64_t part = parts == 2 && w > 0 ? -1 : 0; part <= 0; ++part) {
      // The row's own tokens are in the last columns, those before in the first.
      const bool last = (part == 0) != swapped;
      const int64_t column = parts == 2 && last ? dim + d : d;
      for (int64_t i = 0; i < ratio; ++i) {
        const int64_t token = (w + part) * ratio + i;
        const double weight =
            std::exp(score[token][column] + weights.bias[i * parts * dim + column]);
        sum += weight;
        row[d] += weight * kv[token][column];
      }
    }
    row[d] /= sum;
  }
  Normalise(absl::MakeSpan(row));
  for (int64_t d = 0; d < dim; ++d) row[d] *= weights.norm[d];
  model.Rotate(absl::MakeSpan(row), static_cast<double>(w * ratio));
  return row;
}

// The numbers of the rows that an indexer chooses for a token.
std::vector<int64_t> Choose(const StackConfig& config, const TokenInputs& token,
                            const std::vector<std::vector<double>>& keys, int64_t visible,
                            bool ties_to_higher) {
  std::vector<double> scores(visible);
  std::vector<int64_t> order(visible);
  for (int64_t row = 0; row < visible; ++row) {
    order[row] = row;
    for (int64_t h = 0; h < config.index_heads; ++h) {
      const double product =
          Dot(&token.index_q[h * config.index_dim], keys[row].data(), config.index_dim);
      scores[row] += token.index_weights[h] * std::max(product, 0.0);
    }
  }
  std::sort(order.begin(), order.end(), [&](int64_t a, int64_t b) {
    if (scores[a] != scores[b]) return scores[a] > scores[b];
    return ties_to_higher ? a > b : a < b;
  });
  order.resize(std::min(visible, config.topk));
  return order;
}

}  // namespace

std::vector<std::vector<double>> DenseForward(const StackModel& model,
                                              absl::Span<const int32_t> tokens,
                                              const DenseFaults& faults) {
  const StackConfig& config = model.config();
  const auto n = static_cast<int64_t>(tokens.size());
  const int64_t d = config.row();
  std::vector<std::vector<double>> hidden;
  for (const int32_t token : tokens) hidden.push_back(model.Embed(token));
  for (size_t l = 0; l < config.layers.size(); ++l) {
    const LayerKind kind = config.layers[l];
    const int64_t ratio = StackConfig::Ratio(kind), value = config.Value(kind);
    std::vector<TokenInputs> inputs;
    for (int64_t t = 0; t < n; ++t) inputs.push_back(model.Project(l, hidden[t], t));
    const auto column = [&](auto member) {
      std::vector<std::vector<double>> all;
      for (const TokenInputs& in : inputs) all.push_back(in.*member);
      return all;
    };
    // Rows that are not in a window, and the keys that they are chosen by.
    std::vector<std::vector<double>> rows, keys;
    if (kind == LayerKind::kV32) {
      rows = column(&TokenInputs::kv), keys = column(&TokenInputs::index_k);
    } else if (ratio > 1) {
      const auto kv = column(&TokenInputs::compress_kv),
                 score = column(&TokenInputs::compress_score);
      const auto index_kv = column(&TokenInputs::index_kv);
      const auto index_score = column(&TokenInputs::index_score);
      for (int64_t w = 0; w < n / ratio; ++w) {
        rows.push_back(CompressedRow(model, kind, kv, score, model.compressor(l), w,
                                     faults.swap_overlap && kind == LayerKind::kC4));
        if (kind == LayerKind::kC4) {
          keys.push_back(CompressedRow(model, kind, index_kv, index_score,
                                       model.index_compressor(l), w, faults.swap_overlap));
        }
      }
    }
    for (std::vector<double>& row : rows) row = StoredRow(config, kind, true, std::move(row));
    for (std::vector<double>& key : keys) key = StoredKey(config, std::move(key));
    for (TokenInputs& in : inputs) in.kv = StoredRow(config, kind, false, std::move(in.kv));
    for (int64_t t = 0; t < n; ++t) {
      std::vector<const std::vector<double>*> seen;
      if (kind != LayerKind::kV32) {
        const int64_t window = config.window + faults.window_edge;
        for (int64_t j = std::max<int64_t>(0, t - window + 1); j <= t; ++j) {
          seen.push_back(&inputs[j].kv);
        }
      }
      const int64_t visible =
          rows.empty() ? 0 : (t + (faults.early_rows && ratio > 1 ? 0 : 1)) / ratio;
      if (StackConfig::HasIndexer(kind)) {
        for (const int64_t row : Choose(config, inputs[t], keys, visible, faults.ties_to_higher)) {
          seen.push_back(&rows[row]);
        }
      } else {
        for (int64_t row = 0; row < visible; ++row) seen.push_back(&rows[row]);
      }
      DenseParams params;
      params.scale = 1 / std::sqrt(static_cast<double>(d));
      params.causal = false;
      if (kind != LayerKind::kV32 && !faults.ignore_sinks) params.sinks = model.sinks(l);
      const DenseRequest request = RequestOverRows(seen, inputs[t].q, 1, config.heads, value);
      model.Finish(l, DenseAttention(request, params).out, t, hidden[t]);
    }
  }
  return hidden;
}

}  // namespace kvblocks::attention
