// Checks of attention over latent caches.

#include "attention/ops/batch_checks.h"

#include <algorithm>

#include "kvblocks/attention_ops.h"

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
                     Dim* requests, Dim* queries) {
  if (!CheckCache(check, names, keys.cache, CacheFamily::kMla, /*written=*/false)) return false;
  Dim entries{"K"};
  return check.In("indices", keys.indices, DType::kI32, {requests, queries, &entries}) &&
         check.InIf("topk_len", keys.topk_len, DType::kI32, {requests}) &&
         CheckListLengths(check, "topk_len", keys.topk_len, entries.size);
}

}  // namespace

absl::Status Check(const ExecContext& context, const MlaDecodeArgs& args) {
  ArgChecker check(context, "MlaDecode");
  const ConstKvCacheView& cache = args.cache;
  if (!CheckCache(check, {}, cache, CacheFamily::kMla, /*written=*/false)) return check.status();
  const int64_t compressed = CompressedValues(args.cache);
  Dim tokens{"T"}, heads{"H"}, requests{"R"}, starts{"R + 1"}, columns{"columns"};
  Dim value{"Dv", cache.value_dim(), "the cache"};
  if (args.q_pe.absent()) {
    Dim whole{"R_kv + R_pe", cache.key_dim(), "the cache"};
    check.In("q_lat", args.q_lat, kComputeTypes, {&tokens, &heads, &whole});
  } else {
    Dim latent{"R_kv", compressed, "the cache"};
    Dim rotary{"R_pe", cache.key_dim() - compressed, "the cache"};
    check.In("q_lat", args.q_lat, kComputeTypes, {&tokens, &heads, &latent});
    check.In("q_pe", args.q_pe, kComputeTypes, {&tokens, &heads, &rotary});
  }
  const bool contiguous = !args.kv_start_loc.absent();
  if (contiguous) {
    check.In("kv_start_loc", args.kv_start_loc, DType::kI32, {&starts});
    if (check.ok() && (!args.block_table.absent() || !args.seq_lens.absent())) {
      check.Invalid("kv_start_loc is given with block_table or seq_lens; give either");
    }
    if (check.ok() && cache.num_blocks() != 1) {
      check.Invalid("cache has ", cache.num_blocks(), " blocks; 1 with kv_start_loc");
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
                cache.block_size());
  }
  if (!check.ok() || !CheckParams(check, args.params, batch, cache.block_size()) ||
      !CheckScales(check, args.params.scales, cache, /*num_requests=*/-1) ||
      !CheckLengths(check, args.params, batch) ||
      (!contiguous && !CheckBlockTable(check, args.params, batch, args.block_table,
                                       cache.num_blocks(), cache.block_size()))) {
    return check.status();
  }
  return check.Finish();
}

