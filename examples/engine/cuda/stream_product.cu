// A block has 256 rows of the weights and a part of their columns, 64 at a time: one warp brings
// them, two warpgroups multiply. The product is transposed, [256, rows of x], so that the weights
// are the operand of 64 rows, however few those of x are.

#include "attention/cuda/device/bulk.h"
#include "attention/cuda/device/cluster.h"
#include "attention/cuda/device/gpu.h"
#include "attention/cuda/device/hopper.h"
#include "attention/cuda/device/numbers.h"
#include "attention/cuda/device/ptx.h"
#include "attention/cuda/kernels/launch.h"
#include "examples/engine/cuda/stream_product.h"

namespace kvblocks::engine {
namespace {

using namespace attention::cuda;  // NOLINT: kernels speak its language

constexpr int kOut = 256, kDepth = 64, kGroups = 2, kMostSplits = 8;
constexpr int kConsumers = kGroups * 128, kThreads = kConsumers + 32;
constexpr uint32_t kWeightBytes = kOut * kDepth * 2, kGroupBytes = kWeightBytes / 4;

// Of 8 * kTiles rows of x.
template <int kTiles>
struct Shape {
  static constexpr int kRows = 8 * kTiles;
  static constexpr uint32_t kStageBytes = kWeightBytes + kRows * kDepth * 2;
  static constexpr int kStages = kTiles == 8 ? 5 : 4;
  static constexpr uint32_t kBarriers = kStages * kStageBytes;  // full ones, then empty ones
  static constexpr uint32_t kSharedBytes = kBarriers + 2 * 8 * kStages;
  // Sums [rows of x, kOut], for a cluster to add, lie where stages were.
  static constexpr int kSumStride = kOut + 4;
  static_assert(kRows * kSumStride * 4 <= kBarriers);
};

template <int kTiles>
KVB_DEVICE void BringStages(const StreamProductParams& params, uint32_t shared, int first_chunk,
                            int num_chunks, int first_out) {
  using S = Shape<kTiles>;
  const auto full = [&](int stage) { return shared + S::kBarriers + 8u * stage; };
  const auto bring_weights = [&](int chunk, int stage) {
    ArriveExpecting(full(stage), S::kStageBytes);
    CopyBox(shared + stage * S::kStageBytes, params.weight, (first_chunk + chunk) * kDepth,
            first_out, 0, 0, full(stage));
  };
  const auto bring_x = [&](int chunk, int stage) {
    CopyBox(shared + stage * S::kStageBytes + kWeightBytes, params.x,
            (first_chunk + chunk) * kDepth, 0, 0, 0, full(stage));
  };
  const int early = num_chunks < S::kStages ? num_chunks : S::kStages;
  for (int chunk = 0; chunk < early; ++chunk) bring_weights(chunk, chunk);
  WaitForPreviousKernel();
  for (int chunk = 0; chunk < early; ++chunk) bring_x(chunk, chunk);
  for (int chunk = early; chunk < num_chunks; ++chunk) {
    const int stage = chunk % S::kStages;
    WaitAtBarrier(full(S::kStages + stage), (chunk / S::kStages - 1) & 1);
    bring_weights(chunk, stage);
    bring_x(chunk, stage);
  }
}

template <int kTiles>
KVB_DEVICE void MultiplyStages(uint32_t shared, int num_chunks, int group, float (&a)[kTiles][4],
                               float (&b)[kTiles][4]) {
  using S = Shape<kTiles>;
  for (int chunk = 0; chunk < num_chunks; ++chunk) {
    const int stage = chunk % S::kStages;
    const uint32_t full = shared + S::kBarriers + 8u * stage;
    WaitAtBarrier(full, chunk / S::kStages & 1);
    const uint32_t weights = shared + stage * S::kStageBytes;
    const uint64_t first = RowsAlongK(weights + 2 * group * kGroupBytes);
    const uint64_t second = RowsAlongK(weights + (2 * group + 1) * kGroupBytes);
    const uint64_t x = RowsAlongK(weights + kWeightBytes);
    BeginProducts();
#pragma unroll
    for (uint32_t k = 0; k < kDepth * 2; k += 32) {
      MultiplyGroupShared<Bf16>(a, Advanced(first, k), Advanced(x, k), chunk > 0 || k > 0);
      MultiplyGroupShared<Bf16>(b, Advanced(second, k), Advanced(x, k), chunk > 0 || k > 0);
    }
    CommitProducts();
    // What is left of the chunk before has been read.
    WaitProducts<1>();
    __syncwarp();
    if (chunk > 0 && threadIdx.x % 32 == 0) {
      ArriveAtBarrier(shared + S::kBarriers + 8u * (S::kStages + (chunk - 1) % S::kStages));
    }
  }
  WaitProducts<0>();
  PinAccumulators(a);
  PinAccumulators(b);
}

// Accumulators of 64 rows of the weights to sums [rows of x, kOut].
template <int kTiles>
KVB_DEVICE void StoreSums(const float (&d)[kTiles][4], int first_out, float* sums) {
  const int lane = static_cast<int>(threadIdx.x % 32),
            warp = static_cast<int>(threadIdx.x / 32 % 4);
  float* const at =
      sums + lane % 4 * 2 * Shape<kTiles>::kSumStride + first_out + warp * 16 + lane / 4;
#pragma unroll
  for (int j = 0; j < kTiles; ++j) {
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      at[(8 * j + i % 2) * Shape<kTiles>::kSumStride + i / 2 * 8] = d[j][i];
    }
  }
}

template <int kTiles>
__global__ void __launch_bounds__(kThreads, 1)
    StreamProductKernel(const __grid_constant__ StreamProductParams params, int splits) {
  using S = Shape<kTiles>;
  AllowNextKernel();
  unsigned char* const memory = DynamicSharedMemory();
  const uint32_t shared = SharedAddress(memory);
  const int thread = static_cast<int>(threadIdx.x), warp = thread / 32;
  if (thread == 0) {
    PrefetchMap(params.weight);
    PrefetchMap(params.x);
    for (int stage = 0; stage < S::kStages; ++stage) {
      InitBarrier(shared + S::kBarriers + 8u * stage, 1);
      InitBarrier(shared + S::kBarriers + 8u * (S::kStages + stage), kConsumers / 32);
    }
    FenceForAsyncProxy();
  }
  __syncthreads();
  const int rank = static_cast<int>(blockIdx.x) % splits;
  const int first_out = static_cast<int>(blockIdx.x) / splits * kOut;
  const auto chunks = static_cast<int>(params.in / kDepth);
  const int first_chunk = rank * chunks / splits;
  const int num_chunks = (rank + 1) * chunks / splits - first_chunk;
  if (warp == kConsumers / 32) {
    if (ElectOne()) BringStages<kTiles>(params, shared, first_chunk, num_chunks, first_out);
    __syncwarp();
  } else {
    float a[kTiles][4], b[kTiles][4];
    const int group = thread / 128;
    MultiplyStages(shared, num_chunks, group, a, b);
    NamedBarrierSync(1, kConsumers);  // no stage is read any more
    float* const sums = reinterpret_cast<float*>(memory);
    StoreSums(a, 2 * group * 64, sums);
    StoreSums(b, (2 * group + 1) * 64, sums);
  }
  if (splits > 1) {
    ClusterSync();
  } else {
    __syncthreads();
  }
  // Of the rows of x every block writes a part, 8 values at a time.
  constexpr int kUnits = kOut / 8;
  for (int i = thread; warp < kConsumers / 32 && i < S::kRows / splits * kUnits; i += kConsumers) {
    const int row = rank * (S::kRows / splits) + i / kUnits, unit = i % kUnits * 8;
    if (row >= params.rows) break;
    float sum[8] = {};
    for (int other = 0; other < splits; ++other) {
#pragma unroll
      for (int half = 0; half < 8; half += 4) {
        const uint32_t at = shared + 4u * (row * S::kSumStride + unit + half);
        const float4 part = splits > 1 ? LoadFromCluster16(at, other)
                                       : *reinterpret_cast<const float4*>(memory + (at - shared));
        sum[half] += part.x, sum[half + 1] += part.y;
        sum[half + 2] += part.z, sum[half + 3] += part.w;
      }
    }
    const int64_t to = row * params.out + first_out + unit;
    if (params.float_out) {
      auto* const y = reinterpret_cast<float4*>(static_cast<float*>(params.y) + to);
      y[0] = make_float4(sum[0], sum[1], sum[2], sum[3]);
      y[1] = make_float4(sum[4], sum[5], sum[6], sum[7]);
    } else {
      *reinterpret_cast<uint4*>(static_cast<uint16_t*>(params.y) + to) =
          make_uint4(Bf16::Pack(sum[0], sum[1]), Bf16::Pack(sum[2], sum[3]),
                     Bf16::Pack(sum[4], sum[5]), Bf16::Pack(sum[6], sum[7]));
    }
  }
  if (splits > 1) ClusterSync();  // others read this block's sums
}

template <int kTiles>
Error LaunchOfShape(const LaunchContext& context, const StreamProductParams& given) {
  StreamProductParams params = given;
  const auto blocks = static_cast<int>(params.out / kOut);
  int splits = 1;
  while (splits < kMostSplits && 2 * splits * blocks <= context.num_multiprocessors &&
         params.in / kDepth >= 4 * splits) {
    splits *= 2;
  }
  const auto map = [&](const void* data, int64_t rows, int box, TensorMap* to) {
    return MakeTensorMap({.data = data,
                          .extents = {params.in, rows, 1, 1},
                          .strides = {params.in, params.in, params.in},
                          .box = {kDepth, box, 1, 1}},
                         to);
  };
  Error error = map(params.weight_data, params.out, kOut, &params.weight);
  if (error == 0) error = map(params.x_data, params.rows, 8 * kTiles, &params.x);
  if (error != 0) return error;
  LaunchConfig config = ConfigOf(context, static_cast<unsigned>(blocks * splits), kThreads,
                                 Shape<kTiles>::kSharedBytes);
  config.cluster = static_cast<unsigned>(splits);
  return Launch(config, StreamProductKernel<kTiles>, params, splits);
}

}  // namespace

bool FitsStreamProduct(const StreamProductParams& params) {
  return params.rows >= 1 && params.rows <= 128 && params.in % kDepth == 0 &&
         params.out % kOut == 0 && params.in < int64_t{1} << 30 && params.out < int64_t{1} << 30;
}

Error LaunchStreamProduct(const LaunchContext& context, const StreamProductParams& params) {
  return params.rows <= 64 ? LaunchOfShape<8>(context, params) : LaunchOfShape<16>(context, params);
}

}  // namespace kvblocks::engine
