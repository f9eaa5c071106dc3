#include "kvblocks/kv_cache_verifier.h"

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <limits>
#include <vector>


namespace kvblocks::attention {

void AttendPlainly(const RowShape& shape, double scale, absl::Span<const float> query,
                   const float* rows, int64_t num_rows, absl::Span<const float> sinks,
                   absl::Span<double> out) {
  std::fill(out.begin(), out.end(), 0.0);
  if (num_rows == 0) return;
  const int64_t stride = shape.floats();
  const int64_t group = shape.num_heads / shape.num_kv_heads;
  std::vector<double> scores(static_cast<size_t>(num_rows));
  for (int64_t head = 0; head < shape.num_heads; ++head) {
    const int64_t kv_head = head / group;
    const float* q = query.data() + head * shape.key_size;
    const float* keys = rows + kv_head * shape.key_size;
    const float* values =
        shape.is_mla ? rows
                     : rows + shape.num_kv_heads * shape.key_size + kv_head * shape.value_size;
    double* result = out.data() + head * shape.value_size;

    double highest = -std::numeric_limits<double>::infinity();
    for (int64_t j = 0; j < num_rows; ++j) {
      double dot = 0;
      for (int64_t d = 0; d < shape.key_size; ++d) {
        dot += static_cast<double>(q[d]) * static_cast<double>(keys[j * stride + d]);
      }
      scores[static_cast<size_t>(j)] = scale * dot;
      highest = std::max(highest, scale * dot);
    }
    double sum = 0;
    for (int64_t j = 0; j < num_rows; ++j) {
      const double weight = std::exp(scores[static_cast<size_t>(j)] - highest);
      sum += weight;
      for (int64_t d = 0; d < shape.value_size; ++d) {
        result[d] += weight * static_cast<double>(values[j * stride + d]);
      }
    }
    if (!sinks.empty())
      sum += std::exp(static_cast<double>(sinks[static_cast<size_t>(head)]) - highest);
    for (int64_t d = 0; d < shape.value_size; ++d) result[d] /= sum;
  }
}

namespace {

constexpr uint64_t kStep = 0x9e3779b97f4a7c15;

// A bijection whose every output bit depends on every input bit.
uint64_t Mix(uint64_t x) {
  x ^= x >> 32;
  x *= 0xd6e8feb86659fd93;
  x ^= x >> 32;
  x *= 0xd6e8feb86659fd93;
  return x ^ (x >> 32);
}

}  // namespace

TokenValues::TokenValues(uint64_t seed) : seed_(Mix(seed + kStep)) {}

uint64_t TokenValues::EmptyPrefix(uint64_t salt) const { return Mix(seed_ ^ Mix(salt + kStep)); }

uint64_t TokenValues::Extend(uint64_t prefix, int64_t token) {
  return Mix(prefix * kStep + Mix(static_cast<uint64_t>(token) + kStep));
}

void TokenValues::Fill(uint64_t prefix, int64_t layer, TokenValueKind kind,
                       absl::Span<float> out) const {
  uint64_t state =
      Mix(prefix ^ (static_cast<uint64_t>(layer) * 8 + static_cast<uint64_t>(kind)) * kStep);
  uint64_t bytes = 0;
  for (size_t i = 0; i < out.size(); ++i, bytes >>= 8) {
    if (i % 8 == 0) bytes = Mix(state += kStep);
    out[i] = static_cast<float>(static_cast<int8_t>(bytes & 0xff)) * (1.0f / 64);
  }
}

}  // namespace kvblocks::attention
