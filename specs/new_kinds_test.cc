// Rings, hidden states, windows that are replayed, and checkpoints of states: what V-44 to V-46
// and V-94 add to specs.

#include <limits>
#include <string>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "kvblocks/specs/kv_cache_config.h"
#include "kvblocks/specs/kv_cache_spec.h"
#include "kvblocks/specs/merge.h"
#include "kvblocks/specs/request_footprint.h"

namespace kvblocks {
namespace {

using ::testing::HasSubstr;
using Specs = std::vector<KvCacheSpec>;

RequestLimits Limits(int64_t length) {
  return {.max_model_len = length, .max_in_flight_tokens = 8192};
}

// DeepSeek-V4.1's: keys and scores of the open group of two tokens.
RingSpec::Options RingOptions() {
  return {.block_size = 8, .head_size = 1024, .dtype = DataType::kFloat32};
}

SlidingWindowMlaSpec::Options WindowOptions(bool bounded_replay) {
  return {.block_size = 32,
          .head_size = 512,
          .sliding_window = 128,
          .dtype = DataType::kUint8,
          .quant_mode = QuantMode::kFp8DsMla,
          .alignment = 576,
          .model_version = ModelVersion::kDeepseekV4,
          .bounded_replay = bounded_replay};
}

MambaSpec::Options StateOptions(MambaCacheMode mode, int64_t checkpoints) {
  return {.block_size = 1056,
          .states = {{{8}}},
          .cache_mode = mode,
          .num_checkpoint_blocks = checkpoints};
}

TEST(RingSpecTest, IsOneBlockOfPlainRowsForTheLifeOfARequest) {
  // V-46
  const auto ring = RingSpec::Create(RingOptions());
  ASSERT_TRUE(ring.ok()) << ring.status();
  EXPECT_EQ(ring->kind_name(), "ring");
  EXPECT_EQ(ring->page_bytes(), 32768);
  EXPECT_EQ(ring->num_kv_heads(), 1);
  EXPECT_TRUE(ring->has_one_vector_per_row());
  EXPECT_FALSE(ring->is_prefix_cacheable());
  EXPECT_EQ(ring->replay_tokens(), 0);
  EXPECT_EQ(ring->ToString(), "ring(block_size=8, head_size=1024, dtype=fp32, page_bytes=32768)");
  for (const int64_t length : {int64_t{1}, int64_t{1048576}, std::numeric_limits<int64_t>::max()}) {
    EXPECT_EQ(MaxBlocksPerRequest(*ring, Limits(length)).value(), 1) << length;
    EXPECT_EQ(BlockTableWidth(*ring, Limits(length)).value(), 1) << length;
  }
  EXPECT_EQ(MaxBytesPerRequest(*ring, Limits(1048576)).value(), 32768);
  EXPECT_EQ(AdmissionCap(*ring, Limits(1048576)).value(), std::nullopt);
}

TEST(RingSpecTest, MayBeAlignedAndPadded) {
  RingSpec::Options options = RingOptions();
  options.alignment = 576;
  EXPECT_EQ(RingSpec::Create(options)->page_bytes(), 32832);
  options.alignment = 0;
  EXPECT_THAT(RingSpec::Create(options).status().message(), HasSubstr("alignment: got 0"));
  options.alignment = std::nullopt;
  options.page_size_padded = 40000;
  EXPECT_EQ(RingSpec::Create(options)->page_bytes(), 40000);
}

TEST(RingSpecTest, RefusesWhatARingDoesNotHave) {
  RingSpec::Options options = RingOptions();
  options.num_kv_heads = 1;
  EXPECT_THAT(RingSpec::Create(options).status().message(), HasSubstr("ring has no such field"));
  options = RingOptions();
  options.head_size = 0;
  EXPECT_THAT(RingSpec::Create(options).status().message(), HasSubstr("head_size: got 0"));
  options = RingOptions();
  options.block_size = 0;
  EXPECT_THAT(RingSpec::Create(options).status().message(), HasSubstr("block_size: got 0"));
}

TEST(HiddenStateSpecTest, KeepsEveryTokenAsFullAttentionDoes) {
  // V-94
  const auto hidden = HiddenStateSpec::Create({.block_size = 16, .head_size = 3 * 4096});
  ASSERT_TRUE(hidden.ok()) << hidden.status();
  EXPECT_EQ(hidden->kind_name(), "hidden_state");
  EXPECT_EQ(hidden->page_bytes(), 16 * 3 * 4096 * 2);
  EXPECT_TRUE(hidden->is_prefix_cacheable());
  EXPECT_EQ(MaxBlocksPerRequest(*hidden, Limits(131072)).value(), 8192);
  const auto full =
      FullAttentionSpec::Create({.block_size = 16, .num_kv_heads = 8, .head_size = 128});
  EXPECT_TRUE(IsUniformType(Specs{*hidden, *full}));
  EXPECT_TRUE(IsUniformType(Specs{*full, *hidden}));
  EXPECT_EQ(MergeFailureOf(Merge(Specs{*hidden, *full}).status()), MergeFailure::kWrongKind);
}

TEST(BoundedReplayTest, TheWindowIsComputedAgainInsteadOfReused) {
  // V-46
  const auto replayed = SlidingWindowMlaSpec::Create(WindowOptions(true));
  const auto cached = SlidingWindowMlaSpec::Create(WindowOptions(false));
  ASSERT_TRUE(replayed.ok()) << replayed.status();
  EXPECT_FALSE(replayed->is_prefix_cacheable());
  EXPECT_TRUE(cached->is_prefix_cacheable());
  EXPECT_EQ(replayed->replay_tokens(), 128);
  EXPECT_EQ(cached->replay_tokens(), 0);
  EXPECT_EQ(replayed->page_bytes(), cached->page_bytes());
  EXPECT_NE(*replayed, *cached);
  EXPECT_THAT(replayed->ToString(), HasSubstr("bounded_replay=true"));
  EXPECT_EQ(MaxBlocksPerRequest(*replayed, Limits(131072)).value(),
            MaxBlocksPerRequest(*cached, Limits(131072)).value());
}

TEST(BoundedReplayTest, NeitherMergesNorSharesATableWithACachedWindow) {
  // V-91
  const Specs both = {*SlidingWindowMlaSpec::Create(WindowOptions(true)),
                      *SlidingWindowMlaSpec::Create(WindowOptions(false))};
  EXPECT_EQ(MergeFailureOf(Merge(both).status()), MergeFailure::kConflictingFields);
  EXPECT_FALSE(IsUniformType(both));
}

TEST(BoundedReplayTest, IsOfWindowMlaOnly) {
  SlidingWindowSpec::Options options = {
      .block_size = 16, .num_kv_heads = 1, .head_size = 8, .sliding_window = 64};
  options.bounded_replay = true;
  EXPECT_THAT(SlidingWindowSpec::Create(options).status().message(),
              HasSubstr("bounded_replay: got true, expected nothing"));
}

TEST(CheckpointBlocksTest, VE92BlocksPerRequestByMode) {
  // V-44, VE-92
  const auto blocks = [](MambaCacheMode mode, int64_t speculative, int64_t checkpoints) {
    MambaSpec::Options options = StateOptions(mode, checkpoints);
    options.num_speculative_blocks = speculative;
    return MaxBlocksPerRequest(*MambaSpec::Create(options), Limits(262144)).value();
  };
  EXPECT_EQ(blocks(MambaCacheMode::kNone, 0, 0), 1);
  EXPECT_EQ(blocks(MambaCacheMode::kAlign, 0, 0), 2);
  EXPECT_EQ(blocks(MambaCacheMode::kAlign, 2, 0), 4);
  EXPECT_EQ(blocks(MambaCacheMode::kAlign, 0, 1), 3);
  // The table has an entry per boundary already.
  const KvCacheSpec spec = *MambaSpec::Create(StateOptions(MambaCacheMode::kAlign, 1));
  EXPECT_EQ(BlockTableWidth(spec, Limits(262144)).value(), 249);
}

TEST(CheckpointBlocksTest, NeedModeAlign) {
  // V-45
  for (const MambaCacheMode mode : {MambaCacheMode::kNone, MambaCacheMode::kAll}) {
    EXPECT_THAT(MambaSpec::Create(StateOptions(mode, 1)).status().message(),
                HasSubstr("num_checkpoint_blocks: got 1, expected 0 in cache_mode"));
  }
  EXPECT_THAT(MambaSpec::Create(StateOptions(MambaCacheMode::kAlign, -1)).status().message(),
              HasSubstr("num_checkpoint_blocks: got -1, expected at least 0"));
}

TEST(CheckpointBlocksTest, StatesWithAndWithoutShareNoTable) {
  const Specs both = {*MambaSpec::Create(StateOptions(MambaCacheMode::kAlign, 1)),
                      *MambaSpec::Create(StateOptions(MambaCacheMode::kAlign, 0))};
  EXPECT_FALSE(IsUniformType(both));
  EXPECT_EQ(MergeFailureOf(Merge(both).status()), MergeFailure::kConflictingFields);
}

TEST(SchedulerBlockTest, NeedNotBeAMultipleOfWhatNoPrefixIsKeptIn) {
  // V-46
  RingSpec::Options options = RingOptions();
  options.block_size = 24;
  KvCacheConfig config = {
      .num_blocks = 100,
      .groups = {{*FullAttentionSpec::Create({.block_size = 16, .num_kv_heads = 1, .head_size = 8}),
                  {"full"}},
                 {*RingSpec::Create(options), {"ring"}}},
      .scheduler_block_size = 16};
  EXPECT_TRUE(Validate(config).ok()) << Validate(config);
  config.scheduler_block_size = 24;
  EXPECT_THAT(Validate(config).message(), HasSubstr("groups[0] has block size 16"));
}

}  // namespace
}  // namespace kvblocks
