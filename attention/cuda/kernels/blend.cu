#include "attention/cuda/kernels/blend.h"

#include "attention/cuda/device/gpu.h"
#include "attention/cuda/device/numbers.h"
#include "attention/cuda/device/ptx.h"
#include "attention/cuda/kernels/elements.h"
#include "attention/cuda/kernels/launch.h"

namespace kvblocks::attention::cuda {
namespace {

constexpr int kWarps = 8;

// --- Fusing ---

// A warp per row; K and V by blockIdx.y.
__global__ void __launch_bounds__(kWarps * 32)
    FuseKernel(const __grid_constant__ FuseParams params, uint32_t* flags) {
  OverlapNeighbours();
  const int lane = static_cast<int>(threadIdx.x % 32);
  const int64_t row = int64_t{blockIdx.x} * kWarps + threadIdx.x / 32;
  if (row >= params.num_rows) return;
  const int64_t token = params.imp[row * params.imp_stride];
  if (token < 0 || token >= params.num_tokens) {
    if (lane == 0) Flag(flags, kBadIndex);
    return;
  }
  const ConstRows from = params.from[blockIdx.y];
  const Rows to = params.to[blockIdx.y];
  const int bytes = BytesOf(to.element);
  const int row_bytes = params.dim[blockIdx.y] * bytes;
  const auto* source = static_cast<const unsigned char*>(from.data) + row * from.row_stride * bytes;
  auto* target = static_cast<unsigned char*>(to.data) + token * to.row_stride * bytes;
  const int pieces_per_head = (row_bytes + 15) / 16;
  const int pieces = pieces_per_head * params.heads;
#pragma unroll 4
  for (int p = lane; p < pieces; p += 32) {
    const int head = p / pieces_per_head, at = (p - head * pieces_per_head) * 16;
    const auto* a = source + head * from.head_stride * bytes + at;
    auto* b = target + head * to.head_stride * bytes + at;
    if (at + 16 <= row_bytes) {
      *reinterpret_cast<uint4*>(b) = *reinterpret_cast<const uint4*>(a);
    } else {
      for (int i = 0; at + i < row_bytes; ++i) b[i] = a[i];
    }
  }
}

// --- Gathering ---

// A warp per row.
template <typename Unit>
__global__ void __launch_bounds__(kWarps * 32)
    GatherRowsKernel(const __grid_constant__ GatherRowsParams params, uint32_t* flags) {
  OverlapNeighbours();
  const int lane = static_cast<int>(threadIdx.x % 32);
  const int64_t row = int64_t{blockIdx.x} * kWarps + threadIdx.x / 32;
  if (row >= params.num_rows) return;
  const int64_t source = params.index[row * params.index_stride];
  if (source < 0 || source >= params.num_sources) {
    if (lane == 0) Flag(flags, kBadIndex);
    return;
  }
  const auto* from = reinterpret_cast<const Unit*>(static_cast<const unsigned char*>(params.from) +
                                                   source * params.from_stride);
  auto* to =
      reinterpret_cast<Unit*>(static_cast<unsigned char*>(params.to) + row * params.to_stride);
  const int64_t units = params.row_bytes / static_cast<int64_t>(sizeof(Unit));
#pragma unroll 4
  for (int64_t i = lane; i < units; i += 32) to[i] = from[i];
}

// Whether everything that a row of the parameters begins and ends with is a multiple of `bytes`.
bool IsAlignedTo(uintptr_t bytes, const GatherRowsParams& params) {
  const auto odd =
      reinterpret_cast<uintptr_t>(params.from) | reinterpret_cast<uintptr_t>(params.to) |
      static_cast<uintptr_t>(params.row_bytes) | static_cast<uintptr_t>(params.from_stride) |
      static_cast<uintptr_t>(params.to_stride);
  return odd % bytes == 0;
}

// --- Rotation ---

KVB_DEVICE int64_t PositionOf(const void* positions, int64_t stride, bool wide, int64_t token) {
  return wide ? static_cast<const int64_t*>(positions)[token * stride]
              : static_cast<const int32_t*>(positions)[token * stride];
}

// A warp per token: angles once, in float64, for all heads.
__global__ void __launch_bounds__(kWarps * 32)
    RotateKernel(const __grid_constant__ RotateParams params) {
  OverlapNeighbours();
  const int lane = static_cast<int>(threadIdx.x % 32);
  const int64_t token = int64_t{blockIdx.x} * kWarps + threadIdx.x / 32;
  if (token >= params.num_tokens) return;
  int64_t by =
      PositionOf(params.positions, params.positions_stride, params.positions_are_wide, token);
  if (params.from_positions != nullptr) {
    by -= PositionOf(params.from_positions, params.from_positions_stride,
                     params.from_positions_are_wide, token);
  }
  const Element from_type = params.from.element, to_type = params.to.element;
  const auto* from = static_cast<const unsigned char*>(params.from.data) +
                     token * params.from.row_stride * BytesOf(from_type);
  auto* to =
      static_cast<unsigned char*>(params.to.data) + token * params.to.row_stride * BytesOf(to_type);
  // Elements that are not rotated are copied, bit for bit if types agree.
  const int first_copied = by == 0 ? 0 : params.rotary_dim;
  const bool in_place = static_cast<const void*>(from) == static_cast<const void*>(to);
  if (!(in_place && from_type == to_type)) {
    const int copied = params.dim - first_copied;
    for (int i = lane; i < copied * params.heads; i += 32) {
      const int head = i / copied, d = first_copied + i - head * copied;
      const int64_t a = head * params.from.head_stride + d, b = head * params.to.head_stride + d;
      if (from_type != to_type) {
        StoreFloat(to_type, LoadAsFloat(from_type, from, a), to, b);
      } else if (BytesOf(to_type) == 2) {
        reinterpret_cast<uint16_t*>(to)[b] = reinterpret_cast<const uint16_t*>(from)[a];
      } else {
        reinterpret_cast<uint32_t*>(to)[b] = reinterpret_cast<const uint32_t*>(from)[a];
      }
    }
  }
  if (by == 0) return;
  const int pairs = params.rotary_dim / 2;
  for (int i = lane; i < pairs; i += 32) {
    const double angle =
        static_cast<double>(by) *
        pow(params.theta, -2.0 * static_cast<double>(i) / static_cast<double>(params.rotary_dim));
    const double cosine = cos(angle), sine = sin(angle);
    const int first = params.interleaved ? 2 * i : i;
    const int second = params.interleaved ? 2 * i + 1 : i + pairs;
    for (int head = 0; head < params.heads; ++head) {
      const int64_t a = head * params.from.head_stride, b = head * params.to.head_stride;
      const double x = LoadAsFloat(from_type, from, a + first);
      const double y = LoadAsFloat(from_type, from, a + second);
      StoreFloat(to_type, static_cast<float>(x * cosine - y * sine), to, b + first);
      StoreFloat(to_type, static_cast<float>(x * sine + y * cosine), to, b + second);
    }
  }
}

}  // namespace

Error LaunchFuse(const LaunchContext& context, const FuseParams& params) {
  if (params.num_rows == 0) return 0;
  return Launch(ConfigOf(context, dim3(Blocks(params.num_rows, kWarps), 2), kWarps * 32),
                FuseKernel, params, context.error_flags);
}

Error LaunchGatherRows(const LaunchContext& context, const GatherRowsParams& params) {
  if (params.num_rows == 0 || params.row_bytes == 0) return 0;
  LaunchConfig config = ConfigOf(context, Blocks(params.num_rows, kWarps), kWarps * 32);
  auto* const kernel = IsAlignedTo(16, params)  ? GatherRowsKernel<uint4>
                       : IsAlignedTo(4, params) ? GatherRowsKernel<uint32_t>
                                                : GatherRowsKernel<unsigned char>;
  return Launch(config, kernel, params, context.error_flags);
}

Error LaunchRotate(const LaunchContext& context, const RotateParams& params) {
  if (params.num_tokens == 0) return 0;
  return Launch(ConfigOf(context, Blocks(params.num_tokens, kWarps), kWarps * 32), RotateKernel,
                params);
}

}  // namespace kvblocks::attention::cuda
