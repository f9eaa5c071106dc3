#include "kvblocks/specs/kv_cache_kind.h"

#include <string>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "kvblocks/checks/field_error.h"
#include "kvblocks/specs/config/kv_cache_config_proto.h"
#include "kvblocks/specs/config/kv_cache_config_text.h"
#include "kvblocks/specs/merge.h"
#include "kvblocks/specs/request_footprint.h"

namespace kvblocks {
namespace {

using ::testing::HasSubstr;

const KvCacheSpecOptions kOptions = {
    .block_size = 16, .num_kv_heads = 2, .head_size = 8, .sliding_window = 64};

// A page that keeps one token in four.
const KvCacheKind& Dilated() {
  static const KvCacheKind* const kind = *RegisterKvCacheKind(
      {.name = "dilated_attention",
       .managed_like = KvCacheSpecKind::kSlidingWindow,
       .page_bytes = [](const KvCacheSpecOptions& o) -> absl::StatusOr<int64_t> {
         if (o.block_size % 4 != 0) {
           return FieldError("block_size", std::to_string(o.block_size), "a multiple of 4");
         }
         return o.block_size / 4 * o.num_kv_heads * o.head_size * 2 * ElementBytes(o.dtype);
       }});
  return *kind;
}

TEST(KvCacheKindTest, SpecHasItsOwnNameAndPageAndTheFootprintOfItsModel) {
  const auto spec = KvCacheSpec::Create(Dilated(), kOptions);
  ASSERT_TRUE(spec.ok()) << spec.status();
  const auto window = SlidingWindowSpec::Create(kOptions);
  EXPECT_EQ(spec->kind_name(), "dilated_attention");
  EXPECT_EQ(spec->kind(), KvCacheSpecKind::kSlidingWindow);
  EXPECT_EQ(spec->sliding_window(), 64);
  EXPECT_EQ(spec->page_bytes(), window->page_bytes() / 4);
  EXPECT_EQ(spec->WithBlockSize(32)->page_bytes(), window->page_bytes() / 2);
  EXPECT_THAT(spec->ToString(), ::testing::StartsWith("dilated_attention(block_size=16, "));
  const RequestLimits limits = {.max_model_len = 1000, .max_in_flight_tokens = 50};
  EXPECT_EQ(*MaxBlocksPerRequest(*spec, limits), *MaxBlocksPerRequest(*window, limits));
  EXPECT_NE(*spec, *window);
}

TEST(KvCacheKindTest, OptionsAreCheckedAsTheModelsAndAsItsOwn) {
  KvCacheSpecOptions options = kOptions;
  options.sliding_window = 0;
  EXPECT_EQ(FieldOfError(KvCacheSpec::Create(Dilated(), options).status()), "sliding_window");
  options = kOptions;
  options.block_size = 18;
  EXPECT_EQ(KvCacheSpec::Create(Dilated(), options).status().message(),
            "block_size: got 18, expected a multiple of 4");
  options = kOptions;
  options.head_size = int64_t{1} << 57;  // beyond 63 bits for a window, not for this kind
  EXPECT_EQ(KvCacheSpec::Create(Dilated(), options).status(), absl::OkStatus());
  EXPECT_FALSE(SlidingWindowSpec::Create(options).ok());
}

TEST(KvCacheKindTest, MergesAndGroupsWithItsOwnKindOnly) {
  const std::vector<KvCacheSpec> alike(2, *KvCacheSpec::Create(Dilated(), kOptions));
  EXPECT_EQ(*Merge(alike), alike[0]);
  const std::vector<KvCacheSpec> mixed = {*SlidingWindowSpec::Create(kOptions), alike[0]};
  EXPECT_THAT(std::string(Merge(mixed).status().message()),
              HasSubstr("kind of member 1: got dilated_attention, expected sliding_window"));
  EXPECT_FALSE(IsUniformType(mixed));
  EXPECT_TRUE(IsUniformType(alike));
}

TEST(KvCacheKindTest, TravelsThroughConfigurationFiles) {
  Dilated();
  const std::string window =
      "sliding_window { block_size: 16 num_kv_heads: 2 head_size: 8 sliding_window: 64 "
      "dtype: \"bf16\" }";
  const auto with = [&](const std::string& kind, const std::string& fields) {
    return KvCacheConfigFromText("num_blocks: 9\ngroups { num_layers: 1\n spec { custom_kind: \"" +
                                     kind + "\" " + fields + " } }",
                                 "f");
  };
  const auto config = with("dilated_attention", window);
  ASSERT_TRUE(config.ok()) << config.status();
  EXPECT_EQ(config->groups[0].spec, *KvCacheSpec::Create(Dilated(), kOptions));
  EXPECT_EQ(*FromProto(ToProto(*config)), *config);
  EXPECT_THAT(std::string(with("spiral_attention", window).status().message()),
              HasSubstr("f:3:9: error: groups[0].spec.custom_kind: got \"spiral_attention\", "
                        "expected one of "));
  EXPECT_EQ(with("dilated_attention", "mamba { }").status().message(),
            "f:3:9: error: groups[0].spec.custom_kind: got \"dilated_attention\", expected a kind "
            "that is managed like mamba (write its fields under sliding_window)");
}

TEST(KvCacheKindTest, NamesAreUniqueAndWellFormed) {
  Dilated();
  for (const char* name :
       {"", "Upper", "9lives", "a-b", "a b", "sliding_window", "mamba", "dilated_attention"}) {
    EXPECT_EQ(FieldOfError(RegisterKvCacheKind({.name = name}).status()), "name") << name;
  }
  EXPECT_EQ(FindKvCacheKind("dilated_attention"), &Dilated());
  EXPECT_EQ(FindKvCacheKind("sliding_window"), nullptr);
}

TEST(KvCacheKindTest, PagesHaveBytes) {
  const auto empty = RegisterKvCacheKind(
      {.name = "empty_pages", .page_bytes = [](const KvCacheSpecOptions&) { return 0; }});
  ASSERT_TRUE(empty.ok());
  KvCacheSpecOptions options = kOptions;
  options.sliding_window = std::nullopt;
  EXPECT_EQ(KvCacheSpec::Create(**empty, options).status().message(),
            "page_bytes of empty_pages: got 0, expected at least 1");
}

}  // namespace
}  // namespace kvblocks
