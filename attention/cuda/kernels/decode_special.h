// What decode does of special cases: masks, block-sparse visibility, kPagedX. Instances of the
// kernel of their own take them, so that others keep their registers. Device code: included by .cu
// files only.
//
// Every key of every query is tested (row_visibility.h). 16 keys that nobody sees are not
// multiplied, octets that the block-sparse rule hides from all are not even read. A key that only
// some queries see stays away from the others: its value is multiplied by a weight of 0, or, where
// that is an infinity or NaN, each query is added alone.
//
// Keys of kPagedX lie in shared memory in the lines that they have in the cache: per octet of keys
// and 16 bytes of a row, those of eight keys. Values lie by dimensions. Their tile is [kDim][16
// keys]: rows of two chunks, one per octet, that change places with every fourth dimension (16-bit
// elements), or one of 16 codes.

#ifndef KVBLOCKS_ATTENTION_CUDA_KERNELS_DECODE_SPECIAL_H_
#define KVBLOCKS_ATTENTION_CUDA_KERNELS_DECODE_SPECIAL_H_

#include "attention/cuda/device/gpu.h"
#include "attention/cuda/device/ptx.h"
#include "attention/cuda/kernels/cache_codes.h"
#include "attention/cuda/kernels/decode_items.h"
#include "attention/cuda/kernels/decode_state.h"
#include "attention/cuda/kernels/row_visibility.h"

namespace kvblocks::attention::cuda {

template <typename T, typename Code, int kDim>
class SpecialDecodeState : public DecodeState<T, Code, kDim, 1> {
 public:
  using Base = DecodeState<T, Code, kDim, 1>;
  using typename Base::Shape;
  using Base::kCodes;
  using Base::kSteps;

  KVB_DEVICE void LoadQueries(const DecodeKernelParams& p, const DecodeItem& item, int kv_head,
                              int row_group) {
    Base::LoadQueries(p, item, kv_head, row_group);
    const int t = static_cast<int>(threadIdx.x % 4);
#pragma unroll
    for (int e = 0; e < 2; ++e) {
      const int row = row_group * Shape::kRows + 2 * t + e, token = TokenOf(p, row);
      sees_[e] = {};
      const bool exists = token < item.q_len;
      if (exists) {
        const QueryRow query{item.request, token, item.q_len, item.length,
                             int64_t{item.position} + token};
        sees_[e] = SeesOf(p.scoring, p.group * p.num_kv_heads, p.num_kv_heads, query,
                          kv_head * p.group + row - token * p.group);
      }
      // Lanes 0 to 3 have all queries.
      existing_[e] = (__ballot_sync(kFullWarp, exists) & 0xf) * 0x11111111u;
      // Bytes that lie one after another are the whole rule, if there is no band.
      const MaskRule& mask = p.scoring.mask;
      const bool has_bytes = mask.bytes && mask.form != kMaskTemplate && mask.column_stride == 1 &&
                             mask.form != kMaskRaggedBits && mask.mode != 0 && mask.mode != 4 &&
                             p.scoring.block_sparse.vert_stride <= 1 && !sees_[e].has_bias &&
                             sees_[e].mask_row >= 0 && sees_[e].mask_row < mask.rows;
      bytes_[e] = nullptr;
      if (exists && has_bytes) {
        bytes_[e] = static_cast<const uint8_t*>(mask.data) + sees_[e].mask_base;
      }
      has_bytes_ = __all_sync(kFullWarp, !exists || has_bytes) != 0 && (e == 0 || has_bytes_);
    }
    tests_ = p.scoring.mask.form != kMaskNone || p.scoring.block_sparse.vert_stride > 1;
  }

