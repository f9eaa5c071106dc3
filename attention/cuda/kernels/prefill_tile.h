// Device code that both prefill kernels share: which rows a block has, which keys they see, and
// where keys are.
//
// A row tile is kRows rows of one request and one KV head; row r of the request is new token r / g
// and head r % g of the group. A launch has work items by bounds alone (TileOrder), and a block
// finds what an item is from query_start_loc; items that no request needs are found out at once.

#ifndef KVBLOCKS_ATTENTION_CUDA_KERNELS_PREFILL_TILE_H_
#define KVBLOCKS_ATTENTION_CUDA_KERNELS_PREFILL_TILE_H_

#include "attention/cuda/device/gpu.h"
#include "attention/cuda/device/numbers.h"
#include "attention/cuda/device/ptx.h"
#include "attention/cuda/kernels/fast_division.h"
#include "attention/cuda/kernels/prefill.h"
#include "kvblocks/device_types.h"

namespace kvblocks::attention::cuda {

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
  int32_t piece = 0;                    // of the keys
  int32_t first_row = 0, num_rows = 0;  // of the request's rows
  int32_t query_start = 0;              // the request's first token
  int32_t first_position = 0;           // of that token
  int32_t kv_head = 0, group = 1;
  FastDivisor by_group, by_block_size;
  int32_t kv_len = 0;
  int64_t kv_start = 0;            // row of key 0, without a block table
  float k_scale = 1, v_scale = 1;  // of codes; k_scale with that of queries
  KeyRange seen;                   // by some row, of this piece
  KeyRange seen_by_all;            // may be empty with begin > end

  KVB_DEVICE int32_t TokenOf(int32_t row) const {
    return static_cast<int32_t>(by_group.Quotient(static_cast<uint32_t>(first_row + row)));
  }
  KVB_DEVICE int32_t HeadOf(int32_t row) const {
    return kv_head * group + first_row + row - TokenOf(row) * group;
  }
  KVB_DEVICE int32_t PositionOf(const PrefillParams& params, int32_t row) const {
    const int32_t token = TokenOf(row);
    return params.query_positions == nullptr ? first_position + token
                                             : params.query_positions[query_start + token];
  }
};

// How items are numbered. Later rows of a request see more keys and come first. Items are ordered
// so that what runs at a time reads few keys' K and V, which then stay in L2: groups of pairs of
// request and KV head, in a group by rank from the request's end, then by pair. Groups go there and
// back, so that lengths do not jump, and the last one ends with the shortest. Where lengths may
// differ widely that would leave most items empty: there, tile numbers of request b start at
// query_start_loc[b] * g / kRows + b, which leaves room for all of its tiles, requests are found by
// search, and groups are of KV heads.
struct TileOrder {
  bool by_rank = false;
  int32_t numbers = 0;  // ranks, or tile numbers
  int32_t pairs = 0, pairs_per_group = 1;
  int32_t pieces = 1;  // of a row tile: items side by side
  int64_t items = 0;
  // What the device divides by, so that no instructions are spent on it; groups of pairs, of which
  // the last may have fewer.
  int32_t last_group = 0;
  FastDivisor by_pieces, by_items_of_group, by_pairs, by_pairs_of_last, by_kv_heads;
  FastDivisor by_group, by_block_size;
};

// Pieces of keys begin at multiples of so many: all kernels' tiles of keys end there.
inline constexpr int32_t kPieceKeys = 128;
// Query rows of a row tile, in all kernels.
inline constexpr int kPrefillRows = 128;

