// The memory of a KV cache as attention sees it: layouts, pages, index caches.

#ifndef KVBLOCKS_KV_CACHE_VIEW_H_
#define KVBLOCKS_KV_CACHE_VIEW_H_

#include <cstdint>
#include <vector>

#include "absl/status/statusor.h"
#include "kvblocks/device_types.h"
#include "kvblocks/tensor_view.h"

// KvCacheView: one layer's paged K/V cache as operations take it, in any of the layouts in use.
//
// The layouts, with NB physical blocks of BS tokens, Hkv heads of D values (Dv for V), and x = 16
// bytes / element size:
//
//   kPagedX       K [NB, Hkv, D/x, BS, x], V [NB, Hkv, Dv, BS]. D must divide by x.
//   kNhd          K and V [NB, BS, Hkv, D]
//   kHnd          K and V [NB, Hkv, BS, D]
//   kMlaLatent    k [NB, BS, R_kv + R_pe]: R_kv compressed values, then R_pe rotary ones. K is the
//                 whole row, V its first R_kv columns; there is one head. v holds the V columns as
//                 a view [NB, BS, R_kv] of the same memory.
//   kMlaSplit     k [NB, BS, R_kv] and v [NB, BS, R_pe] apart (ckv and kpe of some engines).
//   kMlaFp8_656   k u8 [NB, BS, 656]: 512 e4m3, 4 float32 scales (one per 128 values), 64 bf16.
//   kMlaFp8_584   k u8 [NB, block bytes], block-planar: all tokens' 576-byte records (448 e4m3,
//   then
//                 64 bf16), then all tokens' 8 scale bytes (7 E8M0, one per 64 values, and a zero),
//                 then padding to a multiple of 576. K and V are both all 512 values.
//
// Block, token and head strides are free in kNhd and kHnd, so K and V may be interleaved in one
// allocation. A slot is physical block * BS + offset in the block.
//
// In kNhd and kHnd vectors may be quantised with scales of their own (KvRowFormat). k and v then
// are codes, D / 2 bytes of two each in the packed formats, and k_scales and v_scales have the
// scales:
// float32 of k's first three dimensions, or, of kNvfp4, e4m3 with a fourth of D / 16. The latent
// records among the formats are for kMlaLatent: k u8 [NB, BS, bytes of a record], and nothing else.

namespace kvblocks::attention {

template <typename View>
struct BasicKvCacheView {
  KvLayout layout = KvLayout::kNhd;
  View k, v;
  // For kMlaFp8_584 only, whose view does not tell it.
  int64_t planar_block_size = 0;
  // Block numbers count steps shorter than a block (PagePlace): blocks whose numbers are close
  // share memory. Who gives numbers out sees to it that those in use do not.
  bool overlapping_blocks = false;
  KvRowFormat format = KvRowFormat::kElements;
  View k_scales, v_scales;  // absent for kElements and latent records

  BasicKvCacheView() = default;
  BasicKvCacheView(KvLayout the_layout, View the_k, View the_v = {}, int64_t the_block_size = 0)
      : layout(the_layout), k(the_k), v(the_v), planar_block_size(the_block_size) {}
  // A cache that may be written converts to one that may not.
  template <typename Other,
            typename = std::enable_if_t<std::is_same_v<Other, TensorView> &&
                                        std::is_same_v<View, ConstTensorView>>>
  BasicKvCacheView(const BasicKvCacheView<Other>& other)  // NOLINT: implicit on purpose
      : layout(other.layout),
        k(other.k),
        v(other.v),
        planar_block_size(other.planar_block_size),
        overlapping_blocks(other.overlapping_blocks),
        format(other.format),
        k_scales(other.k_scales),
        v_scales(other.v_scales) {}

