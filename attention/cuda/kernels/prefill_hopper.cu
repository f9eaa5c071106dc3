// Prefill with wgmma over 16-bit caches, for compute capability 9.0; and what of prefill wgmma
// takes.

#include <cstdint>

#include "attention/cuda/device/numbers.h"
#include "attention/cuda/kernels/prefill.h"
#include "attention/cuda/kernels/prefill_hopper_kernel.h"

namespace kvblocks::attention::cuda {
namespace {

template <typename T>
Error LaunchOfType(const LaunchContext& context, const PrefillParams& params) {
  using prefill_hopper::LaunchOne;
  using Kind = prefill_hopper::SameTypes<T>;
  const int d = params.key_dim, dv = params.value_dim;
  if (d <= 64 && dv <= 64) return LaunchOne<Kind, 64, 64>(context, params);
  if (d <= 128 && dv <= 128) return LaunchOne<Kind, 128, 128>(context, params);
  return LaunchOne<Kind, 192, 128>(context, params);
}

// Rows of codes are copied by 16 bytes.
bool TakesQueries(const PrefillParams& params) {
  const ConstRows& q = params.q;
  if (q.element != Element::kF8E4M3) return true;
  return params.keys.cache.element == Element::kF8E4M3 &&
         reinterpret_cast<uintptr_t>(q.data) % 16 == 0 && q.row_stride % 16 == 0 &&
         q.head_stride % 16 == 0;
}

}  // namespace

bool TakesPrefillHopper(const PrefillParams& params) {
  if (params.is_special()) return TakesPrefillHopperSpecial(params);
  const Cache& cache = params.keys.cache;
  return params.key_dim <= (HoldsCodes(cache) ? 128 : 192) && params.value_dim <= 128 &&
         TakesQueries(params) &&
         FitsTensorMap(prefill_hopper::BoxedKeys(params, cache.k, params.key_dim)) &&
         FitsTensorMap(prefill_hopper::BoxedKeys(params, cache.v, params.value_dim));
}

Error LaunchPrefillHopper(const LaunchContext& context, const PrefillParams& params) {
  if (params.is_special()) return LaunchPrefillHopperSpecial(context, params);
  if (HoldsCodes(params.keys.cache)) return LaunchPrefillHopperCodes(context, params);
  return params.q.element == Element::kBF16 ? LaunchOfType<Bf16>(context, params)
                                            : LaunchOfType<F16>(context, params);
}

}  // namespace kvblocks::attention::cuda
