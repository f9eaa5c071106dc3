#include "kvblocks/attention/cuda/device/gpu.h"
#include "kvblocks/attention/cuda/device/ptx.h"
#include "kvblocks/attention/cuda/kernels/kv_maxima.h"
#include "kvblocks/attention/cuda/kernels/kv_scales.h"

namespace kvblocks::attention::cuda {
namespace {

__global__ void __launch_bounds__(kMaximaThreads)
    ScaleMaximaKernel(const __grid_constant__ KvScalesParams params,
                      const __grid_constant__ ScalesPlan plan, float* partial, uint32_t* flags) {
  AllowNextKernel();
  BlockMaxima(params, plan, static_cast<int>(blockIdx.x), static_cast<int>(gridDim.x),
              static_cast<int>(blockIdx.y), partial, flags, [] { WaitForPreviousKernel(); });
}

// A warp per scale and task.
__global__ void __launch_bounds__(32)
    FinishScalesKernel(const __grid_constant__ KvScalesParams params, const float* partial,
                       int most_scales, int num_blocks) {
  AllowNextKernel();
  WaitForPreviousKernel();
  const ScaleTask& task = params.tasks[blockIdx.y];
  const int scale = static_cast<int>(blockIdx.x);
  if (task.from.data == nullptr || scale >= task.num_scales) return;
  const float amax = LargestOf<false>(
      partial, static_cast<int>(blockIdx.y) * most_scales + scale, num_blocks);
  if (threadIdx.x == 0) task.to[scale * task.to_stride] = ScaleFrom(amax, task.divisor);
}

}  // namespace

int64_t KvScalesWorkspaceBytes(int64_t most_scales) {
  return kScaleTasks * kMostScaleBlocks * most_scales * static_cast<int64_t>(sizeof(float));
}

Error LaunchKvScales(const LaunchContext& context, const KvScalesParams& params) {
  // One wave, if it is large enough.
  int64_t token_blocks, column_blocks;
  const ScalesPlan plan = PlanScales(params, int64_t{context.num_multiprocessors} * 4,
                                     &token_blocks, &column_blocks);
  if (column_blocks == 0) return 0;
  if (token_blocks == 0) return cudaErrorInvalidConfiguration;
  auto* partial = reinterpret_cast<float*>(context.workspace);
  LaunchConfig config;
  config.grid = dim3(static_cast<unsigned>(token_blocks), static_cast<unsigned>(column_blocks));
  config.block = dim3(kMaximaThreads);
  config.shared_bytes = static_cast<size_t>(kScaleTasks * plan.most_scales) * sizeof(uint32_t);
  config.stream = context.stream;
  config.overlap_previous = context.can_overlap();
  const Error error = Launch(config, ScaleMaximaKernel, params, plan, partial, context.error_flags);
  if (error != 0) return error;
  config.grid = dim3(static_cast<unsigned>(plan.most_scales), kScaleTasks);
  config.block = dim3(32);
  config.shared_bytes = 0;
  return Launch(config, FinishScalesKernel, params, static_cast<const float*>(partial),
                static_cast<int>(plan.most_scales), static_cast<int>(token_blocks * column_blocks));
}

}  // namespace kvblocks::attention::cuda
