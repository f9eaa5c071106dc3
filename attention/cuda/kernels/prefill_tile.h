// Device code that both prefill kernels share: which rows a block has, which keys they see, where
// keys are, what one row's softmax makes of its scores, and how rows are written.
//
// A tile is kRows rows of one request and one KV head; row r of the request is new token r / g and
// head r % g of the group. Tile numbers of request b start at query_start_loc[b] * g / kRows + b,
// which leaves room for all of its tiles whatever the lengths are, so that a block finds its request
// by search alone; numbers that no request needs exit at once.

#ifndef KVBLOCKS_ATTENTION_CUDA_KERNELS_PREFILL_TILE_H_
#define KVBLOCKS_ATTENTION_CUDA_KERNELS_PREFILL_TILE_H_

#include "attention/cuda/device/gpu.h"
#include "attention/cuda/device/numbers.h"
#include "attention/cuda/device/ptx.h"
#include "attention/cuda/kernels/prefill.h"

namespace kvblocks::attention::cuda {

// DeviceErrorBit.
inline constexpr uint32_t kBadBlockFlag = 1u << 1;
inline constexpr uint32_t kLengthClampedFlag = 1u << 6;

inline constexpr float kLog2E = 1.4426950408889634f;
inline constexpr float kLn2 = 0.6931471805599453f;
KVB_HOST_DEVICE float Infinity() { return __builtin_huge_valf(); }

// Keys [begin, end).
struct KeyRange {
  int32_t begin = 0, end = 0;
};

// What a query at position p sees of kv_len keys; both ends grow with p.
KVB_DEVICE KeyRange VisibleFrom(const Scoring& scoring, int32_t p, int32_t kv_len) {
  KeyRange keys{0, kv_len};
  const int32_t left = scoring.window_left, right = scoring.window_right;
  if (left >= 0 && left < p) keys.begin = p - left;
  if (scoring.chunk > 0 && p > 0) {
    const int32_t first = p / scoring.chunk * scoring.chunk;
    if (first > keys.begin) keys.begin = first;
  }
  if (right >= 0 && right < kv_len - 1 - p) keys.end = p + right + 1;
  if (scoring.causal && p < keys.end - 1) keys.end = p + 1;
  if (keys.end < 0) keys.end = 0;
  return keys;
}

struct RowTile {
  bool valid = false;
  int32_t request = 0;
  int32_t first_row = 0, num_rows = 0;  // of the request's rows
  int32_t query_start = 0;              // the request's first token
  int32_t first_position = 0;           // of that token
  int32_t kv_head = 0, group = 1;
  int32_t kv_len = 0;
  int64_t kv_start = 0;  // row of key 0, without a block table
  KeyRange seen;         // by some row
  KeyRange seen_by_all;  // may be empty with begin > end

