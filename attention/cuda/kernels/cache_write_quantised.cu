#include "kvblocks/attention/cuda/device/gpu.h"
#include "kvblocks/attention/cuda/device/numbers.h"
#include "kvblocks/attention/cuda/device/ptx.h"
#include "kvblocks/attention/cuda/kernels/cache_slots.h"
#include "kvblocks/attention/cuda/kernels/cache_write.h"
#include "kvblocks/attention/cuda/kernels/elements.h"
#include "kvblocks/attention/cuda/kernels/key_rows.h"
#include "kvblocks/attention/cuda/kernels/warp_reduce.h"

namespace kvblocks::attention::cuda {
namespace {

constexpr int kWarps = 8;
constexpr float kLeastScale = 1e-6f;

// A warp takes the K or the V of one token and head; neighbours are the heads of a token.
__global__ void __launch_bounds__(kWarps * 32)
    QuantisedWriteKernel(const __grid_constant__ QuantisedWriteParams params, SlotDivision division,
                         uint32_t* flags) {
  AllowNextKernel();
  WaitForPreviousKernel();
  const int lane = static_cast<int>(threadIdx.x % 32);
  const int64_t item = int64_t{blockIdx.x} * kWarps + threadIdx.x / 32;
  const int64_t token = item / (2 * params.heads);
  if (token >= params.num_tokens) return;
  const int64_t slot = SlotOf(params.slots, params.slot_stride, token, params.num_slots, flags);
  if (slot < 0) return;
  const auto of_token = static_cast<int>(item - token * 2 * params.heads);
  const int head = of_token % params.heads;
  const QuantisedStore& store = params.stores[of_token / params.heads];
  const BlockAndOffset place = division.Of(slot);
  const int64_t from = token * store.from.row_stride + head * store.from.head_stride;

  float amax = 0;
  for (int d = lane; d < store.dim; d += 32) {
    const float magnitude = fabsf(LoadAsFloat(store.from.element, store.from.data, from + d));
    // One infinity must not turn the rest of its vector into zeros.
    if (magnitude <= 3.4028235e38f && magnitude > amax) amax = magnitude;
  }
  amax = WarpMax(amax);
  const float largest = params.element == Element::kI8 ? 127.0f : 448.0f;
  const float scale = fmaxf(__fdiv_rn(amax, largest), kLeastScale);
  const Divider divide(scale);
  auto* codes = const_cast<void*>(store.codes.data);
  const int64_t row = RowOf(store.codes, place.block, place.offset, head);
  for (int d = lane; d < store.dim; d += 32) {
    StoreFloat(params.element, divide(LoadAsFloat(store.from.element, store.from.data, from + d)),
               codes, row + d);
  }
  if (lane == 0) {
    auto* scales = static_cast<float*>(const_cast<void*>(store.scales.data));
    scales[RowOf(store.scales, place.block, place.offset, head)] = scale;
  }
}

}  // namespace

Error LaunchQuantisedWrite(const LaunchContext& context, const QuantisedWriteParams& params) {
  if (params.num_tokens == 0 || params.num_slots == 0) return 0;
  const int64_t blocks = (params.num_tokens * params.heads * 2 + kWarps - 1) / kWarps;
  if (blocks > INT32_MAX) return cudaErrorInvalidConfiguration;
  LaunchConfig config;
  config.grid = dim3(static_cast<unsigned>(blocks));
  config.block = dim3(kWarps * 32);
  config.stream = context.stream;
  config.overlap_previous = context.can_overlap();
  return Launch(config, QuantisedWriteKernel, params,
                SlotDivision(params.block_size, params.num_slots), context.error_flags);
}

}  // namespace kvblocks::attention::cuda
