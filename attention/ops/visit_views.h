// VisitViews: calls a function with every tensor of an operation's arguments.

#ifndef KVBLOCKS_ATTENTION_OPS_VISIT_VIEWS_H_
#define KVBLOCKS_ATTENTION_OPS_VISIT_VIEWS_H_

#include "kvblocks/attention_args.h"

namespace kvblocks::attention {

template <typename Visit, typename... Views>
void VisitEach(Visit visit, Views&... views) {
  (visit(views), ...);
}
template <typename Visit>
void VisitViews(AttnParams& p, Visit visit) {
  VisitEach(visit, p.alibi_slopes, p.sinks, p.scales.k, p.scales.v, p.scales.q,
            p.mask.tensor);
}

template <typename Visit>
void VisitViews(ReshapeAndCacheArgs& a, Visit visit) {
  VisitEach(visit, a.k, a.v, a.slot_mapping, a.cache.k, a.cache.v, a.scales.k, a.scales.v);
  VisitEach(visit, a.cache.k_scales, a.cache.v_scales);
}
template <typename Visit>
void VisitViews(ConcatAndCacheMlaArgs& a, Visit visit) {
  VisitEach(visit, a.kv_c, a.k_pe, a.slot_mapping, a.cache.k, a.cache.v, a.scale);
}
template <typename Visit>
void VisitViews(ComputeKvScalesArgs& a, Visit visit) {
  VisitEach(visit, a.q, a.k, a.v, a.q_scale, a.k_scale, a.v_scale);
}
template <typename Visit>
void VisitViews(ScaleAndCacheArgs& a, Visit visit) {
  VisitViews(a.scales, visit);
  VisitEach(visit, a.slot_mapping, a.cache.k, a.cache.v, a.cache.k_scales, a.cache.v_scales);
}
template <typename Visit>
void VisitViews(QuantizeQueriesArgs& a, Visit visit) {
  VisitEach(visit, a.q, a.scale, a.codes);
}
template <typename Visit>
void VisitViews(PagedDecodeArgs& a, Visit visit) {
  VisitEach(visit, a.q, a.cache.k, a.cache.v, a.block_table, a.seq_lens, a.out, a.lse);
  VisitEach(visit, a.cache.k_scales, a.cache.v_scales);
  VisitViews(a.params, visit);
}
template <typename Visit>
void VisitViews(PagedDecodePartialArgs& a, Visit visit) {
  VisitEach(visit, a.q, a.cache.k, a.cache.v, a.block_table, a.seq_lens, a.max_logits, a.exp_sums,
            a.tmp_out);
  VisitEach(visit, a.cache.k_scales, a.cache.v_scales);
  VisitViews(a.params, visit);
}
template <typename Visit>
void VisitViews(ReduceSplitsArgs& a, Visit visit) {
  VisitEach(visit, a.max_logits, a.exp_sums, a.tmp_out, a.sinks, a.out, a.lse);
}
template <typename Visit>
void VisitViews(PagedPrefillArgs& a, Visit visit) {
  VisitEach(visit, a.q, a.cache.k, a.cache.v, a.query_start_loc, a.seq_lens, a.block_table,
            a.query_positions, a.out, a.lse);
  VisitEach(visit, a.cache.k_scales, a.cache.v_scales);
  VisitViews(a.params, visit);
}
template <typename Visit>
void VisitViews(VarlenSelfAttentionArgs& a, Visit visit) {
  VisitEach(visit, a.q, a.k, a.v, a.query_start_loc, a.kv_start_loc, a.kv_seq_lens,
            a.query_positions, a.out, a.lse);
  VisitViews(a.params, visit);
}
template <typename Visit>
void VisitViews(CascadeArgs& a, Visit visit) {
  VisitViews(a.prefill, visit);
}
template <typename Visit>
void VisitViews(MlaDecodeArgs& a, Visit visit) {
  VisitEach(visit, a.q_lat, a.q_pe, a.cache.k, a.cache.v, a.query_start_loc, a.block_table,
            a.seq_lens, a.out, a.lse);
  VisitViews(a.params, visit);
}
template <typename Visit>
void VisitViews(SparseMlaDecodeArgs& a, Visit visit) {
  for (SparseKeys* keys : {&a.main, &a.extra}) {
    VisitEach(visit, keys->cache.k, keys->cache.v, keys->indices, keys->topk_len);
  }
  VisitEach(visit, a.q, a.sinks, a.kv_scale, a.out, a.lse);
}
template <typename Visit>
void VisitViews(SparseMlaPrefillArgs& a, Visit visit) {
  VisitEach(visit, a.q, a.kv, a.indices, a.topk_len, a.sinks, a.out, a.max_logits, a.lse);
}
template <typename Visit>
void VisitViews(MergeStatesArgs& a, Visit visit) {
  VisitEach(visit, a.outs, a.lses, a.sinks, a.out, a.lse);
}
template <typename Visit>
void VisitViews(GatherCacheArgs& a, Visit visit) {
  VisitEach(visit, a.cache.k, a.cache.v, a.block_table, a.seq_lens, a.lengths, a.scales.k,
            a.scales.v, a.out, a.out_v);
  VisitEach(visit, a.cache.k_scales, a.cache.v_scales);
}
template <typename Visit>
void VisitViews(SelectHkvdArgs& a, Visit visit) {
  VisitEach(visit, a.v_new, a.v_old, a.imp, a.diffs);
}
template <typename Visit>
void VisitViews(FuseKvArgs& a, Visit visit) {
  VisitEach(visit, a.imp, a.k_new, a.v_new, a.k_old, a.v_old);
}
template <typename Visit>
void VisitViews(GatherRowsArgs& a, Visit visit) {
  VisitEach(visit, a.in, a.index, a.out);
}
template <typename Visit>
void VisitViews(RotateKeysArgs& a, Visit visit) {
  VisitEach(visit, a.in, a.positions, a.from_positions, a.out);
}
template <typename Visit>
void VisitViews(CacheIndexKeysArgs& a, Visit visit) {
  VisitEach(visit, a.k, a.slot_mapping, a.cache.rows);
}
template <typename Visit>
void VisitViews(IndexTopkArgs& a, Visit visit) {
  VisitEach(visit, a.q, a.weights, a.cache.rows, a.query_start_loc, a.seq_lens, a.block_table,
            a.indices, a.lens);
}
template <typename Visit>
void VisitViews(CompressTokensArgs& a, Visit visit) {
  VisitEach(visit, a.kv, a.score, a.bias, a.states, a.slot_mapping, a.query_start_loc, a.seq_lens,
            a.block_table, a.norm_weight, a.cos_sin, a.out);
}

// The AttnParams of arguments that have them, or null.
template <typename Args>
AttnParams* ParamsOf(Args& args) {
  if constexpr (requires { args.params; }) {
    return &args.params;
  } else if constexpr (requires { args.prefill; }) {
    return &args.prefill.params;
  } else {
    return nullptr;
  }
}

}  // namespace kvblocks::attention

#endif  // KVBLOCKS_ATTENTION_OPS_VISIT_VIEWS_H_
