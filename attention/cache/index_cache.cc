#include "kvblocks/attention/cache/index_cache.h"

#include <algorithm>
#include <cmath>
#include <cstring>

#include "kvblocks/attention/cache/element_rows.h"
#include "kvblocks/attention/cache/mla_fp8_rows.h"
#include "kvblocks/attention/tensor/small_floats.h"

namespace kvblocks::attention {
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
