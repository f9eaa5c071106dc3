#include "kvblocks/attention_metadata.h"

#include <string>
#include <vector>

#include "attention/testing/says.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace kvblocks::attention {
namespace {

using testing::Each;
using testing::ElementsAre;

// Rows of eight tokens: 10 .. 17, 20 .. 27, ...; batch rows are the requests of rows 2, 0, 1.
struct Fixture {
  std::vector<int32_t> starts = {0, 1, 3, 7, 7}, rows = {2, 0, 1, 77}, computed = {7, 2, 3, 77};
  std::vector<int32_t> ids, logits_starts = {0, 1, 1, 4, 4}, last = {1, -1, 0, 77};
  std::vector<int32_t> sampled = {501, 0, 502, 0}, drafts = {601, 602, 603, 604};
  std::vector<int64_t> input = std::vector<int64_t>(9, 77);
  std::vector<int32_t> positions = std::vector<int32_t>(8, 77);
  std::vector<int32_t> logits = std::vector<int32_t>(6, 77);
  InputTokensArgs args;

  Fixture() {
    for (int32_t i = 0; i < 24; ++i) ids.push_back(10 * (i / 8 + 1) + i % 8);
    args = {.query_start_loc = ViewOf(absl::MakeConstSpan(starts)),
            .request_rows = ViewOf(absl::MakeConstSpan(rows)),
            .num_computed = ViewOf(absl::MakeConstSpan(computed)),
            .token_ids = ViewOf(absl::MakeConstSpan(ids), {3, 8}),
            .logits_start_loc = ViewOf(absl::MakeConstSpan(logits_starts)),
            .last_rows = ViewOf(absl::MakeConstSpan(last)),
            .sampled = ViewOf(absl::MakeConstSpan(sampled), {2, 2}),
            .drafts = ViewOf(absl::MakeConstSpan(drafts), {2, 2}),
            .input_ids = ViewOf(absl::MakeSpan(input)),
            .positions = ViewOf(absl::MakeSpan(positions)),
            .logits_indices = ViewOf(absl::MakeSpan(logits))};
  }
};

TEST(InputTokensTest, WhatOnlyTheDeviceKnowsIsPutIn) {
  Fixture f;
  ASSERT_EQ(GatherInputTokens(f.args), absl::OkStatus());
  // A decode whose token row 1 sampled; two tokens of a prompt; a decode behind a token of the
  // prompt, sampled by row 0, with both its drafts. Then padding.
  EXPECT_THAT(f.input, ElementsAre(502, 12, 13, 23, 501, 601, 602, 0, 0));
  EXPECT_THAT(f.positions, ElementsAre(7, 2, 3, 3, 4, 5, 6, 0));
  EXPECT_THAT(f.logits, ElementsAre(0, 4, 5, 6, 6, 6));
}

TEST(InputTokensTest, WithoutALastStepAllComesFromTheRows) {
  Fixture f;
  f.args.last_rows = f.args.sampled = f.args.drafts = f.args.logits_start_loc = {};
  ASSERT_EQ(GatherInputTokens(f.args), absl::OkStatus());
  EXPECT_THAT(f.input, ElementsAre(37, 12, 13, 23, 24, 25, 26, 0, 0));
  EXPECT_THAT(f.logits, ElementsAre(0, 2, 6, 6, 6, 6));
  // Drafts that the host knows.
  Fixture g;
  g.args.drafts = {};
  ASSERT_EQ(GatherInputTokens(g.args), absl::OkStatus());
  EXPECT_THAT(g.input, ElementsAre(502, 12, 13, 23, 501, 25, 26, 0, 0));
  // Nothing at all.
  Fixture none;
  none.starts = {0};
  none.args.query_start_loc = ViewOf(absl::MakeConstSpan(none.starts));
  none.args.logits_start_loc = {};
  none.args.positions = {};
  ASSERT_EQ(GatherInputTokens(none.args), absl::OkStatus());
  EXPECT_THAT(none.input, Each(0));
  EXPECT_THAT(none.logits, Each(0));
}

TEST(InputTokensTest, WhatCannotBeReadIsRefused) {
  const auto refuse = [](auto change, const char* words) {
    Fixture f;
    change(f);
    EXPECT_THAT(GatherInputTokens(f.args), Says(words));
    EXPECT_THAT(f.input, Each(77));
    EXPECT_THAT(f.logits, Each(77));
  };
  refuse([](Fixture& f) { f.rows[1] = 3; }, "request_rows[1] is 3; token_ids has 3 rows");
  refuse([](Fixture& f) { f.computed[2] = 5; },
         "request 2: 4 tokens from position 5; rows of token_ids have 8");
  refuse([](Fixture& f) { f.computed[0] = -1; }, "from position -1");
  refuse([](Fixture& f) { f.last[0] = 2; }, "last_rows[0] is 2; the last step had 2 rows");
  refuse([](Fixture& f) { f.last[0] = -2; }, "last_rows[0] is -2");
  refuse(
      [](Fixture& f) {
        f.logits_starts = {0, 2, 2, 5, 5};
      },
      "request 0 is sampled behind 2 rows of its 1");
  refuse(
      [](Fixture& f) {
        f.logits_starts = {0, 1, 1, 5, 5};
      },
      "request 2 has 3 drafts; rows of drafts have 2");
  refuse([](Fixture& f) { f.logits_starts = {0, 1, 0, 4, 4}; }, "logits_start_loc[2] is 0");
  refuse(
      [](Fixture& f) {
        f.starts = {0, 0, 2, 6, 6}, f.args.logits_start_loc = {};
      },
      "request 0 has no tokens and others behind it have");
  refuse([](Fixture& f) { f.args.sampled = {}; }, "the first two go together");
  refuse([](Fixture& f) { f.args.last_rows = f.args.sampled = {}; },
         "the first two go together, and drafts with them");
  refuse([](Fixture& f) { f.args.sampled.extent[1] = 0; }, "it must have 1 column");
  refuse([](Fixture& f) { f.args.input_ids.extent[0] = 6; }, "input_ids is i64[6]");
  refuse([](Fixture& f) { f.args.positions.extent[0] = 6; }, "positions is i32[6]");
  refuse([](Fixture& f) { f.args.logits_indices.extent[0] = 3; }, "logits_indices is i32[3]");
  refuse([](Fixture& f) { f.args.logits_indices = ViewOf(absl::MakeSpan(f.ids)); },
         "shares memory");
  refuse([](Fixture& f) { f.args.num_computed.extent[0] = 3; }, "num_computed is i32[3]");
}

}  // namespace
}  // namespace kvblocks::attention
