#include "attention/cuda/kernels/paged_decode_kernel.h"

namespace kvblocks::attention::cuda {

Error LaunchSpecialDecode256(const DecodeLaunch& launch) {
  return LaunchSpecialDecodeOf<256>(launch);
}

}  // namespace kvblocks::attention::cuda
