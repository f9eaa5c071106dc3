// IndexCacheView: the paged cache of a sparse-attention indexer: one key of Di values per row, which
// index queries are scored against to choose the rows that attention reads.
//
//   plain   rows [NB, BS, Di] of f64, f32, f16 or bf16
//   planar  rows u8 [NB, block bytes]: the e4m3 codes of all rows of a block, then a float32 scale of
//           each, then padding: what engines store. A row is code * scale.
//
// A slot is block * BS + row in the block.

#ifndef KVBLOCKS_ATTENTION_CACHE_INDEX_CACHE_H_
#define KVBLOCKS_ATTENTION_CACHE_INDEX_CACHE_H_

#include <cstdint>

#include "kvblocks/attention/tensor/tensor_view.h"

namespace kvblocks::attention {

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

#endif  // KVBLOCKS_ATTENTION_CACHE_INDEX_CACHE_H_
