// The decode kernel. Device code: included by paged_decode*.cu, one per padded head size.
//
// A block of four warps does pieces of one KV head, tiles of 64 keys at a time, 16 by each warp. A
// warp copies its own keys, kStages tiles ahead and on into the next piece, and computes on nothing
// else: warps meet only at the end of a piece, when their four states are merged.

#ifndef KVBLOCKS_ATTENTION_CUDA_KERNELS_PAGED_DECODE_KERNEL_H_
#define KVBLOCKS_ATTENTION_CUDA_KERNELS_PAGED_DECODE_KERNEL_H_

#include "attention/cuda/device/gpu.h"
#include "attention/cuda/device/ptx.h"
#include "attention/cuda/kernels/decode_deal.h"
#include "attention/cuda/kernels/decode_items.h"
#include "attention/cuda/kernels/decode_lengths.h"
#include "attention/cuda/kernels/decode_loader.h"
#include "attention/cuda/kernels/decode_merge.h"
#include "attention/cuda/kernels/decode_plan.h"
#include "attention/cuda/kernels/decode_state.h"

namespace kvblocks::attention::cuda {

// The block's share of an array, unless that is more than what a prefetch is worth.
KVB_DEVICE void PrefetchLines(const void* array, int64_t bytes, int thread, int num_threads) {
  const int64_t offset = int64_t{thread} * 128;
  if (bytes <= int64_t{num_threads} * 128 && offset < bytes) {
    PrefetchToL2(static_cast<const char*>(array) + offset);
  }
}

template <typename T, typename Code, int kDim, int kGroups>
__global__ __launch_bounds__(
    kDecodeWarps * 32,
    (DecodeShape<Code, kDim,
                 kGroups>::kBlocksPerMultiprocessor)) void PagedDecodeKernel(const __grid_constant__
                                                                                 DecodeKernelParams
                                                                                     p) {
  using Shape = DecodeShape<Code, kDim, kGroups>;
  constexpr int kRows = Shape::kRows;
  const int thread = static_cast<int>(threadIdx.x);
  const int lane = thread % 32, warp = thread / 32, g = lane / 4, t = lane % 4;
  const int kv_head = static_cast<int>(blockIdx.y), row_group = static_cast<int>(blockIdx.z);
  const int row_groups = static_cast<int>(gridDim.z);
  const int part = static_cast<int>(blockIdx.x), num_parts = static_cast<int>(gridDim.x);
  unsigned char* shared = DynamicSharedMemory();
  float* merge = reinterpret_cast<float*>(shared + Shape::kStages * Shape::kTileBytes);
  float2* stats =
      reinterpret_cast<float2*>(shared + Shape::kStages * Shape::kTileBytes + Shape::kMergeBytes);
  // Also how many pieces there are, before the first.
  int* is_last = reinterpret_cast<int*>(stats + kDecodeWarps * kRows);

  const bool plans_itself = p.header == nullptr;
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
  PrefetchLines(p.q, p.num_requests * p.q_row_stride * 2, own_thread, all_threads);
  WaitForPreviousKernel();
  AllowNextKernel();
  DecodeWork work;
  if (plans_itself) {
    // The last 16 bytes of each row of the first stage, which no copy touches.
    unsigned char* pieces = shared + Shape::kChunks * 16;
    static_assert(kMaxOwnRequests <= kDecodeWarps * 2 * kDecodeWarpTile);
    if (warp == 0) {
      const int count = PlanOwnPart(
          p.num_requests, num_parts, part,
          [&p](int b) {
            return TilesOfRequest(p.seq_lens, p.query_start_loc, b, p.max_keys, p.window,
                                  p.block_size, kDecodeTile);
          },
          reinterpret_cast<int32_t*>(merge), pieces, Shape::kRowBytes);
      if (lane == 0) *is_last = count;
    }
    __syncthreads();
    work = {reinterpret_cast<const char*>(pieces), Shape::kRowBytes, kDecodeTile, 0, *is_last, 1};
  } else if (is_auto) {
    work = {reinterpret_cast<const char*>(p.pieces),
            16,
            p.header[kPlanTile],
            p.part_begin[part],
            p.part_begin[part + 1],
            1};
  } else {
    work = {reinterpret_cast<const char*>(p.pieces),
            16,
            p.header[kPlanTile],
            part,
            p.header[kPlanNumPieces],
            num_parts};
  }
  if (work.at >= work.end) return;

  const uint32_t stages =
      SharedAddress(shared) + static_cast<uint32_t>(warp * 2 * Shape::kMatrixBytes);
  DecodeLoader<Code, kDim, kRows> loader(p, work, kv_head, row_group);
  uint32_t missing = 0;  // two bits per stage
  const auto fill_stages = [&] {
#pragma unroll 1
    for (int i = 0; i < Shape::kStages; ++i) {
      missing |= loader.Next(stages + i * Shape::kTileBytes) << 2 * i;
      CommitCopies();
    }
  };
  if constexpr (kGroups > 1) fill_stages();
  int stage = 0;
  for (bool is_first = true; work.at < work.end; work.at += work.step) {
    const DecodeItem item = OpenItem<kRows>(p, work, row_group);
    DecodeState<T, Code, kDim, kGroups> state;
    state.LoadQueries(p, item, kv_head, row_group);
    // Where registers allow, behind the loads of queries, which nothing waits for yet.
    if (kGroups == 1 && is_first) {
      fill_stages();
      is_first = false;
    }
    state.Clear();
    for (int key = item.begin; key < item.end; key += kDecodeTile) {
      WaitCopies<Shape::kStages - 1>();
      __syncwarp();
      const uint32_t at = stages + static_cast<uint32_t>(stage * Shape::kTileBytes);
      const int first = key + warp * kDecodeWarpTile;
      if (first < item.end) {
        state.Attend(p, item, row_group, at, first, missing >> 2 * stage & 3);
      }
      __syncwarp();
      missing = (missing & ~(3u << 2 * stage)) | loader.Next(at) << 2 * stage;
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
#pragma unroll
    for (int n = 0; n < kGroups; ++n) {
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
      const int row = 8 * n + thread / 16;
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
#pragma unroll
      for (int quarter = 0; quarter < kDim / 64; ++quarter) {
#pragma unroll
        for (int i = 0; i < 4; ++i) {
          const float(&o)[4] = state.o[4 * quarter + i][n];
#pragma unroll
          for (int j = 0; j < 4; ++j) {
            // Dimensions of 8-bit codes come in pairs, even ones in the upper rows.
            const int d = 16 * i + (Code::kBytes == 1 ? 2 * g + j / 2 : g + j / 2 * 8);
            merge[(warp * 8 + 2 * t + j % 2) * Shape::kMergeRow + d] = o[j] * shrink[j % 2];
          }
        }
        __syncthreads();
        float4 value = make_float4(0, 0, 0, 0);
#pragma unroll
        for (int w = 0; w < kDecodeWarps; ++w) {
          const float4 part_of = *reinterpret_cast<const float4*>(
              merge + (w * 8 + thread / 16) * Shape::kMergeRow + thread % 16 * 4);
          value.x += part_of.x, value.y += part_of.y, value.z += part_of.z, value.w += part_of.w;
        }
        const int d = 64 * quarter + thread % 16 * 4;
        if (where.exists && d < p.value_dim) {
          if (!is_cut) {
            FinishRow(p, where, d, value, maximum, sum);
          } else {
            *reinterpret_cast<float4*>(p.partials + (state_row + row) * p.value_dim + d) = value;
            if (d == 0) p.partial_stats[state_row + row] = make_float2(maximum, sum);
          }
        }
        __syncthreads();
      }
    }
    if (!is_cut) continue;
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

template <int kDim>
Error LaunchDecodeOf(const DecodeLaunch& launch) {
  switch (launch.cache_element) {
    case Element::kBF16:
      return LaunchDecodeGroups<Bf16, SameType, kDim>(launch);
    case Element::kF16:
      return LaunchDecodeGroups<F16, SameType, kDim>(launch);
    case Element::kE4M3:
      return LaunchDecodeGroups<F16, E4m3Pairs, kDim>(launch);
    case Element::kE5M2:
      return LaunchDecodeGroups<F16, E5m2Pairs, kDim>(launch);
    case Element::kI8:
      return LaunchDecodeGroups<F16, Int8Pairs, kDim>(launch);
    default:
      return 1;
  }
}

Error LaunchDecode64(const DecodeLaunch& launch);
Error LaunchDecode128(const DecodeLaunch& launch);
Error LaunchDecode256(const DecodeLaunch& launch);

}  // namespace kvblocks::attention::cuda

#endif  // KVBLOCKS_ATTENTION_CUDA_KERNELS_PAGED_DECODE_KERNEL_H_
