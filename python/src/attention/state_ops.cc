// Merging of states of attention.

#include "kvblocks/attention/ops/args.h"
#include "kvblocks/python/src/attention/op_call.h"
#include "kvblocks/python/src/attention/signatures.h"

namespace kvblocks::python {
namespace {

nb::object MergeStates(nb::handle outs, nb::handle lses, int64_t tokens_with_context,
                       nb::handle sinks, double out_scale, nb::handle out, nb::handle lse,
                       bool return_lse, nb::handle stream, PyWorkspace* workspace,
                       PyThreadPool* threads) {
  OpCall call("merge_states", {stream, workspace, threads});
  attention::MergeStatesArgs args;
  args.outs = call.In("outs", outs);
  args.lses = call.In("lses", lses);
  args.tokens_with_context = tokens_with_context;
  args.sinks = call.In("sinks", sinks);
  args.out_scale = static_cast<float>(out_scale);
  const int64_t tokens = Extent(args.outs, 1), heads = Extent(args.outs, 2),
                dim = Extent(args.outs, 3);
  if (out_scale > 0 && out.is_none())
    call.Refuse("out is None; with out_scale give an array of float8");
  const nb::object result = call.Out("out", out, outs, {tokens, heads, dim}, &args.out);
  nb::object result_lse;
  if (return_lse) {
    result_lse = call.Out("lse", lse, outs, {tokens, heads}, &args.lse, /*float32=*/true);
  } else {
    args.lse = call.Out("lse", lse);
  }
  call.Run(args, static_cast<double>(args.outs.num_elements()));
  return return_lse ? nb::object(nb::make_tuple(result, result_lse)) : result;
}

void ReduceSplits(nb::handle max_logits, nb::handle exp_sums, nb::handle tmp_out, nb::handle out,
                  nb::handle sinks, nb::handle lse, nb::handle stream, PyWorkspace* workspace,
                  PyThreadPool* threads) {
  OpCall call("reduce_splits", {stream, workspace, threads});
  attention::ReduceSplitsArgs args;
  args.max_logits = call.In("max_logits", max_logits);
  args.exp_sums = call.In("exp_sums", exp_sums);
  args.tmp_out = call.In("tmp_out", tmp_out);
  args.sinks = call.In("sinks", sinks);
  args.out = call.Out("out", out);
  args.lse = call.Out("lse", lse);
  call.Run(args, static_cast<double>(args.tmp_out.num_elements()));
}

}  // namespace

void BindStateOps(nb::module_& module) {
  module.def(
      "merge_states", &MergeStates, nb::arg("outs"), nb::arg("lses"), nb::kw_only(),
      nb::arg("tokens_with_context") = -1, nb::arg("sinks") = nb::none(),
      nb::arg("out_scale") = 0.0, KVBLOCKS_OUT_ARGS, KVBLOCKS_CALL_ARGS,
      nb::sig("def merge_states(outs: Array, lses: Array, *, tokens_with_context: int = -1, sinks: "
              "Array | None = "
              "None, out_scale: float = 0.0, " KVBLOCKS_OUT_SIG KVBLOCKS_CALL_SIG ") -> Any"),
      R"(One state of attention from n, each over other keys.

outs [n, T, H, Dv] and lses float32 [n, T, H]. Rows at or past tokens_with_context (if it is not negative) are
the last state's. sinks float32 [H] are applied after the merge. out may be one of outs. Returns out [T, H, Dv],
or (out, lse [T, H]).)");
  module.def(
      "reduce_splits", &ReduceSplits, nb::arg("max_logits"), nb::arg("exp_sums"),
      nb::arg("tmp_out"), nb::arg("out"), nb::kw_only(), nb::arg("sinks") = nb::none(),
      nb::arg("lse") = nb::none(), KVBLOCKS_CALL_ARGS,
      nb::sig("def reduce_splits(max_logits: Array, exp_sums: Array, tmp_out: Array, out: Array, "
              "*, sinks: Array | "
              "None = None, lse: Array | None = None, " KVBLOCKS_CALL_SIG ") -> None"),
      R"(The partitions of paged_decode_partial as out [R, H, Dv] and lse float32 [R, H]; sinks float32 [H] count
here.)");
}

}  // namespace kvblocks::python
