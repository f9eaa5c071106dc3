#include "attention/cuda/kernels/paged_decode_kernel.h"

namespace kvblocks::attention::cuda {

Error LaunchRareDecode256(const DecodeLaunch& launch) { return LaunchRareDecodeOf<256>(launch); }

}  // namespace kvblocks::attention::cuda
