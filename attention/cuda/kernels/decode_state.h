// DecodeState: the queries of a block in registers, and scores, weights and sums of one warp's
// keys. Device code: included by .cu files only.
//
// Products are transposed, keys or head dimensions in the 16 rows of a matrix instruction and up to
// 8 * kGroups queries in its columns: S^T = K Q^T, then O^T += V^T P^T, P^T by two register
// transposes. A lane (g, t) of S^T holds keys g and g + 8 of queries 2t and 2t + 1. The maximum is
// moved only when a score exceeds it by 8 powers of two, so most tiles need no exchange between
// lanes.
//
// Codes of 8 bits: a 16-byte piece of a row is 16 dimensions, and fragments come with dimensions
// permuted; queries are loaded with the same permutation, outputs written back by its inverse.

#ifndef KVBLOCKS_ATTENTION_CUDA_KERNELS_DECODE_STATE_H_
#define KVBLOCKS_ATTENTION_CUDA_KERNELS_DECODE_STATE_H_

#include <type_traits>

#include "attention/cuda/device/gpu.h"
#include "attention/cuda/device/numbers.h"
#include "attention/cuda/device/ptx.h"
#include "attention/cuda/kernels/cache_codes.h"
#include "attention/cuda/kernels/decode_items.h"

namespace kvblocks::attention::cuda {

template <typename T, typename Code, int kDim, int kGroups>
class DecodeState {
 public:
  using Shape = DecodeShape<Code, kDim, kGroups>;
  static constexpr bool kCodes = Code::kBytes == 1;
  using Query = std::conditional_t<Code::kQueriesToo, unsigned char, uint16_t>;
  static constexpr int kSteps = kDim / 16;
  static constexpr float kLazy = 8;  // a power of two by which scores may exceed the maximum

  uint32_t q[kSteps][kGroups][2];
  float o[kSteps][kGroups][4];
  float maximum[2 * kGroups], sum[2 * kGroups];  // of queries 2t + e of each group; own keys only
  float factor[2 * kGroups];                     // of scores, base 2
  float slope[2 * kGroups];

  KVB_DEVICE void LoadQueries(const DecodeKernelParams& p, const DecodeItem& item, int kv_head,
                              int row_group) {
    const int lane = static_cast<int>(threadIdx.x % 32), g = lane / 4, t = lane % 4;
    constexpr float kLog2E = 1.4426950408889634f;
    float scale = p.scale * kLog2E;
    if (p.k_scale.data != nullptr) {
      scale *=
          p.k_scale.data[item.request * p.k_scale.request_stride + kv_head * p.k_scale.head_stride];
    }
    if constexpr (Code::kQueriesToo) {
      if (p.q_scale.data != nullptr) scale *= p.q_scale.data[kv_head * p.q_scale.head_stride];
    }
    int64_t first_row = item.request;
    if (p.query_start_loc != nullptr) first_row = p.query_start_loc[item.request];
#pragma unroll
    for (int n = 0; n < kGroups; ++n) {
      const int row = row_group * Shape::kRows + 8 * n + g;
      const int token = TokenOf(p, row);
      const bool exists = token < item.q_len;
      const auto* from = reinterpret_cast<const Query*>(p.q);
      if (exists) {
        from += (first_row + token) * p.q_row_stride +
                (kv_head * p.group + row - token * p.group) * p.q_head_stride;
      }
#pragma unroll
      for (int step = 0; step < kSteps; ++step) {
        if constexpr (Code::kQueriesToo) {
          // As f16, exactly, in the order in which those of keys come.
          const int d = 16 * step + 4 * t;
          uint32_t codes = 0;
          if (exists && d < p.key_dim) codes = *reinterpret_cast<const uint32_t*>(from + d);
          const CodePairs pairs = Code::Neighbours(codes);
          q[step][n][0] = pairs.first;
          q[step][n][1] = pairs.second;
        } else {
#pragma unroll
          for (int half = 0; half < 2; ++half) {
            const int d = 16 * step + (kCodes ? 4 * t + 2 * half : 2 * t + 8 * half);
            q[step][n][half] = 0;
            if (exists && d < p.key_dim) {
              q[step][n][half] = *reinterpret_cast<const uint32_t*>(from + d);
            }
          }
        }
      }
      float unit = 1;
      if constexpr (kCodes && !Code::kQueriesToo) {
        if (p.q_is_bf16) unit = ConvertQueries(n);
      }
#pragma unroll
      for (int e = 0; e < 2; ++e) {
        // The unit of query 2t + e is with the lanes that loaded it.
        factor[2 * n + e] = scale * __shfl_sync(kFullWarp, unit, 4 * (2 * t + e));
        const int own = row_group * Shape::kRows + 8 * n + 2 * t + e;
        slope[2 * n + e] =
            p.alibi_slopes == nullptr
                ? 0.0f
                : p.alibi_slopes[kv_head * p.group + own - TokenOf(p, own) * p.group] * kLog2E;
      }
    }
  }

