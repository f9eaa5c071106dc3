#include "specs/config/kv_cache_config_proto.h"

#include <string>
#include <vector>

#include "checks/field_error.h"
#include "gmock/gmock.h"
#include "google/protobuf/text_format.h"
#include "google/protobuf/util/json_util.h"
#include "gtest/gtest.h"
#include "kvblocks/kv_cache_spec.h"
#include "kvblocks/request_footprint.h"
#include "rapidcheck/gtest.h"
#include "specs/spec_fields.h"

namespace kvblocks {
namespace {

using ::testing::HasSubstr;

int64_t Positive(int64_t below) { return *rc::gen::inRange<int64_t>(1, below); }
bool Coin() { return *rc::gen::arbitrary<bool>(); }
std::optional<int64_t> Maybe(int64_t below) {
  return Coin() ? std::optional<int64_t>(Positive(below)) : std::nullopt;
}

// Every field of every kind takes part, mostly with a value that is not its default.
KvCacheSpec AnySpec(KvCacheSpecKind kind) {
  const auto has = [kind](const char* field) { return KindHasField(kind, field); };
  KvCacheSpecOptions o;
  o.block_size = 4 * Positive(20);
  if (has("num_kv_heads")) o.num_kv_heads = Positive(9);
  o.head_size = 16 * Positive(9);
  if (has("head_size_v")) {
    if (Coin()) o.head_size_v = 16 * Positive(9);
  }
  const int storage = *rc::gen::inRange(0, 7);
  o.dtype = static_cast<DataType>(storage);
  if (has("quant_mode") && ElementBytes(o.dtype) == 1)
    o.quant_mode = static_cast<QuantMode>(*rc::gen::inRange(0, 6));
  if (Coin()) o.page_size_padded = (1 << 24) + Positive(100);
  if (has("indexes_kv_by_block_stride")) o.indexes_kv_by_block_stride = Coin();
  if (has("non_causal")) o.non_causal = Coin();
  if (has("is_draft")) o.is_draft = Coin();
  if (has("bounded_replay")) o.bounded_replay = Coin();
  if (has("output_window")) o.output_window = Maybe(1'000);
  if (has("alignment")) o.alignment = Maybe(600);
  if (has("compress_ratio")) {
    o.compress_ratio = Coin() ? 4 : 1;
    o.model_version = Coin() ? ModelVersion::kDeepseekV4 : ModelVersion::kNone;
  }
  if (has("upstream_compatible_page_bytes")) {
    o.page_bytes_formula = static_cast<PageBytesFormula>(Coin());
    o.sliding_window = Positive(1'000);
  } else if (kind == KvCacheSpecKind::kChunkedLocalAttention) {
    o.attention_chunk_size = o.block_size * Positive(9);
  } else if (has("sliding_window")) {
    o.sliding_window = Maybe(1'000);
    if (!o.sliding_window.has_value()) o.attention_chunk_size = Maybe(1'000);
  }
  if (has("sink_length")) o.sink_length = o.block_size * Positive(9);
  const auto spec = KvCacheSpec::Create(kind, o);
  RC_ASSERT(spec.ok());
  return *spec;
}

KvCacheSpec AnyMamba() {
  MambaSpec::Options o = {.block_size = Positive(1'000)};
  for (int64_t i = Positive(4); i > 0; --i) {
    MambaState state = {.dtype = static_cast<DataType>(*rc::gen::inRange(0, 7))};
    for (int64_t d = *rc::gen::inRange(0, 4); d > 0; --d) state.shape.push_back(Positive(9));
    o.states.push_back(state);
  }
  if (Coin()) o.page_size_padded = (1 << 24) + Positive(100);
  o.cache_mode = static_cast<MambaCacheMode>(*rc::gen::inRange(0, 3));
  o.num_speculative_blocks = *rc::gen::inRange(0, 5);
  if (o.cache_mode == MambaCacheMode::kAlign) o.num_checkpoint_blocks = *rc::gen::inRange(0, 3);
  const auto spec = MambaSpec::Create(o);
  RC_ASSERT(spec.ok());
  return *spec;
}

KvCacheSpec AnyKind() {
  const auto kind = static_cast<KvCacheSpecKind>(*rc::gen::inRange(0, kNumSpecKinds));
  if (kind == KvCacheSpecKind::kMamba) return AnyMamba();
  // No group may be of encoder-only attention.
  const bool may_be_a_group = kind != KvCacheSpecKind::kEncoderOnlyAttention;
  return AnySpec(may_be_a_group ? kind : KvCacheSpecKind::kFullAttention);
}

RC_GTEST_PROP(KvCacheConfigProtoProperty, RoundTripsThroughMessageTextAndJson, ()) {
  KvCacheConfig config = {.num_blocks = Positive(kMaxNumBlocks)};
  const int num_groups = *rc::gen::inRange(0, 5);
  for (int g = 0; g < num_groups; ++g) {
    config.groups.push_back(
        {AnyKind(), {"layer." + std::to_string(g), "o'ther\"\\" + std::to_string(g)}, Coin()});
  }
  config.hash_block_size = Maybe(100);
  if (num_groups == 0) config.scheduler_block_size = config.hash_block_size;
  if (Coin()) {
    config.native = {Positive(1'000), {Positive(100), Positive(100)}, {}};
    for (int g = 0; g < num_groups; ++g) config.native->class_of_group.push_back(Coin());
    config.num_blocks = 1 + config.native->num_chunks * config.native->ids_per_chunk();
  }

  const config::v1::KvCacheConfig message = ToProto(config);
  const auto back = FromProto(message);
  RC_ASSERT(back.ok());
  RC_ASSERT(*back == config);

  std::string text;
  RC_ASSERT(google::protobuf::TextFormat::PrintToString(message, &text));
  const auto parsed = KvCacheConfigFromText(text, "printed");
  RC_ASSERT(parsed.ok());
  RC_ASSERT(*parsed == config);

  std::string json;
  RC_ASSERT(google::protobuf::util::MessageToJsonString(message, &json).ok());
  const auto from_json = KvCacheConfigFromJson(json, "printed");
  RC_ASSERT(from_json.ok());
  RC_ASSERT(*from_json == config);
}

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
