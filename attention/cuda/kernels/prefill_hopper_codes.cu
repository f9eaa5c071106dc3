// Prefill with wgmma over caches of 8-bit codes, for compute capability 9.0.

#include "attention/cuda/device/numbers.h"
#include "attention/cuda/kernels/prefill.h"
#include "attention/cuda/kernels/prefill_hopper_kernel.h"

namespace kvblocks::attention::cuda {
namespace {

template <typename Kind>
Error LaunchOfKind(const LaunchContext& context, const PrefillParams& params) {
  using prefill_hopper::LaunchOne;
  if (params.key_dim <= 64 && params.value_dim <= 64) {
    return LaunchOne<Kind, 64, 64>(context, params);
  }
  return LaunchOne<Kind, 128, 128>(context, params);
}

}  // namespace

Error LaunchPrefillHopperCodes(const LaunchContext& context, const PrefillParams& params) {
  using prefill_hopper::CodesOverCodes;
  using prefill_hopper::OverCodes;
  switch (params.q.element) {
    case Element::kBF16:
      return LaunchOfKind<OverCodes<Bf16>>(context, params);
    case Element::kF16:
      return LaunchOfKind<OverCodes<F16>>(context, params);
    default:
      return params.out.element == Element::kBF16
                 ? LaunchOfKind<CodesOverCodes<Bf16>>(context, params)
                 : LaunchOfKind<CodesOverCodes<F16>>(context, params);
  }
}

}  // namespace kvblocks::attention::cuda
