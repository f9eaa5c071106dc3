// The decode kernel. Device code: included by paged_decode_*.cu, one per padded head size.
//
// A block of four warps does pieces of one KV head, tiles of 64 keys at a time, 16 by each warp. A
// warp copies its own keys, kStages tiles ahead and on into the next piece, and computes on nothing
// else: warps meet only at the end of a piece, when their four states are merged.
//
// Products are transposed, keys or head dimensions in the 16 rows of a matrix instruction and up to
// 8 * kGroups queries in its columns: S^T = K Q^T, then O^T += V^T P^T, P^T by two register
// transposes. A lane (g, t) of S^T holds keys g and g + 8 of queries 2t and 2t + 1. The maximum is
// moved only when a score exceeds it by 2^8, so most tiles need no exchange between lanes.
//
// Codes of 8 bits: a 16-byte piece of a row is 16 dimensions, and fragments come with dimensions
// permuted; queries are loaded with the same permutation, outputs written back by its inverse.

#ifndef KVBLOCKS_ATTENTION_CUDA_KERNELS_PAGED_DECODE_KERNEL_H_
#define KVBLOCKS_ATTENTION_CUDA_KERNELS_PAGED_DECODE_KERNEL_H_

#include "attention/cuda/device/gpu.h"
#include "attention/cuda/device/numbers.h"
#include "attention/cuda/device/ptx.h"
#include "attention/cuda/kernels/cache_codes.h"
#include "attention/cuda/kernels/decode_deal.h"
#include "attention/cuda/kernels/decode_lengths.h"
#include "attention/cuda/kernels/decode_plan.h"
#include "attention/cuda/kernels/params.h"

