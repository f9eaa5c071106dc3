// Tensors in device memory for tests, emulated and on GPUs: mirrors of host memory, a context of
// the device, and the reference to compare with.

#ifndef KVBLOCKS_ATTENTION_CUDA_TESTING_DEVICE_MIRROR_H_
#define KVBLOCKS_ATTENTION_CUDA_TESTING_DEVICE_MIRROR_H_

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <vector>

#include "absl/types/span.h"
#include "attention/cuda/kernels/runtime.h"
#include "attention/testing/paged_case.h"
#include "gtest/gtest.h"
#include "kvblocks/attention_backend.h"
#include "kvblocks/attention_cpu.h"
#include "kvblocks/attention_cuda.h"

namespace kvblocks::attention::cuda {

inline constexpr DeviceId kDevice = {DeviceKind::kCuda, 0};

// What a stretch of host memory holds, in memory of the device, or in pinned memory.
class Mirror {
 public:
  explicit Mirror(absl::Span<const std::byte> host, DeviceKind kind = DeviceKind::kCuda)
      : host_(host), device_{kind, 0} {
    void* memory = nullptr;
    EXPECT_EQ(kind == DeviceKind::kCuda ? AllocateDevice(host.size(), &memory)
                                        : AllocatePinned(host.size(), &memory),
              0);
    memory_ = static_cast<std::byte*>(memory);
    EXPECT_EQ(CopyAsync(memory_, host.data(), host.size(), nullptr), 0);
    EXPECT_EQ(Synchronize(nullptr), 0);
  }
  explicit Mirror(const Tensor& tensor) : Mirror(absl::MakeConstSpan(tensor.bytes)) {}
  ~Mirror() {
    EXPECT_EQ(device_.kind == DeviceKind::kCuda ? FreeDevice(memory_) : FreePinned(memory_), 0);
  }
  Mirror(const Mirror&) = delete;
  Mirror& operator=(const Mirror&) = delete;

  // The mirror image of a view of the host memory.
  template <typename View>
  View Of(View view) const {
    if (view.absent()) return view;
    view.data = memory_ + (view.data - host_.data());
    view.device = device_;
    return view;
  }
  KvCacheView Of(KvCacheView cache) const {
    cache.k = Of(cache.k);
    cache.v = Of(cache.v);
    return cache;
  }
  std::byte* data() const { return memory_; }
  std::vector<std::byte> Bytes() const {
    std::vector<std::byte> bytes(host_.size());
    EXPECT_EQ(CopyAsync(bytes.data(), memory_, bytes.size(), nullptr), 0);
    EXPECT_EQ(Synchronize(nullptr), 0);
    return bytes;
  }
  void CopyTo(Tensor& tensor) const {
    const std::vector<std::byte> bytes = Bytes();
    std::copy(bytes.begin(), bytes.end(), tensor.bytes.begin());  // its view looks into them
  }

 private:
  absl::Span<const std::byte> host_;
  DeviceId device_;
  std::byte* memory_ = nullptr;
};

// On the default stream, with a workspace and flags.
class DeviceContext {
 public:
  DeviceContext() {
    workspace_.device = absl::MakeSpan(memory_.data(), zeros_.size());
    flags_.bits = reinterpret_cast<uint32_t*>(flag_bits_.data());
    context.device = kDevice;
    context.workspace = &workspace_;
    context.error_flags = &flags_;
  }
  uint32_t flags() const {
    uint32_t bits;
    std::memcpy(&bits, flag_bits_.Bytes().data(), sizeof(bits));
    return bits;
  }

  ExecContext context;

 private:
  const std::vector<std::byte> zeros_ = std::vector<std::byte>(size_t{8} << 20);
  const Mirror memory_{zeros_}, flag_bits_{absl::MakeConstSpan(zeros_).first(4)};
  Workspace workspace_;
  DeviceErrorFlags flags_;
};

// CPU_REFERENCE. The library of the host's backends would bring SIMD's shared library into a
// program that is to need none.
class Reference final : public AttentionBackend {
 public:
  const char* name() const override { return ops().name(); }
  const AttentionOps& ops() const override { return CpuReference(); }
  const BackendSupport& support() const override { return CudaBackend().support(); }
};

}  // namespace kvblocks::attention::cuda

#endif  // KVBLOCKS_ATTENTION_CUDA_TESTING_DEVICE_MIRROR_H_
