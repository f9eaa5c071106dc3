// Properties of all specs: value semantics over every field, and pages that scale with the block.

#include <algorithm>
#include <string>
#include <type_traits>
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

template <typename Spec>
KvCacheSpec Make(const typename Spec::Options& options) {
  const absl::StatusOr<KvCacheSpec> spec = Spec::Create(options);
  EXPECT_TRUE(spec.ok()) << spec.status();
  return *spec;
}

FullAttentionSpec::Options Full() {
  return {.block_size = 16, .num_kv_heads = 8, .head_size = 128, .dtype = DataType::kUint8};
}
MlaAttentionSpec::Options Mla() {
  return {.block_size = 16, .head_size = 128, .dtype = DataType::kUint8};
}
SinkFullAttentionSpec::Options Sink() {
  return {.block_size = 16,
          .num_kv_heads = 8,
          .head_size = 128,
          .sink_length = 32,
          .dtype = DataType::kUint8};
}
SlidingWindowSpec::Options Window() {
  return {.block_size = 16,
          .num_kv_heads = 8,
          .head_size = 128,
          .sliding_window = 100,
          .dtype = DataType::kUint8};
}
SlidingWindowMlaSpec::Options WindowMla() {
  return {.block_size = 16, .head_size = 128, .sliding_window = 100, .dtype = DataType::kUint8};
}
ChunkedLocalAttentionSpec::Options Chunked() {
  return {.block_size = 16,
          .num_kv_heads = 8,
          .head_size = 128,
          .attention_chunk_size = 64,
          .dtype = DataType::kUint8};
}

CrossAttentionSpec::Options Cross() {
  return {.block_size = 16, .num_kv_heads = 8, .head_size = 128, .dtype = DataType::kUint8};
}
EncoderOnlyAttentionSpec::Options Encoder() {
  return {.block_size = 16, .num_kv_heads = 8, .head_size = 128, .dtype = DataType::kUint8};
}

// As Variants below, for a kind that shares no field with the others but the block size.
std::vector<MambaSpec::Options> MambaVariants() {
  const MambaSpec::Options base = {.block_size = 16, .states = {{{4, 3}}}};
  std::vector<MambaSpec::Options> variants(8, base);
  variants[1].block_size = 32;
  variants[2].states[0].shape = {3, 4};
  variants[3].states[0].dtype = DataType::kFloat16;
  variants[4].states.push_back({{1}});
  variants[5].page_size_padded = 1 << 20;
  variants[6].cache_mode = MambaCacheMode::kAlign;
  variants[7].num_speculative_blocks = 1;
  return variants;
}

// `base`, and for each field of the options one spec that differs from it in that field alone.
template <typename Spec, typename... Change>
std::vector<KvCacheSpecOptions> Variants(const KvCacheSpecOptions& base, Change... changes) {
  using Options = KvCacheSpecOptions;
  const auto has = [](const char* field) { return KindHasField(Spec::kKind, field); };
  std::vector<Options> variants = {base};
  const auto add = [&](auto change) {
    variants.push_back(base);
    change(variants.back());
  };
  add([](Options& o) { o.block_size = 32; });
  add([](Options& o) { o.head_size = 256; });
  add([](Options& o) { o.dtype = DataType::kInt8; });
  add([](Options& o) { o.quant_mode = QuantMode::kNvfp4; });
  add([](Options& o) { o.page_size_padded = 1 << 20; });
  add([](Options& o) { o.indexes_kv_by_block_stride = true; });
  if (has("num_kv_heads")) add([](Options& o) { o.num_kv_heads = 4; });
  if (has("head_size_v")) add([](Options& o) { o.head_size_v = 64; });
  if (has("non_causal")) add([](Options& o) { o.non_causal = true; });
  if (has("alignment")) {
    add([](Options& o) { o.alignment = 64; });
    add([](Options& o) { o.compress_ratio = 4; });
    add([](Options& o) { o.model_version = ModelVersion::kDeepseekV4; });
  }
  if (has("upstream_compatible_page_bytes")) {
    add([](Options& o) { o.page_bytes_formula = PageBytesFormula::kUpstreamCompatible; });
  }
  (add(changes), ...);
  return variants;
}

