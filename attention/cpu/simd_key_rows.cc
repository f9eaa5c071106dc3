#include "attention/cpu/simd_key_rows.h"

#include <algorithm>
#include <cmath>
#include <cstring>

#include "attention/cache/quantised_rows.h"

namespace kvblocks::attention::simd {
namespace {

// Calls f(key) for each bit set.
template <typename F>
void ForEachKey(uint64_t keys, F f) {
  for (; keys != 0; keys &= keys - 1) f(__builtin_ctzll(keys));
}

// Whether 16 keys are wanted and follow each other in a block.
bool NeighboursFrom(int key, uint64_t wanted, const TileAddresses& addresses) {
  if ((wanted >> key & 0xffff) != 0xffff) return false;
  for (int i = 1; i < 16; ++i) {
    if (addresses.block[key + i] != addresses.block[key] ||
        addresses.offset[key + i] != addresses.offset[key] + i) {
      return false;
    }
  }
  return true;
}

}  // namespace

KeyRows::Plane KeyRows::MakePlane(const ConstRowLayout& rows, int64_t dim) {
  Plane plane;
  plane.rows = rows;
  plane.dim = dim;
  plane.has_row_type = IsRowType(rows.dtype);
  // Of several pieces, as keys of kPagedX are, see ReadPagedXKey.
  plane.dense =
      rows.num_pieces == 1 && (rows.element_stride == ElementBytes(rows.dtype) || dim == 1);
  plane.in_place = plane.dense && dim % kRowPad == 0 && plane.has_row_type;
  return plane;
}

KeyRows::KeyRows(const ConstKvCacheView& cache)
    : cache_(cache), key_dim_(cache.key_dim()), value_dim_(cache.value_dim()) {
  row_floats_ = std::max(Padded(key_dim_), Padded(value_dim_));
  latent_ = cache.layout == KvLayout::kMlaSplit || cache.layout == KvLayout::kMlaFp8_656 ||
            cache.layout == KvLayout::kMlaFp8_584 || IsMlaRecord(cache.format);
  zeros_.assign(static_cast<size_t>(row_floats_), 0.0f);
  if (latent_) return;
  key_plane_ = MakePlane(RowsOfKeys(cache), key_dim_);
  if (IsMla(cache.layout)) return;  // values are the first columns of keys
  value_plane_ = MakePlane(RowsOfValues(cache), value_dim_);
  if (cache.layout == KvLayout::kPagedX) value_plane_.in_place = false;  // tokens are innermost
  if (cache.format == KvRowFormat::kElements) return;
  key_plane_.in_place = value_plane_.in_place = false;
  const ConstKvCacheView scales(cache.layout, cache.k_scales, cache.v_scales);
  key_plane_.scales = RowsOfKeys(scales);
  value_plane_.scales = RowsOfValues(scales);
}

void KeyRows::ReadQuantisedRow(const Plane& plane, int64_t block, int64_t offset, int64_t kv_head,
                               float* row) const {
  const std::byte* codes = plane.rows.Row(block, offset, kv_head);
  const std::byte* scales = plane.scales.Row(block, offset, kv_head);
  if (cache_.format != KvRowFormat::kPerTokenHead) {
    DecodePackedRow(cache_.format, codes, scales, plane.dim, row);
    std::fill(row + plane.dim, row + row_floats_, 0.0f);
    return;
  }
  ConvertRow(plane.rows.dtype, codes, plane.dim, row);
  float scale;
  std::memcpy(&scale, scales, sizeof(scale));
  for (int64_t d = 0; d < plane.dim; ++d) row[d] *= scale;
}

void KeyRows::ReadPagedXKey(int64_t block, int64_t offset, int64_t kv_head, std::byte* row) const {
  const ConstTensorView& k = cache_.k;
  const int64_t bytes = ElementBytes(k.dtype);
  const int64_t piece = k.extent[4];
  const std::byte* from = key_plane_.rows.Row(block, offset, kv_head);
  for (int64_t c = 0; c < k.extent[2]; ++c) {
    const std::byte* source = from + c * k.stride[2] * bytes;
    if (k.stride[4] == 1 && piece * bytes == 16) {
      std::memcpy(row + c * 16, source, 16);
      continue;
    }
    if (k.stride[4] == 1) {
      std::memcpy(row + c * piece * bytes, source, static_cast<size_t>(piece * bytes));
      continue;
    }
    for (int64_t i = 0; i < piece; ++i) {
      std::memcpy(row + (c * piece + i) * bytes, source + i * k.stride[4] * bytes,
                  static_cast<size_t>(bytes));
    }
  }
}

void KeyRows::ReadLatentRow(int64_t block, int64_t offset, float* row) const {
  std::fill(row, row + row_floats_, 0.0f);
  const std::byte* k = cache_.k.data;
  if (IsMlaRecord(cache_.format)) {
    return DecodeMlaRecord(cache_.format, cache_.k.At(block, offset), row);
  }
  switch (cache_.layout) {
    case KvLayout::kMlaSplit: {
      const int64_t latent = cache_.k.extent[2];
      const auto copy = [&](const ConstTensorView& view, float* out) {
        const std::byte* from = view.At(block, offset);
        if (view.stride[2] == 1 || view.extent[2] == 1) {
          return ConvertRow(view.dtype, from, view.extent[2], out);
        }
        for (int64_t d = 0; d < view.extent[2]; ++d) {
          float one[kRowPad];
          ConvertRow(view.dtype, from + d * view.stride[2] * ElementBytes(view.dtype), 1, one);
          out[d] = one[0];
        }
      };
      copy(cache_.k, row);
      copy(cache_.v, row + latent);
      break;
    }
    case KvLayout::kMlaFp8_656: {
      const std::byte* record = k + block * cache_.k.stride[0] + offset * cache_.k.stride[1];
      ConvertRow(DType::kF8E4M3, record, kMla656Values, row);
      for (int64_t tile = 0; tile < kMla656Values / kMla656TileValues; ++tile) {
        float scale;
        std::memcpy(&scale, record + kMla656ScalesAt + tile * 4, sizeof(scale));
        float* values = row + tile * kMla656TileValues;
        for (int64_t d = 0; d < kMla656TileValues; ++d) values[d] *= scale;
      }
      ConvertRow(DType::kBF16, record + kMla656RotaryAt, kMlaRotaryValues, row + kMla656Values);
      break;
    }
    default: {
      const std::byte* start = k + block * cache_.k.stride[0];
      const std::byte* record = start + offset * kMla584RecordBytes;
      const std::byte* scales =
          start + cache_.block_size() * kMla584RecordBytes + offset * kMla584ScaleBytes;
      ConvertRow(DType::kF8E4M3, record, kMla584Values, row);
      for (int64_t tile = 0; tile < kMla584Values / kMla584TileValues; ++tile) {
        // 2^(b - 127) is below float32's normal numbers for b = 0 only; 255 is NaN.
        const int exponent = std::to_integer<int>(scales[tile]);
        const float scale = exponent == 255 ? NAN : std::ldexp(1.0f, exponent - 127);
        float* values = row + tile * kMla584TileValues;
        for (int64_t d = 0; d < kMla584TileValues; ++d) values[d] *= scale;
      }
      ConvertRow(DType::kBF16, record + kMla584RotaryAt, kMlaRotaryValues, row + kMla584Values);
      break;
    }
  }
}

void KeyRows::Locate(uint64_t wanted, TileAddresses* addresses) const {
  const auto locate = [&](const Plane& plane, std::array<int64_t, kTileKeys>& row_at) {
    if (plane.rows.data == nullptr) return;
    if (wanted != ~uint64_t{0}) row_at.fill(0);
    ForEachKey(wanted, [&](int key) {
      row_at[key] = plane.At(addresses->block[key], addresses->offset[key]);
    });
  };
  locate(key_plane_, addresses->key_at);
  locate(value_plane_, addresses->value_at);
}

void KeyRows::LoadPlane(const Plane& plane, const TileAddresses& addresses,
                        const std::array<int64_t, kTileKeys>& row_at, uint64_t wanted,
                        int64_t kv_head, bool widen, float* scratch,
                        std::array<const void*, kTileKeys>& rows, DType& type) const {
  const bool paged_x_key = &plane == &key_plane_ && cache_.layout == KvLayout::kPagedX;
  if (plane.in_place && !(widen && plane.rows.dtype != DType::kF32)) {
    type = plane.rows.dtype;
    const std::byte* head = plane.Head(kv_head);
    if (wanted == ~uint64_t{0}) {
      for (int key = 0; key < kTileKeys; ++key) rows[key] = head + row_at[key];
    } else {
      ForEachKey(wanted, [&](int key) { rows[key] = head + row_at[key]; });
    }
    return;
  }
  type = DType::kF32;
  if (plane.scales.data != nullptr) {
    ForEachKey(wanted, [&](int key) {
      float* row = scratch + key * row_floats_;
      rows[key] = row;
      ReadQuantisedRow(plane, addresses.block[key], addresses.offset[key], kv_head, row);
    });
    return;
  }
  const int64_t bytes = ElementBytes(plane.rows.dtype);
  if (paged_x_key && plane.has_row_type && plane.dim % kRowPad == 0 && !widen) {
    type = plane.rows.dtype;
    ForEachKey(wanted, [&](int key) {
      std::byte* row = reinterpret_cast<std::byte*>(scratch + key * row_floats_);
      rows[key] = row;
      ReadPagedXKey(addresses.block[key], addresses.offset[key], kv_head, row);
    });
    return;
  }
  int done = 0;  // of the next keys
  const bool columns = !plane.dense && plane.rows.token_stride == bytes && plane.has_row_type;
  ForEachKey(wanted, [&](int key) {
    float* out = scratch + key * row_floats_;
    rows[key] = out;
    if (columns && key % 16 == 0 && NeighboursFrom(key, wanted, addresses)) {
      ConvertSixteenColumns(plane.rows.dtype,
                            plane.rows.Row(addresses.block[key], addresses.offset[key], kv_head),
                            plane.rows.element_stride, plane.dim, out, row_floats_);
      done = 16;
    }
    if (done > 0) {
      --done;
      return;
    }
    // Raw elements go to the end of the row's own scratch when they must be collected first;
    // widening then overwrites no element that it has yet to read.
    std::byte* raw = reinterpret_cast<std::byte*>(out);
    if (paged_x_key) {
      raw += row_floats_ * 4 - Padded(plane.dim) * bytes;
      ReadPagedXKey(addresses.block[key], addresses.offset[key], kv_head, raw);
      return ConvertRow(plane.rows.dtype, raw, plane.dim, out);
    }
    const std::byte* from = plane.Head(kv_head) + row_at[key];
    if (plane.dense) return ConvertRow(plane.rows.dtype, from, plane.dim, out);
    raw += row_floats_ * 4 - Padded(plane.dim) * bytes;
    const auto gather = [&](auto element) {
      using Element = decltype(element);
      for (int64_t d = 0; d < plane.dim; ++d) {
        std::memcpy(raw + d * sizeof(Element), from + d * plane.rows.element_stride,
                    sizeof(Element));
      }
    };
    if (bytes == 1) gather(uint8_t{});
    if (bytes == 2) gather(uint16_t{});
    if (bytes == 4) gather(uint32_t{});
    ConvertRow(plane.rows.dtype, raw, plane.dim, out);
  });
}

void KeyRows::Load(const TileAddresses& addresses, uint64_t wanted, int64_t kv_head, bool widen,
                   float* scratch, TileRows* rows) const {
  if (wanted != ~uint64_t{0}) {
    rows->keys.fill(zeros_.data());
    rows->values.fill(zeros_.data());
  }
  if (latent_) {
    rows->key_type = rows->value_type = DType::kF32;
    ForEachKey(wanted, [&](int key) {
      float* out = scratch + key * row_floats_;
      ReadLatentRow(addresses.block[key], addresses.offset[key], out);
      rows->keys[key] = rows->values[key] = out;
    });
    return;
  }
  LoadPlane(key_plane_, addresses, addresses.key_at, wanted, kv_head, widen, scratch, rows->keys,
            rows->key_type);
  if (cache_.layout == KvLayout::kMlaLatent) {
    // The same rows. What is read of them beyond the values goes into padding of the output.
    rows->values = rows->keys;
    rows->value_type = rows->key_type;
    return;
  }
  LoadPlane(value_plane_, addresses, addresses.value_at, wanted, kv_head, widen,
            scratch + kTileKeys * row_floats_, rows->values, rows->value_type);
}

void KeyRows::FindSources(const TileAddresses& addresses, uint64_t wanted, int64_t first_head,
                          int64_t num_heads, int64_t share, TileSources* sources) const {
  sources->key_bytes = sources->value_bytes = 0;
  // Neighbours in memory are asked for together: in kNhd all heads of a token, else all tokens of a
  // head. kPagedX has the rows of a block and head mixed in one piece: any way to share it out will
  // do.
  const bool mixed = cache_.layout == KvLayout::kPagedX;
  const bool by_token = cache_.layout == KvLayout::kNhd;
  const auto find = [&](const Plane& plane, const std::array<int64_t, kTileKeys>& row_at,
                        std::array<const void*, kTileKeys>& rows, int64_t& row_bytes) {
    if (plane.rows.data == nullptr) return;
    row_bytes = plane.dim * ElementBytes(plane.rows.dtype) / ValuesPerElement(cache_.format);
    if (mixed) {
      for (int key = 0; key < kTileKeys; ++key) {
        rows[key] = (wanted >> key & 1) == 0
                        ? static_cast<const void*>(zeros_.data())
                        : plane.rows.Row(addresses.block[key], 0, first_head + share) +
                              addresses.offset[key] * row_bytes;
      }
    } else if (by_token) {
      const std::byte* first = plane.Head(first_head);
      int64_t key = share * kTileKeys / num_heads, head = share * kTileKeys % num_heads;
      for (int piece = 0; piece < kTileKeys; ++key, head = 0) {
        const std::byte* row = first + row_at[key] + head * plane.rows.head_stride;
        const int64_t last = std::min(piece + num_heads - head, int64_t{kTileKeys});
        for (; piece < last; row += plane.rows.head_stride) rows[piece++] = row;
      }
    } else {
      const std::byte* first = plane.Head(first_head + share);
      for (int key = 0; key < kTileKeys; ++key) rows[key] = first + row_at[key];
    }
  };
  find(key_plane_, addresses.key_at, sources->keys, sources->key_bytes);
  find(value_plane_, addresses.value_at, sources->values, sources->value_bytes);
}

}  // namespace kvblocks::attention::simd