namespace kvblocks::attention::cuda {

// Strides of the cache in bytes, of others in elements.
struct DecodeKernelParams {
  const uint16_t* q;
  int64_t q_row_stride, q_head_stride;
  uint16_t* out;
  int64_t out_row_stride, out_head_stride;
  float* lse;
  int64_t lse_row_stride, lse_head_stride;
  const char *k, *v;
  int64_t k_block, k_token, k_head, v_block, v_token, v_head;
  const int32_t* block_table;
  int64_t table_stride;
  const int32_t *seq_lens, *query_start_loc;
  Scales k_scale, v_scale;
  const float *alibi_slopes, *sinks;
  // Plan, and states of cut requests: [slot][kv head][row group][row][dim], and maximum and sum.
  const int32_t *header, *part_begin;
  const int4* pieces;
  int32_t* counters;
  float* partials;
  float2* partial_stats;
  uint32_t* error_flags;
  float scale, soft_cap;
  int32_t max_keys, num_blocks, block_size, window;
  int32_t window_left, window_right;
  int32_t group, num_kv_heads, key_dim, value_dim, rows;  // rows: of a row group, for partials
  bool causal, q_is_bf16, out_is_bf16;
  // Launches without a plan (header is null): each block plans its own part of at most
  // kMaxOwnRequests requests. Arrivals are then counted in a row of arrival_counters.
  int32_t num_requests, arrival_row;
};

// Zero, and zero again after every launch. A row belongs to a workspace, which no two launches use at
// a time.
inline constexpr int kArrivalRows = 256, kArrivalCounters = 512;
namespace {
__device__ int32_t arrival_counters[kArrivalRows * kArrivalCounters];
}  // namespace

inline constexpr int kDecodeWarps = 4;
inline constexpr int kDecodeTile = 64;
inline constexpr int kDecodeWarpTile = 16;

// Blocks that run on a multiprocessor at a time. More of them where tiles are small: the same bytes
// under way, more warps to compute.
constexpr int DecodeBlocksPerMultiprocessor(int padded_dim, int element_bytes, int groups) {
  if (padded_dim * element_bytes <= 128 && groups == 1) return 3;
  return padded_dim * element_bytes <= 256 && padded_dim * groups <= 256 ? 2 : 1;
}

// Where things are in shared memory.
template <typename Code, int kDim, int kGroups>
struct DecodeShape {
  static constexpr int kChunks = kDim * Code::kBytes / 16;  // of a row, 16 bytes each
  static constexpr int kRowBytes = (kChunks + 1) * 16;      // an odd number of chunks: no conflicts
  static constexpr int kMatrixBytes = kDecodeWarpTile * kRowBytes;
  static constexpr int kTileBytes = kDecodeWarps * 2 * kMatrixBytes;
  static constexpr int kBlocksPerMultiprocessor =
      DecodeBlocksPerMultiprocessor(kDim, Code::kBytes, kGroups);
  static constexpr int kRows = 8 * kGroups;
  static constexpr int kMergeRow = 64 + 4;  // floats
  static constexpr int kMergeBytes = kDecodeWarps * 8 * kMergeRow * 4;
  static constexpr int kStatsBytes = kDecodeWarps * kRows * 8;
  static constexpr int kPiecesBytes = kMaxOwnRequests * 16;
  static constexpr int kSumsBytes = (kMaxOwnRequests + 4) * 4;
  static constexpr int kOtherBytes = kMergeBytes + kStatsBytes + kPiecesBytes + kSumsBytes + 16;
  // Of a multiprocessor's 228 KiB each block takes 1 more than it asks for.
  static constexpr int kRoom = 228 * 1024 / kBlocksPerMultiprocessor - 1024 - kOtherBytes;
  static constexpr int kFitting = kRoom / kTileBytes;
  static constexpr int kStages = kFitting > 6 ? 6 : kFitting;
  static constexpr int kSharedBytes = kStages * kTileBytes + kOtherBytes;
  static constexpr int kMaxMergedAtOnce = 64;
};

// A piece as a block of a row group works on it: keys [begin, end) hold all that its queries see.
struct DecodeItem {
  int request = 0;
  int begin = 0, end = 0;
  int limit = 0;        // keys from here on are other pieces'
  int length = 0;       // of the request
  int position = 0;     // of its first query
  int first_token = 0, last_token = -1;  // of the row group, among its queries
  int q_len = 0;
  int open_begin = 0, open_last = -1;  // keys that all of them see, both inclusive
  uint32_t cut = 0;
};

struct DecodeVisible {
  int begin, last;  // both inclusive
};

KVB_DEVICE DecodeVisible VisibleTo(const DecodeKernelParams& p, const DecodeItem& item, int token) {
  const int at = item.position + token;
  DecodeVisible visible;
  visible.begin = p.window_left >= 0 && at > p.window_left ? at - p.window_left : 0;
  int last = item.length - 1;
  if (p.causal && at < last) last = at;
  if (p.window_right >= 0 && int64_t{at} + p.window_right < last) last = at + p.window_right;
  visible.last = last;
  return visible;
}

// What a block does one after another.
struct DecodeWork {
  const int4* pieces;
  int tile;
  int at, end, step;
};

template <int kRows>
KVB_DEVICE DecodeItem OpenItem(const DecodeKernelParams& p, const DecodeWork& work, int row_group) {
  const int4 piece = work.pieces[work.at];
  DecodeItem item;
  item.request = piece.x;
  item.cut = static_cast<uint32_t>(piece.w);
  item.q_len = 1;
  if (p.query_start_loc != nullptr) {
    item.q_len = p.query_start_loc[piece.x + 1] - p.query_start_loc[piece.x];
  }
  const int seq_len = p.seq_lens[piece.x];
  item.length = item.q_len > 0 ? ClampLength(seq_len, p.max_keys) : 0;
  if (item.length < seq_len && item.q_len > 0 && p.error_flags != nullptr && threadIdx.x == 0) {
    atomicOr(p.error_flags, 1u << 6);  // kLengthClamped
  }
  const int first = FirstKey(item.length, item.q_len, p.window, p.block_size);
  const int64_t limit = first + int64_t{piece.z} * work.tile;
  item.limit = limit < item.length ? static_cast<int>(limit) : item.length;
  item.begin = first + piece.y * work.tile;
  item.position = item.length - item.q_len;
  item.first_token = row_group * kRows / p.group;
  const int last = (row_group * kRows + kRows - 1) / p.group;
  item.last_token = last < item.q_len ? last : item.q_len - 1;
  if (item.first_token > item.last_token) {
    item.end = item.begin;
    return item;
  }
  const DecodeVisible early = VisibleTo(p, item, item.first_token);
  const DecodeVisible late = VisibleTo(p, item, item.last_token);
  if ((early.begin & ~7) > item.begin) item.begin = early.begin & ~7;
  item.end = late.last + 1 < item.limit ? late.last + 1 : item.limit;
  item.open_begin = late.begin;
  item.open_last = early.last < item.limit ? early.last : item.limit - 1;
  return item;
}

// Copies a warp's keys, tile after tile, piece after piece.
template <typename Code, int kDim, int kRows>
class DecodeLoader {
 public:
  static constexpr int kChunks = kDim * Code::kBytes / 16;
  static constexpr int kRowBytes = (kChunks + 1) * 16;
  static constexpr int kMatrixBytes = kDecodeWarpTile * kRowBytes;
  static constexpr int kRowsPerPass = 32 / kChunks;
  static constexpr int kPasses = kDecodeWarpTile / kRowsPerPass;
  static_assert(kChunks <= 32 && kRowsPerPass <= 8);

  KVB_DEVICE DecodeLoader(const DecodeKernelParams& p, DecodeWork work, int kv_head, int row_group)
      : p_(p), work_(work), row_group_(row_group) {
    lane_ = static_cast<int>(threadIdx.x % 32);
    warp_ = static_cast<int>(threadIdx.x / 32);
    k_ = p.k + kv_head * p.k_head + lane_ % kChunks * 16;
    v_ = p.v + kv_head * p.v_head + lane_ % kChunks * 16;
    k_has_chunk_ = lane_ % kChunks * 16 < p.key_dim * Code::kBytes;
    v_has_chunk_ = lane_ % kChunks * 16 < p.value_dim * Code::kBytes;
  }

