// Scores of an indexer's rows with wgmma, for compute capability 9.0.
//
// A block of 4 warpgroups scores a piece of a request's rows for 1, 2, 4 or 8 of its tokens, whose
// queries lie in shared memory in 16 bits, all 64 heads as the columns of the right operand. Keys
// are the left one, in registers: a warp copies its 16 keys of a tile, converts them once and
// multiplies them with the queries of every token of the block. So keys need no barrier, and no two
// warpgroups wait for each other: while one sums heads, products of the others run.
//
// 16 keys per warp and 128 registers per thread: all registers of a multiprocessor, one block.

#include "attention/cuda/device/gpu.h"
#include "attention/cuda/device/hopper.h"
#include "attention/cuda/device/numbers.h"
#include "attention/cuda/device/ptx.h"
#include "attention/cuda/kernels/indexer_scores.h"
#include "attention/cuda/kernels/indexer_tile.h"
#include "attention/cuda/kernels/launch.h"

namespace kvblocks::attention::cuda {
namespace {

constexpr int kGroups = 4, kWarps = 4 * kGroups, kThreads = 32 * kWarps;
constexpr int64_t kOverheadRows =
    768;  // 3 us of a block's beginning, in which memory gives so many

// Dynamic shared memory: queries of each token, two columns of 64 values (RowsAlongK) for 64 heads;
// weights of each; tiles of keys. With 8 tokens a tile lasts so long that two tiles will do.
constexpr int kColumnBytes = kIndexHeads * 128, kQueryBytes = 2 * kColumnBytes;
constexpr int kWeightBytes = kIndexHeads * 4;
struct Shape {
  int32_t tokens, stages;
  KVB_HOST_DEVICE int weights_at() const { return tokens * kQueryBytes; }
  KVB_HOST_DEVICE int tiles_at() const { return tokens * (kQueryBytes + kWeightBytes); }
};
template <bool kCodes>
constexpr int kMostTokens = kCodes ? 8 : 4;

// Queries and weights of token `slot` of the block. By all threads, each having 16 values of a
// head. Values go where the order along k of indexer_tile.h wants them: pair i of lane t's 16
// values, which are of column `half`, to pair t of piece i.
template <typename T>
KVB_DEVICE void StageToken(const IndexTopkParams& params, const Shape& shape, int64_t token,
                           int slot) {
  unsigned char* const shared = DynamicSharedMemory();
  const int thread = static_cast<int>(threadIdx.x);
  static_assert(kThreads == kIndexHeads * 8);
  const int t = thread % 4, head = thread / 4 % kIndexHeads, half = thread / 4 / kIndexHeads;
  const Sixteen part = LoadQueryPart<T>(params, token, head, 64 * half + 16 * t);
  unsigned char* const to = shared + slot * kQueryBytes + half * kColumnBytes + head * 128 + 4 * t;
#pragma unroll
  for (int i = 0; i < 8; ++i) {
    *reinterpret_cast<uint32_t*>(to + ((i ^ head % 8) << 4)) = part.pairs[i];
  }
  // Four of a lane together: heads 16 m + 2 t, the next, 8 behind both.
  if (thread < kIndexHeads) {
    const int of_lane = thread % 8 / 2, place = thread % 16 / 8 * 2 + thread % 2;
    reinterpret_cast<float*>(shared + shape.weights_at() +
                             slot * kWeightBytes)[thread / 16 * 16 + 4 * of_lane + place] =
        thread < params.heads ? params.weights[token * params.weight_stride + thread] : 0.0f;
  }
}

// A block per piece of rows and `shape.tokens` tokens.
template <typename T, bool kCodes>
__global__ void __launch_bounds__(kThreads, 1)
    IndexScoresHopperKernel(const __grid_constant__ IndexScoreParams params, Shape shape,
                            int32_t pieces, uint32_t* flags) {
  using Tile = KeyTile<kCodes, kWarps>;
  unsigned char* const shared = DynamicSharedMemory();
  unsigned char* const tiles = shared + shape.tiles_at();
  AllowNextKernel();
  WaitForPreviousKernel();
  const IndexTopkParams& topk = params.topk;
  const int warp = static_cast<int>(threadIdx.x) / 32, lane = static_cast<int>(threadIdx.x) % 32;
  const int t = lane % 4;
  const int32_t first =
      params.first_token +
      static_cast<int32_t>(blockIdx.x / static_cast<unsigned>(pieces)) * shape.tokens;
  ForPieces<Tile::kKeys>(params, shape.tokens, pieces, [&](const IndexPiece& piece) {
    const int32_t begin = piece.begin, end = piece.end;
    KeyCopies<Tile> copies(params, piece.request, piece.num_rows, flags);
    for (int32_t ahead = 0; ahead < shape.stages - 1; ++ahead) {
      if (begin + ahead < end) {
        copies.LookUp(begin + ahead);
        copies.Copy(tiles + ahead * Tile::kBytes);
      }
      CommitCopies();
    }
    copies.LookUp(begin + shape.stages - 1);
    // Slots of other requests' tokens stay as they are: others may still read them.
    const int slot = piece.token - first, count = piece.last - piece.token;
    for (int i = 0; i < count; ++i) StageToken<T>(topk, shape, piece.token + i, slot + i);
    FenceForAsyncProxy();
    __syncthreads();
    const auto* const weights =
        reinterpret_cast<const float4*>(shared + shape.weights_at() + slot * kWeightBytes) + t;
    const uint64_t queries = RowsAlongK(SharedAddress(shared) + slot * kQueryBytes);
    uint32_t* const keys =
        params.keys + int64_t{piece.token - params.first_token} * params.key_stride;
    int stage = 0, free_stage = shape.stages - 1;
    for (int32_t tile = begin; tile < end; ++tile) {
      if (shape.stages == 2) {
        WaitCopies<0>();
      } else {
        WaitCopies<1>();
      }
      __syncwarp();
      const int32_t ahead = tile + shape.stages - 1;
      if (ahead < end) {
        copies.Copy(tiles + free_stage * Tile::kBytes);
        copies.LookUp(ahead + 1);
      }
      CommitCopies();
      const unsigned char* const at_tile = tiles + stage * Tile::kBytes;
      free_stage = stage;
      stage = stage + 1 == shape.stages ? 0 : stage + 1;
      const int32_t group_row = tile * Tile::kKeys + warp / 4 * 64;
      if (group_row >= piece.num_rows) continue;
      // This warp's keys as left operands.
      const int key = 16 * warp + lane / 4;
      uint32_t a[kIndexSteps][4];
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        const Sixteen low = LoadKeyPart<T, Tile>(at_tile, key, 4 * half + t);
        const Sixteen high = LoadKeyPart<T, Tile>(at_tile, key + 8, 4 * half + t);
#pragma unroll
        for (int step = 0; step < kIndexSteps / 2; ++step) {
          auto& four = a[half * kIndexSteps / 2 + step];
          four[0] = low.pairs[2 * step], four[1] = high.pairs[2 * step];
          four[2] = low.pairs[2 * step + 1], four[3] = high.pairs[2 * step + 1];
        }
      }
      const TwoScales scales = LoadScales<Tile>(at_tile, key);
      const int32_t own = tile * Tile::kKeys + OwnKey(16 * warp, lane);
      const bool writes = t < 2 && own < piece.num_rows;
      int i = FirstThatSees(piece, topk.ratio, group_row);
      uint32_t* to = keys + own + i * params.key_stride;
      for (; i < count; ++i, to += params.key_stride) {
        float products[kIndexHeadTiles][4];
        const uint64_t own_queries = Advanced(queries, static_cast<uint32_t>(i) * kQueryBytes);
        BeginProducts();
#pragma unroll
        for (int step = 0; step < kIndexSteps; ++step) {
          MultiplyGroupRegistersAlongK<T>(
              products, a[step], Advanced(own_queries, step / 4 * kColumnBytes + step % 4 * 32),
              step > 0);
        }
        CommitProducts();
        float4 own_weights[kIndexHeadTiles / 2];
#pragma unroll
        for (int m = 0; m < kIndexHeadTiles / 2; ++m) {
          own_weights[m] = weights[i * (kIndexHeads / 4) + 4 * m];
        }
        WaitProducts<0>();
        PinAccumulators(products);
        const TwoScores scores = SumHeads(
            products, [&](int m) { return own_weights[m]; }, scales);
        if (writes) *to = KeyOfScore(scores.Own(lane));
      }
    }
    WaitCopies<0>();
    __syncwarp();  // the next request's keys go to the same tiles
  });
}

template <typename T, bool kCodes>
Error LaunchScores(const LaunchContext& context, const IndexScoreParams& params) {
  const IndexTopkParams& topk = params.topk;
  Shape shape;
  shape.tokens = IndexTokensPerBlock(topk, kMostTokens<kCodes>);
  shape.stages = shape.tokens == 8 || !kCodes ? 2 : 3;
  const int64_t tiles = (int64_t{params.num_tokens} + shape.tokens - 1) / shape.tokens;
  const int32_t pieces =
      IndexPieces(tiles, topk.most_rows, context.num_multiprocessors, kOverheadRows);
  return Launch(
      ConfigOf(
          context, static_cast<unsigned>(tiles) * static_cast<unsigned>(pieces), kThreads,
          static_cast<size_t>(shape.tiles_at() + shape.stages * KeyTile<kCodes, kWarps>::kBytes)),
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
