// Every factory refuses what makes no sense, and says which field, which value and what would do.

#include <functional>
#include <limits>
#include <string>
#include <vector>

#include "checks/field_error.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "kvblocks/kv_cache_config.h"
#include "kvblocks/kv_cache_spec.h"
#include "kvblocks/request_footprint.h"
#include "specs/spec_fields.h"

namespace kvblocks {
namespace {

using ::testing::HasSubstr;
using Specs = std::vector<KvCacheSpec>;

constexpr int64_t kVast = std::numeric_limits<int64_t>::max();

template <typename Spec>
typename Spec::Options Good() {
  typename Spec::Options o;
  o.block_size = 16;
  if (KindHasField(Spec::kKind, "num_kv_heads")) o.num_kv_heads = 8;
  o.head_size = 128;
  if constexpr (std::is_same_v<Spec, SinkFullAttentionSpec>) o.sink_length = 32;
  if constexpr (std::is_same_v<Spec, ChunkedLocalAttentionSpec>) o.attention_chunk_size = 64;
  if constexpr (std::is_same_v<Spec, SlidingWindowSpec> ||
                std::is_same_v<Spec, SlidingWindowMlaSpec>) {
    o.sliding_window = 100;
  }
  return o;
}

// The message with which Good<Spec>() is refused after `spoil`.
template <typename Spec>
std::string Refusal(const std::function<void(typename Spec::Options&)>& spoil) {
  typename Spec::Options options = Good<Spec>();
  spoil(options);
  const absl::StatusOr<KvCacheSpec> spec = Spec::Create(options);
  if (spec.ok()) return "accepted";
  EXPECT_EQ(spec.status().code(), absl::StatusCode::kInvalidArgument);
  EXPECT_TRUE(FieldOfError(spec.status()).has_value());
  return std::string(spec.status().message());
}

template <typename Spec>
class EverySpecTest : public ::testing::Test {};
using AllSpecs =
    ::testing::Types<FullAttentionSpec, MlaAttentionSpec, SinkFullAttentionSpec, SlidingWindowSpec,
                     SlidingWindowMlaSpec, ChunkedLocalAttentionSpec, CrossAttentionSpec,
                     EncoderOnlyAttentionSpec>;
TYPED_TEST_SUITE(EverySpecTest, AllSpecs);

TYPED_TEST(EverySpecTest, AcceptsSensibleOptions) {
  EXPECT_EQ(Refusal<TypeParam>([](auto&) {}), "accepted");
}

TYPED_TEST(EverySpecTest, RefusesSizesBelowOne) {
  for (const int64_t bad : {int64_t{0}, int64_t{-1}, std::numeric_limits<int64_t>::min()}) {
    const std::string reason = ": got " + std::to_string(bad) + ", expected at least 1";
    EXPECT_EQ(Refusal<TypeParam>([&](auto& o) { o.block_size = bad; }), "block_size" + reason);
    EXPECT_EQ(Refusal<TypeParam>([&](auto& o) { o.head_size = bad; }), "head_size" + reason);
    EXPECT_EQ(Refusal<TypeParam>([&](auto& o) { o.page_size_padded = bad; }),
              "page_size_padded" + reason);
    if (KindHasField(TypeParam::kKind, "num_kv_heads")) {
      EXPECT_EQ(Refusal<TypeParam>([&](auto& o) { o.num_kv_heads = bad; }),
                "num_kv_heads" + reason);
    }
    if (KindHasField(TypeParam::kKind, "head_size_v")) {
      EXPECT_EQ(Refusal<TypeParam>([&](auto& o) { o.head_size_v = bad; }), "head_size_v" + reason);
    }
    if (KindHasField(TypeParam::kKind, "sliding_window")) {
      EXPECT_EQ(Refusal<TypeParam>([&](auto& o) { o.sliding_window = bad; }),
                "sliding_window" + reason);
    }
    if (KindHasField(TypeParam::kKind, "alignment")) {
      EXPECT_EQ(Refusal<TypeParam>([&](auto& o) { o.alignment = bad; }), "alignment" + reason);
      EXPECT_EQ(Refusal<TypeParam>([&](auto& o) { o.compress_ratio = bad; }),
                "compress_ratio" + reason);
    }
  }
}

TYPED_TEST(EverySpecTest, RefusesPagesBeyond63BitsInsteadOfWrapping) {
  EXPECT_THAT(Refusal<TypeParam>([](auto& o) { o.head_size = kVast; }), HasSubstr("fits 63 bits"));
  EXPECT_THAT(Refusal<TypeParam>([](auto& o) { o.head_size = kVast / 16; }),
              HasSubstr("fits 63 bits"));
  if (KindHasField(TypeParam::kKind, "num_kv_heads")) {
    EXPECT_THAT(Refusal<TypeParam>([](auto& o) { o.num_kv_heads = kVast; }),
                HasSubstr("fits 63 bits"));
  }
  if (KindHasField(TypeParam::kKind, "alignment")) {
    EXPECT_EQ(Refusal<TypeParam>([](auto& o) { o.alignment = kVast; }), "accepted");
    EXPECT_THAT(Refusal<TypeParam>([](auto& o) {
                  o.head_size = kVast / 64;
                  o.alignment = kVast / 2 + 2;
                  o.block_size = 32;
                }),
                HasSubstr("fits 63 bits"));
  }
}

TYPED_TEST(EverySpecTest, RefusesFieldsThatTheKindDoesNotHave) {
  KvCacheSpecOptions others = {.num_kv_heads = 1,
                               .head_size_v = 8,
                               .sink_length = 32,
                               .sliding_window = 8,
                               .attention_chunk_size = 64,
                               .states = {{{4}}},
                               .alignment = 8,
                               .compress_ratio = 2,
                               .model_version = ModelVersion::kDeepseekV4,
                               .page_bytes_formula = PageBytesFormula::kUpstreamCompatible,
                               .non_causal = true,
                               .is_draft = true,
                               .cache_mode = MambaCacheMode::kAll,
                               .num_speculative_blocks = 1,
                               .num_checkpoint_blocks = 1,
                               .bounded_replay = true,
                               .extra_retained_tokens = 2,
                               .output_window = 8};
  int num_refused = 0;
  ForEachSpecField([&](const SpecField& field, auto member) {
    if (field.In(TypeParam::kKind)) return;
    ++num_refused;
    EXPECT_EQ(Refusal<TypeParam>([&](auto& o) { o.*member = others.*member; }),
              std::string(field.name) + ": got " + FieldText(others.*member) +
                  ", expected nothing (" + std::string(KindName(TypeParam::kKind)) +
                  " has no such field)");
  });
  EXPECT_GE(num_refused, 7);
}

// E-4
TYPED_TEST(EverySpecTest, RefusesPaddingBelowTheUnpaddedPage) {
  const auto good = TypeParam::Create(Good<TypeParam>());
  ASSERT_TRUE(good.ok());
  const int64_t page = good->page_bytes();
  EXPECT_EQ(Refusal<TypeParam>([&](auto& o) { o.page_size_padded = page - 1; }),
            "page_size_padded: got " + std::to_string(page - 1) +
                ", expected at least the unpadded page of " + std::to_string(page) + " bytes");
  auto options = Good<TypeParam>();
  options.page_size_padded = page + 1;
  const auto padded = TypeParam::Create(options);
  ASSERT_TRUE(padded.ok());
  EXPECT_EQ(padded->page_bytes(), page + 1);
}

TYPED_TEST(EverySpecTest, QuantisedValuesNeedAOneByteType) {
  EXPECT_EQ(Refusal<TypeParam>([](auto& o) { o.quant_mode = QuantMode::kFp8PerTensor; }),
            "dtype: got bf16, expected uint8, int8, fp8_e4m3 or fp8_e5m2 (quant_mode "
            "fp8_per_tensor stores bytes)");
}

TYPED_TEST(EverySpecTest, PackedModesRefuseHeadSizesTheyCannotPack) {
  EXPECT_EQ(Refusal<TypeParam>([](auto& o) {
              o.dtype = DataType::kUint8;
              o.quant_mode = QuantMode::kNvfp4;
              o.head_size = 72;
            }),
            "head_size: got 72, expected a multiple of 16 (nvfp4 keeps one scale per 16 values)");
  EXPECT_THAT(Refusal<TypeParam>([](auto& o) {
                o.dtype = DataType::kUint8;
                o.quant_mode = QuantMode::kInt4PerTokenHead;
                o.head_size = 127;
              }),
              HasSubstr("head_size: got 127, expected an even number"));
}

// E-1
TEST(SpecRefusalTest, CompressRatioMustDivideTheBlock) {
  EXPECT_EQ(Refusal<MlaAttentionSpec>([](auto& o) { o.compress_ratio = 3; }),
            "compress_ratio: got 3, expected a divisor of block_size 16");
  EXPECT_EQ(Refusal<SlidingWindowMlaSpec>([](auto& o) { o.compress_ratio = 32; }),
            "compress_ratio: got 32, expected a divisor of block_size 16");
}

// E-14
TEST(SpecRefusalTest, SinkLengthIsAPositiveMultipleOfTheBlock) {
  for (const int64_t bad : {int64_t{0}, int64_t{-16}, int64_t{8}, int64_t{17}, kVast}) {
    EXPECT_EQ(Refusal<SinkFullAttentionSpec>([&](auto& o) { o.sink_length = bad; }),
              "sink_length: got " + std::to_string(bad) +
                  ", expected a positive multiple of block_size 16");
  }
}

// D-13
TEST(SpecRefusalTest, ChunkIsAPositiveMultipleOfTheBlock) {
  for (const int64_t bad : {int64_t{0}, int64_t{-16}, int64_t{8}, int64_t{65}, kVast}) {
    EXPECT_THAT(Refusal<ChunkedLocalAttentionSpec>([&](auto& o) { o.attention_chunk_size = bad; }),
                HasSubstr("attention_chunk_size: got " + std::to_string(bad) +
                          ", expected a positive multiple of block_size 16"));
  }
}

// E-5
TEST(SpecRefusalTest, ModelVersionMustBeKnownToTheFormat) {
  EXPECT_EQ(
      Refusal<SlidingWindowMlaSpec>([](auto& o) { o.model_version = ModelVersion::kDeepseekV32; }),
      "model_version: got deepseek_v3_2, expected none, deepseek_v4 or deepseek_v4_1");
  EXPECT_EQ(ParseModelVersion("deepseek_v5").status().message(),
            "model_version: got \"deepseek_v5\", expected one of none, deepseek_v3_2, deepseek_v4, "
            "deepseek_v4_1");
  EXPECT_EQ(ParseModelVersion("deepseek_v4").value(), ModelVersion::kDeepseekV4);
}

TEST(SpecRefusalTest, Fp8DsMlaIsForMlaKindsAndCompressedOnlyInV4) {
  EXPECT_THAT(Refusal<FullAttentionSpec>([](auto& o) {
                o.dtype = DataType::kUint8;
                o.quant_mode = QuantMode::kFp8DsMla;
              }),
              HasSubstr("quant_mode: got fp8_ds_mla"));
  EXPECT_THAT(Refusal<MlaAttentionSpec>([](auto& o) {
                o.dtype = DataType::kUint8;
                o.quant_mode = QuantMode::kFp8DsMla;
                o.compress_ratio = 4;
              }),
              HasSubstr("compress_ratio: got 4, expected 1"));
}

TEST(SpecRefusalTest, Nvfp4DsMlaIsForV32AndV41) {
  const auto set = [](ModelVersion version, int64_t ratio) {
    return [=](auto& o) {
      o.dtype = DataType::kUint8;
      o.quant_mode = QuantMode::kNvfp4DsMla;
      o.model_version = version;
      o.compress_ratio = ratio;
    };
  };
  EXPECT_THAT(Refusal<MlaAttentionSpec>(set(ModelVersion::kDeepseekV4, 4)),
              HasSubstr("quant_mode: got nvfp4_ds_mla, expected fp8_ds_mla"));
  EXPECT_THAT(Refusal<MlaAttentionSpec>(set(ModelVersion::kDeepseekV32, 4)),
              HasSubstr("compress_ratio: got 4, expected 1"));
  EXPECT_THAT(Refusal<SlidingWindowMlaSpec>(set(ModelVersion::kNone, 1)),
              HasSubstr("only deepseek_v4_1 has these"));
  EXPECT_THAT(Refusal<FullAttentionSpec>([](auto& o) {
                o.dtype = DataType::kUint8;
                o.quant_mode = QuantMode::kNvfp4DsMla;
              }),
              HasSubstr("quant_mode: got nvfp4_ds_mla"));
}

// E-15
TEST(SpecRefusalTest, FullSpecCarriesOneLabelAtMost) {
  EXPECT_EQ(Refusal<FullAttentionSpec>([](auto& o) {
              o.sliding_window = 128;
              o.attention_chunk_size = 256;
            }),
            "attention_chunk_size: got 256, expected unset next to sliding_window 128 (a layer is "
            "local in one way only)");
  EXPECT_EQ(Refusal<FullAttentionSpec>([](auto& o) { o.attention_chunk_size = 0; }),
            "attention_chunk_size: got 0, expected at least 1");
}

std::string MambaRefusal(const std::function<void(MambaSpec::Options&)>& spoil) {
  MambaSpec::Options options = {.block_size = 16, .states = {{{4, 3}}, {{2}}}};
  spoil(options);
  const absl::StatusOr<KvCacheSpec> spec = MambaSpec::Create(options);
  if (spec.ok()) return "accepted";
  EXPECT_TRUE(FieldOfError(spec.status()).has_value());
  return std::string(spec.status().message());
}

TEST(SpecRefusalTest, MambaStatesHavePositiveSizesThatFit) {
  EXPECT_EQ(MambaRefusal([](auto&) {}), "accepted");
  EXPECT_EQ(MambaRefusal([](auto& o) { o.block_size = 0; }),
            "block_size: got 0, expected at least 1");
  EXPECT_EQ(MambaRefusal([](auto& o) { o.states.clear(); }),
            "states: got none, expected at least one");
  EXPECT_EQ(MambaRefusal([](auto& o) { o.states[1].shape[0] = -2; }),
            "states[1].shape[0]: got -2, expected at least 1");
  EXPECT_EQ(MambaRefusal([](auto& o) { o.num_speculative_blocks = -1; }),
            "num_speculative_blocks: got -1, expected at least 0");
  EXPECT_EQ(MambaRefusal([](auto& o) { o.page_size_padded = 27; }),
            "page_size_padded: got 27, expected at least the unpadded page of 28 bytes");
  EXPECT_THAT(MambaRefusal([](auto& o) {
                o.states[0].shape = {kVast, 2};
              }),
              HasSubstr("states[0].shape: got more than 9223372036854775807 values"));
  EXPECT_THAT(MambaRefusal([](auto& o) { o.states[0].shape = {kVast}; }),
              HasSubstr("states: got a state of more than 9223372036854775807 bytes"));
  EXPECT_EQ(ParseMambaCacheMode("some").status().message(),
            "cache_mode: got \"some\", expected one of none, align, all");
  EXPECT_EQ(ParseMambaCacheMode("align").value(), MambaCacheMode::kAlign);
}

// Rings, hidden states, windows that are replayed, and checkpoints of states: what V-44 to V-46
// and V-94 add to specs.

RequestLimits SomeLimits(int64_t length) {
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
    EXPECT_EQ(MaxBlocksPerRequest(*ring, SomeLimits(length)).value(), 1) << length;
    EXPECT_EQ(BlockTableWidth(*ring, SomeLimits(length)).value(), 1) << length;
  }
  EXPECT_EQ(MaxBytesPerRequest(*ring, SomeLimits(1048576)).value(), 32768);
  EXPECT_EQ(AdmissionCap(*ring, SomeLimits(1048576)).value(), std::nullopt);
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
  EXPECT_EQ(MaxBlocksPerRequest(*hidden, SomeLimits(131072)).value(), 8192);
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
  EXPECT_EQ(MaxBlocksPerRequest(*replayed, SomeLimits(131072)).value(),
            MaxBlocksPerRequest(*cached, SomeLimits(131072)).value());
}

TEST(BoundedReplayTest, NeitherMergesNorSharesATableWithACachedWindow) {
  // V-91
  const Specs both = {*SlidingWindowMlaSpec::Create(WindowOptions(true)),
                      *SlidingWindowMlaSpec::Create(WindowOptions(false))};
  EXPECT_EQ(MergeFailureOf(Merge(both).status()), MergeFailure::kConflictingFields);
  EXPECT_FALSE(IsUniformType(both));
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
