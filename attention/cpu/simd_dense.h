// Dense attention of a batch by the SIMD backend: every query row against all keys of its request
// that it sees, from a paged cache or from contiguous tensors.
//
// The work is cut into tasks (some query tokens of a request, some heads) which threads take one
// after another; a task walks its keys by tiles of 64 that begin at absolute multiples of 64. Tasks
// only schedule: numbers do not depend on them.

#ifndef KVBLOCKS_ATTENTION_CPU_SIMD_DENSE_H_
#define KVBLOCKS_ATTENTION_CPU_SIMD_DENSE_H_

#include <cstdint>
#include <vector>

#include "absl/functional/function_ref.h"
#include "attention/cpu/attend_engine.h"
#include "attention/cpu/simd_states.h"

namespace kvblocks::attention::simd {

// Takes the states of a row, one per piece; called once per token and head, from any thread. The
// states' values may be overwritten.
using TakeStates =
    absl::FunctionRef<void(int64_t token, int64_t head, const State* states, int64_t num_states)>;

// Computes all rows against the given pieces of their requests' keys.
void AttendDense(const DenseBatch& batch, const std::vector<Pieces>& pieces, ThreadPool* threads,
                 TakeStates take);

// All rows of the batch against the keys of its shared prefix.
void AttendSharedPrefix(const DenseBatch& batch, ThreadPool* threads, TakeStates take);

// Queries [B, s, H, D], query n being (n / s, n % s), against the union of all lists. Takes one or
// two states of every row, from any thread.
void AttendLists(const ConstTensorView& query, const std::vector<KeyLists>& lists, double scale,
                 ThreadPool* threads, TakeStates take);

}  // namespace kvblocks::attention::simd

#endif  // KVBLOCKS_ATTENTION_CPU_SIMD_DENSE_H_
