// Attention over latent caches.

#include <algorithm>

#include "kvblocks/attention_args.h"
#include "python/src/attention/op_bind.h"

namespace kvblocks::python {
namespace {

double WorkOfLists(const attention::ConstTensorView& q, int64_t keys) {
  return 2.0 * static_cast<double>(q.num_elements()) * static_cast<double>(keys);
}
int64_t ListWidth(const attention::ConstTensorView& indices) {
  return std::max<int64_t>(0, Extent(indices, 2));
}

AnyObject RunMlaDecode(OpCall& call, attention::MlaDecodeArgs& args) {
  return call.RunInto(args, &args,
                      {Extent(args.q_lat, 0), Extent(args.q_lat, 1), args.cache.value_dim()},
                      WorkOfLists(args.q_lat, args.max_seq_len));
}

AnyObject RunSparseMlaDecode(OpCall& call, attention::SparseMlaDecodeArgs& args) {
  const attention::ConstTensorView& q = args.q;
  return call.RunInto(args, &args,
                      {Extent(q, 0), Extent(q, 1), Extent(q, 2), args.main.cache.value_dim()},
                      WorkOfLists(q, ListWidth(args.main.indices) + ListWidth(args.extra.indices)));
}

struct SparsePrefillCall : attention::SparseMlaPrefillArgs {
  std::optional<int64_t> value_dim;
};
AnyObject RunSparseMlaPrefill(OpCall& call, SparsePrefillCall& args) {
  if (call.given.out.is_none() == !args.value_dim.has_value()) {
    call.Refuse("value_dim says how wide a new out is, and out tells it itself; give one of them");
  }
  return call.RunInto<attention::SparseMlaPrefillArgs>(
      args, &args, {Extent(args.q, 0), Extent(args.q, 1), args.value_dim.value_or(0)},
      WorkOfLists(args.q, ListWidth(args.indices)));
}

}  // namespace

void BindMlaOps(nb::module_& module) {
  {
    using A = attention::MlaDecodeArgs;
    BindOp<A>(module, "mla_decode",
              R"(Absorbed MLA over a latent cache of any layout.

q_lat [T, H, R_kv] and q_pe [T, H, R_pe], or q_lat [T, H, R_kv + R_pe] and no q_pe. One query per
request, or any number by query_start_loc int32 [R + 1], then causal. Keys by block_table and
seq_lens, or from one block whose rows kv_start_loc int32 [R + 1] divides among requests. scale: of
scores; that of the head before absorption. k_scale: of an 8-bit mla_latent or mla_split cache. The
other arguments are those of paged_prefill. Returns out [T, H, R_kv], or (out, lse [T, H]).)",
              RunMlaDecode,
              Parameters(In("q_lat", &A::q_lat), CacheIn(&A::cache),
                         OptionalIn("block_table", &A::block_table),
                         OptionalIn("seq_lens", &A::seq_lens)),
              std::tuple_cat(
                  Parameters(Number<double>("scale", KVBLOCKS_AT(params.scale)),
                             OptionalIn("q_pe", &A::q_pe),
                             OptionalIn("query_start_loc", &A::query_start_loc),
                             OptionalIn("kv_start_loc", &A::kv_start_loc),
                             TakeOptional<std::optional<int64_t>>(
                                 "max_seq_len",
                                 [](OpCall& call, A& a, std::optional<int64_t> given) {
                                   a.max_seq_len =
                                       a.kv_start_loc.absent()
                                           ? call.MaxLength("max_seq_len", given, a.seq_lens)
                                           : call.MaxDifference("max_seq_len", given,
                                                                a.kv_start_loc);
                                 }),
                             Number("soft_cap", KVBLOCKS_AT(params.soft_cap), 0.0),
                             Number("window_left", KVBLOCKS_AT(params.window_left), int64_t{-1}),
                             OptionalIn("sinks", KVBLOCKS_AT(params.sinks)),
                             OptionalScale("k_scale", KVBLOCKS_AT(params.scales.k)), GivenOut()),
                  GivenLse()));
  }
  {
    using A = attention::SparseMlaDecodeArgs;
    BindOp<A>(module, "sparse_mla_decode",
              R"(Absorbed MLA to the keys that lists of slots name (DeepSeek V3.2 and V4).

q [B, s_q, H, D]; indices int32 [B, s_q, K], slots of the cache; entries below 0 or past the
capacity are ignored, and one that is listed twice counts twice. topk_len int32 [B]: only the first
so many entries count. extra_cache, extra_indices, extra_topk_len: a second cache with lists of its
own. Returns out [B, s_q, H, Dv], or (out, lse [B, s_q, H]).)",
              RunSparseMlaDecode,
              Parameters(In("q", &A::q), CacheIn(KVBLOCKS_AT(main.cache)),
                         In("indices", KVBLOCKS_AT(main.indices))),
              std::tuple_cat(Parameters(Number<double>("scale", &A::scale),
                                        OptionalIn("topk_len", KVBLOCKS_AT(main.topk_len)),
                                        TakeOptional<const PyKvCache*>(
                                            "extra_cache",
                                            [](OpCall& call, A& a, const PyKvCache* cache) {
                                              if (cache != nullptr) a.extra.cache = call.In(*cache);
                                            }),
                                        OptionalIn("extra_indices", KVBLOCKS_AT(extra.indices)),
                                        OptionalIn("extra_topk_len", KVBLOCKS_AT(extra.topk_len)),
                                        OptionalIn("sinks", &A::sinks),
                                        OptionalScale("kv_scale", &A::kv_scale), GivenOut()),
                             GivenLse()));
  }
  {
    using A = SparsePrefillCall;
    BindOp<A>(module, "sparse_mla_prefill",
              R"(The same over contiguous rows.

q [T, H, D], kv [S, 1, D], indices int32 [T, 1, K] of rows, topk_len int32 [T]. V is the first
columns of kv, as many as out has, or value_dim. max_logits float32 [T, H]: written if given.
Returns out, or (out, lse [T, H]).)",
              RunSparseMlaPrefill,
              Parameters(In("q", &A::q), In("kv", &A::kv), In("indices", &A::indices)),
              std::tuple_cat(
                  Parameters(Number<double>("scale", &A::scale), Field("value_dim", &A::value_dim),
                             OptionalIn("topk_len", &A::topk_len), OptionalIn("sinks", &A::sinks),
                             GivenOut(), OptionalOut("max_logits", &A::max_logits)),
                  GivenLse()));
  }
}

}  // namespace kvblocks::python
