// Query rows as the SIMD kernels take them.

#ifndef KVBLOCKS_ATTENTION_CPU_SIMD_QUERIES_H_
#define KVBLOCKS_ATTENTION_CPU_SIMD_QUERIES_H_

#include <cstdint>

#include "kvblocks/attention/cpu/simd_kernels.h"
#include "kvblocks/attention/tensor/small_floats.h"
#include "kvblocks/attention/tensor/tensor_view.h"

namespace kvblocks::attention::simd {

// Row (token, head) of [T, H, D] as float32; the elements up to the next multiple of kRowPad become
// 0.
inline void ReadQuery(const ConstTensorView& view, int64_t token, int64_t head, float* out) {
  const std::byte* from = view.At(token, head);
  const int64_t dim = view.extent[2];
  if (view.stride[2] == 1 || dim == 1) return ConvertRow(view.dtype, from, dim, out);
  for (int64_t d = 0; d < Padded(dim); ++d) {
    const int64_t offset = d * view.stride[2] * ElementBytes(view.dtype);
    out[d] = d < dim ? static_cast<float>(LoadElement(view.dtype, from + offset)) : 0.0f;
  }
}

}  // namespace kvblocks::attention::simd

#endif  // KVBLOCKS_ATTENTION_CPU_SIMD_QUERIES_H_
