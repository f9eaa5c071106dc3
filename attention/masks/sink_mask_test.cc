// Masks that show sink rows in front of a window.

#include <string>
#include <vector>

#include "attention/testing/says.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "kvblocks/attention_masks.h"

namespace kvblocks::attention {
namespace {

TEST(SinkMaskTest, TheRuleIsAWindowAndTheFirstKeys) {
  for (const int64_t sinks : {0, 1, 4, 9}) {
    for (const int64_t window : {1, 3, 20}) {
      const MaskRule rule = SinkWindowRule(sinks, window);
      for (int64_t i = 0; i < 14; ++i) {
        const MaskRowBounds bounds = rule.bounds(i, "");
        for (int64_t j = 0; j < 14; ++j) {
          const bool visible = j <= i && (j < sinks || j > i - window);
          ASSERT_EQ(rule.hides(i, j, ""), !visible) << i << ", " << j;
          const bool may_be = j >= bounds.begin && j < bounds.end;
          const bool must_be = j >= bounds.seen_begin && j < bounds.seen_end;
          ASSERT_TRUE(visible ? may_be : !must_be) << i << ", " << j;
        }
      }
    }
  }
}

TEST(SinkMaskTest, AGroupWithSinksAndAWindowGetsIt) {
  AttentionMaskBuilder masks;
  const std::vector<int32_t> starts = {0, 2}, lens = {9};
  CommonAttentionMetadata meta;
  meta.host_query_start_loc = starts, meta.host_seq_lens = lens;
  meta.num_reqs = 1, meta.num_actual_tokens = 2, meta.max_query_len = 2, meta.max_seq_len = 9;
  ASSERT_TRUE(AttachMasks(masks, {.window = 2}, &meta).ok());
  EXPECT_TRUE(meta.custom_mask.null());
  meta.sink_rows = 4;
  ASSERT_TRUE(AttachMasks(masks, {}, &meta).ok());
  EXPECT_TRUE(meta.custom_mask.null());
  ASSERT_TRUE(AttachMasks(masks, {.window = 2}, &meta).ok());
  ASSERT_EQ(meta.custom_mask.form, MaskForm::kRaggedBits);
  // Two rows of nine keys: 0 to 3 and 6, 7; 0 to 3 and 7, 8. A 1 hides.
  const auto* bytes = reinterpret_cast<const uint8_t*>(meta.custom_mask.view.data);
  const uint32_t bits = bytes[0] | bytes[1] << 8 | bytes[2] << 16;
  EXPECT_EQ(bits & 0x3ffff, 0b0'0111'0000'1'0011'0000u);

  MaskNeeds strided{.window = 2};
  strided.custom = {.enabled = true, .type = CustomMaskConfig::Type::kWindow, .parameter = 2};
  EXPECT_THAT(AttachMasks(masks, strided, &meta),
              Says("4 sink rows, which window and sparse masks hide"));
  EXPECT_EQ(meta.custom_mask.form, MaskForm::kRaggedBits);
}

}  // namespace
}  // namespace kvblocks::attention
