#include "attention/cpu/reference_rows.h"

#include <cstring>

#include "attention/cache/cache_rows.h"
#include "attention/cache/element_rows.h"
#include "attention/cpu/host_scalars.h"
#include "attention/tensor/small_floats.h"

namespace kvblocks::attention {
namespace {

void Multiply(double* row, int64_t count, double scale) {
  if (scale == 1) return;
  for (int64_t d = 0; d < count; ++d) row[d] *= scale;
}

// Rows with scales of their own inside need no other.
bool HasOuterScale(KvLayout layout) {
  return layout != KvLayout::kMlaFp8_656 && layout != KvLayout::kMlaFp8_584;
}

}  // namespace

PagedRows::PagedRows(const ConstKvCacheView& cache, const ConstTensorView& block_table,
                     const KvScales& scales, int64_t shared_prefix,
                     const ConstTensorView& kv_start_loc)
    : cache_(cache),
      block_table_(block_table),
      scales_(scales),
      kv_start_loc_(kv_start_loc),
      shared_prefix_(shared_prefix),
      block_size_(cache.block_size()),
      key_dim_(cache.key_dim()),
      value_dim_(cache.value_dim()) {}

int64_t PagedRows::SlotOf(int64_t request, int64_t j) const {
  if (!kv_start_loc_.absent()) return IndexAt(kv_start_loc_, request) + j;
  int32_t block;
  std::memcpy(&block, block_table_.At(j < shared_prefix_ ? 0 : request, j / block_size_),
              sizeof(block));
  return block * block_size_ + j % block_size_;
}

void PagedRows::Key(int64_t request, int64_t kv_head, int64_t j, double* out) const {
  ReadKeyRow(cache_, SlotOf(request, j), kv_head, out);
  if (HasOuterScale(cache_.layout) && cache_.takes_scale()) {
    Multiply(out, key_dim_, ScaleAt(scales_.k, request, kv_head));
  }
}

void PagedRows::Value(int64_t request, int64_t kv_head, int64_t j, double* out) const {
  ReadValueRow(cache_, SlotOf(request, j), kv_head, out);
  if (!HasOuterScale(cache_.layout) || !cache_.takes_scale()) return;
  // A latent row is key and value at once and has the key's scale.
  const ConstTensorView& scales = IsMla(cache_.layout) ? scales_.k : scales_.v;
  Multiply(out, value_dim_, ScaleAt(scales, request, kv_head));
}

void TensorRows::Key(int64_t request, int64_t kv_head, int64_t j, double* out) const {
  LoadElements(k_.dtype, k_.At(first_row_[request] + j, kv_head), k_.stride[2], k_.extent[2], out);
  Multiply(out, k_.extent[2], ScaleAt(scales_.k, request, kv_head));
}

void TensorRows::Value(int64_t request, int64_t kv_head, int64_t j, double* out) const {
  LoadElements(v_.dtype, v_.At(first_row_[request] + j, kv_head), v_.stride[2], v_.extent[2], out);
  Multiply(out, v_.extent[2], ScaleAt(scales_.v, request, kv_head));
}

void ListedRows::Key(int64_t request, int64_t, int64_t j, double* out) const {
  const Entry entry = lists_[request][j];
  const ConstKvCacheView& cache = entry.extra ? extra_ : main_;
  ReadKeyRow(cache, entry.slot, 0, out);
  if (HasOuterScale(cache.layout) && IsQuantizedCode(cache.k.dtype)) {
    Multiply(out, cache.key_dim(), scale_);
  }
}

void ListedRows::Value(int64_t request, int64_t, int64_t j, double* out) const {
  const Entry entry = lists_[request][j];
  const ConstKvCacheView& cache = entry.extra ? extra_ : main_;
  ReadValueRow(cache, entry.slot, 0, out);
  if (HasOuterScale(cache.layout) && IsQuantizedCode(cache.k.dtype)) {
    Multiply(out, cache.value_dim(), scale_);
  }
}

}  // namespace kvblocks::attention
