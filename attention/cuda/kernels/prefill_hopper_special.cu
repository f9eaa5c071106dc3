// Prefill with wgmma through masks that hide, through block-sparse visibility, and over kPagedX,
// for compute capability 9.0. One instance has all head sizes up to 128.

#include "attention/cuda/device/numbers.h"
#include "attention/cuda/kernels/prefill.h"
#include "attention/cuda/kernels/prefill_hopper_kernel.h"

namespace kvblocks::attention::cuda {
namespace {

template <typename T>
Error LaunchOfType(const LaunchContext& context, const PrefillParams& params) {
  using prefill_hopper::LaunchOne;
  if (params.scoring.tests_keys()) {
    return LaunchOne<prefill_hopper::Tested<T>, 128, 128>(context, params);
  }
  return LaunchOne<prefill_hopper::InPagedX<T>, 128, 128>(context, params);
}

}  // namespace

bool TakesPrefillHopperSpecial(const PrefillParams& params) {
  const Cache& cache = params.keys.cache;
  const MaskRule& mask = params.scoring.mask;
  const bool adds = mask.form != kMaskNone && mask.form != kMaskRaggedBits && !mask.marker;
  if (HoldsCodes(cache) || params.key_dim > 128 || params.value_dim > 128) return false;
  if (cache.layout != Layout::kPagedX) {
    return !adds &&
           FitsTensorMap(prefill_hopper::BoxedKeys(params, cache.k, params.key_dim)) &&
           FitsTensorMap(prefill_hopper::BoxedKeys(params, cache.v, params.value_dim));
  }
  return !params.scoring.tests_keys() && prefill_hopper::RowsOfBoxes(params) != 0 &&
         FitsTensorMap(prefill_hopper::BoxedPagedX(params, false)) &&
         FitsTensorMap(prefill_hopper::BoxedPagedX(params, true));
}

Error LaunchPrefillHopperSpecial(const LaunchContext& context, const PrefillParams& params) {
  return params.q.element == Element::kBF16 ? LaunchOfType<Bf16>(context, params)
                                            : LaunchOfType<F16>(context, params);
}

}  // namespace kvblocks::attention::cuda
