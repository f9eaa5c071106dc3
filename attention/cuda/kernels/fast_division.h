// Quotients by a number that is fixed for a launch: the host prepares a multiplication, which takes
// a tenth of the instructions of a division on the device.

#ifndef KVBLOCKS_ATTENTION_CUDA_KERNELS_FAST_DIVISION_H_
#define KVBLOCKS_ATTENTION_CUDA_KERNELS_FAST_DIVISION_H_

#include <cstdint>

#include "attention/cuda/device/gpu.h"

namespace kvblocks::attention::cuda {

// Exact for dividends below 2^31. REQUIRES: divisor 1 to 2^31 - 1.
class FastDivisor {
 public:
  FastDivisor() = default;
  explicit FastDivisor(int64_t divisor) : divisor_(static_cast<uint32_t>(divisor)) {
    while ((uint64_t{1} << shift_) < divisor_) ++shift_;
    const uint64_t excess = (uint64_t{1} << shift_) - divisor_;
    multiplier_ = static_cast<uint32_t>((excess << 32) / divisor_ + 1);
  }

  KVB_HOST_DEVICE uint32_t Quotient(uint32_t dividend) const {
    // The multiplier is 2^(32 + shift) / divisor rounded up, less the 2^32 that the sum adds.
    const auto high = static_cast<uint32_t>((uint64_t{dividend} * multiplier_) >> 32);
    return (high + dividend) >> shift_;
  }
  KVB_HOST_DEVICE uint32_t divisor() const { return divisor_; }

 private:
  uint32_t divisor_ = 1, multiplier_ = 1, shift_ = 0;
};

}  // namespace kvblocks::attention::cuda

#endif  // KVBLOCKS_ATTENTION_CUDA_KERNELS_FAST_DIVISION_H_
