#include "attention/cuda/check/device_tensor.h"

#include <algorithm>
#include <cstdlib>
#include <numeric>
#include <random>
#include <utility>

#include "attention/cuda/check/bench_kernels.h"
#include "attention/cuda/cuda_call.h"
#include "attention/cuda/kernel_params.h"
#include "attention/cuda/kernels/runtime.h"
#include "attention/tensor/small_floats.h"

namespace kvblocks::attention::cuda {

DeviceTensor::DeviceTensor(DType dtype, const std::vector<int64_t>& extents) {
  int64_t size = ElementBytes(dtype);
  for (const int64_t extent : extents) size *= extent;
  void* memory = nullptr;
  MustSucceed(AllocateDevice(static_cast<size_t>(size), &memory), "device memory");
  view = TensorView::Contiguous(static_cast<std::byte*>(memory), dtype, extents,
                                {DeviceKind::kCuda, 0});
}

DeviceTensor::~DeviceTensor() { (void)FreeDevice(view.data); }

DeviceTensor& DeviceTensor::operator=(DeviceTensor&& other) noexcept {
  std::swap(view, other.view);
  return *this;
}

void DeviceTensor::FillNormal(uint32_t seed, float factor) {
  ExecContext context;
  context.device = view.device;
  const auto call = CudaCall::Begin("FillNormal", context);
  if (!call.ok()) std::abort();
  MustSucceed(LaunchFillNormal(call->launch(), view.data, view.num_elements(),
                               ElementOf(view.dtype), seed, factor),
              "FillNormal");
}

void DeviceTensor::FillByte(int byte) {
  MustSucceed(FillAsync(view.data, byte, static_cast<size_t>(bytes()), nullptr), "FillByte");
}

void DeviceTensor::SetInts(const std::vector<int64_t>& values) {
  std::vector<std::byte> host(static_cast<size_t>(bytes()));
  for (size_t i = 0; i < values.size(); ++i) {
    StoreElement(view.dtype, static_cast<double>(values[i]),
                 host.data() + static_cast<int64_t>(i) * ElementBytes(view.dtype));
  }
  MustSucceed(CopyAsync(view.data, host.data(), host.size(), nullptr), "SetInts");
  MustSucceed(Synchronize(nullptr), "SetInts");
}

DeviceTensor Normal(DType dtype, const std::vector<int64_t>& extents, uint32_t seed) {
  DeviceTensor tensor(dtype, extents);
  tensor.FillNormal(seed);
  return tensor;
}

DeviceTensor Ints(DType dtype, const std::vector<int64_t>& extents,
                  const std::vector<int64_t>& values) {
  DeviceTensor tensor(dtype, extents);
  tensor.SetInts(values);
  return tensor;
}

std::vector<int64_t> UpTo(int64_t count) {
  std::vector<int64_t> ids(count);
  std::iota(ids.begin(), ids.end(), 0);
  return ids;
}

std::vector<int64_t> Shuffled(int64_t count, uint32_t seed) {
  std::vector<int64_t> ids = UpTo(count);
  std::shuffle(ids.begin(), ids.end(), std::mt19937(seed));
  return ids;
}

}  // namespace kvblocks::attention::cuda
