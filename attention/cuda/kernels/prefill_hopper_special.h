// What the wgmma prefill kernel does of special cases, in instances of their own: masks that hide
// and block-sparse visibility (Kind::kTested), and values of kPagedX. Device code.
//
// A tile of keys of a tested instance is two halves of 64 keys, each with a key that some row sees;
// halves that no row sees are left out, so that a tile's halves need not be neighbours. What
// intervals say gives the tiles that other instances have, and so the same bits. The producing
// warpgroup finds tiles: its thread n asks for row n, and leaves a bit per key that the row sees.

#ifndef KVBLOCKS_ATTENTION_CUDA_KERNELS_PREFILL_HOPPER_SPECIAL_H_
#define KVBLOCKS_ATTENTION_CUDA_KERNELS_PREFILL_HOPPER_SPECIAL_H_

#include "attention/cuda/device/gpu.h"
#include "attention/cuda/device/ptx.h"
#include "attention/cuda/kernels/fast_division.h"
#include "attention/cuda/kernels/prefill_rows.h"
#include "attention/cuda/kernels/prefill_special.h"
#include "attention/cuda/kernels/prefill_tile.h"
#include "attention/cuda/kernels/row_visibility.h"

namespace kvblocks::attention::cuda::prefill_hopper {

// --- Values of kPagedX ---
//
// They lie by dimensions, and so does their tile: per 16 keys a row of 32 bytes per dimension,
// whose two pieces change places by dimension / 4 % 2.

// The piece of eight keys, an octet of the tile, of a dimension.
template <int kDv>
KVB_DEVICE int PieceByDims(int dim, int octet) {
  return (octet / 2 * kDv + dim) * 32 + ((octet % 2 ^ dim / 4 % 2) << 4);
}

// As AddNonFinite, of the keys that in_low(key) and in_high(key) say the lane's two rows see;
// at(values, d, key): its two values of the d-th eight dimensions.
template <typename T, int kKeys, int kTiles, typename InLow, typename InHigh, typename At>
KVB_DEVICE void AddNonFiniteOf(const unsigned char* values, float (&out)[kTiles][4],
                               const InLow& in_low, const InHigh& in_high, const At& at) {
#pragma unroll 1
  for (int key = 0; key < kKeys; ++key) {
    const bool low = in_low(key), high = in_high(key);
#pragma unroll
    for (int d = 0; d < kTiles; ++d) {
      const uint32_t pair = at(values, d, key);
      const uint32_t special = NonFiniteHalves<T>(pair);
      if (special == 0) continue;
      const float2 both = T::Unpack(pair & special);
      if (low) out[d][0] += both.x, out[d][1] += both.y;
      if (high) out[d][2] += both.x, out[d][3] += both.y;
    }
  }
}
template <int kKeys>
KVB_DEVICE uint32_t AtKey(const unsigned char* values, int d, int key) {
  return *reinterpret_cast<const uint32_t*>(values + (d / 8 * kKeys + key) * 128 +
                                            ((d % 8 ^ (key & 7)) << 4) + threadIdx.x % 4 * 4);
}
template <int kDv>
KVB_DEVICE uint32_t AtKeyByDims(const unsigned char* values, int d, int key) {
  const int dim = 8 * d + static_cast<int>(threadIdx.x % 4 * 2);
  const auto at = [&](int n) {
    return uint32_t{*reinterpret_cast<const uint16_t*>(values + PieceByDims<kDv>(n, key / 8) +
                                                       key % 8 * 2)};
  };
  return at(dim) | at(dim + 1) << 16;
}

// --- Tiles that are tested ---

// Tiles found before consumers have left the one that is five steps before.
inline constexpr int kSeenSlots = 8;
inline constexpr int kProducersBarrier = 4;

struct SeenTile {
  uint32_t mixed[4];  // a bit per row that does not see all of the tile
  uint32_t is_last;   // of its row tile
  uint32_t unused[3];
  // For each producing warp alone, and for consumers: the first keys of the halves, -1 for none;
  // whether any row is mixed.
  struct {
    int32_t keys[2];
    uint32_t is_mixed, unused;
  } by_warp[4];
};

// What a row's bits are made of.
struct alignas(16) RowRule {
  RowSees sees;
  int32_t end;          // of what it sees
  int32_t local_block;  // block-sparse: from this block on it sees all,
  uint32_t offset;      // before where block + offset is a multiple of the stride
};

// In 32 bits, what the block-sparse rule divides by.
struct SparseDivisors {
  FastDivisor by_block, by_stride;

