// What prefill by mma.sync does of special cases: explicit masks and block-sparse visibility, and
// with them kPagedX, whose values prefill_by_dims.h has. Instances of the kernel of their own take
// them. Device code.
//
// A tile has a word of 64 bits per row in shared memory, a bit per key that the row sees; whoever
// needs to know reads it there.

#ifndef KVBLOCKS_ATTENTION_CUDA_KERNELS_PREFILL_SPECIAL_H_
#define KVBLOCKS_ATTENTION_CUDA_KERNELS_PREFILL_SPECIAL_H_

#include "attention/cuda/device/gpu.h"
#include "attention/cuda/device/ptx.h"
#include "attention/cuda/kernels/prefill_rows.h"
#include "attention/cuda/kernels/prefill_tile.h"
#include "attention/cuda/kernels/row_visibility.h"

namespace kvblocks::attention::cuda {

// Scoring::tests_keys, which is for the host.
KVB_DEVICE bool TestsKeys(const Scoring& scoring) {
  return scoring.block_sparse.vert_stride > 1 || scoring.mask.form != kMaskNone;
}

// Whether the mask has values that are added to scores.
KVB_DEVICE bool MaskIsAdded(const Scoring& scoring) {
  const MaskRule& mask = scoring.mask;
  return mask.form != kMaskNone && mask.form != kMaskRaggedBits && !mask.marker;
}

// Bits [begin, end) of 64.
KVB_DEVICE uint64_t BitsBetween(int64_t begin, int64_t end) {
  if (begin < 0) begin = 0;
  if (end > 64) end = 64;
  if (begin >= end) return 0;
  return ~uint64_t{0} >> (64 - (end - begin)) << begin;
}

// Of a row of the block's tile.
KVB_DEVICE RowSees SeesOfRow(const PrefillParams& params, const RowTile& tile, int row) {
  const int32_t token = tile.TokenOf(row);
  const QueryRow query{tile.request, token, int64_t{tile.kv_len} - tile.first_position, tile.kv_len,
                       tile.PositionOf(params, row)};
  return SeesOf(params.scoring, params.num_heads, params.num_kv_heads, query, tile.HeadOf(row));
}

// Four bytes' "is not 0" as four bits.
KVB_DEVICE uint32_t NonZeroBytes(uint32_t word) {
  const uint32_t upper = (((word & 0x7f7f7f7fu) + 0x7f7f7f7fu) | word) & 0x80808080u;
  return (upper >> 7) * 0x10204080u >> 28;
}

// What a row hides of 64 keys by a mask whose bytes, or bits, lie one after another and all exist;
// false if they do not.
KVB_DEVICE bool HiddenAtOnce(const MaskRule& mask, const RowSees& sees, int32_t key0,
                             uint64_t& hidden) {
  const auto* bytes = static_cast<const uint8_t*>(mask.data);
  if (mask.form == kMaskRaggedBits) {
    const uint64_t bit = static_cast<uint64_t>(sees.mask_row) + static_cast<uint64_t>(key0);
    if (bit / 8 + 9 > static_cast<uint64_t>(mask.columns) || mask.columns < 9) return false;
    const uint8_t* from = bytes + bit / 8;
    const int shift = static_cast<int>(bit % 8);
    uint64_t low = 0;
#pragma unroll
    for (int i = 0; i < 8; ++i) low |= uint64_t{from[i]} << 8 * i;
    hidden = low >> shift;
    if (shift > 0) hidden |= uint64_t{from[8]} << (64 - shift);
    return true;
  }
  if (!mask.bytes || mask.form == kMaskTemplate || mask.column_stride != 1 || sees.mask_row < 0 ||
      sees.mask_row >= mask.rows || int64_t{key0} + 64 > mask.columns) {
    return false;
  }
  const uint8_t* from = bytes + sees.mask_base + key0;
  hidden = 0;
  if (reinterpret_cast<uintptr_t>(from) % 4 == 0) {
    const auto* words = reinterpret_cast<const uint32_t*>(from);
#pragma unroll
    for (int i = 0; i < 16; ++i) hidden |= uint64_t{NonZeroBytes(words[i])} << 4 * i;
  } else {
#pragma unroll 16
    for (int i = 0; i < 64; ++i) hidden |= uint64_t{from[i] != 0} << i;
  }
  return true;
}

// Which of 64 keys from key0 on a row sees.
KVB_DEVICE uint64_t VisibleBits(const PrefillParams& params, const RowTile& tile, int row,
                                int32_t key0, uint32_t& flags) {
  if (row >= tile.num_rows) return 0;
  const Scoring& scoring = params.scoring;
  const RowSees sees = SeesOfRow(params, tile, row);
  const int end = sees.hi < tile.kv_len ? sees.hi : tile.kv_len;
  uint64_t bits = BitsBetween(int64_t{sees.lo} - key0, int64_t{end} - key0);
  if (bits == 0 || !sees.needs_test) return bits;
  const BlockSparseRule& sparse = scoring.block_sparse;
  uint64_t hidden = 0;
  if (sparse.vert_stride <= 1 && HiddenAtOnce(scoring.mask, sees, key0, hidden)) {
    return bits & ~hidden;
  }
  float bias;
  if (scoring.mask.form == kMaskNone) {
    // All keys of a block alike.
    uint64_t seen = 0;
    for (int64_t begin = key0; begin < key0 + 64;) {
      const int64_t next = (begin / sparse.block_size + 1) * sparse.block_size;
      if (IsVisible(scoring, sees, 0, begin, bias, flags)) {
        seen |= BitsBetween(begin - key0, next - key0);
      }
      begin = next;
    }
    return bits & seen;
  }
  for (int key = 0; key < 64; ++key) {
    if ((bits >> key & 1) == 0) continue;
    if (!IsVisible(scoring, sees, 0, int64_t{key0} + key, bias, flags)) {
      bits &= ~(uint64_t{1} << key);
    }
  }
  return bits;
}

// Whether the block-sparse rule hides keys [key0, key0 + count) from all rows of the tile, of which
// the earliest sees most. False where positions are in any order.
KVB_DEVICE bool SparseHidesAll(const PrefillParams& params, const RowTile& tile, int32_t key0,
                               int32_t count) {
  const BlockSparseRule& sparse = params.scoring.block_sparse;
  if (sparse.vert_stride <= 1 || params.query_positions != nullptr) return false;
  const int32_t lowest = tile.first_position + tile.TokenOf(0);
  const int64_t first = key0 / sparse.block_size, last = (key0 + count - 1) / sparse.block_size;
  if (last > FloorDiv(lowest, sparse.block_size) - sparse.local_blocks) return false;
  for (int32_t h = 0; h < tile.group; ++h) {
    const int64_t offset = SparseOffsetOf(sparse, params.num_heads, params.num_kv_heads,
                                          tile.kv_head * tile.group + h);
    // The first block from `first` on that the head sees.
    const int64_t past = (first + offset) % sparse.vert_stride;
    if (first + (past == 0 ? 0 : sparse.vert_stride - past) <= last) return false;
  }
  return true;
}

// The words of two tiles, which steps use in turn, and the tiles that a row sees. Shared: the
// kernel's layout of shared memory, with kVisible and kAnyVisible.
template <typename Shared, int kWarps>
class VisibleTiles {
 public:
  explicit KVB_DEVICE VisibleTiles(unsigned char* shared) : shared_(shared) {}

