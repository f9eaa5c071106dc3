// Scores of an indexer's rows on tensor cores (mma.sync), and IndexTopk as a whole. Compute
// capability 9.0 has indexer_topk_hopper.cu.
//
// A block of 8 warps scores a piece of a request's rows for 1, 2, 4 or 8 of its tokens. A warp has
// one token: all 64 heads of its queries stay in registers, as the right operands of 64 products,
// so that a key goes from shared memory to a register once and takes part in 64 dot products there.
// 16 keys are the rows of a product. What is added up along a row is ReLU and weight of a head:
// three quarters within a thread, the rest by two exchanges among four lanes. Products and sums are
// of f16 or bf16 values, which hold every code exactly, in float32.
//
// Keys come 128 at a time, by asynchronous copies three such tiles ahead. A warp copies the 16 keys
// of its turn; with one token it scores the same ones, and warps do not wait for each other.

#include <cstdint>

#include "attention/cuda/device/gpu.h"
#include "attention/cuda/device/ptx.h"
#include "attention/cuda/kernels/indexer_scores.h"
#include "attention/cuda/kernels/indexer_tile.h"
#include "attention/cuda/kernels/launch.h"

namespace kvblocks::attention::cuda {
namespace {

constexpr int kWarps = 8, kThreads = kWarps * 32, kWarpKeys = 16;
constexpr int kStages = 4;

// Queries of one token as right operands, and weights of this lane's heads: 8 n + 2 t and the next.
struct Queries {
  uint32_t b[kIndexHeadTiles][kIndexSteps][2];
  float weights[kIndexHeadTiles][2];
};
template <typename T>
KVB_DEVICE void LoadQueries(const IndexTopkParams& params, int64_t token, int lane,
                            Queries& queries) {
  const int group = lane / 4, t = lane % 4;
#pragma unroll
  for (int n = 0; n < kIndexHeadTiles; ++n) {
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const Sixteen part = LoadQueryPart<T>(params, token, 8 * n + group, 64 * half + 16 * t);
#pragma unroll
      for (int step = 0; step < kIndexSteps / 2; ++step) {
        queries.b[n][half * kIndexSteps / 2 + step][0] = part.pairs[2 * step];
        queries.b[n][half * kIndexSteps / 2 + step][1] = part.pairs[2 * step + 1];
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

// Of 16 keys of a tile.
template <typename T, typename Tile>
KVB_DEVICE TwoScores ScoreSixteen(const Queries& queries, const unsigned char* tile, int first,
                                  int lane) {
  const int row = first + lane / 4, t = lane % 4;
  float products[kIndexHeadTiles][4] = {};
#pragma unroll
  for (int half = 0; half < 2; ++half) {
    const Sixteen low = LoadKeyPart<T, Tile>(tile, row, 4 * half + t);
    const Sixteen high = LoadKeyPart<T, Tile>(tile, row + 8, 4 * half + t);
#pragma unroll
    for (int step = 0; step < kIndexSteps / 2; ++step) {
      const uint32_t a[4] = {low.pairs[2 * step], high.pairs[2 * step], low.pairs[2 * step + 1],
                             high.pairs[2 * step + 1]};
#pragma unroll
      for (int n = 0; n < kIndexHeadTiles; ++n) {
        const auto& b = queries.b[n][half * kIndexSteps / 2 + step];
        MultiplyM16N8K16<T>(products[n], a, b[0], b[1]);
      }
    }
  }
  const auto weights = [&](int m) {
    const auto& both = queries.weights;
    return make_float4(both[2 * m][0], both[2 * m][1], both[2 * m + 1][0], both[2 * m + 1][1]);
  };
  return SumHeads(products, weights, LoadScales<Tile>(tile, row));
}

// A block per piece of rows and `tokens` tokens.
template <typename T, bool kCodes>
__global__ void __launch_bounds__(kThreads, 1)
    IndexScoresKernel(const __grid_constant__ IndexScoreParams params, int32_t tokens,
                      int32_t pieces, uint32_t* flags) {
  using Tile = KeyTile<kCodes, kWarps, kWarpKeys>;
  unsigned char* const shared = DynamicSharedMemory();
  OverlapNeighbours();
  const IndexTopkParams& topk = params.topk;
  const int warp = static_cast<int>(threadIdx.x) / 32, lane = static_cast<int>(threadIdx.x) % 32;
  // This warp's token, and which 16 keys of each tile, of every `tokens` that follow.
  const int64_t own_token = params.first_token +
                            int64_t{blockIdx.x / static_cast<unsigned>(pieces)} * tokens +
                            warp % tokens;
  const int own_keys = warp / tokens * 16, step_keys = kWarps / tokens * 16;
  ForPieces<Tile::kKeys>(params, tokens, pieces, [&](const IndexPiece& piece) {
    const int32_t begin = piece.begin, end = piece.end;
    const int32_t own_rows = own_token >= piece.token && own_token < piece.last
                                 ? VisibleRows(topk, piece.position + (own_token - piece.token))
                                 : 0;
    KeyCopies<Tile> copies(params, piece.request, piece.num_rows, flags);
    for (int32_t ahead = 0; ahead < kStages - 1; ++ahead) {
      if (begin + ahead < end) {
        copies.LookUp(begin + ahead);
        copies.Copy(shared + ahead * Tile::kBytes);
      }
      CommitCopies();
    }
    copies.LookUp(begin + kStages - 1);
    Queries queries;
    if (own_rows > 0) LoadQueries<T>(topk, own_token, lane, queries);
    uint32_t* const keys =
        params.keys + int64_t{own_token - params.first_token} * params.key_stride;
    for (int32_t tile = begin; tile < end; ++tile) {
      WaitCopies<kStages - 2>();
      if (tokens == 1) {
        __syncwarp();
      } else {
        __syncthreads();
      }
      const int32_t ahead = tile + kStages - 1;
      if (ahead < end) {
        copies.Copy(shared + (ahead - begin) % kStages * Tile::kBytes);
        copies.LookUp(ahead + 1);
      }
      CommitCopies();
      const unsigned char* const at_tile = shared + (tile - begin) % kStages * Tile::kBytes;
      for (int key = own_keys; key < Tile::kKeys; key += step_keys) {
        const int32_t row = tile * Tile::kKeys + key;
        if (row >= own_rows) break;
        const TwoScores scores = ScoreSixteen<T, Tile>(queries, at_tile, key, lane);
        const int32_t own = OwnKey(row, lane);
        if (lane % 4 < 2 && own < own_rows) keys[own] = KeyOfScore(scores.Own(lane));
      }
    }
    WaitCopies<0>();
    __syncthreads();  // the next request's keys go to the same tiles
  });
}

template <typename T, bool kCodes>
Error LaunchScores(const LaunchContext& context, const IndexScoreParams& params) {
  const IndexTopkParams& topk = params.topk;
  const int32_t tokens = IndexTokensPerBlock(topk, kWarps);
  const int64_t tiles = (int64_t{params.num_tokens} + tokens - 1) / tokens;
  const int32_t pieces = IndexPieces(tiles, topk.most_rows, context.num_multiprocessors);
  return Launch(ConfigOf(context, static_cast<unsigned>(tiles) * static_cast<unsigned>(pieces),
                         kThreads, kStages * KeyTile<kCodes, kWarps, kWarpKeys>::kBytes),
                IndexScoresKernel<T, kCodes>, params, tokens, pieces, context.error_flags);
}

void SetUnits(IndexScoreParams& params) {
  const IndexRows& rows = params.topk.rows;
  const int bytes = rows.planar ? 1 : 2;
  params.block_units = static_cast<uint32_t>(rows.block_stride * bytes / 16);
  params.row_units =
      static_cast<uint32_t>((rows.planar ? int64_t{rows.dim} : rows.row_stride * bytes) / 16);
  params.whole_groups = rows.block_size % kWarpKeys == 0;
  params.codes_units = static_cast<uint32_t>(int64_t{rows.block_size} * rows.dim / 16);
}

int64_t KeyStride(int64_t most_rows) { return (most_rows + 3) / 4 * 4; }

}  // namespace

bool TakesIndexScores(const IndexTopkParams& params) {
  const IndexRows& rows = params.rows;
  const auto aligned = [](const void* data, int64_t bytes) {
    return reinterpret_cast<uintptr_t>(data) % 16 == 0 && bytes % 16 == 0;
  };
  const bool is_16_bit = rows.element == Element::kF16 || rows.element == Element::kBF16;
  if (rows.dim != kIndexDim || params.heads < 1 || params.heads > kIndexHeads) return false;
  if (!rows.planar && !is_16_bit) return false;
  const bool takes_queries =
      params.q.element == Element::kF8E4M3 ||
      (rows.planar ? params.q.element == Element::kF16 || params.q.element == Element::kBF16
                   : params.q.element == rows.element);
  const int q_bytes = BytesOf(params.q.element), row_bytes = rows.planar ? 1 : 2;
  return takes_queries && TakesKeyCopies(rows) &&
         aligned(params.q.data, params.q.row_stride * q_bytes) &&
         params.q.head_stride * q_bytes % 16 == 0 &&
         aligned(rows.data, rows.block_stride * row_bytes) && rows.row_stride * row_bytes % 16 == 0;
}

Error LaunchIndexScores(const LaunchContext& context, const IndexScoreParams& params) {
  if (context.compute_capability == 90) return LaunchIndexScoresHopper(context, params);
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
  if (fast) SetUnits(part);
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