  // Blocks from `block` on to the next that a head sees.
  KVB_DEVICE uint32_t ToStride(uint32_t block, uint32_t offset) const {
    const uint32_t stride = by_stride.divisor();
    uint32_t past = block - by_stride.Quotient(block) * stride + offset;
    if (past >= stride) past -= stride;
    return past == 0 ? 0 : stride - past;
  }
};

// What both halves of the kernel know of the tiles of a step.
template <typename Shared>
struct SeenTiles {
  unsigned char* shared;

  KVB_DEVICE SeenTile& At(uint32_t step) const {
    return reinterpret_cast<SeenTile*>(shared + Shared::kSeenTiles)[step % kSeenSlots];
  }
  // By row, two words of 64 keys each.
  KVB_DEVICE uint64_t* Words(uint32_t step) const {
    return reinterpret_cast<uint64_t*>(shared + Shared::kSeenWords) +
           step % kSeenSlots * 2 * kPrefillRows;
  }
};

// By the producing warpgroup.
template <typename Shared>
class TileFinder {
 public:
  KVB_DEVICE TileFinder(const PrefillParams& params, const SparseDivisors& divisors,
                        unsigned char* shared, uint32_t* error_flags)
      : params_(params),
        divisors_(divisors),
        shared_(shared),
        error_flags_(error_flags),
        thread_(static_cast<int>(threadIdx.x)) {}

  KVB_DEVICE void Begin(const RowTile& tile) {
    const Scoring& scoring = params_.scoring;
    NamedBarrierSync(kProducersBarrier, kPrefillRows);  // nobody needs the last tile's
    if (thread_ < tile.num_rows) {
      RowRule& rule = RuleOf(thread_);
      rule.sees = SeesOfRow(params_, tile, thread_);
      rule.end = rule.sees.hi < tile.kv_len ? rule.sees.hi : tile.kv_len;
      const BlockSparseRule& sparse = scoring.block_sparse;
      if (IsSparse()) {
        rule.local_block = static_cast<int32_t>(FloorDiv(rule.sees.p, sparse.block_size) + 1 -
                                                sparse.local_blocks);
        const int64_t offset = rule.sees.sparse_offset % sparse.vert_stride;
        rule.offset = static_cast<uint32_t>(offset < 0 ? offset + sparse.vert_stride : offset);
      }
    }
    NamedBarrierSync(kProducersBarrier, kPrefillRows);
    next_ = tile.seen.begin / 64 * 64;
    bytes_ = thread_ < tile.num_rows ? BytesOf(RuleOf(thread_).sees) : nullptr;
    // Where rules, without the mask, show all keys to all rows. A mask's band is not among them.
    const MaskRule& mask = scoring.mask;
    open_ = tile.seen_by_all;
    if (open_.end > tile.seen.end) open_.end = tile.seen.end;
    if (mask.form != kMaskNone) {
      if (mask.mode == 0 || mask.mode == 4) open_.end = 0;
      if (open_.end > mask.columns) open_.end = static_cast<int32_t>(mask.columns);
    }
    if (IsSparse()) {
      const int64_t local = int64_t{RuleOf(tile.num_rows - 1).local_block} *
                            scoring.block_sparse.block_size;
      if (params_.query_positions != nullptr || local > open_.end) open_.end = 0;
      if (local > open_.begin) open_.begin = static_cast<int32_t>(local);
    }
  }

