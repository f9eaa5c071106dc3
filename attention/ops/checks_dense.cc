// Checks of attention over caches with heads, or over contiguous keys.

#include <algorithm>
#include <cstdint>
#include <limits>
#include <vector>

#include "attention/ops/batch_checks.h"
#include "kvblocks/attention_ops.h"
#include "kvblocks/split_planner.h"

namespace kvblocks::attention {

namespace {

// What PagedDecode and PagedDecodePartial have in common: everything but outputs.
struct Decode {
  Dim requests{"R"}, heads{"H"}, columns{"columns"};
};

template <typename Args>
bool CheckDecodeInputs(ArgChecker& check, const Args& args, Decode* decode) {
  const ConstKvCacheView& cache = args.cache;
  if (!CheckCache(check, {}, cache, CacheFamily::kHeads, /*written=*/false)) return false;
  Dim key{"D", cache.key_dim(), "the cache"};
  check.In("q", args.q, kAttendedTypes, {&decode->requests, &decode->heads, &key});
  check.In("block_table", args.block_table, DType::kI32, {&decode->requests, &decode->columns});
  check.In("seq_lens", args.seq_lens, DType::kI32, {&decode->requests});
  check.AtLeast("max_seq_len", args.max_seq_len, 0);
  check.Aligned("q", args.q);
  CheckGroups(check, decode->heads.size, cache.num_kv_heads());
  if (!check.ok()) return false;
  BatchLengths batch;
  batch.num_requests = batch.num_tokens = decode->requests.size;
  batch.num_heads = decode->heads.size;
  batch.one_query_each = true;
  batch.seq_lens = HostArray<int32_t>(args.seq_lens);
  batch.max_seq_len = args.max_seq_len;
  return CheckParams(check, args.params, batch, cache.block_size()) &&
         CheckScales(check, args.params.scales, cache, decode->requests.size, args.q) &&
         CheckLengths(check, args.params, batch) &&
         CheckBlockTable(check, args.params, batch, args.block_table, cache.num_blocks(),
                         cache.block_size());
}

// All of PagedPrefill; a cascade looks at the result.
bool CheckPrefill(ArgChecker& check, const PagedPrefillArgs& args, BatchLengths* lengths) {
  const ConstKvCacheView& cache = args.cache;
  if (!CheckCache(check, {}, cache, CacheFamily::kHeads, /*written=*/false)) return false;
  Dim tokens{"T"}, heads{"H"}, requests{"R"}, starts{"R + 1"}, columns{"columns"};
  Dim key{"D", cache.key_dim(), "the cache"}, value{"Dv", cache.value_dim(), "the cache"};
  check.In("q", args.q, kAttendedTypes, {&tokens, &heads, &key});
  check.In("seq_lens", args.seq_lens, DType::kI32, {&requests});
  check.In("block_table", args.block_table, DType::kI32, {&requests, &columns});
  if (!check.ok()) return false;
  starts.size = requests.size + 1, starts.from = "seq_lens, one more";
  check.In("query_start_loc", args.query_start_loc, DType::kI32, {&starts});
  check.InIf("query_positions", args.query_positions, DType::kI32, {&tokens});
  CheckOutScale(check, args.out_scale);
  check.Out("out", args.out, OutTypes(args.out_scale), {&tokens, &heads, &value});
  check.OutIf("lse", args.lse, DType::kF32, {&tokens, &heads});
  check.AtLeast("max_query_len", args.max_query_len, 0);
  check.AtLeast("max_seq_len", args.max_seq_len, 0);
  check.Aligned("q", args.q);
  check.Aligned("out", args.out);
  CheckGroups(check, heads.size, cache.num_kv_heads());
  if (!check.ok()) return false;
  BatchLengths batch;
  batch.num_requests = requests.size;
  batch.num_tokens = tokens.size;
  batch.num_heads = heads.size;
  batch.query_start_loc = HostArray<int32_t>(args.query_start_loc);
  batch.seq_lens = HostArray<int32_t>(args.seq_lens);
  batch.query_positions = HostArray<int32_t>(args.query_positions);
  batch.max_query_len = args.max_query_len;
  batch.max_seq_len = args.max_seq_len;
  *lengths = batch;
  return CheckStarts(check, "query_start_loc", batch.query_start_loc, "T", tokens.size) &&
         CheckParams(check, args.params, batch, cache.block_size()) &&
         CheckScales(check, args.params.scales, cache, requests.size, args.q) &&
         CheckLengths(check, args.params, batch) &&
         CheckBlockTable(check, args.params, batch, args.block_table, cache.num_blocks(),
                         cache.block_size());
}

// The shared blocks of a cascade: whole, before every query, visible to all, the same in all rows.
bool CheckPrefix(ArgChecker& check, const CascadeArgs& args, const BatchLengths& batch) {
  const ConstKvCacheView& cache = args.prefill.cache;
  const int64_t prefix = args.common_prefix_len;
  if (prefix < 0 || prefix % cache.block_size() != 0) {
    return check.Invalid("common_prefix_len is ", prefix, "; a multiple of the block size ",
                         cache.block_size());
  }
  if (prefix == 0) return true;
  const AttnParams& params = args.prefill.params;
  if (params.window_left >= 0 || params.window_right > 0 || params.chunk > 0 ||
      params.block_sparse.enabled() || params.mask.enabled()) {
    return check.NotBuilt(
        "with a window, chunks, block-sparse visibility or an explicit mask not "
        "every query sees the prefix; call PagedPrefill");
  }
  const ConstTensorView& table = args.prefill.block_table;
  const int64_t blocks = prefix / cache.block_size();
  if (blocks > table.extent[1]) {
    return check.OutOfRange("block_table has ", table.extent[1], " columns; the prefix of ", prefix,
                            " tokens needs ", blocks);
  }
  if (!batch.queries_readable()) return true;
  for (int64_t b = 0; b < batch.num_requests; ++b) {
    if (batch.query_len(b) == 0) continue;
    if (batch.keys_readable() && batch.key_len(b) - batch.query_len(b) < prefix) {
      return check.Invalid("common_prefix_len is ", prefix, "; request ", b, " has only ",
                           batch.key_len(b) - batch.query_len(b), " tokens before its queries");
    }
    if (!CheckTableRow(check, table, 0, 0, prefix, cache.num_blocks(), cache.block_size())) {
      return false;
    }
    if (!table.device.on_host()) continue;
    for (int64_t i = 0; i < blocks; ++i) {
      int32_t own, shared;
      std::memcpy(&own, table.At(b, i), sizeof(own));
      std::memcpy(&shared, table.At(0, i), sizeof(shared));
      if (own != shared) {
        return check.Invalid("block_table[", b, "][", i, "] is ", own,
                             " within the common prefix, "
                             "whose block is ",
                             shared);
      }
    }
  }
  return true;
}

// That a plan was made for these requests, this block size and window and, as far as the host can
// read them, these lengths.
bool CheckPlan(ArgChecker& check, const PagedDecodeArgs& args, int64_t block_size) {
  if (!check.ok() || args.plan == nullptr) return check.ok();
  const SplitPlan& plan = *args.plan;
  const int64_t requests = args.seq_lens.extent[0];
  if (static_cast<int64_t>(plan.split_offsets.size()) != requests + 1) {
    return check.Stale("the plan is for ", static_cast<int64_t>(plan.split_offsets.size()) - 1,
                       " requests, the batch has R = ", requests, "; plan again");
  }
  if (plan.type.block_size != 0 && plan.type.block_size != block_size) {
    return check.Stale("the plan is for block size ", plan.type.block_size, ", the cache has ",
                       block_size, "; plan per KV group");
  }
  if (plan.type.window > 0 && plan.type.window != args.params.window_left + 1) {
    return check.Stale("the plan is for a window of ", plan.type.window,
                       " tokens, params.window_left is ", args.params.window_left,
                       "; plan per KV group");
  }
  if (plan.tile < 1) return check.Stale("the plan has tiles of ", plan.tile, " keys");
  for (int64_t b = 0; b < requests; ++b) {
    const int64_t begin = plan.split_offsets[b], end = plan.split_offsets[b + 1];
    if (begin < 0 || begin >= end || end > static_cast<int64_t>(plan.ranges.size())) {
      return check.Stale("the plan has splits ", begin, " to ", end, " of request ", b, " and ",
                         plan.ranges.size(), " in all; plan again");
    }
    int32_t at = 0;
    for (int64_t i = begin; i < end; ++i) {
      const SplitRange& range = plan.ranges[i];
      if (range.begin_tile != at || range.end_tile < at) {
        return check.Stale("the plan has tiles ", range.begin_tile, " to ", range.end_tile,
                           " in split ", i - begin, " of request ", b, ", which begins at ", at,
                           "; plan again");
      }
      at = range.end_tile;
    }
  }
  const HostArray<int32_t> readable(args.seq_lens);
  if (!readable.readable()) return true;
  // A plan of all keys serves layers with a window, too.
  KvGroupKey type = plan.type;
  type.block_size = block_size;
  if (type.window != 0) type.window = args.params.window_left + 1;
  std::vector<int32_t> lengths(static_cast<size_t>(requests));
  for (int64_t b = 0; b < requests; ++b) lengths[b] = readable[b];
  return check.Take(CheckPlanFits("PagedDecode", plan, type, lengths));
}

// Where the keys of each request begin by their lengths; empty if the host cannot read these.
std::vector<int32_t> StartsOf(ArgChecker& check, const ConstTensorView& kv_seq_lens,
                              int64_t num_keys) {
  const HostArray<int32_t> lengths(kv_seq_lens);
  std::vector<int32_t> starts;
  if (!check.ok() || !lengths.readable()) return starts;
  int64_t sum = 0;
  starts.push_back(0);
  for (int64_t b = 0; b < lengths.size(); ++b) {
    if (lengths[b] < 0) check.Invalid("kv_seq_lens[", b, "] is ", lengths[b], "; at least 0");
    sum += lengths[b];
    starts.push_back(static_cast<int32_t>(std::min<int64_t>(sum, INT32_MAX)));
  }
  if (sum != num_keys) {
    check.Invalid("kv_seq_lens add up to ", sum, "; they must be Tk = ", num_keys);
  }
  return starts;
}

}  // namespace

absl::Status Check(const ExecContext& context, const PagedDecodeArgs& args) {
  ArgChecker check(context, "PagedDecode");
  Decode decode;
  if (!CheckDecodeInputs(check, args, &decode)) return check.status();
  Dim value{"Dv", args.cache.value_dim(), "the cache"};
  check.Out("out", args.out, kComputeTypes, {&decode.requests, &decode.heads, &value});
  check.OutIf("lse", args.lse, DType::kF32, {&decode.requests, &decode.heads});
  check.Aligned("out", args.out);
  CheckPlan(check, args, args.cache.block_size());
  return check.Finish();
}

absl::Status Check(const ExecContext& context, const PagedDecodePartialArgs& args) {
  ArgChecker check(context, "PagedDecodePartial");
  Decode decode;
  if (!CheckDecodeInputs(check, args, &decode)) return check.status();
  if (args.partition_tokens < 1 || args.partition_tokens % args.cache.block_size() != 0) {
    check.Invalid("partition_tokens is ", args.partition_tokens,
                  "; a positive multiple of the block size ", args.cache.block_size());
    return check.status();
  }
  const int64_t parts =
      args.max_seq_len / args.partition_tokens + (args.max_seq_len % args.partition_tokens != 0);
  Dim partitions{"P"}, value{"Dv", args.cache.value_dim(), "the cache"};
  check.Out("max_logits", args.max_logits, DType::kF32,
            {&decode.requests, &decode.heads, &partitions});
  check.Out("exp_sums", args.exp_sums, DType::kF32, {&decode.requests, &decode.heads, &partitions});
  check.Out("tmp_out", args.tmp_out, DType::kF32,
            {&decode.requests, &decode.heads, &partitions, &value});
  check.Aligned("tmp_out", args.tmp_out);
  if (!check.ok()) return check.status();
  if (partitions.size < parts) {
    check.TooSmall("max_logits has P = ", partitions.size, " partitions; ", args.max_seq_len,
                   " tokens take ", parts);
  } else if (partitions.size > parts) {
    check.Invalid("max_logits has P = ", partitions.size, " partitions; ", args.max_seq_len,
                  " tokens take ", parts, " exactly");
  }
  return check.Finish();
}

absl::Status Check(const ExecContext& context, const PagedPrefillArgs& args) {
  ArgChecker check(context, "PagedPrefill");
  BatchLengths batch;
  if (!CheckPrefill(check, args, &batch)) return check.status();
  return check.Finish();
}

absl::Status Check(const ExecContext& context, const CascadeArgs& args) {
  ArgChecker check(context, "Cascade");
  BatchLengths batch;
  if (!CheckPrefill(check, args.prefill, &batch)) return check.status();
  CheckPrefix(check, args, batch);
  return check.Finish();
}

absl::Status Check(const ExecContext& context, const VarlenSelfAttentionArgs& args) {
  ArgChecker check(context, "VarlenSelfAttention");
  Dim tokens{"T"}, heads{"H"}, kv_heads{"Hkv"}, keys{"Tk"}, key{"D"}, value{"Dv"};
  Dim starts{"R + 1"}, requests{"R"};
  check.In("q", args.q, kAttendedTypes, {&tokens, &heads, &key});
  check.In("k", args.k, kAttendedTypes, {&keys, &kv_heads, &key});
  check.In("v", args.v, kAttendedTypes, {&keys, &kv_heads, &value});
  check.In("query_start_loc", args.query_start_loc, DType::kI32, {&starts});
  check.InIf("kv_start_loc", args.kv_start_loc, DType::kI32, {&starts});
  check.InIf("query_positions", args.query_positions, DType::kI32, {&tokens});
  CheckOutScale(check, args.out_scale);
  check.Out("out", args.out, OutTypes(args.out_scale), {&tokens, &heads, &value});
  check.OutIf("lse", args.lse, DType::kF32, {&tokens, &heads});
  CheckGroups(check, heads.size, kv_heads.size);
  check.Aligned("q", args.q);
  check.Aligned("k", args.k);
  check.Aligned("v", args.v);
  check.Aligned("out", args.out);
  if (!check.ok()) return check.status();
  if (starts.size < 1) check.Invalid("query_start_loc is empty; it must have R + 1 elements");
  requests.size = starts.size - 1, requests.from = "query_start_loc, one less";
  check.InIf("kv_seq_lens", args.kv_seq_lens, DType::kI32, {&requests});
  if (!args.kv_start_loc.absent() && !args.kv_seq_lens.absent()) {
    check.Invalid("kv_start_loc and kv_seq_lens are given; give one");
  }
  if (key.size < 1 || value.size < 1) {
    check.Invalid("k and v have ", key.size, " and ", value.size, " values per head; at least 1");
  }
  const bool same_starts = args.kv_start_loc.absent() && args.kv_seq_lens.absent();
  if (same_starts && keys.size != tokens.size) {
    check.Invalid("k has ", keys.size, " tokens and q ", tokens.size,
                  "; give kv_start_loc, kv_seq_lens or as many");
  }
  const KvScales& scales = args.params.scales;
  const bool codes = args.k.dtype == DType::kF8E4M3;
  if (codes != (args.v.dtype == DType::kF8E4M3)) {
    check.Invalid("k is ", Name(args.k.dtype), " and v ", Name(args.v.dtype),
                  "; give both in e4m3 or neither");
  }
  if (!codes && (!scales.k.absent() || !scales.v.absent())) {
    check.Invalid("params.scales is given; k and v are ", Name(args.k.dtype), " and take none");
  }
  CheckScale(check, "scales.k", scales.k, args.k.dtype, kv_heads.size, requests.size);
  CheckScale(check, "scales.v", scales.v, args.v.dtype, kv_heads.size, requests.size);
  CheckQueryScale(check, scales.q, args.q, kv_heads.size);
  if (!check.ok()) return check.status();
  BatchLengths batch;
  batch.num_requests = requests.size;
  batch.num_tokens = tokens.size;
  batch.num_heads = heads.size;
  batch.query_start_loc = HostArray<int32_t>(args.query_start_loc);
  batch.kv_start_loc = HostArray<int32_t>(same_starts ? args.query_start_loc : args.kv_start_loc);
  const std::vector<int32_t> sums = StartsOf(check, args.kv_seq_lens, keys.size);
  if (!sums.empty()) batch.kv_start_loc = HostArray<int32_t>(ViewOf(absl::MakeConstSpan(sums)));
  batch.query_positions = HostArray<int32_t>(args.query_positions);
  CheckStarts(check, "query_start_loc", batch.query_start_loc, "T", tokens.size);
  CheckStarts(check, "kv_start_loc", batch.kv_start_loc, "Tk", keys.size);
  if (!check.ok() || !CheckParams(check, args.params, batch, /*block_size=*/0) ||
      !CheckLengths(check, args.params, batch)) {
    return check.status();
  }
  return check.Finish();
}

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
