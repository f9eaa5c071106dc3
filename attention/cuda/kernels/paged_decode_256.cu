#include "attention/cuda/kernels/paged_decode_kernel.h"

namespace kvblocks::attention::cuda {

Error LaunchDecode256(const DecodeLaunch& launch) { return LaunchDecodeOf<256>(launch); }

}  // namespace kvblocks::attention::cuda
