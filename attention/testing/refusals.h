// Tables of bad calls and what is expected of them: refused with the stated code, in a message that
// names operation, argument, value and limit, and nothing written. Testonly.

#ifndef KVBLOCKS_ATTENTION_TESTING_REFUSALS_H_
#define KVBLOCKS_ATTENTION_TESTING_REFUSALS_H_

#include <functional>
#include <limits>
#include <string>
#include <vector>

#include "absl/strings/str_split.h"
#include "absl/strings/string_view.h"
#include "attention/testing/valid_args.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "kvblocks/attention_ops.h"

namespace kvblocks::attention {
inline constexpr auto kInvalid = absl::StatusCode::kInvalidArgument;
inline constexpr auto kRange = absl::StatusCode::kOutOfRange;
inline constexpr auto kExhausted = absl::StatusCode::kResourceExhausted;
inline constexpr auto kUnimplemented = absl::StatusCode::kUnimplemented;
inline constexpr float kInf = std::numeric_limits<float>::infinity();
inline constexpr float kNan = std::numeric_limits<float>::quiet_NaN();

// One bad call: what is done to valid arguments, and what the refusal says, texts joined by '|'.
template <typename Args>
struct Bad {
  std::function<void(Args&, TensorStore&)> spoil;
  absl::StatusCode code;
  std::string says;
};

// A Bad where `Args` is known: the statements spoil `a`, with tensors of the store `s`.
#define KVBLOCKS_BAD(code, says, ...)                                          \
  {                                                                            \
    [=](Args& a, [[maybe_unused]] TensorStore& s) { __VA_ARGS__; }, code, says \
  }

template <typename Args>
void ExpectRefused(const char* op, const std::vector<Bad<Args>>& rows) {
  {
    TensorStore store;
    const Args args = Valid<Args>(store);
    EXPECT_EQ(Check({}, args), absl::OkStatus()) << op;
  }
  for (size_t i = 0; i < rows.size(); ++i) {
    TensorStore store;
    Args args = Valid<Args>(store);
    rows[i].spoil(args, store);
    const absl::Status status = Check({}, args);
    const std::string where = std::string(op) + " row " + std::to_string(i);
    EXPECT_EQ(status.code(), rows[i].code) << where << ": " << status;
    const std::string message(status.message());
    EXPECT_THAT(message, ::testing::HasSubstr(std::string(op) + ": ")) << where;
    for (absl::string_view text : absl::StrSplit(rows[i].says, '|')) {
      EXPECT_THAT(message, ::testing::HasSubstr(std::string(text))) << where;
    }
    EXPECT_TRUE(store.OutputsUntouched()) << where;
  }
}

template <typename Args>
void ExpectAccepted(const std::function<void(Args&, TensorStore&)>& change) {
  TensorStore store;
  Args args = Valid<Args>(store);
  change(args, store);
  EXPECT_EQ(Check({}, args), absl::OkStatus());
}

inline TensorView OnCuda(TensorView view) {
  view.device = {DeviceKind::kCuda, 0};
  return view;
}
inline ConstTensorView OnCuda(ConstTensorView view) {
  view.device = {DeviceKind::kCuda, 0};
  return view;
}

// What is wrong in the same way for everything that has AttnParams; `at` finds them.
template <typename Args, typename At>
std::vector<Bad<Args>> ParamRows(At at, bool paged) {
  std::vector<Bad<Args>> rows = {
    KVBLOCKS_BAD(kInvalid, "scale|nan|above 0", at(a).scale = kNan),
    KVBLOCKS_BAD(kInvalid, "scale is 0", at(a).scale = 0),
    KVBLOCKS_BAD(kInvalid, "scale is -1", at(a).scale = -1),
    KVBLOCKS_BAD(kInvalid, "scale is inf", at(a).scale = kInf),
    KVBLOCKS_BAD(kInvalid, "soft_cap is -2", at(a).soft_cap = -2),
    KVBLOCKS_BAD(kInvalid, "soft_cap is nan", at(a).soft_cap = kNan),
    KVBLOCKS_BAD(kInvalid, "window_left|-2", at(a).window_left = -2),
    KVBLOCKS_BAD(kInvalid, "window_right|-7", at(a).window_right = -7),
    KVBLOCKS_BAD(kInvalid, "window_right is 1|causal", at(a).window_right = 1),
    KVBLOCKS_BAD(kInvalid, "chunk is -4", at(a).chunk = -4),
    KVBLOCKS_BAD(kInvalid, "alibi_slopes is f32[2]|H = 4", at(a).alibi_slopes = s.Floats({1, 2})),
    KVBLOCKS_BAD(kInvalid, "alibi_slopes is f64[4]|f32",
                 at(a).alibi_slopes = s.Input(DType::kF64, {4})),
    KVBLOCKS_BAD(kInvalid, "sinks has 3|H = 4", at(a).sinks = s.Floats({1, 2, 3})),
    KVBLOCKS_BAD(kInvalid, "sinks[2] is NaN", at(a).sinks = s.Floats({1, 2, kNan, 3})),
    KVBLOCKS_BAD(kInvalid, "Fixed(0)", at(a).split = SplitPolicy::Fixed(0)),
    KVBLOCKS_BAD(kInvalid, "Count(0)", at(a).split = SplitPolicy::Count(0)),
    KVBLOCKS_BAD(kInvalid, "block_sparse.block_size is 0", at(a).block_sparse.vert_stride = 2;
                 at(a).block_sparse.block_size = 0),
    KVBLOCKS_BAD(kInvalid, "local_blocks -1", at(a).block_sparse.vert_stride = 2;
                 at(a).block_sparse.local_blocks = -1),
    KVBLOCKS_BAD(kInvalid, "sparse_mode is 5", at(a).mask.sparse_mode = 5),
    KVBLOCKS_BAD(kInvalid, "sparse_mode 3|kTemplate", at(a).mask.sparse_mode = 3),
    KVBLOCKS_BAD(kInvalid, "template|sparse_mode 1", at(a).mask.form = MaskForm::kTemplate;
                 at(a).mask.tensor = s.Input(DType::kI8, {8, 8})),
    KVBLOCKS_BAD(kInvalid, "params.mask is i8[8, 7]|N = 8", at(a).mask.form = MaskForm::kTemplate;
                 at(a).mask.sparse_mode = 2; at(a).mask.tensor = s.Input(DType::kI8, {8, 7})),
    KVBLOCKS_BAD(kInvalid, "params.mask is i8[8, 5]|S2 at least 6",
                 at(a).mask.form = MaskForm::kShared;
                 at(a).mask.tensor = s.Input(DType::kI8, {8, 5})),
    KVBLOCKS_BAD(kInvalid, "params.mask is i8[5, 8]|S1 must be at least 6",
                 at(a).mask.form = MaskForm::kShared;
                 at(a).mask.rows_are_absolute = true;
                 at(a).mask.tensor = s.Input(DType::kI8, {5, 8})),
    KVBLOCKS_BAD(kInvalid, "params.mask is i8[3, 8, 8]|R = 2",
                 at(a).mask.form = MaskForm::kPerRequest;
                 at(a).mask.tensor = s.Input(DType::kI8, {3, 8, 8})),
    KVBLOCKS_BAD(kInvalid, "params.mask is for 1 requests and 3 heads|H = 4",
                 at(a).mask.form = MaskForm::kPerHead;
                 at(a).mask.tensor = s.Input(DType::kI8, {1, 3, 8, 8})),
    KVBLOCKS_BAD(kInvalid, "params.mask is i8[8, 8]|f16", at(a).mask.form = MaskForm::kShared;
                 at(a).mask.encoding = MaskEncoding::kAdditive;
                 at(a).mask.tensor = s.Input(DType::kI8, {8, 8})),
    KVBLOCKS_BAD(kInvalid, "params.mask is bf16[8, 8]|f16", at(a).mask.form = MaskForm::kShared;
                 at(a).mask.encoding = MaskEncoding::kAdditiveFinite;
                 at(a).mask.tensor = s.Input(DType::kBF16, {8, 8})),
    KVBLOCKS_BAD(kInvalid, "params.mask has 1 bytes|bits take",
                 at(a).mask.form = MaskForm::kRaggedBits;
                 at(a).mask.tensor = s.Input(DType::kU8, {1})),
    KVBLOCKS_BAD(kInvalid, "pre_tokens + next_tokens is -3 + 2", at(a).mask.sparse_mode = 0;
                 at(a).mask.pre_tokens = -3; at(a).mask.next_tokens = 2),
    KVBLOCKS_BAD(kInvalid, "pre_tokens is -2|-S1", at(a).mask.sparse_mode = 0;
                 at(a).mask.pre_tokens = -2),
    KVBLOCKS_BAD(kInvalid, "next_tokens is -6|-S2 = -6", at(a).mask.sparse_mode = 0;
                 at(a).mask.next_tokens = -6),
  };
  // Positions plus these must not overflow.
  rows.push_back(KVBLOCKS_BAD(kInvalid, "window_left|at most 2^40", at(a).window_left = INT64_MAX));
  for (const int32_t step : {INT32_MAX, INT32_MIN}) {
    rows.push_back({[=](Args& a, TensorStore&) {
                      at(a).block_sparse.vert_stride = 2;
                      at(a).block_sparse.tp_rank = INT32_MAX;
                      at(a).block_sparse.head_sliding_step = step;
                    },
                    kInvalid, "head_sliding_step " + std::to_string(step) + "|beyond 2^62"});
  }
  rows.push_back(KVBLOCKS_BAD(kInvalid, "split.value|at most 2^40",
                              at(a).split = SplitPolicy::Count(INT64_MAX)));
  rows.push_back(KVBLOCKS_BAD(kInvalid, "next_tokens is 9223372036854775807|within 2^40",
                              at(a).mask.sparse_mode = 0;
                              at(a).mask.next_tokens = INT64_MAX));
  if (!paged) return rows;
  rows.push_back(KVBLOCKS_BAD(kInvalid, "chunk is 6|block size 4", at(a).chunk = 6));
  rows.push_back(
      KVBLOCKS_BAD(kInvalid, "Fixed(6)|block size 4", at(a).split = SplitPolicy::Fixed(6)));
  rows.push_back(KVBLOCKS_BAD(kInvalid, "block_sparse.block_size is 6|block size 4",
                              at(a).block_sparse.vert_stride = 2;
                              at(a).block_sparse.block_size = 6));
  rows.push_back(KVBLOCKS_BAD(kInvalid, "scales.k is given|f32", at(a).scales.k = s.Floats({1})));
  rows.push_back(KVBLOCKS_BAD(kInvalid, "scales.q is given", at(a).scales.q = s.Floats({1})));
  return rows;
}

// What is wrong in the same way with a block table and lengths 6 and 3 of block size 4.
template <typename Args>
std::vector<Bad<Args>> TableRows() {
  return {
    KVBLOCKS_BAD(kInvalid, "R =", a.seq_lens = s.Ints({6, 3, 1})),
        KVBLOCKS_BAD(kInvalid, "seq_lens is i64[2]|i32", a.seq_lens = s.Slots({6, 3})),
        KVBLOCKS_BAD(kInvalid, "seq_lens[1] is -1", a.seq_lens = s.Ints({6, -1})),
        KVBLOCKS_BAD(kInvalid, "max_seq_len is 5|seq_lens[0] = 6", a.max_seq_len = 5),
        KVBLOCKS_BAD(kInvalid, "max_seq_len is -1", a.max_seq_len = -1),
        KVBLOCKS_BAD(kRange, "block_table has 2 columns|length 9|needs 3",
                     a.seq_lens = s.Ints({9, 3});
                     a.max_seq_len = 9),
        KVBLOCKS_BAD(kRange, "block_table[0][1] is 6|0 to 5",
                     a.block_table = s.Values<int32_t>({1, 6, 3, 0}, {2, 2})),
        KVBLOCKS_BAD(kRange, "block_table[1][0] is -1|0 to 5",
                     a.block_table = s.Values<int32_t>({1, 2, -1, 0}, {2, 2})),
        KVBLOCKS_BAD(kInvalid, "block_table is i32[2]|[R, columns]",
                     a.block_table = s.Ints({1, 2})),
        KVBLOCKS_BAD(kInvalid, "cache.v|NB = 0", a.cache.k.extent[0] = 0),
        KVBLOCKS_BAD(kInvalid, "cache.k is absent", a.cache.k = {}),
  };
}

template <typename Args>
std::vector<Bad<Args>> Join(std::vector<Bad<Args>> a, const std::vector<Bad<Args>>& b) {
  a.insert(a.end(), b.begin(), b.end());
  return a;
}

}  // namespace kvblocks::attention

#endif  // KVBLOCKS_ATTENTION_TESTING_REFUSALS_H_
