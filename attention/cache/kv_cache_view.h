// KvCacheView: one layer's paged K/V cache as operations take it, in any of the layouts in use.
//
// The layouts, with NB physical blocks of BS tokens, Hkv heads of D values (Dv for V), and x = 16
// bytes / element size:
//
//   kPagedX       K [NB, Hkv, D/x, BS, x], V [NB, Hkv, Dv, BS]. D must divide by x.
//   kNhd          K and V [NB, BS, Hkv, D]
//   kHnd          K and V [NB, Hkv, BS, D]
//   kMlaLatent    k [NB, BS, R_kv + R_pe]: R_kv compressed values, then R_pe rotary ones. K is the
//                 whole row, V its first R_kv columns; there is one head. v holds the V columns as a
//                 view [NB, BS, R_kv] of the same memory.
//   kMlaSplit     k [NB, BS, R_kv] and v [NB, BS, R_pe] apart (ckv and kpe of some engines).
//   kMlaFp8_656   k u8 [NB, BS, 656]: 512 e4m3, 4 float32 scales (one per 128 values), 64 bf16.
//   kMlaFp8_584   k u8 [NB, block bytes], block-planar: all tokens' 576-byte records (448 e4m3, then
//                 64 bf16), then all tokens' 8 scale bytes (7 E8M0, one per 64 values, and a zero),
//                 then padding to a multiple of 576. K and V are both all 512 values.
//
// Block, token and head strides are free in kNhd and kHnd, so K and V may be interleaved in one
// allocation. A slot is physical block * BS + offset in the block.
//
// In kNhd and kHnd vectors may be quantised with scales of their own (KvRowFormat). k and v then are
// codes, D / 2 bytes of two each in the packed formats, and k_scales and v_scales have the scales:
// float32 of k's first three dimensions, or, of kNvfp4, e4m3 with a fourth of D / 16.

#ifndef KVBLOCKS_ATTENTION_CACHE_KV_CACHE_VIEW_H_
#define KVBLOCKS_ATTENTION_CACHE_KV_CACHE_VIEW_H_

#include <cstdint>

#include "kvblocks/attention/tensor/kv_layout.h"
#include "kvblocks/attention/tensor/tensor_view.h"

namespace kvblocks::attention {

template <typename View>
struct BasicKvCacheView {
  KvLayout layout = KvLayout::kNhd;
  View k, v;
  // For kMlaFp8_584 only, whose view does not tell it.
  int64_t planar_block_size = 0;
  // Block numbers count steps shorter than a block (PagePlace): blocks whose numbers are close share
  // memory. Who gives numbers out sees to it that those in use do not.
  bool overlapping_blocks = false;
  KvRowFormat format = KvRowFormat::kElements;
  View k_scales, v_scales;  // absent for kElements

  BasicKvCacheView() = default;
  BasicKvCacheView(KvLayout the_layout, View the_k, View the_v = {}, int64_t the_block_size = 0)
      : layout(the_layout), k(the_k), v(the_v), planar_block_size(the_block_size) {}
  // A cache that may be written converts to one that may not.
  template <typename Other,
            typename = std::enable_if_t<std::is_same_v<Other, TensorView> &&
                                        std::is_same_v<View, ConstTensorView>>>
  BasicKvCacheView(const BasicKvCacheView<Other>& other)  // NOLINT: implicit on purpose
      : layout(other.layout),
        k(other.k),
        v(other.v),
        planar_block_size(other.planar_block_size),
        overlapping_blocks(other.overlapping_blocks),
        format(other.format),
        k_scales(other.k_scales),
        v_scales(other.v_scales) {}

  bool absent() const { return k.absent(); }
  int64_t num_blocks() const { return k.extent[0]; }
  int64_t block_size() const {
    switch (layout) {
      case KvLayout::kPagedX:
        return k.extent[3];
      case KvLayout::kHnd:
        return k.extent[2];
      case KvLayout::kMlaFp8_584:
        return planar_block_size;
      default:
        return k.extent[1];
    }
  }
  int64_t num_kv_heads() const {
    switch (layout) {
      case KvLayout::kNhd:
        return k.extent[2];
      case KvLayout::kPagedX:
      case KvLayout::kHnd:
        return k.extent[1];
      default:
        return 1;
    }
  }
  // Values per key row and per value row, after dequantisation.
  int64_t key_dim() const {
    switch (layout) {
      case KvLayout::kPagedX:
        return k.extent[2] * k.extent[4];
      case KvLayout::kNhd:
      case KvLayout::kHnd:
        return k.extent[3] * ValuesPerElement(format);
      case KvLayout::kMlaLatent:
        return k.extent[2];
      case KvLayout::kMlaSplit:
        return k.extent[2] + v.extent[2];
      case KvLayout::kMlaFp8_656:
        return 576;
      case KvLayout::kMlaFp8_584:
        return 512;
    }
    return 0;
  }
  int64_t value_dim() const {
    switch (layout) {
      case KvLayout::kPagedX:
        return v.extent[2];
      case KvLayout::kNhd:
      case KvLayout::kHnd:
        return v.extent[3] * ValuesPerElement(format);
      case KvLayout::kMlaLatent:
        return v.extent[2];
      case KvLayout::kMlaSplit:
        return k.extent[2];
      case KvLayout::kMlaFp8_656:
      case KvLayout::kMlaFp8_584:
        return 512;
    }
    return 0;
  }
  int64_t num_slots() const { return num_blocks() * block_size(); }
  // Whether values are codes times a scale that operations are given (KvScales), next to scales in
  // the cache if there are any.
  bool takes_scale() const {
    return format == KvRowFormat::kElements ? IsQuantizedCode(k.dtype)
                                            : format == KvRowFormat::kNvfp4;
  }
};

using KvCacheView = BasicKvCacheView<TensorView>;
using ConstKvCacheView = BasicKvCacheView<ConstTensorView>;

// Bytes of a kMlaFp8_584 block: 584 per token, up to a multiple of 576.
constexpr int64_t MlaFp8_584BlockBytes(int64_t block_size) {
  return (block_size * 584 + 575) / 576 * 576;
}

}  // namespace kvblocks::attention

#endif  // KVBLOCKS_ATTENTION_CACHE_KV_CACHE_VIEW_H_