  // By row, of step n.
  KVB_DEVICE uint64_t* Words(int n) const {
    return reinterpret_cast<uint64_t*>(shared_ + Shared::kVisible) + n % 2 * kPrefillRows;
  }

  // The next of num_tiles tiles of 64 keys, from the m-th on, that a row sees, its words being
  // written for step n; or num_tiles. By all threads.
  KVB_DEVICE int Find(const PrefillParams& params, const RowTile& tile, int32_t first_key,
                      int num_tiles, int m, int n, uint32_t* error_flags) const {
    const int thread = static_cast<int>(threadIdx.x);
    uint32_t* any_by_warp = reinterpret_cast<uint32_t*>(shared_ + Shared::kAnyVisible) + n % 2 * 8;
    for (;; ++m) {
      while (m < num_tiles && SparseHidesAll(params, tile, first_key + m * 64, 64)) ++m;
      if (m >= num_tiles) return num_tiles;
      uint64_t visible = 0;
      if (thread < kPrefillRows) {
        uint32_t flags = 0;
        visible = VisibleBits(params, tile, thread, first_key + m * 64, flags);
        Words(n)[thread] = visible;
        if (flags != 0 && error_flags != nullptr) atomicOr(error_flags, flags);
      }
      if (!TestsKeys(params.scoring)) return m;
      const bool any = __any_sync(kFullWarp, visible != 0);
      if (thread % 32 == 0) any_by_warp[thread / 32] = any;
      __syncthreads();
      uint32_t found = 0;
      for (int w = 0; w < kWarps; ++w) found |= any_by_warp[w];
      if (found != 0) return m;
      __syncthreads();  // all have read
    }
  }