inline TileOrder OrderTiles(const PrefillParams& params, int32_t rows) {
  constexpr int64_t kBytesInL2 = int64_t{32} << 20;
  const int64_t group = params.num_heads / params.num_kv_heads;
  const int64_t longest = params.num_requests == 1 || params.max_query_len == 0
                              ? params.num_tokens
                              : params.max_query_len;
  const int64_t ranks = (longest * group + rows - 1) / rows;
  const int64_t numbers = params.num_tokens * group / rows + params.num_requests;
  TileOrder order;
  order.by_rank = ranks * params.num_requests <= numbers + numbers / 4;
  order.numbers = static_cast<int32_t>(order.by_rank ? ranks : numbers);
  order.pairs = params.num_kv_heads * (order.by_rank ? params.num_requests : 1);
  const int64_t bytes = params.max_seq_len * (params.key_dim + params.value_dim) * 2;
  const int64_t fit = bytes > 0 ? kBytesInL2 / bytes : order.pairs;
  order.pairs_per_group = static_cast<int32_t>(fit < 1 ? 1 : fit > order.pairs ? order.pairs : fit);
  order.pieces = params.pieces.count;
  order.items = int64_t{order.numbers} * order.pairs * order.pieces;
  order.last_group = (order.pairs - 1) / order.pairs_per_group;
  order.by_pieces = FastDivisor(order.pieces);
  order.by_items_of_group = FastDivisor(int64_t{order.numbers} * order.pairs_per_group);
  order.by_pairs = FastDivisor(order.pairs_per_group);
  order.by_pairs_of_last = FastDivisor(order.pairs - order.last_group * order.pairs_per_group);
  order.by_kv_heads = FastDivisor(params.num_kv_heads);
  order.by_group = FastDivisor(group);
  order.by_block_size = FastDivisor(params.keys.cache.block_size);
  return order;
}

// A piece of a range of keys: may be empty.
KVB_DEVICE KeyRange PieceOf(const KeyRange& keys, int32_t piece, const FastDivisor& by_pieces) {
  if (keys.end <= keys.begin) return {0, 0};
  const int32_t first = keys.begin / kPieceKeys * kPieceKeys;
  const int32_t tiles = (keys.end - first + kPieceKeys - 1) / kPieceKeys;
  // 2^24 tiles at most, and few pieces.
  const auto tiles_before = [&](int32_t n) {
    return static_cast<int32_t>(by_pieces.Quotient(static_cast<uint32_t>(tiles * n)));
  };
  const int32_t before = tiles_before(piece), after = tiles_before(piece + 1);
  return {before == 0 ? keys.begin : first + before * kPieceKeys,
          after == tiles ? keys.end : first + after * kPieceKeys};
}

KVB_DEVICE int64_t FirstNumberOf(int64_t query_start, int32_t request, int32_t group,
                                 int32_t rows) {
  return query_start * group / rows + request;
}

KVB_HOST_DEVICE bool HoldsCodes(const Cache& cache) {
  return cache.element != Element::kF32 && cache.element != Element::kF16 &&
         cache.element != Element::kBF16;
}

KVB_DEVICE float ScaleAt(const Scales& scales, int32_t request, int32_t kv_head) {
  if (scales.data == nullptr) return 1;
  return scales.data[request * scales.request_stride + kv_head * scales.head_stride];
}

