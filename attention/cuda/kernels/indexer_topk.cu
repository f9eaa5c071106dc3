// Scores of an indexer's rows on tensor cores, and IndexTopk as a whole.
//
// A block of 8 warps scores a piece of a request's rows for 1, 2, 4 or 8 of its tokens. A warp has
// one token: all 64 heads of its queries stay in registers, as the right operands of 64 products,
// so that a key goes from shared memory to a register once and takes part in 64 dot products there.
// 16 keys are the rows of a product. What is added up along a row is ReLU and weight of a head:
// three quarters within a thread, the rest by two exchanges among four lanes. Products and sums are
// of f16 or bf16 values, which hold every code exactly, in float32: Hopper has no mma.sync for
// codes but by converting both operands each time.
//
// Keys come 128 at a time, by asynchronous copies three such tiles ahead. A warp copies the 16 keys
// of its turn; with one token it scores the same ones, and warps do not wait for each other.
//
// Order along k is free as long as both operands have the same: lane t of a group of four has
// values 16 t to 16 t + 15 and 64 + 16 t to 64 + 16 t + 15, so that it reads 16 bytes at a time.

#include <cstdint>

#include "kvblocks/attention/cuda/device/gpu.h"
#include "kvblocks/attention/cuda/device/numbers.h"
#include "kvblocks/attention/cuda/device/ptx.h"
#include "kvblocks/attention/cuda/kernels/indexer_scores.h"

namespace kvblocks::attention::cuda {
namespace {

constexpr int kWarps = 8, kThreads = kWarps * 32;
constexpr int kDim = 128, kSteps = kDim / 16;
constexpr int kHeads = 64, kHeadTiles = kHeads / 8;
constexpr int kTileKeys = 16 * kWarps;
constexpr int kStages = 4;

// A tile of keys: rows, their 16-byte pieces permuted so that reads meet no bank twice; scales.
template <bool kCodes>
struct KeyTile {
  static constexpr int kRowBytes = kCodes ? kDim : 2 * kDim;
  static constexpr int kPieces = kRowBytes / 16;
  static constexpr int kScalesAt = kTileKeys * kRowBytes;
  static constexpr int kBytes = kScalesAt + kTileKeys * 4;
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
  return {{E4m3PairTo<T>(codes.x & 0xffff), E4m3PairTo<T>(codes.x >> 16),
           E4m3PairTo<T>(codes.y & 0xffff), E4m3PairTo<T>(codes.y >> 16),
           E4m3PairTo<T>(codes.z & 0xffff), E4m3PairTo<T>(codes.z >> 16),
           E4m3PairTo<T>(codes.w & 0xffff), E4m3PairTo<T>(codes.w >> 16)}};
}
KVB_DEVICE Sixteen FromPairs(const uint4& first, const uint4& second) {
  return {{first.x, first.y, first.z, first.w, second.x, second.y, second.z, second.w}};
}

// Values [16 part, 16 part + 16) of key `row` of a tile.
template <typename T, bool kCodes>
KVB_DEVICE Sixteen LoadKeyPart(const unsigned char* tile, int row, int part) {
  using Tile = KeyTile<kCodes>;
  const auto piece = [&](int i) {
    return *reinterpret_cast<const uint4*>(tile + Tile::PieceAt(row, i));
  };
  if constexpr (kCodes) {
    return FromCodes<T>(piece(part));
  } else {
    return FromPairs(piece(2 * part), piece(2 * part + 1));
  }
}

// Queries of one token as right operands, and weights of this lane's heads: 8 n + 2 t and the next.
struct Queries {
  uint32_t b[kHeadTiles][kSteps][2];
  float weights[kHeadTiles][2];
};
template <typename T>
KVB_DEVICE void LoadQueries(const IndexTopkParams& params, int64_t token, int lane,
                            Queries& queries) {
  const int group = lane / 4, t = lane % 4;
  const int bytes = BytesOf(params.q.element);
  const unsigned char* const row =
      static_cast<const unsigned char*>(params.q.data) + token * params.q.row_stride * bytes;
#pragma unroll
  for (int n = 0; n < kHeadTiles; ++n) {
    const int head = 8 * n + group;
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      Sixteen part = {};
      if (head < params.heads) {
        const auto* const from = reinterpret_cast<const uint4*>(
            row + (head * params.q.head_stride + 64 * half + 16 * t) * bytes);
        part = bytes == 1 ? FromCodes<T>(from[0]) : FromPairs(from[0], from[1]);
      }
#pragma unroll
      for (int step = 0; step < kSteps / 2; ++step) {
        queries.b[n][half * kSteps / 2 + step][0] = part.pairs[2 * step];
        queries.b[n][half * kSteps / 2 + step][1] = part.pairs[2 * step + 1];
      }
    }
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      const int own = 8 * n + 2 * t + i;
      queries.weights[n][i] =
          own < params.heads ? params.weights[token * params.weight_stride + own] : 0.0f;
    }
  }
}

