#include "kvblocks/request_footprint.h"

#include <limits>
#include <optional>
#include <string>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace kvblocks {
namespace {

using ::testing::HasSubstr;
using Specs = std::vector<KvCacheSpec>;

template <typename Spec>
KvCacheSpec Make(const typename Spec::Options& options) {
  const absl::StatusOr<KvCacheSpec> spec = Spec::Create(options);
  EXPECT_TRUE(spec.ok()) << spec.status();
  return *spec;
}

FullAttentionSpec::Options FullOptions() {
  return {.block_size = 16, .num_kv_heads = 8, .head_size = 128};
}
KvCacheSpec AFull(std::optional<int64_t> window = std::nullopt,
                 std::optional<int64_t> chunk = std::nullopt) {
  auto options = FullOptions();
  options.sliding_window = window;
  options.attention_chunk_size = chunk;
  return Make<FullAttentionSpec>(options);
}
KvCacheSpec Sink(int64_t length) {
  return Make<SinkFullAttentionSpec>(
      {.block_size = 16, .num_kv_heads = 8, .head_size = 128, .sink_length = length});
}
KvCacheSpec AWindow(int64_t window) {
  return Make<SlidingWindowSpec>(
      {.block_size = 16, .num_kv_heads = 8, .head_size = 128, .sliding_window = window});
}
KvCacheSpec AWindowMla(int64_t window) {
  return Make<SlidingWindowMlaSpec>({.block_size = 16, .head_size = 128, .sliding_window = window});
}
KvCacheSpec AChunked(int64_t chunk) {
  return Make<ChunkedLocalAttentionSpec>(
      {.block_size = 16, .num_kv_heads = 8, .head_size = 128, .attention_chunk_size = chunk});
}
KvCacheSpec Mamba(MambaCacheMode mode, int64_t speculative, int64_t values = 8) {
  return Make<MambaSpec>({.block_size = 16,
                          .states = {{{values}}},
                          .cache_mode = mode,
                          .num_speculative_blocks = speculative});
}
KvCacheSpec Cross(int64_t heads) {
  return Make<CrossAttentionSpec>({.block_size = 16, .num_kv_heads = heads, .head_size = 128});
}
KvCacheSpec Encoder() {
  return Make<EncoderOnlyAttentionSpec>({.block_size = 16, .num_kv_heads = 8, .head_size = 128});
}
MlaAttentionSpec::Options MlaOptions() { return {.block_size = 64, .head_size = 576}; }

std::optional<MergeFailure> FailureOf(const Specs& specs) {
  const auto merged = Merge(specs);
  EXPECT_FALSE(merged.ok());
  return MergeFailureOf(merged.status());
}

// KS-46
TEST(MergeTest, StatesAndEncoderLayersMergeOnlyIfEqual) {
  const KvCacheSpec mamba = Mamba(MambaCacheMode::kAlign, 1);
  EXPECT_EQ(FailureOf({mamba, Mamba(MambaCacheMode::kAll, 1)}), MergeFailure::kConflictingFields);
  EXPECT_EQ(FailureOf({mamba, Mamba(MambaCacheMode::kAlign, 2)}), MergeFailure::kConflictingFields);
  EXPECT_EQ(FailureOf({mamba, Mamba(MambaCacheMode::kAlign, 1, 9)}),
            MergeFailure::kConflictingFields);
  EXPECT_EQ(FailureOf({Cross(8), Cross(4)}), MergeFailure::kConflictingFields);
  EXPECT_EQ(FailureOf({Cross(8), AFull()}), MergeFailure::kWrongKind);
  EXPECT_THAT(
      std::string(Merge(Specs{mamba, Mamba(MambaCacheMode::kAlign, 1, 9)}).status().message()),
      HasSubstr("states of member 1: got 9xbf16, expected 8xbf16 as before it"));
}

// KS-50
TEST(MergeTest, EmptySetIsMergeableButHasNoMergedSpec) {
  EXPECT_TRUE(IsMergeable({}));
  EXPECT_FALSE(Merge({}).ok());
  EXPECT_EQ(MergeFailureOf(Merge({}).status()), std::nullopt);
}

// KS-47
TEST(MergeTest, LabelThatIsSetWinsOverAnUnsetOne) {
  EXPECT_EQ(Merge(Specs{AFull(), AFull(128)}).value(), AFull(128));
  EXPECT_EQ(Merge(Specs{AFull(128), AFull(), AFull(128)}).value(), AFull(128));
  EXPECT_EQ(Merge(Specs{AFull(), AFull(std::nullopt, 256)}).value(), AFull(std::nullopt, 256));
}

// KS-49, E-15
TEST(MergeTest, FailuresAreDistinguishable) {
  EXPECT_EQ(FailureOf({AFull(), AWindow(128)}), MergeFailure::kWrongKind);
  auto other = FullOptions();
  other.head_size = 64;
  EXPECT_EQ(FailureOf({AFull(), Make<FullAttentionSpec>(other)}), MergeFailure::kConflictingFields);
  EXPECT_EQ(FailureOf({AFull(128), AFull(256)}), MergeFailure::kConflictingWindows);
  EXPECT_EQ(FailureOf({AFull(std::nullopt, 128), AFull(std::nullopt, 256)}),
            MergeFailure::kConflictingWindows);
  EXPECT_EQ(FailureOf({AFull(128), AFull(std::nullopt, 128)}), MergeFailure::kConflictingWindows);
  EXPECT_EQ(FailureOf({AWindow(128), AWindow(256)}), MergeFailure::kConflictingWindows);
  EXPECT_EQ(FailureOf({AWindowMla(128), AWindowMla(256)}), MergeFailure::kConflictingWindows);
  EXPECT_EQ(FailureOf({AChunked(128), AChunked(256)}), MergeFailure::kConflictingWindows);
  EXPECT_FALSE(IsMergeable(Specs{AFull(128), AFull(256)}));
}

TEST(MergeTest, MessageNamesTheMemberTheFieldAndBothValues) {
  auto other = FullOptions();
  other.head_size = 64;
  EXPECT_EQ(Merge(Specs{AFull(), AFull(), Make<FullAttentionSpec>(other)}).status().message(),
            "specs do not merge, conflicting fields: head_size of member 2: got 64, expected 128 "
            "as before it");
  EXPECT_EQ(Merge(Specs{AFull(), AWindow(128)}).status().message(),
            "specs do not merge, wrong kind: kind of member 1: got sliding_window, expected "
            "full_attention as before it");
  EXPECT_THAT(std::string(Merge(Specs{AFull(128), AFull(std::nullopt, 256)}).status().message()),
              HasSubstr("both sliding_window 128 and attention_chunk_size 256"));
}

TEST(MergeTest, FullDoesNotMergeWithMlaOrSink) {
  EXPECT_EQ(FailureOf({AFull(), Make<MlaAttentionSpec>(MlaOptions())}), MergeFailure::kWrongKind);
  EXPECT_EQ(FailureOf({AFull(), Sink(32)}), MergeFailure::kWrongKind);
  EXPECT_EQ(FailureOf({AWindow(128), AWindowMla(128)}), MergeFailure::kWrongKind);
}

TEST(MergeTest, ValueHeadSizeAndSinkLengthAreChecked) {
  auto other = FullOptions();
  other.head_size_v = 64;
  EXPECT_EQ(FailureOf({AFull(), Make<FullAttentionSpec>(other)}), MergeFailure::kConflictingFields);
  EXPECT_EQ(FailureOf({Sink(16), Sink(32)}), MergeFailure::kConflictingFields);
}

// KS-10
TEST(MergeTest, NonCausalAndDraftSpread) {
  auto non_causal = FullOptions();
  non_causal.non_causal = true;
  EXPECT_EQ(Merge(Specs{AFull(), Make<FullAttentionSpec>(non_causal)}).value(),
            Make<FullAttentionSpec>(non_causal));
  auto draft = MlaOptions();
  draft.is_draft = true;
  EXPECT_EQ(
      Merge(Specs{Make<MlaAttentionSpec>(draft), Make<MlaAttentionSpec>(MlaOptions())}).value(),
      Make<MlaAttentionSpec>(draft));
}

// KS-48
TEST(MergeTest, MlaMembersAgreeInFormatRatioVersionAndStride) {
  const KvCacheSpec base = Make<MlaAttentionSpec>(MlaOptions());
  std::vector<MlaAttentionSpec::Options> others(5, MlaOptions());
  others[0].dtype = DataType::kFloat16;
  others[1].compress_ratio = 4;
  others[2].model_version = ModelVersion::kDeepseekV4;
  others[3].indexes_kv_by_block_stride = true;
  others[4].page_size_padded = 1 << 20;
  for (const auto& other : others) {
    EXPECT_EQ(FailureOf({base, Make<MlaAttentionSpec>(other)}), MergeFailure::kConflictingFields);
  }
}

TEST(MergeTest, AlignmentsThatGiveOnePageMergeToTheirMultiple) {
  auto a = MlaOptions();  // 73,728 bytes, a multiple of 512 and of 576
  a.alignment = 512;
  auto b = MlaOptions();
  b.alignment = 576;
  const auto merged = Merge(Specs{Make<MlaAttentionSpec>(a), Make<MlaAttentionSpec>(b),
                                  Make<MlaAttentionSpec>(MlaOptions())});
  ASSERT_TRUE(merged.ok()) << merged.status();
  EXPECT_EQ(merged->get_if<MlaAttentionSpec>()->options().alignment, 4608);
  EXPECT_EQ(merged->page_bytes(), 73'728);

  b.alignment = 100'000;
  EXPECT_EQ(FailureOf({Make<MlaAttentionSpec>(a), Make<MlaAttentionSpec>(b)}),
            MergeFailure::kConflictingFields);
}

TEST(MergeTest, AlignmentsWithoutAMultipleInRangeAreRefused) {
  auto a = MlaOptions();
  a.page_size_padded = 100'000;
  auto b = a;
  a.alignment = std::numeric_limits<int64_t>::max();
  b.alignment = std::numeric_limits<int64_t>::max() - 1;
  EXPECT_EQ(FailureOf({Make<MlaAttentionSpec>(a), Make<MlaAttentionSpec>(b)}),
            MergeFailure::kConflictingFields);
}

// KS-51
TEST(UniformTypeTest, FullMlaAndSinkOfOneBlockSizeAreUniform) {
  auto mla = MlaOptions();
  mla.block_size = 16;
  EXPECT_TRUE(IsUniformType(Specs{AFull(), AFull(128), Make<MlaAttentionSpec>(mla), Sink(32)}));
  EXPECT_FALSE(IsUniformType(Specs{AFull(), Make<MlaAttentionSpec>(MlaOptions())}));  // B 16, 64
  EXPECT_TRUE(IsUniformType({}));
}

TEST(UniformTypeTest, LocalKindsNeedOneWindowOrChunk) {
  EXPECT_TRUE(IsUniformType(Specs{AWindow(128), AWindow(128)}));
  EXPECT_FALSE(IsUniformType(Specs{AWindow(128), AWindow(256)}));
  EXPECT_FALSE(IsUniformType(Specs{AChunked(128), AChunked(256)}));
  EXPECT_FALSE(IsUniformType(Specs{AFull(), AWindow(128)}));
  EXPECT_FALSE(IsUniformType(Specs{AFull(), AChunked(128)}));
}

// KS-51
TEST(UniformTypeTest, StatesOfAnySizeAreUniformIfRequestsHoldAsMany) {
  const KvCacheSpec mamba = Mamba(MambaCacheMode::kAlign, 1);
  EXPECT_TRUE(IsUniformType(Specs{mamba, Mamba(MambaCacheMode::kAlign, 1, 9)}));
  EXPECT_FALSE(IsUniformType(Specs{mamba, Mamba(MambaCacheMode::kAlign, 2)}));
  EXPECT_FALSE(IsUniformType(Specs{mamba, Mamba(MambaCacheMode::kAll, 1)}));
  EXPECT_FALSE(IsUniformType(Specs{mamba, AFull()}));
  EXPECT_TRUE(IsUniformType(Specs{Cross(8), Cross(4)}));
  EXPECT_FALSE(IsUniformType(Specs{Cross(8), AFull()}));
  EXPECT_FALSE(IsUniformType(Specs{Cross(8), Encoder()}));
}

// KS-52: the answer does not depend on which member comes first.
TEST(UniformTypeTest, PlainAndMlaWindowsAreDifferentInBothOrders) {
  EXPECT_FALSE(IsUniformType(Specs{AWindow(128), AWindowMla(128)}));
  EXPECT_FALSE(IsUniformType(Specs{AWindowMla(128), AWindow(128)}));
}

}  // namespace
}  // namespace kvblocks
