// Codes of 8 bits in a tile for wgmma, made into 16-bit elements where they are. Device code.
//
// A tile is columns of 64 elements of kTileRows rows: 128 bytes a row, its 16-byte pieces permuted by
// piece ^ row % 8. Codes of a row come permuted alike, in the last column: at most 128 bytes, which
// what becomes of them covers. So a tile of codes needs no memory of its own, and rows nobody but
// the warp that expands them.

#ifndef KVBLOCKS_ATTENTION_CUDA_KERNELS_EXPAND_ROWS_H_
#define KVBLOCKS_ATTENTION_CUDA_KERNELS_EXPAND_ROWS_H_

#include "kvblocks/attention/cuda/device/gpu.h"
#include "kvblocks/attention/cuda/device/ptx.h"
#include "kvblocks/attention/cuda/kernels/cache_codes.h"
#include "kvblocks/attention/cuda/kernels/params.h"

namespace kvblocks::attention::cuda {

// Where codes of rows of kDim elements lie in their tile.
template <int kDim, int kTileRows>
inline constexpr int kCodesOf = (kDim / 64 - 1) * kTileRows * 128;

namespace internal {

template <typename T, typename Code, int kDim, int kTileRows>
KVB_DEVICE void ExpandRowsOf(unsigned char* tile, int first, int lane) {
  // A lane takes 16 codes of a row, which become two pieces.
  constexpr int kLanes = kDim / 16, kRowsAtOnce = 32 / kLanes, kBatch = 2;
  const int piece = lane % kLanes;
  // Lanes of the second column begin with their second piece: its banks are left by the others.
  const int turned = piece / 4;
  first += lane / kLanes;
#pragma unroll 1
  for (int done = 0; done < 32; done += kBatch * kRowsAtOnce) {
    uint4 codes[kBatch];
#pragma unroll
    for (int i = 0; i < kBatch; ++i) {
      const int row = first + done + i * kRowsAtOnce;
      codes[i] = *reinterpret_cast<const uint4*>(tile + kCodesOf<kDim, kTileRows> + row * 128 +
                                                 (piece ^ row % 8) * 16);
    }
    __syncwarp();  // what others have read is overwritten
#pragma unroll
    for (int i = 0; i < kBatch; ++i) {
      const int row = first + done + i * kRowsAtOnce;
      unsigned char* const to = tile + (turned * kTileRows + row) * 128;
      const uint4 low = EightAs<T, Code>(make_uint2(codes[i].x, codes[i].y));
      const uint4 high = EightAs<T, Code>(make_uint2(codes[i].z, codes[i].w));
      const int at = piece % 4 * 2 ^ row % 8;
      *reinterpret_cast<uint4*>(to + (at ^ turned) * 16) = turned != 0 ? high : low;
      *reinterpret_cast<uint4*>(to + (at ^ turned ^ 1) * 16) = turned != 0 ? low : high;
    }
  }
}

}  // namespace internal

// Of 32 rows from `first` on, a multiple of 8; by a whole warp, for plain loads after __syncwarp().
template <typename T, int kDim, int kTileRows>
KVB_DEVICE void ExpandRows(Element element, unsigned char* tile, int first, int lane) {
  static_assert(kDim == 64 || kDim == 128);
  switch (element) {
    case Element::kF8E4M3:
      return internal::ExpandRowsOf<T, E4m3Pairs, kDim, kTileRows>(tile, first, lane);
    case Element::kF8E5M2:
      return internal::ExpandRowsOf<T, E5m2Pairs, kDim, kTileRows>(tile, first, lane);
    default:
      return internal::ExpandRowsOf<T, Int8Pairs, kDim, kTileRows>(tile, first, lane);
  }
}

}  // namespace kvblocks::attention::cuda

#endif  // KVBLOCKS_ATTENTION_CUDA_KERNELS_EXPAND_ROWS_H_