absl::Status Check(const ExecContext& context, const SparseMlaDecodeArgs& args) {
  ArgChecker check(context, "SparseMlaDecode");
  Dim requests{"B"}, queries{"s_q"}, heads{"H"};
  const ConstKvCacheView &cache = args.main.cache, &extra = args.extra.cache;
  if (!CheckSparseKeys(check, {"main.cache", "main.cache.k", "main.cache.v"}, args.main, &requests,
                       &queries)) {
    return check.status();
  }
  if (!extra.absent()) {
    if (!CheckSparseKeys(check, {"extra.cache", "extra.cache.k", "extra.cache.v"}, args.extra,
                         &requests, &queries)) {
      return check.status();
    }
    if (extra.key_dim() != cache.key_dim() || extra.value_dim() != cache.value_dim()) {
      check.Invalid("extra.cache has rows of ", extra.key_dim(), " and ", extra.value_dim(),
                    " values; as main.cache: ", cache.key_dim(), " and ", cache.value_dim());
    }
  } else if (!args.extra.indices.absent() || !args.extra.topk_len.absent()) {
    check.Invalid("extra.indices is given without extra.cache");
  }
  Dim key{"D", cache.key_dim(), "main.cache"}, value{"Dv", cache.value_dim(), "main.cache"};
  check.In("q", args.q, kComputeTypes, {&requests, &queries, &heads, &key});
  check.Positive("scale", args.scale);
  if (!check.ok()) return check.status();
  CheckSinks(check, args.sinks, heads.size);
  const bool quantised = cache.takes_scale() || (!extra.absent() && extra.takes_scale());
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

namespace {

// Far more than any model has; keeps products of positions and sizes within int64.
constexpr int64_t kMostTokensPerRow = 1 << 20;

bool CheckRatio(ArgChecker& check, int64_t ratio) {
  if (!check.ok()) return false;
  return (ratio >= 1 && ratio <= kMostTokensPerRow) ||
         check.Invalid("ratio is ", ratio, "; 1 to ", kMostTokensPerRow, " tokens per row");
}

// `dim`: the values of a row.
bool CheckIndexCache(ArgChecker& check, const ConstIndexCacheView& cache, Dim* dim, bool written) {
  if (cache.planar_block_size < 0) {
    return check.Invalid("cache.planar_block_size is ", cache.planar_block_size,
                         "; rows of a planar block, or 0 for plain rows");
  }
  Dim blocks{"NB"}, rows{"BS"}, bytes{"block bytes"};
  if (!cache.planar()) {
    check.In("cache.rows", cache.rows, kComputeTypes, {&blocks, &rows, dim});
  } else {
    check.In("cache.rows", cache.rows, DType::kU8, {&blocks, &bytes});
    rows.size = cache.planar_block_size;
  }
  if (!check.ok()) return false;
  if (rows.size < 1 || rows.size > int64_t{1} << 30) {
    return check.Invalid("cache has blocks of ", rows.size, " rows; 1 to 2^30");
  }
  if (cache.planar()) {
    if (dim->size % 4 != 0) {
      return check.Invalid("planar rows of Di = ", dim->size, " values; a multiple of 4");
    }
    const int64_t needed = IndexBlockBytes(rows.size, dim->size);
    if (bytes.size < needed || cache.rows.stride[1] != 1) {
      return check.Invalid("cache.rows is ", cache.rows.DebugString(), "; blocks of ", rows.size,
                           " rows of ", dim->size, " codes and a scale take ", needed,
                           " bytes in one piece");
    }
  }
  if (written) {
    check.AllowOverlapOfLast();
    check.Writes("cache.rows", cache.rows);
  }
  return check.ok();
}

// query_start_loc and seq_lens of `tokens` tokens; what is readable goes to `batch`.
template <typename Args>
bool CheckBatch(ArgChecker& check, const Args& args, const Dim& tokens, Dim* requests,
                BatchLengths* batch) {
  Dim starts{"R + 1"}, columns{"columns"};
  check.In("seq_lens", args.seq_lens, DType::kI32, {requests});
  starts.size = requests->size + 1, starts.from = "seq_lens, one more";
  check.In("query_start_loc", args.query_start_loc, DType::kI32, {&starts});
  check.In("block_table", args.block_table, DType::kI32, {requests, &columns});
  if (!check.ok()) return false;
  batch->num_requests = requests->size;
  batch->num_tokens = tokens.size;
  batch->query_start_loc = HostArray<int32_t>(args.query_start_loc);
  batch->seq_lens = HostArray<int32_t>(args.seq_lens);
  batch->max_query_len = tokens.size;
  batch->max_seq_len = INT32_MAX;
  return CheckStarts(check, "query_start_loc", batch->query_start_loc, "T", tokens.size) &&
         CheckLengths(check, AttnParams(), *batch);
}

}  // namespace

absl::Status Check(const ExecContext& context, const CacheIndexKeysArgs& args) {
  ArgChecker check(context, "CacheIndexKeys");
  Dim tokens{"T"}, dim{"Di"}, slots{"n"};
  const ConstIndexCacheView cache = args.cache;
  check.In("k", args.k, kComputeTypes, {&tokens, &dim});
  check.In("slot_mapping", args.slot_mapping, DType::kI64, {&slots});
  if (!check.ok() || !CheckIndexCache(check, cache, &dim, /*written=*/true) ||
      !CheckSlotCount(check, slots, tokens, "k")) {
    return check.status();
  }
  check.Aligned("k", args.k);
  CheckSlots(check, args.slot_mapping, cache.num_blocks(), cache.block_size());
  return check.Finish();
}

absl::Status Check(const ExecContext& context, const IndexTopkArgs& args) {
  ArgChecker check(context, "IndexTopk");
  Dim tokens{"T"}, heads{"Hi"}, dim{"Di"}, requests{"R"}, chosen{"K"};
  const ConstIndexCacheView& cache = args.cache;
  BatchLengths batch;
  check.In("q", args.q, kComputeTypes | DTypeSet(DType::kF8E4M3), {&tokens, &heads, &dim});
  check.In("weights", args.weights, DType::kF32, {&tokens, &heads});
  if (!check.ok() || !CheckIndexCache(check, cache, &dim, /*written=*/false) ||
      !CheckRatio(check, args.ratio) || !CheckBatch(check, args, tokens, &requests, &batch)) {
    return check.status();
  }
  check.Out("indices", args.indices, DType::kI32, {&tokens, &chosen});
  check.Out("lens", args.lens, DType::kI32, {&tokens});
  check.AtLeast("max_seq_len", args.max_seq_len, 0);
  check.Aligned("q", args.q);
  if (!check.ok()) return check.status();
  if (args.as_slots && cache.num_blocks() > INT32_MAX / cache.block_size()) {
    check.Invalid("cache has ", cache.num_blocks(), " blocks of ", cache.block_size(),
                  " rows; slots are int32");
  }
  for (int64_t b = 0; check.ok() && batch.seq_lens.readable() && b < requests.size; ++b) {
    const int64_t length = batch.seq_lens[b], rows = length / args.ratio;
    if (length > args.max_seq_len) {
      check.Invalid("max_seq_len is ", args.max_seq_len, ", below seq_lens[", b, "] = ", length);
    } else if (batch.query_len(b) > 0 &&
               CheckColumns(check, args.block_table, b, rows, cache.block_size())) {
      CheckTableRow(check, args.block_table, b, 0, rows, cache.num_blocks(), cache.block_size());
    }
  }
  return check.Finish();
}

absl::Status Check(const ExecContext& context, const CompressTokensArgs& args) {
  ArgChecker check(context, "CompressTokens");
  const int64_t parts = args.overlap ? 2 : 1;
  Dim tokens{"T"}, dim{"D"}, width{"C * D"}, blocks{"NB"}, rows{"BS"}, state{"2 * C * D"};
  Dim slots{"n"}, requests{"R"};
  BatchLengths batch;
  if (!CheckRatio(check, args.ratio)) return check.status();
  check.Out("out", args.out, kComputeTypes, {&tokens, &dim});
  if (!check.ok()) return check.status();
  if (dim.size > int64_t{1} << 30) check.Invalid("out has rows of ", dim.size, " values");
  width.size = parts * dim.size, width.from = "out";
  state.size = 2 * width.size, state.from = "out";
  check.In("kv", args.kv, kComputeTypes, {&tokens, &width});
  check.In("score", args.score, kComputeTypes, {&tokens, &width});
  Dim ratio{"ratio", args.ratio, "ratio"};
  check.InIf("bias", args.bias, DType::kF32, {&ratio, &width});
  check.Out("states", args.states, DType::kF32, {&blocks, &rows, &state});
  check.In("slot_mapping", args.slot_mapping, DType::kI64, {&slots});
  check.InIf("norm_weight", args.norm_weight, DType::kF32, {&dim});
  check.Positive("norm_eps", args.norm_eps);
  Dim positions{"P"}, rotary{"R"};
  check.InIf("cos_sin", args.cos_sin, DType::kF32, {&positions, &rotary});
  if (!check.ok() || !CheckSlotCount(check, slots, tokens, "kv") ||
      !CheckBatch(check, args, tokens, &requests, &batch)) {
    return check.status();
  }
  if (rows.size < 1) check.Invalid("states has blocks of ", rows.size, " rows; at least 1");
  if (!args.cos_sin.absent() && (rotary.size > dim.size || rotary.size % 2 != 0)) {
    check.Invalid("cos_sin is ", args.cos_sin.DebugString(),
                  "; an even number of at most D = ", dim.size, " columns");
  }
  if (!check.ok()) return check.status();
  CheckSlots(check, args.slot_mapping, blocks.size, rows.size);
  for (int64_t b = 0; check.ok() && batch.seq_lens.readable() && batch.query_start_loc.readable() &&
                      b < requests.size;
       ++b) {
    // The rows completed by the new tokens, [first, last).
    const int64_t length = batch.seq_lens[b];
    const int64_t first = (length - batch.query_len(b)) / args.ratio, last = length / args.ratio;
    if (first >= last) continue;
    if (!args.cos_sin.absent() && (last - 1) * args.ratio >= positions.size) {
      check.OutOfRange("cos_sin has P = ", positions.size, " positions; request ", b,
                       " needs that of ", (last - 1) * args.ratio);
      break;
    }
    const int64_t begin = std::max<int64_t>(0, (first + 1 - parts) * args.ratio);
    if (CheckColumns(check, args.block_table, b, last * args.ratio, rows.size)) {
      CheckTableRow(check, args.block_table, b, begin, last * args.ratio, blocks.size, rows.size);
    }
  }
  return check.Finish();
}

}  // namespace kvblocks::attention
