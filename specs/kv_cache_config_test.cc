#include "kvblocks/kv_cache_config.h"

#include <limits>
#include <string>

#include "checks/field_error.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "kvblocks/kv_cache_spec.h"
#include "specs/row_codec.h"

namespace kvblocks {
namespace {

using ::testing::HasSubstr;

KvCacheSpec FullOfConfig(int64_t block, DataType dtype = DataType::kBFloat16) {
  return *FullAttentionSpec::Create(
      {.block_size = block, .num_kv_heads = 8, .head_size = 128, .dtype = dtype});
}

KvCacheConfig TwoGroups() {
  return {.num_blocks = 100, .groups = {{FullOfConfig(16), {"a", "b"}}, {FullOfConfig(32), {"c"}}}};
}

TEST(KvCacheConfigTest, SchedulerBlockIsAMultipleOfEveryOther) {
  KvCacheConfig config = TwoGroups();
  config.scheduler_block_size = 32;
  config.hash_block_size = 16;
  EXPECT_TRUE(Validate(config).ok());
  config.scheduler_block_size = 16;
  EXPECT_EQ(Validate(config).message(),
            "scheduler_block_size: got 16, expected a multiple of every group's block size "
            "(groups[1] has block size 32)");
  config.scheduler_block_size = 32;
  config.hash_block_size = 5;
  EXPECT_EQ(Validate(config).message(),
            "scheduler_block_size: got 32, expected a multiple of hash_block_size 5");
  for (const int64_t bad : {0, -16}) {
    config.hash_block_size = bad;
    EXPECT_EQ(Validate(config).message(),
              "hash_block_size: got " + std::to_string(bad) + ", expected at least 1");
  }
  config.hash_block_size = std::nullopt;
  config.scheduler_block_size = 0;
  EXPECT_EQ(Validate(config).message(), "scheduler_block_size: got 0, expected at least 1");
}

// KS-20
TEST(KvCacheConfigTest, MixedPrecisionIsAboutTypeAndMode) {
  KvCacheConfig config = TwoGroups();
  EXPECT_FALSE(IsMixedPrecision(config));
  EXPECT_FALSE(IsMixedPrecision({.num_blocks = 1}));
  config.groups[1].spec = FullOfConfig(32, DataType::kFloat16);
  EXPECT_TRUE(IsMixedPrecision(config));
  const auto quantised = FullAttentionSpec::Create({.block_size = 32,
                                                    .num_kv_heads = 8,
                                                    .head_size = 128,
                                                    .dtype = DataType::kUint8,
                                                    .quant_mode = QuantMode::kNvfp4});
  ASSERT_TRUE(quantised.ok());
  config.groups[0].spec = FullOfConfig(16, DataType::kUint8);
  config.groups[1].spec = *quantised;
  EXPECT_TRUE(IsMixedPrecision(config));
}

TEST(KvCacheConfigTest, StatesNeedZeroedBlocksEvenWithoutMixedPrecision) {
  KvCacheConfig config = TwoGroups();
  EXPECT_FALSE(NeedsZeroedBlocks(config));
  config.groups[1].spec = *MambaSpec::Create({.block_size = 16, .states = {{{8}}}});
  EXPECT_FALSE(IsMixedPrecision(config));
  EXPECT_TRUE(NeedsZeroedBlocks(config));
  config.groups[1].spec = FullOfConfig(32, DataType::kFloat16);
  EXPECT_TRUE(NeedsZeroedBlocks(config));
}

CacheDtype Parsed(std::string_view option) {
  const auto dtype = ParseCacheDtype(option, DataType::kBFloat16);
  EXPECT_TRUE(dtype.ok()) << dtype.status();
  return dtype.value_or(CacheDtype{DataType::kFloat32, QuantMode::kNone});
}

// KS-16: exact names before the prefix "fp8".
TEST(DataTypeTest, ExactOptionNamesComeBeforeTheFp8Prefix) {
  EXPECT_EQ(QuantModeOfOption("fp8_per_token_head"), QuantMode::kFp8PerTokenHead);
  EXPECT_EQ(QuantModeOfOption("fp8_ds_mla"), QuantMode::kFp8DsMla);
  EXPECT_EQ(QuantModeOfOption("int8_per_token_head"), QuantMode::kInt8PerTokenHead);
  EXPECT_EQ(QuantModeOfOption("int4_per_token_head"), QuantMode::kInt4PerTokenHead);
  EXPECT_EQ(QuantModeOfOption("nvfp4"), QuantMode::kNvfp4);
  for (const char* option : {"fp8", "fp8_e4m3", "fp8_e5m2", "fp8_inc", "fp8_ds_mla2"}) {
    EXPECT_EQ(QuantModeOfOption(option), QuantMode::kFp8PerTensor) << option;
  }
  for (const char* option : {"auto", "", "bfloat16", "FP8", "fp", "xfp8"}) {
    EXPECT_EQ(QuantModeOfOption(option), QuantMode::kNone) << option;
  }
}

TEST(DataTypeTest, OptionsGiveStorageTypeAndMode) {
  EXPECT_EQ(Parsed("auto"), (CacheDtype{DataType::kBFloat16, QuantMode::kNone}));
  EXPECT_EQ(Parsed("float32"), (CacheDtype{DataType::kFloat32, QuantMode::kNone}));
  EXPECT_EQ(Parsed("fp8"), (CacheDtype{DataType::kFp8E4m3, QuantMode::kFp8PerTensor}));
  EXPECT_EQ(Parsed("fp8_e5m2"), (CacheDtype{DataType::kFp8E5m2, QuantMode::kFp8PerTensor}));
  EXPECT_EQ(Parsed("fp8_per_token_head"),
            (CacheDtype{DataType::kFp8E4m3, QuantMode::kFp8PerTokenHead}));
  EXPECT_EQ(Parsed("int8_per_token_head"),
            (CacheDtype{DataType::kInt8, QuantMode::kInt8PerTokenHead}));
  EXPECT_EQ(Parsed("int4_per_token_head"),
            (CacheDtype{DataType::kUint8, QuantMode::kInt4PerTokenHead}));
  EXPECT_EQ(Parsed("nvfp4"), (CacheDtype{DataType::kUint8, QuantMode::kNvfp4}));
  EXPECT_EQ(Parsed("fp8_ds_mla"), (CacheDtype{DataType::kUint8, QuantMode::kFp8DsMla}));
  EXPECT_EQ(Parsed("nvfp4_ds_mla"), (CacheDtype{DataType::kUint8, QuantMode::kNvfp4DsMla}));
}

TEST(DataTypeTest, UnknownOptionIsRefusedWithTheKnownOnes) {
  for (const char* option : {"", "int9", "FP8"}) {
    const auto dtype = ParseCacheDtype(option, DataType::kBFloat16);
    ASSERT_FALSE(dtype.ok()) << option;
    EXPECT_THAT(std::string(dtype.status().message()), HasSubstr("cache_dtype: got \""));
    EXPECT_THAT(std::string(dtype.status().message()), HasSubstr("int8_per_token_head"));
  }
  EXPECT_EQ(ParseCacheDtype("turboquant_4bit", DataType::kBFloat16).status().code(),
            absl::StatusCode::kUnimplemented);
}

TEST(DataTypeTest, NamesParseBack) {
  for (int i = 0; i <= static_cast<int>(DataType::kFp8E5m2); ++i) {
    const DataType type = static_cast<DataType>(i);
    EXPECT_EQ(ParseDataType(DataTypeName(type)).value(), type);
  }
  for (int i = 0; i <= static_cast<int>(QuantMode::kFp8DsMla); ++i) {
    const QuantMode mode = static_cast<QuantMode>(i);
    EXPECT_EQ(ParseQuantMode(QuantModeName(mode)).value(), mode);
  }
  EXPECT_EQ(ParseDataType("half").value(), DataType::kFloat16);
  EXPECT_EQ(ParseDataType("int3").status().message(),
            "dtype: got \"int3\", expected one of bf16, fp16, fp32, uint8, int8, fp8_e4m3, "
            "fp8_e5m2, bfloat16, float16, half, float32, float");
  EXPECT_FALSE(ParseQuantMode("fp8").ok());
}

TEST(DataTypeTest, ElementBytes) {
  EXPECT_EQ(ElementBytes(DataType::kFloat32), 4);
  EXPECT_EQ(ElementBytes(DataType::kBFloat16), 2);
  EXPECT_EQ(ElementBytes(DataType::kFloat16), 2);
  EXPECT_EQ(ElementBytes(DataType::kFp8E5m2), 1);
  EXPECT_TRUE(HasPerTokenHeadScales(QuantMode::kInt4PerTokenHead));
  EXPECT_FALSE(HasPerTokenHeadScales(QuantMode::kFp8PerTensor));
}

TEST(RowCodecTest, TableIsInTheOrderOfItsFormats) {
  EXPECT_EQ(CodecOf(RowFormat::kFp8DsMlaV4).name, "fp8_ds_mla_v4");
  EXPECT_EQ(CodecOf(RowFormat::kFp8DsMlaV41).name, "fp8_ds_mla_v4_1");
  EXPECT_EQ(CodecOf(RowFormat::kNvfp4DsMlaV41).name, "nvfp4_ds_mla_v4_1");
  for (const QuantMode mode :
       {QuantMode::kFp8PerTensor, QuantMode::kInt8PerTokenHead, QuantMode::kFp8PerTokenHead,
        QuantMode::kInt4PerTokenHead, QuantMode::kNvfp4, QuantMode::kFp8DsMla,
        QuantMode::kNvfp4DsMla}) {
    EXPECT_EQ(CodecOf(FormatOf(mode)).name, QuantModeName(mode));
    EXPECT_EQ(CodecOf(FormatOf(mode)).footer_bytes_per_token_head,
              HasPerTokenHeadScales(mode) ? 8 : 0);
  }
}

TEST(RowCodecTest, VectorsComeInMultiples) {
  EXPECT_EQ(CodecOf(RowFormat::kPlain).vector_multiple(), 1);
  EXPECT_EQ(CodecOf(RowFormat::kInt4PerTokenHead).vector_multiple(), 2);
  EXPECT_EQ(CodecOf(RowFormat::kNvfp4).vector_multiple(), 16);
}

TEST(RowCodecTest, PagesBeyond63BitsAreNoticed) {
  const PageRows rows = {.num_tokens = 2,
                         .num_rows = 2,
                         .key_values = std::numeric_limits<int64_t>::max(),
                         .dtype = DataType::kUint8};
  EXPECT_TRUE(UnpaddedPageBytes(CodecOf(RowFormat::kPlain), rows).overflowed());
}

}  // namespace
}  // namespace kvblocks
