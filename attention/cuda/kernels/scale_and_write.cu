#include "kvblocks/attention/cuda/device/gpu.h"
#include "kvblocks/attention/cuda/device/grid.h"
#include "kvblocks/attention/cuda/device/numbers.h"
#include "kvblocks/attention/cuda/device/ptx.h"
#include "kvblocks/attention/cuda/kernels/arrival_rows.h"
#include "kvblocks/attention/cuda/kernels/cache_columns.h"
#include "kvblocks/attention/cuda/kernels/kv_maxima.h"
#include "kvblocks/attention/cuda/kernels/scale_and_write.h"

namespace kvblocks::attention::cuda {
namespace {

// No error of CUDA's: another way is to be taken.
constexpr Error kNotInOneLaunch = -1;

// Of a multiprocessor, all of which run at a time.
constexpr int kBlocks = 3;

// Zero modulo 2^31 before and after each launch.
__device__ int32_t grid_counters[kArrivalRows];

struct ScaleAndWritePlan {
  ScalesPlan scales;
  RowsPlan rows;
  FastDivisor maxima_columns, row_columns;  // thread blocks side by side
  int32_t token_blocks = 0;                 // of maxima
  int32_t num_items = 0;                    // blocks' worth of rows
  int32_t counter = 0;                      // of grid_counters
  int32_t scale_bytes = 0;                  // of shared memory
};

// All blocks find maxima of a part of the tensors and meet. Then each makes the scales for itself, and they
// share the rows out among them, which come from L2 as far as they fit there.
template <typename Copy>
__global__ void __launch_bounds__(kMaximaThreads, kBlocks)
    ScaleAndWriteKernel(const __grid_constant__ KvScalesParams scales,
                        const __grid_constant__ CacheWriteParams write,
                        const __grid_constant__ ScaleAndWritePlan plan, float* partial,
                        uint32_t* flags) {
  AllowNextKernel();
  const uint32_t token_block = plan.maxima_columns.Quotient(blockIdx.x);
  const auto maxima_column =
      static_cast<int>(blockIdx.x - token_block * plan.maxima_columns.divisor());
  const int num_parts = plan.token_blocks * static_cast<int>(plan.maxima_columns.divisor());
  if (static_cast<int>(blockIdx.x) < num_parts) {
    BlockMaxima(scales, plan.scales, static_cast<int>(token_block), plan.token_blocks,
                maxima_column, partial, flags, [] {});
  }
  GridSync(grid_counters + plan.counter);

  const int most = plan.scales.most_scales;
  // Blocks of one grid in the emulation share what is not dynamic.
  auto* own = reinterpret_cast<float*>(DynamicSharedMemory());
  auto& places = *reinterpret_cast<RowsOfTokens*>(DynamicSharedMemory() + plan.scale_bytes);
  for (int i = static_cast<int>(threadIdx.x) / 32; i < kScaleTasks * most;
       i += kMaximaThreads / 32) {
    const int which = i / most, scale = i - which * most;
    const ScaleTask& task = scales.tasks[which];
    if (task.from.data == nullptr || scale >= task.num_scales) continue;
    const float value = ScaleFrom(LargestOf<true>(partial, i, num_parts), task.divisor);
    if (threadIdx.x % 32 != 0) continue;
    own[i] = value;
    if (blockIdx.x == 0) task.to[scale * task.to_stride] = value;
  }
  __syncthreads();
  // K and V are the tasks behind that of queries.
  const auto scale_of = [&](int which, int head) {
    return own[(which + 1) * most + (scales.tasks[which + 1].num_scales > 1 ? head : 0)];
  };
  for (int item = static_cast<int>(blockIdx.x); item < plan.num_items;
       item += static_cast<int>(gridDim.x)) {
    const uint32_t tokens = plan.row_columns.Quotient(static_cast<uint32_t>(item));
    const auto column = static_cast<int>(static_cast<uint32_t>(item) -
                                         tokens * plan.row_columns.divisor());
    StoreColumns<Copy, Copy::kTokens>(write, plan.rows, tokens, column, flags,
                                      places, scale_of);
    __syncthreads();  // where rows go is in shared memory
  }
}

template <typename Copy>
Error LaunchAs(const LaunchContext& context, const ScaleAndWriteParams& params) {
  ScaleAndWritePlan plan;
  const int64_t wave = int64_t{context.num_multiprocessors} * kBlocks;
  int64_t token_blocks, column_blocks;
  plan.scales = PlanScales(params.scales, wave, &token_blocks, &column_blocks);
  plan.counter = ArrivalRowOf(context.workspace);
  if (token_blocks == 0 || plan.counter < 0) return kNotInOneLaunch;
  plan.token_blocks = static_cast<int32_t>(token_blocks);
  plan.maxima_columns = FastDivisor(column_blocks);
  int threads = kMaximaThreads;
  plan.rows = PlanRows(params.write, Copy::kTokens, 0, &threads);
  plan.row_columns = FastDivisor(plan.rows.column_blocks);
  const int64_t items = CeilOf(params.write.num_tokens, Copy::kTokens * plan.rows.tokens_per_pass) *
                        plan.rows.column_blocks;
  if (items > INT32_MAX - wave) return kNotInOneLaunch;
  plan.num_items = static_cast<int32_t>(items);
  int64_t blocks = token_blocks * column_blocks;
  if (blocks < items) blocks = items < wave ? items : wave;
  LaunchConfig config;
  config.grid = dim3(static_cast<unsigned>(blocks));
  config.block = dim3(kMaximaThreads);
  plan.scale_bytes = static_cast<int32_t>(CeilOf(kScaleTasks * plan.scales.most_scales, 4) * 16);
  config.shared_bytes = static_cast<size_t>(plan.scale_bytes) + sizeof(RowsOfTokens);
  config.stream = context.stream;
  config.cooperative = true;
  return Launch(config, ScaleAndWriteKernel<Copy>, params.scales, params.write, plan,
                reinterpret_cast<float*>(context.workspace), context.error_flags);
}

}  // namespace

Error LaunchScaleAndWrite(const LaunchContext& context, const ScaleAndWriteParams& params) {
  const RowStore &keys = params.write.stores[0], &values = params.write.stores[1];
  const bool in_one = params.write.num_tokens > 0 && params.write.num_slots > 0 &&
                      keys.element == values.element &&
                      keys.dim > 0 && values.dim > 0 &&
                      values.order != RowStore::Order::kDimMajor;
  Error error = kNotInOneLaunch;
  if (in_one && keys.element == Element::kF8E4M3) {
    error = LaunchAs<Converted<E4m3>>(context, params);
  } else if (in_one && keys.element == Element::kF8E5M2) {
    error = LaunchAs<Converted<E5m2>>(context, params);
  } else if (in_one && keys.element == Element::kI8) {
    error = LaunchAs<Converted<Int8>>(context, params);
  }
  if (error != kNotInOneLaunch) return error;
  error = LaunchKvScales(context, params.scales);
  return error != 0 ? error : LaunchCacheWrite(context, params.write);
}

}  // namespace kvblocks::attention::cuda
