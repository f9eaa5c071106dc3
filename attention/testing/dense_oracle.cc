#include "attention/testing/dense_oracle.h"

#include <cmath>
#include <limits>
#include <utility>

namespace kvblocks::attention {
namespace {

constexpr double kInfinity = std::numeric_limits<double>::infinity();

int64_t FloorDiv(int64_t a, int64_t b) { return a >= 0 ? a / b : -((-a + b - 1) / b); }

bool Visible(const DenseRequest& request, const DenseParams& params, int64_t i, int64_t p,
             int64_t j, int64_t h) {
  if (j < 0 || j >= request.kv_len) return false;
  if (params.causal && j > p) return false;
  if (params.window_left >= 0 && j < p - params.window_left) return false;
  if (params.window_right >= 0 && j > p + params.window_right) return false;
  if (params.chunk > 0 && j < params.chunk * FloorDiv(p, params.chunk)) return false;
  if (params.vert_stride > 1) {
    const int64_t q_block = FloorDiv(p, params.sparse_block_size);
    const int64_t k_block = j / params.sparse_block_size;
    const int64_t kv_head = h / (request.num_heads / request.num_kv_heads);
    const int64_t step = params.head_sliding_step;
    const int64_t offset = step >= 0
                               ? (params.tp_rank * request.num_heads + h) * step + 1
                               : (params.tp_rank * request.num_kv_heads + kv_head) * -step + 1;
    if (k_block <= q_block - params.local_blocks && (k_block + offset) % params.vert_stride != 0) {
      return false;
    }
  }
  return !(params.hide && params.hide(i, j, h));
}

}  // namespace

DenseRequest RequestOf(int64_t q_len, int64_t num_heads, int64_t num_kv_heads, int64_t key_dim,
                       int64_t value_dim, std::vector<double> q, std::vector<double> k,
                       std::vector<double> v) {
  const auto kv_len = static_cast<int64_t>(k.size()) / (num_kv_heads * key_dim);
  return {q_len,     kv_len,       num_heads,    num_kv_heads, key_dim,
          value_dim, std::move(q), std::move(k), std::move(v), {}};
}

DenseResult DenseAttention(const DenseRequest& request, const DenseParams& params) {
  const int64_t num_heads = request.num_heads, key_dim = request.key_dim;
  const int64_t value_dim = request.value_dim, kv_len = request.kv_len;
  DenseResult result;
  result.out.assign(request.q_len * num_heads * value_dim, 0.0);
  result.lse.assign(request.q_len * num_heads, -kInfinity);
  result.value_range.assign(request.q_len * num_heads, 0.0);
  for (int64_t h = 0; h < num_heads; ++h) {
    const int64_t kv_head = h / (num_heads / request.num_kv_heads);
    std::vector<double> scores(request.q_len * kv_len, -kInfinity);
    for (int64_t i = 0; i < request.q_len; ++i) {
      const int64_t p =
          request.positions.empty() ? kv_len - request.q_len + i : request.positions[i];
      const double* q = request.q.data() + (i * num_heads + h) * key_dim;
      for (int64_t j = 0; j < kv_len; ++j) {
        if (!Visible(request, params, i, p, j, h)) continue;
        const double* k = request.k.data() + (j * request.num_kv_heads + kv_head) * key_dim;
        double s = 0;
        for (int64_t d = 0; d < key_dim; ++d) s += q[d] * k[d];
        s *= params.scale;
        if (params.cap > 0) s = params.cap * std::tanh(s / params.cap);
        if (!params.alibi_slopes.empty()) s += params.alibi_slopes[h] * static_cast<double>(j - p);
        if (params.bias) s += params.bias(i, j, h);
        scores[i * kv_len + j] = s;
      }
    }
    for (int64_t i = 0; i < request.q_len; ++i) {
      const double* s = scores.data() + i * kv_len;
      double max = -kInfinity, sum = 0;
      for (int64_t j = 0; j < kv_len; ++j) {
        if (std::isnan(s[j]) || s[j] > max) max = s[j];
        if (std::isnan(max)) break;
      }
      if (max == -kInfinity) continue;
      const double sink = params.sinks.empty() ? -kInfinity : params.sinks[h];
      double* out = &result.out[(i * num_heads + h) * value_dim];
      double& range = result.value_range[i * num_heads + h];
      for (int64_t j = 0; j < kv_len; ++j) {
        if (s[j] == -kInfinity) continue;
        const double weight = std::exp(s[j] - max);
        const double* v = request.v.data() + (j * request.num_kv_heads + kv_head) * value_dim;
        sum += weight;
        for (int64_t d = 0; d < value_dim; ++d) {
          out[d] += weight * v[d];
          if (std::abs(v[d]) > range) range = std::abs(v[d]);
        }
      }
      const double lse = max + std::log(sum);
      result.lse[i * num_heads + h] = lse;
      for (int64_t d = 0; d < value_dim; ++d) out[d] = out[d] / sum / (1 + std::exp(sink - lse));
    }
  }
  return result;
}

void Append(const DenseResult& more, DenseResult& all) {
  all.out.insert(all.out.end(), more.out.begin(), more.out.end());
  all.lse.insert(all.lse.end(), more.lse.begin(), more.lse.end());
  all.value_range.insert(all.value_range.end(), more.value_range.begin(), more.value_range.end());
}

}  // namespace kvblocks::attention
