// Choosing rows by their scores; and scores of what tensor cores do not take.

#include "kvblocks/attention/cuda/device/cluster.h"
#include "kvblocks/attention/cuda/device/gpu.h"
#include "kvblocks/attention/cuda/device/ptx.h"
#include "kvblocks/attention/cuda/kernels/elements.h"
#include "kvblocks/attention/cuda/kernels/indexer_scores.h"

namespace kvblocks::attention::cuda {
namespace {

// --- Selection ---
//
// A token's keys are dealt to the blocks of a cluster, a run of rows each. Three passes over the
// keys find the least that is chosen, 11, 11 and 10 bits at a time: each counts the keys that begin
// with the bits found so far by their next ones. A last pass writes what is chosen in the order of
// rows: what is above the least, and the first of what equals it.

constexpr int kSelectThreads = 1024, kSelectWarps = kSelectThreads / 32;
constexpr int kBins = 2 * kSelectThreads;  // two a thread
constexpr int kPasses = 3;
constexpr int kMostRanks = 8;
constexpr int32_t kRowsPerRank = 8192;  // fewer do not make up for a meeting of blocks
// Keys of a thread per round, 4 of them neighbours.
constexpr int kLoads = 4;
constexpr int kRowsPerLoad = 4 * kSelectThreads;

struct SelectShared {
  uint32_t bins[kPasses][kBins];
  uint64_t warp_sums[2][kSelectWarps];
  // Of this block's rows: how many are above the least chosen, and how many equal it. Others read
  // it.
  alignas(8) uint32_t own[2];
  // What a pass found.
  uint32_t bin, needed, own_before, all_in_bin;
};

KVB_DEVICE int ShiftOf(int pass) { return pass == 0 ? 21 : pass == 1 ? 10 : 0; }
KVB_DEVICE uint32_t MaskOf(int pass) { return pass == 2 ? 1023u : 2047u; }

// The sum of `value` over this thread and those before it, and over all. Neighbouring calls need
// different warp_sums.
struct Scanned {
  uint64_t upto, all;
};
KVB_DEVICE Scanned ScanBlock(uint64_t value, uint64_t* warp_sums) {
  const int lane = static_cast<int>(threadIdx.x % 32), warp = static_cast<int>(threadIdx.x / 32);
  uint64_t sum = value;
#pragma unroll
  for (int lanes = 1; lanes < 32; lanes *= 2) {
    const uint64_t below = __shfl_up_sync(kFullWarp, sum, lanes);
    if (lane >= lanes) sum += below;
  }
  if (lane == 31) warp_sums[warp] = sum;
  __syncthreads();
  uint64_t warps = warp_sums[lane];
#pragma unroll
  for (int lanes = 1; lanes < 32; lanes *= 2) {
    const uint64_t below = __shfl_up_sync(kFullWarp, warps, lanes);
    if (lane >= lanes) warps += below;
  }
  const uint64_t before = __shfl_sync(kFullWarp, warps, warp == 0 ? 0 : warp - 1);
  return {sum + (warp == 0 ? 0 : before), __shfl_sync(kFullWarp, warps, 31)};
}

KVB_DEVICE void MeetRanks(int ranks) {
  if (ranks > 1) {
    ClusterSync();
  } else {
    __syncthreads();
  }
}

// Calls function(first row, its keys) for neighbouring keys of [begin, end), four at a time; begin
// is a multiple of 4.
template <typename Function>
KVB_DEVICE void ForKeys(const uint32_t* keys, int32_t begin, int32_t end,
                        const Function& function) {
  const int32_t thread = static_cast<int32_t>(threadIdx.x);
  for (int32_t base = begin; base < end; base += kLoads * kRowsPerLoad) {
    uint4 four[kLoads];
#pragma unroll
    for (int i = 0; i < kLoads; ++i) {
      const int32_t row = base + i * kRowsPerLoad + 4 * thread;
      four[i] = row < end ? *reinterpret_cast<const uint4*>(keys + row) : uint4{0, 0, 0, 0};
    }
#pragma unroll
    for (int i = 0; i < kLoads; ++i) {
      function(base + i * kRowsPerLoad + 4 * thread, four[i]);
    }
  }
}

// The place of row `row` of a request in lists.
KVB_DEVICE int32_t IndexOfRow(const IndexScoreParams& params, int32_t request, int32_t row,
                              uint32_t* flags) {
  if (!params.topk.as_slots) return row;
  const auto column = static_cast<int32_t>(params.block_size.Quotient(static_cast<uint32_t>(row)));
  const int32_t size = params.topk.rows.block_size;
  const int64_t block =
      BlockOf(params.topk.batch, request, column, params.topk.rows.num_blocks, flags);
  return block < 0 ? -1 : static_cast<int32_t>(block * size + row - int64_t{column} * size);
}

// A cluster of `ranks` blocks per token.
__global__ void __launch_bounds__(kSelectThreads)
    IndexSelectKernel(const __grid_constant__ IndexScoreParams params, int ranks, uint32_t* flags) {
  auto* const shared = reinterpret_cast<SelectShared*>(DynamicSharedMemory());
  AllowNextKernel();
  WaitForPreviousKernel();
  const IndexTopkParams& topk = params.topk;
  const int thread = static_cast<int>(threadIdx.x);
  const int rank = static_cast<int>(blockIdx.x) % ranks;
  const int32_t i = static_cast<int32_t>(blockIdx.x) / ranks;
  const int64_t token = int64_t{params.first_token} + i;
  const TokenAt at = FindToken(topk.batch, token);
  const int32_t num_rows = VisibleRows(topk, at.position);
  const int32_t chosen = num_rows < topk.width ? num_rows : topk.width;
  int32_t* const out = topk.indices + token * topk.index_stride;
  if (rank == 0) {
    for (int32_t k = chosen + thread; k < topk.width; k += kSelectThreads) out[k] = -1;
    if (thread == 0) {
      topk.lens[token * topk.lens_stride] = chosen;
      if (at.position >= 0 && (at.position + 1) / topk.ratio > topk.most_rows) {
        Flag(flags, kLengthClamped);
      }
    }
  }
  if (chosen == num_rows) {  // all; known to all blocks of the cluster
    for (int32_t row = rank * kSelectThreads + thread; row < num_rows;
         row += ranks * kSelectThreads) {
      out[row] = IndexOfRow(params, at.request, row, flags);
    }
    return;
  }
  const uint32_t* const keys = params.keys + i * params.key_stride;
  const int32_t per_rank = ((num_rows + ranks - 1) / ranks + 3) / 4 * 4;
  const int32_t begin = rank * per_rank < num_rows ? rank * per_rank : num_rows / 4 * 4;
  const int32_t end = rank * per_rank >= num_rows   ? begin
                      : begin + per_rank < num_rows ? begin + per_rank
                                                    : num_rows;
  for (int bin = thread; bin < kPasses * kBins; bin += kSelectThreads)
    (&shared->bins[0][0])[bin] = 0;
  if (thread < 2) shared->own[thread] = 0;
  __syncthreads();
  uint32_t least = 0, mask = 0, needed = static_cast<uint32_t>(chosen);
  uint32_t own_above = 0, own_equal = 0;
  for (int pass = 0; pass < kPasses; ++pass) {
    uint32_t* const bins = shared->bins[pass];
    const int shift = ShiftOf(pass);
    const uint32_t digit = MaskOf(pass);
    ForKeys(keys, begin, end, [&](int32_t row, const uint4& four) {
      const uint32_t each[4] = {four.x, four.y, four.z, four.w};
#pragma unroll
      for (int j = 0; j < 4; ++j) {
        if (row + j < end && (each[j] & mask) == least)
          atomicAdd(&bins[each[j] >> shift & digit], 1u);
      }
    });
    MeetRanks(ranks);
    // The thread's two bins, the larger first: bins of larger keys are before those of smaller
    // ones.
    const int low = kBins - 2 - 2 * thread;
    const uint32_t own_high = bins[low + 1], own_low = bins[low];
    uint32_t all_high = own_high, all_low = own_low;
    if (ranks > 1) {
      all_high = all_low = 0;
      for (int other = 0; other < ranks; ++other) {
        const float2 pair = LoadFromCluster8(SharedAddress(bins + low), other);
        all_low += __float_as_uint(pair.x);
        all_high += __float_as_uint(pair.y);
      }
    }
    const uint64_t both = uint64_t{all_high + all_low} << 32 | (own_high + own_low);
    const Scanned scanned = ScanBlock(both, shared->warp_sums[pass & 1]);
    const auto upto = static_cast<uint32_t>(scanned.upto >> 32);
    const uint32_t before = upto - all_high - all_low;
    if (before < needed && needed <= upto) {
      const bool in_high = needed <= before + all_high;
      const uint32_t own_before = static_cast<uint32_t>(scanned.upto) - own_high - own_low;
      shared->bin = static_cast<uint32_t>(in_high ? low + 1 : low);
      shared->needed = needed - before - (in_high ? 0 : all_high);
      shared->own_before = own_before + (in_high ? 0 : own_high);
      shared->all_in_bin = in_high ? all_high : all_low;
    }
    __syncthreads();
    needed = shared->needed;
    least |= shared->bin << shift;
    mask |= digit << shift;
    own_above += shared->own_before;
    own_equal = bins[shared->bin];
    // All that begin with these bits are chosen: the next bits do not matter.
    const bool done = shared->all_in_bin == needed;
    __syncthreads();
    if (done) break;
  }
  // With `mask` over the key, "equal" is what begins with the bits of the least.
  uint32_t above = 0, equal = 0;  // before this block's rows
  if (ranks > 1) {
    if (thread == 0) shared->own[0] = own_above, shared->own[1] = own_equal;
    ClusterSync();
    for (int other = 0; other < rank; ++other) {
      const float2 pair = LoadFromCluster8(SharedAddress(shared->own), other);
      above += __float_as_uint(pair.x);
      equal += __float_as_uint(pair.y);
    }
  }
  // Sums of `above` in the upper half, of `equal` in the lower one.
  uint64_t behind = uint64_t{above} << 32 | equal;
  int turn = 0;
  const auto load = [&](int32_t row) {
    return row < end ? *reinterpret_cast<const uint4*>(keys + row) : uint4{0, 0, 0, 0};
  };
  uint4 next = load(begin + 4 * thread);
  for (int32_t base = begin; base < end; base += kRowsPerLoad) {
    const int32_t row = base + 4 * thread;
    const uint4 four = next;
    next = load(row + kRowsPerLoad);
    const uint32_t each[4] = {four.x & mask, four.y & mask, four.z & mask, four.w & mask};
    uint64_t counts = 0;
#pragma unroll
    for (int j = 0; j < 4; ++j) {
      if (row + j < end) counts += each[j] > least ? uint64_t{1} << 32 : each[j] == least ? 1 : 0;
    }
    const Scanned scanned = ScanBlock(counts, shared->warp_sums[turn]);
    turn ^= 1;
    const uint64_t before = behind + scanned.upto - counts;
    auto place_above = static_cast<uint32_t>(before >> 32);
    auto place_equal = static_cast<uint32_t>(before);
#pragma unroll
    for (int j = 0; j < 4; ++j) {
      if (row + j >= end) break;
      const bool is_above = each[j] > least, is_equal = each[j] == least;
      if (is_above || (is_equal && place_equal < needed)) {
        const uint32_t place = place_above + (place_equal < needed ? place_equal : needed);
        out[place] = IndexOfRow(params, at.request, row + j, flags);
      }
      place_above += is_above ? 1 : 0;
      place_equal += is_equal ? 1 : 0;
    }
    behind += scanned.all;
  }
  // Others may still read what this block counted.
  if (ranks > 1) ClusterSync();
}

// --- Portable scores ---

constexpr int kThreads = 256;
constexpr int kHeadsAtOnce = 8, kMostDim = 512;  // queries in shared memory

// Adds the products of up to kHeadsAtOnce heads, whose queries are in shared memory.
KVB_DEVICE void ScoreRows(const IndexTopkParams& params, const TokenAt& at, int32_t begin,
                          int32_t end, const float* queries, const float* weights, int heads,
                          bool first, bool last, uint32_t* keys, uint32_t* flags) {
  const IndexRows& rows = params.rows;
  for (int32_t row = begin + static_cast<int32_t>(threadIdx.x); row < end; row += kThreads) {
    const int32_t column = row / rows.block_size, offset = row - column * rows.block_size;
    const int64_t block = BlockOf(params.batch, at.request, column, rows.num_blocks, flags);
    if (block < 0) {
      keys[row] = KeyOfScore(-INFINITY);
      continue;
    }
    const int64_t from =
        block * rows.block_stride +
        (rows.planar ? int64_t{offset} * rows.dim : int64_t{offset} * rows.row_stride);
    const Element element = rows.planar ? Element::kF8E4M3 : rows.element;
    float products[kHeadsAtOnce] = {};
    for (int d = 0; d < rows.dim; ++d) {
      const float key = LoadAsFloat(element, rows.data, from + d);
#pragma unroll
      for (int h = 0; h < kHeadsAtOnce; ++h) products[h] += queries[h * rows.dim + d] * key;
    }
    const float scale = rows.planar ? *ScaleOf(rows, block, offset) : 1.0f;
    // Between groups of heads the sum itself waits where the key will be.
    float sum = first ? 0.0f : __uint_as_float(keys[row]);
    for (int h = 0; h < heads; ++h) sum += weights[h] * PositiveOrNan(products[h] * scale);
    keys[row] = last ? KeyOfScore(sum) : __float_as_uint(sum);
  }
}

// A block of threads per token and piece of its rows.
__global__ void __launch_bounds__(kThreads)
    IndexScoresKernel(const __grid_constant__ IndexScoreParams params, int32_t pieces,
                      uint32_t* flags) {
  __shared__ float queries[kHeadsAtOnce * kMostDim];
  __shared__ float weights[kHeadsAtOnce];
  AllowNextKernel();
  WaitForPreviousKernel();
  const IndexTopkParams& topk = params.topk;
  const int thread = static_cast<int>(threadIdx.x), dim = topk.rows.dim;
  const auto i = static_cast<int32_t>(blockIdx.x / static_cast<unsigned>(pieces));
  const auto piece = static_cast<int32_t>(blockIdx.x % static_cast<unsigned>(pieces));
  const int64_t token = int64_t{params.first_token} + i;
  const TokenAt at = FindToken(topk.batch, token);
  const int32_t num_rows = VisibleRows(topk, at.position);
  if (num_rows <= topk.width) return;
  const auto begin = static_cast<int32_t>(int64_t{num_rows} * piece / pieces);
  const auto end = static_cast<int32_t>(int64_t{num_rows} * (piece + 1) / pieces);
  // Without heads scores are 0.
  for (int head = 0; head == 0 || head < topk.heads; head += kHeadsAtOnce) {
    const int heads = topk.heads - head < kHeadsAtOnce ? topk.heads - head : kHeadsAtOnce;
    __syncthreads();
    for (int k = thread; k < kHeadsAtOnce * dim; k += kThreads) {
      const int h = k / dim;
      queries[k] = h >= heads ? 0.0f
                              : LoadAsFloat(topk.q.element, topk.q.data,
                                            token * topk.q.row_stride +
                                                (head + h) * topk.q.head_stride + k - h * dim);
    }
    if (thread < heads) weights[thread] = topk.weights[token * topk.weight_stride + head + thread];
    __syncthreads();
    ScoreRows(topk, at, begin, end, queries, weights, heads, head == 0,
              head + kHeadsAtOnce >= topk.heads, params.keys + i * params.key_stride, flags);
  }
}

}  // namespace

int32_t IndexPieces(int64_t num_tiles, int64_t most_rows, int num_multiprocessors,
                    int64_t overhead) {
  constexpr int64_t kLeastRows = 512;  // of a piece
  constexpr int kMostWaves = 16;
  const int64_t most = most_rows / kLeastRows < 1 ? 1 : most_rows / kLeastRows;
  // As many as fill so many waves of blocks, and what they cost.
  const auto pieces_of = [&](int64_t waves) {
    const int64_t pieces = waves * num_multiprocessors / num_tiles;
    return pieces < 1 ? 1 : pieces < most ? pieces : most;
  };
  const auto cost_of = [&](int64_t pieces) {
    const int64_t waves = (num_tiles * pieces + num_multiprocessors - 1) / num_multiprocessors;
    return waves * (most_rows / pieces + overhead);
  };
  int64_t least = cost_of(1);
  for (int waves = 1; waves <= kMostWaves; ++waves) {
    const int64_t cost = cost_of(pieces_of(waves));
    least = cost < least ? cost : least;
  }
  // Lengths differ: of the counts that cost about as little the largest evens out best.
  int64_t best = 1;
  for (int waves = 1; waves <= kMostWaves; ++waves) {
    if (cost_of(pieces_of(waves)) * 16 <= least * 17) best = pieces_of(waves);
  }
  return static_cast<int32_t>(best);
}

Error LaunchPortableIndexScores(const LaunchContext& context, const IndexScoreParams& params) {
  if (params.topk.rows.dim > kMostDim) return cudaErrorInvalidConfiguration;
  const int32_t pieces =
      IndexPieces(params.num_tokens, params.topk.most_rows, context.num_multiprocessors * 4);
  LaunchConfig config;
  config.grid = dim3(static_cast<unsigned>(params.num_tokens) * static_cast<unsigned>(pieces));
  config.block = dim3(kThreads);
  config.stream = context.stream;
  config.overlap_previous = context.can_overlap();
  return Launch(config, IndexScoresKernel, params, pieces, context.error_flags);
}

Error LaunchIndexSelect(const LaunchContext& context, const IndexScoreParams& params) {
  int ranks = 1;
  while (context.compute_capability == 90 && ranks < kMostRanks &&
         params.num_tokens * ranks * 2 <= context.num_multiprocessors &&
         params.topk.most_rows >= ranks * 2 * kRowsPerRank) {
    ranks *= 2;
  }
  LaunchConfig config;
  config.grid = dim3(static_cast<unsigned>(params.num_tokens) * static_cast<unsigned>(ranks));
  config.block = dim3(kSelectThreads);
  config.shared_bytes = sizeof(SelectShared);
  config.stream = context.stream;
  config.overlap_previous = context.can_overlap();
  config.cluster = static_cast<unsigned>(ranks);
  return Launch(config, IndexSelectKernel, params, ranks, context.error_flags);
}

}  // namespace kvblocks::attention::cuda