  KVB_DEVICE void Clear() {
#pragma unroll
    for (int i = 0; i < 2 * kGroups; ++i) {
      maximum[i] = -INFINITY;
      sum[i] = 0;
    }
#pragma unroll
    for (int step = 0; step < kSteps; ++step) {
#pragma unroll
      for (int n = 0; n < kGroups; ++n) {
#pragma unroll
        for (int i = 0; i < 4; ++i) o[step][n][i] = 0;
      }
    }
  }

  // A warp's 16 keys from `first` on, at `at` in shared memory.
  KVB_DEVICE void Attend(const DecodeKernelParams& p, const DecodeItem& item, int row_group,
                         uint32_t at, int first, uint32_t missing) {
    const int lane = static_cast<int>(threadIdx.x % 32), t = lane % 4;
    float s[kGroups][4];
    Scores(at, s);
#pragma unroll
    for (int n = 0; n < kGroups; ++n) {
#pragma unroll
      for (int i = 0; i < 4; ++i) s[n][i] *= factor[2 * n + i % 2];
    }
    const bool masked =
        missing != 0 || first < item.open_begin || first + kDecodeWarpTile - 1 > item.open_last;
    if (Unlikely(masked || p.is_special)) Adjust(p, item, row_group, first, missing, masked, s);
    Weigh(s);
    uint32_t weights[kGroups][2];
#pragma unroll
    for (int n = 0; n < kGroups; ++n) {
      weights[n][0] = TransposeMatrix(T::Pack(s[n][0], s[n][1]));
      weights[n][1] = TransposeMatrix(T::Pack(s[n][2], s[n][3]));
    }
    if (Unlikely(masked && item.first_token != item.last_token)) {
      // A hidden value may be NaN, and 0 * NaN is: each token alone, with what it sees.
      for (int token = item.first_token; token <= item.last_token; ++token) {
        const DecodeVisible visible = VisibleTo(p, item, token);
        uint32_t keep[2];
#pragma unroll
        for (int half = 0; half < 2; ++half) {
          const int key = first + 2 * t + 8 * half;
          keep[half] = (key >= visible.begin && key <= visible.last ? 0xffffu : 0u) |
                       (key + 1 >= visible.begin && key + 1 <= visible.last ? 0xffff0000u : 0u);
        }
        uint32_t own = 0;
#pragma unroll
        for (int i = 0; i < 2 * kGroups; ++i) {
          const int row = row_group * Shape::kRows + i / 2 * 8 + 2 * t + i % 2;
          if (TokenOf(p, row) == token) own |= 1u << i;
        }
        AddValues<true>(at, weights, keep, own);
      }
    } else {
      const uint32_t keep[2] = {};
      AddValues<false>(at, weights, keep, 0);
    }
  }

 protected:
  // What few scores need: soft caps, ALiBi, keys that not all queries see.
  KVB_DEVICE void Adjust(const DecodeKernelParams& p, const DecodeItem& item, int row_group,
                         int first, uint32_t missing, bool masked, float (&s)[kGroups][4]) const {
    const int lane = static_cast<int>(threadIdx.x % 32), g = lane / 4, t = lane % 4;
    if (p.soft_cap > 0) {
      const float cap = p.soft_cap * 1.4426950408889634f;
#pragma unroll
      for (int n = 0; n < kGroups; ++n) {
#pragma unroll
        for (int i = 0; i < 4; ++i) s[n][i] = cap * tanhf(s[n][i] / cap);
      }
    }
    if (p.alibi_slopes != nullptr) {
#pragma unroll
      for (int n = 0; n < kGroups; ++n) {
#pragma unroll
        for (int i = 0; i < 4; ++i) {
          const int token = TokenOf(p, row_group * Shape::kRows + 8 * n + 2 * t + i % 2);
          const int distance = first + g + i / 2 * 8 - (item.position + token);
          s[n][i] += slope[2 * n + i % 2] * static_cast<float>(distance);
        }
      }
    }
    if (masked) {
#pragma unroll
      for (int n = 0; n < kGroups; ++n) {
#pragma unroll
        for (int i = 0; i < 4; ++i) {
          const int token = TokenOf(p, row_group * Shape::kRows + 8 * n + 2 * t + i % 2);
          const DecodeVisible visible = VisibleTo(p, item, token);
          const int key = first + g + i / 2 * 8;
          if (token >= item.q_len || key < visible.begin || key > visible.last ||
              key >= item.limit || (missing >> i / 2 & 1) != 0) {
            s[n][i] = -INFINITY;
          }
        }
      }
    }
  }

