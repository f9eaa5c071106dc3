#include "attention/cpu/visibility.h"

#include <string>
#include <vector>

#include "gtest/gtest.h"

namespace kvblocks::attention {
namespace {

// What a request of q_len rows sees of kv_len keys: one character a key, 1 hidden, as mask tables
// print it.
std::vector<std::string> Hidden(const AttnParams& params, int64_t q_len, int64_t kv_len,
                                int64_t num_heads = 1, int64_t num_kv_heads = 1,
                                int64_t head = 0) {
  const Visibility visibility(params, num_heads, num_kv_heads);
  Visibility::Request request;
  request.q_len = q_len;
  request.kv_len = kv_len;
  std::vector<std::string> rows;
  for (int64_t i = 0; i < q_len; ++i) {
    const Visibility::Row row = visibility.RowOf(request, i, kv_len - q_len + i, head);
    std::string text;
    for (int64_t j = 0; j < kv_len; ++j) {
      const bool seen =
          j >= row.lo && j < row.hi && (!row.needs_test || visibility.Visible(row, j));
      text += seen ? '0' : '1';
    }
    rows.push_back(text);
  }
  return rows;
}

using Rows = std::vector<std::string>;

struct CausalTemplate {
  explicit CausalTemplate(int64_t n) : codes(n * n) {
    for (int64_t i = 0; i < n; ++i) {
      for (int64_t j = i + 1; j < n; ++j) codes[i * n + j] = 1;
    }
    mask.tensor = ViewOf(absl::MakeConstSpan(codes), {n, n});
    mask.form = MaskForm::kTemplate;
  }
  AttnParams Params(int32_t mode, int64_t pre = kUnlimitedTokens, int64_t next = kUnlimitedTokens) {
    AttnParams params;
    params.causal = false;
    params.mask = mask;
    params.mask.sparse_mode = mode;
    params.mask.pre_tokens = pre;
    params.mask.next_tokens = next;
    return params;
  }
  std::vector<int8_t> codes;
  ExplicitMask mask;
};

// Modulo 3, (tp_rank * H + head) * step + 1 is (1 * 4 + 1) * 1 + 1 = 0.
TEST(VisibilityTest, BlockSparseOffsetsBeyondInt64) {
  AttnParams params;
  params.block_sparse.local_blocks = 1;
  params.block_sparse.vert_stride = 3;
  params.block_sparse.block_size = 4;
  params.block_sparse.tp_rank = params.block_sparse.head_sliding_step = INT32_MAX;
  EXPECT_EQ(Hidden(params, 1, 24, 4, 2, 1), (Rows{"000011111111000011110000"}));
}

TEST(VisibilityTest, Ex22Modes) {
  CausalTemplate causal(4);
  EXPECT_EQ(Hidden(causal.Params(2), 2, 5), (Rows{"01111", "00111"}));
  EXPECT_EQ(Hidden(causal.Params(3), 2, 5), (Rows{"00001", "00000"}));
  EXPECT_EQ(Hidden(causal.Params(4, 1, 0), 2, 5), (Rows{"11001", "11100"}));
  EXPECT_EQ(Hidden(causal.Params(4, 2, 0), 2, 5), (Rows{"10001", "11000"}));
  // From three keys before the query to one key before it.
  EXPECT_EQ(Hidden(causal.Params(4, 3, -1), 2, 5), (Rows{"00011", "10001"}));
}

TEST(VisibilityTest, Ex29TemplateOfEightServesThirteenKeys) {
  CausalTemplate causal(8);
  EXPECT_EQ(Hidden(causal.Params(3), 3, 13),
            (Rows{"0000000000011", "0000000000001", "0000000000000"}));
}

TEST(VisibilityTest, ModeZeroCutsTheMaskToABandFromTheTopLeft) {
  const std::vector<uint8_t> codes = {0, 1, 0, 0, 0,  //
                                      0, 0, 0, 0, 0};
  AttnParams params;
  params.causal = false;
  params.mask.sparse_mode = 0;
  EXPECT_EQ(Hidden(params, 2, 5), (Rows{"00000", "00000"}));
  params.mask.form = MaskForm::kShared;
  params.mask.tensor = ViewOf(absl::MakeConstSpan(codes), {2, 5});
  EXPECT_EQ(Hidden(params, 2, 5), (Rows{"01000", "00000"}));
  params.mask.pre_tokens = 0;
  params.mask.next_tokens = 2;
  EXPECT_EQ(Hidden(params, 2, 5), (Rows{"01011", "10001"}));
  params.mask.pre_tokens = -1;  // not even the query's own column
  EXPECT_EQ(Hidden(params, 2, 5), (Rows{"11011", "11001"}));
  // From absolute rows the band counts from there, too.
  const std::vector<uint8_t> zeros(25);
  params.mask.tensor = ViewOf(absl::MakeConstSpan(zeros), {5, 5});
  params.mask.rows_are_absolute = true;
  params.mask.pre_tokens = 1;
  params.mask.next_tokens = 0;
  EXPECT_EQ(Hidden(params, 2, 5), (Rows{"11001", "11100"}));
}

TEST(VisibilityTest, QueriesBeforeTheFirstKeySeeNothingCausally) {
  EXPECT_EQ(Hidden(AttnParams(), 3, 2), (Rows{"11", "01", "00"}));
}

}  // namespace
}  // namespace kvblocks::attention
