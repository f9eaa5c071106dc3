// Checks of attention over latent caches.

#include "kvblocks/attention/ops/batch_checks.h"
#include "kvblocks/attention/ops/checks.h"
#include "kvblocks/attention/ops/param_checks.h"

namespace kvblocks::attention {
namespace {

// Lengths of lists of at most `limit` entries.
bool CheckListLengths(ArgChecker& check, const char* name, const ConstTensorView& view,
                      int64_t limit) {
  if (!check.ok()) return false;
  const HostArray<int32_t> lengths(view);
  for (int64_t i = 0; lengths.readable() && i < lengths.size(); ++i) {
    if (lengths[i] < 0 || lengths[i] > limit) {
      return check.Invalid(name, "[", i, "] is ", lengths[i], "; 0 to K = ", limit);
    }
  }
  return true;
}

bool CheckSparseKeys(ArgChecker& check, const CacheNames& names, const SparseKeys& keys,
                     Dim* requests, Dim* queries, CacheGeometry* cache) {
  if (!CheckCache(check, names, keys.cache, CacheFamily::kMla, /*written=*/false, cache)) {
    return false;
  }
  Dim entries{"K"};
  return check.In("indices", keys.indices, DType::kI32, {requests, queries, &entries}) &&
         check.InIf("topk_len", keys.topk_len, DType::kI32, {requests}) &&
         CheckListLengths(check, "topk_len", keys.topk_len, entries.size);
}

}  // namespace

absl::Status Check(const ExecContext& context, const MlaDecodeArgs& args) {
  ArgChecker check(context, "MlaDecode");
  CacheGeometry cache;
  if (!CheckCache(check, {}, args.cache, CacheFamily::kMla, /*written=*/false, &cache)) {
    return check.status();
  }
  const int64_t compressed = CompressedValues(args.cache);
  Dim tokens{"T"}, heads{"H"}, requests{"R"}, starts{"R + 1"}, columns{"columns"};
  Dim value{"Dv", cache.value_dim, "the cache"};
  if (args.q_pe.absent()) {
    Dim whole{"R_kv + R_pe", cache.key_dim, "the cache"};
    check.In("q_lat", args.q_lat, kComputeTypes, {&tokens, &heads, &whole});
  } else {
    Dim latent{"R_kv", compressed, "the cache"};
    Dim rotary{"R_pe", cache.key_dim - compressed, "the cache"};
    check.In("q_lat", args.q_lat, kComputeTypes, {&tokens, &heads, &latent});
    check.In("q_pe", args.q_pe, kComputeTypes, {&tokens, &heads, &rotary});
  }
  const bool contiguous = !args.kv_start_loc.absent();
  if (contiguous) {
    check.In("kv_start_loc", args.kv_start_loc, DType::kI32, {&starts});
    if (check.ok() && (!args.block_table.absent() || !args.seq_lens.absent())) {
      check.Invalid("kv_start_loc is given with block_table or seq_lens; give either");
    }
    if (check.ok() && cache.num_blocks != 1) {
      check.Invalid("cache has ", cache.num_blocks, " blocks; 1 with kv_start_loc");
    }
    if (check.ok() && starts.size < 1) {
      check.Invalid("kv_start_loc is empty; it must have R + 1 elements");
    }
    requests.size = starts.size - 1;
  } else {
    check.In("seq_lens", args.seq_lens, DType::kI32, {&requests});
    check.In("block_table", args.block_table, DType::kI32, {&requests, &columns});
  }
  if (!check.ok()) return check.status();
  const bool varlen = !args.query_start_loc.absent();
  if (varlen) {
    starts.size = requests.size + 1;
    starts.from = contiguous ? "kv_start_loc" : "seq_lens, one more";
    check.In("query_start_loc", args.query_start_loc, DType::kI32, {&starts});
  } else if (tokens.size != requests.size) {
    check.Invalid("q_lat has T = ", tokens.size, " rows for R = ", requests.size,
                  " requests; one each, or give query_start_loc");
  }
  check.Out("out", args.out, kComputeTypes, {&tokens, &heads, &value});
  check.OutIf("lse", args.lse, DType::kF32, {&tokens, &heads});
  check.AtLeast("max_seq_len", args.max_seq_len, 0);
  check.Aligned("q_lat", args.q_lat);
  check.Aligned("q_pe", args.q_pe);
  check.Aligned("out", args.out);
  if (!check.ok()) return check.status();
  BatchLengths batch;
  batch.num_requests = requests.size;
  batch.num_tokens = tokens.size;
  batch.num_heads = heads.size;
  batch.one_query_each = !varlen;
  batch.query_start_loc = HostArray<int32_t>(args.query_start_loc);
  if (contiguous) {
    batch.kv_start_loc = HostArray<int32_t>(args.kv_start_loc);
  } else {
    batch.seq_lens = HostArray<int32_t>(args.seq_lens);
  }
  batch.max_seq_len = args.max_seq_len;
  batch.max_query_len = tokens.size;
  if (varlen) CheckStarts(check, "query_start_loc", batch.query_start_loc, "T", tokens.size);
  if (contiguous) {
    CheckStarts(check, "kv_start_loc", batch.kv_start_loc, "the rows of the cache",
                cache.block_size);
  }
  if (!check.ok() || !CheckParams(check, args.params, batch, cache.block_size) ||
      !CheckScales(check, args.params.scales, cache, /*num_requests=*/-1) ||
      !CheckLengths(check, args.params, batch) ||
      (!contiguous && !CheckBlockTable(check, args.params, batch, args.block_table,
                                       cache.num_blocks, cache.block_size))) {
    return check.status();
  }
  return check.Finish();
}

absl::Status Check(const ExecContext& context, const SparseMlaDecodeArgs& args) {
  ArgChecker check(context, "SparseMlaDecode");
  Dim requests{"B"}, queries{"s_q"}, heads{"H"};
  CacheGeometry cache, extra;
  if (!CheckSparseKeys(check, {"main.cache", "main.cache.k", "main.cache.v"}, args.main, &requests,
                       &queries, &cache)) {
    return check.status();
  }
  if (!args.extra.cache.absent()) {
    if (!CheckSparseKeys(check, {"extra.cache", "extra.cache.k", "extra.cache.v"}, args.extra,
                         &requests, &queries, &extra)) {
      return check.status();
    }
    if (extra.key_dim != cache.key_dim || extra.value_dim != cache.value_dim) {
      check.Invalid("extra.cache has rows of ", extra.key_dim, " and ", extra.value_dim,
                    " values; as main.cache: ", cache.key_dim, " and ", cache.value_dim);
    }
  } else if (!args.extra.indices.absent() || !args.extra.topk_len.absent()) {
    check.Invalid("extra.indices is given without extra.cache");
  }
  Dim key{"D", cache.key_dim, "main.cache"}, value{"Dv", cache.value_dim, "main.cache"};
  check.In("q", args.q, kComputeTypes, {&requests, &queries, &heads, &key});
  check.Positive("scale", args.scale);
  if (!check.ok()) return check.status();
  CheckSinks(check, args.sinks, heads.size);
  const bool quantised = cache.takes_scale() || (!args.extra.cache.absent() && extra.takes_scale());
  if (args.kv_scale.absent() || quantised) {
    CheckScale(check, "kv_scale", args.kv_scale, DType::kF8E4M3, 1, -1);
  } else {
    check.Invalid("kv_scale is given, but no cache takes one; leave it absent");
  }
  check.Out("out", args.out, kComputeTypes, {&requests, &queries, &heads, &value});
  check.OutIf("lse", args.lse, DType::kF32, {&requests, &queries, &heads});
  check.Aligned("q", args.q);
  check.Aligned("out", args.out);
  return check.Finish();
}

absl::Status Check(const ExecContext& context, const SparseMlaPrefillArgs& args) {
  ArgChecker check(context, "SparseMlaPrefill");
  Dim tokens{"T"}, heads{"H"}, key{"D"}, rows{"S"}, one{"1", 1, "the one KV head"};
  Dim entries{"K"}, value{"d_v"};
  check.In("q", args.q, kComputeTypes, {&tokens, &heads, &key});
  check.In("kv", args.kv, kComputeTypes, {&rows, &one, &key});
  check.In("indices", args.indices, DType::kI32, {&tokens, &one, &entries});
  check.InIf("topk_len", args.topk_len, DType::kI32, {&tokens});
  check.Positive("scale", args.scale);
  check.Out("out", args.out, kComputeTypes, {&tokens, &heads, &value});
  check.OutIf("max_logits", args.max_logits, DType::kF32, {&tokens, &heads});
  check.OutIf("lse", args.lse, DType::kF32, {&tokens, &heads});
  check.Aligned("q", args.q);
  check.Aligned("kv", args.kv);
  check.Aligned("out", args.out);
  if (!check.ok()) return check.status();
  if (value.size > key.size) {
    check.Invalid("out has rows of ", value.size, " values; at most D = ", key.size);
  }
  CheckListLengths(check, "topk_len", args.topk_len, entries.size);
  CheckSinks(check, args.sinks, heads.size);
  return check.Finish();
}

}  // namespace kvblocks::attention
