// Properties of all specs: value semantics over every field, and pages that scale with the block.

#include <algorithm>
#include <string>
#include <vector>

#include "absl/hash/hash_testing.h"
#include "gtest/gtest.h"
#include "kvblocks/kv_cache_spec.h"
#include "kvblocks/request_footprint.h"
#include "rapidcheck/gtest.h"
#include "specs/spec_fields.h"

namespace kvblocks {
namespace {

using Specs = std::vector<KvCacheSpec>;

// What a kind's required fields have, and another value for every field.
const KvCacheSpecOptions kUsual = {.block_size = 16,
                                   .num_kv_heads = 8,
                                   .head_size = 128,
                                   .sink_length = 32,
                                   .sliding_window = 100,
                                   .attention_chunk_size = 64,
                                   .states = {{{4, 3}}},
                                   .dtype = DataType::kUint8};
const KvCacheSpecOptions kOther = {.block_size = 32,
                                   .num_kv_heads = 4,
                                   .head_size = 256,
                                   .head_size_v = 64,
                                   .sink_length = 64,
                                   .sliding_window = 101,
                                   .attention_chunk_size = 128,
                                   .states = {{{3, 4}}},
                                   .dtype = DataType::kInt8,
                                   .quant_mode = QuantMode::kNvfp4,
                                   .page_size_padded = 1 << 20,
                                   .indexes_kv_by_block_stride = true,
                                   .alignment = 64,
                                   .compress_ratio = 4,
                                   .model_version = ModelVersion::kDeepseekV4,
                                   .page_bytes_formula = PageBytesFormula::kUpstreamCompatible,
                                   .non_causal = true,
                                   .is_draft = true,
                                   .cache_mode = MambaCacheMode::kAlign,
                                   .num_speculative_blocks = 1,
                                   .num_checkpoint_blocks = 1,
                                   .bounded_replay = true,
                                   .extra_retained_tokens = 2,
                                   .output_window = 8};

KvCacheSpecOptions UsualOptions(KvCacheSpecKind kind) {
  KvCacheSpecOptions options;
  ForEachSpecField([&](const SpecField& field, auto member) {
    if (field.RequiredIn(kind)) options.*member = kUsual.*member;
  });
  return options;
}

KvCacheSpec Make(KvCacheSpecKind kind, const KvCacheSpecOptions& options) {
  const auto spec = KvCacheSpec::Create(kind, options);
  EXPECT_TRUE(spec.ok()) << spec.status();
  return *spec;
}

std::vector<KvCacheSpecKind> AllKinds() {
  std::vector<KvCacheSpecKind> kinds;
  for (int k = 0; k < kNumSpecKinds; ++k) kinds.push_back(static_cast<KvCacheSpecKind>(k));
  return kinds;
}

// Of each kind the usual one, and for each of its fields one that differs from it in that alone.
std::vector<KvCacheSpec> AllVariants() {
  std::vector<KvCacheSpec> all;
  for (const KvCacheSpecKind kind : AllKinds()) {
    const KvCacheSpecOptions usual = UsualOptions(kind);
    all.push_back(Make(kind, usual));
    ForEachSpecField([&](const SpecField& field, auto member) {
      if (!field.In(kind)) return;
      KvCacheSpecOptions options = usual;
      options.*member = kOther.*member;
      // Only states of mode align have checkpoints.
      if (field.name == "num_checkpoint_blocks") {
        options.cache_mode = MambaCacheMode::kAlign;
      }
      all.push_back(Make(kind, options));
    });
  }
  MambaSpec::Options states = UsualOptions(KvCacheSpecKind::kMamba);
  states.states[0].dtype = DataType::kFloat16;
  all.push_back(*MambaSpec::Create(states));
  states.states.push_back({{1}});
  all.push_back(*MambaSpec::Create(states));
  static const KvCacheKind* const kind =
      *RegisterKvCacheKind({.name = "variant_of_full_attention"});
  all.push_back(*KvCacheSpec::Create(*kind, UsualOptions(KvCacheSpecKind::kFullAttention)));
  return all;
}

// KS-7. The checker also fails on types whose hash ignores what == sees.
TEST(KvCacheSpecProperty, EqualityAndHashCoverEveryField) {
  const std::vector<KvCacheSpec> all = AllVariants();
  ASSERT_GT(all.size(), 100u);
  for (size_t i = 0; i < all.size(); ++i) {
    for (size_t j = 0; j < all.size(); ++j) EXPECT_EQ(all[i] == all[j], i == j) << i << " " << j;
  }
  EXPECT_TRUE(absl::VerifyTypeImplementsAbslHashCorrectly(all));
}

TEST(KvCacheSpecProperty, DifferentSpecsPrintDifferently) {
  std::vector<std::string> texts;
  for (const KvCacheSpec& spec : AllVariants()) texts.push_back(spec.ToString());
  std::sort(texts.begin(), texts.end());
  EXPECT_EQ(std::adjacent_find(texts.begin(), texts.end()), texts.end());
}

DataType StorageFor(QuantMode mode) {
  return mode == QuantMode::kNone ? DataType::kBFloat16 : DataType::kUint8;
}

// P-8, without alignment: all bytes of a page are per token.
RC_GTEST_PROP(KvCacheSpecProperty, PagesScaleWithTheBlockSize, ()) {
  const int64_t factor = *rc::gen::inRange(1, 9);
  const auto mode = static_cast<QuantMode>(*rc::gen::inRange(0, 6));
  const int64_t block = *rc::gen::inRange(1, 65);
  const int64_t head_size = 16 * *rc::gen::inRange(1, 17);
  std::vector<KvCacheSpec> specs;
  for (const KvCacheSpecKind kind : AllKinds()) {
    if (!KindHasField(kind, "quant_mode")) continue;
    KvCacheSpecOptions o = UsualOptions(kind);
    o.block_size = block;
    o.head_size = head_size;
    o.quant_mode = mode;
    o.dtype = StorageFor(mode);
    if (kind == KvCacheSpecKind::kSinkFullAttention) o.sink_length = block * factor;
    if (kind == KvCacheSpecKind::kChunkedLocalAttention) o.attention_chunk_size = block * factor;
    specs.push_back(Make(kind, o));
  }
  for (const KvCacheSpec& spec : specs) {
    const auto scaled = spec.WithBlockSize(block * factor);
    RC_ASSERT(scaled.ok());
    RC_ASSERT(scaled->page_bytes() == factor * spec.page_bytes());
  }
}

// P-8, KS-29: the padding follows from the new data size.
RC_GTEST_PROP(KvCacheSpecProperty, AlignmentIsRecomputedForTheNewBlockSize, ()) {
  auto options = UsualOptions(KvCacheSpecKind::kMlaAttention);
  options.block_size = *rc::gen::inRange(1, 65);
  options.head_size = *rc::gen::inRange(1, 600);
  options.alignment = *rc::gen::inRange(1, 600);
  const KvCacheSpec spec = Make(KvCacheSpecKind::kMlaAttention, options);
  const int64_t block = *rc::gen::inRange(1, 257);
  const auto changed = spec.WithBlockSize(block);
  RC_ASSERT(changed.ok());
  const int64_t data = block * options.head_size;
  RC_ASSERT(changed->page_bytes() >= data);
  RC_ASSERT(changed->page_bytes() < data + *options.alignment);
  RC_ASSERT(changed->page_bytes() % *options.alignment == 0);
}

TEST(KvCacheSpecProperty, ExplicitPaddingIsKeptOrRefusedWhenTheBlockChanges) {
  const auto kind = KvCacheSpecKind::kMlaAttention;
  const KvCacheSpec spec = Make(kind, UsualOptions(kind));
  const auto padded = spec.WithPageSizePadded(5000);
  ASSERT_TRUE(padded.ok());
  EXPECT_EQ(padded->page_bytes(), 5000);
  EXPECT_EQ(padded->WithBlockSize(32)->page_bytes(), 5000);
  EXPECT_FALSE(padded->WithBlockSize(64).ok());
  EXPECT_EQ(*padded->WithPageSizePadded(std::nullopt), spec);
  EXPECT_FALSE(spec.WithBlockSize(0).ok());
}

// Merging and uniform type do not depend on order; merging is idempotent.

int64_t Pick(std::initializer_list<int64_t> values) {
  return *rc::gen::elementOf(std::vector<int64_t>(values));
}
std::optional<int64_t> PickLabel() {
  const int64_t value = Pick({0, 0, 0, 32, 64});
  return value == 0 ? std::nullopt : std::optional<int64_t>(value);
}

// Few values per field, so that specs agree often.
KvCacheSpec ASpec(int64_t kind) {
  const int64_t block = Pick({16, 16, 16, 32});
  switch (kind) {
    case 0: {
      FullAttentionSpec::Options o = {.block_size = block, .num_kv_heads = 1, .head_size = 8};
      o.sliding_window = PickLabel();
      if (!o.sliding_window.has_value()) o.attention_chunk_size = PickLabel();
      o.non_causal = *rc::gen::arbitrary<bool>();
      if (Pick({0, 0, 1}) == 1) o.output_window = 64;
      return *FullAttentionSpec::Create(o);
    }
    case 1: {
      MlaAttentionSpec::Options o = {.block_size = block, .head_size = 48};
      o.alignment = PickLabel();
      if (Pick({0, 0, 1}) == 1) o.alignment = 48;
      o.is_draft = *rc::gen::arbitrary<bool>();
      return *MlaAttentionSpec::Create(o);
    }
    case 2:
      return *SinkFullAttentionSpec::Create({.block_size = block,
                                             .num_kv_heads = 1,
                                             .head_size = 8,
                                             .sink_length = Pick({32, 32, 64})});
    case 3:
      return *SlidingWindowSpec::Create({.block_size = block,
                                         .num_kv_heads = 1,
                                         .head_size = 8,
                                         .sliding_window = Pick({32, 32, 64})});
    case 4:
      return *SlidingWindowMlaSpec::Create({.block_size = block,
                                            .head_size = 48,
                                            .sliding_window = Pick({32, 32, 64}),
                                            .bounded_replay = Pick({0, 0, 1}) == 1});
    case 5:
      return *MambaSpec::Create({.block_size = block,
                                 .states = {{{Pick({8, 8, 9})}}},
                                 .cache_mode = static_cast<MambaCacheMode>(Pick({0, 1, 1})),
                                 .num_speculative_blocks = Pick({0, 0, 1})});
    case 6:
      return *CrossAttentionSpec::Create(
          {.block_size = block, .num_kv_heads = Pick({1, 1, 2}), .head_size = 8});
    case 7:
      return *RingSpec::Create({.block_size = block, .head_size = 48, .alignment = PickLabel()});
    case 8:
      return *HiddenStateSpec::Create({.block_size = block, .head_size = Pick({48, 48, 64})});
    default:
      return *ChunkedLocalAttentionSpec::Create({.block_size = block,
                                                 .num_kv_heads = 1,
                                                 .head_size = 8,
                                                 .attention_chunk_size = Pick({32, 32, 64})});
  }
}

Specs AnySpecs() {
  const int64_t kind = *rc::gen::inRange(0, 10);
  const int size = *rc::gen::inRange(1, 6);
  const bool mixed = Pick({0, 0, 0, 0, 1}) == 1;
  Specs specs;
  for (int i = 0; i < size; ++i) specs.push_back(ASpec(mixed ? *rc::gen::inRange(0, 10) : kind));
  return specs;
}

Specs Shuffled(Specs specs) {
  for (size_t i = specs.size(); i > 1; --i) {
    std::swap(specs[i - 1], specs[*rc::gen::inRange<size_t>(0, i)]);
  }
  return specs;
}

// P-7
RC_GTEST_PROP(MergeProperty, OrderDoesNotMatter, ()) {
  const Specs specs = AnySpecs();
  const auto merged = Merge(specs);
  const auto shuffled = Merge(Shuffled(specs));
  RC_CLASSIFY(merged.ok() && specs.size() > 1, "several merge");
  RC_ASSERT(merged.ok() == shuffled.ok());
  if (merged.ok()) {
    RC_ASSERT(*merged == *shuffled);
  } else {
    RC_ASSERT(MergeFailureOf(merged.status()).has_value());
    RC_ASSERT(MergeFailureOf(merged.status()) == MergeFailureOf(shuffled.status()));
  }
}

// P-7
RC_GTEST_PROP(MergeProperty, MergingAgainChangesNothing, ()) {
  Specs specs = AnySpecs();
  const auto merged = Merge(specs);
  if (!merged.ok()) return;
  RC_ASSERT(*Merge(Specs{*merged}) == *merged);
  specs.push_back(*merged);
  RC_ASSERT(*Merge(specs) == *merged);
}

RC_GTEST_PROP(MergeProperty, MergedSpecStandsForEveryMember, ()) {
  const Specs specs = AnySpecs();
  const auto merged = Merge(specs);
  if (!merged.ok()) return;
  for (const KvCacheSpec& spec : specs) {
    RC_ASSERT(spec.page_bytes() == merged->page_bytes());
    RC_ASSERT(spec.block_size() == merged->block_size());
    RC_ASSERT(spec.kind() == merged->kind());
    RC_ASSERT(spec.sliding_window() == merged->sliding_window());
    RC_ASSERT(spec.output_window() == merged->output_window());
  }
  RC_ASSERT(IsUniformType(specs));
}

// P-7
RC_GTEST_PROP(MergeProperty, UniformTypeDoesNotDependOnOrder, ()) {
  const Specs specs = AnySpecs();
  RC_ASSERT(IsUniformType(specs) == IsUniformType(Shuffled(specs)));
}

}  // namespace
}  // namespace kvblocks
