#include "attention/cuda/kernels/paged_decode_kernel.h"

namespace kvblocks::attention::cuda {

Error LaunchDecode128(const DecodeLaunch& launch) { return LaunchDecodeOf<128>(launch); }

}  // namespace kvblocks::attention::cuda