  // What queries see of a warp's 16 keys from `first` on. Before one waits for the keys: masks are
  // read meanwhile.
  KVB_DEVICE void LookAt(const DecodeKernelParams& p, const DecodeItem& item, int first,
                         uint32_t missing) {
    const int g = static_cast<int>(threadIdx.x % 32) / 4;
    uint32_t flags = 0;
    // All that exist see all, but for what a mask hides.
    open_ = missing == 0 && first >= item.open_begin &&
            first + kDecodeWarpTile - 1 <= item.open_last &&
            (!tests_ || (has_bytes_ && first + kDecodeWarpTile <= p.scoring.mask.columns));
    if (open_) {
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        hides_[i] = 0;
        if (tests_ && bytes_[i % 2] != nullptr) hides_[i] = bytes_[i % 2][first + g + i / 2 * 8];
      }
      return;
    }
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      const RowSees& sees = sees_[i % 2];
      const int key = first + g + i / 2 * 8;
      float bias = 0;
      visible_[i] =
          key >= sees.lo && key < sees.hi && key < item.limit && (missing >> i / 2 & 1) == 0;
      if (visible_[i] && sees.needs_test) {
        visible_[i] = IsVisible(p.scoring, sees, 0, key, bias, flags);
      }
      bias_[i] = bias;
    }
    if (flags != 0 && p.error_flags != nullptr) atomicOr(p.error_flags, flags);
  }

  // Behind LookAt.
  KVB_DEVICE void Attend(const DecodeKernelParams& p, const DecodeItem& item, int row_group,
                         uint32_t at, int first, uint32_t missing) {
    // A bit per lane: of keys g and g + 8 (i / 2), queries 2t and 2t + 1 (i % 2).
    uint32_t seen[4];
    if (open_) {
      open_ = !__any_sync(kFullWarp, (hides_[0] | hides_[1] | hides_[2] | hides_[3]) != 0);
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        visible_[i] = hides_[i] == 0 && sees_[i % 2].lo < sees_[i % 2].hi;
        bias_[i] = 0;
      }
    }
    if (!open_) {
#pragma unroll
      for (int i = 0; i < 4; ++i) seen[i] = __ballot_sync(kFullWarp, visible_[i]);
      if ((seen[0] | seen[1] | seen[2] | seen[3]) == 0) return;
    }
    const int lane = static_cast<int>(threadIdx.x % 32), t = lane % 4;
    float s[1][4];
    if (p.is_paged_x) {
      const uint32_t row = at + lane % 16 / 8 * (Shape::kChunks * 128) + lane % 8 * 16;
      this->ScoresOf(s, [&](int chunk) { return row + (lane / 16 + chunk) * 128; });
    } else {
      this->Scores(at, s);
    }
#pragma unroll
    for (int i = 0; i < 4; ++i) s[0][i] *= this->factor[i % 2];
    this->Adjust(p, item, row_group, first, 0, false, s);
    if (!open_) {
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        s[0][i] = visible_[i] ? s[0][i] + bias_[i] * 1.4426950408889634f : -INFINITY;
      }
    }
    this->Weigh(s);
    uint32_t weights[1][2] = {
        {TransposeMatrix(T::Pack(s[0][0], s[0][1])), TransposeMatrix(T::Pack(s[0][2], s[0][3]))}};
    const bool by_fours = kCodes && p.is_paged_x;
    if (by_fours) {
      // To keys 4t, 4t + 1 and 4t + 2, 4t + 3, as a word of codes has them.
      const int from = lane / 4 * 4 + t % 2 * 2;
      const uint32_t low[2] = {__shfl_sync(kFullWarp, weights[0][0], from),
                               __shfl_sync(kFullWarp, weights[0][0], from + 1)};
      const uint32_t high[2] = {__shfl_sync(kFullWarp, weights[0][1], from),
                                __shfl_sync(kFullWarp, weights[0][1], from + 1)};
      weights[0][0] = t < 2 ? low[0] : high[0];
      weights[0][1] = t < 2 ? low[1] : high[1];
    }
    // Halves of words for the keys of the lane's fragments whose bits stand in four bits of `of`.
    const auto keep_of = [&](uint32_t of_low, uint32_t of_high, uint32_t (&keep)[2]) {
#pragma unroll
      for (int n = 0; n < 2; ++n) {
        const int key = by_fours ? 4 * t + 2 * n : 2 * t + 8 * n;
        const uint32_t bits = (key < 8 ? of_low : of_high) >> key % 8 * 4;
        keep[n] = ((bits & 0xf) != 0 ? 0xffffu : 0u) | ((bits & 0xf0) != 0 ? 0xffff0000u : 0u);
      }
    };
    uint32_t keep[2] = {0xffffffffu, 0xffffffffu};
    if (open_) return Add<false>(p.is_paged_x, at, weights, keep, 0);
    const uint32_t low = seen[0] | seen[1], high = seen[2] | seen[3];
    keep_of(low, high, keep);
    const bool is_mixed = IsMixed(low, seen[0], seen[1]) || IsMixed(high, seen[2], seen[3]);
    if (!is_mixed || !HasNonFinite(p.is_paged_x, at, keep)) {
      Add<false>(p.is_paged_x, at, weights, keep, 0);
      return;
    }
