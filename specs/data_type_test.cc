#include "kvblocks/kv_cache_spec.h"

#include <limits>
#include <string>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "specs/row_codec.h"

namespace kvblocks {
namespace {

using ::testing::HasSubstr;

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

// Sixteen tokens of eight heads, K and V of 128 values each.
int64_t KeyValuePage(RowFormat format, DataType dtype) {
  const PageRows rows = {.num_tokens = 16,
                         .num_rows = 16,
                         .num_heads = 8,
                         .key_values = 128,
                         .value_values = 128,
                         .dtype = dtype};
  return UnpaddedPageBytes(CodecOf(format), rows).value().value();
}

int64_t LatentPage(RowFormat format, int64_t tokens, int64_t rows, int64_t values) {
  return UnpaddedPageBytes(CodecOf(format), {.num_tokens = tokens,
                                             .num_rows = rows,
                                             .key_values = values,
                                             .dtype = DataType::kUint8})
      .value()
      .value();
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

// KS-18, KS-19, KS-21, KS-22; the pages are those of WE-A1 to WE-A5.
TEST(RowCodecTest, KeysAndValuesOfEveryMode) {
  EXPECT_EQ(KeyValuePage(RowFormat::kPlain, DataType::kBFloat16), 65'536);
  EXPECT_EQ(KeyValuePage(RowFormat::kPlain, DataType::kFloat32), 131'072);
  EXPECT_EQ(KeyValuePage(RowFormat::kFp8PerTensor, DataType::kFp8E5m2), 32'768);
  EXPECT_EQ(KeyValuePage(RowFormat::kInt8PerTokenHead, DataType::kInt8), 33'792);
  EXPECT_EQ(KeyValuePage(RowFormat::kFp8PerTokenHead, DataType::kFp8E4m3), 33'792);
  EXPECT_EQ(KeyValuePage(RowFormat::kInt4PerTokenHead, DataType::kUint8), 17'408);
  EXPECT_EQ(KeyValuePage(RowFormat::kNvfp4, DataType::kUint8), 18'432);
}

// The bytes of a row in each format, KS-33.
TEST(RowCodecTest, DeepseekRows) {
  EXPECT_EQ(LatentPage(RowFormat::kFp8DsMla, 1, 1, 576), 512 + 4 * 4 + 64 * 2);
  EXPECT_EQ(LatentPage(RowFormat::kFp8DsMlaV4, 1, 1, 512), 448 + 64 * 2 + 7 + 1);
  EXPECT_EQ(LatentPage(RowFormat::kFp8DsMlaV4, 256, 64, 512), 64 * 584);
  EXPECT_EQ(LatentPage(RowFormat::kFp8DsMlaV41, 1, 1, 512), 512 + 512 / 32);
  EXPECT_EQ(LatentPage(RowFormat::kNvfp4DsMlaV41, 1, 1, 512), 512 / 2 + 512 / 16);
  EXPECT_EQ(LatentPage(RowFormat::kNvfp4DsMla, 1, 1, 576), 512 / 2 + 64 + 512 / 16);
  EXPECT_EQ(CodecOf(RowFormat::kFp8DsMlaV4).usual_alignment, 576);
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
