// What the kernels of multi-head latent attention share: which rows and keys a block has, where
// keys are, and codes of fp8 rows as 16-bit values. Device code.
//
// Rows (token, head) of one request are packed into tiles, so that a tile of keys is read once for
// all of them. Keys have virtual numbers: positions in a paged cache, or the entries of the main
// list and, from a multiple of the tile of keys on, those of the extra one.
//
// A key tile in shared memory: boxes of 64 elements; in a box a row of 128 bytes per key, its eight
// 16-byte pieces permuted by piece ^ key % 8. So matrix fragments are read without bank conflicts,
// and wgmma reads the boxes as they are, as K and as V.

#ifndef KVBLOCKS_ATTENTION_CUDA_KERNELS_MLA_TILE_H_
#define KVBLOCKS_ATTENTION_CUDA_KERNELS_MLA_TILE_H_

#include "attention/cuda/device/gpu.h"
#include "attention/cuda/device/numbers.h"
#include "attention/cuda/device/ptx.h"
#include "attention/cuda/kernels/attend_rows.h"
#include "attention/cuda/kernels/key_rows.h"
#include "attention/cuda/kernels/row_visibility.h"

namespace kvblocks::attention::cuda {

inline constexpr int kMlaBoxes = 9;       // of a key of 576 values; 8 of one of 512
inline constexpr int kMlaValueBoxes = 8;  // of the 512 that are the value, too
inline constexpr float kLog2E = 1.44269504088896341f, kLn2 = 0.693147180559945309f;

// Rows [m0, m0 + rows) of the packed rows of a request, and keys [begin, end) for them.
struct MlaWork {
  int request = 0;
  int first_row = 0;  // the request's first among all rows
  int q_len = 1, m0 = 0, rows = 0;
  int kv_len = 0;
  int main_used = 0, extra_from = 0;  // lists
  int begin = 0, end = 0;
  // Keys of [all_from, all_until) are visible to all rows or to none.
  int all_from = 0, all_until = 0;
};

struct VisibleKeys {
  int lo = 0, hi = 0;
};
// Of token i of the request.
KVB_DEVICE VisibleKeys VisibleOf(const AttendRowsParams& params, const MlaWork& work, int i) {
  VisibleKeys sees{0, work.kv_len};
  if (params.source == KeySource::kLists) return sees;
  const int64_t p = int64_t{work.kv_len} - work.q_len + i;
  const Scoring& scoring = params.scoring;
  if (scoring.causal) sees.hi = static_cast<int>(MinOf(sees.hi, MaxOf(0, p + 1)));
  if (scoring.window_right >= 0) {
    sees.hi = static_cast<int>(MinOf(sees.hi, MaxOf(0, p + scoring.window_right + 1)));
  }
  if (scoring.window_left >= 0) {
    sees.lo = static_cast<int>(MinOf(sees.hi, MaxOf(0, p - scoring.window_left)));
  }
  return sees;
}

KVB_DEVICE int64_t MlaOffset(const AttendRowsParams& params, int row, int64_t outer_stride,
                             int64_t row_stride) {
  return row / params.inner_rows * outer_stride + row % params.inner_rows * row_stride;
}

KVB_DEVICE int UsedOf(const SlotLists& lists, int outer) {
  if (lists.slots == nullptr) return 0;
  if (lists.lengths == nullptr) return lists.num_entries;
  return static_cast<int>(MaxOf(0, MinOf(lists.lengths[outer], lists.num_entries)));
}

// Finds the request whose tile of kRows rows this is; false if there is none. By whole warps. Rows
// that query_start_loc leaves out are a request without keys at the end.
template <int kRows>
KVB_DEVICE bool FindRows(const AttendRowsParams& params, int tile, MlaWork& work) {
  const int heads = params.num_heads;
  if (params.query_start_loc == nullptr) {
    const int per_row = (heads + kRows - 1) / kRows;
    work.request = work.first_row = tile / per_row;
    work.m0 = tile % per_row * kRows;
    work.rows = static_cast<int>(MinOf(kRows, heads - work.m0));
    return work.request < params.num_rows;
  }
  const int lane = static_cast<int>(threadIdx.x) % 32;
  const int requests = params.num_requests;
  int before = 0;
  for (int base = 0; base <= requests; base += 32) {
    const int b = base + lane;
    int first = 0, queries = 0;
    if (b <= requests) {
      const int end = b < requests ? params.query_start_loc[b + 1] : params.num_rows;
      first = static_cast<int>(MinOf(MaxOf(0, params.query_start_loc[b]), params.num_rows));
      queries = static_cast<int>(MaxOf(0, MinOf(end, params.num_rows) - first));
    }
    const int tiles = (queries * heads + kRows - 1) / kRows;
    int sum = tiles;  // of this lane and those below
#pragma unroll
    for (int lanes = 1; lanes < 32; lanes *= 2) {
      const int below = __shfl_up_sync(kFullWarp, sum, lanes);
      if (lane >= lanes) sum += below;
    }
    const unsigned past = __ballot_sync(kFullWarp, before + sum > tile);
    if (past != 0) {
      const int owner = __ffs(static_cast<int>(past)) - 1;
      work.request = base + owner;
      work.first_row = __shfl_sync(kFullWarp, first, owner);
      work.q_len = __shfl_sync(kFullWarp, queries, owner);
      work.m0 = (tile - before - __shfl_sync(kFullWarp, sum - tiles, owner)) * kRows;
      work.rows = static_cast<int>(MinOf(kRows, work.q_len * heads - work.m0));
      return true;
    }
    before += __shfl_sync(kFullWarp, sum, 31);
  }
  return false;
}

// Fills lengths and the keys of `piece`.
template <int kKeys>
KVB_DEVICE void FindKeys(const AttendRowsParams& params, int piece, MlaWork& work,
                         uint32_t& flags) {
  int block_size = kKeys;
  if (params.source == KeySource::kLists) {
    const int outer = work.first_row / params.inner_rows;
    work.main_used = UsedOf(params.main, outer);
    const int extra = UsedOf(params.extra, outer);
    work.extra_from = (work.main_used + kKeys - 1) / kKeys * kKeys;
    work.kv_len = extra > 0 ? work.extra_from + extra : work.main_used;
  } else if (work.request < params.num_requests) {
    block_size = params.keys.cache.block_size;
    int64_t length = params.keys.seq_lens[work.request];
    const int64_t covered = int64_t{params.keys.table_columns} * block_size;
    if (length < 0 || length > covered) {
      flags |= kLengthClamped;
      length = length < 0 ? 0 : covered;
    }
    work.kv_len = static_cast<int>(MinOf(length, INT32_MAX - 64));
  }
  const VisibleKeys first = VisibleOf(params, work, work.m0 / params.num_heads);
  const VisibleKeys last = VisibleOf(params, work, (work.m0 + work.rows - 1) / params.num_heads);
  work.begin = first.lo;
  work.end = last.hi;
  work.all_from = last.lo;
  work.all_until = first.hi;
  const Pieces& pieces = params.pieces;
  if (pieces.count <= 1) return;
  int64_t step = pieces.step;
  if (pieces.per_request > 0) {
    const int64_t blocks = (int64_t{work.kv_len} + block_size - 1) / block_size;
    step = (blocks + pieces.per_request - 1) / pieces.per_request * block_size;
  }
  work.begin = static_cast<int>(MinOf(MaxOf(work.begin, piece * step), work.end));
  if (piece + 1 < pieces.count) work.end = static_cast<int>(MinOf(work.end, (piece + 1) * step));
}

inline constexpr int kNoKey = INT32_MIN;

// What says where key j is: a block id or a slot, or kNoKey.
KVB_DEVICE int IndexOf(const AttendRowsParams& params, const MlaWork& work, int j) {
  if (j < work.begin || j >= work.end) return kNoKey;
  if (params.source == KeySource::kPaged) {
    return params.keys
        .block_table[work.request * params.keys.table_stride + j / params.keys.cache.block_size];
  }
  if (j < work.main_used) {
    return params.main
        .slots[MlaOffset(params, work.first_row, params.main.outer_stride, params.main.row_stride) +
               j];
  }
  if (j < work.extra_from) return kNoKey;
  return params.extra
      .slots[MlaOffset(params, work.first_row, params.extra.outer_stride, params.extra.row_stride) +
             j - work.extra_from];
}

// Where key j with this index is; no key: null, flagged if the index is impossible.
KVB_DEVICE KeyAddress AddressOf(const AttendRowsParams& params, const MlaWork& work, int j,
                                int index, uint32_t& flags) {
  KeyAddress none;
  if (index == kNoKey) return none;
  if (params.source == KeySource::kPaged) {
    const Cache& cache = params.keys.cache;
    if (index < 0 || index >= cache.num_blocks) {
      flags |= kBadBlock;
      return none;
    }
    return AddressOf(cache, index, j % cache.block_size, 0);
  }
  if (index < 0) return none;
  const bool extra = j >= work.extra_from;
  const Cache& cache = extra ? params.extra.cache : params.main.cache;
  const int block = index / cache.block_size;
  if (block >= cache.num_blocks) {
    flags |= kBadIndex;
    return none;
  }
  return AddressOf(cache, block, index - block * cache.block_size, 0);
}
KVB_DEVICE Layout LayoutOf(const AttendRowsParams& params, const MlaWork& work, int j) {
  if (params.source == KeySource::kPaged) return params.keys.cache.layout;
  return j >= work.extra_from ? params.extra.cache.layout : params.main.cache.layout;
}

// --- Tiles in shared memory ---

// Offset in bytes of a 16-byte piece of a key's row within a box.
KVB_DEVICE uint32_t PieceAt(int row, int piece) { return row * 128 + ((piece ^ (row & 7)) << 4); }

// Keeps the compiler from computing what follows from x once for all, for want of registers.
KVB_DEVICE void KeepInLoop(uint32_t& x) {
#ifndef KVBLOCKS_CUDA_EMULATION
  asm volatile("" : "+r"(x));
#endif
}

KVB_DEVICE void StoreShared16(unsigned char* at, const uint4& value) {
  *reinterpret_cast<uint4*>(at) = value;
}

// 8 codes times a scale.
template <typename T>
KVB_DEVICE uint4 DecodePiece(uint32_t first, uint32_t second, float scale) {
  const auto pair = [&](uint32_t codes) {
    const float2 values = E4m3PairToFloat(codes);
    return T::Pack(values.x * scale, values.y * scale);
  };
  return {pair(first & 0xffff), pair(first >> 16), pair(second & 0xffff), pair(second >> 16)};
}

// Starts copies of the packed rows of queries to boxes of kRows rows at `to`; zeros where there is
// nothing.
template <int kRows, int kThreads>
KVB_DEVICE void StageQueries(const AttendRowsParams& params, const MlaWork& work, int thread,
                             unsigned char* to) {
  constexpr int kPerRow = kThreads / kRows;
  const int r = thread / kPerRow;
  const int m = work.m0 + r;
  const int row = work.first_row + m / params.num_heads, head = m % params.num_heads;
  const unsigned char* latent = nullptr;
  const unsigned char* tail = nullptr;
  if (r < work.rows) {
    latent = static_cast<const unsigned char*>(params.q.data) +
             2 * (MlaOffset(params, row, params.q_outer_stride, params.q.row_stride) +
                  head * params.q.head_stride);
    tail = static_cast<const unsigned char*>(params.q_tail.data) +
           2 * (row * params.q_tail.row_stride + head * params.q_tail.head_stride);
  }
#pragma unroll 6
  for (int piece = thread % kPerRow; piece < kMlaBoxes * 8; piece += kPerRow) {
    const bool valid = latent != nullptr && piece * 8 < params.key_dim;
    const int past = piece * 8 - params.q_dim;
    CopyAsync16(SharedAddress(to) + piece / 8 * (kRows * 128) + PieceAt(r, piece % 8),
                !valid     ? params.q.data
                : past < 0 ? latent + piece * 16
                           : tail + past * 2,
                valid);
  }
  CommitCopies();
}

// --- Results ---

// What a row's state comes to: what its sums of values are multiplied by.
struct RowResult {
  float factor = 0, lse = -INFINITY;
};
KVB_DEVICE RowResult ResultOf(const Scoring& scoring, int head, float max, float sum) {
  RowResult result;
  if (sum == 0 && max == -INFINITY) return result;
  result.lse = max + logf(sum);
  float denominator = sum;
  if (scoring.sinks != nullptr) denominator *= 1 + expf(scoring.sinks[head] - result.lse);
  result.factor = 1 / denominator;
  return result;
}

// Where a packed row's output begins, in elements.
KVB_DEVICE int64_t OutAt(const AttendRowsParams& params, const MlaWork& work, int r, int piece) {
  const int m = work.m0 + r;
  const int row = work.first_row + m / params.num_heads, head = m % params.num_heads;
  const AttendOutput& output = params.output;
  return MlaOffset(params, row, output.out_outer_stride, output.out.row_stride) +
         head * output.out.head_stride + piece * output.out_piece_stride;
}
KVB_DEVICE void StoreOutPair(const Rows& out, int64_t at, float low, float high) {
  if (out.element == Element::kF32) {
    *reinterpret_cast<float2*>(static_cast<float*>(out.data) + at) = make_float2(low, high);
  } else {
    *reinterpret_cast<uint32_t*>(static_cast<uint16_t*>(out.data) + at) =
        out.element == Element::kF16 ? F16::Pack(low, high) : Bf16::Pack(low, high);
  }
}
KVB_DEVICE void StoreStatistics(const AttendRowsParams& params, const MlaWork& work, int r,
                                int piece, float max, float sum, float lse) {
  const int m = work.m0 + r;
  const int row = work.first_row + m / params.num_heads, head = m % params.num_heads;
  const auto store = [&](const RowStatistic& to, float value) {
    if (to.data == nullptr) return;
    to.data[MlaOffset(params, row, to.outer_stride, to.row_stride) + head * to.head_stride +
            piece * to.piece_stride] = value;
  };
  store(params.output.lse, lse);
  // A NaN among the scores is their maximum.
  store(params.output.max_logits, sum == sum || max == INFINITY ? max : sum);
}

// Whether a pair of 16-bit values has one that is not finite.
template <typename T>
KVB_DEVICE bool AnyNotFinite(uint32_t pair) {
  constexpr uint32_t kExponent = T::kIsBf16 ? 0x7f80u : 0x7c00u;
  return (pair & kExponent) == kExponent || (pair >> 16 & kExponent) == kExponent;
}

}  // namespace kvblocks::attention::cuda

#endif  // KVBLOCKS_ATTENTION_CUDA_KERNELS_MLA_TILE_H_
