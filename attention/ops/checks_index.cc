// Checks of the operations that choose and compress rows.

#include <algorithm>

#include "kvblocks/attention/ops/batch_checks.h"
#include "kvblocks/attention/ops/checks.h"

namespace kvblocks::attention {
namespace {

// Far more than any model has; keeps products of positions and sizes within int64.
constexpr int64_t kMostTokensPerRow = 1 << 20;

bool CheckRatio(ArgChecker& check, int64_t ratio) {
  if (!check.ok()) return false;
  return (ratio >= 1 && ratio <= kMostTokensPerRow) ||
         check.Invalid("ratio is ", ratio, "; 1 to ", kMostTokensPerRow, " tokens per row");
}

// `dim`: the values of a row.
bool CheckIndexCache(ArgChecker& check, const ConstIndexCacheView& cache, Dim* dim, bool written,
                     CacheGeometry* geometry) {
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
  geometry->num_blocks = blocks.size;
  geometry->block_size = rows.size;
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

bool CheckSlotCount(ArgChecker& check, const Dim& slots, const Dim& tokens, const char* name) {
  if (!check.ok()) return false;
  return slots.size <= tokens.size ||
         check.Invalid("slot_mapping has ", slots.size, " slots for the T = ", tokens.size,
                       " tokens of ", name);
}

}  // namespace

absl::Status Check(const ExecContext& context, const CacheIndexKeysArgs& args) {
  ArgChecker check(context, "CacheIndexKeys");
  Dim tokens{"T"}, dim{"Di"}, slots{"n"};
  CacheGeometry cache;
  check.In("k", args.k, kComputeTypes, {&tokens, &dim});
  check.In("slot_mapping", args.slot_mapping, DType::kI64, {&slots});
  if (!check.ok() || !CheckIndexCache(check, args.cache, &dim, /*written=*/true, &cache) ||
      !CheckSlotCount(check, slots, tokens, "k")) {
    return check.status();
  }
  check.Aligned("k", args.k);
  CheckSlots(check, args.slot_mapping, cache);
  return check.Finish();
}

absl::Status Check(const ExecContext& context, const IndexTopkArgs& args) {
  ArgChecker check(context, "IndexTopk");
  Dim tokens{"T"}, heads{"Hi"}, dim{"Di"}, requests{"R"}, chosen{"K"};
  CacheGeometry cache;
  BatchLengths batch;
  check.In("q", args.q, kComputeTypes | DTypeSet(DType::kF8E4M3), {&tokens, &heads, &dim});
  check.In("weights", args.weights, DType::kF32, {&tokens, &heads});
  if (!check.ok() || !CheckIndexCache(check, args.cache, &dim, /*written=*/false, &cache) ||
      !CheckRatio(check, args.ratio) || !CheckBatch(check, args, tokens, &requests, &batch)) {
    return check.status();
  }
  check.Out("indices", args.indices, DType::kI32, {&tokens, &chosen});
  check.Out("lens", args.lens, DType::kI32, {&tokens});
  check.AtLeast("max_seq_len", args.max_seq_len, 0);
  check.Aligned("q", args.q);
  if (!check.ok()) return check.status();
  if (args.as_slots && cache.num_blocks > INT32_MAX / cache.block_size) {
    check.Invalid("cache has ", cache.num_blocks, " blocks of ", cache.block_size,
                  " rows; slots are int32");
  }
  for (int64_t b = 0; check.ok() && batch.seq_lens.readable() && b < requests.size; ++b) {
    const int64_t length = batch.seq_lens[b], rows = length / args.ratio;
    if (length > args.max_seq_len) {
      check.Invalid("max_seq_len is ", args.max_seq_len, ", below seq_lens[", b, "] = ", length);
    } else if (batch.query_len(b) > 0 &&
               CheckColumns(check, args.block_table, b, rows, cache.block_size)) {
      CheckTableRow(check, args.block_table, b, 0, rows, cache.num_blocks, cache.block_size);
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
  CheckSlots(check, args.slot_mapping, {.num_blocks = blocks.size, .block_size = rows.size});
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
