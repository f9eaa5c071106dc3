// DenseOracle: attention of one request written down as its definition, in float64, with nothing
// clever and nothing shared with the code under test. Whatever else computes attention must agree;
// the `reference` backend, which is shipped, is no second oracle but the first that is checked.
//
// Inputs are plain row-major vectors: q [q_len][H][D], k [L][Hkv][D], v [L][Hkv][Dv], already
// dequantised. The whole score matrix of a head is materialised:
//   s = scale * <q, k_j>; cap > 0: cap * tanh(s / cap); + slope_h * (j - p); + bias(i, j, h);
//   -infinity where key j is not visible from position p.
// out = sum of e^(s_j - lse') v_j, lse' = log(sum e^(s_j) + e^sink); lse leaves the sink out.
// Nothing visible: out 0, lse -infinity. NaN and +infinity in what is visible make the row NaN;
// values of hidden keys are never touched. Cost: O(q_len * L * H * (D + Dv)).

#ifndef KVBLOCKS_ATTENTION_TESTING_DENSE_ORACLE_H_
#define KVBLOCKS_ATTENTION_TESTING_DENSE_ORACLE_H_

#include <cstdint>
#include <functional>
#include <vector>

namespace kvblocks::attention {

struct DenseRequest {
  int64_t q_len = 0, kv_len = 0;
  int64_t num_heads = 1, num_kv_heads = 1, key_dim = 1, value_dim = 1;
  std::vector<double> q, k, v;
  std::vector<int64_t> positions;  // of the queries; empty: kv_len - q_len + i
};

// Of so many queries over the keys that `k` holds.
DenseRequest RequestOf(int64_t q_len, int64_t num_heads, int64_t num_kv_heads, int64_t key_dim,
                       int64_t value_dim, std::vector<double> q, std::vector<double> k,
                       std::vector<double> v);

struct DenseParams {
  double scale = 1;
  double cap = 0;  // 0: off
  bool causal = true;
  int64_t window_left = -1, window_right = -1;  // -1: unlimited
  int64_t chunk = 0;                            // 0: off
  std::vector<double> alibi_slopes;             // [H] or empty
  std::vector<double> sinks;                    // [H] or empty
  // Block-sparse rule, off if vert_stride <= 1.
  int64_t local_blocks = 0, vert_stride = 0, sparse_block_size = 64;
  int64_t head_sliding_step = 0, tp_rank = 0;
  // Of row i of the queries, key j, head h; empty: nothing hidden, nothing added.
  std::function<bool(int64_t i, int64_t j, int64_t h)> hide;
  std::function<double(int64_t i, int64_t j, int64_t h)> bias;
};

struct DenseResult {
  std::vector<double> out;  // [q_len][H][Dv]
  std::vector<double> lse;  // [q_len][H]
  // max |v| over the rows a query sees, [q_len][H]: what absolute tolerances scale with.
  std::vector<double> value_range;
};

DenseResult DenseAttention(const DenseRequest& request, const DenseParams& params);

// Rows of `more` behind those of `all`, for several requests.
void Append(const DenseResult& more, DenseResult& all);

}  // namespace kvblocks::attention

#endif  // KVBLOCKS_ATTENTION_TESTING_DENSE_ORACLE_H_
