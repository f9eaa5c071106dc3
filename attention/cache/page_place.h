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
// `offset`, and a BlockMap says which number a block id has. In chunks of 100 bytes with pages of 24
// bytes a step is 4 bytes; with 5 ids per chunk block id 7 is page 1 of chunk 1, which begins at
// 100 + 24 bytes and so is block number 31 of the view. Where pages are evenly spaced the step is the
// distance between them, and numbers are ids.
//
// A page may be several blocks of a kernel (`split`), which lie end to end from its beginning.
//
// Plain data; all functions are O(1).

#ifndef KVBLOCKS_ATTENTION_CACHE_PAGE_PLACE_H_
#define KVBLOCKS_ATTENTION_CACHE_PAGE_PLACE_H_

#include <cstdint>

#include "absl/status/statusor.h"
#include "kvblocks/attention/cache/kv_cache_layout.h"
#include "kvblocks/attention/cache/kv_cache_view.h"
#include "kvblocks/attention/tensor/tensor_view.h"

namespace kvblocks::attention {

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
// kernel block holds its K, then its V (kInterleaved), formats with scales as MakeKvCacheView places them.
// `kv_in_one_row`: K and V of a head follow each other, for kNhd with D != Dv. InvalidArgument if a kernel
// block does not fit, or if the step or an address is no multiple of the element, or of a float32 scale.
absl::StatusOr<KvCacheView> PlacedKvCache(const PlacedPages& placed, KvCacheGeometry geometry,
                                          bool kv_in_one_row = false);

// Elements at the same place of every page: [block numbers, extents...], row-major, beginning
// `offset` bytes into the page. Refuses as above.
absl::StatusOr<TensorView> PlacedTensor(const PlacedPages& placed, int64_t offset, DType dtype,
                                        absl::Span<const int64_t> extents);

}  // namespace kvblocks::attention

#endif  // KVBLOCKS_ATTENTION_CACHE_PAGE_PLACE_H_
