// The predicate of explicit masks against masks spelled out element by element: EX-22, EX-29, and
// every form, mode and encoding.

#include "attention/testing/mask_predicate.h"

#include <gtest/gtest.h>
#include <rapidcheck.h>
#include <rapidcheck/gtest.h>

#include <limits>
#include <string>
#include <vector>

#include "attention/tensor/small_floats.h"
#include "kvblocks/attention_masks.h"

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

TEST(MaskPredicateTest, BandOfModeZeroCountsFromAbsoluteRows) {
  const std::vector<uint8_t> bytes(25);
  MaskRef mask;
  mask.view = ViewOf(absl::MakeConstSpan(bytes), {5, 5});
  mask.form = MaskForm::kShared;
  ExplicitMask absolute = mask.ToExplicit(0, 1, 0);
  absolute.rows_are_absolute = true;
  EXPECT_EQ(Picture(absolute, 2, 5), "11001 11100");
}

TEST(MaskPredicateTest, NegativeTokensMoveTheBand) {
  AttentionMaskBuilder builder;
  const MaskRef split_fuse = *builder.SplitFuse();
  // From three keys before the query to one key before it.
  EXPECT_EQ(Picture(split_fuse.ToExplicit(4, 3, -1), 2, 5), "00011 10001");
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
