// What specs/ plans for a format is what attention/ stores in it, byte for byte.

#include <cstdint>

#include "gtest/gtest.h"
#include "kvblocks/attention/cache/kv_cache_layout.h"
#include "kvblocks/specs/kv_cache_spec.h"
#include "kvblocks/specs/row_codec.h"

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

}  // namespace
}  // namespace kvblocks