  // The next tile, for this step; false if there is none. A row tile has at least one, of which its
  // rows may see nothing.
  KVB_DEVICE bool Find(const RowTile& tile, uint32_t step, bool is_first) {
    const bool exists = thread_ < tile.num_rows;
    const int32_t end = tile.seen.end;
    int32_t keys[2] = {-1, -1};
    uint64_t words[2] = {0, 0};
    // Most tiles are open, and the warpgroup has little time.
    if (next_ >= open_.begin && next_ <= open_.end - 128 && !(is_first && next_ / 64 % 2 != 0) &&
        !AnyHides(exists)) {
      Publish(step, next_, next_ + 64, 0, 0);
      next_ += 128;
      return true;
    }
#pragma unroll 1
    for (int found = 0; found < 2;) {
      // Two at a time, for what is read of masks takes its time.
      int32_t asked[2];
      asked[0] = SkipHidden(tile, next_);
      if (asked[0] >= end) {
        next_ = end;
        if (found == 0 && !is_first) return false;
        break;
      }
      asked[1] = SkipHidden(tile, asked[0] + 64);
      if (found == 0 && asked[1] < end && !(is_first && asked[0] / 64 % 2 != 0) &&
          IsOnStride(tile, asked[0]) && IsOnStride(tile, asked[1])) {
        next_ = asked[1] + 64;
        Publish(step, asked[0], asked[1], 0, 0);
        return true;
      }
      uint64_t seen[2] = {0, 0};
      if (exists) WordsOf(RuleOf(thread_), asked, asked[1] < end, seen);
      const uint32_t any = AnyRow(seen[0] != 0, seen[1] != 0);
#pragma unroll
      for (int i = 0; i < 2; ++i) {
        if (found == 2) break;
        next_ = asked[i] + 64;
        if ((any >> i & 1) == 0) continue;
        // The first tile begins where that of an interval does.
        if (found == 1 || (is_first && asked[i] / 64 % 2 != 0)) {
          keys[1] = asked[i], words[1] = seen[i], found = 2;
        } else {
          keys[0] = asked[i], words[0] = seen[i], found = 1;
        }
      }
    }
    if (!exists) words[0] = words[1] = ~uint64_t{0};
    const SeenTiles<Shared> tiles{shared_};
    uint64_t* const to = tiles.Words(step) + 2 * thread_;
    to[0] = words[0], to[1] = words[1];
    const bool is_mixed = (words[0] & words[1]) != ~uint64_t{0};
    Publish(step, keys[0], keys[1], __ballot_sync(kFullWarp, is_mixed), AnyRow(is_mixed, false));
    return true;
  }

 private:
  KVB_DEVICE void Publish(uint32_t step, int32_t first, int32_t second, uint32_t mixed,
                          uint32_t any_mixed) const {
    if (thread_ % 32 == 0) {
      SeenTile& seen = SeenTiles<Shared>{shared_}.At(step);
      seen.mixed[thread_ / 32] = mixed;
      auto& own = seen.by_warp[thread_ / 32];
      own.keys[0] = first, own.keys[1] = second;
      own.is_mixed = any_mixed;
      if (thread_ == 0) seen.is_last = 0;
    }
    __syncwarp();
  }

