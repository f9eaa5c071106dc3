#include "attention/cuda/device/gpu.h"
#include "attention/cuda/device/numbers.h"
#include "attention/cuda/device/ptx.h"
#include "attention/cuda/kernels/cache_slots.h"
#include "attention/cuda/kernels/cache_write.h"
#include "attention/cuda/kernels/elements.h"
#include "attention/cuda/kernels/launch.h"
#include "attention/cuda/kernels/row_formats.h"
#include "attention/cuda/kernels/row_units.h"

namespace kvblocks::attention::cuda {
namespace {

constexpr int kWarps = 8;

// Of a largest magnitude: the exponent byte of 2^ceil(log2(max(amax, 1e-4) / 448)). 448 = 1.75 *
// 2^8, so mantissas up to 1.75 stay below.
KVB_DEVICE uint8_t ScaleExponent(float amax) {
  const uint32_t bits = __float_as_uint(amax < 1e-4f ? 1e-4f : amax);
  return static_cast<uint8_t>(static_cast<int>(bits >> 23) - 8 + ((bits & 0x7fffffu) > 0x600000u));
}

// A warp per token, 16 values a lane; a tile of scales is 8 lanes (656) or 4 (584).
__global__ void __launch_bounds__(kWarps * 32)
    MlaFp8WriteKernel(const __grid_constant__ MlaFp8WriteParams params, SlotDivision division,
                      uint32_t* flags) {
  OverlapNeighbours();
  const int lane = static_cast<int>(threadIdx.x % 32);
  const int64_t token = int64_t{blockIdx.x} * kWarps + threadIdx.x / 32;
  BlockAndOffset place;
  if (!FindPlace(params.mapping, division, token, flags, &place)) return;
  const auto [block, offset] = place;
  uint8_t* at = params.to + block * params.block_stride;
  uint8_t* record = at + (params.planar ? offset * int64_t{576} : offset * params.token_stride);

  const int num_values = params.planar ? 448 : 512;
  const bool has_values = lane * 16 < num_values;
  float values[2][kUnit] = {};
  if (has_values) {
    const auto* from = static_cast<const unsigned char*>(params.kv_c.data) +
                       (token * params.kv_c.row_stride + lane * 16) * BytesOf(params.kv_c.element);
    const int unit_bytes = kUnit * BytesOf(params.kv_c.element);
    const bool wide = params.kv_c.element == Element::kF32;
    const RawUnit<true> low = LoadUnit<true>(wide, from);
    const RawUnit<true> high = LoadUnit<true>(wide, from + unit_bytes);
    UnpackUnit(params.kv_c.element, low, values[0]);
    UnpackUnit(params.kv_c.element, high, values[1]);
  }
  // Of the finite values: one infinity must not turn the rest of its tile into zeros.
  float amax = 0;
#pragma unroll
  for (int i = 0; i < 16; ++i) {
    const float magnitude = fabsf(values[i / kUnit][i % kUnit]);
    if (magnitude <= 3.4028235e38f && magnitude > amax) amax = magnitude;
  }
  const int lanes_per_tile = params.planar ? 4 : 8;
  for (int lanes = 1; lanes < lanes_per_tile; lanes *= 2) {
    const float other = __shfl_xor_sync(kFullWarp, amax, lanes);
    amax = other > amax ? other : amax;
  }
  float scale;
  uint8_t exponent = 0;
  if (params.planar) {
    exponent = ScaleExponent(amax);
    scale = E8m0ToFloat(exponent);
  } else {
    scale = __fdiv_rn(amax, 448.0f);
    if (!(scale > 1.1754944e-38f)) scale = 1.1754944e-38f;
  }
  if (has_values) {
    const CodeMaker<E4m3> codes(scale);
    uint32_t words[4], open = 0;
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      const float* of = values[i / 2] + i % 2 * 4;
      open |= codes.Try(of[0], of[1], of[2], of[3], &words[i]) << 4 * i;
    }
    uint8_t* to = record + lane * 16;
    *reinterpret_cast<uint4*>(to) = make_uint4(words[0], words[1], words[2], words[3]);
#pragma unroll 1
    while (open != 0) {
      const int n = 31 - __clz(static_cast<int>(open));
      open ^= 1u << n;
      float value = 0;
#pragma unroll
      for (int i = 0; i < 16; ++i) value = n == i ? values[i / kUnit][i % kUnit] : value;
      to[n] = static_cast<uint8_t>(codes.Settle(value));
    }
    if (lane % lanes_per_tile == 0) {
      const int tile = lane / lanes_per_tile;
      if (params.planar) {
        at[params.mapping.block_size * int64_t{576} + offset * 8 + tile] = exponent;
      } else {
        reinterpret_cast<float*>(record + 512)[tile] = scale;
      }
    }
  } else if (lane == 28) {
    at[params.mapping.block_size * int64_t{576} + offset * 8 + 7] = 0;
  }
  // Two rotary values a lane.
  auto* rotary = reinterpret_cast<uint16_t*>(record + (params.planar ? 448 : 528));
  for (int i = 2 * lane; i < 2 * lane + 2; ++i) {
    const int64_t from = token * params.k_pe.row_stride + i;
    rotary[i] = params.k_pe.element == Element::kBF16
                    ? static_cast<const uint16_t*>(params.k_pe.data)[from]
                    : Bf16::FromFloat(LoadAsFloat(params.k_pe.element, params.k_pe.data, from));
  }
}

// A warp per token, 16 of the 512 values with a scale a lane.
__global__ void __launch_bounds__(kWarps * 32)
    MlaRecordWriteKernel(const __grid_constant__ MlaRecordWriteParams params, SlotDivision division,
                         uint32_t* flags) {
  OverlapNeighbours();
  const int lane = static_cast<int>(threadIdx.x % 32);
  const int64_t token = int64_t{blockIdx.x} * kWarps + threadIdx.x / 32;
  BlockAndOffset place;
  if (!FindPlace(params.mapping, division, token, flags, &place)) return;
  const auto [block, offset] = place;
  uint8_t* const record =
      params.to + block * params.block_stride + offset * params.token_stride;

  float values[16];
  float amax = 0;  // of the finite ones
  const ConstRows& rows = lane * 16 < params.compressed ? params.kv_c : params.k_pe;
  const int64_t first = token * rows.row_stride + lane * 16 -
                        (lane * 16 < params.compressed ? 0 : params.compressed);
#pragma unroll
  for (int i = 0; i < 16; ++i) {
    values[i] = LoadAsFloat(rows.element, rows.data, first + i);
    const float magnitude = fabsf(values[i]);
    if (magnitude <= 3.4028235e38f) amax = fmaxf(amax, magnitude);
  }
  uint8_t* const scales = record + ScalesAt(params.format);
  if (params.format == KvRowFormat::kMlaV41) {
    amax = fmaxf(amax, __shfl_xor_sync(kFullWarp, amax, 1));
    const uint8_t exponent = ScaleExponent(amax);
    // A power of two: products are exact, or too small to matter.
    const float inverse = __fdiv_rn(1.0f, E8m0ToFloat(exponent));
#pragma unroll
    for (int i = 0; i < 16; ++i) record[lane * 16 + i] = E4m3::FromFloat(values[i] * inverse);
    if (lane % 2 == 0) scales[lane / 2] = exponent;
    return;
  }
  const float sixth = Divider(6.0f)(amax);
  const uint8_t code = E4m3::FromFloat(fminf(fmaxf(sixth, 0x1p-9f), 448.0f));
  const float scale = E4m3::ToFloat(code);
#pragma unroll
  for (int i = 0; i < 8; ++i) {
    record[lane * 8 + i] = static_cast<uint8_t>(E2m1FromQuotient(values[2 * i], scale) |
                                                E2m1FromQuotient(values[2 * i + 1], scale) << 4);
  }
  scales[ScaleOfGroup(params.format, lane)] = code;
  if (params.format == KvRowFormat::kMlaV41Fp4) return;
  // Two rotary values a lane, without a scale.
  for (int i = 2 * lane; i < 2 * lane + 2; ++i) {
    record[kRotaryAtNvfp4Record + i] = E4m3::FromFloat(
        LoadAsFloat(params.k_pe.element, params.k_pe.data, token * params.k_pe.row_stride + i));
  }
}

template <typename Params>
Error LaunchPerToken(const LaunchContext& context, const Params& params,
                     void (*kernel)(Params, SlotDivision, uint32_t*)) {
  if (params.mapping.is_empty()) return 0;
  return Launch(ConfigOf(context, Blocks(params.mapping.num_tokens, kWarps), kWarps * 32), kernel,
                params, SlotDivision(params.mapping), context.error_flags);
}

}  // namespace

Error LaunchMlaFp8Write(const LaunchContext& context, const MlaFp8WriteParams& params) {
  return LaunchPerToken(context, params, MlaFp8WriteKernel);
}

Error LaunchMlaRecordWrite(const LaunchContext& context, const MlaRecordWriteParams& params) {
  return LaunchPerToken(context, params, MlaRecordWriteKernel);
}

}  // namespace kvblocks::attention::cuda