  // Starts copying the warp's part of the next tile to `to`, K, then V; nothing after the last one.
  // Returns which octets of keys have no block: bits 0 and 1.
  KVB_DEVICE uint32_t Next(uint32_t to) {
    while (key_ >= end_) {
      if (work_.at >= work_.end) return 0;
      const DecodeItem item = OpenItem<kRows>(p_, work_, row_group_);
      work_.at += work_.step;
      key_ = item.begin;
      end_ = item.end;
      lowest_ = item.first_token <= item.last_token
                    ? VisibleTo(p_, item, item.first_token).begin
                    : 0;
      request_ = item.request;
      held_ = 16;
    }
    if (held_ == 16) LookUp();
    const int first = key_ + warp_ * kDecodeWarpTile;
    const int id0 = __shfl_sync(kFullWarp, id_, 2 * held_);
    const int id1 = __shfl_sync(kFullWarp, id_, 2 * held_ + 1);
    const int offset0 = __shfl_sync(kFullWarp, offset_, 2 * held_);
    const int offset1 = __shfl_sync(kFullWarp, offset_, 2 * held_ + 1);
    ++held_;
    key_ += kDecodeTile;
    if (first >= end_) return 0;
    // Rows [begin, end) of the 16 are visible to some query.
    const int begin = lowest_ - first, end = end_ - first;
    Copy(to, k_, p_.k_block, p_.k_token, k_has_chunk_, id0, id1, offset0, offset1, begin, end);
    Copy(to + kMatrixBytes, v_, p_.v_block, p_.v_token, v_has_chunk_, id0, id1, offset0, offset1,
         begin, end);
    return (id0 < 0 ? 1u : 0u) | (id1 < 0 ? 2u : 0u);
  }

 private:
  // Finds the blocks of this warp's keys of the next 16 tiles: each lane those of 8 keys.
  KVB_DEVICE void LookUp() {
    held_ = 0;
    const int64_t first = int64_t{key_} + lane_ / 2 * kDecodeTile + warp_ * kDecodeWarpTile +
                          lane_ % 2 * 8;
    id_ = -1;
    offset_ = 0;
    if (first >= end_ || first + 8 <= lowest_) return;
    const int key = static_cast<int>(first);
    const int column = key / p_.block_size;
    const int id = p_.block_table[request_ * p_.table_stride + column];
    if (static_cast<uint32_t>(id) < static_cast<uint32_t>(p_.num_blocks)) {
      id_ = id;
      offset_ = key - column * p_.block_size;
    } else if (p_.error_flags != nullptr) {
      atomicOr(p_.error_flags, 1u << 1);  // kBadBlock
    }
  }

  KVB_DEVICE void Copy(uint32_t to, const char* base, int64_t block_stride, int64_t token_stride,
                       bool has_chunk, int id0, int id1, int offset0, int offset1, int begin,
                       int end) {
    const int row_in_pass = lane_ / kChunks;
    const uint32_t at = to + row_in_pass * kRowBytes + lane_ % kChunks * 16;
    const char* octets[2] = {
        base + (id0 < 0 ? 0 : id0 * block_stride + (offset0 + row_in_pass) * token_stride),
        base + (id1 < 0 ? 0 : id1 * block_stride + (offset1 + row_in_pass) * token_stride)};
    const bool whole = begin <= 0 && end >= kDecodeWarpTile && id0 >= 0 && id1 >= 0;
    if (whole) {
#pragma unroll
      for (int pass = 0; pass < kPasses; ++pass) {
        constexpr int kPassesPerOctet = 8 / kRowsPerPass;
        const char* from = octets[pass / kPassesPerOctet] +
                           pass % kPassesPerOctet * kRowsPerPass * token_stride;
        CopyAsync16(at + pass * kRowsPerPass * kRowBytes, from, has_chunk);
      }
      return;
    }
    // Nothing is read at addresses of rows that are not valid.
    const int from_row = id0 < 0 && begin < 8 ? 8 : begin, to_row = id1 < 0 && end > 8 ? 8 : end;
#pragma unroll
    for (int pass = 0; pass < kPasses; ++pass) {
      constexpr int kPassesPerOctet = 8 / kRowsPerPass;
      const int row = pass * kRowsPerPass + row_in_pass;
      const char* from =
          octets[pass / kPassesPerOctet] + pass % kPassesPerOctet * kRowsPerPass * token_stride;
      CopyAsync16(at + pass * kRowsPerPass * kRowBytes, from,
                  has_chunk && row >= from_row && row < to_row);
    }
  }

  const DecodeKernelParams& p_;
  DecodeWork work_;
  int row_group_;
  int lane_, warp_;
  const char *k_, *v_;
  bool k_has_chunk_, v_has_chunk_;
  int request_ = 0;
  int key_ = 0, end_ = 0, lowest_ = 0;
  int held_ = 16;  // tiles whose blocks are known and used up
  int id_ = -1, offset_ = 0;
};

KVB_DEVICE float SafeMaximum(float maximum) { return maximum == -INFINITY ? 0.0f : maximum; }

template <typename T, typename Code, int kDim, int kGroups>
class DecodeState {
 public:
  using Shape = DecodeShape<Code, kDim, kGroups>;
  static constexpr bool kCodes = Code::kBytes == 1;
  static constexpr int kSteps = kDim / 16;
  static constexpr float kLazy = 8;  // a power of two by which scores may exceed the maximum