 private:
  unsigned char* const shared_;
};

// Adds what a mask adds, in units of scores; -infinity for what bits do not have.
template <int kTiles>
KVB_DEVICE void MaskScores(const PrefillParams& params, const RowTile& tile,
                           float (&scores)[kTiles][4], int row, int32_t key0,
                           const uint64_t* visible, uint64_t bad) {
  const int t2 = static_cast<int>(threadIdx.x % 4 * 2);
  const bool biased = MaskIsAdded(params.scoring);
#pragma unroll
  for (int half = 0; half < 2; ++half) {
    const int mine = row + 8 * half;
    const uint64_t bits = (visible[mine] & ~bad) >> t2;
    if (biased && bits != 0) {
      const RowSees sees = SeesOfRow(params, tile, mine);
      uint32_t flags = 0;  // keys that are visible have an entry
      // Finding a value is long code: it stands here once, and a score is picked by comparisons.
#pragma unroll 1
      for (int n = 0; n < 2 * kTiles; ++n) {
        const int key = 8 * (n / 2) + n % 2;
        if ((bits >> key & 1) == 0) continue;
        const float value =
            MaskValueOf(params.scoring.mask, sees, 0, int64_t{key0} + t2 + key, flags);
#pragma unroll
        for (int m = 0; m < 2 * kTiles; ++m) {
          if (m == n) scores[m / 2][2 * half + m % 2] += value;
        }
      }
    }
#pragma unroll
    for (int j = 0; j < kTiles; ++j) {
#pragma unroll
      for (int i = 0; i < 2; ++i) {
        if ((bits >> (8 * j + i) & 1) == 0) scores[j][2 * half + i] = -Infinity();
      }
    }
  }
}

// As AddNonFinite, by bits; by_dims: the tile has a row of 64 keys per dimension.
template <typename T, int kTiles>
KVB_DEVICE void AddNonFiniteByBits(const unsigned char* values, float (&out)[kTiles][4], int row,
                                   const uint64_t* visible, uint64_t bad, bool by_dims) {
  const uint64_t low = visible[row] & ~bad, high = visible[row + 8] & ~bad;
  const int t2 = static_cast<int>(threadIdx.x % 4 * 2);
  for (int key = 0; key < 64; ++key) {
    const bool in_low = (low >> key & 1) != 0, in_high = (high >> key & 1) != 0;
    if (!in_low && !in_high) continue;
#pragma unroll
    for (int d = 0; d < kTiles; ++d) {
      uint32_t pair;
      if (by_dims) {
        const int dim = 8 * d + t2;
        const auto at = [&](int n) {
          return *reinterpret_cast<const uint16_t*>(
              values + n * 128 + ((key / 8 ^ (n & 7)) << 4) + key % 8 * 2);
        };
        pair = at(dim) | uint32_t{at(dim + 1)} << 16;
      } else {
        pair = *reinterpret_cast<const uint32_t*>(
            values + (d / 8 * 64 + key) * 128 + ((d % 8 ^ (key & 7)) << 4) + t2 * 2);
      }
      const uint32_t special = NonFiniteHalves<T>(pair);
      if (special == 0) continue;
      const float2 both = T::Unpack(pair & special);
      if (in_low) out[d][0] += both.x, out[d][1] += both.y;
      if (in_high) out[d][2] += both.x, out[d][3] += both.y;
    }
  }
}

}  // namespace kvblocks::attention::cuda

#endif  // KVBLOCKS_ATTENTION_CUDA_KERNELS_PREFILL_SPECIAL_H_