// Sums of this group's rows g and g + 8 of 16 keys over all heads; every lane of four has both.
struct TwoScores {
  float low, high;
};
template <typename T, bool kCodes>
KVB_DEVICE TwoScores ScoreSixteen(const Queries& queries, const unsigned char* tile, int first,
                                  int lane) {
  const int row = first + lane / 4, t = lane % 4;
  float sums[kHeadTiles][4] = {};
#pragma unroll
  for (int half = 0; half < 2; ++half) {
    const Sixteen low = LoadKeyPart<T, kCodes>(tile, row, 4 * half + t);
    const Sixteen high = LoadKeyPart<T, kCodes>(tile, row + 8, 4 * half + t);
#pragma unroll
    for (int step = 0; step < kSteps / 2; ++step) {
      const uint32_t a[4] = {low.pairs[2 * step], high.pairs[2 * step], low.pairs[2 * step + 1],
                             high.pairs[2 * step + 1]};
#pragma unroll
      for (int n = 0; n < kHeadTiles; ++n) {
        const auto& b = queries.b[n][half * kSteps / 2 + step];
        MultiplyM16N8K16<T>(sums[n], a, b[0], b[1]);
      }
    }
  }
  const auto* const scales = reinterpret_cast<const float*>(tile + KeyTile<kCodes>::kScalesAt);
  const float low_scale = scales[row], high_scale = scales[row + 8];
  // Scales come behind the ReLU, which only negative ones would notice.
  if (__any_sync(kFullWarp, low_scale < 0 || high_scale < 0)) {
#pragma unroll
    for (int n = 0; n < kHeadTiles; ++n) {
      if (low_scale < 0) sums[n][0] = -sums[n][0], sums[n][1] = -sums[n][1];
      if (high_scale < 0) sums[n][2] = -sums[n][2], sums[n][3] = -sums[n][3];
    }
  }
  float low = 0, high = 0;
#pragma unroll
  for (int n = 0; n < kHeadTiles; ++n) {
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      low += queries.weights[n][i] * PositiveOrNan(sums[n][i]);
      high += queries.weights[n][i] * PositiveOrNan(sums[n][2 + i]);
    }
  }
#pragma unroll
  for (int lanes = 1; lanes < 4; lanes *= 2) {
    low += __shfl_xor_sync(kFullWarp, low, lanes);
    high += __shfl_xor_sync(kFullWarp, high, lanes);
  }
  return {low * fabsf(low_scale), high * fabsf(high_scale)};
}

// Copies of keys of one request to tiles, by one warp its 16 of each.
template <bool kCodes>
class KeyCopies {
 public:
  using Tile = KeyTile<kCodes>;

  KVB_DEVICE KeyCopies(const IndexScoreParams& params, int32_t request, int32_t num_rows,
                       uint32_t* flags)
      : params_(params),
        table_(params.topk.batch.block_table + request * params.topk.batch.table_stride),
        num_rows_(num_rows),
        warp_(static_cast<int>(threadIdx.x) / 32),
        lane_(static_cast<int>(threadIdx.x) % 32),
        flags_(flags) {}

  // Asks for the block of this lane's key of a tile.
  KVB_DEVICE void LookUp(int32_t tile) {
    const int32_t row = RowOf(tile);
    block_ = kNoBlock;
    if (row >= num_rows_) return;
    column_ = params_.block_size.Quotient(static_cast<uint32_t>(row));
    block_ = table_[column_];
  }
  // Starts the copies of the tile that was last looked up.
  KVB_DEVICE void Copy(int32_t tile, unsigned char* to) const {
    const IndexRows& rows = params_.topk.rows;
    constexpr int kElement = kCodes ? 1 : 2;
    const bool bad = block_ != kNoBlock && (block_ < 0 || block_ >= rows.num_blocks);
    if (bad && lane_ < 16) Flag(flags_, kBadBlock);
    int64_t offset = -1;
    int32_t row = 0;
    if (block_ != kNoBlock && !bad) {
      row = static_cast<int32_t>(static_cast<uint32_t>(RowOf(tile)) -
                                 column_ * params_.block_size.divisor());
      offset = block_ * rows.block_stride + row * (kCodes ? int64_t{kDim} : rows.row_stride);
    }
    constexpr int kRowsAtOnce = 32 / Tile::kPieces;
#pragma unroll
    for (int i = 0; i < 16; i += kRowsAtOnce) {
      const int key = i + lane_ / Tile::kPieces, piece = lane_ % Tile::kPieces;
      const int64_t from = __shfl_sync(kFullWarp, offset, key);
      CopyAsync16(SharedAddress(to) + Tile::PieceAt(16 * warp_ + key, piece),
                  rows.data + (from < 0 ? 0 : from * kElement + piece * 16), from >= 0);
    }
    if (lane_ >= 16) return;
    float* const scale = reinterpret_cast<float*>(to + Tile::kScalesAt) + 16 * warp_ + lane_;
    if (kCodes && offset >= 0) {
      CopyAsync4(SharedAddress(scale), ScaleOf(rows, block_, row));
    } else {
      *scale = offset >= 0 ? 1.0f : NAN;
    }
  }

