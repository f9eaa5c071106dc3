// Scores of an indexer's rows with wgmma, for compute capability 9.0.
//
// A block of 3 warpgroups scores a piece of a request's rows for 1, 2 or 4 of its tokens, whose
// queries lie in shared memory in 16 bits, all 64 heads as the columns of the right operand. Keys
// are the left one, in registers: a warp copies its 32 keys of a tile (16 of plain rows, for want of
// shared memory), converts them once and multiplies them with the queries of every token of the
// block, 16 keys at a time. So keys need no barrier, and no two warpgroups wait for each other:
// while one sums heads, products of the others run.
//
// What limits it are instructions: addresses, weights and what a score takes at its end are shared
// by the keys of a warp.
//
// 168 registers per thread: all registers of a multiprocessor, one block.

#include "attention/cuda/device/gpu.h"
#include "attention/cuda/device/hopper.h"
#include "attention/cuda/device/numbers.h"
#include "attention/cuda/device/ptx.h"
#include "attention/cuda/kernels/indexer_scores.h"
#include "attention/cuda/kernels/indexer_tile.h"
#include "attention/cuda/kernels/launch.h"
#include "attention/cuda/kernels/warp_reduce.h"

namespace kvblocks::attention::cuda {
namespace {

constexpr int kWarps = 12, kThreads = 32 * kWarps;
template <bool kCodes>
using TileOf = KeyTile<kCodes, kWarps, kCodes ? 32 : 16>;
constexpr int64_t kOverheadRows =
    1300;  // 5 us of a block's beginning, in which memory gives so many

// Dynamic shared memory: queries of each token, two columns of 64 values (RowsAlongK) for 64 heads;
// weights of each; tiles of keys.
constexpr int kColumnBytes = kIndexHeads * 128, kQueryBytes = 2 * kColumnBytes;
constexpr int kWeightBytes = kIndexHeads * 4;
struct Shape {
  int32_t tokens, stages;
  KVB_HOST_DEVICE int weights_at() const { return tokens * kQueryBytes; }
  KVB_HOST_DEVICE int tiles_at() const { return tokens * (kQueryBytes + kWeightBytes); }
};
constexpr int kMostTokens = 4;

// Queries and weights of token `slot` of the block. By all threads, of which some have 16 values of
// a head at a time. Values go where the order along k of indexer_tile.h wants them: pair i of lane
// t's 16 values, which are of column `column`, to pair t of piece i.
template <typename T>
KVB_DEVICE void StageToken(const IndexTopkParams& params, const Shape& shape, int64_t token,
                           int slot) {
  unsigned char* const shared = DynamicSharedMemory();
  const int thread = static_cast<int>(threadIdx.x);
  static_assert(kThreads >= kIndexHeads * 4);
  if (thread >= kIndexHeads * 4) return;
  const int t = thread % 4, head = thread / 4;
#pragma unroll
  for (int column = 0; column < 2; ++column) {
    const Sixteen part = LoadQueryPart<T>(params, token, head, 64 * column + 16 * t);
    unsigned char* const to =
        shared + slot * kQueryBytes + column * kColumnBytes + head * 128 + 4 * t;
#pragma unroll
    for (int i = 0; i < 8; ++i) {
      *reinterpret_cast<uint32_t*>(to + ((i ^ head % 8) << 4)) = part.pairs[i];
    }
  }
  // Four of a lane together: heads 16 m + 2 t, the next, 8 behind both.
  if (thread < kIndexHeads) {
    const int of_lane = thread % 8 / 2, place = thread % 16 / 8 * 2 + thread % 2;
    reinterpret_cast<float*>(shared + shape.weights_at() +
                             slot * kWeightBytes)[thread / 16 * 16 + 4 * of_lane + place] =
        thread < params.heads ? params.weights[token * params.weight_stride + thread] : 0.0f;
  }
}

// Copies of a warp's keys, tile after tile. Where its keys of a tile are codes of one block, 32 tiles
// are looked up at a time, one by each lane: with one token a tile's look-up and addresses
// would be a third of its instructions.
template <typename Tile>
class TileCopies {
 public:
  KVB_DEVICE TileCopies(const IndexScoreParams& params, const IndexPiece& piece, uint32_t* flags)
      : params_(params),
        table_(params.topk.batch.block_table + piece.request * params.topk.batch.table_stride),
        num_rows_(piece.num_rows),
        first_(piece.begin),
        flags_(flags),
        each_(params, piece.request, piece.num_rows, flags) {
    if (has_groups()) {
      LookUp();
    } else {
      each_.LookUp(first_);
    }
  }

