// CPU's engine: rows attended to by the kernels of simd_dense.h, states merged in float32.

#include <algorithm>
#include <limits>
#include <vector>

#include "attention/cpu/attend_engine.h"
#include "attention/cpu/host_ops.h"
#include "attention/cpu/simd_dense.h"
#include "attention/cpu/simd_states.h"

namespace kvblocks::attention {
namespace {

using simd::RowWriter;
using simd::State;

class SimdEngine final : public AttendEngine {
 public:
  void Attend(const DenseBatch& batch, ThreadPool* threads,
              const RowOutputs& outputs) const override {
    if (batch.query.empty()) return;
    const RowWriter writer(outputs);
    if (batch.shared_prefix > 0) return AttendCascade(batch, threads, writer);
    simd::AttendDense(batch, batch.pieces, threads,
                      [&](int64_t token, int64_t head, const State* states, int64_t num_states) {
                        writer.WriteStates(token, head, states, num_states);
                      });
  }

  void AttendPartitions(const DenseBatch& batch, ThreadPool* threads,
                        const PagedDecodePartialArgs& outputs) const override {
    if (batch.query.empty()) return;
    const int64_t values = outputs.tmp_out.extent[3];
    const std::vector<float> zeros(static_cast<size_t>(values), 0.0f);
    const State none = {-std::numeric_limits<float>::infinity(), 0, zeros.data()};
    simd::AttendDense(
        batch, batch.pieces, threads,
        [&](int64_t token, int64_t head, const State* states, int64_t num_states) {
          for (int64_t part = 0; part < outputs.max_logits.extent[2]; ++part) {
            const State& state = part < num_states ? states[part] : none;
            StoreElement(DType::kF32, state.max, outputs.max_logits.At(token, head, part));
            StoreElement(DType::kF32, state.sum, outputs.exp_sums.At(token, head, part));
            simd::StoreRow(outputs.tmp_out, outputs.tmp_out.Offset(token, head, part),
                           outputs.tmp_out.stride[3], values, 0, state.out);
          }
        });
  }

  void AttendLists(const ConstTensorView& query, const std::vector<KeyLists>& lists, double scale,
                   ThreadPool* threads, const RowOutputs& outputs,
                   const TensorView& max_logits) const override {
    if (query.empty()) return;
    const int64_t q_len = query.extent[1];
    simd::AttendLists(query, lists, scale, threads,
                      [&](int64_t n, int64_t head, const State* states, int64_t num_states) {
                        const int64_t b = n / q_len, s = n % q_len;
                        if (!max_logits.absent()) {
                          StoreElement(max_logits.dtype, states[0].max, max_logits.At(b, s, head));
                        }
                        RowWriter(OutputsOf(outputs, b)).WriteStates(s, head, states, num_states);
                      });
  }

  void ReduceSplits(ThreadPool* threads, const ReduceSplitsArgs& args) const override {
    const int64_t num_heads = args.out.extent[1], num_parts = args.max_logits.extent[2];
    const int64_t values = args.out.extent[2];
    const RowWriter writer({args.sinks, 0, args.out, args.lse});
    ParallelFor(threads, args.out.extent[0] * num_heads, [&](int64_t item, int) {
      const int64_t row = item / num_heads, head = item % num_heads;
      std::vector<State> states(static_cast<size_t>(num_parts));
      std::vector<float> rows(static_cast<size_t>(num_parts * values));
      const auto load = [](const ConstTensorView& view, auto... index) {
        return static_cast<float>(LoadElement(view.dtype, view.At(index...)));
      };
      for (int64_t part = 0; part < num_parts; ++part) {
        float* const out = rows.data() + part * values;
        states[part] = {load(args.max_logits, row, head, part),
                        load(args.exp_sums, row, head, part), out};
        if (states[part].sum == 0) continue;
        for (int64_t d = 0; d < values; ++d) out[d] = load(args.tmp_out, row, head, part, d);
      }
      writer.WriteStates(row, head, states.data(), num_parts);
    });
  }

  void MergeStates(ThreadPool* threads, const MergeStatesArgs& args) const override {
    const int64_t num_states = args.outs.extent[0], num_heads = args.out.extent[1];
    const int64_t values = args.out.extent[2];
    const RowWriter writer({args.sinks, args.out_scale, args.out, args.lse});
    ParallelFor(threads, args.out.extent[0] * num_heads, [&](int64_t item, int) {
      const int64_t row = item / num_heads, head = item % num_heads;
      const bool all = args.tokens_with_context < 0 || row < args.tokens_with_context;
      const int64_t first = all ? 0 : std::max<int64_t>(0, num_states - 1);
      const int64_t count = num_states - first;
      // Copies, because the output may be one of the states.
      std::vector<State> states(static_cast<size_t>(count));
      std::vector<float> copies(static_cast<size_t>(count * simd::Padded(values)));
      for (int64_t i = 0; i < count; ++i) {
        float* const copy = copies.data() + i * simd::Padded(values);
        simd::ReadQuery(*args.outs.Select(0, first + i), row, head, copy);
        const auto lse =
            static_cast<float>(LoadElement(args.lses.dtype, args.lses.At(first + i, row, head)));
        // A sum of e^lse relative to itself; nothing seen has none.
        states[i] = {lse, lse == -std::numeric_limits<float>::infinity() ? 0.0f : 1.0f, copy};
      }
      writer.WriteStates(row, head, states.data(), count);
    });
  }

 private:
  static void AttendCascade(const DenseBatch& batch, ThreadPool* threads, const RowWriter& writer) {
    // The prefix's states of all rows, until the rest of the keys is there.
    const int64_t num_heads = batch.num_heads(), values = writer.values();
    const int64_t num_rows = batch.query_start.back() * num_heads;
    std::vector<State> prefix_states(static_cast<size_t>(num_rows));
    std::vector<float> prefix_rows(static_cast<size_t>(num_rows * values));
    simd::AttendSharedPrefix(batch, threads,
                             [&](int64_t token, int64_t head, const State* states, int64_t) {
                               const int64_t row = token * num_heads + head;
                               float* const out = prefix_rows.data() + row * values;
                               std::copy_n(states[0].out, values, out);
                               prefix_states[row] = {states[0].max, states[0].sum, out};
                             });
    std::vector<Pieces> rest;
    for (const int64_t length : batch.lengths) {
      rest.push_back({batch.shared_prefix});
      if (length > batch.shared_prefix) rest.back().push_back(length);
    }
    simd::AttendDense(batch, rest, threads,
                      [&](int64_t token, int64_t head, const State* states, int64_t num_states) {
                        State both[2] = {prefix_states[token * num_heads + head], State{}};
                        if (num_states > 0) both[1] = states[0];
                        writer.WriteStates(token, head, both, 2);
                      });
  }
};

}  // namespace

const AttentionOps& Cpu() {
  static const SimdEngine* const engine = new SimdEngine;
  static const HostOps* const ops = new HostOps("CPU", engine);
  return *ops;
}

}  // namespace kvblocks::attention
