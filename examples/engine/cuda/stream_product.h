// StreamProduct: the matrix product of few rows, at the rate at which memory gives the weights.
//
// A library's kernels wait for the one before them and only then begin to read. This one has its
// part of the weights, which nobody writes, on the way before it waits. For compute capability 9.0.

#ifndef KVBLOCKS_EXAMPLES_ENGINE_CUDA_STREAM_PRODUCT_H_
#define KVBLOCKS_EXAMPLES_ENGINE_CUDA_STREAM_PRODUCT_H_

#include <cstdint>

#include "attention/cuda/device/tensor_map.h"
#include "attention/cuda/kernels/params.h"
#include "attention/cuda/kernels/runtime.h"

namespace kvblocks::engine {

// y [rows, out] = x [rows, in] * weight [out, in]^T, x and weight of bf16, sums of float; y of bf16
// or float. Columns are cut among the blocks of a cluster, which add up what they have in the order
// of columns: the same sums in every call.
struct StreamProductParams {
  attention::cuda::TensorMap x, weight;  // filled by LaunchStreamProduct
  const void *x_data = nullptr, *weight_data = nullptr;
  void* y = nullptr;
  int64_t rows = 0, in = 0, out = 0;
  bool float_out = false;
};
// Rows up to 128, `in` that divides by 64 and `out` that does by 256.
bool FitsStreamProduct(const StreamProductParams& params);
// REQUIRES: FitsStreamProduct(params), compute capability 9.0.
attention::cuda::Error LaunchStreamProduct(const attention::cuda::LaunchContext& context,
                                           const StreamProductParams& params);

}  // namespace kvblocks::engine

#endif  // KVBLOCKS_EXAMPLES_ENGINE_CUDA_STREAM_PRODUCT_H_
