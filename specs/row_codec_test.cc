#include "kvblocks/specs/row_codec.h"

#include <limits>
#include <string>

#include "gtest/gtest.h"

namespace kvblocks {
namespace {

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
  for (int i = 0; i <= static_cast<int>(RowFormat::kCompressorState); ++i) {
    EXPECT_EQ(static_cast<int>(CodecOf(static_cast<RowFormat>(i)).format), i);
  }
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
  EXPECT_EQ(LatentPage(RowFormat::kIndexer, 1, 1, 128), 132);
  EXPECT_EQ(LatentPage(RowFormat::kCompressorState, 1, 1, 2 * 2 * 512), 8'192);
  EXPECT_EQ(LatentPage(RowFormat::kCompressorState, 1, 1, 2 * 2 * 128), 2'048);
  EXPECT_EQ(LatentPage(RowFormat::kCompressorState, 1, 1, 2 * 1 * 512), 4'096);
}

TEST(RowCodecTest, VectorsComeInMultiples) {
  EXPECT_EQ(CodecOf(RowFormat::kPlain).vector_multiple(), 1);
  EXPECT_EQ(CodecOf(RowFormat::kInt4PerTokenHead).vector_multiple(), 2);
  EXPECT_EQ(CodecOf(RowFormat::kNvfp4).vector_multiple(), 16);
  EXPECT_EQ(CodecOf(RowFormat::kIndexer).vector_multiple(), 128);
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
