#include "kvblocks/kv_cache_spec.h"

#include <string>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace kvblocks {
namespace {

template <typename Spec>
int64_t PageOf(const typename Spec::Options& options) {
  const absl::StatusOr<KvCacheSpec> spec = Spec::Create(options);
  EXPECT_TRUE(spec.ok()) << spec.status();
  return spec.ok() ? spec->page_bytes() : -1;
}

FullAttentionSpec::Options FullIn(int64_t block, int64_t heads, int64_t head_size) {
  return {.block_size = block, .num_kv_heads = heads, .head_size = head_size};
}

MlaAttentionSpec::Options V4(int64_t block, int64_t ratio) {
  return {.block_size = block,
          .head_size = 512,
          .dtype = DataType::kUint8,
          .quant_mode = QuantMode::kFp8DsMla,
          .alignment = 576,
          .compress_ratio = ratio,
          .model_version = ModelVersion::kDeepseekV4};
}

SlidingWindowMlaSpec::Options State(int64_t block, int64_t width, int64_t window) {
  return {.block_size = block,
          .head_size = width,
          .sliding_window = window,
          .dtype = DataType::kFloat32,
          .alignment = 576,
          .model_version = ModelVersion::kDeepseekV4};
}

FullAttentionSpec::Options FullIn(DataType dtype, QuantMode mode) {
  auto options = FullIn(16, 8, 128);
  options.dtype = dtype;
  options.quant_mode = mode;
  return options;
}

SlidingWindowSpec::Options Int4Window(PageBytesFormula formula) {
  return {.block_size = 16,
          .num_kv_heads = 8,
          .head_size = 128,
          .sliding_window = 1024,
          .dtype = DataType::kUint8,
          .quant_mode = QuantMode::kInt4PerTokenHead,
          .page_bytes_formula = formula};
}

MlaAttentionSpec::Options MlaIn(DataType dtype, QuantMode mode,
                              ModelVersion version = ModelVersion::kNone) {
  return {.block_size = 64,
          .head_size = 576,
          .dtype = dtype,
          .quant_mode = mode,
          .model_version = version};
}

MlaAttentionSpec::Options PlainV4(int64_t ratio, int64_t head_size, DataType dtype) {
  return {.block_size = 256,
          .head_size = head_size,
          .dtype = dtype,
          .alignment = 512,
          .compress_ratio = ratio,
          .model_version = ModelVersion::kDeepseekV4};
}

TEST(KvCacheSpecExamples, WE_A1ToA24PageBytes) {
  auto of_value_size = FullIn(16, 16, 192);
  of_value_size.head_size_v = 128;
  auto indexer = V4(256, 4);
  indexer.quant_mode = QuantMode::kNone;
  indexer.head_size = 132;
  const SlidingWindowMlaSpec::Options v4_window = {.block_size = 64,
                                                   .head_size = 512,
                                                   .sliding_window = 128,
                                                   .dtype = DataType::kUint8,
                                                   .quant_mode = QuantMode::kFp8DsMla,
                                                   .alignment = 576,
                                                   .model_version = ModelVersion::kDeepseekV4};
  const struct {
    const char* example;
    int64_t page_bytes;
    absl::StatusOr<KvCacheSpec> spec;
  } rows[] = {
      {"A1", 65'536, FullAttentionSpec::Create(FullIn(16, 8, 128))},
      {"A1 fp32", 131'072, FullAttentionSpec::Create(FullIn(DataType::kFloat32, QuantMode::kNone))},
      {"A3 int8", 33'792,
       FullAttentionSpec::Create(FullIn(DataType::kInt8, QuantMode::kInt8PerTokenHead))},
      {"A3 fp8", 33'792,
       FullAttentionSpec::Create(FullIn(DataType::kFp8E4m3, QuantMode::kFp8PerTokenHead))},
      {"A4", 17'408,
       FullAttentionSpec::Create(FullIn(DataType::kUint8, QuantMode::kInt4PerTokenHead))},
      {"A5", 18'432, FullAttentionSpec::Create(FullIn(DataType::kUint8, QuantMode::kNvfp4))},
      {"A6 packed", 17'408, SlidingWindowSpec::Create(Int4Window(PageBytesFormula::kExact))},
      {"A6 upstream", 33'792,
       SlidingWindowSpec::Create(Int4Window(PageBytesFormula::kUpstreamCompatible))},
      {"A7 gpt-oss", 32'768, FullAttentionSpec::Create(FullIn(16, 8, 64))},
      {"A8 Gemma 27B", 131'072, FullAttentionSpec::Create(FullIn(16, 16, 128))},
      {"A9 Phi-3 mini", 196'608, FullAttentionSpec::Create(FullIn(16, 32, 96))},
      {"A10", 163'840, FullAttentionSpec::Create(of_value_size)},
      {"A11", 8'192, FullAttentionSpec::Create(FullIn(16, 1, 128))},
      {"A12", 73'728, MlaAttentionSpec::Create({.block_size = 64, .head_size = 576})},
      {"A13", 18'432, MlaAttentionSpec::Create({.block_size = 16, .head_size = 576})},
      {"A14", 36'864,
       MlaAttentionSpec::Create(MlaIn(DataType::kFp8E4m3, QuantMode::kFp8PerTensor))},
      {"A15", 41'984, MlaAttentionSpec::Create(MlaIn(DataType::kUint8, QuantMode::kFp8DsMla))},
      {"A15 V3.2", 41'984,
       MlaAttentionSpec::Create(
           MlaIn(DataType::kUint8, QuantMode::kFp8DsMla, ModelVersion::kDeepseekV32))},
      {"A16", 8'448,
       MlaAttentionSpec::Create({.block_size = 64, .head_size = 132, .dtype = DataType::kUint8})},
      {"A17", 37'440, MlaAttentionSpec::Create(V4(256, 4))},
      {"A18", 1'728, MlaAttentionSpec::Create(V4(256, 128))},
      {"A19", 8'640, MlaAttentionSpec::Create(indexer)},
      {"A20", 37'440, SlidingWindowMlaSpec::Create(v4_window)},
      {"A21", 32'832, SlidingWindowMlaSpec::Create(State(4, 2048, 8))},
      {"A22", 8'640, SlidingWindowMlaSpec::Create(State(4, 512, 8))},
      {"A23", 32'832, SlidingWindowMlaSpec::Create(State(8, 1024, 128))},
      {"A24 ratio 4", 65'536, MlaAttentionSpec::Create(PlainV4(4, 512, DataType::kBFloat16))},
      {"A24 ratio 128", 2'048, MlaAttentionSpec::Create(PlainV4(128, 512, DataType::kBFloat16))},
      {"A24 indexer", 8'704, MlaAttentionSpec::Create(PlainV4(4, 132, DataType::kUint8))},
  };
  for (const auto& row : rows) {
    ASSERT_TRUE(row.spec.ok()) << row.example << ": " << row.spec.status();
    EXPECT_EQ(row.spec->page_bytes(), row.page_bytes) << row.example;
  }
}

TEST(KvCacheSpecExamples, WE_A2_FullFp8PerTensor) {
  for (const char* option : {"fp8", "fp8_e4m3", "fp8_e5m2"}) {
    const auto dtype = ParseCacheDtype(option, DataType::kBFloat16);
    ASSERT_TRUE(dtype.ok());
    EXPECT_EQ(PageOf<FullAttentionSpec>(FullIn(dtype->storage, dtype->mode)), 32'768) << option;
  }
}

// KS-30
TEST(KvCacheSpecTest, MambaPageDoesNotDependOnTheBlock) {
  const auto spec = MambaSpec::Create(
      {.block_size = 16, .states = {{{4, 3}, DataType::kFloat32}, {{}, DataType::kInt8}}});
  ASSERT_TRUE(spec.ok());
  EXPECT_EQ(spec->page_bytes(), 4 * 3 * 4 + 1);
  EXPECT_EQ(spec->WithBlockSize(999)->page_bytes(), 49);
}

TEST(KvCacheSpecTest, EveryKindAnswersTheCommonQuestions) {
  const auto full = FullAttentionSpec::Create(
      {.block_size = 16, .num_kv_heads = 8, .head_size = 128, .sliding_window = 4096});
  const auto mla =
      MlaAttentionSpec::Create({.block_size = 256, .head_size = 576, .compress_ratio = 4});
  const auto sink = SinkFullAttentionSpec::Create(
      {.block_size = 16, .num_kv_heads = 8, .head_size = 128, .sink_length = 32});
  const auto window = SlidingWindowSpec::Create({.block_size = 16,
                                                 .num_kv_heads = 8,
                                                 .head_size = 128,
                                                 .head_size_v = 64,
                                                 .sliding_window = 1024});
  const auto window_mla = SlidingWindowMlaSpec::Create(State(4, 2048, 8));
  const auto chunked = ChunkedLocalAttentionSpec::Create(
      {.block_size = 16, .num_kv_heads = 8, .head_size = 128, .attention_chunk_size = 8192});
  const auto mamba = MambaSpec::Create(
      {.block_size = 16, .states = {{{4, 3}, DataType::kFloat32}}, .num_speculative_blocks = 1});
  const auto cross = CrossAttentionSpec::Create(
      {.block_size = 16, .num_kv_heads = 8, .head_size = 128, .head_size_v = 64});
  const auto encoder =
      EncoderOnlyAttentionSpec::Create({.block_size = 16, .num_kv_heads = 8, .head_size = 128});
  ASSERT_TRUE(full.ok() && mla.ok() && sink.ok() && window.ok() && window_mla.ok() && chunked.ok());
  ASSERT_TRUE(mamba.ok() && cross.ok() && encoder.ok());
  const std::vector<KvCacheSpec> specs = {*full,    *mla,   *sink,  *window, *window_mla,
                                          *chunked, *mamba, *cross, *encoder};

  const std::vector<std::string> names = {
      "full_attention", "mla_attention",      "sink_full_attention",
      "sliding_window", "sliding_window_mla", "chunked_local_attention",
      "mamba",          "cross_attention",    "encoder_only_attention"};
  for (size_t i = 0; i < specs.size(); ++i) {
    EXPECT_EQ(static_cast<size_t>(specs[i].kind()), i);
    EXPECT_EQ(KindName(specs[i].kind()), names[i]);
    EXPECT_THAT(specs[i].ToString(), ::testing::StartsWith(names[i] + "(block_size="));
    EXPECT_EQ(specs[i].sink_length(), i == 2 ? 32 : 0);
    EXPECT_EQ(specs[i].attention_chunk_size(),
              i == 5 ? std::optional<int64_t>(8192) : std::nullopt);
  }
  EXPECT_EQ(specs[0].sliding_window(), std::nullopt) << "a label is not a window";
  EXPECT_EQ(specs[3].sliding_window(), 1024);
  EXPECT_EQ(specs[4].sliding_window(), 8);
  EXPECT_EQ(specs[1].num_kv_heads(), 1);
  EXPECT_EQ(specs[1].storage_block_size(), 64);
  EXPECT_EQ(specs[3].head_size_v(), 64);
  EXPECT_EQ(specs[7].head_size_v(), 64);
  EXPECT_EQ(specs[7].page_bytes(), 16 * 8 * (128 + 64) * 2);  // KS-31
  EXPECT_EQ(specs[8].page_bytes(), 16 * 8 * (128 + 128) * 2);
  EXPECT_EQ(specs[6].num_kv_heads(), 0);
  EXPECT_EQ(specs[6].head_size(), 0);
  EXPECT_EQ(specs[6].head_size_v(), 0);
  EXPECT_EQ(specs[6].storage_block_size(), 1);
  EXPECT_EQ(specs[6].dtype(), DataType::kFloat32);
  EXPECT_EQ(specs[6].quant_mode(), QuantMode::kNone);
  ASSERT_NE(specs[0].get_if<FullAttentionSpec>(), nullptr);
  EXPECT_EQ(specs[0].get_if<FullAttentionSpec>()->options().sliding_window, 4096);
  EXPECT_EQ(specs[0].get_if<SlidingWindowSpec>(), nullptr);
}

TEST(KvCacheSpecTest, ToStringNamesWhatDiffersFromTheDefault) {
  auto options = FullIn(16, 8, 128);
  options.head_size_v = 64;
  options.page_size_padded = 65'536;
  const auto spec = FullAttentionSpec::Create(options);
  ASSERT_TRUE(spec.ok());
  EXPECT_EQ(spec->ToString(),
            "full_attention(block_size=16, num_kv_heads=8, head_size=128, head_size_v=64, "
            "dtype=bf16, page_size_padded=65536, page_bytes=65536)");
  const auto window = SlidingWindowSpec::Create(
      {.block_size = 16, .num_kv_heads = 8, .head_size = 128, .sliding_window = 1024});
  ASSERT_TRUE(window.ok());
  EXPECT_EQ(window->ToString(),
            "sliding_window(block_size=16, num_kv_heads=8, head_size=128, dtype=bf16, "
            "sliding_window=1024, page_bytes=65536)");
  const auto mamba = MambaSpec::Create({.block_size = 64,
                                        .states = {{{3, 8}}, {{2, 2, 4}, DataType::kFloat32}},
                                        .cache_mode = MambaCacheMode::kAlign,
                                        .num_speculative_blocks = 2});
  ASSERT_TRUE(mamba.ok());
  EXPECT_EQ(mamba->ToString(),
            "mamba(block_size=64, states=3x8xbf16+2x2x4xfp32, cache_mode=align, "
            "num_speculative_blocks=2, page_bytes=112)");
}

}  // namespace
}  // namespace kvblocks
