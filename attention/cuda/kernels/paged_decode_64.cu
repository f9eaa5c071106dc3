#include "attention/cuda/kernels/paged_decode_kernel.h"

namespace kvblocks::attention::cuda {

Error LaunchDecode64(const DecodeLaunch& launch) { return LaunchDecodeOf<64>(launch); }

}  // namespace kvblocks::attention::cuda
