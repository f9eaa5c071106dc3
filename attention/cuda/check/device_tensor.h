// DeviceTensor: memory of a device with a row-major view on it. Testonly; aborts when memory is
// short.

#ifndef KVBLOCKS_ATTENTION_CUDA_CHECK_DEVICE_TENSOR_H_
#define KVBLOCKS_ATTENTION_CUDA_CHECK_DEVICE_TENSOR_H_

#include <cstddef>
#include <cstdint>
#include <vector>

#include "kvblocks/tensor_view.h"

namespace kvblocks::attention::cuda {

class DeviceTensor {
 public:
  DeviceTensor() = default;
  DeviceTensor(DType dtype, const std::vector<int64_t>& extents);
  ~DeviceTensor();
  DeviceTensor(DeviceTensor&& other) noexcept : view(other.view) { other.view = {}; }
  DeviceTensor& operator=(DeviceTensor&& other) noexcept;

  // About normal, times factor; enqueued on the default stream.
  void FillNormal(uint32_t seed, float factor = 1);
  void FillByte(int byte);
  // Waits.
  void SetInts(const std::vector<int64_t>& values);
  int64_t bytes() const { return view.num_elements() * ElementBytes(view.dtype); }

  TensorView view;
};

// One filled about normally, or with these integers.
DeviceTensor Normal(DType dtype, const std::vector<int64_t>& extents, uint32_t seed);
DeviceTensor Ints(DType dtype, const std::vector<int64_t>& extents,
                  const std::vector<int64_t>& values);

// 0, 1, ... in order, and in random order.
std::vector<int64_t> UpTo(int64_t count);
std::vector<int64_t> Shuffled(int64_t count, uint32_t seed);

}  // namespace kvblocks::attention::cuda

#endif  // KVBLOCKS_ATTENTION_CUDA_CHECK_DEVICE_TENSOR_H_
