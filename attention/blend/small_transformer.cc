#include "kvblocks/cache_blend.h"

#include <cmath>
#include <numbers>
#include <numeric>

#include "attention/ops/arg_checker.h"
#include "attention/tensor/small_floats.h"
#include "kvblocks/attention_args.h"

namespace kvblocks::attention {

namespace {

// Normal numbers that are the same with every standard library.
class NormalNumbers {
 public:
  explicit NormalNumbers(uint64_t seed) : state_(seed) {}

  std::vector<float> Draw(int64_t count, double deviation) {
    std::vector<float> values(count);
    for (float& value : values) value = static_cast<float>(deviation * Next());
    return values;
  }

 private:
  // SplitMix64, as a number in (0, 1].
  double Uniform() {
    uint64_t z = (state_ += 0x9E3779B97F4A7C15u);
    z = (z ^ (z >> 30)) * 0xBF58476D1CE4E5B9u;
    z = (z ^ (z >> 27)) * 0x94D049BB133111EBu;
    return (static_cast<double>((z ^ (z >> 31)) >> 11) + 1) * 0x1p-53;
  }
  double Next() {
    const double radius = std::sqrt(-2 * std::log(Uniform()));
    return radius * std::cos(2 * std::numbers::pi * Uniform());
  }
  uint64_t state_;
};

// weights [out, in] times x; out follows from the size.
std::vector<double> Multiply(const std::vector<float>& weights, const std::vector<double>& x) {
  std::vector<double> y(weights.size() / x.size());
  const float* row = weights.data();
  for (double& sum : y) {
    sum = 0;
    for (const double value : x) sum += *row++ * value;
  }
  return y;
}

std::vector<double> Normalise(std::vector<double> x) {
  double squares = 0;
  for (const double value : x) squares += value * value;
  const double factor = 1 / std::sqrt(squares / static_cast<double>(x.size()) + 1e-6);
  for (double& value : x) value *= factor;
  return x;
}

// Row r of dense float32 rows of `width` values.
template <typename View>
auto Row(const View& rows, int64_t r, int64_t width) {
  return absl::MakeSpan(rows.template as<float>() + r * width, width);
}
std::vector<double> ToDouble(absl::Span<const float> row) { return {row.begin(), row.end()}; }
void Store(const std::vector<double>& values, absl::Span<float> row) {
  for (size_t i = 0; i < values.size(); ++i) row[i] = static_cast<float>(values[i]);
}

}  // namespace

SmallTransformer::SmallTransformer(const SmallTransformerConfig& config) : config_(config) {
  NormalNumbers numbers(config.seed);
  const int64_t e = config.hidden_size, f = config.ffn_size;
  const int64_t queries = config.num_heads * config.head_dim;
  const int64_t keys = config.num_kv_heads * config.head_dim;
  const auto scale = [](int64_t fan_in) { return 1 / std::sqrt(static_cast<double>(fan_in)); };
  embedding_ = numbers.Draw(config.vocabulary * e, 1);
  for (int l = 0; l < config.num_layers; ++l) {
    Layer& layer = layers_.emplace_back();
    layer.q = numbers.Draw(queries * e, config.sharpness * scale(e));
    layer.k = numbers.Draw(keys * e, scale(e));
    layer.v = numbers.Draw(keys * e, scale(e));
    layer.o = numbers.Draw(e * queries, scale(queries));
    layer.gate = numbers.Draw(f * e, scale(e));
    layer.up = numbers.Draw(f * e, scale(e));
    layer.down = numbers.Draw(e * f, scale(f));
  }
}

BlendConfig SmallTransformer::blend_config() const {
  BlendConfig config;
  config.num_layers = config_.num_layers;
  config.num_heads = config_.num_heads;
  config.num_kv_heads = config_.num_kv_heads;
  config.head_dim = config_.head_dim;
  config.hidden_size = config_.hidden_size;
  config.theta = config_.theta;
  return config;
}

std::vector<float> SmallTransformer::Embed(absl::Span<const int32_t> ids) const {
  std::vector<float> hidden;
  for (const int32_t id : ids) {
    const auto row = embedding_.begin() + (id % config_.vocabulary) * config_.hidden_size;
    hidden.insert(hidden.end(), row, row + config_.hidden_size);
  }
  return hidden;
}

std::vector<double> SmallTransformer::Logits(absl::Span<const float> hidden) const {
  return Multiply(embedding_, Normalise(ToDouble(hidden)));
}

absl::Status SmallTransformer::Project(int layer, const ConstTensorView& hidden,
                                       const TensorView& q, const TensorView& k,
                                       const TensorView& v) const {
  const Layer& weights = layers_[layer];
  const int64_t queries = config_.num_heads * config_.head_dim;
  const int64_t keys = config_.num_kv_heads * config_.head_dim;
  for (int64_t r = 0; r < hidden.extent[0]; ++r) {
    const std::vector<double> x = Normalise(ToDouble(Row(hidden, r, config_.hidden_size)));
    Store(Multiply(weights.q, x), Row(q, r, queries));
    Store(Multiply(weights.k, x), Row(k, r, keys));
    Store(Multiply(weights.v, x), Row(v, r, keys));
  }
  return absl::OkStatus();
}

absl::Status SmallTransformer::Finish(int layer, const ConstTensorView& attention,
                                      const TensorView& hidden) const {
  const Layer& weights = layers_[layer];
  for (int64_t r = 0; r < hidden.extent[0]; ++r) {
    const absl::Span<float> row = Row(hidden, r, config_.hidden_size);
    std::vector<double> x = ToDouble(row);
    const std::vector<double> attended =
        Multiply(weights.o, ToDouble(Row(attention, r, config_.num_heads * config_.head_dim)));
    for (size_t i = 0; i < x.size(); ++i) x[i] += attended[i];
    const std::vector<double> normal = Normalise(x);
    std::vector<double> gate = Multiply(weights.gate, normal);
    const std::vector<double> up = Multiply(weights.up, normal);
    for (size_t i = 0; i < gate.size(); ++i) gate[i] *= up[i] / (1 + std::exp(-gate[i]));
    const std::vector<double> down = Multiply(weights.down, gate);
    for (size_t i = 0; i < x.size(); ++i) x[i] += down[i];
    Store(x, row);
  }
  return absl::OkStatus();
}

BlendModel SmallTransformer::Model(const AttentionOps& ops, const ExecContext& context) const {
  BlendModel model;
  model.project = [this](int layer, const ConstTensorView& hidden, const TensorView& q,
                         const TensorView& k,
                         const TensorView& v) { return Project(layer, hidden, q, k, v); };
  model.attend = [&ops, &context](int, const PagedPrefillArgs& args) {
    return ops.PagedPrefill(context, args);
  };
  model.finish = [this](int layer, const ConstTensorView& attention, const TensorView& hidden) {
    return Finish(layer, attention, hidden);
  };
  return model;
}

absl::StatusOr<PrefilledPrompt> SmallTransformer::Prefill(const AttentionOps& ops,
                                                          const ExecContext& context,
                                                          absl::Span<const int32_t> ids) const {
  const int64_t n = static_cast<int64_t>(ids.size());
  const int64_t heads = config_.num_heads, kv_heads = config_.num_kv_heads;
  const int64_t dim = config_.head_dim;
  PrefilledPrompt prompt;
  prompt.ids.assign(ids.begin(), ids.end());
  prompt.hidden = Embed(ids);
  const TensorView hidden = ViewOf(absl::MakeSpan(prompt.hidden), {n, config_.hidden_size});
  std::vector<float> q(n * heads * dim), rotated(n * kv_heads * dim), out(q.size());
  std::vector<int32_t> positions(n);
  std::iota(positions.begin(), positions.end(), 0);
  const std::vector<int32_t> starts = {0, static_cast<int32_t>(n)};

  for (int layer = 0; layer < config_.num_layers; ++layer) {
    std::vector<float>& k = prompt.k.emplace_back(n * kv_heads * dim);
    std::vector<float>& v = prompt.v.emplace_back(n * kv_heads * dim);
    VarlenSelfAttentionArgs args;
    const TensorView queries = ViewOf(absl::MakeSpan(q), {n, heads, dim});
    const TensorView keys = ViewOf(absl::MakeSpan(k), {n, kv_heads, dim});
    const TensorView values = ViewOf(absl::MakeSpan(v), {n, kv_heads, dim});
    absl::Status status = Project(layer, hidden, queries, keys, values);
    RotateKeysArgs rotate;
    rotate.positions = ViewOf(absl::MakeConstSpan(positions));
    rotate.theta = config_.theta;
    rotate.in = rotate.out = queries;
    if (status.ok()) status = ops.RotateKeys(context, rotate);
    rotate.in = keys;
    rotate.out = ViewOf(absl::MakeSpan(rotated), {n, kv_heads, dim});
    if (status.ok()) status = ops.RotateKeys(context, rotate);
    args.q = queries;
    args.k = rotate.out;
    args.v = values;
    args.query_start_loc = ViewOf(absl::MakeConstSpan(starts));
    args.params.scale = static_cast<float>(1 / std::sqrt(static_cast<double>(dim)));
    args.out = ViewOf(absl::MakeSpan(out), {n, heads, dim});
    if (status.ok()) status = ops.VarlenSelfAttention(context, args);
    if (status.ok()) status = Finish(layer, args.out, hidden);
    if (!status.ok()) return status;
  }
  return prompt;
}

ChunkViews ViewsOf(const PrefilledPrompt& prompt, const SmallTransformerConfig& config,
                   int64_t num_leading_tokens) {
  ChunkViews views;
  const int64_t n = static_cast<int64_t>(prompt.ids.size());
  for (int layer = 0; layer < config.num_layers; ++layer) {
    for (const bool key : {true, false}) {
      (key ? views.k : views.v)
          .push_back(ViewOf(absl::MakeConstSpan((key ? prompt.k : prompt.v)[layer]),
                            {n, config.num_kv_heads, config.head_dim}));
    }
  }
  views.chunk.ids = prompt.ids;
  views.chunk.k = views.k;
  views.chunk.v = views.v;
  views.chunk.num_leading_tokens = num_leading_tokens;
  return views;
}

absl::StatusOr<BlendDeviation> CompareWithPrefill(const ConstTensorView& rows,
                                                  const ConstTensorView& positions,
                                                  const ConstTensorView& full,
                                                  int64_t first_position) {
  const ExecContext on_host;
  ArgChecker check(on_host, "CompareWithPrefill");
  Dim compared{"M"}, all{"n"}, width{"E"};
  check.In("rows", rows, kComputeTypes, {&compared, &width});
  check.In("positions", positions, DType::kI32, {&compared});
  check.In("full", full, kComputeTypes, {&all, &width});
  if (!check.ok()) return check.status();
  const HostArray<int32_t> position(positions);
  for (int64_t r = 0; r < compared.size; ++r) {
    const int64_t t = position[r] - first_position;
    if (t >= 0 && t < all.size) continue;
    check.OutOfRange("positions[", r, "] is ", position[r], "; full has rows of ", first_position,
                     " to below ", first_position + all.size);
    return check.status();
  }
  BlendDeviation deviation;
  double sum = 0, squares = 0, norm = 0;
  for (int64_t r = 0; r < compared.size; ++r) {
    for (int64_t e = 0; e < width.size; ++e) {
      const double expected = LoadElement(full.dtype, full.At(position[r] - first_position, e));
      const double difference = std::abs(LoadElement(rows.dtype, rows.At(r, e)) - expected);
      // NaN is larger than everything.
      if (!(difference <= deviation.largest)) deviation.largest = difference;
      sum += difference;
      squares += difference * difference;
      norm += expected * expected;
    }
  }
  const int64_t count = compared.size * width.size;
  if (count > 0) deviation.mean = sum / static_cast<double>(count);
  if (std::isnan(sum)) deviation.largest = sum;
  if (squares != 0) deviation.relative = std::sqrt(squares / norm);
  return deviation;
}

}  // namespace kvblocks::attention