  uint32_t q[kSteps][kGroups][2];
  float o[kSteps][kGroups][4];
  float maximum[2 * kGroups], sum[2 * kGroups];  // of queries 2t + e of each group; own keys only
  float factor[2 * kGroups];                     // of scores, base 2
  float slope[2 * kGroups];

  KVB_DEVICE void Begin(const DecodeKernelParams& p, const DecodeItem& item, int kv_head,
                        int row_group) {
    const int lane = static_cast<int>(threadIdx.x % 32), g = lane / 4, t = lane % 4;
    constexpr float kLog2E = 1.4426950408889634f;
    float scale = p.scale * kLog2E;
    if (p.k_scale.data != nullptr) {
      scale *= p.k_scale.data[item.request * p.k_scale.request_stride +
                              kv_head * p.k_scale.head_stride];
    }
    int64_t first_row = item.request;
    if (p.query_start_loc != nullptr) first_row = p.query_start_loc[item.request];
#pragma unroll
    for (int n = 0; n < kGroups; ++n) {
      const int row = row_group * Shape::kRows + 8 * n + g;
      const int token = row / p.group;
      const bool exists = token < item.q_len;
      const uint16_t* from = p.q;
      if (exists) {
        from += (first_row + token) * p.q_row_stride +
                (kv_head * p.group + row % p.group) * p.q_head_stride;
      }
#pragma unroll
      for (int step = 0; step < kSteps; ++step) {
#pragma unroll
        for (int half = 0; half < 2; ++half) {
          const int d = 16 * step + (kCodes ? 4 * t + 2 * half : 2 * t + 8 * half);
          q[step][n][half] = 0;
          if (exists && d < p.key_dim) {
            q[step][n][half] = *reinterpret_cast<const uint32_t*>(from + d);
          }
        }
      }
      float unit = 1;
      if constexpr (kCodes) {
        if (p.q_is_bf16) unit = ConvertQueries(n);
      }
#pragma unroll
      for (int e = 0; e < 2; ++e) {
        // The unit of query 2t + e is with the lanes that loaded it.
        factor[2 * n + e] = scale * __shfl_sync(kFullWarp, unit, 4 * (2 * t + e));
        const int own = row_group * Shape::kRows + 8 * n + 2 * t + e;
        slope[2 * n + e] = p.alibi_slopes == nullptr
                               ? 0.0f
                               : p.alibi_slopes[kv_head * p.group + own % p.group] * kLog2E;
        maximum[2 * n + e] = -INFINITY;
        sum[2 * n + e] = 0;
      }
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
    const int lane = static_cast<int>(threadIdx.x % 32), g = lane / 4, t = lane % 4;
    float s[kGroups][4];
    Scores(at, s);
#pragma unroll
    for (int n = 0; n < kGroups; ++n) {
#pragma unroll
      for (int i = 0; i < 4; ++i) s[n][i] *= factor[2 * n + i % 2];
    }
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
          const int token = (row_group * Shape::kRows + 8 * n + 2 * t + i % 2) / p.group;
          const int distance = first + g + i / 2 * 8 - (item.position + token);
          s[n][i] += slope[2 * n + i % 2] * static_cast<float>(distance);
        }
      }
    }
    const bool masked = missing != 0 || first < item.open_begin ||
                        first + kDecodeWarpTile - 1 > item.open_last;
    if (masked) {
#pragma unroll
      for (int n = 0; n < kGroups; ++n) {
#pragma unroll
        for (int i = 0; i < 4; ++i) {
          const int token = (row_group * Shape::kRows + 8 * n + 2 * t + i % 2) / p.group;
          const DecodeVisible visible = VisibleTo(p, item, token);
          const int key = first + g + i / 2 * 8;
          if (token >= item.q_len || key < visible.begin || key > visible.last ||
              key >= item.limit || (missing >> i / 2 & 1) != 0) {
            s[n][i] = -INFINITY;
          }
        }
      }
    }
    Weigh(s);
    uint32_t weights[kGroups][2];
#pragma unroll
    for (int n = 0; n < kGroups; ++n) {
      weights[n][0] = TransposeMatrix(T::Pack(s[n][0], s[n][1]));
      weights[n][1] = TransposeMatrix(T::Pack(s[n][2], s[n][3]));
    }
    if (masked && item.first_token != item.last_token) {
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
          if (row / p.group == token) own |= 1u << i;
        }
        AddValues<true>(at, weights, keep, own);
      }
    } else {
      const uint32_t keep[2] = {};
      AddValues<false>(at, weights, keep, 0);
    }
  }

 private:
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
    // Two sums, of even and odd steps: shorter chains of dependent products.
    float odd[kGroups][4];
