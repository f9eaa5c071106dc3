// The predicate of explicit masks against masks spelled out element by element: EX-22, EX-29, and
// every form, mode and encoding.

#include "attention/masks/mask_predicate.h"

#include <gtest/gtest.h>
#include <rapidcheck.h>
#include <rapidcheck/gtest.h>

#include <limits>
#include <string>
#include <vector>

#include "attention/masks/mask_builder.h"
#include "attention/tensor/small_floats.h"

namespace kvblocks::attention {
namespace {

constexpr MaskElement kBoolMarker{DType::kBool, MaskEncoding::kMarker};

// Row by row, 1 hides.
std::string Picture(const ExplicitMask& mask, int64_t s1, int64_t s2) {
  std::string text;
  for (int64_t i = 0; i < s1; ++i) {
    if (i > 0) text += ' ';
    for (int64_t j = 0; j < s2; ++j) {
      text += MaskHides(mask, {.num_queries = s1, .num_keys = s2}, 0, i, j) ? '1' : '0';
    }
  }
  return text;
}

absl::Status CheckOne(const ExplicitMask& mask, int64_t s1, int64_t s2, int64_t heads = 1) {
  return CheckMask(mask, heads, {s1}, {s2});
}

TEST(MaskPredicateTest, Ex22Modes) {
  AttentionMaskBuilder builder;
  const MaskRef split_fuse = *builder.SplitFuse();
  EXPECT_EQ(Picture(split_fuse.ToExplicit(2), 2, 5), "01111 00111");
  EXPECT_EQ(Picture(split_fuse.ToExplicit(3), 2, 5), "00001 00000");
  // A window of two is pre_tokens = 1; taking the window itself keeps three keys.
  EXPECT_EQ(Picture(split_fuse.ToExplicit(4, 1, 0), 2, 5), "11001 11100");
  EXPECT_EQ(Picture(split_fuse.ToExplicit(4, 2, 0), 2, 5), "10001 11000");
}

TEST(MaskPredicateTest, Ex29TemplateOfEightOnThirteenKeys) {
  AttentionMaskBuilder builder;
  MaskRef causal = *builder.Causal(8, kBoolMarker);
  causal.form = MaskForm::kTemplate;
  EXPECT_EQ(Picture(causal.ToExplicit(3), 3, 13), "0000000000011 0000000000001 0000000000000");
}

TEST(MaskPredicateTest, NoTensorInModeZeroHidesNothing) {
  ExplicitMask none;
  none.sparse_mode = 0;
  none.next_tokens = 0;
  EXPECT_TRUE(CheckOne(none, 2, 3).ok());
  EXPECT_EQ(Picture(none, 2, 3), "000 000");
}

TEST(MaskPredicateTest, ModeZeroAddsABandFromTheUpperLeftAndModeOneDoesNot) {
  const std::vector<uint8_t> bytes = {0, 0, 0, 0, 0,  //
                                      1, 0, 0, 0, 0};
  MaskRef mask;
  mask.view = ViewOf(absl::MakeConstSpan(bytes), {2, 5});
  mask.form = MaskForm::kShared;
  EXPECT_EQ(Picture(mask.ToExplicit(0, 1, 2), 2, 5), "00011 10001");
  EXPECT_EQ(Picture(mask.ToExplicit(0, 0, kUnlimitedTokens), 2, 5), "00000 10000");
  EXPECT_EQ(Picture(mask.ToExplicit(1, 1, 2), 2, 5), "00000 10000");
}

TEST(MaskPredicateTest, NegativeTokensMoveTheBand) {
  AttentionMaskBuilder builder;
  const MaskRef split_fuse = *builder.SplitFuse();
  // From three keys before the query to one key before it.
  EXPECT_EQ(Picture(split_fuse.ToExplicit(4, 3, -1), 2, 5), "00011 10001");
  EXPECT_TRUE(CheckOne(split_fuse.ToExplicit(4, 3, -1), 2, 5).ok());
}

TEST(MaskPredicateTest, WindowTemplateExtendsItsFarCorners) {
  AttentionMaskBuilder builder;
  const MaskRef window = *builder.SlidingWindow(
      {.window = 2, .size = 3, .element = kBoolMarker, .form = MaskForm::kTemplate});
  EXPECT_EQ(Picture(window.ToExplicit(3), 2, 7), "1111001 1111100");
}

TEST(MaskPredicateTest, EncodingsOfHiddenElements) {
  constexpr float kInf = std::numeric_limits<float>::infinity();
  const std::vector<float> values = {0, -kInf, -3, 1, -0.0f, -1e30f};
  MaskRef mask;
  mask.view = ViewOf(absl::MakeConstSpan(values), {1, 6});
  mask.form = MaskForm::kShared;
  mask.encoding = MaskEncoding::kAdditive;
  EXPECT_EQ(Picture(mask.ToExplicit(1), 1, 6), "010000");  // biases do not hide
  mask.encoding = MaskEncoding::kMarker;
  EXPECT_EQ(Picture(mask.ToExplicit(1), 1, 6), "011101");
  AttentionMaskBuilder builder;
  const MaskRef finite = *builder.Causal(3, {DType::kF16, MaskEncoding::kAdditiveFinite});
  EXPECT_EQ(Picture(finite.ToExplicit(1), 3, 3), "011 001 000");
}

TEST(MaskPredicateTest, RefusesWhatDoesNotFit) {
  AttentionMaskBuilder builder;
  const MaskRef full = *builder.Causal(8, kBoolMarker), split_fuse = *builder.SplitFuse();
  const auto expect_refused = [](const ExplicitMask& mask, const std::string& names, int64_t s1 = 2,
                                 int64_t s2 = 5, int64_t heads = 4) {
    const absl::Status status = CheckOne(mask, s1, s2, heads);
    EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument);
    EXPECT_NE(status.message().find(names), std::string::npos) << status;
  };
  // A mode whose template it is not, and the reverse.
  for (const int mode : {2, 3, 4}) expect_refused(full.ToExplicit(mode), "takes a template");
  for (const int mode : {0, 1}) expect_refused(split_fuse.ToExplicit(mode), "takes a full mask");
  expect_refused(full.ToExplicit(5), "sparse_mode is 5");
  expect_refused(full.ToExplicit(-1), "sparse_mode is -1");
  expect_refused({}, "needs a tensor");
  // Extents.
  expect_refused(full.ToExplicit(1), "request 0 needs 2 and 9", 2, 9);
  ExplicitMask absolute = builder.PrefillContextParallel({8, 2, 0}, kBoolMarker)->ToExplicit(1);
  EXPECT_TRUE(CheckOne(absolute, 4, 8).ok());
  absolute.rows_are_absolute = true;
  expect_refused(absolute, "needs 8 and 8", 4, 8);
  // Bands.
  expect_refused(split_fuse.ToExplicit(4, 3, -4), "is negative: the band is empty");
  expect_refused(split_fuse.ToExplicit(4, 9, -5), "must be above -5");
  expect_refused(split_fuse.ToExplicit(4, -2, 4), "must be above -2");
  EXPECT_TRUE(CheckOne(split_fuse.ToExplicit(4, -1, 4), 2, 5).ok());
  expect_refused(split_fuse.ToExplicit(4, int64_t{1} << 40, 0), "unlimited");
  EXPECT_TRUE(CheckOne(split_fuse.ToExplicit(3, 3, -4), 2, 5).ok());  // not read in mode 3
  // Types.
  ExplicitMask integer = full.ToExplicit(1);
  integer.encoding = MaskEncoding::kAdditive;
  expect_refused(integer, "an additive mask is bool");
  integer.encoding = MaskEncoding::kAdditiveFinite;
  expect_refused(integer, "must be f16");
  integer = full.ToExplicit(1);
  integer.tensor.dtype = DType::kI64;
  expect_refused(integer, "markers are i64");
  // Requests, heads, bits.
  const std::vector<uint8_t> bytes(1000);
  ExplicitMask batch{.tensor = ViewOf(absl::MakeConstSpan(bytes), {2, 2, 5}),
                     .form = MaskForm::kPerRequest};
  expect_refused(batch, "2 requests; the batch has 1");
  ExplicitMask heads{.tensor = ViewOf(absl::MakeConstSpan(bytes), {1, 3, 2, 5}),
                     .form = MaskForm::kPerHead};
  expect_refused(heads, "3 heads; the queries have 4");
  expect_refused({.tensor = ViewOf(absl::MakeConstSpan(bytes), {1}), .form = MaskForm::kRaggedBits},
                 "10 bits and needs 2");
  expect_refused({.tensor = ViewOf(absl::MakeConstSpan(bytes), {5, 2}),
                  .form = MaskForm::kShared,
                  .sparse_mode = 1},
                 "covers 5 queries and 2 keys");
}

// A batch of full masks stored in every form, and the bits it was made from.
RC_GTEST_PROP(MaskPredicatePropertyTest, FullFormsSayWhatTheirBitsSay, ()) {
  const int64_t num_requests = *rc::gen::inRange<int64_t>(1, 4);
  const int64_t num_heads = *rc::gen::inRange<int64_t>(1, 4);
  std::vector<int64_t> s1(num_requests), s2(num_requests);
  int64_t most_rows = 1, most_keys = 1;
  for (int64_t b = 0; b < num_requests; ++b) {
    s1[b] = *rc::gen::inRange<int64_t>(0, 5);
    s2[b] = s1[b] + *rc::gen::inRange<int64_t>(0, 5);
    most_rows = std::max(most_rows, s1[b]);
    most_keys = std::max(most_keys, s2[b]);
  }
  const MaskForm form = *rc::gen::element(MaskForm::kShared, MaskForm::kPerRequest,
                                          MaskForm::kPerHead, MaskForm::kRaggedBits);
  const bool absolute = form != MaskForm::kRaggedBits && *rc::gen::arbitrary<bool>();
  const int64_t rows = absolute ? most_keys : most_rows;
  const int64_t batch_extent =
      form == MaskForm::kPerHead && *rc::gen::arbitrary<bool>() ? 1 : num_requests;
  const int64_t head_extent = *rc::gen::arbitrary<bool>() ? 1 : num_heads;
  const uint32_t salt = *rc::gen::arbitrary<uint32_t>();
  // The bit of an element, a hash of where it is.
  const auto bit = [salt](int64_t b, int64_t h, int64_t row, int64_t j) {
    uint64_t x = salt + uint64_t(b) * 1000003 + uint64_t(h) * 10007 + uint64_t(row) * 101 + j;
    x *= 0x9E3779B97F4A7C15u;
    return (x >> 60 & 1) != 0;
  };
  const auto [dtype, encoding] = *rc::gen::element(
      std::pair(DType::kBool, MaskEncoding::kMarker), std::pair(DType::kI8, MaskEncoding::kMarker),
      std::pair(DType::kF16, MaskEncoding::kMarker), std::pair(DType::kBF16, MaskEncoding::kMarker),
      std::pair(DType::kF16, MaskEncoding::kAdditive),
      std::pair(DType::kF32, MaskEncoding::kAdditive),
      std::pair(DType::kF16, MaskEncoding::kAdditiveFinite));

  ExplicitMask mask;
  mask.form = form;
  mask.encoding = form == MaskForm::kRaggedBits ? MaskEncoding::kMarker : encoding;
  mask.sparse_mode = 1;
  mask.rows_are_absolute = absolute;
  std::vector<std::byte> bytes;
  std::vector<int64_t> first_bit(num_requests, 0);
  if (form == MaskForm::kRaggedBits) {
    int64_t n = 0;
    for (int64_t b = 0; b < num_requests; ++b) {
      first_bit[b] = n;
      for (int64_t i = 0; i < s1[b]; ++i) {
        for (int64_t j = 0; j < s2[b]; ++j, ++n) {
          if (n / 8 >= static_cast<int64_t>(bytes.size())) bytes.push_back(std::byte{0});
          if (bit(b, 0, i, j)) bytes[n / 8] |= std::byte(1 << (n % 8));
        }
      }
    }
    mask.tensor =
        ConstTensorView::Contiguous(bytes.data(), DType::kU8, {static_cast<int64_t>(bytes.size())});
  } else {
    const int64_t b_extent = form == MaskForm::kShared ? 1 : batch_extent;
    const int64_t h_extent = form == MaskForm::kPerHead ? head_extent : 1;
    const int64_t size = ElementBytes(dtype);
    bytes.resize(b_extent * h_extent * rows * most_keys * size);
    std::byte* to = bytes.data();
    for (int64_t b = 0; b < b_extent; ++b) {
      for (int64_t h = 0; h < h_extent; ++h) {
        for (int64_t i = 0; i < rows; ++i) {
          for (int64_t j = 0; j < most_keys; ++j, to += size) {
            StoreElement(dtype, bit(b, h, i, j) ? *MaskedValue(dtype, encoding) : 0.0, to);
          }
        }
      }
    }
    if (form == MaskForm::kShared) {
      mask.tensor = ConstTensorView::Contiguous(bytes.data(), dtype, {rows, most_keys});
    } else if (form == MaskForm::kPerRequest) {
      mask.tensor = ConstTensorView::Contiguous(bytes.data(), dtype, {b_extent, rows, most_keys});
    } else {
      mask.tensor =
          ConstTensorView::Contiguous(bytes.data(), dtype, {b_extent, h_extent, rows, most_keys});
    }
  }
  const absl::Status fits = CheckMask(mask, num_heads, s1, s2);
  if (!fits.ok()) RC_FAIL(std::string(fits.message()));
  for (int64_t b = 0; b < num_requests; ++b) {
    const MaskedRequest request{b, s1[b], s2[b], first_bit[b]};
    for (int64_t h = 0; h < num_heads; ++h) {
      for (int64_t i = 0; i < s1[b]; ++i) {
        for (int64_t j = 0; j < s2[b]; ++j) {
          const int64_t stored_b =
              form == MaskForm::kShared || (form == MaskForm::kPerHead && batch_extent == 1) ? 0
                                                                                             : b;
          const int64_t stored_h = form == MaskForm::kPerHead && head_extent > 1 ? h : 0;
          const int64_t row = absolute ? s2[b] - s1[b] + i : i;
          RC_ASSERT(MaskHides(mask, request, h, i, j) == bit(stored_b, stored_h, row, j));
        }
      }
    }
  }
}

// Templates against the visible ranges of the modes, spelled out.
RC_GTEST_PROP(MaskPredicatePropertyTest, TemplatesSeeTheRangesOfTheirModes, ()) {
  static AttentionMaskBuilder* const builder = new AttentionMaskBuilder;
  const int64_t n = *rc::gen::inRange<int64_t>(1, 20);
  const int64_t s1 = *rc::gen::inRange<int64_t>(1, 12);
  const int64_t s2 = *rc::gen::inRange<int64_t>(1, 24);
  const int64_t o = s2 - s1;
  const int mode = *rc::gen::inRange(2, 5);
  const int64_t next = *rc::gen::inRange<int64_t>(-s2 + 1, 1);
  const int64_t pre = *rc::gen::inRange<int64_t>(std::max(-next, -s1 + 1), 30);
  MaskRef causal = *builder->Causal(n, {DType::kI8, MaskEncoding::kMarker});
  // A template of one element cannot tell the future from the present.
  RC_PRE(n > 1);
  causal.form = MaskForm::kTemplate;
  const ExplicitMask mask = causal.ToExplicit(mode, pre, next);
  RC_ASSERT(CheckMask(mask, 1, {s1}, {s2}).ok());
  for (int64_t i = 0; i < s1; ++i) {
    for (int64_t j = 0; j < s2; ++j) {
      const bool visible = mode == 2   ? j <= i
                           : mode == 3 ? j <= i + o
                                       : i + o - pre <= j && j <= i + o + next;
      RC_ASSERT(MaskHides(mask, {.num_queries = s1, .num_keys = s2}, 0, i, j) == !visible);
    }
  }
}

}  // namespace
}  // namespace kvblocks::attention
