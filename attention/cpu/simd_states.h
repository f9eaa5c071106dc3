// Attention states of the SIMD backend: what pieces of a key set leave behind, and how they become
// an output row.
//
// A state is (max, sum, out): the largest score, the sum of e^(score - max), and the values
// weighted and divided by that sum, all float32. Nothing seen: (-infinity, 0, 0). An undivided key
// set is one state and takes the same way to the output, so that it equals one partition bit for
// bit.

#ifndef KVBLOCKS_ATTENTION_CPU_SIMD_STATES_H_
#define KVBLOCKS_ATTENTION_CPU_SIMD_STATES_H_

#include <cstdint>
#include <vector>

#include "kvblocks/attention/tensor/tensor_view.h"

namespace kvblocks::attention::simd {

struct State {
  float max = 0, sum = 0;
  const float* out = nullptr;
};

// Merges states of n values each into out, in their order, then lets the sink take its share.
// Returns the log-sum-exp without the sink. A single state is copied. States with a sum of 0 are
// skipped, whatever they hold.
double MergeRows(const State* states, int64_t num_states, int64_t n, double sink, float* out);

// The same for states given by their log-sum-exps.
double MergeRowsByLse(const double* lses, const float* const* rows, int64_t num_states, int64_t n,
                      double sink, float* out);

// Row (i, h) of the sinks, or -infinity where there are none.
double SinkOf(const ConstTensorView& sinks, int64_t head);

// Rounds a row to the output's type at element `offset` (of the row's first value), dividing by
// out_scale if that is > 0. `stride` is between the row's values.
void StoreRow(const TensorView& out, int64_t offset, int64_t stride, int64_t n, float out_scale,
              const float* row);

}  // namespace kvblocks::attention::simd

#endif  // KVBLOCKS_ATTENTION_CPU_SIMD_STATES_H_