#pragma unroll
    for (int n = 0; n < kGroups; ++n) {
#pragma unroll
      for (int i = 0; i < 4; ++i) s[n][i] = odd[n][i] = 0;
    }
    if constexpr (kCodes) {
      const uint32_t row = at + lane % 16 * Shape::kRowBytes + lane / 16 * 16;
#pragma unroll
      for (int step = 0; step < kSteps; step += 2) {
        uint32_t codes[4];
        LoadMatrices(codes, row + step * 16);
        const uint32_t even_a[4] = {
            Code::template Pair<0, 1>(codes[0]), Code::template Pair<0, 1>(codes[1]),
            Code::template Pair<2, 3>(codes[0]), Code::template Pair<2, 3>(codes[1])};
        const uint32_t odd_a[4] = {
            Code::template Pair<0, 1>(codes[2]), Code::template Pair<0, 1>(codes[3]),
            Code::template Pair<2, 3>(codes[2]), Code::template Pair<2, 3>(codes[3])};
#pragma unroll
        for (int n = 0; n < kGroups; ++n) {
          MultiplyM16N8K16<T>(s[n], even_a, q[step][n][0], q[step][n][1]);
          MultiplyM16N8K16<T>(odd[n], odd_a, q[step + 1][n][0], q[step + 1][n][1]);
        }
      }
    } else {
      const uint32_t row = at + lane % 16 * Shape::kRowBytes + lane / 16 * 16;
#pragma unroll
      for (int step = 0; step < kSteps; ++step) {
        uint32_t a[4];
        LoadMatrices(a, row + step * 32);
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
    if (__any_sync(kFullWarp, exceeds)) {
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

  // O^T += V^T P^T. With kMasked only keys of which `keep` has bits, for the queries of `own`.
  template <bool kMasked>
  KVB_DEVICE void AddValues(uint32_t at, const uint32_t (&weights)[kGroups][2],
                            const uint32_t (&keep)[2], uint32_t own) {
    const int lane = static_cast<int>(threadIdx.x % 32);
    const uint32_t values = at + Shape::kMatrixBytes;
    if constexpr (kCodes) {
      const uint32_t row = values + lane % 16 * Shape::kRowBytes + lane / 16 * 16;
#pragma unroll
      for (int step = 0; step < kSteps; step += 2) {
        uint32_t codes[4];
        LoadMatricesTransposed(codes, row + step * 16);
#pragma unroll
        for (int half = 0; half < 2; ++half) {
          uint32_t a[4] = {Code::template Pair<0, 2>(codes[2 * half]),
                           Code::template Pair<1, 3>(codes[2 * half]),
                           Code::template Pair<0, 2>(codes[2 * half + 1]),
                           Code::template Pair<1, 3>(codes[2 * half + 1])};
          if constexpr (kMasked) {
            a[0] &= keep[0], a[1] &= keep[0], a[2] &= keep[1], a[3] &= keep[1];
          }
#pragma unroll
          for (int n = 0; n < kGroups; ++n) {
            AddProduct<kMasked>(o[step + half][n], a, weights[n], own >> 2 * n);
          }
        }
      }
    } else {
      const uint32_t row =
          values + (lane % 8 + lane / 16 * 8) * Shape::kRowBytes + lane / 8 % 2 * 16;
#pragma unroll
      for (int step = 0; step < kSteps; ++step) {
        uint32_t a[4];
        LoadMatricesTransposed(a, row + step * 32);
        if constexpr (kMasked) {
          a[0] &= keep[0], a[1] &= keep[0], a[2] &= keep[1], a[3] &= keep[1];
        }
#pragma unroll
        for (int n = 0; n < kGroups; ++n) {
          AddProduct<kMasked>(o[step][n], a, weights[n], own >> 2 * n);
        }
      }
    }
  }
};

// The end of a row: four values of one query.
KVB_DEVICE void StoreOutput(const DecodeKernelParams& p, int64_t at, float4 value) {
  uint32_t* to = reinterpret_cast<uint32_t*>(p.out + at);
  if (p.out_is_bf16) {
    to[0] = Bf16::Pack(value.x, value.y);
    to[1] = Bf16::Pack(value.z, value.w);
  } else {
    to[0] = F16::Pack(value.x, value.y);
    to[1] = F16::Pack(value.z, value.w);
  }
}

// A finished query of a row group: where it is, and its output from values that weigh `sum`.
struct DecodeRow {
  bool exists;
  int head;
  int64_t token;
};
template <int kRows>
KVB_DEVICE DecodeRow RowOf(const DecodeKernelParams& p, const DecodeItem& item, int kv_head,
                           int row_group, int row) {
  const int all = row_group * kRows + row;
  DecodeRow result;
  result.exists = all / p.group < item.q_len;
  result.head = kv_head * p.group + all % p.group;
  result.token = (p.query_start_loc != nullptr ? p.query_start_loc[item.request] : item.request) +
                 all / p.group;
  return result;
}
KVB_DEVICE void FinishRow(const DecodeKernelParams& p, const DecodeRow& row, int d, float4 value,
                          float maximum, float sum) {
  constexpr float kLog2E = 1.4426950408889634f, kLn2 = 0.6931471805599453f;
  const bool empty = maximum == -INFINITY;
  if (d == 0 && p.lse != nullptr) {
    p.lse[row.token * p.lse_row_stride + row.head * p.lse_head_stride] =
        empty && sum == 0 ? -INFINITY : (maximum + log2f(sum)) * kLn2;
  }
  if (p.sinks != nullptr) sum += exp2f(p.sinks[row.head] * kLog2E - SafeMaximum(maximum));
  const float inverse = 1.0f / sum;
  value.x *= inverse, value.y *= inverse, value.z *= inverse, value.w *= inverse;
  if (empty && !(sum != sum)) value = make_float4(0, 0, 0, 0);
  StoreOutput(p, row.token * p.out_row_stride + row.head * p.out_head_stride + d, value);
}

// Where piece `index` of a cut request leaves its state. Auto: two slots per part, of the request
// that it goes on with and of the one that it begins.
KVB_DEVICE int64_t SlotOf(bool is_auto, int place, int own_index, int index) {
  const int at = place - own_index + index;
  return is_auto ? 2 * int64_t{at} + (index == 0 ? 1 : 0) : at;
}

// Merges the states of all pieces of a request, in order. `weights`: shared, kMaxMergedAtOnce * rows.
template <int kRows>
KVB_DEVICE void MergePieces(const DecodeKernelParams& p, const DecodeItem& item, bool is_auto,
                            int place, int kv_head, int row_group, int row_groups,
                            float2* weights) {
  constexpr int kAtOnce = 64;
  const int thread = static_cast<int>(threadIdx.x);
  const int count = static_cast<int>(item.cut >> 16), index = static_cast<int>(item.cut & 0xffff);
  const int columns = p.value_dim / 4, total = p.rows * columns;
  for (int base = 0; base < total; base += kDecodeWarps * 32) {
    const int row = (base + thread) / columns, d = (base + thread) % columns * 4;
    const bool active = base + thread < total;
    float maximum = -INFINITY, sum = 0;
    float4 value = make_float4(0, 0, 0, 0);
    for (int begin = 0; begin < count; begin += kAtOnce) {
      const int here = count - begin < kAtOnce ? count - begin : kAtOnce;
      __syncthreads();
      for (int i = thread; i < here * p.rows; i += kDecodeWarps * 32) {
        const int64_t slot = SlotOf(is_auto, place, index, begin + i / p.rows);
        weights[i] = LoadFromOthers8(
            p.partial_stats +
            ((slot * p.num_kv_heads + kv_head) * row_groups + row_group) * p.rows + i % p.rows);
      }
      __syncthreads();
      if (!active) continue;
      float moved = maximum;
      for (int i = 0; i < here; ++i) moved = fmaxf(moved, weights[i * p.rows + row].x);
      const float shrink = Exp2(maximum - SafeMaximum(moved));
      maximum = moved;
      sum *= shrink;
      value.x *= shrink, value.y *= shrink, value.z *= shrink, value.w *= shrink;
      for (int i = 0; i < here; i += 8) {
        float4 states[8];
#pragma unroll
        for (int j = 0; j < 8; ++j) {
          const int64_t slot =
              SlotOf(is_auto, place, index, begin + (i + j < here ? i + j : here - 1));
          states[j] = LoadFromOthers16(
              p.partials +
              (((slot * p.num_kv_heads + kv_head) * row_groups + row_group) * p.rows + row) *
                  p.value_dim +
              d);
        }
#pragma unroll
        for (int j = 0; j < 8; ++j) {
          if (i + j >= here) continue;
          const float2 stats = weights[(i + j) * p.rows + row];
          const float weight = Exp2(stats.x - SafeMaximum(maximum));
          sum += weight * stats.y;
          value.x += weight * states[j].x, value.y += weight * states[j].y;
          value.z += weight * states[j].z, value.w += weight * states[j].w;
        }
      }
    }
    if (!active) continue;
    const DecodeRow where = RowOf<kRows>(p, item, kv_head, row_group, row);
    if (where.exists) FinishRow(p, where, d, value, maximum, sum);
  }
}

template <typename T, typename Code, int kDim, int kGroups>
__global__ __launch_bounds__(kDecodeWarps * 32,
                             (DecodeShape<Code, kDim, kGroups>::kBlocksPerMultiprocessor)) void
PagedDecodeKernel(const __grid_constant__ DecodeKernelParams p) {
  using Shape = DecodeShape<Code, kDim, kGroups>;
  constexpr int kRows = Shape::kRows;
  const int thread = static_cast<int>(threadIdx.x);
  const int lane = thread % 32, warp = thread / 32, g = lane / 4, t = lane % 4;
  const int kv_head = static_cast<int>(blockIdx.y), row_group = static_cast<int>(blockIdx.z);
  const int row_groups = static_cast<int>(gridDim.z);
  const int part = static_cast<int>(blockIdx.x);
  unsigned char* shared = DynamicSharedMemory();
  float* merge = reinterpret_cast<float*>(shared + Shape::kStages * Shape::kTileBytes);
  float2* stats = reinterpret_cast<float2*>(shared + Shape::kStages * Shape::kTileBytes +
                                            Shape::kMergeBytes);
  // Also how many pieces there are, before the first.
  int* is_last = reinterpret_cast<int*>(stats + kDecodeWarps * kRows);

  WaitForPreviousKernel();
  AllowNextKernel();
  const bool plans_itself = p.header == nullptr;
  const bool is_auto = plans_itself || p.part_begin != nullptr;
  DecodeWork work;
  if (plans_itself) {
    int4* pieces = reinterpret_cast<int4*>(shared + Shape::kSharedBytes - Shape::kPiecesBytes);
    int32_t* sums = reinterpret_cast<int32_t*>(pieces) - Shape::kSumsBytes / 4;
    if (warp == 0) {
      int tiles = 0;
      if (lane < p.num_requests) {
        tiles = TilesOfRequest(p.seq_lens, p.query_start_loc, lane, p.max_keys, p.window,
                               p.block_size, kDecodeTile);
      }
      const int count = PlanOwnPart(p.num_requests, static_cast<int>(gridDim.x), part, tiles, sums,
                                    pieces);
      if (lane == 0) *is_last = count;
    }
    __syncthreads();
    work = {pieces, kDecodeTile, 0, *is_last, 1};
  } else if (is_auto) {
    work = {p.pieces, p.header[kPlanTile], p.part_begin[part], p.part_begin[part + 1], 1};
  } else {
    work = {p.pieces, p.header[kPlanTile], part, p.header[kPlanNumPieces],
            static_cast<int>(gridDim.x)};
  }
  if (work.at >= work.end) return;

  const uint32_t stages =
      SharedAddress(shared) + static_cast<uint32_t>(warp * 2 * Shape::kMatrixBytes);
  DecodeLoader<Code, kDim, kRows> loader(p, work, kv_head, row_group);
  uint32_t missing = 0;  // two bits per stage
#pragma unroll 1
  for (int stage = 0; stage < Shape::kStages; ++stage) {
    missing |= loader.Next(stages + stage * Shape::kTileBytes) << 2 * stage;
    CommitCopies();
  }
  int stage = 0;
  for (; work.at < work.end; work.at += work.step) {
    const DecodeItem item = OpenItem<kRows>(p, work, row_group);
    DecodeState<T, Code, kDim, kGroups> state;
    state.Begin(p, item, kv_head, row_group);
    for (int key = item.begin; key < item.end; key += kDecodeTile) {
      WaitCopies<Shape::kStages - 1>();
      __syncwarp();
      const uint32_t at = stages + static_cast<uint32_t>(stage * Shape::kTileBytes);
      const int first = key + warp * kDecodeWarpTile;
      if (first < item.end) {
        state.Attend(p, item, row_group, at, first, missing >> 2 * stage & 3);
      }
      __syncwarp();
      missing = (missing & ~(3u << 2 * stage)) | loader.Next(at) << 2 * stage;
      CommitCopies();
      if (++stage == Shape::kStages) stage = 0;
    }
    if (item.first_token > item.last_token) continue;

    // The four warps' states become one.
#pragma unroll
    for (int i = 0; i < 2 * kGroups; ++i) {
      state.sum[i] += __shfl_xor_sync(kFullWarp, state.sum[i], 4);
      state.sum[i] += __shfl_xor_sync(kFullWarp, state.sum[i], 8);
      state.sum[i] += __shfl_xor_sync(kFullWarp, state.sum[i], 16);
      if (g == 0) {
        stats[warp * kRows + i / 2 * 8 + 2 * t + i % 2] =
            make_float2(state.maximum[i], state.sum[i]);
      }
    }
    __syncthreads();
    float value_scale = 1;
    if (p.v_scale.data != nullptr) {
      value_scale = p.v_scale.data[item.request * p.v_scale.request_stride +
                                   kv_head * p.v_scale.head_stride];
    }
    const bool is_cut = item.cut >> 16 > 1;
    const int place = is_auto ? part : work.at;
    const int index = static_cast<int>(item.cut & 0xffff);
    const int64_t state_row =
        ((SlotOf(is_auto, place, index, index) * p.num_kv_heads + kv_head) * row_groups +
         row_group) * p.rows;
#pragma unroll
    for (int n = 0; n < kGroups; ++n) {
      float shrink[2];
#pragma unroll
      for (int e = 0; e < 2; ++e) {
        float maximum = -INFINITY;
#pragma unroll
        for (int w = 0; w < kDecodeWarps; ++w) {
          maximum = fmaxf(maximum, stats[w * kRows + 8 * n + 2 * t + e].x);
        }
        shrink[e] = Exp2(state.maximum[2 * n + e] - SafeMaximum(maximum)) * value_scale;
      }
      // The thread's query and its state.
      const int row = 8 * n + thread / 16;
      float maximum = -INFINITY, sum = 0;
#pragma unroll
      for (int w = 0; w < kDecodeWarps; ++w) {
        maximum = fmaxf(maximum, stats[w * kRows + row].x);
      }
#pragma unroll
      for (int w = 0; w < kDecodeWarps; ++w) {
        const float2 own = stats[w * kRows + row];
        sum += Exp2(own.x - SafeMaximum(maximum)) * own.y;
      }
      const DecodeRow where = RowOf<kRows>(p, item, kv_head, row_group, row);
#pragma unroll
      for (int quarter = 0; quarter < kDim / 64; ++quarter) {
#pragma unroll
        for (int i = 0; i < 4; ++i) {
          const float(&o)[4] = state.o[4 * quarter + i][n];
#pragma unroll
          for (int j = 0; j < 4; ++j) {
            // Dimensions of 8-bit codes come in pairs, even ones in the upper rows.
            const int d = 16 * i + (Code::kBytes == 1 ? 2 * g + j / 2 : g + j / 2 * 8);
            merge[(warp * 8 + 2 * t + j % 2) * Shape::kMergeRow + d] = o[j] * shrink[j % 2];
          }
        }
        __syncthreads();
        float4 value = make_float4(0, 0, 0, 0);
#pragma unroll
        for (int w = 0; w < kDecodeWarps; ++w) {
          const float4 part_of =
              *reinterpret_cast<const float4*>(merge + (w * 8 + thread / 16) * Shape::kMergeRow +
                                               thread % 16 * 4);
          value.x += part_of.x, value.y += part_of.y, value.z += part_of.z, value.w += part_of.w;
        }
        const int d = 64 * quarter + thread % 16 * 4;
        if (where.exists && d < p.value_dim) {
          if (!is_cut) {
            FinishRow(p, where, d, value, maximum, sum);
          } else {
            *reinterpret_cast<float4*>(p.partials + (state_row + row) * p.value_dim + d) = value;
            if (d == 0) p.partial_stats[state_row + row] = make_float2(maximum, sum);
          }
        }
        __syncthreads();
      }
    }
    if (!is_cut) continue;
    __threadfence();
    __syncthreads();
    if (thread == 0) {
      // Without a plan, of the part in which the request begins: no two begin cut in the same.
      const int row = plans_itself ? part - index : item.request;
      int32_t* counter =
          (plans_itself ? arrival_counters + p.arrival_row * kArrivalCounters : p.counters) +
          (int64_t{row} * p.num_kv_heads + kv_head) * row_groups + row_group;
      const int count = static_cast<int>(item.cut >> 16);
      *is_last = atomicAdd(counter, 1) == count - 1 ? 1 : 0;
      if (*is_last != 0) *counter = 0;
      __threadfence();
    }
    __syncthreads();
    if (*is_last != 0) {
      MergePieces<kRows>(p, item, is_auto, place, kv_head, row_group, row_groups,
                         reinterpret_cast<float2*>(merge));
    }
    __syncthreads();
  }
}

// Launches the instance for the element types; 1 (cudaErrorInvalidValue) for those not built.
struct DecodeLaunch {
  LaunchConfig config;  // all but block and shared memory
  DecodeKernelParams params;
  Element cache_element, q_element;
  int groups;
};

template <typename T, typename Code, int kDim>
Error LaunchDecodeGroups(const DecodeLaunch& launch) {
  LaunchConfig config = launch.config;
  config.block = dim3(kDecodeWarps * 32);
  if (launch.groups == 1) {
    config.shared_bytes = DecodeShape<Code, kDim, 1>::kSharedBytes;
    return Launch(config, PagedDecodeKernel<T, Code, kDim, 1>, launch.params);
  }
  if constexpr (kDim <= 128) {
    config.shared_bytes = DecodeShape<Code, kDim, 2>::kSharedBytes;
    return Launch(config, PagedDecodeKernel<T, Code, kDim, 2>, launch.params);
  }
  return 1;
}

template <int kDim>
Error LaunchDecodeOf(const DecodeLaunch& launch) {
  switch (launch.cache_element) {
    case Element::kBF16:
      return LaunchDecodeGroups<Bf16, SameType, kDim>(launch);
    case Element::kF16:
      return LaunchDecodeGroups<F16, SameType, kDim>(launch);
    case Element::kE4M3:
      return LaunchDecodeGroups<F16, E4m3Pairs, kDim>(launch);
    case Element::kE5M2:
      return LaunchDecodeGroups<F16, E5m2Pairs, kDim>(launch);
    case Element::kI8:
      return LaunchDecodeGroups<F16, Int8Pairs, kDim>(launch);
    default:
      return 1;
  }
}

Error LaunchDecode64(const DecodeLaunch& launch);
Error LaunchDecode128(const DecodeLaunch& launch);
Error LaunchDecode256(const DecodeLaunch& launch);

}  // namespace kvblocks::attention::cuda

#endif  // KVBLOCKS_ATTENTION_CUDA_KERNELS_PAGED_DECODE_KERNEL_H_
