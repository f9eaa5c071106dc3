#include "kvblocks/attention/cache/cache_rows.h"

#include "kvblocks/attention/cache/element_rows.h"
#include "kvblocks/attention/cache/mla_fp8_rows.h"
#include "kvblocks/attention/cache/quantised_rows.h"

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
    case KvLayout::kMlaLatent:
      return LoadLast(v, v.At(block, offset), out);
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

}  // namespace kvblocks::attention
