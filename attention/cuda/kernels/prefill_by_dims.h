// Values of kPagedX in prefill by mma.sync: they lie by dimensions, and so does their tile in
// shared memory: a row of 64 keys per dimension, permuted as rows of 64 elements are in other
// tiles. A thread copies eight keys of a dimension at once, if one of them is there, and products
// take the tile as they take keys. Device code.

#ifndef KVBLOCKS_ATTENTION_CUDA_KERNELS_PREFILL_BY_DIMS_H_
#define KVBLOCKS_ATTENTION_CUDA_KERNELS_PREFILL_BY_DIMS_H_

#include "attention/cuda/device/gpu.h"
#include "attention/cuda/device/ptx.h"
#include "attention/cuda/kernels/cache_codes.h"
#include "attention/cuda/kernels/prefill.h"
#include "attention/cuda/kernels/prefill_tile.h"

namespace kvblocks::attention::cuda {

KVB_DEVICE bool IsPagedX(const PrefillParams& params) {
  return params.keys.cache.layout == Layout::kPagedX;
}

// Shared: the kernel's layout of shared memory, with kOffsets, kValueTile and kCodeTile.
template <typename T, typename Shared, int kDv, int kThreads, bool kCodes>
class ValuesByDims {
 public:
  static constexpr int kKeys = 64;
  static constexpr int kRowBytes = 2 * kKeys;
  static constexpr int kElementBytes = kCodes ? 1 : 2;

  KVB_DEVICE ValuesByDims(const PrefillParams& params, unsigned char* shared, int thread)
      : params_(params), shared_(shared), thread_(thread) {}

  // Of the eight keys among which `key` is, the first that a row sees; -1 if none is seen.
  static KVB_DEVICE int32_t FirstSeen(const RowTile& tile, int32_t key) {
    const int32_t octet = key & ~7;
    const int32_t first = octet < tile.seen.begin ? tile.seen.begin : octet;
    return first < octet + 8 ? first : -1;
  }

  // Step n's values to the tile, or, of codes, to where they are converted from. To be waited for.
  KVB_DEVICE void Copy(uint32_t to, int n) const {
    const int octet = thread_ % 8;
    const int64_t offset = reinterpret_cast<const int64_t*>(
        shared_ + Shared::kOffsets)[(n % 2 * 2 + 1) * kKeys + octet * 8];
    const auto* source = static_cast<const unsigned char*>(params_.keys.cache.v.data);
    const int64_t step = int64_t{params_.keys.cache.block_size} * kElementBytes;
#pragma unroll 4
    for (int dim = thread_ / 8; dim < kDv; dim += kThreads / 8) {
      const bool valid = offset >= 0 && dim < params_.value_dim;
      const unsigned char* from = valid ? source + offset + dim * step : source;
      if constexpr (kCodes) {
        CopyAsync8(SharedAddress(shared_) + CodesAt(dim), from, valid);
      } else {
        CopyAsync16(to + At(dim, octet), from, valid);
      }
    }
  }

  // What this thread copied.
  template <typename Code>
  KVB_DEVICE void Convert() const {
    for (int dim = thread_ / 8; dim < kDv; dim += kThreads / 8) {
      *reinterpret_cast<uint4*>(shared_ + Shared::kValueTile + At(dim, thread_ % 8)) =
          EightAs<T, Code>(*reinterpret_cast<const uint2*>(shared_ + CodesAt(dim)));
    }
  }

  // Into a warp's accumulators, from its weights as fragments.
  template <int kMTiles>
  KVB_DEVICE void Multiply(const uint32_t (&weights)[kMTiles][kKeys / 16][4],
                           float (&out)[kMTiles][kDv / 8][4]) const {
    const int lane = thread_ % 32;
    const uint32_t values = SharedAddress(shared_) + Shared::kValueTile +
                            ((lane >> 4) * 8 + (lane & 7)) * kRowBytes +
                            (((lane >> 3 & 1) ^ (lane & 7)) << 4);
#pragma unroll
    for (int k = 0; k < kKeys / 16; ++k) {
#pragma unroll
      for (int d = 0; d < kDv / 16; ++d) {
        uint32_t b[4];
        LoadMatrices(b, (values ^ (k * 32)) + d * 16 * kRowBytes);
#pragma unroll
        for (int m = 0; m < kMTiles; ++m) {
          MultiplyM16N8K16<T>(out[m][2 * d], weights[m][k], b[0], b[1]);
          MultiplyM16N8K16<T>(out[m][2 * d + 1], weights[m][k], b[2], b[3]);
        }
      }
    }
  }

 private:
  // Eight keys of a dimension, in the tile.
  static KVB_DEVICE int At(int dim, int octet) {
    return dim * kRowBytes + ((octet ^ (dim & 7)) << 4);
  }
  KVB_DEVICE int CodesAt(int dim) const {
    return Shared::kCodeTile + dim * kKeys + thread_ % 8 * 8;
  }

  const PrefillParams& params_;
  unsigned char* const shared_;
  const int thread_;
};

}  // namespace kvblocks::attention::cuda

#endif  // KVBLOCKS_ATTENTION_CUDA_KERNELS_PREFILL_BY_DIMS_H_
