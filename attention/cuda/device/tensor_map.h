// Tensors that the bulk copy engine knows: what the host says of one, and what kernels get of it.
// No CUDA in here: host sources include it, too.

#ifndef KVBLOCKS_ATTENTION_CUDA_DEVICE_TENSOR_MAP_H_
#define KVBLOCKS_ATTENTION_CUDA_DEVICE_TENSOR_MAP_H_

#include <array>
#include <cstdint>

namespace kvblocks::attention::cuda {

// A tensor of 16-bit elements with four dimensions, the innermost contiguous, of which boxes are
// copied. Extents, strides (of the three outer dimensions) and boxes count elements.
struct BoxedTensor {
  const void* data = nullptr;
  std::array<int64_t, 4> extents = {1, 1, 1, 1};
  std::array<int64_t, 3> strides = {8, 8, 8};
  std::array<int32_t, 4> box = {64, 1, 1, 1};
  // Of how many bytes of shared memory the 16-byte pieces change places: 128, 32, or 16 for none.
  int32_t permuted = 128;
};

// Whether the engine takes it: addresses and strides at multiples of 16 bytes, strides below 2^40
// bytes, coordinates of 31 bits, and rows of a box not above the bytes that are permuted, or 128.
inline bool FitsTensorMap(const BoxedTensor& tensor) {
  if (tensor.data == nullptr || reinterpret_cast<uintptr_t>(tensor.data) % 16 != 0) return false;
  for (const int64_t extent : tensor.extents) {
    if (extent < 1 || extent >= int64_t{1} << 31) return false;
  }
  for (const int64_t stride : tensor.strides) {
    if (stride < 8 || stride % 8 != 0 || stride >= int64_t{1} << 39) return false;
  }
  for (const int32_t extent : tensor.box) {
    if (extent < 1 || extent > 256) return false;
  }
  const int32_t row_bytes = tensor.permuted == 16 ? 128 : tensor.permuted;
  return tensor.box[0] % 8 == 0 && 2 * tensor.box[0] <= row_bytes;
}

// Made by MakeTensorMap (kernels/runtime.h); a kernel's parameter, __grid_constant__.
struct alignas(64) TensorMap {
  unsigned char opaque[128] = {};
};

}  // namespace kvblocks::attention::cuda

#endif  // KVBLOCKS_ATTENTION_CUDA_DEVICE_TENSOR_MAP_H_