  KVB_DEVICE int32_t TokenOf(int32_t row) const {
    return static_cast<int32_t>(static_cast<uint32_t>(first_row + row) /
                                static_cast<uint32_t>(group));
  }
  KVB_DEVICE int32_t HeadOf(int32_t row) const {
    return kv_head * group + static_cast<int32_t>(static_cast<uint32_t>(first_row + row) %
                                                  static_cast<uint32_t>(group));
  }
  KVB_DEVICE int32_t PositionOf(const PrefillParams& params, int32_t row) const {
    const int32_t token = TokenOf(row);
    return params.query_positions == nullptr ? first_position + token
                                             : params.query_positions[query_start + token];
  }
};

KVB_HOST_DEVICE int64_t FirstTileOf(int64_t query_start, int32_t request, int32_t group,
                                    int32_t rows) {
  return query_start * group / rows + request;
}

// Tile numbers that a launch needs, by bounds.
inline uint32_t NumRowTiles(const PrefillParams& params, int32_t rows) {
  const int64_t group = params.num_heads / params.num_kv_heads;
  int64_t tiles = params.num_tokens * group / rows + params.num_requests;
  // One request's numbers are all its own.
  if (params.num_requests == 1) tiles = (params.num_tokens * group + rows - 1) / rows;
  return static_cast<uint32_t>(tiles);
}

// By whole warps; all threads of the block get the same.
template <int kRows>
KVB_DEVICE RowTile FindRowTile(const PrefillParams& params, int32_t number, int32_t kv_head,
                               uint32_t* error_flags) {
  const int32_t lane = static_cast<int32_t>(threadIdx.x % 32);
  RowTile tile;
  tile.kv_head = kv_head;
  tile.group = params.num_heads / params.num_kv_heads;
  // The last request whose first number is not above `number`: 32 candidates at a time.
  int32_t low = 0, high = params.num_requests;
  while (high - low > 1) {
    const int32_t step = (high - low + 31) / 32;
    const int32_t candidate = low + lane * step;
    const bool reached =
        candidate < high && (candidate == low ||
                             FirstTileOf(params.query_start_loc[candidate], candidate, tile.group,
                                         kRows) <= number);
    low += (__popc(__ballot_sync(kFullWarp, reached)) - 1) * step;
    if (low + step < high) high = low + step;
  }
  tile.request = low;
  int32_t query_end = params.query_start_loc[low + 1];
  tile.query_start = params.query_start_loc[low];
  if (tile.query_start < 0) tile.query_start = 0;
  if (query_end > params.num_tokens) query_end = params.num_tokens;
  const int32_t q_len = query_end - tile.query_start;
  const int64_t before =
      (number - FirstTileOf(tile.query_start, low, tile.group, kRows)) * kRows;
  const int64_t rows = int64_t{q_len} * tile.group;
  if (before < 0 || before >= rows) return tile;
  tile.valid = true;
  tile.first_row = static_cast<int32_t>(before);
  tile.num_rows = static_cast<int32_t>(rows - before < kRows ? rows - before : kRows);

  if (params.keys.block_table != nullptr) {
    int64_t length = params.keys.seq_lens[low];
    const int64_t covered = int64_t{params.keys.table_columns} * params.keys.cache.block_size;
    if (length > covered) {
      length = covered;
      if (error_flags != nullptr && threadIdx.x == 0) atomicOr(error_flags, kLengthClampedFlag);
    }
    tile.kv_len = static_cast<int32_t>(length < 0 ? 0 : length);
  } else {
    int64_t begin = params.kv_start_loc[low], end = params.kv_start_loc[low + 1];
    if (begin < 0) begin = 0;
    if (end > params.num_key_rows) end = params.num_key_rows;
    tile.kv_start = begin;
    tile.kv_len = static_cast<int32_t>(end > begin ? end - begin : 0);
  }
  tile.first_position = tile.kv_len - q_len;

  const int32_t first = tile.TokenOf(0), last = tile.TokenOf(tile.num_rows - 1);
  int32_t lowest = tile.first_position + first, highest = tile.first_position + last;
  if (params.query_positions != nullptr) {
    lowest = 0x7fffffff, highest = -0x7fffffff;
    for (int32_t token = first + lane; token <= last; token += 32) {
      const int32_t p = params.query_positions[tile.query_start + token];
      if (p < lowest) lowest = p;
      if (p > highest) highest = p;
    }
    for (int lanes = 16; lanes > 0; lanes /= 2) {
      const int32_t other_low = __shfl_xor_sync(kFullWarp, lowest, lanes);
      const int32_t other_high = __shfl_xor_sync(kFullWarp, highest, lanes);
      if (other_low < lowest) lowest = other_low;
      if (other_high > highest) highest = other_high;
    }
  }
  const KeyRange of_lowest = VisibleFrom(params.scoring, lowest, tile.kv_len);
  const KeyRange of_highest = VisibleFrom(params.scoring, highest, tile.kv_len);
  tile.seen = {of_lowest.begin, of_highest.end};
  tile.seen_by_all = {of_highest.begin, of_lowest.end};
  return tile;
}

// --- Where keys are ---

// Byte offset of a key's row from the tensor's base (the head's included), or -1 for a key that must
// not be read.
struct KeyAddress {
  int64_t offset = -1;
  bool bad = false;  // its block id is none of the cache's
};

KVB_DEVICE int32_t BlockIdOf(const PrefillParams& params, const RowTile& tile, int32_t key) {
  if (params.keys.block_table == nullptr || key < tile.seen.begin || key >= tile.seen.end) return 0;
  return params.keys.block_table[tile.request * params.keys.table_stride +
                                 key / params.keys.cache.block_size];
}

template <int kElementBytes>
KVB_DEVICE KeyAddress AddressOf(const PrefillParams& params, const CacheTensor& tensor,
                                const RowTile& tile, int32_t key, int32_t block) {
  KeyAddress address;
  if (key < tile.seen.begin || key >= tile.seen.end) return address;
  int64_t element = tile.kv_head * tensor.head_stride;
  if (params.keys.block_table == nullptr) {
    element += (tile.kv_start + key) * tensor.token_stride;
  } else if (block < 0 || block >= params.keys.cache.num_blocks) {
    address.bad = true;
    return address;
  } else {
    element += block * tensor.block_stride +
               key % params.keys.cache.block_size * tensor.token_stride;
  }
  address.offset = element * kElementBytes;
  return address;
}

// --- Scores ---

// cap * tanh(s / cap), within 2e-7 * cap.
KVB_DEVICE float SoftCap(float s, float cap, float twice_log2e_per_cap) {
  const float e = Exp2(s * twice_log2e_per_cap);
  return cap - __fdividef(2 * cap, e + 1);
}

// Two elements of 16 bits: which of them are infinities or NaN, as a mask of their bits.
template <typename T>
KVB_DEVICE uint32_t NonFiniteHalves(uint32_t pair) {
  constexpr uint32_t kExponent = T::kIsBf16 ? 0x7f80u : 0x7c00u;
  uint32_t mask = 0;
  if ((pair & kExponent) == kExponent) mask |= 0xffffu;
  if ((pair >> 16 & kExponent) == kExponent) mask |= 0xffff0000u;
  return mask;
}

// --- Outputs ---

// How a row ends: its factor for the accumulated values, and its lse.
struct RowEnd {
  float factor = 0, lse = 0;
};
// maximum and sum of the row's exponentials, the maximum in units of which `log2_scale` makes
// binary logarithms.
KVB_DEVICE RowEnd EndRow(const PrefillParams& params, const RowTile& tile, int32_t row,
                         float maximum, float sum, float log2_scale) {
  RowEnd end;
  if (sum == 0) {
    end.lse = -Infinity();
    return end;  // nothing visible
  }
  const float maximum2 = maximum * log2_scale;
  end.lse = (maximum2 + log2f(sum)) * kLn2;
  float total = sum;
  if (params.scoring.sinks != nullptr) {
    total += exp2f(params.scoring.sinks[tile.HeadOf(row)] * kLog2E - maximum2);
  }
  end.factor = 1.0f / total;
  if (params.out_scale > 0) end.factor /= params.out_scale;
  return end;
}

// Two neighbouring values of a row, in its type.
template <typename T>
KVB_DEVICE void StorePair(const Rows& out, int64_t at, float low, float high) {
  if (out.element == Element::kE4M3 || out.element == Element::kE5M2) {
    const bool e4m3 = out.element == Element::kE4M3;
    const uint32_t first = e4m3 ? E4m3::FromFloat(low) : E5m2::FromFloat(low);
    const uint32_t second = e4m3 ? E4m3::FromFloat(high) : E5m2::FromFloat(high);
    *reinterpret_cast<uint16_t*>(static_cast<uint8_t*>(out.data) + at) =
        static_cast<uint16_t>(first | second << 8);
  } else {
    *reinterpret_cast<uint32_t*>(static_cast<uint16_t*>(out.data) + at) = T::Pack(low, high);
  }
}

}  // namespace kvblocks::attention::cuda

#endif  // KVBLOCKS_ATTENTION_CUDA_KERNELS_PREFILL_TILE_H_
