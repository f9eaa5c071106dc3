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
#include <limits>
#include <vector>

#include "attention/cpu/attend_engine.h"
#include "attention/cpu/simd_kernels.h"
#include "attention/tensor/small_floats.h"
#include "kvblocks/tensor_view.h"

namespace kvblocks::attention::simd {

struct State {
  float max = 0, sum = 0;
  const float* out = nullptr;
};

// Merges states of n values each into out, in their order, then lets the sink take its share.
// Returns the log-sum-exp without the sink. A single state is copied. States with a sum of 0 are
// skipped, whatever they hold.
double MergeRows(const State* states, int64_t num_states, int64_t n, double sink, float* out);

// Row (i, h) of the sinks, or -infinity where there are none.
double SinkOf(const ConstTensorView& sinks, int64_t head);

// Rounds a row to the output's type at element `offset` (of the row's first value), dividing by
// out_scale if that is > 0. `stride` is between the row's values.
void StoreRow(const TensorView& out, int64_t offset, int64_t stride, int64_t n, float out_scale,
              const float* row);

// Where rows of output and their log-sum-exps go.

class RowWriter {
 public:
  explicit RowWriter(const RowOutputs& outputs) : to_(outputs) {}

  // Merges the states of a row and writes it.
  void WriteStates(int64_t token, int64_t head, const State* states, int64_t num_states) const {
    float* row = Row();
    const double lse = MergeRows(states, num_states, values(), SinkOf(to_.sinks, head), row);
    Write(token, head, lse, row);
  }
  // A row as it is; the sink is in it already.
  void Write(int64_t token, int64_t head, double lse, const float* row) const {
    const TensorView& out = to_.out;
    StoreRow(out, out.Offset(token, head), out.stride[2], values(), to_.out_scale, row);
    if (!to_.lse.absent()) StoreElement(to_.lse.dtype, lse, to_.lse.At(token, head));
  }
  int64_t values() const { return to_.out.extent[2]; }
  // Scratch for a row, of this thread.
  float* Row() const {
    thread_local std::vector<float> row;
    if (static_cast<int64_t>(row.size()) < values()) row.resize(static_cast<size_t>(values()));
    return row.data();
  }

 private:
  RowOutputs to_;
};

// Query rows as the SIMD kernels take them.

// Row (token, head) of [T, H, D] as float32; the elements up to the next multiple of kRowPad become
// 0.
inline void ReadQuery(const ConstTensorView& view, int64_t token, int64_t head, float* out) {
  const std::byte* from = view.At(token, head);
  const int64_t dim = view.extent[2];
  if (view.stride[2] == 1 || dim == 1) return ConvertRow(view.dtype, from, dim, out);
  for (int64_t d = 0; d < Padded(dim); ++d) {
    const int64_t offset = d * view.stride[2] * ElementBytes(view.dtype);
    out[d] = d < dim ? static_cast<float>(LoadElement(view.dtype, from + offset)) : 0.0f;
  }
}

}  // namespace kvblocks::attention::simd

#endif  // KVBLOCKS_ATTENTION_CPU_SIMD_STATES_H_
