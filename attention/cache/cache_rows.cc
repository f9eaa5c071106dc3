#include "attention/cache/cache_rows.h"

#include <algorithm>
#include <cmath>
#include <cstring>

#include "attention/cache/element_rows.h"
#include "attention/cache/quantised_rows.h"
#include "attention/tensor/small_floats.h"
#include "kvblocks/kv_cache_view.h"

namespace kvblocks::attention {

namespace {

// The last dimension of a view, from an element of it on.
void LoadLast(const ConstTensorView& view, const std::byte* from, double* out) {
  const int last = view.rank - 1;
  LoadElements(view.dtype, from, view.stride[last], view.extent[last], out);
}

// `values` and `scales` are the tensors asked for: of K or of V, in kNhd or kHnd.
void ReadFlashRow(const ConstKvCacheView& cache, const ConstTensorView& values,
                  const ConstTensorView& scales, int64_t block, int64_t offset, int64_t kv_head,
                  double* out) {
  const int64_t second = cache.layout == KvLayout::kNhd ? offset : kv_head;
  const int64_t third = cache.layout == KvLayout::kNhd ? kv_head : offset;
  const std::byte* row = values.At(block, second, third);
  if (cache.format == KvRowFormat::kElements) return LoadLast(values, row, out);
  DecodeQuantisedRow(cache.format, values.dtype, row, scales.At(block, second, third),
                     values.extent[3] * ValuesPerElement(cache.format), out);
}

}  // namespace

void ReadKeyRow(const ConstKvCacheView& cache, int64_t slot, int64_t kv_head, double* out) {
  const int64_t block_size = cache.block_size();
  const int64_t block = slot / block_size;
  const int64_t offset = slot % block_size;
  const ConstTensorView& k = cache.k;
  switch (cache.layout) {
    case KvLayout::kPagedX: {
      const int64_t x = k.extent[4];
      for (int64_t piece = 0; piece < k.extent[2]; ++piece) {
        LoadElements(k.dtype, k.At(block, kv_head, piece, offset), k.stride[4], x, out + piece * x);
      }
      return;
    }
    case KvLayout::kNhd:
    case KvLayout::kHnd:
      return ReadFlashRow(cache, k, cache.k_scales, block, offset, kv_head, out);
    case KvLayout::kMlaLatent:
      if (IsMlaRecord(cache.format)) return DecodeMlaRecord(cache.format, k.At(block, offset), out);
      return LoadLast(k, k.At(block, offset), out);
    case KvLayout::kMlaSplit:
      LoadLast(k, k.At(block, offset), out);
      return LoadLast(cache.v, cache.v.At(block, offset), out + k.extent[2]);
    case KvLayout::kMlaFp8_656:
      return DecodeMla656(k.At(block, offset), out);
    case KvLayout::kMlaFp8_584:
      return DecodeMla584(k.At(block), block_size, offset, out);
  }
}

void ReadValueRow(const ConstKvCacheView& cache, int64_t slot, int64_t kv_head, double* out) {
  const int64_t block_size = cache.block_size();
  const int64_t block = slot / block_size;
  const int64_t offset = slot % block_size;
  const ConstTensorView& v = cache.v;
  switch (cache.layout) {
    case KvLayout::kPagedX:
      return LoadElements(v.dtype, v.At(block, kv_head, 0, offset), v.stride[2], v.extent[2], out);
    case KvLayout::kNhd:
    case KvLayout::kHnd:
      return ReadFlashRow(cache, v, cache.v_scales, block, offset, kv_head, out);
    case KvLayout::kMlaLatent: {
      if (!IsMlaRecord(cache.format)) return LoadLast(v, v.At(block, offset), out);
      double row[kMla656Values + kMlaRotaryValues];
      DecodeMlaRecord(cache.format, cache.k.At(block, offset), row);
      std::copy_n(row, cache.value_dim(), out);
      return;
    }
    case KvLayout::kMlaSplit:
      return LoadLast(cache.k, cache.k.At(block, offset), out);
    case KvLayout::kMlaFp8_656: {
      double row[kMla656Values + kMlaRotaryValues];
      DecodeMla656(cache.k.At(block, offset), row);
      for (int64_t i = 0; i < kMla656Values; ++i) out[i] = row[i];
      return;
    }
    case KvLayout::kMlaFp8_584:
      return DecodeMla584(cache.k.At(block), block_size, offset, out);
  }
}

namespace {

template <typename Byte>
struct PlanarRow {
  Byte *codes, *scale;
};
template <typename View>
auto PlanarRowOf(const BasicIndexCacheView<View>& cache, int64_t slot, int64_t dim) {
  const int64_t block = slot / cache.planar_block_size, row = slot % cache.planar_block_size;
  auto* const at = cache.rows.At(block);
  return PlanarRow<std::remove_pointer_t<decltype(at)>>{
      at + row * dim,
      at + cache.planar_block_size * dim + row * static_cast<int64_t>(sizeof(float))};
}

template <typename View>
auto* PlainRowOf(const BasicIndexCacheView<View>& cache, int64_t slot) {
  return cache.rows.At(slot / cache.block_size(), slot % cache.block_size());
}

}  // namespace

float IndexRowScale(double amax, bool power_of_two) {
  if (power_of_two) return static_cast<float>(E8M0ToDouble(MlaTileScaleE8M0(amax)));
  return std::max(static_cast<float>(amax), 1e-4f) / 448.0f;
}

void ReadIndexRow(const ConstIndexCacheView& cache, int64_t slot, int64_t dim, double* out) {
  if (!cache.planar()) {
    LoadElements(cache.rows.dtype, PlainRowOf(cache, slot), cache.rows.stride[2], dim, out);
    return;
  }
  const auto row = PlanarRowOf(cache, slot, dim);
  float scale;
  std::memcpy(&scale, row.scale, sizeof(scale));
  LoadElements(DType::kF8E4M3, row.codes, 1, dim, out);
  for (int64_t d = 0; d < dim; ++d) out[d] *= scale;
}

void WriteIndexRow(const IndexCacheView& cache, int64_t slot, int64_t dim, bool power_of_two,
                   const double* values) {
  if (!cache.planar()) {
    std::byte* to = PlainRowOf(cache, slot);
    const int64_t step = cache.rows.stride[2] * ElementBytes(cache.rows.dtype);
    for (int64_t d = 0; d < dim; ++d) StoreElement(cache.rows.dtype, values[d], to + d * step);
    return;
  }
  double amax = 0;
  for (int64_t d = 0; d < dim; ++d) {
    if (std::isfinite(values[d])) amax = std::max(amax, std::abs(values[d]));
  }
  const auto row = PlanarRowOf(cache, slot, dim);
  const float scale = IndexRowScale(amax, power_of_two);
  std::memcpy(row.scale, &scale, sizeof(scale));
  for (int64_t d = 0; d < dim; ++d) {
    row.codes[d] = std::byte{DoubleToE4M3(values[d] / scale)};
  }
}

}  // namespace kvblocks::attention
