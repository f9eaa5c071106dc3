#include "attention/cuda/kernels/paged_decode_kernel.h"

namespace kvblocks::attention::cuda {

Error LaunchSpecialDecode128(const DecodeLaunch& launch) {
  return LaunchSpecialDecodeOf<128>(launch);
}

}  // namespace kvblocks::attention::cuda