 private:
  static constexpr int64_t kNoBlock = INT64_MIN;
  KVB_DEVICE int32_t RowOf(int32_t tile) const {
    return tile * kTileKeys + 16 * warp_ + lane_ % 16;
  }

  const IndexScoreParams& params_;
  const int32_t* table_;
  int32_t num_rows_;
  int warp_, lane_;
  uint32_t* flags_;
  int64_t block_ = kNoBlock;
  uint32_t column_ = 0;
};

// A block per piece of rows and `tokens` tokens.
template <typename T, bool kCodes>
__global__ void __launch_bounds__(kThreads, 1)
    IndexScoresKernel(const __grid_constant__ IndexScoreParams params, int32_t tokens,
                      int32_t pieces, uint32_t* flags) {
  using Tile = KeyTile<kCodes>;
  unsigned char* const shared = DynamicSharedMemory();
  AllowNextKernel();
  WaitForPreviousKernel();
  const IndexTopkParams& topk = params.topk;
  const int warp = static_cast<int>(threadIdx.x) / 32, lane = static_cast<int>(threadIdx.x) % 32;
  const auto piece = static_cast<int32_t>(blockIdx.x % static_cast<unsigned>(pieces));
  const int32_t first = static_cast<int32_t>(blockIdx.x / static_cast<unsigned>(pieces)) * tokens;
  const int64_t until =
      first + tokens < params.num_tokens ? first + tokens : int64_t{params.num_tokens};
  // This warp's token, and which 16 keys of each tile, of every `tokens` that follow.
  const int64_t own_token = int64_t{params.first_token} + first + warp % tokens;
  const int own_keys = warp / tokens * 16, step_keys = kWarps / tokens * 16;
  // Tokens of one request at a time.
  for (int64_t token = int64_t{params.first_token} + first; token < params.first_token + until;) {
    const TokenAt at = FindToken(topk.batch, token);
    if (at.position < 0 && at.last == INT64_MAX) return;  // padding
    const int64_t last =
        at.last < params.first_token + until ? at.last : params.first_token + until;
    const int32_t num_rows = VisibleRows(topk, at.position + (last - 1 - token));
    const int32_t num_tiles = (num_rows + kTileKeys - 1) / kTileKeys;
    const auto begin = static_cast<int32_t>(int64_t{num_tiles} * piece / pieces);
    const auto end = static_cast<int32_t>(int64_t{num_tiles} * (piece + 1) / pieces);
    const int32_t own_rows = own_token >= token && own_token < last
                                 ? VisibleRows(topk, at.position + (own_token - token))
                                 : 0;
    if (num_rows > topk.width && begin < end) {
      KeyCopies<kCodes> copies(params, at.request, num_rows, flags);
      for (int32_t ahead = 0; ahead < kStages - 1; ++ahead) {
        if (begin + ahead < end) {
          copies.LookUp(begin + ahead);
          copies.Copy(begin + ahead, shared + ahead * Tile::kBytes);
        }
        CommitCopies();
      }
      copies.LookUp(begin + kStages - 1);
      Queries queries;
      if (own_rows > 0) LoadQueries<T>(topk, own_token, lane, queries);
      uint32_t* const keys = params.keys + (own_token - params.first_token) * params.key_stride;
      for (int32_t tile = begin; tile < end; ++tile) {
        WaitCopies<kStages - 2>();
        if (tokens == 1) {
          __syncwarp();
        } else {
          __syncthreads();
        }
        const int32_t ahead = tile + kStages - 1;
        if (ahead < end) {
          copies.Copy(ahead, shared + (ahead - begin) % kStages * Tile::kBytes);
          copies.LookUp(ahead + 1);
        }
        CommitCopies();
        const unsigned char* const at_tile = shared + (tile - begin) % kStages * Tile::kBytes;
        for (int key = own_keys; key < kTileKeys; key += step_keys) {
          const int32_t row = tile * kTileKeys + key;
          if (row >= own_rows) break;
          const TwoScores scores = ScoreSixteen<T, kCodes>(queries, at_tile, key, lane);
          // Two lanes of four write a row each.
          const int32_t own = row + lane / 4 + 8 * (lane % 4);
          if (lane % 4 < 2 && own < own_rows) {
            keys[own] = KeyOfScore(lane % 4 == 0 ? scores.low : scores.high);
          }
        }
      }
      WaitCopies<0>();
      __syncthreads();  // the next request's keys go to the same tiles
    }
    token = last;
  }
}

