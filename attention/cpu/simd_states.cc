#include "attention/cpu/simd_states.h"

#include <algorithm>
#include <cmath>
#include <limits>

#include "attention/cpu/simd_kernels.h"
#include "attention/tensor/small_floats.h"

namespace kvblocks::attention::simd {
namespace {

constexpr double kInfinity = std::numeric_limits<double>::infinity();

// What the sink leaves of the output. No sink leaves it as it is, bit for bit.
void ApplySink(double lse, double sink, int64_t n, float* out) {
  if (sink == -kInfinity) return;
  if (lse == -kInfinity || sink == kInfinity) {
    // Not even a NaN is left, nor the sign of a zero.
    std::fill(out, out + n, 0.0f);
    return;
  }
  const double factor = 1 / (1 + std::exp(sink - lse));
  for (int64_t d = 0; d < n; ++d) out[d] = static_cast<float>(out[d] * factor);
}

// out = sum of weight(i) * row i / total over the states that have a weight.
template <typename Weight>
void Combine(const State* states, int64_t num_states, double total, int64_t n, Weight weight,
             float* out) {
  for (int64_t first = 0; first < n; first += kTileKeys) {
    const int64_t count = std::min<int64_t>(kTileKeys, n - first);
    double sums[kTileKeys] = {};
    for (int64_t i = 0; i < num_states; ++i) {
      const double w = weight(i);
      if (w == 0) continue;
      const float* values = states[i].out + first;
      for (int64_t d = 0; d < count; ++d) sums[d] += w * values[d];
    }
    for (int64_t d = 0; d < count; ++d) out[first + d] = static_cast<float>(sums[d] / total);
  }
}

}  // namespace

double MergeRows(const State* states, int64_t num_states, int64_t n, double sink, float* out) {
  double max = -kInfinity;
  double nan = 0;
  int64_t last = -1, filled = 0;
  for (int64_t i = 0; i < num_states; ++i) {
    if (states[i].sum == 0) continue;
    if (std::isnan(states[i].sum) || std::isnan(states[i].max)) nan = NAN;
    max = std::max<double>(max, states[i].max);
    last = i;
    ++filled;
  }
  if (filled == 0) {
    std::fill(out, out + n, 0.0f);
    return -kInfinity;
  }
  double lse = states[last].max;
  if (filled == 1) {
    std::copy(states[last].out, states[last].out + n, out);
    if (states[last].sum != 1) lse += std::log(static_cast<double>(states[last].sum));
  } else {
    const auto weight = [&](int64_t i) {
      if (states[i].sum == 0) return 0.0;
      return states[i].sum * std::exp(states[i].max - max) + nan;
    };
    double total = 0;
    for (int64_t i = 0; i < num_states; ++i) total += weight(i);
    Combine(states, num_states, total, n, weight, out);
    lse = max + std::log(total);
  }
  ApplySink(lse, sink, n, out);
  return lse;
}

double SinkOf(const ConstTensorView& sinks, int64_t head) {
  if (sinks.absent()) return -kInfinity;
  return LoadElement(sinks.dtype, sinks.At(head));
}

void StoreRow(const TensorView& out, int64_t offset, int64_t stride, int64_t n, float out_scale,
              const float* row) {
  const int64_t bytes = ElementBytes(out.dtype);
  std::byte* to = out.data + offset * bytes;
  if (out_scale > 0) {
    for (int64_t d = 0; d < n; ++d) {
      StoreElement(out.dtype, static_cast<double>(row[d]) / out_scale, to + d * stride * bytes);
    }
  } else if (stride == 1 || n == 1) {
    RoundRow(out.dtype, row, n, to);
  } else {
    for (int64_t d = 0; d < n; ++d) StoreElement(out.dtype, row[d], to + d * stride * bytes);
  }
}

}  // namespace kvblocks::attention::simd
