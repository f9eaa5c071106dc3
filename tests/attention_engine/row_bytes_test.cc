// What specs/ plans for a format is what attention/ stores in it, byte for byte.

#include <cstdint>

#include "gtest/gtest.h"
#include "kvblocks/kv_cache_spec.h"
#include "kvblocks/kv_cache_view.h"
#include "specs/row_codec.h"

namespace kvblocks {
namespace {

using attention::DType;
using attention::KvLayout;
using attention::KvRowFormat;

// KS-18, KS-19, KS-21, KS-22.
TEST(RowBytesTest, PagesOfEveryQuantisationAreBlocksOfTheCache) {
  const struct {
    QuantMode mode;
    DataType storage;
    KvRowFormat format;
    DType dtype;
  } kAll[] = {
      {QuantMode::kNone, DataType::kBFloat16, KvRowFormat::kElements, DType::kBF16},
      {QuantMode::kFp8PerTensor, DataType::kFp8E4m3, KvRowFormat::kElements, DType::kF8E4M3},
      {QuantMode::kInt8PerTokenHead, DataType::kInt8, KvRowFormat::kPerTokenHead, DType::kI8},
      {QuantMode::kFp8PerTokenHead, DataType::kFp8E4m3, KvRowFormat::kPerTokenHead, DType::kF8E4M3},
      {QuantMode::kInt4PerTokenHead, DataType::kUint8, KvRowFormat::kInt4PerTokenHead, DType::kU8},
      {QuantMode::kNvfp4, DataType::kUint8, KvRowFormat::kNvfp4, DType::kU8},
  };
  for (const auto& [mode, storage, format, dtype] : kAll) {
    for (const int64_t head_size : {64, 128, 192}) {
      attention::KvCacheGeometry geometry;
      geometry.layout = KvLayout::kHnd;
      geometry.dtype = dtype;
      geometry.format = format;
      geometry.placement = attention::KvPlacement::kInterleaved;
      geometry.num_blocks = 1, geometry.block_size = 16, geometry.num_kv_heads = 8;
      geometry.key_dim = geometry.value_dim = head_size;
      const auto spec = FullAttentionSpec::Create({.block_size = 16,
                                                   .num_kv_heads = 8,
                                                   .head_size = head_size,
                                                   .dtype = storage,
                                                   .quant_mode = mode});
      ASSERT_TRUE(spec.ok()) << spec.status();
      EXPECT_EQ(attention::BytesPerBlock(geometry).value(), spec->page_bytes())
          << QuantModeName(mode) << ", " << head_size;
    }
  }
}

// KS-33.
TEST(RowBytesTest, LatentRowsOfEveryFormatAreRecordsOfTheCache) {
  const struct {
    QuantMode mode;
    ModelVersion version;
    KvLayout layout;
    KvRowFormat format;
    bool window;
  } kAll[] = {
      {QuantMode::kFp8DsMla, ModelVersion::kDeepseekV32, KvLayout::kMlaFp8_656,
       KvRowFormat::kElements, false},
      {QuantMode::kNvfp4DsMla, ModelVersion::kDeepseekV32, KvLayout::kMlaLatent,
       KvRowFormat::kMlaNvfp4, false},
      {QuantMode::kFp8DsMla, ModelVersion::kDeepseekV41, KvLayout::kMlaLatent, KvRowFormat::kMlaV41,
       false},
      {QuantMode::kFp8DsMla, ModelVersion::kDeepseekV41, KvLayout::kMlaLatent, KvRowFormat::kMlaV41,
       true},
      {QuantMode::kNvfp4DsMla, ModelVersion::kDeepseekV41, KvLayout::kMlaLatent,
       KvRowFormat::kMlaV41Fp4, false},
      {QuantMode::kNvfp4DsMla, ModelVersion::kDeepseekV41, KvLayout::kMlaLatent,
       KvRowFormat::kMlaV41, true},
  };
  for (const auto& [mode, version, layout, format, window] : kAll) {
    attention::KvCacheGeometry geometry;
    geometry.layout = layout;
    geometry.dtype = DType::kU8;
    geometry.format = format;
    geometry.num_blocks = 1, geometry.block_size = 64;
    const auto spec = window
                          ? SlidingWindowMlaSpec::Create({.block_size = 64,
                                                          .head_size = 512,
                                                          .sliding_window = 128,
                                                          .dtype = DataType::kUint8,
                                                          .quant_mode = mode,
                                                          .model_version = version})
                          : MlaAttentionSpec::Create({.block_size = 64,
                                                      .head_size = 512,
                                                      .dtype = DataType::kUint8,
                                                      .quant_mode = mode,
                                                      .model_version = version});
    ASSERT_TRUE(spec.ok()) << spec.status();
    EXPECT_EQ(attention::BytesPerBlock(geometry).value(), spec->page_bytes())
        << QuantModeName(mode) << ", " << ModelVersionName(version) << ", " << Name(format);
  }
}

}  // namespace
}  // namespace kvblocks
