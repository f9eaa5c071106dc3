#include "attention/cuda/kernels/paged_decode_kernel.h"

namespace kvblocks::attention::cuda {

Error LaunchSpecialDecode64(const DecodeLaunch& launch) {
  return LaunchSpecialDecodeOf<64>(launch);
}

}  // namespace kvblocks::attention::cuda