  // Whether all rows see 64 keys by the block-sparse rule, whose heads are alike, and no mask is
  // to be asked. Found out by each warp alone; false where that would take longer.
  KVB_DEVICE bool IsOnStride(const RowTile& tile, int32_t key) const {
    if (key < tile.seen_by_all.begin || key > tile.seen_by_all.end - 64) return false;
    const Scoring& scoring = params_.scoring;
    if (!IsSparse() || scoring.mask.form != kMaskNone || params_.query_positions != nullptr ||
        scoring.block_sparse.head_sliding_step > 0) {
      return false;
    }
    const FastDivisor& by_block = divisors_.by_block;
    const uint32_t block = by_block.Quotient(static_cast<uint32_t>(key));
    return int64_t{block} >= RuleOf(tile.num_rows - 1).local_block ||
           (by_block.Quotient(static_cast<uint32_t>(key) + 63) == block &&
            divisors_.ToStride(block, RuleOf(0).offset) == 0);
  }
  // Whether the mask hides something of 128 keys from next_ on from some row, or may.
  KVB_DEVICE bool AnyHides(bool exists) {
    if (params_.scoring.mask.form == kMaskNone) return false;
    bool hides = exists;
    if (bytes_ != nullptr) {
      const auto* from = reinterpret_cast<const uint4*>(bytes_ + next_);
      uint4 read[8];
#pragma unroll
      for (int n = 0; n < 8; ++n) read[n] = from[n];
      // What comes in some steps is in L2 then.
      if (next_ + kAhead < open_.end) PrefetchToL2(bytes_ + next_ + kAhead);
      uint32_t any = 0;
#pragma unroll
      for (int n = 0; n < 8; ++n) any |= read[n].x | read[n].y | read[n].z | read[n].w;
      hides = any != 0;
    }
    return AnyRow(hides, false) != 0;
  }
  // Of a row, if they lie one after another and can be read by 16; else null.
  KVB_DEVICE const unsigned char* BytesOf(const RowSees& sees) const {
    const MaskRule& mask = params_.scoring.mask;
    if (!mask.bytes || mask.form == kMaskNone || mask.form == kMaskTemplate ||
        mask.form == kMaskRaggedBits || mask.column_stride != 1 || sees.mask_row < 0 ||
        sees.mask_row >= mask.rows) {
      return nullptr;
    }
    const auto* row = static_cast<const unsigned char*>(mask.data) + sees.mask_base;
    return reinterpret_cast<uintptr_t>(row) % 16 == 0 ? row : nullptr;
  }

  KVB_DEVICE bool IsSparse() const { return params_.scoring.block_sparse.vert_stride > 1; }
  KVB_DEVICE RowRule& RuleOf(int row) const {
    return reinterpret_cast<RowRule*>(shared_ + Shared::kRules)[row];
  }

  // A bit for each of two questions.
  KVB_DEVICE uint32_t AnyRow(bool first, bool second) {
    uint32_t* const by_warp =
        reinterpret_cast<uint32_t*>(shared_ + Shared::kAnySeen) + asked_++ % 2 * 4;
    const uint32_t any = (__any_sync(kFullWarp, first) != 0 ? 1u : 0u) |
                         (__any_sync(kFullWarp, second) != 0 ? 2u : 0u);
    if (thread_ % 32 == 0) by_warp[thread_ / 32] = any;
    NamedBarrierSync(kProducersBarrier, kPrefillRows);
    return by_warp[0] | by_warp[1] | by_warp[2] | by_warp[3];
  }

  // From 64 keys to the next that the block-sparse rule does not hide from all rows. Of all tokens
  // the earliest sees most; the first rows are those of all heads.
  KVB_DEVICE int32_t SkipHidden(const RowTile& tile, int32_t key) const {
    if (!IsSparse() || params_.query_positions != nullptr || key >= tile.seen.end) return key;
    const FastDivisor& by_block = divisors_.by_block;
    const int64_t block_size = by_block.divisor();
    const int64_t local = RuleOf(0).local_block;
    if (by_block.Quotient(static_cast<uint32_t>(key) + 63) >= local) return key;
    const uint32_t block = by_block.Quotient(static_cast<uint32_t>(key));
    int64_t least = local;
    // Heads of a group differ where the offset goes by query heads.
    const int rows = params_.scoring.block_sparse.head_sliding_step <= 0 ? 1
                     : tile.group < tile.num_rows                        ? tile.group
                                                                         : tile.num_rows;
    for (int row = 0; row < rows; ++row) {
      const int64_t seen = int64_t{block} + divisors_.ToStride(block, RuleOf(row).offset);
      if (seen < least) least = seen;
    }
    least = least * block_size / 64 * 64;
    if (least > tile.seen.end) return tile.seen.end;
    return least > key ? static_cast<int32_t>(least) : key;
  }

