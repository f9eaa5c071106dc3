// T-11: explicit masks equal the implicit path to the bit where they say the same; and every form,
// encoding and mode against the dense oracle.

#include <functional>
#include <limits>
#include <random>

#include "attention/testing/ops_suite.h"

namespace kvblocks::attention {
namespace {

constexpr double kInfinity = std::numeric_limits<double>::infinity();
constexpr int64_t kMaxLength = 75;

PagedCaseOptions Options() {
  PagedCaseOptions options;
  options.lengths = {1, 70, 0, 16, 33, kMaxLength};
  options.q_lens = {1, 17, 0, 16, 1, 5};
  options.key_dim = options.value_dim = 32;
  return options;
}

using Hide = std::function<bool(int64_t b, int64_t i, int64_t j, int64_t h)>;

// The position of row i.
int64_t Position(const PagedCase& paged, int64_t b, int64_t i) {
  return paged.options().lengths[b] - paged.options().q_lens[b] + i;
}

struct Codes {
  DType dtype;
  double hidden;
  MaskEncoding encoding = MaskEncoding::kMarker;
};
const Codes kBoolMarker{DType::kBool, 1},
    kF16Additive{DType::kF16, -kInfinity, MaskEncoding::kAdditive};
const Codes kAllCodes[] = {kBoolMarker,      {DType::kBF16, 1},
                           {DType::kF32, 1}, {DType::kF32, -kInfinity, MaskEncoding::kAdditive},
                           kF16Additive,     {DType::kF16, -10000, MaskEncoding::kAdditiveFinite}};

// A mask tensor of these extents that hides by `hide(n)`, n counting elements.
Tensor MaskTensor(const Codes& codes, std::vector<int64_t> extents,
                  const std::function<bool(int64_t n)>& hide, ExplicitMask* mask) {
  Tensor tensor(codes.dtype, std::move(extents));
  std::vector<double> values(tensor.view.num_elements());
  for (size_t n = 0; n < values.size(); ++n) values[n] = hide(n) ? codes.hidden : 0;
  tensor.Set(values);
  mask->tensor = tensor.view;
  mask->encoding = codes.encoding;
  return tensor;
}

// Each row by its own mask [B, S1, S2].
Tensor PerRequestMask(const PagedCase& paged, const Codes& codes, const Hide& hide,
                      ExplicitMask* mask) {
  mask->form = MaskForm::kPerRequest;
  return MaskTensor(
      codes, {paged.num_requests(), 17, kMaxLength},
      [&](int64_t n) {
        const int64_t b = n / (17 * kMaxLength), i = n / kMaxLength % 17, j = n % kMaxLength;
        return i < paged.options().q_lens[b] && hide(b, i, j, 0);
      },
      mask);
}

// The implicit rules and the same as masks of all keys.
struct Rule {
  const char* name;
  std::function<void(AttnParams&)> implicit;
  // Whether key j is hidden from position p of head h.
  std::function<bool(int64_t p, int64_t j, int64_t h)> hide;
};

std::vector<Rule> Rules() {
  std::vector<Rule> rules;
  rules.push_back({"causal", [](AttnParams&) {},
                   [](int64_t p, int64_t j, int64_t) { return j > p; }});
  rules.push_back({"window", [](AttnParams& params) { params.window_left = 9; },
                   [](int64_t p, int64_t j, int64_t) { return j > p || j < p - 9; }});
  rules.push_back({"chunk", [](AttnParams& params) { params.chunk = 32; },
                   [](int64_t p, int64_t j, int64_t) { return j > p || j / 32 != p / 32; }});
  rules.push_back({"block sparse",
                   [](AttnParams& params) {
                     params.block_sparse.local_blocks = 1;
                     params.block_sparse.vert_stride = 3;
                     params.block_sparse.block_size = 8;
                     params.block_sparse.head_sliding_step = 1;
                   },
                   [](int64_t p, int64_t j, int64_t h) {
                     return j > p || (j / 8 <= p / 8 - 1 && (j / 8 + h + 1) % 3 != 0);
                   }});
  return rules;
}

TEST(OpsMasksTest, T11FullMasksEqualTheImplicitPathToTheBit) {
  for (const Rule& rule : Rules()) {
    SCOPED_TRACE(rule.name);
    PagedCase implicit(Options());
    rule.implicit(implicit.params);
    ExpectPrefillIsExact(implicit);
    const std::vector<std::byte> wanted = OutputBytes(implicit);
    for (const Codes& codes : kAllCodes) {
      for (int32_t mode : {0, 1}) {
        PagedCase paged(Options());
        paged.params.causal = false;
        paged.params.mask.sparse_mode = mode;
        paged.params.mask.form = MaskForm::kPerHead;
        const Tensor mask = MaskTensor(
            codes, {paged.num_requests(), 4, 17, kMaxLength},
            [&](int64_t n) {
              const int64_t b = n / (4 * 17 * kMaxLength), h = n / (17 * kMaxLength) % 4;
              return rule.hide(Position(paged, b, n / kMaxLength % 17), n % kMaxLength, h);
            },
            &paged.params.mask);
        RunPrefill(paged);
        // Finite masks leave e^-10000 = 0 of the hidden keys.
        EXPECT_EQ(OutputBytes(paged), wanted)
            << Name(codes.dtype) << " of " << codes.hidden << ", mode " << mode;
        paged.hide = [&](int64_t b, int64_t i, int64_t j, int64_t h) {
          return rule.hide(Position(paged, b, i), j, h);
        };
        ExpectVarlenIsExact(paged);
      }
    }
  }
}

TEST(OpsMasksTest, T11AbsoluteRowsServeChunks) {
  for (const Rule& rule : Rules()) {
    if (std::string(rule.name) == "block sparse") continue;  // differs by head
    SCOPED_TRACE(rule.name);
    PagedCase implicit(Options()), paged(Options());
    rule.implicit(implicit.params);
    RunPrefill(implicit);
    paged.params.causal = false;
    paged.params.mask.form = MaskForm::kShared;
    paged.params.mask.rows_are_absolute = true;
    const Tensor mask = MaskTensor(
        kBoolMarker, {kMaxLength, kMaxLength},
        [&](int64_t n) { return rule.hide(n / kMaxLength, n % kMaxLength, 0); },
        &paged.params.mask);
    RunPrefill(paged);
    EXPECT_EQ(OutputBytes(paged), OutputBytes(implicit));
  }
}

TEST(OpsMasksTest, T11TemplatesEqualTheImplicitPathToTheBit) {
  // Templates smaller than most requests.
  const auto causal_template = [](const Codes& codes, int64_t n, ExplicitMask* mask) {
    mask->form = MaskForm::kTemplate;
    return MaskTensor(
        codes, {n, n}, [n](int64_t at) { return at % n > at / n; }, mask);
  };
  for (const Codes& codes : {kBoolMarker, kF16Additive}) {
    for (int64_t n : {8, 2048}) {
      PagedCase implicit(Options()), paged(Options());
      RunPrefill(implicit);
      paged.params.causal = false;
      const Tensor mask = causal_template(codes, n, &paged.params.mask);
      paged.params.mask.sparse_mode = 3;
      RunPrefill(paged);
      EXPECT_EQ(OutputBytes(paged), OutputBytes(implicit));
      // A window of W tokens is pre_tokens = W - 1.
      implicit.params.window_left = 9;
      RunPrefill(implicit);
      paged.params.mask.sparse_mode = 4;
      paged.params.mask.pre_tokens = 9;
      paged.params.mask.next_tokens = 0;
      RunPrefill(paged);
      EXPECT_EQ(OutputBytes(paged), OutputBytes(implicit));
    }
  }
}

TEST(OpsMasksTest, Mode2CountsFromTheTopLeft) {
  PagedCase paged(Options());
  paged.params.causal = false;
  paged.params.mask.form = MaskForm::kTemplate;
  paged.params.mask.sparse_mode = 2;
  const Tensor mask = MaskTensor(
      kBoolMarker, {8, 8}, [](int64_t n) { return n % 8 > n / 8; }, &paged.params.mask);
  paged.hide = [](int64_t, int64_t i, int64_t j, int64_t) { return j > i; };
  ExpectPrefillIsExact(paged);
}

TEST(OpsMasksTest, Mode0CutsTheMaskToABandFromTheTopLeft) {
  std::mt19937_64 random(3);
  std::vector<bool> hidden;
  for (int n = 0; n < 6 * 17 * kMaxLength; ++n) hidden.push_back(random() % 3 == 0);
  const auto hides = [&](int64_t b, int64_t i, int64_t j) -> bool {
    return hidden[(b * 17 + i) * kMaxLength + j];
  };
  for (const auto& [pre, next] : {std::pair<int64_t, int64_t>{3, 10}, {-2, 8}, {12, -4}}) {
    PagedCase paged(Options());
    paged.params.causal = false;
    paged.params.mask.sparse_mode = 0;
    paged.params.mask.pre_tokens = pre;
    paged.params.mask.next_tokens = next;
    const Tensor mask = PerRequestMask(
        paged, kBoolMarker,
        [&](int64_t b, int64_t i, int64_t j, int64_t) { return hides(b, i, j); },
        &paged.params.mask);
    paged.hide = [&, pre = pre, next = next](int64_t b, int64_t i, int64_t j, int64_t) {
      return hides(b, i, j) || j - i < -pre || j - i > next;
    };
    ExpectPrefillIsExact(paged);
  }
}

TEST(OpsMasksTest, Mode0WithoutATensorHidesNothing) {
  PagedCase plain(Options()), paged(Options());
  plain.params.causal = paged.params.causal = false;
  RunPrefill(plain);
  paged.params.mask.sparse_mode = 0;
  RunPrefill(paged);
  EXPECT_EQ(OutputBytes(paged), OutputBytes(plain));
}

TEST(OpsMasksTest, RaggedBitsHideRequestByRequest) {
  std::mt19937_64 random(11);
  PagedCase paged(Options());
  paged.params.causal = false;
  std::vector<int64_t> first_bit = {0};
  for (int64_t b = 0; b < paged.num_requests(); ++b) {
    first_bit.push_back(first_bit.back() +
                        paged.options().q_lens[b] * paged.options().lengths[b]);
  }
  Tensor bits(DType::kU8, {(first_bit.back() + 7) / 8});
  for (std::byte& byte : bits.bytes) byte = static_cast<std::byte>(random());
  paged.params.mask.form = MaskForm::kRaggedBits;
  paged.params.mask.tensor = bits.view;
  paged.hide = [&](int64_t b, int64_t i, int64_t j, int64_t) {
    const int64_t bit = first_bit[b] + i * paged.options().lengths[b] + j;
    return (static_cast<int>(bits.bytes[bit / 8]) >> (bit % 8) & 1) != 0;
  };
  ExpectPrefillIsExact(paged);
  ExpectVarlenIsExact(paged);
}

TEST(OpsMasksTest, AdditiveEntriesAreAdded) {
  std::mt19937_64 random(13);
  PagedCase paged(Options());
  Tensor mask(DType::kF32, {1, 4, 17, kMaxLength});
  std::vector<double> values = NormalDraws(random, 4 * 17 * kMaxLength);
  for (double& value : values) {
    if (random() % 8 == 0) value = -kInfinity;
  }
  mask.Set(values);
  const std::vector<double> added = mask.Get();
  paged.params.mask.tensor = mask.view;
  paged.params.mask.form = MaskForm::kPerHead;
  paged.params.mask.encoding = MaskEncoding::kAdditive;
  paged.bias = [&](int64_t, int64_t i, int64_t j, int64_t h) {
    return added[(h * 17 + i) * kMaxLength + j];
  };
  for (double cap : {0, 2}) {
    paged.params.soft_cap = static_cast<float>(cap);
    ExpectPrefillIsExact(paged);
    ExpectVarlenIsExact(paged);
  }
}

TEST(OpsMasksTest, NaNsBehindMasksDoNotMatter) {
  const auto hide = [](int64_t, int64_t, int64_t j, int64_t) { return j % 3 == 1; };
  for (const Codes& codes : {kBoolMarker, kF16Additive}) {
    PagedCase clean(Options()), spoiled(Options());
    const std::vector<double> row(32, std::numeric_limits<double>::quiet_NaN());
    for (int64_t j = 1; j < 70; j += 3) {
      for (int64_t h : {0, 1}) {
        spoiled.SetKey(1, j, h, row);
        spoiled.SetValue(1, j, h, row);
      }
    }
    const Tensor a = PerRequestMask(clean, codes, hide, &clean.params.mask);
    const Tensor b = PerRequestMask(spoiled, codes, hide, &spoiled.params.mask);
    RunPrefill(clean);
    RunPrefill(spoiled);
    EXPECT_EQ(OutputBytes(spoiled), OutputBytes(clean));
  }
}

// A score of -infinity is a hidden key (AT-99), whatever its value: it is not multiplied by 0.
TEST(OpsMasksTest, NaNsBehindScoresOfMinusInfinityDoNotMatter) {
  for (const int64_t q_len : {1, 3, 40}) {
    for (const int64_t step : {1, 3}) {  // all keys but the first, or every third
      SCOPED_TRACE(testing::Message() << q_len << " queries, step " << step);
      PagedCaseOptions options;
      options.lengths = {150};
      options.q_lens = {q_len};
      PagedCase paged(options);
      std::mt19937_64 random(7);
      for (int64_t t = 0; t < q_len; ++t) {
        for (int64_t head = 0; head < options.num_heads; ++head) {
          std::vector<double> row = NormalDraws(random, options.key_dim);
          row[5] = 1;
          paged.SetQuery(t, head, row);
        }
      }
      const std::vector<double> nan(16, std::numeric_limits<double>::quiet_NaN());
      for (int64_t j = 1; j < options.lengths[0]; j += step) {
        for (int64_t head = 0; head < options.num_kv_heads; ++head) {
          std::vector<double> row = NormalDraws(random, options.key_dim);
          row[5] = -std::numeric_limits<double>::infinity();
          paged.SetKey(0, j, head, row);
          paged.SetValue(0, j, head, nan);
        }
      }
      RunPrefill(paged);
      EXPECT_EQ(paged.Mismatch(ToleranceUnderTest(DType::kF32)), "");
      if (q_len == 1) ExpectDecodeIsExact(paged);
    }
  }
}

// Rows that lie together in a block of rows, and of which none sees a key that others see.
TEST(OpsMasksTest, NaNsThatOtherRowsSeeStayWithThem) {
  PagedCaseOptions options;
  options.lengths = {60};
  options.q_lens = {60};
  PagedCase clean(options), spoiled(options);
  const auto hide = [](int64_t n) { return n / 60 < 50 && n % 60 == 5; };
  const std::vector<double> nan(16, std::numeric_limits<double>::quiet_NaN());
  for (int64_t head : {0, 1}) spoiled.SetValue(0, 5, head, nan);
  const Tensor mask = MaskTensor(kBoolMarker, {60, 60}, hide, &clean.params.mask);
  clean.params.mask.form = MaskForm::kShared;
  spoiled.params.mask = clean.params.mask;
  RunPrefill(clean);
  RunPrefill(spoiled);
  const std::vector<double> expected = clean.out.Get(), got = spoiled.out.Get();
  const int64_t row = options.num_heads * options.value_dim;
  for (int64_t i = 0; i < 50 * row; ++i) ASSERT_EQ(got[i], expected[i]) << "row " << i / row;
  for (int64_t i = 50 * row; i < 60 * row; ++i) ASSERT_TRUE(std::isnan(got[i])) << i / row;
}

TEST(OpsMasksTest, DecodeTakesMasksOfOneRow) {
  PagedCaseOptions options = Options();
  options.q_lens.assign(6, 1);
  options.lengths[2] = 9;
  PagedCase paged(options);
  const auto hide = [](int64_t b, int64_t, int64_t j, int64_t) { return (b + j) % 3 == 0; };
  const Tensor mask = PerRequestMask(paged, kBoolMarker, hide, &paged.params.mask);
  paged.hide = hide;
  ExpectDecodeIsExact(paged);
}

TEST(OpsMasksTest, MaskedAttentionIsTheSameCallAndInsistsOnAMask) {
  PagedCase paged(Options());
  EXPECT_EQ(OpsUnderTest().MaskedAttention({}, paged.PrefillArgs()).code(),
            absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(OpsUnderTest().MaskedAttention({}, paged.VarlenArgs()).code(),
            absl::StatusCode::kInvalidArgument);
  const auto hide = [](int64_t, int64_t, int64_t j, int64_t) { return j == 0; };
  const Tensor mask = PerRequestMask(paged, kBoolMarker, hide, &paged.params.mask);
  paged.hide = hide;
  paged.ClearOutputs();
  ASSERT_TRUE(OpsUnderTest().MaskedAttention({}, paged.PrefillArgs()).ok());
  EXPECT_EQ(paged.Mismatch(ToleranceUnderTest(DType::kF32)), "");
}

// --- Partial queries ---

TEST(OpsMasksTest, QueryPositionsLimitWhatEachRowSees) {
  PagedCase paged({.lengths = {60, 33, 0}, .q_lens = {7, 2, 0}, .key_dim = 64, .value_dim = 64});
  paged.query_positions = {0, 3, 17, 18, 40, 58, 59, 5, 32};
  const Tensor slopes = FloatTensor({0.5, 0.25, 0.125, 0});
  ExpectPrefillIsExact(paged);
  ExpectVarlenIsExact(paged);
  paged.params.window_left = 11;
  paged.params.alibi_slopes = slopes.view;
  ExpectPrefillIsExact(paged);
  ExpectVarlenIsExact(paged);
}

TEST(OpsMasksTest, Ex24SelectedRowsDoNotSeeTheFuture) {
  ScoresCase paged({std::vector<double>(6)}, {{1, 2, 3, 4, 5, 6}}, {3}, 2);
  paged.query_positions = {1, 4, 5};
  RunPrefill(paged);
  ExpectExample(paged.out_at(0), 1.5);
  ExpectExample(paged.out_at(1), 3);
  ExpectExample(paged.out_at(2), 3.5);
  paged.query_positions.clear();
  RunPrefill(paged);
  ExpectExample(paged.out_at(0), 2.5);  // the last three positions
}

}  // namespace
}  // namespace kvblocks::attention
