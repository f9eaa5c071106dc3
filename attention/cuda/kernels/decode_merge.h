// The end of a decode: outputs from states, and the merging of the states of a cut request. Device
// code: included by .cu files only.

#ifndef KVBLOCKS_ATTENTION_CUDA_KERNELS_DECODE_MERGE_H_
#define KVBLOCKS_ATTENTION_CUDA_KERNELS_DECODE_MERGE_H_

#include "attention/cuda/device/cluster.h"
#include "attention/cuda/device/gpu.h"
#include "attention/cuda/device/numbers.h"
#include "attention/cuda/device/ptx.h"
#include "attention/cuda/kernels/decode_items.h"

namespace kvblocks::attention::cuda {

// The end of a row: four values of one query.
KVB_DEVICE void StoreOutput(const DecodeKernelParams& p, int64_t at, float4 value) {
  uint32_t* to = reinterpret_cast<uint32_t*>(p.out + at);
  if (p.out_is_bf16) {
    to[0] = Bf16::Pack(value.x, value.y);
    to[1] = Bf16::Pack(value.z, value.w);
  } else {
    to[0] = F16::Pack(value.x, value.y);
    to[1] = F16::Pack(value.z, value.w);
  }
}

// A finished query of a row group: where it is, and its output from values that weigh `sum`.
struct DecodeRow {
  bool exists;
  int head;
  int64_t token;
};
template <int kRows>
KVB_DEVICE DecodeRow RowOf(const DecodeKernelParams& p, const DecodeItem& item, int kv_head,
                           int row_group, int row) {
  const int all = row_group * kRows + row;
  DecodeRow result;
  const int token = TokenOf(p, all);
  result.exists = token < item.q_len;
  result.head = kv_head * p.group + all - token * p.group;
  result.token =
      (p.query_start_loc != nullptr ? p.query_start_loc[item.request] : item.request) + token;
  return result;
}
KVB_DEVICE void FinishRow(const DecodeKernelParams& p, const DecodeRow& row, int d, float4 value,
                          float maximum, float sum) {
  constexpr float kLog2E = 1.4426950408889634f, kLn2 = 0.6931471805599453f;
  const bool empty = maximum == -INFINITY;
  if (d == 0 && p.lse != nullptr) {
    p.lse[row.token * p.lse_row_stride + row.head * p.lse_head_stride] =
        empty && sum == 0 ? -INFINITY : (maximum + log2f(sum)) * kLn2;
  }
  if (p.sinks != nullptr) sum += exp2f(p.sinks[row.head] * kLog2E - SafeMaximum(maximum));
  const float inverse = 1.0f / sum;
  // A sink of infinity gives +0, also of negative values.
  value.x = value.x * inverse + 0.0f, value.y = value.y * inverse + 0.0f;
  value.z = value.z * inverse + 0.0f, value.w = value.w * inverse + 0.0f;
  if (empty && !(sum != sum)) value = make_float4(0, 0, 0, 0);
  StoreOutput(p, row.token * p.out_row_stride + row.head * p.out_head_stride + d, value);
}

// Where piece `index` of a cut request leaves its state. Auto: two slots per part, of the request
// that it continues and of the one that it begins.
KVB_DEVICE int64_t SlotOf(bool is_auto, int place, int own_index, int index) {
  const int at = place - own_index + index;
  return is_auto ? 2 * int64_t{at} + (index == 0 ? 1 : 0) : at;
}

// Merges the states of all pieces of a request, in order. `stats`: shared, kMergedAtOnce * kRows.
template <int kRows, int kMergedAtOnce>
KVB_DEVICE void MergePieces(const DecodeKernelParams& p, const DecodeItem& item, bool is_auto,
                            int place, int kv_head, int row_group, int row_groups, float2* stats) {
  const int thread = static_cast<int>(threadIdx.x);
  const int count = static_cast<int>(item.cut >> 16), index = static_cast<int>(item.cut & 0xffff);
  // From a slot to the next, in rows, and from a piece to the next.
  const int64_t stride = int64_t{p.num_kv_heads} * row_groups * p.rows;
  const int64_t step =
      SlotOf(is_auto, place, index, 2) * stride - SlotOf(is_auto, place, index, 1) * stride;
  const int64_t first = (kv_head * row_groups + row_group) * p.rows;
  // Where piece 0 would be if its slot were the step before piece 1's.
  const int64_t zero = SlotOf(is_auto, place, index, 1) * stride - step + first;
  const int64_t odd_zero = SlotOf(is_auto, place, index, 0) * stride + first - zero;
  const int columns = p.value_dim / 4, threads_per_row = columns <= 16   ? 16
                                                         : columns <= 32 ? 32
                                                                         : 64;
  const int rows_at_once = kDecodeWarps * 32 / threads_per_row;
  const int d = thread % threads_per_row * 4;
  for (int base = 0; base < p.rows; base += rows_at_once) {
    const int row = base + thread / threads_per_row;
    const bool active = row < p.rows && d < p.value_dim;
    float maximum = -INFINITY, sum = 0;
    float4 value = make_float4(0, 0, 0, 0);
#pragma unroll 1
    for (int begin = 0; begin < count; begin += kMergedAtOnce) {
      // All under way at a time: first what the weights are made of.
      constexpr int kOwn = (kMergedAtOnce * kRows + kDecodeWarps * 32 - 1) / (kDecodeWarps * 32);
      float2 loaded[kOwn];
#pragma unroll
      for (int j = 0; j < kOwn; ++j) {
        const int i = thread + j * kDecodeWarps * 32, piece = begin + i / kRows;
        loaded[j] = make_float2(-INFINITY, 0);
        if (piece < count && i % kRows < p.rows) {
          loaded[j] = LoadFromOthers8(p.partial_stats + zero + piece * step +
                                      (piece == 0 ? odd_zero : 0) + i % kRows);
        }
      }
      float4 states[kMergedAtOnce];
      const float* from = p.partials + (zero + begin * step + row) * p.value_dim + d;
#pragma unroll
      for (int j = 0; j < kMergedAtOnce; ++j) {
        if (active && begin + j < count) {
          states[j] = LoadFromOthers16(from + (j == 0 && begin == 0 ? odd_zero * p.value_dim : 0));
        }
        from += step * p.value_dim;
      }
      __syncthreads();
#pragma unroll
      for (int j = 0; j < kOwn; ++j) {
        const int i = thread + j * kDecodeWarps * 32;
        if (i < kMergedAtOnce * kRows) stats[i] = loaded[j];
      }
      __syncthreads();
      if (!active) continue;
      float moved = maximum;
#pragma unroll
      for (int j = 0; j < kMergedAtOnce; ++j) moved = fmaxf(moved, stats[j * kRows + row].x);
      const float shrink = Exp2(maximum - SafeMaximum(moved));
      maximum = moved;
      sum *= shrink;
      value.x *= shrink, value.y *= shrink, value.z *= shrink, value.w *= shrink;
#pragma unroll
      for (int j = 0; j < kMergedAtOnce; ++j) {
        if (begin + j >= count) continue;
        const float2 own = stats[j * kRows + row];
        const float weight = Exp2(own.x - SafeMaximum(maximum));
        sum += weight * own.y;
        value.x += weight * states[j].x, value.y += weight * states[j].y;
        value.z += weight * states[j].z, value.w += weight * states[j].w;
      }
    }
    if (!active) continue;
    const DecodeRow where = RowOf<kRows>(p, item, kv_head, row_group, row);
    if (where.exists) FinishRow(p, where, d, value, maximum, sum);
  }
}

// Merges the states of a cluster's blocks, in order, each block its share of the outputs. States
// are at `states` in each block's shared memory, [rows][value dim], maxima and sums at `stats`.
// `room`: shared, of 24 bytes per thread.
template <int kRows>
KVB_DEVICE void MergeCluster(const DecodeKernelParams& p, const DecodeItem& item, int kv_head,
                             int row_group, uint32_t states, uint32_t stats, float* room) {
  constexpr int kThreads = kDecodeWarps * 32, kAtOnce = kThreads / kDecodeCluster;
  const int thread = static_cast<int>(threadIdx.x), rank = thread / kAtOnce;
  const int columns = p.value_dim / 4, all = p.rows * columns;
  const int share = CeilDiv(all, kDecodeCluster);
  const int begin = static_cast<int>(item.cut & 0xffff) * share, end = Min(all, begin + share);
  float4* values = reinterpret_cast<float4*>(room);
  float2* weighs = reinterpret_cast<float2*>(room + 4 * kThreads);
  for (int base = begin; base < end; base += kAtOnce) {
    // A value of one of the states to each thread.
    const int i = base + thread % kAtOnce, row = i / columns, d = i % columns * 4;
    if (i < end) {
      const float2 own = LoadFromCluster8(stats + static_cast<uint32_t>(row * 8), rank);
      values[thread] =
          LoadFromCluster16(states + static_cast<uint32_t>(row * p.value_dim + d) * 4, rank);
      weighs[thread] = own;
    }
    __syncthreads();
    if (rank == 0 && i < end) {
      float maximum = -INFINITY, sum = 0;
#pragma unroll
      for (int j = 0; j < kDecodeCluster; ++j) {
        maximum = fmaxf(maximum, weighs[thread + j * kAtOnce].x);
      }
      float4 value = make_float4(0, 0, 0, 0);
#pragma unroll
      for (int j = 0; j < kDecodeCluster; ++j) {
        const float2 own = weighs[thread + j * kAtOnce];
        const float4 state = values[thread + j * kAtOnce];
        const float weight = Exp2(own.x - SafeMaximum(maximum));
        sum += weight * own.y;
        value.x += weight * state.x, value.y += weight * state.y;
        value.z += weight * state.z, value.w += weight * state.w;
      }
      const DecodeRow where = RowOf<kRows>(p, item, kv_head, row_group, row);
      if (where.exists) FinishRow(p, where, d, value, maximum, sum);
    }
    __syncthreads();
  }
}

}  // namespace kvblocks::attention::cuda

#endif  // KVBLOCKS_ATTENTION_CUDA_KERNELS_DECODE_MERGE_H_