  bool absent() const { return k.absent(); }
  int64_t num_blocks() const { return k.extent[0]; }
  int64_t block_size() const {
    switch (layout) {
      case KvLayout::kPagedX:
        return k.extent[3];
      case KvLayout::kHnd:
        return k.extent[2];
      case KvLayout::kMlaFp8_584:
        return planar_block_size;
      default:
        return k.extent[1];
    }
  }
  int64_t num_kv_heads() const {
    switch (layout) {
      case KvLayout::kNhd:
        return k.extent[2];
      case KvLayout::kPagedX:
      case KvLayout::kHnd:
        return k.extent[1];
      default:
        return 1;
    }
  }
  // Values per key row and per value row, after dequantisation.
  int64_t key_dim() const {
    switch (layout) {
      case KvLayout::kPagedX:
        return k.extent[2] * k.extent[4];
      case KvLayout::kNhd:
      case KvLayout::kHnd:
        return k.extent[3] * ValuesPerElement(format);
      case KvLayout::kMlaLatent:
        return IsMlaRecord(format) ? ShapeOf(format).key_dim : k.extent[2];
      case KvLayout::kMlaSplit:
        return k.extent[2] + v.extent[2];
      case KvLayout::kMlaFp8_656:
        return 576;
      case KvLayout::kMlaFp8_584:
        return 512;
    }
    return 0;
  }
  int64_t value_dim() const {
    switch (layout) {
      case KvLayout::kPagedX:
        return v.extent[2];
      case KvLayout::kNhd:
      case KvLayout::kHnd:
        return v.extent[3] * ValuesPerElement(format);
      case KvLayout::kMlaLatent:
        return IsMlaRecord(format) ? ShapeOf(format).value_dim : v.extent[2];
      case KvLayout::kMlaSplit:
        return k.extent[2];
      case KvLayout::kMlaFp8_656:
      case KvLayout::kMlaFp8_584:
        return 512;
    }
    return 0;
  }
  int64_t num_slots() const { return num_blocks() * block_size(); }
  // Whether values are codes times a scale that operations are given (KvScales), next to scales in
  // the cache if there are any.
  bool takes_scale() const {
    return format == KvRowFormat::kElements ? IsQuantizedCode(k.dtype)
                                            : format == KvRowFormat::kNvfp4;
  }
};

using KvCacheView = BasicKvCacheView<TensorView>;
using ConstKvCacheView = BasicKvCacheView<ConstTensorView>;

// The values of a latent row before its rotary ones. Where the whole row is V, these are part of
// it.
template <typename View>
int64_t CompressedValues(const BasicKvCacheView<View>& cache) {
  if (IsMlaRecord(cache.format)) return ShapeOf(cache.format).compressed;
  return cache.layout == KvLayout::kMlaFp8_584 ? 448 : cache.value_dim();
}

// Bytes of a kMlaFp8_584 block: 584 per token, up to a multiple of 576.
constexpr int64_t MlaFp8_584BlockBytes(int64_t block_size) {
  return (block_size * 584 + 575) / 576 * 576;
}

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
// The latent records among the formats are for kMlaLatent, [NB, BS, bytes of a record].
// kMlaSplit is two tensors and has no single shape; its bytes are those of kMlaLatent.
//
// Formats with scales of their own are for kNhd and kHnd, interleaved, and are seen as several
// tensors of one allocation, too. Their bytes, where engines have them:
//
//   kPerTokenHead      per token and head (in the order of the layout): D codes, a float32, Dv
//   codes,
//                      a float32
//   kInt4PerTokenHead  the same with D / 2 and Dv / 2 bytes of codes
//   kNvfp4             per block: all codes of K, all scales of K, all codes of V, all scales of V,
//                      each in the order of the layout
//
// All sizes are checked for overflow; every function is O(1).

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
  // D and Dv; for MLA R_kv + R_pe and R_kv. The FP8 MLA layouts and latent records know theirs.
  int64_t key_dim = 0, value_dim = 0;
  KvPlacement placement = KvPlacement::kKThenV;
  // Unused bytes behind each block; only where a block is one run (interleaved, MLA but kMlaSplit).
  int64_t block_padding_bytes = 0;
};

// The logical shape. InvalidArgument where no single tensor has it: D != Dv, kMlaSplit, formats
// with scales of their own.
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

// PagePlace: where the pages of one layer's cache lie in an allocation, and how a view whose blocks
// are evenly spaced reaches them.
//
// The rule, for the page of block id b:
//
//   even       offset + b * block_stride
//   in chunks  offset + chunk * chunk_bytes + page * block_stride   for b >= 1, where
//              chunk, page = divmod(b - 1, ids_per_chunk); the null block, 0: null_offset
//
// A view has one distance between blocks, and chunks are no multiple of a page. So the view counts
// in steps: the largest distance that divides all of them. Its block number n begins n steps behind
// `offset`, and a BlockMap says which number a block id has. In chunks of 100 bytes with pages of
// 24 bytes a step is 4 bytes; with 5 ids per chunk block id 7 is page 1 of chunk 1, which begins at
// 100 + 24 bytes and so is block number 31 of the view. Where pages are evenly spaced the step is
// the distance between them, and numbers are ids.
//
// A page may be several blocks of a kernel (`split`), which lie end to end from its beginning.
//
// Plain data; all functions are O(1).

// From the manager's block ids to block numbers of a view. The default is for pages of one kernel
// block each that lie end to end.
struct BlockMap {
  int64_t page_stride = 1;   // numbers from one page to the next
  int64_t block_stride = 1;  // from one kernel block of a page to the next
  // In chunks only; 0: evenly spaced.
  int64_t ids_per_chunk = 0;
  int64_t pages_per_chunk = 0;  // of them that are pages of this size
  int64_t chunk_stride = 0;
  int64_t null_number = 0;

  // The number of the first kernel block of a page. REQUIRES: IsPage(id).
  int64_t First(int32_t id) const {
    if (ids_per_chunk == 0) return id * page_stride;
    if (id == 0) return null_number;
    // 32-bit division is several times faster.
    const uint32_t per_chunk = static_cast<uint32_t>(ids_per_chunk);
    const uint32_t index = static_cast<uint32_t>(id) - 1;
    return index / per_chunk * chunk_stride + index % per_chunk * page_stride;
  }
  // Whether an id of the pool has a page of this size.
  bool IsPage(int32_t id) const {
    return ids_per_chunk == 0 || id == 0 || (id - 1) % ids_per_chunk < pages_per_chunk;
  }

