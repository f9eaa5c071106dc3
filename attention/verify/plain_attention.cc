#include "kvblocks/attention/verify/plain_attention.h"

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

}  // namespace kvblocks::attention
