// Choosing rows by their scores; and scores of what tensor cores do not take.

#include "attention/cuda/device/cluster.h"
#include "attention/cuda/device/gpu.h"
#include "attention/cuda/device/ptx.h"
#include "attention/cuda/kernels/elements.h"
#include "attention/cuda/kernels/indexer_scores.h"
#include "attention/cuda/kernels/launch.h"
#include "attention/cuda/kernels/warp_reduce.h"

namespace kvblocks::attention::cuda {
namespace {

// --- Selection ---
//
// A token's keys are assigned to the blocks of a cluster, a run of rows each, and those to warps.
// Three passes over the keys find the least that is chosen, 10, 11 and 11 bits at a time: each
// counts the keys that begin with the bits found so far by their next ones. A last pass gathers
// what is chosen in the order of rows: what is above the least, and the first of what equals it.
// Up to 1024 keys per warp stay in registers from the first pass to the last; more are loaded again
// in each. A pass costs its instructions per key, so it has no branch: keys that do not count are
// counted in a bin of their own.

constexpr int kBins = 2048, kPasses = 3;
constexpr int kAllBins = kBins + 4;  // bin kBins: of keys that do not count
constexpr int kMostRanks = 8;
constexpr int32_t kRowsPerRank = 8192;  // fewer do not make up for a meeting of blocks
// Keys that a warp holds: so many times 4 neighbours of each lane.
constexpr int kLoads = 8;
constexpr int32_t kRowsPerLoad = 4 * 32, kHeldRows = kLoads * kRowsPerLoad;
// Blocks of fewer threads: where there are enough of them for several on a multiprocessor, which
// wait for memory and barriers in turn.
constexpr int kManyThreads = 1024, kFewThreads = 256;

template <int kThreads>
struct SelectShared {
  uint32_t bins[kPasses][kAllBins];
  uint64_t warp_sums[2][kThreads / 32];
  // Of this block's rows: how many are above the least chosen, and how many equal it. Others read
  // it.
  alignas(8) uint32_t own[2];
  // What a pass found.
  uint32_t bin, needed, own_before, all_in_bin;
};

KVB_DEVICE int ShiftOf(int pass) { return pass == 0 ? 22 : pass == 1 ? 11 : 0; }

// The sum of `value` over this lane and those before it.
template <typename T>
KVB_DEVICE T ScanWarp(T value) {
  const int lane = static_cast<int>(threadIdx.x % 32);
#pragma unroll
  for (int lanes = 1; lanes < 32; lanes *= 2) {
    const T below = __shfl_up_sync(kFullWarp, value, lanes);
    if (lane >= lanes) value += below;
  }
  return value;
}
// The sum over the warps before this one of what their lanes 31 bring. Neighbouring calls need
// different warp_sums.
template <int kThreads>
KVB_DEVICE uint64_t SumOfWarpsBefore(uint64_t value, uint64_t* warp_sums) {
  const int lane = static_cast<int>(threadIdx.x % 32), warp = static_cast<int>(threadIdx.x / 32);
  if (lane == 31) warp_sums[warp] = value;
  __syncthreads();
  const uint64_t other = lane < warp ? warp_sums[lane] : 0;
  return uint64_t{WarpTotal(static_cast<uint32_t>(other >> 32))} << 32 |
         WarpTotal(static_cast<uint32_t>(other));
}

KVB_DEVICE void MeetRanks(int ranks) {
  if (ranks > 1) {
    ClusterSync();
  } else {
    __syncthreads();
  }
}

// Keys of rows [begin, end) of this warp; begin is a multiple of 4, or end. What is no row has a
// key of 0, which is less than every row's.
class WarpKeys {
 public:
  KVB_DEVICE WarpKeys(const uint32_t* keys, int32_t begin, int32_t end)
      : keys_(keys), begin_(begin), end_(end), row_(4 * static_cast<int32_t>(threadIdx.x % 32)) {
    Load(begin);
  }

  // Calls function(row, keys of it and the next three) for each lane, in the order of rows. All
  // lanes together.
  template <typename Function>
  KVB_DEVICE void ForEach(const Function& function) {
    for (int32_t base = begin_; base < end_; base += kHeldRows) {
      if (end_ - begin_ > kHeldRows) Load(base);
#pragma unroll
      for (int i = 0; i < kLoads; ++i) {
        if (base + i * kRowsPerLoad >= end_) break;
        const uint32_t four[4] = {held_[i].x, held_[i].y, held_[i].z, held_[i].w};
        function(base + i * kRowsPerLoad + row_, four);
      }
    }
  }

