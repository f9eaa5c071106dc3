// Kernels that store keys and values in a cache.

#ifndef KVBLOCKS_ATTENTION_CUDA_KERNELS_CACHE_WRITE_H_
#define KVBLOCKS_ATTENTION_CUDA_KERNELS_CACHE_WRITE_H_

#include <cstdint>

#include "attention/cuda/kernels/params.h"
#include "attention/cuda/kernels/runtime.h"

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
// floats round to nearest even, codes hold x / scale exactly rounded. One launch, but two where K
// and V are converted differently or values of kPagedX are float32 or odd.
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

// The same as records of a format, as cache/quantised_rows.h has them, bit for bit. No alignment
// needed.
struct MlaRecordWriteParams {
  ConstRows kv_c, k_pe;  // [T, compressed], [T, 64]
  int32_t compressed = 0;
  KvRowFormat format = KvRowFormat::kMlaV41;
  uint8_t* to = nullptr;
  int64_t block_stride = 0, token_stride = 0;  // bytes
  SlotMapping mapping;
};
Error LaunchMlaRecordWrite(const LaunchContext& context, const MlaRecordWriteParams& params);

// Scales of quantised caches: the largest magnitudes of up to three tensors, divided.
//
// Values that are not finite are left out and flagged; a tensor of zeros has scale 1. Every value
// is read once, by a first launch that leaves maxima of its blocks in the workspace for a second.

struct ScaleTask {
  ConstRows from;  // null data: none
  int64_t tokens = 0;
  int32_t heads = 1, dim = 0;
  float divisor = 1;
  float* to = nullptr;
  int64_t to_stride = 1;
  int32_t num_scales = 1;  // 1 or heads
};
struct KvScalesParams {
  ScaleTask tasks[3];
};
// Bytes of workspace for tensors of so many heads at most.
int64_t KvScalesWorkspaceBytes(int64_t most_scales);
Error LaunchKvScales(const LaunchContext& context, const KvScalesParams& params);

// The kernel that gathers the last tokens of requests out of a paged cache into dense rows.

struct GatherOutput {
  void* data = nullptr;
  Element element = Element::kF32;
  int64_t request_stride = 0, row_stride = 0, head_stride = 0;
};

struct GatherParams {
  PagedKeys keys;
  int32_t kv_heads = 1, key_dim = 0, value_dim = 0;
  int64_t num_requests = 0;
  const int32_t* lengths = nullptr;
  int64_t seq_lens_stride = 1, lengths_stride = 1;
  int64_t row_offset = 0, rows = 0;  // M
  GatherOutput out, out_v;           // latent caches: out alone, key_dim wide
};
// Lengths that the cache, the table or `out` do not hold are cut and flagged; blocks outside the
// cache leave their rows as they are, and are flagged.
Error LaunchGather(const LaunchContext& context, const GatherParams& params);

}  // namespace kvblocks::attention::cuda

#endif  // KVBLOCKS_ATTENTION_CUDA_KERNELS_CACHE_WRITE_H_