  // Of tiles one after another, from the first on.
  KVB_DEVICE void Copy(int32_t tile, unsigned char* to) {
    if (!has_groups()) {
      each_.Copy(to);
      each_.LookUp(tile + 1);
      return;
    }
    if (tile - first_ == 32) {
      first_ += 32;
      LookUp();
    }
    const int lane = static_cast<int>(threadIdx.x) % 32, warp = static_cast<int>(threadIdx.x) / 32;
    const uint32_t block = __shfl_sync(kFullWarp, block_, tile - first_);
    const uint32_t in_block = __shfl_sync(kFullWarp, in_block_, tile - first_);
    float* const scale =
        reinterpret_cast<float*>(to + Tile::kScalesAt) + Tile::kWarpKeys * warp + lane;
    if (in_block == kNone) [[unlikely]] {
      *scale = NAN;
      return;
    }
    const unsigned char* const data = params_.topk.rows.data;
    const unsigned char* const from =
        data + uint64_t{block + in_block * (kIndexDim / 16) + static_cast<uint32_t>(lane)} * 16;
    const uint32_t at =
        SharedAddress(to) + Tile::PieceAt(Tile::kWarpKeys * warp + lane / 8, lane % 8);
#pragma unroll
    for (int i = 0; i < Tile::kWarpKeys; i += 4)
      CopyAsync16(at + i * kIndexDim, from + i * kIndexDim);
    CopyAsync4(SharedAddress(scale), data + uint64_t{block + params_.codes_units} * 16 +
                                         4 * (in_block + static_cast<uint32_t>(lane)));
  }

 private:
  static constexpr uint32_t kNone = ~0u;

  KVB_DEVICE bool has_groups() const { return Tile::kOfCodes && params_.whole_groups; }
  KVB_DEVICE void LookUp() {
    const int lane = static_cast<int>(threadIdx.x) % 32, warp = static_cast<int>(threadIdx.x) / 32;
    const int32_t row = (first_ + lane) * Tile::kKeys + Tile::kWarpKeys * warp;
    in_block_ = kNone;
    if (row >= num_rows_) return;
    const uint32_t column = params_.block_size.Quotient(static_cast<uint32_t>(row));
    const auto block = static_cast<uint32_t>(table_[column]);
    if (block >= static_cast<uint32_t>(params_.topk.rows.num_blocks)) {
      Flag(flags_, kBadBlock);
      return;
    }
    block_ = block * params_.block_units;
    in_block_ = static_cast<uint32_t>(row) - column * params_.block_size.divisor();
  }

  const IndexScoreParams& params_;
  const int32_t* const table_;
  const int32_t num_rows_;
  int32_t first_;
  uint32_t* const flags_;
  uint32_t block_ = 0, in_block_ = kNone;  // of tile first_ + lane
  KeyCopies<Tile> each_;
};

// What all lanes have, so that the compiler knows it: addresses of products are computed once.
KVB_DEVICE int32_t Uniform(int32_t value) {
  return static_cast<int32_t>(WarpOr(static_cast<uint32_t>(value)));
}

// 16 keys as left operands.
using Operands = uint32_t[kIndexSteps][4];
template <typename T, typename Tile>
KVB_DEVICE void LoadKeys(const unsigned char* tile, int key, int t, Operands& a) {
#pragma unroll
  for (int half = 0; half < 2; ++half) {
    const Sixteen low = LoadKeyPart<T, Tile>(tile, key, 4 * half + t);
    const Sixteen high = LoadKeyPart<T, Tile>(tile, key + 8, 4 * half + t);
#pragma unroll
    for (int step = 0; step < kIndexSteps / 2; ++step) {
      auto& four = a[half * kIndexSteps / 2 + step];
      four[0] = low.pairs[2 * step], four[1] = high.pairs[2 * step];
      four[2] = low.pairs[2 * step + 1], four[3] = high.pairs[2 * step + 1];
    }
  }
}

// What a lane has summed of its keys, summed over its group of four: of the key that it writes.
KVB_DEVICE float SumOfGroup(const TwoScores (&sums)[1], int t) {
  const bool odd = (t & 1) != 0;
  const float own = (odd ? sums[0].high : sums[0].low) +
                    __shfl_xor_sync(kFullWarp, odd ? sums[0].low : sums[0].high, 1);
  return own + __shfl_xor_sync(kFullWarp, own, 2);
}
KVB_DEVICE float SumOfGroup(const TwoScores (&sums)[2], int t) {
  const bool odd = (t & 1) != 0, upper = (t & 2) != 0;
  float own[2];
#pragma unroll
  for (int half = 0; half < 2; ++half) {
    own[half] = (odd ? sums[half].high : sums[half].low) +
                __shfl_xor_sync(kFullWarp, odd ? sums[half].low : sums[half].high, 1);
  }
  return (upper ? own[1] : own[0]) + __shfl_xor_sync(kFullWarp, upper ? own[0] : own[1], 2);
}

// The scores of a warp's keys of a tile: of each token a lane writes one, or two lanes of four do.
template <typename T, typename Tile>
class Scorer {
 public:
  static constexpr int kHalves = Tile::kWarpKeys / 16;

