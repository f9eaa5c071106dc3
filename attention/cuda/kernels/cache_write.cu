#include "attention/cuda/kernels/cache_write.h"

#include <algorithm>
#include <type_traits>

#include "attention/cuda/device/gpu.h"
#include "attention/cuda/device/numbers.h"
#include "attention/cuda/device/ptx.h"
#include "attention/cuda/kernels/cache_copies.h"
#include "attention/cuda/kernels/cache_slots.h"
#include "attention/cuda/kernels/fast_division.h"
#include "attention/cuda/kernels/launch.h"

namespace kvblocks::attention::cuda {
namespace {

constexpr int kMostTokens = 128;  // of a thread block

// --- Rows and pieces ---

// K or V: units of 16 bytes of the source, and where they go. Strides are in bytes.
struct Columns {
  const unsigned char* from = nullptr;
  unsigned char* to = nullptr;
  int64_t from_row = 0, from_head = 0, to_block = 0, to_head = 0, to_token = 0;
  FastDivisor units_per_head;
  int32_t units = 0;       // of a token
  int32_t whole = 0;       // units of a head that are no rest of it
  int32_t unit_bytes = 0;  // in the cache
  int32_t piece = 1;       // 16 bytes in the cache from one to the next, in 16 bytes
};

// How the threads of a block divide tokens and the units of a token, those of K before those of V.
struct RowsPlan {
  Columns of[2];
  int32_t columns = 0;  // units that a block has of each token
  FastDivisor across;   // `columns`, or the tokens that lie side by side
  int32_t tokens_per_pass = 1;
  // Neighbouring threads have neighbouring tokens, whose pieces are neighbours in the cache.
  bool tokens_first = false;
  int32_t column_blocks = 0;
  SlotDivision slots;
};

template <typename Copy, int kTokens>
KVB_DEVICE void StoreColumns(const CacheWriteParams& params, const RowsPlan& plan,
                             int64_t token_block, int column_block, uint32_t* flags) {
  // Of tokens, in the cache's tensors, in bytes; -1: there is none, or it is skipped.
  __shared__ int64_t rows[2][kMostTokens];
  const int thread = static_cast<int>(threadIdx.x);
  const int tokens_per_block = kTokens * plan.tokens_per_pass;
  const int64_t first_token = token_block * tokens_per_block;
  const int64_t left = params.mapping.num_tokens - first_token;
  const int num_tokens = left < tokens_per_block ? static_cast<int>(left) : tokens_per_block;
  const int64_t slot =
      thread < num_tokens ? SlotOf(params.mapping, first_token + thread, flags) : -1;

  const auto quotient = static_cast<int>(plan.across.Quotient(threadIdx.x));
  const int rest = thread - quotient * static_cast<int>(plan.across.divisor());
  const int first = plan.tokens_first ? rest : quotient;
  const int column = plan.tokens_first ? quotient : rest;
  int unit = column_block * plan.columns + column;
  const bool exists = first < plan.tokens_per_pass && column < plan.columns &&
                      unit < plan.of[0].units + plan.of[1].units;
  const int which = unit >= plan.of[0].units ? 1 : 0;
  if (which == 1) unit -= plan.of[0].units;
  if (!exists) unit = 0;
  const RowStore& store = params.stores[which];
  const Columns& columns = plan.of[which];
  const auto head = static_cast<int>(columns.units_per_head.Quotient(unit));
  unit -= head * static_cast<int>(columns.units_per_head.divisor());  // of the head
  const bool whole = unit < columns.whole;
  const unsigned char* from = columns.from + (first_token + first) * columns.from_row +
                              head * columns.from_head + unit * 16;
  const int64_t from_step = plan.tokens_per_pass * columns.from_row;

  // Everything is on its way before the first slot is known.
  float scale = 1;
  if (Copy::kScaled && exists) scale = ScaleOf(store.scale, head);
  uint4 units[kTokens];
#pragma unroll
  for (int i = 0; i < kTokens; ++i) {
    if (exists && whole && first + i * plan.tokens_per_pass < num_tokens) {
      units[i] = LoadOnce16(from + i * from_step);
    }
  }
  if (thread < tokens_per_block) {
    const BlockAndOffset place = plan.slots.Of(slot < 0 ? 0 : slot);
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      rows[i][thread] =
          slot < 0 ? -1 : place.block * plan.of[i].to_block + place.offset * plan.of[i].to_token;
    }
  }
  const Copy copy(store, scale);
  __syncthreads();
  if (!exists) return;

