// Tiles of an indexer's keys in shared memory, what is made of their products, and which rows and
// tokens a block of threads has: for the kernels that score with tensor cores. Device code.
//
// Every warp of a block has 16 or 32 keys of a tile: it alone copies them. Order along k is free as
// long as both operands of a product have the same: lane t of a group of four has values 16 t to
// 16 t + 15 and 64 + 16 t to 64 + 16 t + 15, so that it reads 16 bytes at a time.

#ifndef KVBLOCKS_ATTENTION_CUDA_KERNELS_INDEXER_TILE_H_
#define KVBLOCKS_ATTENTION_CUDA_KERNELS_INDEXER_TILE_H_

#include "attention/cuda/device/gpu.h"
#include "attention/cuda/device/numbers.h"
#include "attention/cuda/device/ptx.h"
#include "attention/cuda/kernels/indexer_scores.h"

namespace kvblocks::attention::cuda {

inline constexpr int kIndexDim = 128, kIndexSteps = kIndexDim / 16;
inline constexpr int kIndexHeads = 64, kIndexHeadTiles = kIndexHeads / 8;

// A tile of keys: rows, their 16-byte pieces permuted so that reads meet no bank twice; scales.
template <bool kCodes, int kWarps, int kOfWarp>
struct KeyTile {
  static constexpr bool kOfCodes = kCodes;
  static constexpr int kWarpKeys = kOfWarp, kKeys = kWarpKeys * kWarps;
  static constexpr int kRowBytes = kCodes ? kIndexDim : 2 * kIndexDim;
  static constexpr int kPieces = kRowBytes / 16;
  static constexpr int kScalesAt = kKeys * kRowBytes;
  static constexpr int kBytes = kScalesAt + kKeys * 4;
  static KVB_DEVICE int PieceAt(int row, int piece) {
    return row * kRowBytes + ((piece ^ ((row & 1) << (kCodes ? 2 : 0))) << 4);
  }
};

// 16 values as pairs.
struct Sixteen {
  uint32_t pairs[8];
};
template <typename T>
KVB_DEVICE Sixteen FromCodes(const uint4& codes) {
  Sixteen values;
  const uint32_t fours[4] = {codes.x, codes.y, codes.z, codes.w};
#pragma unroll
  for (int i = 0; i < 4; ++i) {
    E4m3FourTo<T>(fours[i], values.pairs[2 * i], values.pairs[2 * i + 1]);
  }
  return values;
}
KVB_DEVICE Sixteen FromPairs(const uint4& first, const uint4& second) {
  return {{first.x, first.y, first.z, first.w, second.x, second.y, second.z, second.w}};
}

// Values [16 part, 16 part + 16) of key `row` of a tile.
template <typename T, typename Tile>
KVB_DEVICE Sixteen LoadKeyPart(const unsigned char* tile, int row, int part) {
  const auto piece = [&](int i) {
    return *reinterpret_cast<const uint4*>(tile + Tile::PieceAt(row, i));
  };
  if constexpr (Tile::kOfCodes) {
    return FromCodes<T>(piece(part));
  } else {
    return FromPairs(piece(2 * part), piece(2 * part + 1));
  }
}

// 16 values of a query, from value `first` on; of heads that there are not zeros.
template <typename T>
KVB_DEVICE Sixteen LoadQueryPart(const IndexTopkParams& params, int64_t token, int head,
                                 int first) {
  if (head >= params.heads) return {};
  const int bytes = BytesOf(params.q.element);
  const auto* const from = reinterpret_cast<const uint4*>(
      static_cast<const unsigned char*>(params.q.data) +
      (token * params.q.row_stride + head * params.q.head_stride + first) * bytes);
  return bytes == 1 ? FromCodes<T>(from[0]) : FromPairs(from[0], from[1]);
}

// Scales of rows g and g + 8 of a warp's keys.
struct TwoScales {
  float low, high;
  bool any_negative;  // of the warp's
};
template <typename Tile>
KVB_DEVICE TwoScales LoadScales(const unsigned char* tile, int row) {
  const auto* const scales = reinterpret_cast<const float*>(tile + Tile::kScalesAt);
  const float low = scales[row], high = scales[row + 8];
  return {low, high, __any_sync(kFullWarp, low < 0 || high < 0) != 0};
}

// Of rows g and g + 8 of a warp's keys.
struct TwoScores {
  float low, high;
  KVB_DEVICE float Own(int lane) const { return lane % 4 == 0 ? low : high; }
};
// Sums over this lane's heads. weights(m) are those of heads 16 m + 2 t, the next, 8 behind both.
template <typename Weights>
KVB_DEVICE TwoScores SumOwnHeads(const float (&products)[kIndexHeadTiles][4],
                                 const Weights& weights) {
  float sums[4] = {};
#pragma unroll
  for (int m = 0; m < kIndexHeadTiles / 2; ++m) {
    const float4 four = weights(m);
    const float each[4] = {four.x, four.y, four.z, four.w};
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      const auto& product = products[2 * m + i / 2];
      sums[i % 2] += each[i] * PositiveOrNan(product[i % 2]);
      sums[2 + i % 2] += each[i] * PositiveOrNan(product[2 + i % 2]);
    }
  }
  return {sums[0] + sums[1], sums[2] + sums[3]};
}
// Sums over all heads; every lane of four has both.
template <typename Weights>
KVB_DEVICE TwoScores SumHeads(float (&products)[kIndexHeadTiles][4], const Weights& weights,
                              const TwoScales& scales) {
  // Scales come behind the ReLU, which only negative ones would notice.
  if (scales.any_negative) [[unlikely]] {
#pragma unroll
    for (auto& four : products) {
      if (scales.low < 0) four[0] = -four[0], four[1] = -four[1];
      if (scales.high < 0) four[2] = -four[2], four[3] = -four[3];
    }
  }
  TwoScores sums = SumOwnHeads(products, weights);
#pragma unroll
  for (int lanes = 1; lanes < 4; lanes *= 2) {
    sums.low += __shfl_xor_sync(kFullWarp, sums.low, lanes);
    sums.high += __shfl_xor_sync(kFullWarp, sums.high, lanes);
  }
  return {sums.low * fabsf(scales.low), sums.high * fabsf(scales.high)};
}