  // `queries` and `weights` of the piece's first token.
  KVB_DEVICE Scorer(uint64_t queries, const float4* weights)
      : queries_(queries), weights_(weights), lane_(static_cast<int>(threadIdx.x) % 32) {}

  KVB_DEVICE void Load(const unsigned char* tile, int first_key) {
#pragma unroll
    for (int half = 0; half < kHalves; ++half) {
      LoadKeys<T, Tile>(tile, first_key + 16 * half + lane_ / 4, lane_ % 4, a_[half]);
    }
    const float scale = reinterpret_cast<const float*>(
        tile + Tile::kScalesAt)[OwnKey(first_key, kHalves == 2 ? lane_ : lane_ & ~2)];
    scale_ = fabsf(scale);
    // Scales come behind the ReLU, which only negative ones would notice: their keys change signs.
    const uint32_t negative = __ballot_sync(kFullWarp, scale < 0);
    if (negative == 0) [[likely]]
      return;
#pragma unroll
    for (int half = 0; half < kHalves; ++half) {
      const uint32_t own = negative >> (lane_ / 4 * 4 + 2 * half);
#pragma unroll
      for (auto& four : a_[half]) {
#pragma unroll
        for (int i = 0; i < 4; ++i) four[i] ^= (own >> i % 2 & 1) != 0 ? 0x80008000u : 0;
      }
    }
  }

  KVB_DEVICE uint32_t KeyOf(int32_t token) {
    float4 weights[kIndexHeadTiles / 2];
#pragma unroll
    for (int m = 0; m < kIndexHeadTiles / 2; ++m) {
      weights[m] = weights_[token * (kIndexHeads / 4) + 4 * m];
    }
    const uint64_t queries = Advanced(queries_, static_cast<uint32_t>(token) * kQueryBytes);
    // One for each half: of a single array ptxas 13.0 leaves out the first half's products.
    float products[kHalves][kIndexHeadTiles][4];
    TwoScores sums[kHalves];
#pragma unroll
    for (int half = 0; half < kHalves; ++half) {
      BeginProducts();
#pragma unroll
      for (int step = 0; step < kIndexSteps; ++step) {
        MultiplyGroupRegistersAlongK<T>(products[half], a_[half][step],
                                        Advanced(queries, step / 4 * kColumnBytes + step % 4 * 32),
                                        step > 0);
      }
      CommitProducts();
      WaitProducts<0>();
      PinAccumulators(products[half]);
      sums[half] = SumOwnHeads(products[half], [&](int m) { return weights[m]; });
    }
    return KeyOfScore(SumOfGroup(sums, lane_ % 4) * scale_);
  }

