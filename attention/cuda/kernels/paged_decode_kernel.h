// The decode kernel. Device code: included by paged_decode*.cu, one per padded head size.
//
// A block of four warps does pieces of one KV head, tiles of 64 keys at a time, 16 by each warp. A
// warp prefetches its own keys by kStages tiles, also those of the next piece, and computes on
// nothing else: warps meet only at the end of a piece, when their four states are merged.

#ifndef KVBLOCKS_ATTENTION_CUDA_KERNELS_PAGED_DECODE_KERNEL_H_
#define KVBLOCKS_ATTENTION_CUDA_KERNELS_PAGED_DECODE_KERNEL_H_

#include <type_traits>

#include "attention/cuda/device/cluster.h"
#include "attention/cuda/device/gpu.h"
#include "attention/cuda/device/ptx.h"
#include "attention/cuda/kernels/decode_items.h"
#include "attention/cuda/kernels/decode_loader.h"
#include "attention/cuda/kernels/decode_merge.h"
#include "attention/cuda/kernels/decode_partition.h"
#include "attention/cuda/kernels/decode_plan.h"
#include "attention/cuda/kernels/decode_special.h"
#include "attention/cuda/kernels/decode_state.h"

namespace kvblocks::attention::cuda {

// The block's share of an array, unless that is more than what a prefetch is worth.
KVB_DEVICE void PrefetchLines(const void* array, int64_t bytes, int thread, int num_threads) {
  const int64_t offset = int64_t{thread} * 128;
  if (bytes <= int64_t{num_threads} * 128 && offset < bytes) {
    PrefetchToL2(static_cast<const char*>(array) + offset);
  }
}

template <typename T, typename Code, int kDim, int kGroups, bool kSpecial = false>
__global__ __launch_bounds__(
    kDecodeWarps * 32,
    (DecodeShape<Code, kDim,
                 kGroups>::kBlocksPerMultiprocessor)) void PagedDecodeKernel(const __grid_constant__
                                                                                 DecodeKernelParams
                                                                                     p) {
  using Shape = DecodeShape<Code, kDim, kGroups>;
  constexpr int kRows = Shape::kRows;
  const int thread = static_cast<int>(threadIdx.x);
  const bool plans_itself = p.header == nullptr;
  const bool has_length = plans_itself && thread < p.num_requests;
  bool is_guess = plans_itself && p.query_start_loc == nullptr, is_confirmed = !is_guess;
  // Asked for before anything else: all that follows waits for it.
  int length = 0;
  if (is_guess && has_length) length = LoadGuess(p.seq_lens + thread);
  const int lane = thread % 32, warp = WarpOfBlock(), g = lane / 4, t = lane % 4;
  const int kv_head = static_cast<int>(blockIdx.y), row_group = static_cast<int>(blockIdx.z);
  const int row_groups = static_cast<int>(gridDim.z);
  const int part = static_cast<int>(blockIdx.x), num_parts = static_cast<int>(gridDim.x);
  unsigned char* shared = DynamicSharedMemory();
  float* merge = reinterpret_cast<float*>(shared + Shape::kStages * Shape::kTileBytes);
  float2* stats =
      reinterpret_cast<float2*>(shared + Shape::kStages * Shape::kTileBytes + Shape::kMergeBytes);
  // Also how many pieces there are, before the first.
  int* is_last = reinterpret_cast<int*>(stats + kDecodeWarps * kRows);
  int* differs = is_last + 1;
  // Of launches that plan for themselves.
  int32_t* lengths = is_last + 4;
  int4* pieces = reinterpret_cast<int4*>(lengths + kMaxOwnRequests);

  const bool is_auto = plans_itself || p.part_begin != nullptr;
  // What is read first, each by the address in the last: fetched at once, while others still run.
  const int all_threads = static_cast<int>(gridDim.x * gridDim.y * gridDim.z) * kDecodeWarps * 32;
  const int own_thread =
      static_cast<int>((blockIdx.z * gridDim.y + blockIdx.y) * gridDim.x + blockIdx.x) *
          kDecodeWarps * 32 +
      thread;
  PrefetchLines(p.seq_lens, p.num_requests * int64_t{4}, own_thread, all_threads);
  if (!plans_itself) PrefetchLines(p.header, p.plan_bytes, own_thread, all_threads);
  PrefetchLines(p.block_table, p.num_requests * p.table_stride * 4, own_thread, all_threads);
  PrefetchLines(p.q, p.num_requests * p.q_row_stride * (Code::kQueriesToo ? 1 : 2), own_thread,
                all_threads);
  // A block that plans for itself does so before it may, by what lengths and the table are now:
  // that is what they will be unless the kernel before changes them. Keys it copies only when it
  // may, but before it knows that nothing has changed; else it drops them and begins again.
  const uint32_t stages =
      SharedAddress(shared) + static_cast<uint32_t>(warp * 2 * Shape::kMatrixBytes);
  DecodeWork work = {};
  DecodeLoader<Code, kDim, kRows, kSpecial> loader(p, kv_head, row_group);
  uint32_t missing = 0;  // two bits per stage, of the next one to compute on lowest
  int filled = 0;        // stages
  static_assert(kMaxOwnRequests <= kDecodeWarps * 32);
  if (!is_guess) {
    WaitForPreviousKernel();
    AllowNextKernel();
    if (has_length) length = LoadFromOthers4(p.seq_lens + thread);
  }
  if (has_length) lengths[thread] = length;
  uint32_t block = 0;
#pragma unroll 1
  for (bool begins = true;;) {
    if (!begins) {
      // What was guessed goes on.
    } else if (plans_itself) {
      __syncthreads();
      const auto tiles_of = [&](int b) {
        return TilesOfRequest(lengths, p.query_start_loc, b, p.max_keys, p.limits, p.block_size,
                              kDecodeTile);
      };
      if (p.in_clusters) {
        if (thread == 0) {
          const int request = part / kDecodeCluster, index = part % kDecodeCluster;
          const int tiles = tiles_of(request), step = CeilDiv(tiles, kDecodeCluster);
          *pieces = MakePiece(request, Min(tiles, index * step), Min(tiles, (index + 1) * step),
                              kDecodeCluster, index);
          *is_last = 1, *differs = 0;
        }
      } else if (warp == 0) {
        const int count = PlanOwnPart(p.num_requests, num_parts, part, tiles_of,
                                      reinterpret_cast<int32_t*>(merge), pieces);
        if (lane == 0) *is_last = count, *differs = 0;
      }
      __syncthreads();
      work = {pieces, lengths, kDecodeTile, 0, *is_last, 1};
    } else if (is_auto) {
      work = {p.pieces, p.seq_lens, p.header[kPlanTile], p.part_begin[part], p.part_begin[part + 1],
              1};
    } else {
      work = {p.pieces, p.seq_lens, p.header[kPlanTile], part, p.header[kPlanNumPieces], num_parts};
    }
    if (begins) {
      if (is_guess) {
        loader.Guess(work);
        WaitForPreviousKernel();
        AllowNextKernel();
        if (has_length) length = LoadFromOthers4(p.seq_lens + thread);
        block = loader.ReadAgain();
      } else {
        loader.Start(work);
      }
      missing = 0;
      filled = 0;
    }
#pragma unroll 1
    for (; filled < Shape::kStages && (is_confirmed || loader.has_tile()); ++filled) {
      missing |= loader.Next(stages + filled * Shape::kTileBytes) << 2 * filled;
      CommitCopies();
    }
    if (is_confirmed) break;
    if ((has_length && length != lengths[thread]) || !loader.IsRight(block)) atomicExch(differs, 1);
    __syncthreads();
    begins = *differs != 0;
    if (begins) {
      WaitCopies<0>();
      if (has_length) lengths[thread] = length;
    } else {
      loader.Confirm();
    }
    is_guess = false;
    is_confirmed = true;
  }
  if (work.at >= work.end) return;

  int stage = 0;
  for (; work.at < work.end; work.at += work.step) {
    const DecodeItem item = OpenItem<kRows, true>(p, work, row_group);
    std::conditional_t<kSpecial, SpecialDecodeState<T, Code, kDim>,
                       DecodeState<T, Code, kDim, kGroups>>
        state;
    state.LoadQueries(p, item, kv_head, row_group);
    state.Clear();
    for (int key = item.begin; key < item.end; key += kDecodeTile) {
      const int first = key + warp * kDecodeWarpTile;
      if constexpr (kSpecial) state.LookAt(p, item, first, missing & 3);
      WaitCopies<Shape::kStages - 1>();
      __syncwarp();
      const uint32_t at = stages + static_cast<uint32_t>(stage * Shape::kTileBytes);
      if (first < item.end) state.Attend(p, item, row_group, at, first, missing & 3);
      __syncwarp();
      missing = missing >> 2 | loader.Next(at) << 2 * (Shape::kStages - 1);
      CommitCopies();
      if (++stage == Shape::kStages) stage = 0;
    }
    if (item.first_token > item.last_token) continue;

      // The four warps' states become one.
#pragma unroll
    for (int i = 0; i < 2 * kGroups; ++i) {
      state.sum[i] += __shfl_xor_sync(kFullWarp, state.sum[i], 4);
      state.sum[i] += __shfl_xor_sync(kFullWarp, state.sum[i], 8);
      state.sum[i] += __shfl_xor_sync(kFullWarp, state.sum[i], 16);
      if (g == 0) {
        stats[warp * kRows + i / 2 * 8 + 2 * t + i % 2] =
            make_float2(state.maximum[i], state.sum[i]);
      }
    }
    __syncthreads();
    float value_scale = 1;
    if (p.v_scale.data != nullptr) {
      value_scale =
          p.v_scale.data[item.request * p.v_scale.request_stride + kv_head * p.v_scale.head_stride];
    }
    const bool is_cut = item.cut >> 16 > 1;
    const int place = is_auto ? part : work.at;
    const int index = static_cast<int>(item.cut & 0xffff);
    const int64_t state_row =
        ((SlotOf(is_auto, place, index, index) * p.num_kv_heads + kv_head) * row_groups +
         row_group) *
        p.rows;
    // Others of the cluster read the state where keys were: this is the block's only piece.
    constexpr int kClusterStats = kRows * kDim * 4;
    static_assert(kClusterStats + kRows * 8 <= Shape::kTileBytes);
    float* own_state =
        p.in_clusters ? reinterpret_cast<float*>(shared) : p.partials + state_row * p.value_dim;
    float2* own_stats = p.in_clusters ? reinterpret_cast<float2*>(shared + kClusterStats)
                                      : p.partial_stats + state_row;
    // A chunk of queries and dimensions at a time: what the threads add up of four values each.
    constexpr int kChunkDims = Shape::kChunkDims, kChunkRows = Shape::kChunkRows;
#pragma unroll
    for (int first_row = 0; first_row < kRows; first_row += kChunkRows) {
      if (first_row >= p.rows) break;
      const int n = first_row / 8;
      float shrink[2];
#pragma unroll
      for (int e = 0; e < 2; ++e) {
        float maximum = -INFINITY;
#pragma unroll
        for (int w = 0; w < kDecodeWarps; ++w) {
          maximum = fmaxf(maximum, stats[w * kRows + 8 * n + 2 * t + e].x);
        }
        shrink[e] = Exp2(state.maximum[2 * n + e] - SafeMaximum(maximum)) * value_scale;
      }
      // The thread's query and its state.
      const int in_chunk = thread / (kChunkDims / 4), row = first_row + in_chunk;
      float maximum = -INFINITY, sum = 0;
#pragma unroll
      for (int w = 0; w < kDecodeWarps; ++w) {
        maximum = fmaxf(maximum, stats[w * kRows + row].x);
      }
#pragma unroll
      for (int w = 0; w < kDecodeWarps; ++w) {
        const float2 own = stats[w * kRows + row];
        sum += Exp2(own.x - SafeMaximum(maximum)) * own.y;
      }
      const DecodeRow where = RowOf<kRows>(p, item, kv_head, row_group, row);
      const int own_row = 2 * t - first_row % 8;
#pragma unroll
      for (int first_dim = 0; first_dim < kDim; first_dim += kChunkDims) {
        if (own_row >= 0 && own_row < kChunkRows) {
          float* to = merge + (warp * kChunkRows + own_row) * Shape::kMergeRow;
#pragma unroll
          for (int i = 0; i < kChunkDims / 16; ++i) {
            const float(&o)[4] = state.o[first_dim / 16 + i][n];
#pragma unroll
            for (int j = 0; j < 4; ++j) {
              // Dimensions of 8-bit codes come in pairs, even ones in the upper rows.
              const int d = 16 * i + (Code::kBytes == 1 ? 2 * g + j / 2 : g + j / 2 * 8);
              to[j % 2 * Shape::kMergeRow + d] = o[j] * shrink[j % 2];
            }
          }
        }
        __syncthreads();
        float4 value = make_float4(0, 0, 0, 0);
        const int in_row = thread % (kChunkDims / 4) * 4, d = first_dim + in_row;
#pragma unroll
        for (int w = 0; w < kDecodeWarps; ++w) {
          const float4 part_of = *reinterpret_cast<const float4*>(
              merge + (w * kChunkRows + in_chunk) * Shape::kMergeRow + in_row);
          value.x += part_of.x, value.y += part_of.y, value.z += part_of.z, value.w += part_of.w;
        }
        if (where.exists && d < p.value_dim) {
          if (!is_cut) {
            FinishRow(p, where, d, value, maximum, sum);
          } else {
            *reinterpret_cast<float4*>(own_state + row * p.value_dim + d) = value;
            if (d == 0) own_stats[row] = make_float2(maximum, sum);
          }
        }
        __syncthreads();
      }
    }
    if (!is_cut) continue;
    if (p.in_clusters) {
      ClusterSync();
      MergeCluster<kRows>(p, item, kv_head, row_group, SharedAddress(shared),
                          SharedAddress(shared) + kClusterStats, merge);
      ClusterSync();
      continue;
    }
    // All have stored their parts of the state: the last barrier is behind them.
    if (thread == 0) {
      // Without a plan, of the part in which the request begins: no two begin cut in the same.
      const int row = plans_itself ? part - index : item.request;
      int32_t* counter =
          (plans_itself ? arrival_counters + p.arrival_row * kArrivalCounters : p.counters) +
          (int64_t{row} * p.num_kv_heads + kv_head) * row_groups + row_group;
      const int count = static_cast<int>(item.cut >> 16);
      *is_last = CountArrival(counter) == count - 1 ? 1 : 0;
      if (*is_last != 0) *counter = 0;
    }
    __syncthreads();
    if (*is_last != 0) {
      MergePieces<kRows, Shape::kMergedAtOnce>(p, item, is_auto, place, kv_head, row_group,
                                               row_groups, reinterpret_cast<float2*>(merge));
    }
    __syncthreads();
  }
}

// Launches the instance for the element types; 1 (cudaErrorInvalidValue) for those not built.
struct DecodeLaunch {
  LaunchConfig config;  // all but block and shared memory
  DecodeKernelParams params;
  Element cache_element, q_element;
  int groups;
  bool is_special;  // groups are 1
};

template <typename T, typename Code, int kDim>
Error LaunchDecodeGroups(const DecodeLaunch& launch) {
  LaunchConfig config = launch.config;
  config.block = dim3(kDecodeWarps * 32);
  if (launch.groups == 1) {
    config.shared_bytes = DecodeShape<Code, kDim, 1>::kSharedBytes;
    return Launch(config, PagedDecodeKernel<T, Code, kDim, 1>, launch.params);
  }
  if constexpr (kDim <= 128) {
    config.shared_bytes = DecodeShape<Code, kDim, 2>::kSharedBytes;
    return Launch(config, PagedDecodeKernel<T, Code, kDim, 2>, launch.params);
  }
  return 1;
}

template <typename T, typename Code, int kDim>
Error LaunchSpecialDecode(const DecodeLaunch& launch) {
  LaunchConfig config = launch.config;
  config.block = dim3(kDecodeWarps * 32);
  config.shared_bytes = DecodeShape<Code, kDim, 1>::kSharedBytes;
  return Launch(config, PagedDecodeKernel<T, Code, kDim, 1, true>, launch.params);
}

// Calls launch(T, Code) with tags of the types that an instance is for.
template <typename LaunchTypes>
Error LaunchDecodeOf(const DecodeLaunch& launch, const LaunchTypes& launch_types) {
  switch (launch.cache_element) {
    case Element::kBF16:
      return launch_types(Bf16{}, SameType{});
    case Element::kF16:
      return launch_types(F16{}, SameType{});
    case Element::kF8E4M3:
      return launch_types(F16{}, E4m3Pairs{});
    case Element::kF8E5M2:
      return launch_types(F16{}, E5m2Pairs{});
    case Element::kI8:
      return launch_types(F16{}, Int8Pairs{});
    default:
      return 1;
  }
}
template <int kDim>
Error LaunchDecodeOf(const DecodeLaunch& launch) {
  if (launch.q_element == Element::kF8E4M3) {
    return LaunchDecodeGroups<F16, E4m3PairsAndQueries, kDim>(launch);
  }
  return LaunchDecodeOf(launch, [&](auto type, auto code) {
    return LaunchDecodeGroups<decltype(type), decltype(code), kDim>(launch);
  });
}
template <int kDim>
Error LaunchSpecialDecodeOf(const DecodeLaunch& launch) {
  return LaunchDecodeOf(launch, [&](auto type, auto code) {
    return LaunchSpecialDecode<decltype(type), decltype(code), kDim>(launch);
  });
}

Error LaunchDecode64(const DecodeLaunch& launch);
Error LaunchDecode128(const DecodeLaunch& launch);
Error LaunchDecode256(const DecodeLaunch& launch);
Error LaunchSpecialDecode64(const DecodeLaunch& launch);
Error LaunchSpecialDecode128(const DecodeLaunch& launch);
Error LaunchSpecialDecode256(const DecodeLaunch& launch);

}  // namespace kvblocks::attention::cuda

#endif  // KVBLOCKS_ATTENTION_CUDA_KERNELS_PAGED_DECODE_KERNEL_H_