  // bf16 to f16 by a power of two that brings the largest to 2^14; returns its inverse.
  KVB_DEVICE float ConvertQueries(int n) {
    float largest = 0;
#pragma unroll
    for (int step = 0; step < kSteps; ++step) {
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        const float2 pair = Bf16::Unpack(q[step][n][half]);
        largest = fmaxf(largest, fmaxf(fabsf(pair.x), fabsf(pair.y)));
      }
    }
    largest = fmaxf(largest, __shfl_xor_sync(kFullWarp, largest, 1));
    largest = fmaxf(largest, __shfl_xor_sync(kFullWarp, largest, 2));
    // Exponents of both powers stay those of normal numbers.
    int exponent = static_cast<int>(__float_as_uint(largest) >> 23) - 127 - 14;
    if (exponent < -120) exponent = -120;
    if (largest == 0 || exponent > 113) exponent = 0;  // infinite
    const float up = __uint_as_float(static_cast<uint32_t>(127 - exponent) << 23);
#pragma unroll
    for (int step = 0; step < kSteps; ++step) {
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        const float2 pair = Bf16::Unpack(q[step][n][half]);
        q[step][n][half] = F16::Pack(pair.x * up, pair.y * up);
      }
    }
    return __uint_as_float(static_cast<uint32_t>(127 + exponent) << 23);
  }

  KVB_DEVICE void Scores(uint32_t at, float (&s)[kGroups][4]) const {
    const int lane = static_cast<int>(threadIdx.x % 32);
    const uint32_t row = at + (FirstChunk<Shape::kChunks>(lane % 16) ^ lane / 16 * 16);
    ScoresOf(s, [&](int chunk) { return ChunkAt(row, chunk); });
  }
  // chunk_at(n), n even: where the lane's row has chunk n, in the upper half of lanes n + 1.
  template <typename ChunkAtOf>
  KVB_DEVICE void ScoresOf(float (&s)[kGroups][4], const ChunkAtOf& chunk_at) const {
    // Two sums, of even and odd steps: shorter chains of dependent products.
    float odd[kGroups][4];
#pragma unroll
    for (int n = 0; n < kGroups; ++n) {
#pragma unroll
      for (int i = 0; i < 4; ++i) s[n][i] = odd[n][i] = 0;
    }
    if constexpr (kCodes) {
#pragma unroll
      for (int step = 0; step < kSteps; step += 2) {
        uint32_t codes[4];
        LoadMatrices(codes, chunk_at(step));
        CodePairs pairs[4];
#pragma unroll
        for (int i = 0; i < 4; ++i) pairs[i] = Code::Neighbours(codes[i]);
        const uint32_t even_a[4] = {pairs[0].first, pairs[1].first, pairs[0].second,
                                    pairs[1].second};
        const uint32_t odd_a[4] = {pairs[2].first, pairs[3].first, pairs[2].second,
                                   pairs[3].second};
#pragma unroll
        for (int n = 0; n < kGroups; ++n) {
          MultiplyM16N8K16<T>(s[n], even_a, q[step][n][0], q[step][n][1]);
          MultiplyM16N8K16<T>(odd[n], odd_a, q[step + 1][n][0], q[step + 1][n][1]);
        }
      }
    } else {
#pragma unroll
      for (int step = 0; step < kSteps; ++step) {
        uint32_t a[4];
        LoadMatrices(a, chunk_at(2 * step));
#pragma unroll
        for (int n = 0; n < kGroups; ++n) {
          MultiplyM16N8K16<T>(step % 2 == 0 ? s[n] : odd[n], a, q[step][n][0], q[step][n][1]);
        }
      }
    }
#pragma unroll
    for (int n = 0; n < kGroups; ++n) {
#pragma unroll
      for (int i = 0; i < 4; ++i) s[n][i] += odd[n][i];
    }
  }

  // Scores to weights; moves the maximum where it must.
  KVB_DEVICE void Weigh(float (&s)[kGroups][4]) {
    bool exceeds = false;
#pragma unroll
    for (int n = 0; n < kGroups; ++n) {
#pragma unroll
      for (int i = 0; i < 4; ++i) exceeds |= s[n][i] > maximum[2 * n + i % 2] + kLazy;
    }
    if (Unlikely(__any_sync(kFullWarp, exceeds))) {
#pragma unroll
      for (int n = 0; n < kGroups; ++n) {
#pragma unroll
        for (int e = 0; e < 2; ++e) {
          float largest = fmaxf(s[n][e], s[n][2 + e]);
          largest = fmaxf(largest, __shfl_xor_sync(kFullWarp, largest, 4));
          largest = fmaxf(largest, __shfl_xor_sync(kFullWarp, largest, 8));
          largest = fmaxf(largest, __shfl_xor_sync(kFullWarp, largest, 16));
          float& own = maximum[2 * n + e];
          const float moved = fmaxf(own, largest);
          const float shrink = Exp2(own - SafeMaximum(moved));
          own = moved;
          sum[2 * n + e] *= shrink;
#pragma unroll
          for (int step = 0; step < kSteps; ++step) {
            o[step][n][e] *= shrink;
            o[step][n][2 + e] *= shrink;
          }
        }
      }
    }
#pragma unroll
    for (int n = 0; n < kGroups; ++n) {
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        s[n][i] = Exp2(s[n][i] - SafeMaximum(maximum[2 * n + i % 2]));
        sum[2 * n + i % 2] += s[n][i];
      }
    }
  }

  template <bool kMasked>
  static KVB_DEVICE void AddProduct(float (&to)[4], const uint32_t (&a)[4],
                                    const uint32_t (&weights)[2], uint32_t own) {
    if constexpr (kMasked) {
      float product[4] = {0, 0, 0, 0};
      MultiplyM16N8K16<T>(product, a, weights[0], weights[1]);
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        if ((own >> i % 2 & 1) != 0) to[i] += product[i];
      }
    } else {
      MultiplyM16N8K16<T>(to, a, weights[0], weights[1]);
    }
  }

  // Calls visit(step, a) with the fragments of V^T, 16 dimensions by 16 keys each.
  template <typename Visit>
  KVB_DEVICE void VisitValues(uint32_t at, const Visit& visit) const {
    const int lane = static_cast<int>(threadIdx.x % 32);
    const uint32_t values = at + Shape::kMatrixBytes;
    if constexpr (kCodes) {
      const uint32_t row = values + (FirstChunk<Shape::kChunks>(lane % 16) ^ lane / 16 * 16);
#pragma unroll
      for (int step = 0; step < kSteps; step += 2) {
        uint32_t codes[4];
        LoadMatricesTransposed(codes, ChunkAt(row, step));
#pragma unroll
        for (int half = 0; half < 2; ++half) {
          const CodePairs low = Code::EveryOther(codes[2 * half]);
          const CodePairs high = Code::EveryOther(codes[2 * half + 1]);
          uint32_t a[4] = {low.first, low.second, high.first, high.second};
          visit(step + half, a);
        }
      }
    } else {
      const uint32_t row =
          values + (FirstChunk<Shape::kChunks>(lane % 8 + lane / 16 * 8) ^ lane / 8 % 2 * 16);
#pragma unroll
      for (int step = 0; step < kSteps; ++step) {
        uint32_t a[4];
        LoadMatricesTransposed(a, ChunkAt(row, 2 * step));
        visit(step, a);
      }
    }
  }

  // O^T += V^T P^T. With kMasked only keys of which `keep` has bits, for the queries of `own`.
  template <bool kMasked>
  KVB_DEVICE void AddValues(uint32_t at, const uint32_t (&weights)[kGroups][2],
                            const uint32_t (&keep)[2], uint32_t own) {
    VisitValues(at, [&](int step, uint32_t(&a)[4]) {
      if constexpr (kMasked) {
        a[0] &= keep[0], a[1] &= keep[0], a[2] &= keep[1], a[3] &= keep[1];
      }
#pragma unroll
      for (int n = 0; n < kGroups; ++n) {
        AddProduct<kMasked>(o[step][n], a, weights[n], own >> 2 * n);
      }
    });
  }
};

}  // namespace kvblocks::attention::cuda

#endif  // KVBLOCKS_ATTENTION_CUDA_KERNELS_DECODE_STATE_H_