std::vector<KvCacheSpec> AllVariants() {
  std::vector<KvCacheSpec> all;
  for (const auto& o : Variants<FullAttentionSpec>(
           Full(), [](auto& v) { v.sliding_window = 100; },
           [](auto& v) { v.attention_chunk_size = 100; })) {
    all.push_back(Make<FullAttentionSpec>(o));
  }
  for (const auto& o : Variants<MlaAttentionSpec>(Mla(), [](auto& v) { v.is_draft = true; })) {
    all.push_back(Make<MlaAttentionSpec>(o));
  }
  for (const auto& o : Variants<SinkFullAttentionSpec>(
           Sink(), [](auto& v) { v.sink_length = 64; }, [](auto& v) { v.sliding_window = 100; },
           [](auto& v) { v.attention_chunk_size = 100; })) {
    all.push_back(Make<SinkFullAttentionSpec>(o));
  }
  for (const auto& o :
       Variants<SlidingWindowSpec>(Window(), [](auto& v) { v.sliding_window = 101; })) {
    all.push_back(Make<SlidingWindowSpec>(o));
  }
  for (const auto& o :
       Variants<SlidingWindowMlaSpec>(WindowMla(), [](auto& v) { v.sliding_window = 101; })) {
    all.push_back(Make<SlidingWindowMlaSpec>(o));
  }
  for (const auto& o : Variants<ChunkedLocalAttentionSpec>(
           Chunked(), [](auto& v) { v.attention_chunk_size = 128; })) {
    all.push_back(Make<ChunkedLocalAttentionSpec>(o));
  }
  for (const auto& o : MambaVariants()) all.push_back(Make<MambaSpec>(o));
  for (const auto& o : Variants<CrossAttentionSpec>(Cross()))
    all.push_back(Make<CrossAttentionSpec>(o));
  for (const auto& o : Variants<EncoderOnlyAttentionSpec>(Encoder()))
    all.push_back(Make<EncoderOnlyAttentionSpec>(o));
  static const KvCacheKind* const kind =
      *RegisterKvCacheKind({.name = "variant_of_full_attention"});
  all.push_back(*KvCacheSpec::Create(*kind, Full()));
  return all;
}

// KS-7. The checker also fails on types whose hash ignores what == sees.
TEST(KvCacheSpecProperty, EqualityAndHashCoverEveryField) {
  const std::vector<KvCacheSpec> all = AllVariants();
  ASSERT_EQ(all.size(), 12u + 12u + 13u + 11u + 12u + 9u + 8u + 9u + 9u + 1u);
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
  const auto add = [&]<typename Spec>(typename Spec::Options o, std::type_identity<Spec>) {
    o.block_size = block;
    o.head_size = head_size;
    o.quant_mode = mode;
    o.dtype = StorageFor(mode);
    if (KindHasField(Spec::kKind, "sink_length")) o.sink_length = block * factor;
    if constexpr (std::is_same_v<Spec, ChunkedLocalAttentionSpec>) {
      o.attention_chunk_size = block * factor;
    }
    specs.push_back(Make<Spec>(o));
  };
  add(Full(), std::type_identity<FullAttentionSpec>());
  add(Mla(), std::type_identity<MlaAttentionSpec>());
  add(Sink(), std::type_identity<SinkFullAttentionSpec>());
  add(Window(), std::type_identity<SlidingWindowSpec>());
  add(WindowMla(), std::type_identity<SlidingWindowMlaSpec>());
  add(Chunked(), std::type_identity<ChunkedLocalAttentionSpec>());
  add(Cross(), std::type_identity<CrossAttentionSpec>());
  add(Encoder(), std::type_identity<EncoderOnlyAttentionSpec>());
  for (const KvCacheSpec& spec : specs) {
    const auto scaled = spec.WithBlockSize(block * factor);
    RC_ASSERT(scaled.ok());
    RC_ASSERT(scaled->page_bytes() == factor * spec.page_bytes());
  }
}

// P-8, KS-29: the padding follows from the new data size.
RC_GTEST_PROP(KvCacheSpecProperty, AlignmentIsRecomputedForTheNewBlockSize, ()) {
  auto options = Mla();
  options.block_size = *rc::gen::inRange(1, 65);
  options.head_size = *rc::gen::inRange(1, 600);
  options.alignment = *rc::gen::inRange(1, 600);
  const KvCacheSpec spec = Make<MlaAttentionSpec>(options);
  const int64_t block = *rc::gen::inRange(1, 257);
  const auto changed = spec.WithBlockSize(block);
  RC_ASSERT(changed.ok());
  const int64_t data = block * options.head_size;
  RC_ASSERT(changed->page_bytes() >= data);
  RC_ASSERT(changed->page_bytes() < data + *options.alignment);
  RC_ASSERT(changed->page_bytes() % *options.alignment == 0);
}

TEST(KvCacheSpecProperty, ExplicitPaddingIsKeptOrRefusedWhenTheBlockChanges) {
  const KvCacheSpec spec = Make<MlaAttentionSpec>(Mla());
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
