#include "attention/testing/dense_oracle.h"

#include <cmath>
#include <limits>

#include "gtest/gtest.h"

namespace kvblocks::attention {
namespace {

constexpr double kInfinity = std::numeric_limits<double>::infinity();
constexpr double kNaN = std::numeric_limits<double>::quiet_NaN();

// One head and dimensions of 1: with a query of 1, keys are scores.
DenseRequest Scores(std::vector<double> scores, std::vector<double> values, int64_t q_len = 1) {
  DenseRequest request;
  request.q_len = q_len;
  request.kv_len = static_cast<int64_t>(scores.size());
  request.q.assign(q_len, 1.0);
  request.k = std::move(scores);
  request.v = std::move(values);
  return request;
}

TEST(DenseOracleTest, Ex6DecodeAndSink) {
  const DenseRequest request = Scores({0, std::log(2), std::log(5)}, {8, 16, 24});
  DenseParams params;
  EXPECT_NEAR(DenseAttention(request, params).out[0], 20, 1e-12);
  const std::pair<double, double> kCases[] = {{-kInfinity, 20},
                                              {0, 17.777777777777777},
                                              {std::log(8), 10},
                                              {std::log(24), 5},
                                              {kInfinity, 0}};
  for (const auto& [sink, out] : kCases) {
    params.sinks = {sink};
    const DenseResult result = DenseAttention(request, params);
    EXPECT_NEAR(result.out[0], out, 1e-12) << sink;
    EXPECT_NEAR(result.lse[0], 2.0794415416798357, 1e-12) << sink;
  }
}

TEST(DenseOracleTest, Ex10ScoreFeatures) {
  DenseParams alibi;
  alibi.alibi_slopes = {0.5};
  DenseResult result = DenseAttention(Scores({0, 0, 0, 0}, {1, 2, 3, 4}), alibi);
  EXPECT_NEAR(result.out[0], 3.0845765, 1e-7);
  EXPECT_NEAR(result.lse[0], 0.7873387, 1e-7);

  DenseParams cap;
  cap.cap = 2;
  result = DenseAttention(Scores({1, 2, 4}, {1, 2, 4}), cap);
  EXPECT_NEAR(result.out[0], 2.8032897, 1e-7);
  EXPECT_NEAR(result.lse[0], 2.6378343, 1e-7);

  cap.alibi_slopes = {0.25};
  result = DenseAttention(Scores({1, 2, 4}, {1, 2, 4}), cap);
  EXPECT_NEAR(result.out[0], 3.0206284, 1e-7);
  EXPECT_NEAR(result.lse[0], 2.4829688, 1e-7);

  DenseParams window;
  window.window_left = 2;
  const std::vector<double> zeros(8), values = {0, 1, 2, 3, 4, 5, 6, 7};
  result = DenseAttention(Scores(zeros, values, 8), window);
  EXPECT_NEAR(result.out[1], 0.5, 1e-12);  // 0 1
  EXPECT_NEAR(result.out[6], 5, 1e-12);    // 4 5 6
  EXPECT_NEAR(result.out[7], 6, 1e-12);    // 5 6 7
  EXPECT_NEAR(result.lse[7], std::log(3), 1e-12);

  window.window_left = 1;
  window.sinks = {0};
  result = DenseAttention(Scores({9, 9, 0, std::log(3)}, {1, 2, 3, 4}), window);
  EXPECT_NEAR(result.out[0], 3, 1e-12);
  EXPECT_NEAR(result.lse[0], std::log(4), 1e-12);
}

// The kernel blocks of two tokens that each head sees, from which values are read back by giving key
// j the value 2^j and all keys the same score.
TEST(DenseOracleTest, Ex15BlockSparse) {
  DenseRequest request;
  request.q_len = 1;
  request.kv_len = 17;
  request.num_heads = 4;
  request.num_kv_heads = 2;
  request.q.assign(4, 0.0);
  request.k.assign(17 * 2, 0.0);
  for (int j = 0; j < 17; ++j) request.v.insert(request.v.end(), 2, std::ldexp(1, j));
  DenseParams params;
  params.local_blocks = 1;
  params.vert_stride = 2;
  params.sparse_block_size = 4;
  const auto blocks = [&](int h) {
    const DenseResult result = DenseAttention(request, params);
    const int64_t bits = std::llround(result.out[h] * std::exp(result.lse[h]));
    std::vector<int> seen;
    for (int j = 0; j < 17; ++j) {
      if (bits >> j & 1 && (seen.empty() || seen.back() != j / 2)) seen.push_back(j / 2);
    }
    return seen;
  };
  for (int h = 0; h < 4; ++h) EXPECT_EQ(blocks(h), (std::vector<int>{2, 3, 6, 7, 8}));
  EXPECT_NEAR(DenseAttention(request, params).lse[0], std::log(9), 1e-12);
  params.head_sliding_step = 1;
  EXPECT_EQ(blocks(1), (std::vector<int>{0, 1, 4, 5, 8}));
  params.head_sliding_step = -1;
  for (int h : {2, 3}) EXPECT_EQ(blocks(h), (std::vector<int>{0, 1, 4, 5, 8}));
}

TEST(DenseOracleTest, Ex35GroupsOfHeadsShareKeys) {
  DenseRequest request;
  request.q_len = 1;
  request.kv_len = 2;
  request.num_heads = 4;
  request.num_kv_heads = 2;
  request.key_dim = 2;
  const double l3 = std::log(3);
  request.q = {l3, 0, 0, l3, l3, 0, 0, l3};
  request.k = {1, 0, 1, 0, 0, 1, 0, 1};  // both KV heads alike
  request.v = {10, 100, 20, 200};        // the second has ten times the values
  const DenseResult result = DenseAttention(request, DenseParams());
  const double kOut[] = {12.5, 17.5, 125, 175};
  for (int h = 0; h < 4; ++h) {
    EXPECT_NEAR(result.out[h], kOut[h], 1e-12);
    EXPECT_NEAR(result.lse[h], std::log(4), 1e-12);
  }
}

TEST(DenseOracleTest, NothingVisibleIsZeroWhateverTheSink) {
  DenseParams params;
  params.hide = [](int64_t, int64_t, int64_t) { return true; };
  for (double sink : {-kInfinity, 0.0, kInfinity}) {
    params.sinks = {sink};
    const DenseResult result = DenseAttention(Scores({1, 2}, {kNaN, kNaN}), params);
    EXPECT_EQ(result.out[0], 0);
    EXPECT_EQ(result.lse[0], -kInfinity);
  }
}

TEST(DenseOracleTest, OnlyVisibleNaNsSpread) {
  const DenseResult result =
      DenseAttention(Scores({0, 0, kNaN, 0}, {1, 2, 3, kNaN}, 4), DenseParams());
  EXPECT_EQ(result.out[0], 1);
  EXPECT_EQ(result.out[1], 1.5);
  EXPECT_TRUE(std::isnan(result.out[2]) && std::isnan(result.lse[2]));
  EXPECT_TRUE(std::isnan(result.out[3]));
}

TEST(DenseOracleTest, AddedMinusInfinityHides) {
  DenseParams params;
  params.bias = [](int64_t, int64_t j, int64_t) { return j == 1 ? -kInfinity : 0.0; };
  const DenseResult result = DenseAttention(Scores({0, 0, 0}, {1, kNaN, 3}), params);
  EXPECT_EQ(result.out[0], 2);
  EXPECT_NEAR(result.lse[0], std::log(2), 1e-12);
}

}  // namespace
}  // namespace kvblocks::attention