  KVB_DEVICE uint64_t SparseBits(const RowRule& rule, int32_t key0) const {
    const int64_t block_size = divisors_.by_block.divisor();
    uint32_t block = divisors_.by_block.Quotient(static_cast<uint32_t>(key0));
    uint64_t seen = 0;
    for (int64_t begin = key0; begin < int64_t{key0} + 64; ++block) {
      const int64_t end = (int64_t{block} + 1) * block_size;
      if (static_cast<int64_t>(block) >= rule.local_block ||
          divisors_.ToStride(block, rule.offset) == 0) {
        seen |= BitsBetween(begin - key0, end - key0);
      }
      begin = end;
    }
    return seen;
  }

  // Which of 64 keys each a row sees.
  KVB_DEVICE void WordsOf(const RowRule& rule, const int32_t (&keys)[2], bool has_second,
                          uint64_t (&words)[2]) const {
    const bool masked = params_.scoring.mask.form != kMaskNone;
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      if (i == 1 && !has_second) break;
      uint64_t bits = ~uint64_t{0};
      if (keys[i] < rule.sees.lo || keys[i] > rule.end - 64) {
        bits = BitsBetween(int64_t{rule.sees.lo} - keys[i], int64_t{rule.end} - keys[i]);
      }
      if (bits != 0 && IsSparse()) bits &= SparseBits(rule, keys[i]);
      if (bits != 0 && masked) bits = WithoutMasked(rule.sees, keys[i], bits);
      words[i] = bits;
    }
  }

  KVB_DEVICE uint64_t WithoutMasked(const RowSees& sees, int32_t key0, uint64_t bits) const {
    const MaskRule& mask = params_.scoring.mask;
    uint64_t hidden = 0;
    if (HiddenAtOnce(mask, sees, key0, hidden)) return bits & ~hidden;
    uint32_t flags = 0;
#pragma unroll 1
    for (int key = 0; key < 64; ++key) {
      if ((bits >> key & 1) != 0 &&
          MaskValueOf(mask, sees, 0, int64_t{key0} + key, flags) != 0) {
        bits &= ~(uint64_t{1} << key);
      }
    }
    if (flags != 0 && error_flags_ != nullptr) atomicOr(error_flags_, flags);
    return bits;
  }
  static constexpr int kAhead = 512;

  const PrefillParams& params_;
  const SparseDivisors& divisors_;
  unsigned char* const shared_;
  uint32_t* const error_flags_;
  const int thread_;
  int32_t next_ = 0;    // the key from which on tiles are not found yet
  KeyRange open_;
  const unsigned char* bytes_ = nullptr;  // this row's of the mask
  uint32_t asked_ = 0;  // halves
};

// -infinity for keys that bits do not have, or that `bad` has. words: of the warp's 16 rows, two
// each; bad: null for none.
KVB_DEVICE void HideByWords(float (&scores)[16][4], const uint64_t* words, const uint32_t* bad) {
  const int t2 = static_cast<int>(threadIdx.x % 4 * 2);
#pragma unroll
  for (int half = 0; half < 2; ++half) {
    const uint4 seen = reinterpret_cast<const uint4*>(words)[threadIdx.x % 32 / 4 + 8 * half];
    uint32_t bits[4] = {seen.x, seen.y, seen.z, seen.w};
#pragma unroll
    for (int n = 0; n < 4; ++n) {
      if (bad != nullptr) bits[n] &= ~bad[n];
      bits[n] >>= t2;
    }
#pragma unroll
    for (int j = 0; j < 16; ++j) {
#pragma unroll
      for (int i = 0; i < 2; ++i) {
        if ((bits[j / 4] & 1u << (j % 4 * 8 + i)) == 0) scores[j][2 * half + i] = -Infinity();
      }
    }
  }
}

}  // namespace kvblocks::attention::cuda::prefill_hopper

#endif  // KVBLOCKS_ATTENTION_CUDA_KERNELS_PREFILL_HOPPER_SPECIAL_H_
