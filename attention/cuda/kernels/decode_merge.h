// The end of a decode: outputs from states, and the merging of the states of a cut request. Device
// code: included by .cu files only.

#ifndef KVBLOCKS_ATTENTION_CUDA_KERNELS_DECODE_MERGE_H_
#define KVBLOCKS_ATTENTION_CUDA_KERNELS_DECODE_MERGE_H_

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
  result.exists = all / p.group < item.q_len;
  result.head = kv_head * p.group + all % p.group;
  result.token = (p.query_start_loc != nullptr ? p.query_start_loc[item.request] : item.request) +
                 all / p.group;
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
// that it goes on with and of the one that it begins.
KVB_DEVICE int64_t SlotOf(bool is_auto, int place, int own_index, int index) {
  const int at = place - own_index + index;
  return is_auto ? 2 * int64_t{at} + (index == 0 ? 1 : 0) : at;
}

// Merges the states of all pieces of a request, in order. `weights`: shared, kMaxMergedAtOnce * rows.
template <int kRows>
KVB_DEVICE void MergePieces(const DecodeKernelParams& p, const DecodeItem& item, bool is_auto,
                            int place, int kv_head, int row_group, int row_groups,
                            float2* weights) {
  constexpr int kAtOnce = 64;
  const int thread = static_cast<int>(threadIdx.x);
  const int count = static_cast<int>(item.cut >> 16), index = static_cast<int>(item.cut & 0xffff);
  const int columns = p.value_dim / 4, total = p.rows * columns;
  for (int base = 0; base < total; base += kDecodeWarps * 32) {
    const int row = (base + thread) / columns, d = (base + thread) % columns * 4;
    const bool active = base + thread < total;
    float maximum = -INFINITY, sum = 0;
    float4 value = make_float4(0, 0, 0, 0);
    for (int begin = 0; begin < count; begin += kAtOnce) {
      const int here = count - begin < kAtOnce ? count - begin : kAtOnce;
      __syncthreads();
      for (int i = thread; i < here * p.rows; i += kDecodeWarps * 32) {
        const int64_t slot = SlotOf(is_auto, place, index, begin + i / p.rows);
        weights[i] = LoadFromOthers8(
            p.partial_stats +
            ((slot * p.num_kv_heads + kv_head) * row_groups + row_group) * p.rows + i % p.rows);
      }
      __syncthreads();
      if (!active) continue;
      float moved = maximum;
      for (int i = 0; i < here; ++i) moved = fmaxf(moved, weights[i * p.rows + row].x);
      const float shrink = Exp2(maximum - SafeMaximum(moved));
      maximum = moved;
      sum *= shrink;
      value.x *= shrink, value.y *= shrink, value.z *= shrink, value.w *= shrink;
      for (int i = 0; i < here; i += 8) {
        float4 states[8];
#pragma unroll
        for (int j = 0; j < 8; ++j) {
          const int64_t slot =
              SlotOf(is_auto, place, index, begin + (i + j < here ? i + j : here - 1));
          states[j] = LoadFromOthers16(
              p.partials +
              (((slot * p.num_kv_heads + kv_head) * row_groups + row_group) * p.rows + row) *
                  p.value_dim +
              d);
        }
#pragma unroll
        for (int j = 0; j < 8; ++j) {
          if (i + j >= here) continue;
          const float2 stats = weights[(i + j) * p.rows + row];
          const float weight = Exp2(stats.x - SafeMaximum(maximum));
          sum += weight * stats.y;
          value.x += weight * states[j].x, value.y += weight * states[j].y;
          value.z += weight * states[j].z, value.w += weight * states[j].w;
        }
      }
    }
    if (!active) continue;
    const DecodeRow where = RowOf<kRows>(p, item, kv_head, row_group, row);
    if (where.exists) FinishRow(p, where, d, value, maximum, sum);
  }
}

}  // namespace kvblocks::attention::cuda

#endif  // KVBLOCKS_ATTENTION_CUDA_KERNELS_DECODE_MERGE_H_
