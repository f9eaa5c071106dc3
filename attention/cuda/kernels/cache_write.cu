#include <type_traits>

#include "kvblocks/attention/cuda/device/gpu.h"
#include "kvblocks/attention/cuda/device/numbers.h"
#include "kvblocks/attention/cuda/device/ptx.h"
#include "kvblocks/attention/cuda/kernels/cache_columns.h"
#include "kvblocks/attention/cuda/kernels/cache_copies.h"
#include "kvblocks/attention/cuda/kernels/cache_slots.h"
#include "kvblocks/attention/cuda/kernels/cache_turn.h"
#include "kvblocks/attention/cuda/kernels/cache_write.h"
#include "kvblocks/attention/cuda/kernels/device_flags.h"
#include "kvblocks/attention/cuda/kernels/fast_division.h"

namespace kvblocks::attention::cuda {
namespace {

template <typename Copy>
__global__ void __launch_bounds__(Copy::kThreads, Copy::kBlocks)
    StoreRowsKernel(const __grid_constant__ CacheWriteParams params,
                    const __grid_constant__ RowsPlan plan, uint32_t* flags) {
  AllowNextKernel();
  WaitForPreviousKernel();
  StoreColumns<Copy, Copy::kTokens>(params, plan, blockIdx.x, static_cast<int>(blockIdx.y), flags);
}

// --- Dim-major values ---

constexpr int kThreads = kTurnThreads;
constexpr int kPieceTokens = 4;  // loads of keys that a thread has under way at once

// V of kPagedX, turned (cache_turn.h), and, in the same launch, pieces of K.
struct PagedXPlan {
  RowsPlan pieces;
  FastDivisor column_blocks, tiles;
  int32_t num_turned = 0;  // thread blocks
};
template <typename Copy>
__global__ void __launch_bounds__(kThreads, 4)
    StorePagedXKernel(const __grid_constant__ CacheWriteParams params,
                      const __grid_constant__ PagedXPlan plan, uint32_t* flags) {
  AllowNextKernel();
  WaitForPreviousKernel();
  const bool turned = static_cast<int>(blockIdx.x) < plan.num_turned;
  const uint32_t index = turned ? blockIdx.x : blockIdx.x - plan.num_turned;
  const FastDivisor& across = turned ? plan.tiles : plan.column_blocks;
  const uint32_t token_block = across.Quotient(index);
  const auto rest = static_cast<int>(index - token_block * across.divisor());
  if (turned) {
    StoreTurned<Copy>(params, plan.pieces.slots, token_block, rest, flags);
  } else {
    StoreColumns<Copy, kPieceTokens>(params, plan.pieces, token_block, rest, flags);
  }
}

// Any dims and elements, one by one; lanes are tokens.
__global__ void __launch_bounds__(kThreads)
    StoreDimMajorKernel(const __grid_constant__ CacheWriteParams params, SlotDivision division,
                        uint32_t* flags) {
  AllowNextKernel();
  WaitForPreviousKernel();
  const RowStore& store = params.stores[1];
  const int head = static_cast<int>(blockIdx.y);
  const int64_t token = int64_t{blockIdx.x} * 32 + threadIdx.x % 32;
  if (token >= params.num_tokens) return;
  const int64_t slot = SlotOf(params.slots, params.slot_stride, token, params.num_slots, flags);
  if (slot < 0) return;
  const BlockAndOffset place = division.Of(slot);
  const int to_bytes = BytesOf(store.element), from_bytes = BytesOf(store.from.element);
  const auto* from = static_cast<const unsigned char*>(store.from.data) +
                     (token * store.from.row_stride + head * store.from.head_stride) * from_bytes;
  auto* to =
      static_cast<unsigned char*>(store.to) +
      (place.block * store.block_stride + head * store.head_stride + place.offset) * to_bytes;
  const bool scaled = IsCode(store.element) && store.element != store.from.element;
  const float scale = scaled ? ScaleOf(store.scale, head) : 1.0f;
  if (scaled) CheckScale(store.scale, scale, flags);
  for (int d = static_cast<int>(threadIdx.x / 32); d < store.dim; d += kThreads / 32) {
    StoreRest(store, from + d * from_bytes, to + int64_t{d} * params.block_size * to_bytes, 1,
              scale);
  }
}

// --- Launches ---

LaunchConfig ConfigOf(const LaunchContext& context, int threads) {
  LaunchConfig config;
  config.block = dim3(static_cast<unsigned>(threads));
  config.stream = context.stream;
  config.overlap_previous = context.can_overlap();
  return config;
}

template <typename Copy>
Error StoreRows(const LaunchContext& context, const CacheWriteParams& params) {
  int threads = Copy::kThreads;
  const RowsPlan plan = PlanRows(params, Copy::kTokens, context.num_multiprocessors, &threads);
  LaunchConfig config = ConfigOf(context, threads);
  config.grid = dim3(Blocks(params.num_tokens, Copy::kTokens * plan.tokens_per_pass),
                     static_cast<unsigned>(plan.column_blocks));
  return Launch(config, StoreRowsKernel<Copy>, params, plan, context.error_flags);
}

template <typename Copy>
Error StorePagedX(const LaunchContext& context, const CacheWriteParams& params) {
  CacheWriteParams keys = params;
  keys.stores[1].dim = 0;
  int threads = kThreads;  // no fewer: turning needs them
  PagedXPlan plan;
  plan.pieces = PlanRows(keys, kPieceTokens, 0, &threads);
  const RowStore& values = params.stores[1];
  const int tiles = values.heads * static_cast<int>(Blocks(values.dim, kTurnDims));
  plan.tiles = FastDivisor(tiles);
  plan.num_turned = static_cast<int32_t>(Blocks(params.num_tokens, kTurnTokens)) * tiles;
  unsigned pieces = 0;
  if (plan.pieces.column_blocks > 0) {
    plan.column_blocks = FastDivisor(plan.pieces.column_blocks);
    pieces = Blocks(params.num_tokens, kPieceTokens * plan.pieces.tokens_per_pass) *
             static_cast<unsigned>(plan.pieces.column_blocks);
  }
  LaunchConfig config = ConfigOf(context, kThreads);
  config.grid = dim3(static_cast<unsigned>(plan.num_turned) + pieces);
  config.shared_bytes = kTurnBytes;
  return Launch(config, StorePagedXKernel<Copy>, params, plan, context.error_flags);
}

// Stores of the same kind and types, at least one.
template <typename Copy>
Error StoreAs(const LaunchContext& context, const CacheWriteParams& params) {
  const RowStore& values = params.stores[1];
  if (values.dim == 0 || values.order != RowStore::Order::kDimMajor) {
    return StoreRows<Copy>(context, params);
  }
  if constexpr (!std::is_same_v<Copy, Converted<F32>>) {
    if (values.element != Element::kF32 && values.dim % ElementsOf(values) == 0) {
      return StorePagedX<Copy>(context, params);
    }
  }
  if (params.stores[0].dim != 0) {
    CacheWriteParams keys = params;
    keys.stores[1].dim = 0;
    if (const Error error = StoreRows<Copy>(context, keys); error != 0) return error;
  }
  LaunchConfig config = ConfigOf(context, kThreads);
  config.grid = dim3(Blocks(params.num_tokens, 32), static_cast<unsigned>(values.heads));
  return Launch(config, StoreDimMajorKernel, params,
                SlotDivision(params.block_size, params.num_slots), context.error_flags);
}

}  // namespace

Error LaunchCacheWrite(const LaunchContext& context, const CacheWriteParams& params) {
  if (params.num_tokens == 0 || params.num_slots == 0) return 0;
  // K and V go in one launch if both are converted alike.
  const auto converted = [](const RowStore& store) { return store.from.element != store.element; };
  const RowStore &keys = params.stores[0], &values = params.stores[1];
  if (keys.dim != 0 && values.dim != 0 &&
      (keys.element != values.element || converted(keys) != converted(values))) {
    for (int i = 0; i < 2; ++i) {
      CacheWriteParams one = params;
      one.stores[1 - i].dim = 0;
      if (const Error error = LaunchCacheWrite(context, one); error != 0) return error;
    }
    return 0;
  }
  const RowStore& store = keys.dim != 0 ? keys : values;
  if (store.dim == 0) return 0;
  if (!converted(store)) return StoreAs<RawCopy>(context, params);
  switch (store.element) {
    case Element::kF32:
      return StoreAs<Converted<F32>>(context, params);
    case Element::kF16:
      return StoreAs<Converted<F16>>(context, params);
    case Element::kBF16:
      return StoreAs<Converted<Bf16>>(context, params);
    case Element::kF8E4M3:
      return StoreAs<Converted<E4m3>>(context, params);
    case Element::kF8E5M2:
      return StoreAs<Converted<E5m2>>(context, params);
    case Element::kI8:
      return StoreAs<Converted<Int8>>(context, params);
    default:
      return 1;
  }
}

}  // namespace kvblocks::attention::cuda
