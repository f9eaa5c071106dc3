// What the blocks of a decode work on: parameters of the kernel, shared memory, and pieces of
// requests with the keys that their queries see. Device code: included by .cu files only.

#ifndef KVBLOCKS_ATTENTION_CUDA_KERNELS_DECODE_ITEMS_H_
#define KVBLOCKS_ATTENTION_CUDA_KERNELS_DECODE_ITEMS_H_

#include <atomic>
#include <cstddef>
#include <cstdint>

#include "attention/cuda/device/gpu.h"
#include "attention/cuda/kernels/decode_partition.h"
#include "attention/cuda/kernels/params.h"
#include "kvblocks/device_types.h"

namespace kvblocks::attention::cuda {

// Which row of counters in device memory belongs to a workspace.
//
// Blocks that count each other's arrivals need words that are zero before the launch. Such words
// are kept in arrays of kArrivalRows rows and left as they were found; no two launches use a
// workspace at a time, so none use a row at a time. Thread-safe, O(1) as long as workspaces are
// few.

inline constexpr int kArrivalRows = 256;

// -1 if there are too many workspaces.
inline int ArrivalRowOf(const void* workspace) {
  static std::atomic<const void*> owners[kArrivalRows];
  constexpr size_t kAlignment = 256;
  const size_t hash =
      reinterpret_cast<uintptr_t>(workspace) / kAlignment * 0x9e3779b97f4a7c15u >> 32;
  for (size_t i = 0; i < kArrivalRows; ++i) {
    std::atomic<const void*>& owner = owners[(hash + i) % kArrivalRows];
    const void* seen = owner.load(std::memory_order_relaxed);
    if (seen == nullptr && owner.compare_exchange_strong(seen, workspace)) seen = workspace;
    if (seen == workspace) return static_cast<int>((hash + i) % kArrivalRows);
  }
  return -1;
}

// Strides of the cache in bytes, of others in elements.
struct DecodeKernelParams {
  // Fields that blocks read first are adjacent: parameters come in lines of a cache that is cold.
  const int32_t *seq_lens, *query_start_loc;
  const int32_t *header, *part_begin;  // of the plan
  // Launches without a plan (header is null): each block plans its own part of at most
  // kMaxOwnRequests requests. Arrivals are then counted in a row of arrival_counters.
  int32_t num_requests, arrival_row;
  const uint16_t* q;  // of Code::kQueriesToo bytes
  int64_t q_row_stride, q_head_stride;
  uint16_t* out;
  int64_t out_row_stride, out_head_stride;
  float* lse;
  int64_t lse_row_stride, lse_head_stride;
  const char *k, *v;
  int64_t k_token, k_head, v_token, v_head;
  // Strides of blocks and tokens in units (bytes), so that offsets of blocks fit 32 bits.
  uint32_t k_unit, k_block_units, k_token_units, v_unit, v_block_units, v_token_units;
  const int32_t* block_table;
  int64_t table_stride;
  Scales k_scale, v_scale, q_scale;
  const float *alibi_slopes, *sinks;
  // Plan, and states of cut requests: [slot][kv head][row group][row][dim], and maximum and sum.
  int64_t plan_bytes;
  const int4* pieces;
  int32_t* counters;
  float* partials;
  float2* partial_stats;
  uint32_t* error_flags;
  float scale, soft_cap;
  int32_t max_keys, num_blocks, block_size;
  KeyLimits limits;  // of the plan, which may know of none
  int32_t window_left, window_right;
  int32_t group, num_kv_heads, key_dim, value_dim, rows;  // rows: of a row group, for partials
  uint32_t group_inverse;                                 // see TokenOf
  int32_t block_shift;                                    // log2 of block_size, or -1
  bool causal, q_is_bf16, out_is_bf16;
  bool is_special;  // soft caps or ALiBi
  // A cluster of blocks for each request, KV head and row group: part n is block n % kDecodeCluster
  // of request n / kDecodeCluster's. Only without a plan.
  bool in_clusters;
  // Of local attention; 0: none. Whole blocks of keys, and at most one chunk ends among the queries
  // of a block.
  int32_t chunk;
  // For instances of special cases alone. Of kPagedX the units of tokens are those of eight.
  bool is_paged_x;
  Scoring scoring;
};

// Zero, and zero again after every launch. A row belongs to a workspace, which no two launches use
// at a time.
inline constexpr int kArrivalCounters = 512;
namespace {
__device__ int32_t arrival_counters[kArrivalRows * kArrivalCounters];
}  // namespace

inline constexpr int kDecodeWarps = 4;
inline constexpr int kDecodeTile = 64;
inline constexpr int kDecodeCluster = 8;  // blocks
inline constexpr int kDecodeWarpTile = 16;

// Blocks that run on a multiprocessor at a time. More of them where tiles are small: the same bytes
// under way, more warps to compute.
constexpr int DecodeBlocksPerMultiprocessor(int padded_dim, int element_bytes, int groups) {
  if (padded_dim <= 64 && groups == 1) return 3;
  return padded_dim * element_bytes <= 256 && padded_dim * groups <= 256 ? 2 : 1;
}

// Where things are in shared memory.
template <typename Code, int kDim, int kGroups>
struct DecodeShape {
  static constexpr int kChunks = kDim * Code::kBytes / 16;  // of a row, 16 bytes each
  static constexpr int kRowBytes = kChunks * 16;
  static constexpr int kMatrixBytes = kDecodeWarpTile * kRowBytes;
  static constexpr int kTileBytes = kDecodeWarps * 2 * kMatrixBytes;
  static constexpr int kBlocksPerMultiprocessor =
      DecodeBlocksPerMultiprocessor(kDim, Code::kBytes, kGroups);
  static constexpr int kRows = 8 * kGroups;
  // What is merged of the warps' states at a time: four values per thread.
  static constexpr int kChunkDims = kDim < 128 ? kDim : 128;
  static constexpr int kChunkRows = kDecodeWarps * 32 * 4 / kChunkDims;
  static constexpr int kMergeRow = kChunkDims + 4;  // floats
  static constexpr int kMergeBytes = kDecodeWarps * kChunkRows * kMergeRow * 4;
  static constexpr int kStatsBytes = kDecodeWarps * kRows * 8;
  static constexpr int kOtherBytes = kMergeBytes + kStatsBytes + 16 + kMaxOwnRequests * 20;
  // Of a multiprocessor's 228 KiB each block takes 1 more than it asks for.
  static constexpr int kRoom = 228 * 1024 / kBlocksPerMultiprocessor - 1024 - kOtherBytes;
  static constexpr int kFitting = kRoom / kTileBytes;
  // As many as were measured to be fastest; more of 16 KiB and more only take longer to fill.
  static constexpr int kMostStages = kTileBytes < 16 * 1024 ? 6 : kTileBytes <= 32 * 1024 ? 2 : 3;
  static constexpr int kStages = kFitting > kMostStages ? kMostStages : kFitting;
  static constexpr int kSharedBytes = kStages * kTileBytes + kOtherBytes;
  // States of a cut request that are on their way at a time; as many as registers are left.
  static constexpr int kMergedAtOnce = kBlocksPerMultiprocessor == 3 || kGroups == 2 ? 8 : 16;
};

// Where the first of a row's kChunks chunks of 16 bytes is; ChunkAt finds the others from there.
// Chunks change places by row, so that those of eight rows that are read at once share no bank.
// Rows are not padded for that: where a copied line of the cache straddles two lines of shared
// memory, the copy asks the L2 for half as many sectors again (docs/lab/decode.md).
template <int kChunks>
KVB_DEVICE uint32_t FirstChunk(int row) {
  const int turn = kChunks >= 8 ? row % 8 : row / 2 % 4;
  return static_cast<uint32_t>(row * kChunks * 16 + turn * 16);
}
// For an even index; for odd ones give `first` ^ 16 and the index before.
KVB_DEVICE uint32_t ChunkAt(uint32_t first, int index) {
  return (first ^ static_cast<uint32_t>(index % 8 * 16)) + static_cast<uint32_t>(index / 8 * 128);
}

// For conditions that rarely hold: what they guard is kept out of the loop's way.
KVB_DEVICE bool Unlikely(bool condition) { return __builtin_expect(condition, false); }

// The same for all lanes, and known to the compiler to be.
KVB_DEVICE int WarpOfBlock() {
  return __shfl_sync(kFullWarp, static_cast<int>(threadIdx.x / 32), 0);
}

// row / group by multiplication: exact where rows * group stay below 2^16.
KVB_HOST_DEVICE uint32_t GroupInverse(int group) {
  return 65535u / static_cast<uint32_t>(group) + 1;
}
KVB_DEVICE int TokenOf(const DecodeKernelParams& p, int row) {
  return static_cast<int>(static_cast<uint32_t>(row) * p.group_inverse >> 16);
}

// A piece as a block of a row group works on it: keys [begin, end) hold all that its queries see.
struct DecodeItem {
  int request = 0;
  int begin = 0, end = 0;
  int limit = 0;                         // keys from here on are other pieces'
  int length = 0;                        // of the request
  int position = 0;                      // of its first query
  int first_token = 0, last_token = -1;  // of the row group, among its queries
  int q_len = 0;
  int open_begin = 0, open_last = -1;  // keys that all of them see, both inclusive
  int turn = 0;                        // where the chunk of the last one begins; 0 without chunks
  uint32_t cut = 0;
};

struct DecodeVisible {
  int begin, last;  // both inclusive
};

KVB_DEVICE DecodeVisible VisibleTo(const DecodeKernelParams& p, const DecodeItem& item, int token) {
  const int at = item.position + token;
  DecodeVisible visible;
  visible.begin = p.window_left >= 0 && at > p.window_left ? at - p.window_left : 0;
  if (at >= item.turn && item.turn > visible.begin) visible.begin = item.turn;
  int last = item.length - 1;
  if (p.causal && at < last) last = at;
  if (p.window_right >= 0 && int64_t{at} + p.window_right < last) last = at + p.window_right;
  visible.last = last;
  return visible;
}

// What a block does one after another. Pieces, and lengths of all requests, are in shared memory
// where the block has planned itself.
struct DecodeWork {
  const int4* pieces;
  const int32_t* lengths;
  int tile;
  int at, end, step;
};

// Of the piece at work.at. With kReports a length that had to be clamped is flagged.
template <int kRows, bool kReports>
KVB_DEVICE DecodeItem OpenItem(const DecodeKernelParams& p, const DecodeWork& work, int row_group) {
  const int4 piece = work.pieces[work.at];
  DecodeItem item;
  item.request = piece.x;
  item.cut = static_cast<uint32_t>(piece.w);
  item.q_len = 1;
  if (p.query_start_loc != nullptr) {
    item.q_len = p.query_start_loc[piece.x + 1] - p.query_start_loc[piece.x];
  }
  const int seq_len = work.lengths[piece.x];
  item.length = item.q_len > 0 ? ClampLength(seq_len, p.max_keys) : 0;
  if (kReports && item.length < seq_len && item.q_len > 0 && p.error_flags != nullptr &&
      threadIdx.x == 0) {
    atomicOr(p.error_flags, kLengthClamped);
  }
  const int first = FirstKey(item.length, item.q_len, p.limits, p.block_size);
  const int64_t limit = first + int64_t{piece.z} * work.tile;
  item.limit = limit < item.length ? static_cast<int>(limit) : item.length;
  item.begin = first + piece.y * work.tile;
  item.position = item.length - item.q_len;
  item.first_token = TokenOf(p, row_group * kRows);
  const int last = TokenOf(p, row_group * kRows + kRows - 1);
  item.last_token = last < item.q_len ? last : item.q_len - 1;
  if (item.first_token > item.last_token) {
    item.end = item.begin;
    return item;
  }
  int chunk_begin = 0;
  if (p.chunk > 0) {
    const auto chunk_of = [&](int token) {
      const int at = item.position + token;
      return at > 0 ? at / p.chunk * p.chunk : 0;
    };
    chunk_begin = chunk_of(item.first_token);
    item.turn = chunk_of(item.last_token);
  }
  const DecodeVisible early = VisibleTo(p, item, item.first_token);
  const DecodeVisible late = VisibleTo(p, item, item.last_token);
  if ((early.begin & ~7) > item.begin) item.begin = early.begin & ~7;
  if (chunk_begin > item.begin) item.begin = chunk_begin;
  item.end = late.last + 1 < item.limit ? late.last + 1 : item.limit;
  item.open_begin = late.begin;
  item.open_last = early.last < item.limit ? early.last : item.limit - 1;
  return item;
}

// What exponents are taken from: no maximum yet counts as 0.
KVB_DEVICE float SafeMaximum(float maximum) { return maximum == -INFINITY ? 0.0f : maximum; }

}  // namespace kvblocks::attention::cuda

#endif  // KVBLOCKS_ATTENTION_CUDA_KERNELS_DECODE_ITEMS_H_
