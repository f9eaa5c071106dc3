// DeviceArray: memory that the device reads and writes, freed with this: on the device, or pinned
// on the host, from and to which copies do not block.

#ifndef KVBLOCKS_EXAMPLES_ENGINE_CUDA_DEVICE_ARRAY_H_
#define KVBLOCKS_EXAMPLES_ENGINE_CUDA_DEVICE_ARRAY_H_

#include <cstdint>
#include <utility>

#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "attention/cuda/cuda_call.h"
#include "attention/cuda/kernels/runtime.h"

namespace kvblocks::engine {

class DeviceArray {
 public:
  DeviceArray() = default;
  // Zeroed; waits. ResourceExhausted names `what` and the bytes.
  static absl::StatusOr<DeviceArray> Create(const char* what, int64_t bytes) {
    DeviceArray made(bytes, false);
    attention::cuda::Error error =
        attention::cuda::AllocateDevice(static_cast<size_t>(bytes), &made.data_);
    if (error != 0) return Short(what, bytes, error);
    error = attention::cuda::FillAsync(made.data_, 0, static_cast<size_t>(bytes), nullptr);
    if (error == 0) error = attention::cuda::Synchronize(nullptr);
    if (error != 0) return attention::cuda::StatusOf(what, error);
    return made;
  }
  static absl::StatusOr<DeviceArray> Pinned(const char* what, int64_t bytes) {
    DeviceArray made(bytes, true);
    const attention::cuda::Error error =
        attention::cuda::AllocatePinned(static_cast<size_t>(bytes), &made.data_);
    if (error != 0) return Short(what, bytes, error);
    return made;
  }
  ~DeviceArray() {
    if (data_ == nullptr) return;
    if (pinned_) {
      (void)attention::cuda::FreePinned(data_);
    } else {
      (void)attention::cuda::FreeDevice(data_);
    }
  }
  DeviceArray(DeviceArray&& other) noexcept { *this = std::move(other); }
  DeviceArray& operator=(DeviceArray&& other) noexcept {
    std::swap(data_, other.data_);
    std::swap(bytes_, other.bytes_);
    std::swap(pinned_, other.pinned_);
    return *this;
  }

  template <typename T>
  T* as() const {
    return static_cast<T*>(data_);
  }
  bool absent() const { return data_ == nullptr; }
  int64_t bytes() const { return bytes_; }

 private:
  DeviceArray(int64_t bytes, bool pinned) : bytes_(bytes), pinned_(pinned) {}
  static absl::Status Short(const char* what, int64_t bytes, attention::cuda::Error error) {
    return absl::ResourceExhaustedError(
        absl::StrCat(what, ": no ", bytes, " bytes of device or pinned memory (",
                     attention::cuda::ErrorName(error), "); make the batch or the pool smaller"));
  }

  void* data_ = nullptr;
  int64_t bytes_ = 0;
  bool pinned_ = false;
};

}  // namespace kvblocks::engine

#endif  // KVBLOCKS_EXAMPLES_ENGINE_CUDA_DEVICE_ARRAY_H_
