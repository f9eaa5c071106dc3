#include "attention/cuda/kernels/paged_decode_kernel.h"

namespace kvblocks::attention::cuda {

Error LaunchRareDecode128(const DecodeLaunch& launch) { return LaunchRareDecodeOf<128>(launch); }

}  // namespace kvblocks::attention::cuda