// By whole warps; all threads that ask get the same.
template <int kRows>
KVB_DEVICE RowTile FindRowTile(const PrefillParams& params, const TileOrder& order, uint32_t item,
                               uint32_t* error_flags) {
  const int32_t lane = static_cast<int32_t>(threadIdx.x % 32);
  RowTile tile;
  const uint32_t whole_item = order.by_pieces.Quotient(item);
  tile.piece = static_cast<int32_t>(item - whole_item * order.by_pieces.divisor());
  const auto pair_group = static_cast<int32_t>(order.by_items_of_group.Quotient(whole_item));
  const uint32_t in_group =
      whole_item - static_cast<uint32_t>(pair_group) * order.by_items_of_group.divisor();
  const FastDivisor& by_pairs =
      pair_group == order.last_group ? order.by_pairs_of_last : order.by_pairs;
  int32_t number = static_cast<int32_t>(by_pairs.Quotient(in_group));
  const int32_t pair =
      pair_group * order.pairs_per_group +
      static_cast<int32_t>(in_group - static_cast<uint32_t>(number) * by_pairs.divisor());
  if ((order.last_group - pair_group) % 2 != 0) number = order.numbers - 1 - number;
  tile.kv_head = pair;
  tile.group = static_cast<int32_t>(order.by_group.divisor());
  tile.by_group = order.by_group;
  tile.by_block_size = order.by_block_size;
  int32_t low = 0, high = params.num_requests;
  const int32_t wanted = order.numbers - 1 - number;
  if (order.by_rank) {
    low = static_cast<int32_t>(order.by_kv_heads.Quotient(static_cast<uint32_t>(pair)));
    high = low + 1;
    tile.kv_head = pair - low * params.num_kv_heads;
  }
  // The last request whose first number is not above the wanted one: 32 candidates at a time.
  while (high - low > 1) {
    const int32_t step = (high - low + 31) / 32;
    const int32_t candidate = low + lane * step;
    const bool reached =
        candidate < high &&
        (candidate == low ||
         FirstNumberOf(params.query_start_loc[candidate], candidate, tile.group, kRows) <= wanted);
    low += (__popc(__ballot_sync(kFullWarp, reached)) - 1) * step;
    if (low + step < high) high = low + step;
  }
  tile.request = low;
  int32_t query_end = params.num_tokens;
  if (params.only_length < 0) {
    query_end = params.query_start_loc[low + 1];
    tile.query_start = params.query_start_loc[low];
  }
  if (tile.query_start < 0) tile.query_start = 0;
  if (query_end > params.num_tokens) query_end = params.num_tokens;
  const int32_t q_len = query_end - tile.query_start;
  const int64_t rows = int64_t{q_len} * tile.group;
  const int64_t before =
      (order.by_rank ? (rows + kRows - 1) / kRows - 1 - number
                     : wanted - FirstNumberOf(tile.query_start, low, tile.group, kRows)) *
      kRows;
  if (before < 0 || before >= rows) return tile;
  tile.valid = true;
  tile.first_row = static_cast<int32_t>(before);
  tile.num_rows = static_cast<int32_t>(rows - before < kRows ? rows - before : kRows);

  if (params.keys.block_table != nullptr) {
    int64_t length = params.only_length >= 0 ? params.only_length : params.keys.seq_lens[low];
    const int64_t covered = int64_t{params.keys.table_columns} * params.keys.cache.block_size;
    if (length > covered) {
      length = covered;
      if (error_flags != nullptr && lane == 0) atomicOr(error_flags, kLengthClamped);
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

  if (HoldsCodes(params.keys.cache)) {
    tile.k_scale = ScaleAt(params.keys.cache.k_scale, low, tile.kv_head);
    tile.v_scale = ScaleAt(params.keys.cache.v_scale, low, tile.kv_head);
    tile.k_scale *= ScaleAt(params.q_scale, low, tile.kv_head);
    const bool good = tile.k_scale > 0 && tile.k_scale < Infinity() && tile.v_scale > 0 &&
                      tile.v_scale < Infinity();
    if (!good && error_flags != nullptr && lane == 0) atomicOr(error_flags, kBadScale);
  }

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
  if (order.pieces > 1) tile.seen = PieceOf(tile.seen, tile.piece, order.by_pieces);
  return tile;
}

// --- Where keys are ---

// A key's block and its row there; offset -1: not to be read, and not visible to any row.
struct KeyPlace {
  int32_t block = 0, offset = -1;
};

// Loads the block's id, and does not look at it: the load may take its time.
KVB_DEVICE KeyPlace PlaceOf(const PrefillParams& params, const RowTile& tile, int32_t key) {
  KeyPlace place;
  if (key < tile.seen.begin || key >= tile.seen.end) return place;
  if (params.keys.block_table == nullptr) return {0, key};
  const uint32_t column = tile.by_block_size.Quotient(static_cast<uint32_t>(key));
  place.offset =
      static_cast<int32_t>(static_cast<uint32_t>(key) - column * tile.by_block_size.divisor());
  place.block = params.keys.block_table[tile.request * params.keys.table_stride + column];
  return place;
}

KVB_DEVICE bool IsBad(const PrefillParams& params, const KeyPlace& place) {
  return params.keys.block_table != nullptr && place.offset >= 0 &&
         static_cast<uint32_t>(place.block) >= static_cast<uint32_t>(params.keys.cache.num_blocks);
}

// Byte offset of a key's row from the tensor's base, or -1: not to be read.
template <int kElementBytes = 2>
KVB_DEVICE int64_t OffsetOf(const PrefillParams& params, const CacheTensor& tensor,
                            const RowTile& tile, const KeyPlace& place) {
  if (place.offset < 0 || IsBad(params, place)) return -1;
  const int64_t first = tile.kv_head * tensor.head_stride + tile.kv_start * tensor.token_stride;
  return kElementBytes *
         (first + place.block * tensor.block_stride + place.offset * tensor.token_stride);
}

}  // namespace kvblocks::attention::cuda

#endif  // KVBLOCKS_ATTENTION_CUDA_KERNELS_PREFILL_TILE_H_
