// What operations on whole blocks refuse, wherever the caches are: ids, pairs whose order would
// matter, caches of other shapes or that share memory. block_ops.h says which status is for what.
//
// Ids and pairs are in host memory, caches where their contexts are. Cost: O(pairs * log pairs) per
// cache, plus a comparison of all pairs of caches.

#ifndef KVBLOCKS_ATTENTION_OPS_BLOCK_CHECKS_H_
#define KVBLOCKS_ATTENTION_OPS_BLOCK_CHECKS_H_

#include <cstdint>

#include "absl/status/status.h"
#include "absl/types/span.h"
#include "kvblocks/attention_args.h"
#include "kvblocks/kv_cache_view.h"

namespace kvblocks::attention {

absl::Status CheckCopyBlocks(const ExecContext& context, absl::Span<const KvCacheView> caches,
                             absl::Span<const BlockPair> pairs);
// The two caches may be on two devices.
absl::Status CheckSwapBlocks(const ExecContext& src_context, const ConstKvCacheView& src,
                             const ExecContext& dst_context, const KvCacheView& dst,
                             absl::Span<const BlockPair> pairs);
absl::Status CheckFillBlocks(const ExecContext& context, const KvCacheView& cache,
                             absl::Span<const int32_t> ids);

// The tensors that hold a cache's bytes: K and V, or one where V is part of K, and their scales if
// the cache has them.
inline constexpr int kMostCacheTensors = 4;
template <typename View>
absl::Span<const View> CacheTensors(const BasicKvCacheView<View>& cache,
                                    View (&storage)[kMostCacheTensors]) {
  storage[0] = cache.k;
  storage[1] = cache.v;
  storage[2] = cache.k_scales;
  storage[3] = cache.v_scales;
  if (!cache.k_scales.absent()) return storage;
  const bool one = IsMla(cache.layout) && cache.layout != KvLayout::kMlaSplit;
  return absl::MakeConstSpan(storage, one ? 1 : 2);
}

// The two caches of ConvertLayout as tensors of equal shapes, whose elements then go one to one.
struct LayoutConversion {
  ConstTensorView from[kMostCacheTensors];
  TensorView to[kMostCacheTensors];
  int num_tensors = 2;
};
// Null pairs: all blocks, each into that of its number.
absl::Status CheckConvertLayout(const ExecContext& context, const ConstKvCacheView& src,
                                const KvCacheView& dst, const absl::Span<const BlockPair>* pairs,
                                LayoutConversion* conversion);

}  // namespace kvblocks::attention

#endif  // KVBLOCKS_ATTENTION_OPS_BLOCK_CHECKS_H_
