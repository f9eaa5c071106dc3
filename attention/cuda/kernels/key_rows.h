// Rows of keys and values in every layout: where they are, products with a query, sums of values.

#ifndef KVBLOCKS_ATTENTION_CUDA_KERNELS_KEY_ROWS_H_
#define KVBLOCKS_ATTENTION_CUDA_KERNELS_KEY_ROWS_H_

#include "attention/cuda/device/gpu.h"
#include "attention/cuda/kernels/params.h"
#include "attention/cuda/kernels/row_elements.h"

namespace kvblocks::attention::cuda {

// The two fp8 rows: values in tiles with a scale each, then rotary values in bf16.
inline constexpr int kRotaryValues = 64;
inline constexpr int kValues656 = 512, kTile656 = 128, kScalesAt656 = 512, kRotaryAt656 = 528;
inline constexpr int kValues584 = 448, kTile584 = 64, kRecord584 = 576, kScales584 = 8;

// Where the parts of a key are.
struct KeyAddress {
  const unsigned char* key = nullptr;
  const unsigned char* tail = nullptr;    // kMlaSplit and fp8 rows: the rotary values
  const unsigned char* scales = nullptr;  // fp8 rows
  const unsigned char* value = nullptr;
};

// REQUIRES: 0 <= block < num_blocks, 0 <= offset < block_size.
KVB_DEVICE KeyAddress AddressOf(const Cache& cache, int64_t block, int64_t offset, int kv_head) {
  KeyAddress address;
  const auto* k = static_cast<const unsigned char*>(cache.k.data);
  const auto* v = static_cast<const unsigned char*>(cache.v.data);
  const int bytes = ElementBytesOf(cache.element);
  switch (cache.layout) {
    case Layout::kStrided:
      address.key = k + (block * cache.k.block_stride + offset * cache.k.token_stride +
                         kv_head * cache.k.head_stride) *
                            bytes;
      address.value = v + (block * cache.v.block_stride + offset * cache.v.token_stride +
                           kv_head * cache.v.head_stride) *
                              bytes;
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
      if (cache.layout == Layout::kMlaSplit) {
        address.tail = v + (block * cache.v.block_stride + offset * cache.v.token_stride) * bytes;
      }
      break;
    case Layout::kMlaFp8_656:
      address.key = k + block * cache.k.block_stride + offset * cache.k.token_stride;
      address.value = address.key;
      address.scales = address.key + kScalesAt656;
      address.tail = address.key + kRotaryAt656;
      break;
    case Layout::kMlaFp8_584: {
      const unsigned char* base = k + block * cache.k.block_stride;
      address.key = base + offset * kRecord584;
      address.value = address.key;
      address.scales = base + int64_t{cache.block_size} * kRecord584 + offset * kScales584;
      address.tail = address.key + kValues584;
      break;
    }
  }
  return address;
}

// The product of a query (16-byte aligned) with a key, without the cache's scale: a sum over
// segments of one element type and scale each.
KVB_DEVICE float KeyProduct(const Cache& cache, int key_dim, int value_dim, const float* q,
                            const KeyAddress& address) {
  const bool is_656 = cache.layout == Layout::kMlaFp8_656;
  const bool is_fp8 = is_656 || cache.layout == Layout::kMlaFp8_584;
  const int tile = is_656                              ? kTile656
                   : is_fp8                            ? kTile584
                   : cache.layout == Layout::kMlaSplit ? value_dim
                                                       : key_dim;
  const int head = is_656 ? kValues656 : is_fp8 ? kValues584 : tile;  // before the tail
  const int64_t piece_stride =
      cache.layout == Layout::kPagedX ? int64_t{cache.block_size} * 16 : 16;
  Element element = is_fp8 ? Element::kE4M3 : cache.element;
  const unsigned char* row = address.key;
  float sum = 0;
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
    sum += scale * Dot(element, q + d, row, count, piece_stride);
    d += count;
    row += count;  // of fp8 tiles
  }
  return sum;
}

// What of a tile of 32 keys its values are summed by: lane n knows key n.
struct TileOfKeys {
  const unsigned char* value[32];
  const unsigned char* scales[32];
  float weight[32];
};

// sums[i] += weight * value (lane + 32 i), for the keys whose bits are set in `live`, in order.
template <int kSums>
KVB_DEVICE void AddValues(const Cache& cache, int value_dim, const TileOfKeys& tile, unsigned live,
                          int lane, float (&sums)[kSums]) {
  if (cache.layout == Layout::kMlaFp8_656 || cache.layout == Layout::kMlaFp8_584) {
    const bool is_656 = cache.layout == Layout::kMlaFp8_656;
    const int coded = is_656 ? kValues656 : kValues584;
    for (unsigned rest = live; rest != 0; rest &= rest - 1) {
      const int key = __ffs(static_cast<int>(rest)) - 1;
      const unsigned char* row = tile.value[key];
      const unsigned char* scales = tile.scales[key];
      const float weight = tile.weight[key];
#pragma unroll
      for (int i = 0; i < kSums; ++i) {
        const int d = lane + 32 * i;
        if (d >= value_dim) continue;
        if (d < coded) {
          const float scale = is_656 ? LoadAnywhere<F32>(scales + d / kTile656 * 4)
                                     : E8m0ToFloat(scales[d / kTile584]);
          sums[i] += weight * (scale * E4m3::ToFloat(row[d]));
        } else {
          sums[i] += weight * LoadAnywhere<Bf16>(row + coded + 2 * (d - coded));
        }
      }
    }
    return;
  }
  const int64_t step = cache.layout == Layout::kPagedX ? cache.block_size : 1;
  WithElement(cache.element, [&](auto tag) {
    using E = decltype(tag);
    constexpr int kBytes = sizeof(typename E::Bits);
    const auto add = [&](int key) {
      const unsigned char* row = tile.value[key] + lane * step * kBytes;
      const float weight = tile.weight[key];
#pragma unroll
      for (int i = 0; i < kSums; ++i) {
        if (lane + 32 * i < value_dim) {
          sums[i] += weight * LoadAs<E>(row + i * (32 * step * kBytes));
        }
      }
    };
    if (live == kFullWarp) {
      // Loads of several keys at a time.
#pragma unroll(kSums <= 8 ? 4 : 2)
      for (int key = 0; key < 32; ++key) add(key);
    } else {
#pragma unroll 1
      for (unsigned rest = live; rest != 0; rest &= rest - 1) {
        add(__ffs(static_cast<int>(rest)) - 1);
      }
    }
  });
}

}  // namespace kvblocks::attention::cuda

#endif  // KVBLOCKS_ATTENTION_CUDA_KERNELS_KEY_ROWS_H_
