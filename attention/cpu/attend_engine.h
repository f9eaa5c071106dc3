// What the attending operations of the host come down to, and the engines that compute it: the
// backend CPU's in SIMD (simd_engine.cc) and CPU_REFERENCE's in float64 (reference_engine.cc).
//
// A DenseBatch says which query rows there are, where their keys are and how scores are made.
// Pieces count: the keys of a request may be cut into pieces that are attended to separately and
// then merged, in key order. An engine's results depend neither on threads nor on what else is in
// the batch. Never touched: keys that no row of the batch sees, and so their block-table entries.

#ifndef KVBLOCKS_ATTENTION_CPU_ATTEND_ENGINE_H_
#define KVBLOCKS_ATTENTION_CPU_ATTEND_ENGINE_H_

#include <cstdint>
#include <vector>

#include "kvblocks/attention_args.h"
#include "kvblocks/attention_cpu.h"
#include "kvblocks/kv_cache_view.h"
#include "kvblocks/tensor_view.h"

namespace kvblocks::attention {

// The pieces of a request's keys: piece i is [bounds[i], bounds[i + 1]), ascending; fewer than two
// bounds are no keys.
using Pieces = std::vector<int64_t>;

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
  std::vector<Pieces> pieces;       // per request
  int64_t shared_prefix = 0;        // keys that all requests have in the blocks of row 0; one piece

  int64_t num_requests() const { return static_cast<int64_t>(lengths.size()); }
  int64_t num_heads() const { return query.extent[1]; }
};

// Keys of queries that have lists of their own, slots of one cache. Order and repetition of slots
// are as listed; a slot listed twice counts twice.
struct KeyLists {
  ConstKvCacheView cache;
  double code_scale = 1;  // of keys and values
  // Slots of query n: slots[starts[n]] to slots[starts[n + 1]], all valid.
  std::vector<int64_t> slots, starts;
};

// Where finished rows go: sinks [H] and lse [T, H] may be absent; out is [T, H, Dv].
struct RowOutputs {
  ConstTensorView sinks;
  float out_scale = 0;
  TensorView out, lse;
};

class AttendEngine {
 public:
  virtual ~AttendEngine() = default;

  virtual void Attend(const DenseBatch& batch, ThreadPool* threads,
                      const RowOutputs& outputs) const = 0;
  // The states of the pieces, not merged, into the outputs of the arguments.
  virtual void AttendPartitions(const DenseBatch& batch, ThreadPool* threads,
                                const PagedDecodePartialArgs& outputs) const = 0;
  // Queries [B, s, H, D], query n being (n / s, n % s), against the union of all lists. Outputs
  // have both dimensions, too; max_logits [B, s, H] may be absent.
  virtual void AttendLists(const ConstTensorView& query, const std::vector<KeyLists>& lists,
                           double scale, ThreadPool* threads, const RowOutputs& outputs,
                           const TensorView& max_logits) const = 0;
  virtual void ReduceSplits(ThreadPool* threads, const ReduceSplitsArgs& args) const = 0;
  virtual void MergeStates(ThreadPool* threads, const MergeStatesArgs& args) const = 0;
};

const AttendEngine& Float64Engine();

// The outputs of request b as those of a batch: [s, H, Dv] and [s, H].
inline RowOutputs OutputsOf(const RowOutputs& outputs, int64_t b) {
  return {outputs.sinks, outputs.out_scale, *outputs.out.Select(0, b),
          outputs.lse.absent() ? TensorView() : *outputs.lse.Select(0, b)};
}

}  // namespace kvblocks::attention

#endif  // KVBLOCKS_ATTENTION_CPU_ATTEND_ENGINE_H_