template <typename T, bool kCodes>
Error LaunchScores(const LaunchContext& context, const IndexScoreParams& params) {
  const IndexTopkParams& topk = params.topk;
  // As many tokens of a request as a block takes, or as there are on average.
  int32_t tokens = 1;
  while (tokens < kWarps && int64_t{tokens} * 2 * topk.batch.num_requests <= topk.num_tokens) {
    tokens *= 2;
  }
  const int64_t tiles = (int64_t{params.num_tokens} + tokens - 1) / tokens;
  const int32_t pieces = IndexPieces(tiles, topk.most_rows, context.num_multiprocessors);
  LaunchConfig config;
  config.grid = dim3(static_cast<unsigned>(tiles) * static_cast<unsigned>(pieces));
  config.block = dim3(kThreads);
  config.shared_bytes = kStages * KeyTile<kCodes>::kBytes;
  config.stream = context.stream;
  config.overlap_previous = context.can_overlap();
  return Launch(config, IndexScoresKernel<T, kCodes>, params, tokens, pieces, context.error_flags);
}

int64_t KeyStride(int64_t most_rows) { return (most_rows + 3) / 4 * 4; }

}  // namespace

bool TakesIndexScores(const IndexTopkParams& params) {
  const IndexRows& rows = params.rows;
  const auto aligned = [](const void* data, int64_t bytes) {
    return reinterpret_cast<uintptr_t>(data) % 16 == 0 && bytes % 16 == 0;
  };
  const bool is_16_bit = rows.element == Element::kF16 || rows.element == Element::kBF16;
  if (rows.dim != kDim || params.heads < 1 || params.heads > kHeads) return false;
  if (!rows.planar && !is_16_bit) return false;
  const bool takes_queries =
      params.q.element == Element::kF8E4M3 ||
      (rows.planar ? params.q.element == Element::kF16 || params.q.element == Element::kBF16
                   : params.q.element == rows.element);
  const int q_bytes = BytesOf(params.q.element), row_bytes = rows.planar ? 1 : 2;
  return takes_queries && aligned(params.q.data, params.q.row_stride * q_bytes) &&
         params.q.head_stride * q_bytes % 16 == 0 &&
         aligned(rows.data, rows.block_stride * row_bytes) && rows.row_stride * row_bytes % 16 == 0;
}

Error LaunchIndexScores(const LaunchContext& context, const IndexScoreParams& params) {
  const IndexTopkParams& topk = params.topk;
  const bool bf16 =
      topk.rows.planar ? topk.q.element == Element::kBF16 : topk.rows.element == Element::kBF16;
  if (topk.rows.planar) {
    return bf16 ? LaunchScores<Bf16, true>(context, params)
                : LaunchScores<F16, true>(context, params);
  }
  return bf16 ? LaunchScores<Bf16, false>(context, params)
              : LaunchScores<F16, false>(context, params);
}

int64_t IndexTopkWorkspaceBytes(int64_t num_tokens, int64_t most_rows) {
  return num_tokens == 0 ? 0 : KeyStride(most_rows) * static_cast<int64_t>(sizeof(uint32_t));
}

Error LaunchIndexTopk(const LaunchContext& context, const IndexTopkParams& params) {
  if (params.num_tokens == 0) return 0;
  IndexScoreParams part;
  part.topk = params;
  part.block_size = FastDivisor(params.rows.block_size);
  part.keys = reinterpret_cast<uint32_t*>(context.workspace);
  part.key_stride = KeyStride(params.most_rows);
  // Tokens that see no more rows than they may choose need no scores.
  const bool scores = params.most_rows > params.width;
  int64_t at_once = params.num_tokens;
  if (scores) {
    const int64_t room =
        static_cast<int64_t>(context.workspace_bytes / sizeof(uint32_t)) / part.key_stride;
    if (room == 0) return cudaErrorInvalidConfiguration;  // less than IndexTopkWorkspaceBytes
    at_once = room < at_once ? room : at_once;
    // Whole blocks of tokens.
    if (at_once < params.num_tokens && at_once > kWarps) at_once = at_once / kWarps * kWarps;
  }
  const bool fast = TakesIndexScores(params);
  for (int64_t first = 0; first < params.num_tokens; first += at_once) {
    part.first_token = static_cast<int32_t>(first);
    part.num_tokens = static_cast<int32_t>(
        params.num_tokens - first < at_once ? params.num_tokens - first : at_once);
    Error error = 0;
    if (scores) {
      error = fast ? LaunchIndexScores(context, part) : LaunchPortableIndexScores(context, part);
    }
    if (error == 0) error = LaunchIndexSelect(context, part);
    if (error != 0) return error;
  }
  return 0;
}

}  // namespace kvblocks::attention::cuda
