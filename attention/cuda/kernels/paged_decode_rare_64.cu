#include "attention/cuda/kernels/paged_decode_kernel.h"

namespace kvblocks::attention::cuda {

Error LaunchRareDecode64(const DecodeLaunch& launch) { return LaunchRareDecodeOf<64>(launch); }

}  // namespace kvblocks::attention::cuda