 private:
  const uint64_t queries_;
  const float4* const weights_;
  const int lane_;
  Operands a_[kHalves];
  float scale_ = 0;
};

// A block per piece of rows and `shape.tokens` tokens.
template <typename T, bool kCodes>
__global__ void __launch_bounds__(kThreads, 1)
    IndexScoresHopperKernel(const __grid_constant__ IndexScoreParams params, Shape shape,
                            int32_t pieces, uint32_t* flags) {
  using Tile = TileOf<kCodes>;
  unsigned char* const shared = DynamicSharedMemory();
  unsigned char* const tiles = shared + shape.tiles_at();
  OverlapNeighbours();
  const IndexTopkParams& topk = params.topk;
  const int warp = Uniform(static_cast<int>(threadIdx.x) / 32);
  const int lane = static_cast<int>(threadIdx.x) % 32;
  const int32_t first =
      params.first_token +
      static_cast<int32_t>(blockIdx.x / static_cast<unsigned>(pieces)) * shape.tokens;
  ForPieces<Tile::kKeys>(params, shape.tokens, pieces, [&](const IndexPiece& piece) {
    const int32_t begin = Uniform(piece.begin), end = Uniform(piece.end);
    const int32_t num_rows = Uniform(piece.num_rows), count = Uniform(piece.last - piece.token);
    TileCopies<Tile> copies(params, piece, flags);
    for (int32_t ahead = 0; ahead < shape.stages - 1; ++ahead) {
      if (begin + ahead < end) copies.Copy(begin + ahead, tiles + ahead * Tile::kBytes);
      CommitCopies();
    }
    // Slots of other requests' tokens stay as they are: others may still read them.
    const int slot = Uniform(piece.token - first);
    for (int i = 0; i < count; ++i) StageToken<T>(topk, shape, piece.token + i, slot + i);
    FenceForAsyncProxy();
    __syncthreads();
    Scorer<T, Tile> scorer(
        RowsAlongK(SharedAddress(shared) + static_cast<uint32_t>(slot) * kQueryBytes),
        reinterpret_cast<const float4*>(shared + shape.weights_at() + slot * kWeightBytes) +
            lane % 4);
    const int32_t own = OwnKey(Tile::kWarpKeys * warp, lane);
    uint32_t* keys = params.keys + int64_t{piece.token - params.first_token} * params.key_stride +
                     begin * Tile::kKeys + own;
    int stage = 0, free_stage = shape.stages - 1;
    for (int32_t tile = begin; tile < end; ++tile, keys += Tile::kKeys) {
      if (shape.stages == 2) {
        WaitCopies<0>();
      } else {
        WaitCopies<1>();
      }
      __syncwarp();
      const int32_t ahead = tile + shape.stages - 1;
      if (ahead < end) copies.Copy(ahead, tiles + free_stage * Tile::kBytes);
      CommitCopies();
      const unsigned char* const at_tile = tiles + stage * Tile::kBytes;
      free_stage = stage;
      stage = stage + 1 == shape.stages ? 0 : stage + 1;
      const int32_t row = tile * Tile::kKeys, group_row = row + warp / 4 * (4 * Tile::kWarpKeys);
      if (group_row >= num_rows) continue;
      scorer.Load(at_tile, Tile::kWarpKeys * warp);
      const bool writes = (Tile::kWarpKeys == 32 || lane % 4 < 2) && row + own < num_rows;
      int32_t i = 0;
      uint32_t* to = keys;
      if (count > 1) {
        i = Uniform(FirstThatSees(piece, topk.ratio, group_row));
        to += i * params.key_stride;
      }
      for (; i < count; ++i, to += params.key_stride) {
        const uint32_t key = scorer.KeyOf(i);
        if (writes) *to = key;
      }
    }
    WaitCopies<0>();
    __syncwarp();  // the next request's keys go to the same tiles
  });
}

template <typename T, bool kCodes>
Error LaunchScores(const LaunchContext& context, IndexScoreParams params) {
  using Tile = TileOf<kCodes>;
  const IndexTopkParams& topk = params.topk;
  params.whole_groups = topk.rows.block_size % Tile::kWarpKeys == 0;
  Shape shape;
  shape.tokens = IndexTokensPerBlock(topk, kMostTokens);
  shape.stages = kCodes ? 3 : 2;
  const int64_t tiles = (int64_t{params.num_tokens} + shape.tokens - 1) / shape.tokens;
  const int32_t pieces =
      IndexPieces(tiles, topk.most_rows, context.num_multiprocessors, kOverheadRows);
  return Launch(
      ConfigOf(context, static_cast<unsigned>(tiles) * static_cast<unsigned>(pieces), kThreads,
               static_cast<size_t>(shape.tiles_at() + shape.stages * Tile::kBytes)),
      IndexScoresHopperKernel<T, kCodes>, params, shape, pieces, context.error_flags);
}

}  // namespace

Error LaunchIndexScoresHopper(const LaunchContext& context, const IndexScoreParams& params) {
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

}  // namespace kvblocks::attention::cuda
