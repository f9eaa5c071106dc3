// CPU_REFERENCE's merging of attention states and partitions.

#include <algorithm>
#include <cmath>
#include <limits>
#include <vector>

#include "attention/cache/element_rows.h"
#include "attention/cpu/host_ops.h"
#include "attention/cpu/reference_engine.h"
#include "attention/tensor/small_floats.h"

namespace kvblocks::attention {
namespace {

constexpr double kInfinity = std::numeric_limits<double>::infinity();

// Finished outputs to be merged, state n weighing sum_n * e^(max_n).
class WeightedStates {
 public:
  WeightedStates(int64_t count, int64_t value_dim)
      : values_(std::max<int64_t>(1, count) * value_dim) {
    free_ = absl::MakeSpan(values_);
    value_dim_ = value_dim;
    states_.reserve(count);
  }

  // States without weight are left out, their values not even read.
  void Add(double max, double sum, DType dtype, const std::byte* from, int64_t stride) {
    if (max == -kInfinity || sum == 0) return;
    states_.push_back({max, sum, free_.first(value_dim_)});
    free_.remove_prefix(value_dim_);
    LoadElements(dtype, from, stride, value_dim_, states_.back().values.data());
  }
  // The log-sum-exp of all; the result is in values(). A state that is alone keeps its bits.
  double Merge() {
    if (states_.empty()) return -kInfinity;
    if (states_.size() == 1) return states_[0].max + std::log(states_[0].sum);
    for (PieceState& state : states_) {
      for (double& value : state.values) value *= state.sum;
    }
    return MergePieces(absl::MakeSpan(states_));
  }
  absl::Span<double> values() { return absl::MakeSpan(values_).first(value_dim_); }

 private:
  std::vector<double> values_;
  absl::Span<double> free_;
  int64_t value_dim_;
  std::vector<PieceState> states_;
};

}  // namespace

absl::Status CpuReferenceOps::Run(const Checked<ReduceSplitsArgs>& call) const {
  const ExecContext& context = call.context();
  const ReduceSplitsArgs& args = call.args();
  const int64_t num_heads = args.out.extent[1], num_parts = args.max_logits.extent[2];
  const int64_t value_dim = args.out.extent[2];
  const ReferenceWriter writer = {args.sinks, 0, args.out, args.lse};
  ParallelFor(context.threads, args.out.extent[0] * num_heads, [&](int64_t item, int) {
    const int64_t row = item / num_heads, head = item % num_heads;
    WeightedStates states(num_parts, value_dim);
    for (int64_t part = 0; part < num_parts; ++part) {
      states.Add(LoadElement(args.max_logits.dtype, args.max_logits.At(row, head, part)),
                 LoadElement(args.exp_sums.dtype, args.exp_sums.At(row, head, part)),
                 args.tmp_out.dtype, args.tmp_out.At(row, head, part), args.tmp_out.stride[3]);
    }
    const double lse = states.Merge();
    writer.Write(row, head, states.values(), lse);
  });
  return absl::OkStatus();
}

absl::Status CpuReferenceOps::Run(const Checked<MergeStatesArgs>& call) const {
  const ExecContext& context = call.context();
  const MergeStatesArgs& args = call.args();
  const int64_t num_states = args.outs.extent[0], num_heads = args.out.extent[1];
  const int64_t value_dim = args.out.extent[2];
  const ReferenceWriter writer = {args.sinks, args.out_scale, args.out, args.lse};
  ParallelFor(context.threads, args.out.extent[0] * num_heads, [&](int64_t item, int) {
    const int64_t row = item / num_heads, head = item % num_heads;
    const bool has_context = args.tokens_with_context < 0 || row < args.tokens_with_context;
    WeightedStates states(num_states, value_dim);
    for (int64_t n = has_context ? 0 : std::max<int64_t>(0, num_states - 1); n < num_states; ++n) {
      states.Add(LoadElement(args.lses.dtype, args.lses.At(n, row, head)), 1, args.outs.dtype,
                 args.outs.At(n, row, head), args.outs.stride[3]);
    }
    const double lse = states.Merge();
    writer.Write(row, head, states.values(), lse);
  });
  return absl::OkStatus();
}

}  // namespace kvblocks::attention
