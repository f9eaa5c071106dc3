// Checks of the operations on attention states.

#include <limits>

#include "kvblocks/attention/ops/batch_checks.h"
#include "kvblocks/attention/ops/checks.h"

namespace kvblocks::attention {
namespace {

// Whether `out` is one of the n tensors stacked in `stack`.
bool IsOneOf(const TensorView& out, const ConstTensorView& stack) {
  if (out.dtype != stack.dtype || out.rank != stack.rank - 1) return false;
  for (int i = 0; i < out.rank; ++i) {
    if (out.extent[i] > 1 && out.stride[i] != stack.stride[i + 1]) return false;
  }
  if (out.data == stack.data || stack.extent[0] <= 1 || stack.empty()) {
    return out.data == stack.data;
  }
  const int64_t step = stack.stride[0] * ElementBytes(stack.dtype);
  if (step == 0) return false;
  const auto distance =
      reinterpret_cast<intptr_t>(out.data) - reinterpret_cast<intptr_t>(stack.data);
  return distance > 0 && distance % step == 0 && distance / step < stack.extent[0];
}

}  // namespace

absl::Status Check(const ExecContext& context, const ReduceSplitsArgs& args) {
  ArgChecker check(context, "ReduceSplits");
  Dim requests{"R"}, heads{"H"}, partitions{"P"}, value{"Dv"};
  check.In("max_logits", args.max_logits, DType::kF32, {&requests, &heads, &partitions});
  check.In("exp_sums", args.exp_sums, DType::kF32, {&requests, &heads, &partitions});
  check.In("tmp_out", args.tmp_out, DType::kF32, {&requests, &heads, &partitions, &value});
  if (!check.ok()) return check.status();
  CheckSinks(check, args.sinks, heads.size);
  check.Out("out", args.out, kComputeTypes, {&requests, &heads, &value});
  check.OutIf("lse", args.lse, DType::kF32, {&requests, &heads});
  check.Aligned("tmp_out", args.tmp_out);
  check.Aligned("out", args.out);
  return check.Finish();
}

absl::Status Check(const ExecContext& context, const MergeStatesArgs& args) {
  ArgChecker check(context, "MergeStates");
  Dim states{"n"}, tokens{"T"}, heads{"H"}, value{"Dv"};
  CheckOutScale(check, args.out_scale);
  check.In("lses", args.lses, DType::kF32, {&states, &tokens, &heads});
  if (check.ok() && IsOneOf(args.lse, args.lses)) check.AllowOverlapOfLast();
  check.In("outs", args.outs, kComputeTypes, {&states, &tokens, &heads, &value});
  if (check.ok() && IsOneOf(args.out, args.outs)) check.AllowOverlapOfLast();
  if (!check.ok()) return check.status();
  check.AtLeast("the number of states", states.size, 1);
  check.Out("out", args.out, OutTypes(args.out_scale), {&tokens, &heads, &value});
  check.OutIf("lse", args.lse, DType::kF32, {&tokens, &heads});
  CheckSinks(check, args.sinks, heads.size);
  check.Aligned("outs", args.outs);
  check.Aligned("out", args.out);
  if (check.ok() && (args.tokens_with_context < -1 || args.tokens_with_context > tokens.size)) {
    check.Invalid("tokens_with_context is ", args.tokens_with_context, "; 0 to T = ", tokens.size,
                  ", or -1 for all");
  }
  if (!check.Finish().ok() || !args.lses.device.on_host() || args.lses.empty()) {
    return check.status();
  }
  for (int64_t i = 0; i < states.size; ++i) {
    for (int64_t t = 0; t < tokens.size; ++t) {
      for (int64_t h = 0; h < heads.size; ++h) {
        float lse;
        std::memcpy(&lse, args.lses.At(i, t, h), sizeof(lse));
        if (lse == std::numeric_limits<float>::infinity()) {
          check.Invalid("lses[", i, "][", t, "][", h, "] is infinity; an empty state is -infinity");
          return check.status();
        }
      }
    }
  }
  return check.status();
}

}  // namespace kvblocks::attention