// The key whose score a lane writes, of those from `first` on: two lanes of four have one of 16
// each, four one of 32.
KVB_DEVICE int32_t OwnKey(int32_t first, int lane) { return first + lane / 4 + 8 * (lane % 4); }

// Whether 32 bits can address all rows, in units of 16 bytes from the first.
inline bool TakesKeyCopies(const IndexRows& rows) {
  const int64_t bytes = rows.planar ? 1 : 2;
  const int64_t all = rows.num_blocks * rows.block_stride + rows.block_size * rows.row_stride;
  return rows.block_stride >= 0 && rows.row_stride >= 0 && all * bytes < int64_t{1} << 36;
}

// Copies of keys of one request to tiles, by one warp its own of each. REQUIRES: TakesKeyCopies().
template <typename Tile>
class KeyCopies {
 public:
  static constexpr bool kCodes = Tile::kOfCodes;
  static constexpr int kKeys = Tile::kWarpKeys;

  KVB_DEVICE KeyCopies(const IndexScoreParams& params, int32_t request, int32_t num_rows,
                       uint32_t* flags)
      : params_(params),
        table_(params.topk.batch.block_table + request * params.topk.batch.table_stride),
        num_rows_(num_rows),
        flags_(flags) {}

  // Asks for the block of this lane's key of a tile, or where all are of one of the first's.
  KVB_DEVICE void LookUp(int32_t tile) {
    const int32_t row =
        tile * Tile::kKeys + kKeys * Warp() + (params_.whole_groups ? 0 : Lane() % kKeys);
    in_block_ = -1;
    if (row >= num_rows_) return;
    const uint32_t column = params_.block_size.Quotient(static_cast<uint32_t>(row));
    in_block_ = row - static_cast<int32_t>(column * params_.block_size.divisor());
    block_ = table_[column];
  }
  // Starts the copies of the tile that was last looked up.
  KVB_DEVICE void Copy(unsigned char* to) const {
    if (params_.whole_groups) {
      CopyNeighbours(to);
    } else {
      CopyEach(to);
    }
  }

 private:
  static KVB_DEVICE int Warp() { return static_cast<int>(threadIdx.x) / 32; }
  static KVB_DEVICE int Lane() { return static_cast<int>(threadIdx.x) % 32; }
  static KVB_DEVICE float* ScaleOfLane(unsigned char* to) {
    return reinterpret_cast<float*>(to + Tile::kScalesAt) + kKeys * Warp() + Lane();
  }

  KVB_DEVICE bool HasBlock() const {
    if (in_block_ < 0) return false;
    const auto num_blocks = static_cast<uint32_t>(params_.topk.rows.num_blocks);
    if (static_cast<uint32_t>(block_) < num_blocks) [[likely]]
      return true;
    Flag(flags_, kBadBlock);
    return false;
  }
  // The row that was looked up, in units of 16 bytes, and its scale, behind the codes of its block.
  KVB_DEVICE uint32_t First() const {
    return static_cast<uint32_t>(block_) * params_.block_units +
           static_cast<uint32_t>(in_block_) * RowUnits();
  }
  KVB_DEVICE uint32_t RowUnits() const { return kCodes ? kIndexDim / 16 : params_.row_units; }
  KVB_DEVICE const unsigned char* ScaleOfFirst() const {
    const uint32_t scales =
        static_cast<uint32_t>(block_) * params_.block_units + params_.codes_units;
    return params_.topk.rows.data + uint64_t{scales} * 16 + 4 * static_cast<uint32_t>(in_block_);
  }

