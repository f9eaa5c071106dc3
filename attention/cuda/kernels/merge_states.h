// Merges attention states: partial outputs with what they weigh into one output and log-sum-exp.
//
// State n of row r stands, dense, at n * state_stride + r * row_stride; with state_offsets, those
// of row r are n = [offsets[q], offsets[q + 1]) with q = r / rows_per_request, and the row within a
// state is r % rows_per_request: what decode with a plan leaves. A state weighs e^lse, or, with
// exp_sums, exp_sum * e^max. States that weigh nothing are left out, their values not read; one
// that is alone keeps its bits. Sinks are applied after the merge and do not show in the lse. `out`
// and `lse` may be one of the states. Sums in float32, in order of n.
//
// Cost: one warp per (row, head), or, of up to four states, a thread per eight values; each value is
// read once.

#ifndef KVBLOCKS_ATTENTION_CUDA_KERNELS_MERGE_STATES_H_
#define KVBLOCKS_ATTENTION_CUDA_KERNELS_MERGE_STATES_H_

#include <cstdint>

#include "kvblocks/attention/cuda/kernels/params.h"
#include "kvblocks/attention/cuda/kernels/runtime.h"

namespace kvblocks::attention::cuda {

// Float32, one per (state, row, head).
struct StateStatistic {
  const float* data = nullptr;
  int64_t state_stride = 0, row_stride = 0, head_stride = 0;
};

struct MergeStatesParams {
  ConstRows outs;
  int64_t out_state_stride = 0;
  StateStatistic lses;      // natural logarithms; with exp_sums: largest scores
  StateStatistic exp_sums;  // may have no data

  int32_t num_states = 0;  // without offsets
  const int32_t* state_offsets = nullptr;
  int32_t rows_per_request = 1;
  // With offsets: rows of one state have their output already and are left alone.
  bool single_states_are_done = false;

  int32_t num_rows = 0, num_heads = 1, value_dim = 0;
  int32_t tokens_with_context = -1;  // >= 0: rows from here on copy their last state
  // An lse of +infinity is no state: left out and flagged.
  bool infinity_is_empty = false;

  const float* sinks = nullptr;
  float out_scale = 0;  // > 0: out is divided by it
  Rows out;
  float* lse = nullptr;
  int64_t lse_row_stride = 0, lse_head_stride = 0;
  // As in AttendRowsParams, of out and lse.
  int32_t inner_rows = INT32_MAX;
  int64_t out_outer_stride = 0, lse_outer_stride = 0;
};

Error LaunchMergeStates(const LaunchContext& context, const MergeStatesParams& params);

}  // namespace kvblocks::attention::cuda

#endif  // KVBLOCKS_ATTENTION_CUDA_KERNELS_MERGE_STATES_H_