#pragma unroll 1
    for (int query = 0; query < 8; ++query) {
      const uint32_t bits = 0x11111111u << query / 2;
      const uint32_t of_low = query % 2 == 0 ? seen[0] : seen[1];
      const uint32_t of_high = query % 2 == 0 ? seen[2] : seen[3];
      keep_of(of_low & bits, of_high & bits, keep);
      Add<true>(p.is_paged_x, at, weights, keep, query / 2 == t ? 1u << query % 2 : 0u);
    }
  }

 private:
  // Whether some of eight keys are seen by one of the queries and not by all.
  KVB_DEVICE bool IsMixed(uint32_t any, uint32_t even, uint32_t odd) const {
    uint32_t not_all = (even ^ existing_[0]) | (odd ^ existing_[1]);
    any |= any >> 2, not_all |= not_all >> 2;
    any |= any >> 1, not_all |= not_all >> 1;
    return (any & not_all & 0x11111111u) != 0;
  }

  // Fragments of V^T, dimensions by keys, with what `keep` has bits of.
  template <typename Visit>
  KVB_DEVICE void VisitKept(bool is_paged_x, uint32_t at, const uint32_t (&keep)[2],
                            const Visit& visit) const {
    const auto visit_kept = [&](int step, uint32_t(&a)[4]) {
      a[0] &= keep[0], a[1] &= keep[0], a[2] &= keep[1], a[3] &= keep[1];
      visit(step, a);
    };
    if (!is_paged_x) {
      this->VisitValues(at, visit_kept);
      return;
    }
    const int lane = static_cast<int>(threadIdx.x % 32), row = lane % 8, matrix = lane / 8;
    const uint32_t values = at + Shape::kMatrixBytes;
    if constexpr (kCodes) {
#pragma unroll
      for (int step = 0; step < kSteps; step += 2) {
        uint32_t codes[4];
        LoadMatrices(codes, values + (16 * (step + matrix / 2) + 2 * row + matrix % 2) * 16);
#pragma unroll
        for (int half = 0; half < 2; ++half) {
          const CodePairs even = Code::Neighbours(codes[2 * half]);
          const CodePairs odd = Code::Neighbours(codes[2 * half + 1]);
          uint32_t a[4] = {even.first, odd.first, even.second, odd.second};
          visit_kept(step + half, a);
        }
      }
    } else {
#pragma unroll
      for (int step = 0; step < kSteps; ++step) {
        const int dim = 16 * step + matrix % 2 * 8 + row;
        uint32_t a[4];
        LoadMatrices(a, values + dim * 32 + ((matrix / 2 ^ dim / 4 % 2) << 4));
        visit_kept(step, a);
      }
    }
  }

  // By the whole warp.
  KVB_DEVICE bool HasNonFinite(bool is_paged_x, uint32_t at, const uint32_t (&keep)[2]) const {
    constexpr uint32_t kExponents = T::kIsBf16 ? 0x7f807f80u : 0x7c007c00u;
    constexpr uint32_t kLowest = T::kIsBf16 ? 0x00800080u : 0x04000400u;
    uint32_t carried = 0;  // of exponents of all ones, into signs
    VisitKept(is_paged_x, at, keep, [&](int, const uint32_t(&a)[4]) {
#pragma unroll
      for (int i = 0; i < 4; ++i) carried |= (a[i] & kExponents) + kLowest;
    });
    return __any_sync(kFullWarp, (carried & 0x80008000u) != 0) != 0;
  }

  template <bool kOwn>
  KVB_DEVICE void Add(bool is_paged_x, uint32_t at, const uint32_t (&weights)[1][2],
                      const uint32_t (&keep)[2], uint32_t own) {
    VisitKept(is_paged_x, at, keep, [&](int step, const uint32_t(&a)[4]) {
      Base::template AddProduct<kOwn>(this->o[step][0], a, weights[0], own);
    });
  }

  RowSees sees_[2];        // of queries 2t and 2t + 1
  const uint8_t* bytes_[2];  // what the mask has of them, if has_bytes_
  bool has_bytes_, tests_;
  // LookAt's: whether hides_ alone is to be looked at, which is 0 of what queries see; else
  // visible_ is, of Attend's `seen` this lane's.
  bool open_;
  uint8_t hides_[4];
  bool visible_[4];
  float bias_[4];         // the same keys'
  uint32_t existing_[2];  // as Attend's `seen`, of eight keys
};

}  // namespace kvblocks::attention::cuda

#endif  // KVBLOCKS_ATTENTION_CUDA_KERNELS_DECODE_SPECIAL_H_
