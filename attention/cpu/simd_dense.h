// Dense attention of a batch by the SIMD backend: every query row against all keys of its request
// that it sees, from a paged cache or from contiguous tensors.
//
// The work is cut into tasks (some query tokens of a request, some heads) which threads take one
// after another; a task walks its keys by tiles of 64 that begin at absolute multiples of 64. Tasks
// only schedule: numbers do not depend on them. Pieces do count: the keys of a request may be cut
// into pieces whose states are returned separately, in key order.

#ifndef KVBLOCKS_ATTENTION_CPU_SIMD_DENSE_H_
#define KVBLOCKS_ATTENTION_CPU_SIMD_DENSE_H_

#include <cstdint>
#include <vector>

#include "absl/functional/function_ref.h"
#include "attention/cpu/simd_states.h"
#include "kvblocks/attention_args.h"
#include "kvblocks/attention_cpu.h"
#include "kvblocks/kv_cache_view.h"
#include "kvblocks/tensor_view.h"

namespace kvblocks::attention::simd {

struct DenseBatch {
  // [T, H, D], or [T, H, part of D] and query_rest [T, H, the rest].
  ConstTensorView query, query_rest;
  ConstKvCacheView cache;
  AttnParams params;  // scales for codes only; of latent rows, v's is k's
  // Per request: rows query_start[b] to query_start[b + 1] of the queries, the number of keys, and
  // where they are: a row of the block table, or, without a table, the slot of the first.
  std::vector<int64_t> query_start, lengths;
  ConstTensorView block_table;
  std::vector<int64_t> first_slot;
  ConstTensorView query_positions;  // i32 [T] or absent: p = length - q_len + i

  int64_t num_requests() const { return static_cast<int64_t>(lengths.size()); }
  int64_t num_heads() const { return query.extent[1]; }
};

// A contiguous tensor of keys and one of values, [T, Hkv, D] and [T, Hkv, Dv], as a cache of one
// block.
ConstKvCacheView AsCache(const ConstTensorView& k, const ConstTensorView& v);

// i32 [n] as int64; absent: empty.
std::vector<int64_t> IntegersOf(const ConstTensorView& view);

// The pieces of a request's keys: piece i is [bounds[i], bounds[i + 1]), ascending; fewer than two
// bounds are no keys.
using Pieces = std::vector<int64_t>;
// [begin, end) with cuts inside.
Pieces PiecesOf(int64_t begin, int64_t end, const std::vector<int64_t>& cuts);

// Takes the states of a row, one per piece; called once per token and head, from any thread. The
// states' values may be overwritten.
using TakeStates =
    absl::FunctionRef<void(int64_t token, int64_t head, const State* states, int64_t num_states)>;

// Computes all rows against the pieces of their requests' keys.
void AttendDense(const DenseBatch& batch, const std::vector<Pieces>& pieces, ThreadPool* threads,
                 TakeStates take);

// All rows of the batch against the first `prefix` keys of request 0's block-table row.
void AttendSharedPrefix(const DenseBatch& batch, int64_t prefix, ThreadPool* threads,
                        TakeStates take);

// Attention of the SIMD backend over lists of keys: each query has its own slots of a latent cache,
// and may have more of a second one. Order and repetition of slots are as listed; a slot listed
// twice counts twice.

struct KeyLists {
  ConstKvCacheView cache;
  double code_scale = 1;  // of keys and values
  // Slots of query n: slots[starts[n]] to slots[starts[n + 1]], all valid.
  std::vector<int64_t> slots, starts;
};

// Queries [B, s, H, D], query n being (n / s, n % s), against the union of all lists. Takes one or
// two states of every row, from any thread.
void AttendLists(
    const ConstTensorView& query, const std::vector<KeyLists>& lists, double scale,
    ThreadPool* threads,
    absl::FunctionRef<void(int64_t n, int64_t head, const State* states, int64_t num_states)> take);

}  // namespace kvblocks::attention::simd

#endif  // KVBLOCKS_ATTENTION_CPU_SIMD_DENSE_H_