  // Rows of one block, also those behind the last that is seen: nobody looks at their scores.
  // Without a block what is there stays; no scale makes a number of it.
  KVB_DEVICE void CopyNeighbours(unsigned char* to) const {
    float* const scale = ScaleOfLane(to);
    if (!HasBlock()) [[unlikely]] {
      if (Lane() < kKeys) *scale = NAN;
      return;
    }
    constexpr int kRowsAtOnce = 32 / Tile::kPieces;
    const int key = Lane() / Tile::kPieces, piece = Lane() % Tile::kPieces;
    const uint32_t first = First() + static_cast<uint32_t>(key) * RowUnits();
    const unsigned char* const from =
        params_.topk.rows.data + uint64_t{first + static_cast<uint32_t>(piece)} * 16;
#pragma unroll
    for (int i = 0; i < kKeys; i += kRowsAtOnce) {
      CopyAsync16(SharedAddress(to) + Tile::PieceAt(kKeys * Warp() + i + key, piece),
                  from + static_cast<uint64_t>(i) * (RowUnits() * 16));
    }
    if (Lane() >= kKeys) return;
    if (kCodes) {
      CopyAsync4(SharedAddress(scale), ScaleOfFirst() + 4 * Lane());
    } else {
      *scale = 1;
    }
  }

  KVB_DEVICE void CopyEach(unsigned char* to) const {
    const IndexRows& rows = params_.topk.rows;
    constexpr uint32_t kNone = ~0u;
    const uint32_t from = HasBlock() ? First() : kNone;
    const int piece = Lane() % Tile::kPieces;
    constexpr int kRowsAtOnce = 32 / Tile::kPieces;
#pragma unroll
    for (int i = 0; i < kKeys; i += kRowsAtOnce) {
      const int key = i + Lane() / Tile::kPieces;
      const uint32_t its = __shfl_sync(kFullWarp, from, key);
      const uint64_t offset = its == kNone ? 0 : uint64_t{its} * 16;
      CopyAsync16(SharedAddress(to) + Tile::PieceAt(kKeys * Warp() + key, piece),
                  rows.data + piece * 16 + offset, its != kNone);
    }
    if (Lane() >= kKeys) return;
    float* const scale = ScaleOfLane(to);
    if (kCodes && from != kNone) {
      CopyAsync4(SharedAddress(scale), ScaleOfFirst());
    } else {
      *scale = from != kNone ? 1.0f : NAN;
    }
  }

  const IndexScoreParams& params_;
  const int32_t* const table_;
  const int32_t num_rows_;
  uint32_t* const flags_;
  int32_t block_ = 0, in_block_ = -1;  // no row
};

// Tokens [token, last) of a request, the first at `position`, and the tiles of its rows that a
// block scores for them.
struct IndexPiece {
  int32_t request, position, token, last;
  int32_t num_rows;  // that the last token sees
  int32_t begin, end;
};
// The first token of a piece, counted from 0, that sees a row. REQUIRES: the last one does.
KVB_DEVICE int32_t FirstThatSees(const IndexPiece& piece, int32_t ratio, int32_t row) {
  const int32_t first = (row + 1) * ratio - 1 - piece.position;
  return first > 0 ? first : 0;
}

// Calls function(piece) for the pieces of this block of threads: of `pieces` pieces of the rows of
// up to `tokens` tokens, which may be of several requests. Blocks are `pieces` for each so many
// tokens.
template <int kTileKeys, typename Function>
KVB_DEVICE void ForPieces(const IndexScoreParams& params, int32_t tokens, int32_t pieces,
                          const Function& function) {
  const auto index = static_cast<int32_t>(blockIdx.x % static_cast<unsigned>(pieces));
  const int32_t first = static_cast<int32_t>(blockIdx.x / static_cast<unsigned>(pieces)) * tokens;
  const int32_t until = params.first_token +
                        (tokens < params.num_tokens - first ? first + tokens : params.num_tokens);
  IndexPiece piece;
  for (piece.token = params.first_token + first; piece.token < until; piece.token = piece.last) {
    const TokenAt at = FindToken(params.topk.batch, piece.token);
    if (at.position < 0 && at.last == INT64_MAX) return;  // padding
    piece.request = at.request, piece.position = static_cast<int32_t>(at.position);
    piece.last = at.last < until ? static_cast<int32_t>(at.last) : until;
    piece.num_rows = VisibleRows(params.topk, at.position + (piece.last - 1 - piece.token));
    const int32_t num_tiles = (piece.num_rows + kTileKeys - 1) / kTileKeys;
    piece.begin = static_cast<int32_t>(int64_t{num_tiles} * index / pieces);
    piece.end = static_cast<int32_t>(int64_t{num_tiles} * (index + 1) / pieces);
    if (piece.num_rows > params.topk.width && piece.begin < piece.end) function(piece);
  }
}

// How many tokens a block takes, a power of two: as many as `most`, or as requests have on average.
inline int32_t IndexTokensPerBlock(const IndexTopkParams& params, int32_t most) {
  int32_t tokens = 1;
  while (tokens < most && int64_t{tokens} * 2 * params.batch.num_requests <= params.num_tokens) {
    tokens *= 2;
  }
  return tokens;
}

}  // namespace kvblocks::attention::cuda

#endif  // KVBLOCKS_ATTENTION_CUDA_KERNELS_INDEXER_TILE_H_
