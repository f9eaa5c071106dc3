// Rows and pieces on their way into a cache: units of 16 bytes, threads over columns and tokens. Device code
// and its plans: included by .cu files only.

#ifndef KVBLOCKS_ATTENTION_CUDA_KERNELS_CACHE_COLUMNS_H_
#define KVBLOCKS_ATTENTION_CUDA_KERNELS_CACHE_COLUMNS_H_

#include <algorithm>

#include "kvblocks/attention/cuda/device/gpu.h"
#include "kvblocks/attention/cuda/device/ptx.h"
#include "kvblocks/attention/cuda/kernels/cache_copies.h"
#include "kvblocks/attention/cuda/kernels/cache_slots.h"
#include "kvblocks/attention/cuda/kernels/cache_write.h"
#include "kvblocks/attention/cuda/kernels/device_flags.h"
#include "kvblocks/attention/cuda/kernels/fast_division.h"

namespace kvblocks::attention::cuda {

inline constexpr int kMostTokens = 128;  // of a thread block

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

// Of tokens, in the cache's tensors, in bytes; -1: there is none, or it is skipped.
struct RowsOfTokens {
  int64_t of[2][kMostTokens];
};

// Columns of the tokens of a block, with `places` in shared memory. scale_of(0 for K, 1 for V, the head) is
// called where codes are made.
template <typename Copy, int kTokens, typename ScaleOfHead>
KVB_DEVICE void StoreColumns(const CacheWriteParams& params, const RowsPlan& plan,
                             int64_t token_block, int column_block, uint32_t* flags,
                             RowsOfTokens& places, const ScaleOfHead& scale_of) {
  auto& rows = places.of;
  const int thread = static_cast<int>(threadIdx.x);
  const int tokens_per_block = kTokens * plan.tokens_per_pass;
  const int64_t first_token = token_block * tokens_per_block;
  const int64_t left = params.num_tokens - first_token;
  const int num_tokens = left < tokens_per_block ? static_cast<int>(left) : tokens_per_block;
  const int64_t slot = thread < num_tokens ? SlotOf(params.slots, params.slot_stride,
                                                    first_token + thread, params.num_slots, flags)
                                           : -1;

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
  if (Copy::kScaled && exists) scale = scale_of(which, head);
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
  // Two forms, which differ in where the compiler puts what is rare: codes are made faster by this
  // one, copies by that.
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

template <typename Copy, int kTokens>
KVB_DEVICE void StoreColumns(const CacheWriteParams& params, const RowsPlan& plan,
                             int64_t token_block, int column_block, uint32_t* flags) {
  __shared__ RowsOfTokens places;
  StoreColumns<Copy, kTokens>(
      params, plan, token_block, column_block, flags, places,
      [&](int which, int head) { return ScaleOf(params.stores[which].scale, head); });
}

inline unsigned Blocks(int64_t count, int64_t per_block) {
  return static_cast<unsigned>((count + per_block - 1) / per_block);
}

// A plan for rows or pieces of those stores that have a dim, and for blocks of *threads, so many
// loads each, or, for few tokens to go to as many multiprocessors as there are, fewer.
inline RowsPlan PlanRows(const CacheWriteParams& params, int tokens, int multiprocessors, int* threads) {
  RowsPlan plan;
  plan.slots = SlotDivision(params.block_size, params.num_slots);
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
    columns.piece = plan.tokens_first ? params.block_size : 1;
  }
  const int units = plan.of[0].units + plan.of[1].units;
  while (*threads > 64 &&
         params.num_tokens * units < int64_t{2} * multiprocessors * *threads * tokens) {
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

}  // namespace kvblocks::attention::cuda

#endif  // KVBLOCKS_ATTENTION_CUDA_KERNELS_CACHE_COLUMNS_H_
