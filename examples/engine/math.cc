#include "examples/engine/math.h"

#include <cblas.h>

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <numeric>
#include <utility>

namespace kvblocks::engine {

void Multiply(const float* a, int64_t a_stride, const float* b, bool transposed, float* c,
              int64_t c_stride, int64_t rows, int64_t in, int64_t out) {
  if (rows == 0) return;
  cblas_sgemm(CblasRowMajor, CblasNoTrans, transposed ? CblasTrans : CblasNoTrans,
              static_cast<int>(rows), static_cast<int>(out), static_cast<int>(in), 1.0f, a,
              static_cast<int>(a_stride), b, static_cast<int>(transposed ? in : out), 0.0f, c,
              static_cast<int>(c_stride));
}

std::vector<float> Apply(const Linear& linear, absl::Span<const float> x) {
  const int64_t rows = static_cast<int64_t>(x.size()) / linear.in;
  std::vector<float> y(static_cast<size_t>(rows * linear.out));
  Multiply(x.data(), linear.in, linear.weight.data(), true, y.data(), linear.out, rows, linear.in,
           linear.out);
  if (linear.bias.empty()) return y;
  for (size_t i = 0; i < y.size(); ++i) y[i] += linear.bias[i % linear.bias.size()];
  return y;
}

void RmsNorm(absl::Span<const float> weight, float eps, absl::Span<float> x) {
  for (size_t row = 0; row < x.size(); row += weight.size()) {
    const absl::Span<float> values = x.subspan(row, weight.size());
    double squares = 0;
    for (const float value : values) squares += double{value} * value;
    const auto factor =
        static_cast<float>(1 / std::sqrt(squares / static_cast<double>(weight.size()) + eps));
    for (size_t i = 0; i < values.size(); ++i) values[i] = values[i] * factor * weight[i];
  }
}

void LayerNorm(absl::Span<const float> weight, absl::Span<const float> bias, float eps,
               absl::Span<float> x) {
  for (size_t row = 0; row < x.size(); row += weight.size()) {
    const absl::Span<float> values = x.subspan(row, weight.size());
    const auto count = static_cast<double>(values.size());
    double sum = 0, squares = 0;
    for (const float value : values) sum += value;
    for (const float value : values) squares += (value - sum / count) * (value - sum / count);
    const double factor = 1 / std::sqrt(squares / count + eps);
    for (size_t i = 0; i < values.size(); ++i) {
      values[i] = static_cast<float>((values[i] - sum / count) * factor) * weight[i] + bias[i];
    }
  }
}

void Rotary::Rotate(absl::Span<const int32_t> positions, int64_t heads, int64_t head_size,
                    int64_t first, absl::Span<float> x) const {
  const size_t n = frequencies.size();
  std::vector<float> cosines(n), sines(n);
  float* head = x.data() + first;
  for (const int32_t position : positions) {
    for (size_t i = 0; i < n; ++i) {
      const float angle = static_cast<float>(position) * frequencies[i];
      cosines[i] = std::cos(angle) * scale;
      sines[i] = std::sin(angle) * scale;
    }
    for (int64_t h = 0; h < heads; ++h, head += head_size) {
      for (size_t i = 0; i < n; ++i) {
        float& a = head[interleaved ? 2 * i : i];
        float& b = head[interleaved ? 2 * i + 1 : n + i];
        const float rotated = a * cosines[i] - b * sines[i];
        b = b * cosines[i] + a * sines[i];
        a = rotated;
      }
    }
  }
}

void Gate(const Activation& activation, absl::Span<const float> up, absl::Span<float> gate) {
  constexpr float kRootOfTwoOverPi = 0.7978845608f;
  const auto sigmoid = [](float value) { return 1 / (1 + std::exp(-value)); };
  for (size_t i = 0; i < gate.size(); ++i) {
    const float g = gate[i];
    switch (activation.kind) {
      case Activation::Kind::kSilu:
        gate[i] = g * sigmoid(g) * up[i];
        break;
      case Activation::Kind::kGeluTanh:
        gate[i] =
            0.5f * g * (1 + std::tanh(kRootOfTwoOverPi * (g + 0.044715f * g * g * g))) * up[i];
        break;
      case Activation::Kind::kClampedSilu:
        gate[i] = std::min(g, activation.limit) * sigmoid(std::min(g, activation.limit)) *
                  std::clamp(up[i], -activation.limit, activation.limit);
        break;
      case Activation::Kind::kClampedSwiglu: {
        const float limit = activation.limit, limited = std::min(g, limit);
        gate[i] =
            (std::clamp(up[i], -limit, limit) + 1) * limited * sigmoid(limited * activation.alpha);
        break;
      }
    }
  }
}

void SoftCap(float cap, absl::Span<float> x) {
  for (float& value : x) value = cap * std::tanh(value / cap);
}

void Softmax(absl::Span<float> x) {
  const float largest = *std::max_element(x.begin(), x.end());
  float sum = 0;
  for (float& value : x) sum += value = std::exp(value - largest);
  for (float& value : x) value /= sum;
}

std::vector<int32_t> TopK(absl::Span<const float> x, int64_t count) {
  std::vector<int32_t> order(x.size());
  std::iota(order.begin(), order.end(), 0);
  std::partial_sort(order.begin(), order.begin() + count, order.end(),
                    [&](int32_t a, int32_t b) { return x[a] != x[b] ? x[a] > x[b] : a < b; });
  order.resize(static_cast<size_t>(count));
  return order;
}

int32_t Greedy(absl::Span<const float> logits) {
  return static_cast<int32_t>(std::max_element(logits.begin(), logits.end()) - logits.begin());
}

int32_t Sample(absl::Span<const float> logits, float temperature, std::mt19937_64& random) {
  std::vector<float> weights(logits.begin(), logits.end());
  for (float& weight : weights) weight /= temperature;
  Softmax(absl::MakeSpan(weights));
  // 53 bits, so that the draw does not depend on the standard library.
  float left = static_cast<float>(static_cast<double>(random() >> 11) * 0x1p-53);
  for (size_t i = 0; i + 1 < weights.size(); ++i) {
    left -= weights[i];
    if (left < 0) return static_cast<int32_t>(i);
  }
  return static_cast<int32_t>(weights.size() - 1);
}

}  // namespace kvblocks::engine
