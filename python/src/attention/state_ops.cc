// Merging of states of attention.

#include "kvblocks/attention_args.h"
#include "python/src/attention/op_bind.h"

namespace kvblocks::python {

namespace {

AnyObject RunMergeStates(OpCall& call, attention::MergeStatesArgs& args) {
  call.NeedOutIf(args.out_scale > 0, "out_scale give an array of float8");
  return call.RunInto(args, &args,
                      {Extent(args.outs, 1), Extent(args.outs, 2), Extent(args.outs, 3)},
                      static_cast<double>(args.outs.num_elements()));
}

}  // namespace

void BindStateOps(nb::module_& module) {
  {
    using A = attention::MergeStatesArgs;
    BindOp<A>(module, "merge_states",
              R"(One state of attention from n, each over other keys.

outs [n, T, H, Dv] and lses float32 [n, T, H]. Rows at or past tokens_with_context (if it is not
negative) are the last state's. sinks float32 [H] are applied after the merge. out may be one of
outs. Returns out [T, H, Dv], or (out, lse [T, H]).)",
              RunMergeStates, Parameters(In("outs", &A::outs), In("lses", &A::lses)),
              std::tuple_cat(
                  Parameters(Number("tokens_with_context", &A::tokens_with_context, int64_t{-1}),
                             OptionalIn("sinks", &A::sinks),
                             Number("out_scale", &A::out_scale, 0.0), GivenOut()),
                  GivenLse()));
  }
  {
    using A = attention::ReduceSplitsArgs;
    BindOp<A>(
        module, "reduce_splits",
        R"(The partitions of paged_decode_partial as out [R, H, Dv] and lse float32 [R, H]; sinks
float32 [H] count here.)",
        Elements(&A::tmp_out),
        Parameters(In("max_logits", &A::max_logits), In("exp_sums", &A::exp_sums),
                   In("tmp_out", &A::tmp_out), Out("out", &A::out)),
        Parameters(OptionalIn("sinks", &A::sinks), OptionalOut("lse", &A::lse)));
  }
}

}  // namespace kvblocks::python
