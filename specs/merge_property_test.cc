// Merging and uniform type do not depend on order; merging is idempotent.

#include <algorithm>
#include <vector>

#include "gtest/gtest.h"
#include "kvblocks/request_footprint.h"
#include "rapidcheck/gtest.h"

namespace kvblocks {
namespace {

using Specs = std::vector<KvCacheSpec>;

int64_t Pick(std::initializer_list<int64_t> values) {
  return *rc::gen::elementOf(std::vector<int64_t>(values));
}
std::optional<int64_t> PickLabel() {
  const int64_t value = Pick({0, 0, 0, 32, 64});
  return value == 0 ? std::nullopt : std::optional<int64_t>(value);
}

// Few values per field, so that specs agree often.
KvCacheSpec AnySpec(int64_t kind) {
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
  for (int i = 0; i < size; ++i) specs.push_back(AnySpec(mixed ? *rc::gen::inRange(0, 10) : kind));
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
