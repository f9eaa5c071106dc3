#include "attention/cuda/device/gpu.h"
#include "attention/cuda/device/numbers.h"
#include "attention/cuda/device/ptx.h"
#include "attention/cuda/kernels/cache_slots.h"
#include "attention/cuda/kernels/cache_write.h"
#include "attention/cuda/kernels/elements.h"
#include "attention/cuda/kernels/key_rows.h"
#include "attention/cuda/kernels/launch.h"
#include "attention/cuda/kernels/row_formats.h"
#include "attention/cuda/kernels/warp_reduce.h"

namespace kvblocks::attention::cuda {
namespace {

constexpr int kWarps = 8;
constexpr float kLeastScale = 1e-6f;

KVB_DEVICE bool IsFinite(float value) { return fabsf(value) <= 3.4028235e38f; }

// A vector on its way into a row of a cache, by the lanes of a warp.
struct Vector {
  Element element;
  const void* data;
  int64_t from;  // of its first value
  int dim;

  KVB_DEVICE float operator[](int d) const { return LoadAsFloat(element, data, from + d); }
};

KVB_DEVICE void WritePerTokenHead(const Vector& vector, Element element, int lane, void* codes,
                                  int64_t row, float* scale_at) {
  float amax = 0;
  for (int d = lane; d < vector.dim; d += 32) {
    const float value = vector[d];
    // One infinity must not turn the rest of its vector into zeros.
    if (IsFinite(value)) amax = fmaxf(amax, fabsf(value));
  }
  amax = WarpMax(amax);
  const float largest = element == Element::kI8 ? 127.0f : 448.0f;
  const float scale = fmaxf(__fdiv_rn(amax, largest), kLeastScale);
  const Divider divide(scale);
  for (int d = lane; d < vector.dim; d += 32) {
    StoreFloat(element, divide(vector[d]), codes, row + d);
  }
  if (lane == 0) *scale_at = scale;
}

KVB_DEVICE void WriteInt4(const Vector& vector, int lane, uint8_t* row, uint32_t* scale_at) {
  float low = 0, high = 0;
  for (int d = lane; d < vector.dim; d += 32) {
    const float value = vector[d];
    if (!IsFinite(value)) continue;
    low = fminf(low, value);
    high = fmaxf(high, value);
  }
  low = -WarpMax(-low);
  high = WarpMax(high);
  // In double as on the host: the last bits decide which multiple of 16 units is left.
  const float width =
      static_cast<float>(static_cast<double>(high) / 15 - static_cast<double>(low) / 15);
  const uint32_t bits = __float_as_uint(fmaxf(width, kLeastScale)) & ~kZeroPointBits;
  const Divider divide(__uint_as_float(bits));
  // Added to 1.5 * 2^23, a number is rounded to an integer, which is in the lowest bits; quotients
  // that are rounded to odd as the exact ones would be.
  constexpr float kRounder = 12582912.0f;
  const uint32_t zero = __float_as_uint(fminf(divide(-low), 15.0f) + kRounder) & 15u;
  const float rounder = kRounder + static_cast<float>(zero);
  const auto code = [&](float value) {
    if (!(value == value)) return zero;
    const float quotient = fmaxf(divide(value), -static_cast<float>(zero));
    return __float_as_uint(fminf(quotient, 15.0f - static_cast<float>(zero)) + rounder) & 15u;
  };
  for (int i = lane; i < vector.dim / 2; i += 32) {
    row[i] = static_cast<uint8_t>(code(vector[2 * i]) | code(vector[2 * i + 1]) << 4);
  }
  if (lane == 0) *scale_at = bits | zero;
}

// A finite quotient as a float, rounded to odd: rounding it further gives what rounding the
// quotient itself would.
KVB_DEVICE float RoundedToOdd(double value) {
  const auto nearest = static_cast<float>(value);
  const uint32_t bits = __float_as_uint(nearest);
  const auto back = static_cast<double>(nearest);
  return back == value ? nearest : __uint_as_float((back > value ? bits - 1 : bits) | 1u);
}

KVB_DEVICE void WriteNvfp4(const Vector& vector, float outer, int lane, uint8_t* row,
                           uint8_t* scales) {
  for (int group = lane; group < vector.dim / kNvfp4GroupValues; group += 32) {
    const int first = group * kNvfp4GroupValues;
    float amax = 0;
    for (int i = 0; i < kNvfp4GroupValues; ++i) {
      const float value = vector[first + i];
      if (IsFinite(value)) amax = fmaxf(amax, fabsf(value));
    }
    const uint8_t scale = E4m3::FromFloat(
        RoundedToOdd(static_cast<double>(amax) / 6 / static_cast<double>(outer)));
    scales[group] = scale;
    // 28 bits; the middles between codes have 31.
    const double both = static_cast<double>(E4m3::ToFloat(scale)) * static_cast<double>(outer);
    for (int i = 0; i < kNvfp4GroupValues / 2; ++i) {
      row[first / 2 + i] =
          static_cast<uint8_t>(E2m1FromQuotient(vector[first + 2 * i], both) |
                               E2m1FromQuotient(vector[first + 2 * i + 1], both) << 4);
    }
  }
}

// A warp takes the K or the V of one token and head; neighbours are the heads of a token.
__global__ void __launch_bounds__(kWarps * 32)
    QuantisedWriteKernel(const __grid_constant__ QuantisedWriteParams params, SlotDivision division,
                         uint32_t* flags) {
  OverlapNeighbours();
  const int lane = static_cast<int>(threadIdx.x % 32);
  const int64_t item = int64_t{blockIdx.x} * kWarps + threadIdx.x / 32;
  const int64_t token = item / (2 * params.heads);
  BlockAndOffset place;
  if (!FindPlace(params.mapping, division, token, flags, &place)) return;
  const auto of_token = static_cast<int>(item - token * 2 * params.heads);
  const int head = of_token % params.heads;
  const QuantisedStore& store = params.stores[of_token / params.heads];
  const Vector vector = {store.from.element, store.from.data,
                         token * store.from.row_stride + head * store.from.head_stride, store.dim};
  const int64_t row = RowOf(store.codes, place.block, place.offset, head);
  const int64_t scales_row = RowOf(store.scales, place.block, place.offset, head);
  auto* codes = static_cast<uint8_t*>(const_cast<void*>(store.codes.data));
  auto* scales = static_cast<uint8_t*>(const_cast<void*>(store.scales.data));
  if (params.format == KvRowFormat::kPerTokenHead) {
    WritePerTokenHead(vector, params.element, lane, codes, row,
                      reinterpret_cast<float*>(scales) + scales_row);
  } else if (params.format == KvRowFormat::kInt4PerTokenHead) {
    WriteInt4(vector, lane, codes + row, reinterpret_cast<uint32_t*>(scales) + scales_row);
  } else {
    const Scales& outer = store.outer_scale;
    WriteNvfp4(vector, outer.data == nullptr ? 1.0f : outer.data[head * outer.head_stride], lane,
               codes + row, scales + scales_row);
  }
}

}  // namespace

Error LaunchQuantisedWrite(const LaunchContext& context, const QuantisedWriteParams& params) {
  if (params.mapping.is_empty()) return 0;
  const int64_t blocks = (params.mapping.num_tokens * params.heads * 2 + kWarps - 1) / kWarps;
  if (blocks > INT32_MAX) return cudaErrorInvalidConfiguration;
  return Launch(ConfigOf(context, static_cast<unsigned>(blocks), kWarps * 32), QuantisedWriteKernel,
                params, SlotDivision(params.mapping), context.error_flags);
}

}  // namespace kvblocks::attention::cuda