 private:
  KVB_DEVICE void Load(int32_t base) {
#pragma unroll
    for (int i = 0; i < kLoads; ++i) {
      const int32_t row = base + i * kRowsPerLoad + row_;
      held_[i] = row < end_ ? *reinterpret_cast<const uint4*>(keys_ + row) : uint4{0, 0, 0, 0};
      if (row < end_ && row + 4 > end_) [[unlikely]] {
        if (row + 1 >= end_) held_[i].y = 0;
        if (row + 2 >= end_) held_[i].z = 0;
        held_[i].w = 0;
      }
    }
  }

  const uint32_t* const keys_;
  const int32_t begin_, end_, row_;
  uint4 held_[kLoads];
};

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

// Finds the bin in which the `needed`-th largest key is, counts of all blocks taken together; what
// was found is in `shared` after.
template <int kThreads>
KVB_DEVICE void FindBin(SelectShared<kThreads>* shared, int pass, int ranks, uint32_t needed) {
  // The thread's bins, the larger first: bins of larger keys are before those of smaller ones.
  constexpr int kOwn = kBins / kThreads;
  const int low = kBins - kOwn * (static_cast<int>(threadIdx.x) + 1);
  const uint32_t* const bins = shared->bins[pass];
  uint32_t own[kOwn], all[kOwn];
#pragma unroll
  for (int b = 0; b < kOwn; ++b) all[b] = own[b] = bins[low + b];
  if (ranks > 1) {
#pragma unroll
    for (int b = 0; b < kOwn; ++b) all[b] = 0;
#pragma unroll
    for (int other = 0; other < kMostRanks; ++other) {
      if (other >= ranks) break;
#pragma unroll
      for (int b = 0; b < kOwn; b += 2) {
        const float2 pair = LoadFromCluster8(SharedAddress(bins + low + b), other);
        all[b] += __float_as_uint(pair.x), all[b + 1] += __float_as_uint(pair.y);
      }
    }
  }
  uint64_t both = 0;
#pragma unroll
  for (int b = 0; b < kOwn; ++b) both += uint64_t{all[b]} << 32 | own[b];
  const uint64_t upto = ScanWarp(both);
  const uint64_t before =
      SumOfWarpsBefore<kThreads>(upto, shared->warp_sums[pass & 1]) + upto - both;
  auto all_before = static_cast<uint32_t>(before >> 32);
  auto own_before = static_cast<uint32_t>(before);
  if (all_before < needed && needed <= all_before + static_cast<uint32_t>(both >> 32)) {
    bool found = false;
#pragma unroll
    for (int b = kOwn - 1; b >= 0; --b) {
      if (!found && needed <= all_before + all[b]) {
        found = true;
        shared->bin = static_cast<uint32_t>(low + b);
        shared->needed = needed - all_before;
        shared->own_before = own_before;
        shared->all_in_bin = all[b];
      }
      all_before += all[b], own_before += own[b];
    }
  }
  __syncthreads();
}

// Where a chosen row goes: behind those above before it, and those that equal.
KVB_DEVICE uint32_t PlaceOf(uint32_t above, uint32_t equal, uint32_t needed) {
  return above + (equal < needed ? equal : needed);
}
struct Places {
  uint32_t needed, first, last;  // [first, last): of this block's rows
};

// Calls write(place, row) for the rows of this block that are above `top` and, with kTies, for
// those of the first `needed` that equal it; `above` and `equal` are before this block. Rows are
// gathered where nobody counts any more, so that neighbouring threads have neighbouring places.
template <int kThreads, bool kTies, typename Write>
KVB_DEVICE void WriteChosen(SelectShared<kThreads>* shared, WarpKeys& keys, uint32_t top,
                            uint32_t above, uint32_t equal, const Places& places,
                            const Write& write) {
  // Of 128 keys: those above in the upper half, those that equal in the lower one.
  const auto counts_of = [&](uint32_t key) {
    return key > top ? 1u << 16 : kTies && key == top ? 1u : 0u;
  };
  uint32_t lane_above = 0, lane_equal = 0;
  keys.ForEach([&](int32_t, const uint32_t(&four)[4]) {
#pragma unroll
    for (int j = 0; j < 4; ++j) {
      lane_above += four[j] > top ? 1 : 0;
      if (kTies) lane_equal += four[j] == top ? 1 : 0;
    }
  });
  const uint64_t before = SumOfWarpsBefore<kThreads>(
      uint64_t{WarpTotal(lane_above)} << 32 | WarpTotal(lane_equal), shared->warp_sums[0]);
  above += static_cast<uint32_t>(before >> 32), equal += static_cast<uint32_t>(before);
  constexpr uint32_t kGathered = kPasses * kAllBins;
  uint32_t* const gathered = &shared->bins[0][0];
  for (uint32_t from = places.first; from < places.last; from += kGathered) {
    uint32_t next_above = above, next_equal = equal;
    keys.ForEach([&](int32_t row, const uint32_t(&four)[4]) {
      uint32_t counts = 0;
#pragma unroll
      for (int j = 0; j < 4; ++j) counts += counts_of(four[j]);
      const uint32_t upto = ScanWarp(counts);
      uint32_t place_above = next_above + ((upto - counts) >> 16);
      uint32_t place_equal = next_equal + ((upto - counts) & 0xffffu);
      const uint32_t all = __shfl_sync(kFullWarp, upto, 31);
      next_above += all >> 16, next_equal += all & 0xffffu;
#pragma unroll
      for (int j = 0; j < 4; ++j) {
        const bool is_above = four[j] > top, is_equal = kTies && four[j] == top;
        const uint32_t place =
            (kTies ? PlaceOf(place_above, place_equal, places.needed) : place_above) - from;
        if ((is_above || (is_equal && place_equal < places.needed)) && place < kGathered) {
          gathered[place] = static_cast<uint32_t>(row + j);
        }
        place_above += is_above ? 1 : 0;
        place_equal += is_equal ? 1 : 0;
      }
    });
    __syncthreads();
    const uint32_t count = places.last - from < kGathered ? places.last - from : kGathered;
#pragma unroll 1
    for (uint32_t k = static_cast<uint32_t>(threadIdx.x); k < count; k += kThreads) {
      write(from + k, static_cast<int32_t>(gathered[k]));
    }
    __syncthreads();
  }
}

// A cluster of `ranks` blocks per token.
template <int kThreads>
__global__ void __launch_bounds__(kThreads, 1024 / kThreads)
    IndexSelectKernel(const __grid_constant__ IndexScoreParams params, int most_ranks,
                      uint32_t* flags) {
  constexpr int kWarps = kThreads / 32;
  const int ranks = kThreads == kFewThreads ? 1 : most_ranks;
  auto* const shared = reinterpret_cast<SelectShared<kThreads>*>(DynamicSharedMemory());
  OverlapNeighbours();
  const IndexTopkParams& topk = params.topk;
  const int thread = static_cast<int>(threadIdx.x);
  const int rank = static_cast<int>(blockIdx.x) % ranks;
  const int32_t i = static_cast<int32_t>(blockIdx.x) / ranks;
  const int32_t token = params.first_token + i;
  const TokenAt at = FindToken(topk.batch, token);
  const int32_t num_rows = VisibleRows(topk, at.position);
  const int32_t chosen = num_rows < topk.width ? num_rows : topk.width;
  int32_t* const out = topk.indices + token * topk.index_stride;
  if (rank == 0) {
    for (int32_t k = chosen + thread; k < topk.width; k += kThreads) out[k] = -1;
    if (thread == 0) {
      topk.lens[token * topk.lens_stride] = chosen;
      if (at.position >= 0 && (at.position + 1) / topk.ratio > topk.most_rows) {
        Flag(flags, kLengthClamped);
      }
    }
  }
  if (chosen == num_rows) {  // all; known to all blocks of the cluster
    for (int32_t row = rank * kThreads + thread; row < num_rows; row += ranks * kThreads) {
      out[row] = IndexOfRow(params, at.request, row, flags);
    }
    return;
  }
  const int64_t round = int64_t{ranks} * kWarps * kRowsPerLoad;
  const int64_t per_warp = (num_rows + round - 1) / round * kRowsPerLoad;
  const auto begin_of = [&](int w) {
    const int64_t row = (rank * kWarps + w) * per_warp;
    return row < num_rows ? static_cast<int32_t>(row) : num_rows;
  };
  const int warp = thread / 32;
  WarpKeys keys(params.keys + i * params.key_stride, begin_of(warp), begin_of(warp + 1));
  for (int bin = 4 * thread; bin < kPasses * kAllBins; bin += 4 * kThreads) {
    *reinterpret_cast<uint4*>(&shared->bins[0][0] + bin) = uint4{0, 0, 0, 0};
  }
  if (thread < 2) shared->own[thread] = 0;
  __syncthreads();
  // Of keys that begin as `least` does, as many as needed are chosen, and all above.
  uint32_t least = 0, needed = static_cast<uint32_t>(chosen);
  bool done = false;
  for (int pass = 0; pass < kPasses && !done; ++pass) {
    uint32_t* const bins = shared->bins[pass];
    const int shift = ShiftOf(pass);
    keys.ForEach([&](int32_t, const uint32_t(&four)[4]) {
#pragma unroll
      for (int j = 0; j < 4; ++j) {
        const uint32_t bin = (four[j] - least) >> shift;
        atomicAdd(&bins[bin < kBins ? bin : kBins], 1u);
      }
    });
    MeetRanks(ranks);
    FindBin(shared, pass, ranks, needed);
    needed = shared->needed;
    least += shared->bin << shift;
    // All that begin with these bits are chosen: the next bits do not matter.
    done = shared->all_in_bin == needed;
    if (thread == 0) {
      const uint32_t in_bin = bins[shared->bin];
      shared->own[0] += shared->own_before + (done ? in_bin : 0);
      shared->own[1] = done ? 0 : in_bin;
    }
    __syncthreads();
  }
  // What is above `top` is chosen, and the first `needed` that equal it.
  const uint32_t top = done ? least - 1 : least;
  if (done) needed = 0;
  uint32_t above = 0, equal = 0;  // before this block's rows
  if (ranks > 1) {
    ClusterSync();
    for (int other = 0; other < rank; ++other) {
      const float2 pair = LoadFromCluster8(SharedAddress(shared->own), other);
      above += __float_as_uint(pair.x);
      equal += __float_as_uint(pair.y);
    }
  }
  const Places places{needed, PlaceOf(above, equal, needed),
                      PlaceOf(above + shared->own[0], equal + shared->own[1], needed)};
  const auto write = [&](uint32_t place, int32_t row) {
    out[place] = IndexOfRow(params, at.request, row, flags);
  };
  if (done) {
    WriteChosen<kThreads, false>(shared, keys, top, above, equal, places, write);
  } else {
    WriteChosen<kThreads, true>(shared, keys, top, above, equal, places, write);
  }
  // Others may still read what this block counted.
  if (ranks > 1) ClusterSync();
}

template <int kThreads>
Error LaunchSelect(const LaunchContext& context, const IndexScoreParams& params, int ranks) {
  LaunchConfig config =
      ConfigOf(context, static_cast<unsigned>(params.num_tokens) * static_cast<unsigned>(ranks),
               kThreads, sizeof(SelectShared<kThreads>));
  config.cluster = static_cast<unsigned>(ranks);
  return Launch(config, IndexSelectKernel<kThreads>, params, ranks, context.error_flags);
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
  OverlapNeighbours();
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
  return Launch(
      ConfigOf(context, static_cast<unsigned>(params.num_tokens) * static_cast<unsigned>(pieces),
               kThreads),
      IndexScoresKernel, params, pieces, context.error_flags);
}

Error LaunchIndexSelect(const LaunchContext& context, const IndexScoreParams& params) {
  if (params.num_tokens > context.num_multiprocessors &&
      params.topk.most_rows <= kFewThreads / 32 * kHeldRows) {
    return LaunchSelect<kFewThreads>(context, params, 1);
  }
  int ranks = 1;
  while (context.compute_capability == 90 && ranks < kMostRanks &&
         params.num_tokens * ranks * 2 <= context.num_multiprocessors &&
         params.topk.most_rows >= ranks * 2 * kRowsPerRank) {
    ranks *= 2;
  }
  return LaunchSelect<kManyThreads>(context, params, ranks);
}

}  // namespace kvblocks::attention::cuda
