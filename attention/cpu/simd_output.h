// Where rows of output and their log-sum-exps go.

#ifndef KVBLOCKS_ATTENTION_CPU_SIMD_OUTPUT_H_
#define KVBLOCKS_ATTENTION_CPU_SIMD_OUTPUT_H_

#include <cstdint>
#include <limits>
#include <vector>

#include "kvblocks/attention/cpu/simd_states.h"
#include "kvblocks/attention/tensor/small_floats.h"
#include "kvblocks/attention/tensor/tensor_view.h"

namespace kvblocks::attention::simd {

class RowWriter {
 public:
  // `sinks` [H] and lse [T, H] may be absent; out is [T, H, Dv].
  RowWriter(const ConstTensorView& sinks, float out_scale, const TensorView& out,
            const TensorView& lse)
      : sinks_(sinks), out_scale_(out_scale), out_(out), lse_(lse) {}

  // Merges the states of a row and writes it.
  void WriteStates(int64_t token, int64_t head, const State* states, int64_t num_states) const {
    float* row = Row();
    const double lse = MergeRows(states, num_states, values(), SinkOf(sinks_, head), row);
    Write(token, head, lse, row);
  }
  // A row as it is; the sink is in it already.
  void Write(int64_t token, int64_t head, double lse, const float* row) const {
    StoreRow(out_, out_.Offset(token, head), out_.stride[2], values(), out_scale_, row);
    if (!lse_.absent()) StoreElement(lse_.dtype, lse, lse_.At(token, head));
  }
  // 0 and -infinity to the rows from `token` on, which belong to no request.
  void WritePadding(int64_t token) const {
    for (; token < out_.extent[0]; ++token) {
      for (int64_t head = 0; head < out_.extent[1]; ++head) WriteStates(token, head, nullptr, 0);
    }
  }

  int64_t values() const { return out_.extent[2]; }
  // Scratch for a row, of this thread.
  float* Row() const {
    thread_local std::vector<float> row;
    if (static_cast<int64_t>(row.size()) < values()) row.resize(static_cast<size_t>(values()));
    return row.data();
  }

 private:
  ConstTensorView sinks_;
  float out_scale_;
  TensorView out_, lse_;
};

}  // namespace kvblocks::attention::simd

#endif  // KVBLOCKS_ATTENTION_CPU_SIMD_OUTPUT_H_
