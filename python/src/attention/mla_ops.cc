// Attention over latent caches.

#include <nanobind/stl/optional.h>

#include "kvblocks/attention/ops/args.h"
#include "kvblocks/python/src/attention/op_call.h"
#include "kvblocks/python/src/attention/signatures.h"

namespace kvblocks::python {
namespace {

template <typename Args>
nb::object RunMla(OpCall& call, Args& args, double work, nb::object out, nb::handle lse,
                  bool return_lse, nb::handle q, absl::Span<const int64_t> lse_shape) {
  nb::object result_lse;
  if (return_lse) {
    result_lse = call.Out("lse", lse, q, lse_shape, &args.lse, /*float32=*/true);
  } else {
    args.lse = call.Out("lse", lse);
  }
  call.Run(args, work);
  return return_lse ? nb::object(nb::make_tuple(out, result_lse)) : out;
}

nb::object MlaDecode(nb::handle q_lat, const PyKvCache& cache, nb::handle block_table,
                     nb::handle seq_lens, double scale, nb::handle q_pe, nb::handle query_start_loc,
                     nb::handle kv_start_loc, std::optional<int64_t> max_seq_len, double soft_cap,
                     int64_t window_left, nb::handle sinks, nb::handle k_scale, nb::handle out,
                     nb::handle lse, bool return_lse, nb::handle stream, PyWorkspace* workspace,
                     PyThreadPool* threads) {
  OpCall call("mla_decode", {stream, workspace, threads});
  attention::MlaDecodeArgs args;
  args.q_lat = call.In("q_lat", q_lat);
  args.q_pe = call.In("q_pe", q_pe);
  args.cache = call.In(cache);
  args.query_start_loc = call.In("query_start_loc", query_start_loc);
  args.block_table = call.In("block_table", block_table);
  args.seq_lens = call.In("seq_lens", seq_lens);
  args.kv_start_loc = call.In("kv_start_loc", kv_start_loc);
  args.max_seq_len = args.kv_start_loc.absent()
                         ? call.MaxLength("max_seq_len", max_seq_len, args.seq_lens)
                         : call.MaxDifference("max_seq_len", max_seq_len, args.kv_start_loc);
  args.params.scale = static_cast<float>(scale);
  args.params.soft_cap = static_cast<float>(soft_cap);
  args.params.window_left = window_left;
  args.params.sinks = call.In("sinks", sinks);
  args.params.scales.k = call.Scale("k_scale", k_scale);
  const int64_t tokens = Extent(args.q_lat, 0), heads = Extent(args.q_lat, 1);
  const nb::object result =
      call.Out("out", out, q_lat, {tokens, heads, args.cache.value_dim()}, &args.out);
  const double work =
      2.0 * static_cast<double>(args.q_lat.num_elements()) * static_cast<double>(args.max_seq_len);
  return RunMla(call, args, work, result, lse, return_lse, q_lat, {tokens, heads});
}

nb::object SparseMlaDecode(nb::handle q, const PyKvCache& cache, nb::handle indices, double scale,
                           nb::handle topk_len, const PyKvCache* extra_cache,
                           nb::handle extra_indices, nb::handle extra_topk_len, nb::handle sinks,
                           nb::handle kv_scale, nb::handle out, nb::handle lse, bool return_lse,
                           nb::handle stream, PyWorkspace* workspace, PyThreadPool* threads) {
  OpCall call("sparse_mla_decode", {stream, workspace, threads});
  attention::SparseMlaDecodeArgs args;
  args.q = call.In("q", q);
  args.main = {call.In(cache), call.In("indices", indices), call.In("topk_len", topk_len)};
  if (extra_cache != nullptr) args.extra.cache = call.In(*extra_cache);
  args.extra.indices = call.In("extra_indices", extra_indices);
  args.extra.topk_len = call.In("extra_topk_len", extra_topk_len);
  args.scale = static_cast<float>(scale);
  args.sinks = call.In("sinks", sinks);
  args.kv_scale = call.Scale("kv_scale", kv_scale);
  const int64_t requests = Extent(args.q, 0), queries = Extent(args.q, 1),
                heads = Extent(args.q, 2);
  const nb::object result =
      call.Out("out", out, q, {requests, queries, heads, args.main.cache.value_dim()}, &args.out);
  const int64_t keys = std::max<int64_t>(0, Extent(args.main.indices, 2)) +
                       std::max<int64_t>(0, Extent(args.extra.indices, 2));
  const double work = 2.0 * static_cast<double>(args.q.num_elements()) * static_cast<double>(keys);
  return RunMla(call, args, work, result, lse, return_lse, q, {requests, queries, heads});
}

nb::object SparseMlaPrefill(nb::handle q, nb::handle kv, nb::handle indices, double scale,
                            std::optional<int64_t> value_dim, nb::handle topk_len, nb::handle sinks,
                            nb::handle out, nb::handle max_logits, nb::handle lse, bool return_lse,
                            nb::handle stream, PyWorkspace* workspace, PyThreadPool* threads) {
  OpCall call("sparse_mla_prefill", {stream, workspace, threads});
  attention::SparseMlaPrefillArgs args;
  args.q = call.In("q", q);
  args.kv = call.In("kv", kv);
  args.indices = call.In("indices", indices);
  args.topk_len = call.In("topk_len", topk_len);
  args.scale = static_cast<float>(scale);
  args.sinks = call.In("sinks", sinks);
  if (out.is_none() == !value_dim.has_value()) {
    call.Refuse("value_dim says how wide a new out is, and out tells it itself; give one of them");
  }
  const int64_t tokens = Extent(args.q, 0), heads = Extent(args.q, 1);
  const nb::object result =
      call.Out("out", out, q, {tokens, heads, value_dim.value_or(0)}, &args.out);
  args.max_logits = call.Out("max_logits", max_logits);
  const double work = 2.0 * static_cast<double>(args.q.num_elements()) *
                      static_cast<double>(std::max<int64_t>(0, Extent(args.indices, 2)));
  return RunMla(call, args, work, result, lse, return_lse, q, {tokens, heads});
}

}  // namespace

void BindMlaOps(nb::module_& module) {
  module.def(
      "mla_decode", &MlaDecode, nb::arg("q_lat"), nb::arg("cache"),
      nb::arg("block_table") = nb::none(), nb::arg("seq_lens") = nb::none(), nb::kw_only(),
      nb::arg("scale"), nb::arg("q_pe") = nb::none(), nb::arg("query_start_loc") = nb::none(),
      nb::arg("kv_start_loc") = nb::none(), nb::arg("max_seq_len") = nb::none(),
      nb::arg("soft_cap") = 0.0, nb::arg("window_left") = -1, nb::arg("sinks") = nb::none(),
      nb::arg("k_scale") = nb::none(), KVBLOCKS_OUT_ARGS, KVBLOCKS_CALL_ARGS,
      nb::sig("def mla_decode(q_lat: Array, cache: KVCache, block_table: Array | None = None, "
              "seq_lens: Array | None = "
              "None, *, scale: float, q_pe: Array | None = None, query_start_loc: Array | None = "
              "None, kv_start_loc: "
              "Array | None = None, max_seq_len: int | None = None, soft_cap: float = 0.0, "
              "window_left: int = -1, "
              "sinks: Array | None = None, k_scale: Array | float | None = None, " KVBLOCKS_OUT_SIG
                  KVBLOCKS_CALL_SIG ") -> Any"),
      R"(Absorbed MLA over a latent cache of any layout.

q_lat [T, H, R_kv] and q_pe [T, H, R_pe], or q_lat [T, H, R_kv + R_pe] and no q_pe. One query per request, or
any number by query_start_loc int32 [R + 1], then causal. Keys by block_table and seq_lens, or from one block
whose rows kv_start_loc int32 [R + 1] deals to requests. scale: of scores; that of the head before absorption.
k_scale: of an 8-bit mla_latent or mla_split cache. The other arguments are those of paged_prefill.
Returns out [T, H, R_kv], or (out, lse [T, H]).)");
  module.def("sparse_mla_decode", &SparseMlaDecode, nb::arg("q"), nb::arg("cache"),
             nb::arg("indices"), nb::kw_only(), nb::arg("scale"), nb::arg("topk_len") = nb::none(),
             nb::arg("extra_cache") = nb::none(), nb::arg("extra_indices") = nb::none(),
             nb::arg("extra_topk_len") = nb::none(), nb::arg("sinks") = nb::none(),
             nb::arg("kv_scale") = nb::none(), KVBLOCKS_OUT_ARGS, KVBLOCKS_CALL_ARGS,
             nb::sig("def sparse_mla_decode(q: Array, cache: KVCache, indices: Array, *, scale: "
                     "float, topk_len: Array | None "
                     "= None, extra_cache: KVCache | None = None, extra_indices: Array | None = "
                     "None, extra_topk_len: Array | "
                     "None = None, sinks: Array | None = None, kv_scale: Array | float | None = "
                     "None, " KVBLOCKS_OUT_SIG KVBLOCKS_CALL_SIG ") -> Any"),
             R"(Absorbed MLA to the keys that lists of slots name (DeepSeek V3.2 and V4).

q [B, s_q, H, D]; indices int32 [B, s_q, K], slots of the cache; entries below 0 or past the capacity are
ignored, and one that is listed twice counts twice. topk_len int32 [B]: only the first so many entries count.
extra_cache, extra_indices, extra_topk_len: a second cache with lists of its own. Returns out [B, s_q, H, Dv],
or (out, lse [B, s_q, H]).)");
  module.def("sparse_mla_prefill", &SparseMlaPrefill, nb::arg("q"), nb::arg("kv"),
             nb::arg("indices"), nb::kw_only(), nb::arg("scale"), nb::arg("value_dim") = nb::none(),
             nb::arg("topk_len") = nb::none(), nb::arg("sinks") = nb::none(),
             nb::arg("out") = nb::none(), nb::arg("max_logits") = nb::none(),
             nb::arg("lse") = nb::none(), nb::arg("return_lse") = false, KVBLOCKS_CALL_ARGS,
             nb::sig("def sparse_mla_prefill(q: Array, kv: Array, indices: Array, *, scale: float, "
                     "value_dim: int | None = "
                     "None, topk_len: Array | None = None, sinks: Array | None = None, out: Array "
                     "| None = None, max_logits: "
                     "Array | None = None, lse: Array | None = None, return_lse: bool = "
                     "False, " KVBLOCKS_CALL_SIG ") -> Any"),
             R"(The same over contiguous rows.

q [T, H, D], kv [S, 1, D], indices int32 [T, 1, K] of rows, topk_len int32 [T]. V is the first columns of kv, as
many as out has, or value_dim. max_logits float32 [T, H]: written if given. Returns out, or (out, lse [T, H]).)");
}

}  // namespace kvblocks::python
