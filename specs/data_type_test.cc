#include "kvblocks/specs/data_type.h"

#include "gmock/gmock.h"
#include "gtest/gtest.h"

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

}  // namespace
}  // namespace kvblocks
