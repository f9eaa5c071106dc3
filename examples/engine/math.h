// Math of a transformer on the CPU, beside attention: matrix products (OpenBLAS), norms, rotary
// embedding, activations, choice of experts, sampling. All float32, rows of tokens one after
// another.
//
// Functions of their arguments, without checks of their own: sizes follow from the model, which has
// checked them.

#ifndef KVBLOCKS_EXAMPLES_ENGINE_MATH_H_
#define KVBLOCKS_EXAMPLES_ENGINE_MATH_H_

#include <cstdint>
#include <random>
#include <vector>

#include "absl/types/span.h"

namespace kvblocks::engine {

// A matrix [out, in] and, if not empty, a bias [out].
struct Linear {
  int64_t in = 0, out = 0;
  std::vector<float> weight = {}, bias = {};

  bool absent() const { return weight.empty(); }
};

// y [rows, out] = x [rows, in] * weight^T + bias.
std::vector<float> Apply(const Linear& linear, absl::Span<const float> x);

// c [rows, out] = a [rows, in] * b, b being [out, in], or [in, out] if not transposed; the rows of
// a and c have strides `a_stride` and `c_stride`.
void Multiply(const float* a, int64_t a_stride, const float* b, bool transposed, float* c,
              int64_t c_stride, int64_t rows, int64_t in, int64_t out);

// Each `weight.size()` values of x over their root mean square, times weight; in place.
void RmsNorm(absl::Span<const float> weight, float eps, absl::Span<float> x);

// Each `weight.size()` values of x, less their mean, over their deviation, times weight plus bias.
void LayerNorm(absl::Span<const float> weight, absl::Span<const float> bias, float eps,
               absl::Span<float> x);

// Rotary embedding of 2 * frequencies.size() values of each head; in place.
struct Rotary {
  std::vector<float> frequencies = {};  // radians per position
  double theta = 0;                     // whose powers they are; 0: they are stretched
  float scale = 1;                      // of cosine and sine
  bool interleaved = false;             // pairs are neighbours; else halves

  // x [tokens, heads, head_size]; the values are those from `first` on.
  void Rotate(absl::Span<const int32_t> positions, int64_t heads, int64_t head_size, int64_t first,
              absl::Span<float> x) const;
};

struct Activation {
  enum class Kind {
    kSilu,
    kGeluTanh,
    // gpt-oss: gate and up within limits, a sigmoid of alpha times the gate, and up + 1.
    kClampedSwiglu,
    kClampedSilu,  // DeepSeek V4: gate and up within limits
  };
  Kind kind = Kind::kSilu;
  float limit = 7, alpha = 1.702f;
};

// gate = activation(gate) * up; in place.
void Gate(const Activation& activation, absl::Span<const float> up, absl::Span<float> gate);

// cap * tanh(x / cap); in place.
void SoftCap(float cap, absl::Span<float> x);

void Softmax(absl::Span<float> x);
// The `count` largest, the largest first, and of equal ones the first. REQUIRES: count <= size.
std::vector<int32_t> TopK(absl::Span<const float> x, int64_t count);

// The first of the largest.
int32_t Greedy(absl::Span<const float> logits);
// Drawn by softmax(logits / temperature). REQUIRES: temperature > 0.
int32_t Sample(absl::Span<const float> logits, float temperature, std::mt19937_64& random);

}  // namespace kvblocks::engine

#endif  // KVBLOCKS_EXAMPLES_ENGINE_MATH_H_
