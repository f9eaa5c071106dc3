// What a step computes beside matrix products and attention: rows of bf16, sums of float.
//
// Rows lie one after another. Sizes divide by 8, those of heads by 16, and arrays begin at
// multiples of 16 bytes. Kernels only enqueue, so that a graph can hold them.

#ifndef KVBLOCKS_EXAMPLES_ENGINE_CUDA_STEP_KERNELS_H_
#define KVBLOCKS_EXAMPLES_ENGINE_CUDA_STEP_KERNELS_H_

#include <cstdint>

#include "attention/cuda/kernels/params.h"
#include "attention/cuda/kernels/runtime.h"

namespace kvblocks::engine {

using Bf16Bits = uint16_t;

// out[i] = table[indices[i]]; zeros where there is no such row.
struct TakeRowsParams {
  const Bf16Bits* table = nullptr;
  const int32_t* indices = nullptr;
  Bf16Bits* out = nullptr;
  int64_t num_rows = 0, table_rows = 0;
  int32_t size = 0;
};
attention::cuda::Error LaunchTakeRows(const attention::cuda::LaunchContext& context,
                                      const TakeRowsParams& params);

// x += added, unless that is null; out = x over its root mean square, times weight.
struct NormParams {
  Bf16Bits* x = nullptr;
  const Bf16Bits* added = nullptr;
  const Bf16Bits* weight = nullptr;
  Bf16Bits* out = nullptr;
  int64_t num_rows = 0;
  int32_t size = 0;
  float eps = 0;
};
attention::cuda::Error LaunchAddAndNorm(const attention::cuda::LaunchContext& context,
                                        const NormParams& params);

// Heads of queries and keys of qkv [rows, heads + 2 * kv_heads, head_size], in place: the norm of
// each, if there are weights, then the rotary embedding of halves.
struct RotateParams {
  Bf16Bits* qkv = nullptr;
  const int32_t* positions = nullptr;
  const float* frequencies = nullptr;                       // radians per position
  const Bf16Bits *q_weight = nullptr, *k_weight = nullptr;  // null: no norms
  int64_t num_rows = 0;
  int32_t heads = 0, kv_heads = 0, head_size = 0;
  float scale = 1, eps = 0;  // of cosines and sines; of norms
};
attention::cuda::Error LaunchRotate(const attention::cuda::LaunchContext& context,
                                    const RotateParams& params);

// out = silu(gate) * up of gate_up [rows, 2 * size], gates first.
struct GateParams {
  const Bf16Bits* gate_up = nullptr;
  Bf16Bits* out = nullptr;
  int64_t num_rows = 0;
  int32_t size = 0;
};
attention::cuda::Error LaunchGate(const attention::cuda::LaunchContext& context,
                                  const GateParams& params);

// The first of the largest of each row.
struct ArgmaxParams {
  const float* logits = nullptr;
  int32_t* out = nullptr;
  int64_t num_rows = 0;
  int32_t size = 0;
};
attention::cuda::Error LaunchArgmax(const attention::cuda::LaunchContext& context,
                                    const ArgmaxParams& params);

}  // namespace kvblocks::engine

#endif  // KVBLOCKS_EXAMPLES_ENGINE_CUDA_STEP_KERNELS_H_
