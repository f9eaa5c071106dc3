// Rows of elements to and from float64: LoadElement and StoreElement in bulk.
//
// The same results, bit for bit, as one element at a time (small_floats.h defines them), with the
// choice of type outside the loop and conversions that stay in registers: a few nanoseconds an
// element. Strides count elements. No alignment needed.

#ifndef KVBLOCKS_ATTENTION_CACHE_ELEMENT_ROWS_H_
#define KVBLOCKS_ATTENTION_CACHE_ELEMENT_ROWS_H_

#include <array>
#include <cstddef>
#include <cstdint>

#include "kvblocks/device_types.h"
#include "kvblocks/kv_cache_view.h"
#include "kvblocks/tensor_view.h"

namespace kvblocks::attention {

void LoadElements(DType dtype, const std::byte* from, int64_t stride, int64_t count, double* out);

// Stores values[i] rounded by small_floats.h, one element after another. The cache codes kI8 are
// those of DoubleToInt8Code: -128 is never written.
void StoreElements(DType dtype, const double* values, int64_t count, std::byte* to);

// The largest magnitude of the finite values, or 0: one infinity must not turn what shares its
// scale into zeros.
double FiniteAmax(const double* values, int64_t count);

// --- RowLayout: where the key or value rows of a cache lie, as strides in bytes.
//
// One description for all layouts that keep rows of plain elements, so that writers and gatherers
// have one loop: a row is `num_pieces` pieces of `piece_elements` elements. Pieces other than one
// occur in the keys of kPagedX only. The FP8 MLA layouts have no such rows.

template <typename Byte>
struct BasicRowLayout {
  Byte* data = nullptr;
  DType dtype = DType::kF32;
  int64_t block_stride = 0, token_stride = 0, head_stride = 0;  // bytes
  int64_t piece_stride = 0, element_stride = 0;                 // bytes
  int64_t num_pieces = 1, piece_elements = 0;

  int64_t row_elements() const { return num_pieces * piece_elements; }
  Byte* Row(int64_t block, int64_t offset, int64_t kv_head) const {
    return data + block * block_stride + offset * token_stride + kv_head * head_stride;
  }
};
using RowLayout = BasicRowLayout<std::byte>;
using ConstRowLayout = BasicRowLayout<const std::byte>;

// REQUIRES: a layout other than kMlaFp8_656 and kMlaFp8_584. For kMlaSplit "keys" are the columns
// in cache.k alone, "values" those in cache.v.
template <typename View>
auto RowsOfKeys(const BasicKvCacheView<View>& cache);
template <typename View>
auto RowsOfValues(const BasicKvCacheView<View>& cache);

// Copies elements of one size, with strides of `from_stride` and `to_stride` bytes.
void CopyElements(int64_t element_bytes, const std::byte* from, int64_t from_stride, std::byte* to,
                  int64_t to_stride, int64_t count);

// A row to and from strided elements outside (`stride` bytes), as `row` (an address of Row()) has
// them.
void WriteRow(const RowLayout& layout, std::byte* row, const std::byte* from, int64_t stride);
void ReadRow(const ConstRowLayout& layout, const std::byte* row, std::byte* to, int64_t stride);

// --- Implementation ------------------------------------------------------------------------------

namespace internal_row_layout {

template <typename Byte>
BasicRowLayout<Byte> RowsOf(const BasicTensorView<Byte>& view, int token_dim, int head_dim,
                            int piece_dim, int element_dim) {
  const int64_t bytes = ElementBytes(view.dtype);
  BasicRowLayout<Byte> rows;
  rows.data = view.data;
  rows.dtype = view.dtype;
  rows.block_stride = view.stride[0] * bytes;
  rows.token_stride = view.stride[token_dim] * bytes;
  if (head_dim >= 0) rows.head_stride = view.stride[head_dim] * bytes;
  if (piece_dim >= 0) {
    rows.piece_stride = view.stride[piece_dim] * bytes;
    rows.num_pieces = view.extent[piece_dim];
  }
  rows.element_stride = view.stride[element_dim] * bytes;
  rows.piece_elements = view.extent[element_dim];
  return rows;
}

}  // namespace internal_row_layout

template <typename View>
auto RowsOfKeys(const BasicKvCacheView<View>& cache) {
  using internal_row_layout::RowsOf;
  switch (cache.layout) {
    case KvLayout::kPagedX:
      return RowsOf(cache.k, 3, 1, 2, 4);
    case KvLayout::kNhd:
      return RowsOf(cache.k, 1, 2, -1, 3);
    case KvLayout::kHnd:
      return RowsOf(cache.k, 2, 1, -1, 3);
    default:
      return RowsOf(cache.k, 1, -1, -1, 2);
  }
}

template <typename View>
auto RowsOfValues(const BasicKvCacheView<View>& cache) {
  using internal_row_layout::RowsOf;
  switch (cache.layout) {
    case KvLayout::kPagedX:
      return RowsOf(cache.v, 3, 1, -1, 2);
    case KvLayout::kNhd:
      return RowsOf(cache.v, 1, 2, -1, 3);
    case KvLayout::kHnd:
      return RowsOf(cache.v, 2, 1, -1, 3);
    default:
      return RowsOf(cache.v, 1, -1, -1, 2);
  }
}

// --- CopyStrided: the elements of one view into another of the same shape and element size, bit by
// bit.
//
// Any strides; dimensions that are dense on both sides become one run of bytes. Host memory only.
// Cost: O(elements), no allocation.

struct StridedDim {
  int64_t extent, from, to;  // strides in bytes
};

// How elements of two views of one shape are visited: dimensions of extent > 1, outermost first in
// `to`, those that are dense on both sides joined. REQUIRES: as CopyStrided, but no host memory.
struct StridedLoop {
  std::array<StridedDim, kMaxRank> dims;
  int rank = 0;

  StridedLoop(const ConstTensorView& from, const TensorView& to);
};

// REQUIRES: equal extents and element sizes, no overlap, no stride 0 in `to` but of extent 1.
void CopyStrided(const ConstTensorView& from, const TensorView& to);

// Every byte of every element becomes `byte`.
void FillStrided(const TensorView& to, std::byte byte);

}  // namespace kvblocks::attention

#endif  // KVBLOCKS_ATTENTION_CACHE_ELEMENT_ROWS_H_
