// KvCacheGeometry: the shape, size and place of one layer's cache in one allocation.
//
// The logical shape of each layout, which dimension is NB, and in what order dimensions lie in
// memory:
//
//   layout, placement                logical shape           in memory, with a layer dimension L
//   kPagedX (K then V only)          [2, NB, BS*Hkv*D]       [NB, L, 2, BS*Hkv*D]
//   kNhd, K then V                   [2, NB, BS, Hkv, D]     [NB, L, 2, BS, Hkv, D]
//   kNhd, interleaved                [NB, 2, BS, Hkv, D]     [NB, L, 2, BS, Hkv, D]
//   kHnd                             as kNhd                 [.., Hkv, BS, D]
//   kMlaLatent                       [NB, BS, R_kv + R_pe]   [NB, L, BS, R_kv + R_pe]
//   kMlaFp8_656                      [NB, BS, 656]           ...
//   kMlaFp8_584                      [NB, block bytes]       ...
//
// Without a layer dimension memory order is the logical order, but for kHnd, which swaps BS and
// Hkv. With one, blocks are outermost, so that a block of all layers is one run of bytes to move.
// kMlaSplit is two tensors and has no single shape; its bytes are those of kMlaLatent.
//
// Formats with scales of their own are for kNhd and kHnd, interleaved, and are seen as several
// tensors of one allocation, too. Their bytes, where engines have them:
//
//   kPerTokenHead      per token and head (in the order of the layout): D codes, a float32, Dv codes,
//                      a float32
//   kInt4PerTokenHead  the same with D / 2 and Dv / 2 bytes of codes
//   kNvfp4             per block: all codes of K, all scales of K, all codes of V, all scales of V,
//                      each in the order of the layout
//
// All sizes are checked for overflow; every function is O(1).

#ifndef KVBLOCKS_ATTENTION_CACHE_KV_CACHE_LAYOUT_H_
#define KVBLOCKS_ATTENTION_CACHE_KV_CACHE_LAYOUT_H_

#include <cstdint>
#include <vector>

#include "absl/status/statusor.h"
#include "kvblocks/attention/cache/kv_cache_view.h"
#include "kvblocks/attention/tensor/tensor_view.h"

namespace kvblocks::attention {

enum class KvPlacement : uint8_t {
  kKThenV,       // all K blocks, then all V blocks
  kInterleaved,  // each block's K, then its V
};

struct KvCacheGeometry {
  KvLayout layout = KvLayout::kNhd;
  DType dtype = DType::kBF16;  // kU8 for the FP8 MLA layouts and packed formats
  KvRowFormat format = KvRowFormat::kElements;
  int64_t num_blocks = 0, block_size = 0;
  int64_t num_kv_heads = 1;  // 1 for MLA
  // D and Dv; for MLA R_kv + R_pe and R_kv. The FP8 MLA layouts know theirs.
  int64_t key_dim = 0, value_dim = 0;
  KvPlacement placement = KvPlacement::kKThenV;
  // Unused bytes behind each block; only where a block is one run (interleaved, MLA but kMlaSplit).
  int64_t block_padding_bytes = 0;
};

// The logical shape. InvalidArgument where no single tensor has it: D != Dv, kMlaSplit, formats with
// scales of their own.
absl::StatusOr<std::vector<int64_t>> KvCacheShape(const KvCacheGeometry& geometry);
// Memory dimension i is logical dimension order[i]; with a layer dimension, that one is logical
// dimension 0 and the others move up by one.
absl::StatusOr<std::vector<int>> StrideOrder(const KvCacheGeometry& geometry,
                                             bool include_layer_dim);
// Which dimension of the logical shape is NB.
absl::StatusOr<int> BlockDim(const KvCacheGeometry& geometry);
// K and V of one block, padding and scale bytes included.
absl::StatusOr<int64_t> BytesPerBlock(const KvCacheGeometry& geometry);
absl::StatusOr<int64_t> KvCacheBytes(const KvCacheGeometry& geometry);

// The cache in `memory`, a contiguous view of any type with at least KvCacheBytes, aligned for the
// cache's type. D and Dv may differ.
absl::StatusOr<KvCacheView> MakeKvCacheView(const KvCacheGeometry& geometry,
                                            const TensorView& memory);

// A fused flat cache [2, NB, BS * Hkv * D], K first, as views of kPagedX, kNhd or kHnd; BS follows
// from the extents. `strides` of the first two dimensions are free.
absl::StatusOr<KvCacheView> SplitKvCache(const TensorView& cache, int64_t num_kv_heads,
                                         int64_t head_size, KvLayout layout);

// Latent rows [NB, BS, R_kv + R_pe] as a kMlaLatent cache, V being the first R_kv columns.
absl::StatusOr<KvCacheView> MakeMlaLatentView(const TensorView& rows, int64_t latent_rank);

}  // namespace kvblocks::attention

#endif  // KVBLOCKS_ATTENTION_CACHE_KV_CACHE_LAYOUT_H_
