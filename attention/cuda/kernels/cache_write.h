// Kernels that store keys and values in a cache.

#ifndef KVBLOCKS_ATTENTION_CUDA_KERNELS_CACHE_WRITE_H_
#define KVBLOCKS_ATTENTION_CUDA_KERNELS_CACHE_WRITE_H_

#include <cstdint>

#include "kvblocks/attention/cuda/kernels/params.h"
#include "kvblocks/attention/cuda/kernels/runtime.h"

namespace kvblocks::attention::cuda {

// Which slot of the cache each token has: slots < 0 and those beyond the cache are skipped.
struct SlotMapping {
  const int64_t* slots = nullptr;  // null: of token n slot n
  int64_t stride = 1;
  int64_t num_tokens = 0;
  int64_t num_slots = 0;  // of the cache
  int32_t block_size = 1;

  bool is_empty() const { return num_tokens == 0 || num_slots == 0; }
};

// Rows [tokens, heads, dim] on their way into a cache: row (t, h) goes to element
//   b * block_stride + o * token_stride + h * head_stride + d              (kRows)
//   b * block_stride + h * head_stride + (d / x) * block_size * x + o * x + d % x    (kPieces)
//   b * block_stride + h * head_stride + d * block_size + o                (kDimMajor)
// of block b = slot / block_size and offset o = slot % block_size, x being 16 bytes of elements.
struct RowStore {
  enum class Order : uint8_t { kRows, kPieces, kDimMajor };
  ConstRows from;
  void* to = nullptr;
  Order order = Order::kRows;
  Element element = Element::kF32;  // of the cache
  int64_t block_stride = 0, token_stride = 0, head_stride = 0;
  int32_t heads = 1, dim = 0;
  // Of codes whose source is wider; null or stride 0 as in Scales.
  Scales scale;
};

struct CacheWriteParams {
  RowStore stores[2];  // dim 0: none
  SlotMapping mapping;
};

// Slots < 0 are skipped, slots beyond the cache flagged and skipped. Same type: bits are copied;
// floats round to nearest even, codes hold x / scale exactly rounded. One launch, but two where K and
// V are converted differently or values of kPagedX are float32 or odd.
Error LaunchCacheWrite(const LaunchContext& context, const CacheWriteParams& params);

// Rows [tokens, heads, dim] whose codes and scales go to rows of a cache, strides as in Cache.
struct QuantisedStore {
  ConstRows from;
  CacheTensor codes, scales;  // of outputs
  int32_t dim = 0;
  Scales outer_scale;  // of kNvfp4
};
struct QuantisedWriteParams {
  QuantisedStore stores[2];  // K, V
  KvRowFormat format = KvRowFormat::kPerTokenHead;
  Element element = Element::kI8;  // of kPerTokenHead
  int32_t heads = 1;
  SlotMapping mapping;
};
// Vectors as cache/quantised_rows.h has them, bit for bit. A warp per vector.
Error LaunchQuantisedWrite(const LaunchContext& context, const QuantisedWriteParams& params);

// Rows of kv_c and k_pe as fp8 records; see kv_cache_view.h for both forms.
struct MlaFp8WriteParams {
  ConstRows kv_c, k_pe;  // [T, 512 or 448], [T, 64]
  uint8_t* to = nullptr;
  bool planar = false;  // 584 bytes, else 656
  int64_t block_stride = 0, token_stride = 0;  // bytes; planar: no token stride
  SlotMapping mapping;
};
Error LaunchMlaFp8Write(const LaunchContext& context, const MlaFp8WriteParams& params);

// The same as records of a format, as cache/quantised_rows.h has them, bit for bit. No alignment needed.
struct MlaRecordWriteParams {
  ConstRows kv_c, k_pe;  // [T, compressed], [T, 64]
  int32_t compressed = 0;
  KvRowFormat format = KvRowFormat::kMlaV41;
  uint8_t* to = nullptr;
  int64_t block_stride = 0, token_stride = 0;  // bytes
  SlotMapping mapping;
};
Error LaunchMlaRecordWrite(const LaunchContext& context, const MlaRecordWriteParams& params);

}  // namespace kvblocks::attention::cuda

#endif  // KVBLOCKS_ATTENTION_CUDA_KERNELS_CACHE_WRITE_H_