  const int byte = unit * columns.unit_bytes, in_piece = byte & 15;
  unsigned char* to =
      columns.to + head * columns.to_head + int64_t{byte - in_piece} * columns.piece + in_piece;
  const int64_t* own_rows = &rows[which][first];
  const bool fast = whole && !copy.is_slow();
  bool stored = false;
  const auto store_fast = [&] {
    StoreFast<Copy>(store, [&](auto from_type) {
#pragma unroll
      for (int i = 0; i < kTokens; ++i) {
        const int64_t row = own_rows[i * plan.tokens_per_pass];
        if (row < 0) continue;
        stored = true;
        if (!Copy::kScaled && !fast) continue;
        copy.template Store<decltype(from_type)::value>(store, units[i], to + row,
                                                        int64_t{columns.piece} * 16);
      }
    });
  };
  const auto store_slowly = [&] {
    uint32_t slow = 0;
#pragma unroll 1
    for (int i = 0; i < kTokens; ++i) {
      const int64_t row = own_rows[i * plan.tokens_per_pass];
      if (row < 0) continue;
      stored = true;
      if (whole) {
        slow |= 1u << i;
      } else {
        StoreRest(store, from + i * from_step, to + row, store.dim - unit * ElementsOf(store),
                  scale);
      }
    }
    StoreSlowly(copy, store, units, slow,
                [&](int i) { return to + own_rows[i * plan.tokens_per_pass]; });
  };
  // Two forms, which differ in where the compiler puts what seldom runs: codes are made faster by
  // this one, copies by that.
  if constexpr (Copy::kScaled) {
    if (fast) {
      store_fast();
    } else {
      store_slowly();
    }
  } else {
    store_fast();
    if (!fast) store_slowly();
  }
  if (Copy::kScaled && stored) CheckScale(store.scale, scale, flags);
}

template <typename Copy>
__global__ void __launch_bounds__(Copy::kThreads, Copy::kBlocks)
    StoreRowsKernel(const __grid_constant__ CacheWriteParams params,
                    const __grid_constant__ RowsPlan plan, uint32_t* flags) {
  OverlapNeighbours();
  StoreColumns<Copy, Copy::kTokens>(params, plan, blockIdx.x, static_cast<int>(blockIdx.y), flags);
}

// --- Dim-major values ---

constexpr int kThreads = kTurnThreads;
constexpr int kPieceTokens = 4;  // loads of keys that a thread has under way at once

// V of kPagedX, turned (cache_copies.h), and, in the same launch, pieces of K.
struct PagedXPlan {
  RowsPlan pieces;
  FastDivisor column_blocks, tiles;
  int32_t num_turned = 0;  // thread blocks
};
template <typename Copy>
__global__ void __launch_bounds__(kThreads, 4)
    StorePagedXKernel(const __grid_constant__ CacheWriteParams params,
                      const __grid_constant__ PagedXPlan plan, uint32_t* flags) {
  OverlapNeighbours();
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
  OverlapNeighbours();
  const RowStore& store = params.stores[1];
  const int head = static_cast<int>(blockIdx.y);
  const int64_t token = int64_t{blockIdx.x} * 32 + threadIdx.x % 32;
  BlockAndOffset place;
  if (!FindPlace(params.mapping, division, token, flags, &place)) return;
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
    StoreRest(store, from + d * from_bytes, to + int64_t{d} * params.mapping.block_size * to_bytes,
              1, scale);
  }
}