  friend bool operator==(const BlockMap&, const BlockMap&) = default;
};

struct PagePlace {
  int64_t offset = 0;        // bytes
  int64_t page_bytes = 0;    // that are used; the rest up to the next page is padding
  int64_t block_stride = 0;  // bytes
  // In chunks only; 0: evenly spaced.
  int64_t ids_per_chunk = 0;
  int64_t pages_per_chunk = 0;
  int64_t chunk_bytes = 0;
  int64_t null_offset = 0;

  // REQUIRES: 0 <= block.
  int64_t PageOffset(int64_t block) const {
    if (ids_per_chunk == 0) return offset + block * block_stride;
    if (block == 0) return null_offset;
    return offset + (block - 1) / ids_per_chunk * chunk_bytes +
           (block - 1) % ids_per_chunk * block_stride;
  }
};

// Pages as a view: `pages` is u8 [block numbers, bytes of a kernel block], which other views of the
// layer share the first dimension with.
struct PlacedPages {
  TensorView pages;
  BlockMap blocks;
  bool overlapping = false;  // KvCacheView::overlapping_blocks
};

// `num_blocks` ids, the null block included, of pages cut into `split` kernel blocks each, in
// `memory`, a contiguous view. InvalidArgument for places that contradict themselves or whose block
// numbers do not fit in int32; OutOfRange if the memory is too small.
absl::StatusOr<PlacedPages> PlacePages(const PagePlace& place, int64_t num_blocks, int64_t split,
                                       const TensorView& memory);

// Keys and values in such pages; geometry.num_blocks is not read, block_size is the kernel's, each
// kernel block holds its K, then its V (kInterleaved), formats with scales as MakeKvCacheView
// places them. `kv_in_one_row`: K and V of a head follow each other, for kNhd with D != Dv.
// InvalidArgument if a kernel block does not fit, or if the step or an address is no multiple of
// the element, or of a float32 scale.
absl::StatusOr<KvCacheView> PlacedKvCache(const PlacedPages& placed, KvCacheGeometry geometry,
                                          bool kv_in_one_row = false);

// Elements at the same place of every page: [block numbers, extents...], row-major, beginning
// `offset` bytes into the page. Refuses as above.
absl::StatusOr<TensorView> PlacedTensor(const PlacedPages& placed, int64_t offset, DType dtype,
                                        absl::Span<const int64_t> extents);

// IndexCacheView: the paged cache of a sparse-attention indexer: one key of Di values per row,
// which index queries are scored against to choose the rows that attention reads.
//
//   plain   rows [NB, BS, Di] of f64, f32, f16 or bf16
//   planar  rows u8 [NB, block bytes]: the e4m3 codes of all rows of a block, then a float32 scale
//   of
//           each, then padding: what engines store. A row is code * scale.
//
// A slot is block * BS + row in the block.

template <typename View>
struct BasicIndexCacheView {
  View rows;
  int64_t planar_block_size = 0;  // rows of a block; 0: plain

  BasicIndexCacheView() = default;
  BasicIndexCacheView(View the_rows, int64_t the_planar_block_size = 0)  // NOLINT: implicit
      : rows(the_rows), planar_block_size(the_planar_block_size) {}
  // A cache that may be written converts to one that may not.
  template <typename Other,
            typename = std::enable_if_t<std::is_same_v<Other, TensorView> &&
                                        std::is_same_v<View, ConstTensorView>>>
  BasicIndexCacheView(const BasicIndexCacheView<Other>& other)  // NOLINT: implicit on purpose
      : rows(other.rows), planar_block_size(other.planar_block_size) {}

  bool absent() const { return rows.absent(); }
  bool planar() const { return planar_block_size > 0; }
  int64_t num_blocks() const { return rows.extent[0]; }
  int64_t block_size() const { return planar() ? planar_block_size : rows.extent[1]; }
  int64_t num_slots() const { return num_blocks() * block_size(); }
};
using IndexCacheView = BasicIndexCacheView<TensorView>;
using ConstIndexCacheView = BasicIndexCacheView<ConstTensorView>;

// Bytes of a planar block: 132 a row of 128 values.
constexpr int64_t IndexBlockBytes(int64_t block_size, int64_t dim) {
  return block_size * (dim + static_cast<int64_t>(sizeof(float)));
}

// max(amax, 1e-4) / 448 or, with power_of_two, the smallest power of two that is no less.
float IndexRowScale(double amax, bool power_of_two);

// A row from and to float64. Codes are x / scale to nearest even, saturating; the scale is that of
// the largest finite magnitude. Plain rows are rounded once. REQUIRES: a slot of the cache, whose
// rows have `dim` values. O(dim), nothing allocated.
void ReadIndexRow(const ConstIndexCacheView& cache, int64_t slot, int64_t dim, double* out);
void WriteIndexRow(const IndexCacheView& cache, int64_t slot, int64_t dim, bool power_of_two,
                   const double* values);

}  // namespace kvblocks::attention

#endif  // KVBLOCKS_KV_CACHE_VIEW_H_
