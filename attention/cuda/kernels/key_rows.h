// Rows of keys and values in every layout: where they are, products with a query, sums of values.

#ifndef KVBLOCKS_ATTENTION_CUDA_KERNELS_KEY_ROWS_H_
#define KVBLOCKS_ATTENTION_CUDA_KERNELS_KEY_ROWS_H_

#include "attention/cuda/device/gpu.h"
#include "attention/cuda/kernels/params.h"
#include "attention/cuda/kernels/row_elements.h"
#include "attention/cuda/kernels/row_formats.h"

namespace kvblocks::attention::cuda {

// The two fp8 rows: values in tiles with a scale each, then rotary values in bf16.
inline constexpr int kRotaryValues = 64;
inline constexpr int kValues656 = 512, kTile656 = 128, kScalesAt656 = 512, kRotaryAt656 = 528;
inline constexpr int kValues584 = 448, kTile584 = 64, kRecord584 = 576, kScales584 = 8;

// Where the parts of a key are.
struct KeyAddress {
  const unsigned char* key = nullptr;
  const unsigned char* tail = nullptr;    // kMlaSplit and fp8 rows: the rotary values
  const unsigned char* scales = nullptr;  // of the key: fp8 rows, and rows of a format
  const unsigned char* value = nullptr;
  const unsigned char* value_scales = nullptr;  // likewise
};

KVB_DEVICE int64_t RowOf(const CacheTensor& tensor, int64_t block, int64_t offset, int kv_head) {
  return block * tensor.block_stride + offset * tensor.token_stride + kv_head * tensor.head_stride;
}

// REQUIRES: 0 <= block < num_blocks, 0 <= offset < block_size.
KVB_DEVICE KeyAddress AddressOf(const Cache& cache, int64_t block, int64_t offset, int kv_head) {
  KeyAddress address;
  const auto* k = static_cast<const unsigned char*>(cache.k.data);
  const auto* v = static_cast<const unsigned char*>(cache.v.data);
  const int bytes = cache.has_row_scales() ? 1 : BytesOf(cache.element);
  switch (cache.layout) {
    case Layout::kNhd:
    case Layout::kHnd:
      address.key = k + RowOf(cache.k, block, offset, kv_head) * bytes;
      address.value = v + RowOf(cache.v, block, offset, kv_head) * bytes;
      if (cache.has_row_scales()) {
        const int scale_bytes = cache.format == KvRowFormat::kNvfp4 ? 1 : 4;
        address.scales = static_cast<const unsigned char*>(cache.k_row_scales.data) +
                         RowOf(cache.k_row_scales, block, offset, kv_head) * scale_bytes;
        address.value_scales = static_cast<const unsigned char*>(cache.v_row_scales.data) +
                               RowOf(cache.v_row_scales, block, offset, kv_head) * scale_bytes;
      }
      break;
    case Layout::kPagedX:
      address.key =
          k + (block * cache.k.block_stride + kv_head * cache.k.head_stride) * bytes + offset * 16;
      address.value =
          v + (block * cache.v.block_stride + kv_head * cache.v.head_stride + offset) * bytes;
      break;
    case Layout::kMlaLatent:
    case Layout::kMlaSplit:
      address.key = k + (block * cache.k.block_stride + offset * cache.k.token_stride) * bytes;
      address.value = address.key;
      if (cache.has_row_scales()) {
        address.value_scales = address.scales = address.key + ScalesAt(cache.format);
      }
      if (cache.layout == Layout::kMlaSplit) {
        address.tail = v + (block * cache.v.block_stride + offset * cache.v.token_stride) * bytes;
      }
      break;
    case Layout::kMlaFp8_656:
      address.key = k + block * cache.k.block_stride + offset * cache.k.token_stride;
      address.value = address.key;
      address.value_scales = address.scales = address.key + kScalesAt656;
      address.tail = address.key + kRotaryAt656;
      break;
    case Layout::kMlaFp8_584: {
      const unsigned char* base = k + block * cache.k.block_stride;
      address.key = base + offset * kRecord584;
      address.value = address.key;
      address.value_scales = address.scales =
          base + int64_t{cache.block_size} * kRecord584 + offset * kScales584;
      address.tail = address.key + kValues584;
      break;
    }
  }
  return address;
}

// The products of queries with a stride of q_stride floats (a multiple of 4, q 16-byte aligned),
// with a key, without the cache's scale and the row's factor: sums over segments of one element
// type and scale each. kPackedRows: the cache may be one of IsPackedRow.
template <int kQueries, bool kPackedRows>
KVB_DEVICE void KeyProducts(const Cache& cache, int key_dim, int value_dim, const float* q,
                            int q_stride, const KeyAddress& address, float (&products)[kQueries]) {
  if constexpr (kPackedRows) {
    if (IsPackedRow(cache.format)) {
      return FormatProducts<kQueries>(cache.format, key_dim, q, q_stride, address.key,
                                      address.scales, products);
    }
  }
  const bool is_656 = cache.layout == Layout::kMlaFp8_656;
  const bool is_fp8 = is_656 || cache.layout == Layout::kMlaFp8_584;
  const int tile = is_656                              ? kTile656
                   : is_fp8                            ? kTile584
                   : cache.layout == Layout::kMlaSplit ? value_dim
                                                       : key_dim;
  const int head = is_656 ? kValues656 : is_fp8 ? kValues584 : tile;  // before the tail
  const int64_t piece_stride =
      cache.layout == Layout::kPagedX ? int64_t{cache.block_size} * 16 : 16;
  Element element = is_fp8 ? Element::kF8E4M3 : cache.element;
  const unsigned char* row = address.key;
#pragma unroll
  for (int n = 0; n < kQueries; ++n) products[n] = 0;
#pragma unroll 1
  for (int d = 0, n = 0; d < key_dim; ++n) {
    int count = tile;
    float scale = 1;
    if (d >= head) {
      row = address.tail;
      count = key_dim - head;
      if (is_fp8) element = Element::kBF16;
    } else if (is_fp8) {
      scale = is_656 ? LoadAnywhere<F32>(address.scales + 4 * n) : E8m0ToFloat(address.scales[n]);
    }
    WithElement(element, [&](auto tag) {
      AddDots<decltype(tag), kQueries>(q + d, q_stride, row, count, piece_stride, scale, products);
    });
    d += count;
    row += count;  // of fp8 tiles
  }
}

// What of a tile of 32 keys their values are summed by: lane n knows key n.
template <int kHeads>
struct TileOfKeys {
  const unsigned char* value[32];
  const unsigned char* scales[32];
  float weight[kHeads][32];
};

// Without the row's factor.
// sums[h][i] += weight of head h * value (lane + 32 i), for the keys whose bits are set in live[h],
// in order.
template <int kHeads, int kSums, bool kPackedRows>
KVB_DEVICE void AddValues(const Cache& cache, int value_dim, const TileOfKeys<kHeads>& tile,
                          const unsigned (&live)[kHeads], int num_heads, int lane,
                          float (&sums)[kHeads][kSums]) {
  unsigned any = 0, all = kFullWarp;
#pragma unroll
  for (int h = 0; h < kHeads; ++h) {
    any |= live[h];
    if (h < num_heads) all &= live[h];
  }
  const auto add = [&](int key, const float(&values)[kSums]) {
#pragma unroll
    for (int h = 0; h < kHeads; ++h) {
      // What is hidden from a head is left out, not multiplied by 0.
      if ((live[h] >> key & 1) == 0) continue;
      const float weight = tile.weight[h][key];
#pragma unroll
      for (int i = 0; i < kSums; ++i) sums[h][i] += weight * values[i];
    }
  };

  if constexpr (kPackedRows) {
    if (IsPackedRow(cache.format)) {
#pragma unroll 1
      for (unsigned rest = any; rest != 0; rest &= rest - 1) {
        const int key = __ffs(static_cast<int>(rest)) - 1;
        const unsigned char* row = tile.value[key];
        const unsigned char* scales = tile.scales[key];
        const int zero = ZeroPointOf(scales);
        float values[kSums];
#pragma unroll
        for (int i = 0; i < kSums; ++i) {
          const int d = lane + 32 * i;
          values[i] = d < value_dim
                          ? FormatValue(cache.format, cache.element, row, scales, zero, d)
                          : 0.0f;
        }
        add(key, values);
      }
      return;
    }
  }

  if (cache.layout == Layout::kMlaFp8_656 || cache.layout == Layout::kMlaFp8_584) {
    const bool is_656 = cache.layout == Layout::kMlaFp8_656;
    const int coded = is_656 ? kValues656 : kValues584;
#pragma unroll 1
    for (unsigned rest = any; rest != 0; rest &= rest - 1) {
      const int key = __ffs(static_cast<int>(rest)) - 1;
      const unsigned char* row = tile.value[key];
      const unsigned char* scales = tile.scales[key];
      float values[kSums];
#pragma unroll
      for (int i = 0; i < kSums; ++i) {
        const int d = lane + 32 * i;
        values[i] = 0;
        if (d >= value_dim) continue;
        if (d < coded) {
          const float scale = is_656 ? LoadAnywhere<F32>(scales + d / kTile656 * 4)
                                     : E8m0ToFloat(scales[d / kTile584]);
          values[i] = scale * E4m3::ToFloat(row[d]);
        } else {
          values[i] = LoadAnywhere<Bf16>(row + coded + 2 * (d - coded));
        }
      }
      add(key, values);
    }
    return;
  }

  const int64_t step = cache.layout == Layout::kPagedX ? cache.block_size : 1;
  WithElement(cache.element, [&](auto tag) {
    using E = decltype(tag);
    constexpr int kBytes = sizeof(typename E::Bits);
    const auto load = [&](int key, float(&values)[kSums]) {
      const unsigned char* row = tile.value[key] + lane * step * kBytes;
#pragma unroll
      for (int i = 0; i < kSums; ++i) {
        values[i] = lane + 32 * i < value_dim ? LoadAs<E>(row + i * (32 * step * kBytes)) : 0.0f;
      }
    };
    if (all == kFullWarp) {
      // Loads of several keys at a time.
#pragma unroll(kHeads * kSums <= 8 ? 4 : 2)
      for (int key = 0; key < 32; ++key) {
        float values[kSums];
        load(key, values);
#pragma unroll
        for (int h = 0; h < kHeads; ++h) {
          if (h >= num_heads) continue;
          const float weight = tile.weight[h][key];
#pragma unroll
          for (int i = 0; i < kSums; ++i) sums[h][i] += weight * values[i];
        }
      }
    } else {
#pragma unroll 1
      for (unsigned rest = any; rest != 0; rest &= rest - 1) {
        const int key = __ffs(static_cast<int>(rest)) - 1;
        float values[kSums];
        load(key, values);
        add(key, values);
      }
    }
  });
}

}  // namespace kvblocks::attention::cuda

#endif  // KVBLOCKS_ATTENTION_CUDA_KERNELS_KEY_ROWS_H_