// --- Launches ---

// A plan for rows or pieces of those stores that have a dim, and for blocks of *threads, so many
// loads each, or, for few tokens to go to as many multiprocessors as there are, fewer.
RowsPlan PlanRows(const CacheWriteParams& params, int tokens, int multiprocessors, int* threads) {
  RowsPlan plan;
  plan.slots = SlotDivision(params.mapping);
  for (int i = 0; i < 2; ++i) {
    const RowStore& store = params.stores[i];
    if (store.dim == 0) continue;
    const int elements = ElementsOf(store), bytes = BytesOf(store.element);
    const int per_head = (store.dim + elements - 1) / elements;
    const int from_bytes = BytesOf(store.from.element);
    Columns& columns = plan.of[i];
    columns.from = static_cast<const unsigned char*>(store.from.data);
    columns.to = static_cast<unsigned char*>(store.to);
    columns.from_row = store.from.row_stride * from_bytes;
    columns.from_head = store.from.head_stride * from_bytes;
    columns.to_block = store.block_stride * bytes;
    columns.to_head = store.head_stride * bytes;
    plan.tokens_first = store.order == RowStore::Order::kPieces;
    columns.to_token = plan.tokens_first ? 16 : store.token_stride * bytes;
    columns.units_per_head = FastDivisor(per_head);
    columns.units = per_head * store.heads;
    columns.whole = store.dim / elements;
    columns.unit_bytes = elements * bytes;
    columns.piece = plan.tokens_first ? params.mapping.block_size : 1;
  }
  const int units = plan.of[0].units + plan.of[1].units;
  while (*threads > 64 &&
         params.mapping.num_tokens * units < int64_t{2} * multiprocessors * *threads * tokens) {
    *threads /= 2;
  }
  if (plan.tokens_first) {
    plan.tokens_per_pass = 4;
    plan.columns = *threads / plan.tokens_per_pass;
    plan.across = FastDivisor(plan.tokens_per_pass);
    plan.column_blocks = static_cast<int32_t>(Blocks(units, plan.columns));
  } else {
    // Blocks of about as many columns each.
    plan.column_blocks = static_cast<int32_t>(Blocks(units, *threads));
    plan.columns = static_cast<int32_t>(Blocks(units, plan.column_blocks));
    const int most = *threads < kMostTokens ? *threads : kMostTokens;
    plan.tokens_per_pass = std::min(*threads / plan.columns, most / tokens);
    plan.across = FastDivisor(plan.columns);
  }
  return plan;
}

template <typename Copy>
Error StoreRows(const LaunchContext& context, const CacheWriteParams& params) {
  int threads = Copy::kThreads;
  const RowsPlan plan = PlanRows(params, Copy::kTokens, context.num_multiprocessors, &threads);
  LaunchConfig config = ConfigOf(context, 1, threads);
  config.grid = dim3(Blocks(params.mapping.num_tokens, Copy::kTokens * plan.tokens_per_pass),
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
  plan.num_turned = static_cast<int32_t>(Blocks(params.mapping.num_tokens, kTurnTokens)) * tiles;
  unsigned pieces = 0;
  if (plan.pieces.column_blocks > 0) {
    plan.column_blocks = FastDivisor(plan.pieces.column_blocks);
    pieces = Blocks(params.mapping.num_tokens, kPieceTokens * plan.pieces.tokens_per_pass) *
             static_cast<unsigned>(plan.pieces.column_blocks);
  }
  LaunchConfig config = ConfigOf(context, 1, kThreads);
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
  LaunchConfig config = ConfigOf(context, 1, kThreads);
  config.grid = dim3(Blocks(params.mapping.num_tokens, 32), static_cast<unsigned>(values.heads));
  return Launch(config, StoreDimMajorKernel, params, SlotDivision(params.mapping),
                context.error_flags);
}

}  // namespace

Error LaunchCacheWrite(const LaunchContext& context, const CacheWriteParams& params) {
  if (params.mapping.is_empty()) return 0;
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
