// Checks of the operations that write the cache, read it row by row, or move rows for CacheBlend.

#include <algorithm>
#include <cmath>
#include <vector>

#include "attention/ops/batch_checks.h"
#include "kvblocks/attention_ops.h"

namespace kvblocks::attention {

namespace {

constexpr DTypeSet kSourceTypes = kComputeTypes | kCodeTypes;

// Values stored as they are, or converted: to floats, or to codes.
bool CheckConversion(ArgChecker& check, const char* name, const ConstTensorView& from, DType to) {
  if (!check.ok()) return false;
  return from.dtype == to || kComputeTypes.contains(from.dtype) ||
         check.Invalid(name, " is ", Name(from.dtype), " and the cache ", Name(to),
                       "; codes are stored in caches of their own type only");
}

bool CheckCacheWrite(ArgChecker& check, const ReshapeAndCacheArgs& args) {
  const ConstKvCacheView& cache = args.cache;
  if (!CheckCache(check, {}, cache, CacheFamily::kHeads, /*written=*/true)) return false;
  Dim tokens{"T"}, heads{"Hkv", cache.num_kv_heads(), "the cache"}, slots{"n"};
  Dim key{"D", cache.key_dim(), "the cache"}, value{"Dv", cache.value_dim(), "the cache"};
  check.In("k", args.k, kSourceTypes, {&tokens, &heads, &key});
  check.In("v", args.v, kSourceTypes, {&tokens, &heads, &value});
  check.In("slot_mapping", args.slot_mapping, DType::kI64, {&slots});
  if (!check.ok()) return false;
  CheckSlotCount(check, slots, tokens, "k");
  // Formats with scales of their own make codes and scales from values.
  const bool values_only = cache.format != KvRowFormat::kElements;
  CheckConversion(check, "k", args.k, values_only ? DType::kU8 : cache.k.dtype);
  CheckConversion(check, "v", args.v, values_only ? DType::kU8 : cache.k.dtype);
  CheckScales(check, args.scales, cache, /*num_requests=*/-1);
  check.Aligned("k", args.k);
  check.Aligned("v", args.v);
  return CheckSlots(check, args.slot_mapping, cache.num_blocks(), cache.block_size());
}

bool CheckComputedScales(ArgChecker& check, const ComputeKvScalesArgs& args) {
  Dim query_tokens{"T"}, tokens{"T"}, query_heads{"H"}, heads{"Hkv"}, key{"D"}, value{"Dv"};
  check.InIf("q", args.q, kComputeTypes, {&query_tokens, &query_heads, &key});
  check.In("k", args.k, kComputeTypes, {&tokens, &heads, &key});
  check.In("v", args.v, kComputeTypes, {&tokens, &heads, &value});
  check.Positive("q_divisor", args.q_divisor);
  check.Positive("k_divisor", args.k_divisor);
  check.Positive("v_divisor", args.v_divisor);
  if (!check.ok()) return false;
  if (args.q.absent() != args.q_scale.absent()) {
    check.Invalid("q and q_scale go together; give both or neither");
  }
  struct Output {
    const char* name;
    const TensorView& view;
    bool per_head;
  };
  for (const Output& out :
       {Output{"q_scale", args.q_scale, false}, Output{"k_scale", args.k_scale, true},
        Output{"v_scale", args.v_scale, true}}) {
    if (!check.ok()) return false;
    if (out.view.absent() && !out.per_head) continue;
    if (!check.View(out.name, out.view, DType::kF32)) return false;
    const bool one = out.view.rank <= 1 && out.view.num_elements() == 1;
    if (!one && !(out.per_head && out.view.rank == 1 && out.view.extent[0] == heads.size)) {
      return check.Invalid(out.name, " is ", out.view.DebugString(), "; one element",
                           out.per_head ? " or [Hkv]" : "");
    }
    check.Writes(out.name, out.view);
  }
  return check.ok();
}

}  // namespace

bool CheckSlotCount(ArgChecker& check, const Dim& slots, const Dim& tokens, const char* name) {
  if (!check.ok()) return false;
  return slots.size <= tokens.size ||
         check.Invalid("slot_mapping has ", slots.size, " slots for the T = ", tokens.size,
                       " tokens of ", name);
}

bool CheckSlots(ArgChecker& check, const ConstTensorView& slot_mapping, int64_t num_blocks,
                int64_t block_size) {
  if (!check.ok()) return false;
  const HostArray<int64_t> slots(slot_mapping);
  if (!slots.readable()) return true;
  const int64_t num_slots = num_blocks * block_size;
  const auto twice = [&](int64_t slot) {
    return check.Invalid("slot_mapping has ", slot, " twice; tokens need slots of their own");
  };
  bool ascending = true;
  int64_t last = -1;
  for (int64_t i = 0; i < slots.size(); ++i) {
    const int64_t slot = slots[i];
    if (slot >= num_slots) {
      return check.OutOfRange("slot_mapping[", i, "] is ", slot, "; below ", num_slots, " = ",
                              num_blocks, " blocks of ", block_size);
    }
    if (slot < 0) continue;
    // Found before anything is copied: a broadcast slot may stand for any number of tokens.
    if (slot == last) return twice(slot);
    ascending = ascending && slot > last;
    last = slot;
  }
  if (ascending) return true;
  std::vector<int64_t> sorted;
  sorted.reserve(slots.size());
  for (int64_t i = 0; i < slots.size(); ++i) {
    if (slots[i] >= 0) sorted.push_back(slots[i]);
  }
  std::sort(sorted.begin(), sorted.end());
  const auto same = std::adjacent_find(sorted.begin(), sorted.end());
  return same == sorted.end() || twice(*same);
}

absl::Status Check(const ExecContext& context, const ReshapeAndCacheArgs& args) {
  ArgChecker check(context, "ReshapeAndCache");
  return CheckCacheWrite(check, args) ? check.Finish() : check.status();
}

absl::Status Check(const ExecContext& context, const ConcatAndCacheMlaArgs& args) {
  ArgChecker check(context, "ConcatAndCacheMla");
  const ConstKvCacheView& cache = args.cache;
  if (!CheckCache(check, {}, cache, CacheFamily::kMla, /*written=*/true)) return check.status();
  const bool planar = args.cache.layout == KvLayout::kMlaFp8_584;
  const bool record = IsMlaRecord(args.cache.format);
  const bool tiled = planar || args.cache.layout == KvLayout::kMlaFp8_656 || record;
  Dim tokens{"T"}, slots{"n"};
  Dim compressed{"R_kv", CompressedValues(args.cache), "the cache"};
  Dim rotary{"R_pe", cache.key_dim() - compressed.size, "the cache"};
  const DTypeSet types = tiled ? kComputeTypes : kSourceTypes;
  check.In("kv_c", args.kv_c, types, {&tokens, &compressed});
  check.In("k_pe", args.k_pe, types, {&tokens, &rotary});
  check.In("slot_mapping", args.slot_mapping, DType::kI64, {&slots});
  if (!check.ok()) return check.status();
  CheckSlotCount(check, slots, tokens, "kv_c");
  if (!tiled) {
    CheckConversion(check, "kv_c", args.kv_c, cache.k.dtype);
    CheckConversion(check, "k_pe", args.k_pe, cache.k.dtype);
  }
  CheckScale(check, "scale", args.scale, cache.k.dtype, /*num_kv_heads=*/1, /*num_requests=*/-1);
  check.Aligned("kv_c", args.kv_c);
  check.Aligned("k_pe", args.k_pe);
  CheckSlots(check, args.slot_mapping, cache.num_blocks(), cache.block_size());
  return check.Finish();
}

absl::Status Check(const ExecContext& context, const ComputeKvScalesArgs& args) {
  ArgChecker check(context, "ComputeKvScales");
  return CheckComputedScales(check, args) ? check.Finish() : check.status();
}

absl::Status Check(const ExecContext& context, const ScaleAndCacheArgs& args) {
  ArgChecker check(context, "ScaleAndCache");
  ReshapeAndCacheArgs write = args.write();
  write.scales = {};  // their values are still to come
  if (!CheckComputedScales(check, args.scales) || !CheckCacheWrite(check, write)) {
    return check.status();
  }
  if (!args.cache.takes_scale() || args.cache.format != KvRowFormat::kElements) {
    check.Invalid("the cache is ", Name(args.cache.k.dtype), " of ", Name(args.cache.format),
                  ", which takes no scales; call ReshapeAndCache");
  }
  return check.Finish();
}

absl::Status Check(const ExecContext& context, const QuantizeQueriesArgs& args) {
  ArgChecker check(context, "QuantizeQueries");
  Dim tokens{"T"}, heads{"H"}, dim{"D"};
  check.In("q", args.q, kComputeTypes, {&tokens, &heads, &dim});
  check.Out("codes", args.codes, DType::kF8E4M3, {&tokens, &heads, &dim});
  CheckScale(check, "scale", args.scale, DType::kF8E4M3, /*num_kv_heads=*/1, /*num_requests=*/-1);
  check.Aligned("q", args.q);
  check.Aligned("codes", args.codes);
  return check.Finish();
}

absl::Status Check(const ExecContext& context, const GatherCacheArgs& args) {
  ArgChecker check(context, "GatherCache");
  const ConstKvCacheView& cache = args.cache;
  if (!CheckCache(check, {}, cache, CacheFamily::kAny, /*written=*/false)) return check.status();
  Dim requests{"R"}, columns{"columns"}, rows{"M"};
  Dim heads{"Hkv", cache.num_kv_heads(), "the cache"};
  Dim key{"D", cache.key_dim(), "the cache"}, value{"Dv", cache.value_dim(), "the cache"};
  check.In("block_table", args.block_table, DType::kI32, {&requests, &columns});
  check.In("seq_lens", args.seq_lens, DType::kI32, {&requests});
  check.In("lengths", args.lengths, DType::kI32, {&requests});
  if (IsMla(cache.layout)) {
    check.Out("out", args.out, kComputeTypes, {&requests, &rows, &key});
    if (!args.out_v.absent()) check.Invalid("out_v is given; a latent row has no V of its own");
  } else {
    check.Out("out", args.out, kComputeTypes, {&requests, &rows, &heads, &key});
    check.Out("out_v", args.out_v, kComputeTypes, {&requests, &rows, &heads, &value});
  }
  check.AtLeast("row_offset", args.row_offset, 0);
  CheckScales(check, args.scales, cache, requests.size);
  check.Aligned("out", args.out);
  check.Aligned("out_v", args.out_v);
  if (!check.ok()) return check.status();
  if (args.row_offset > rows.size) {
    check.TooSmall("out has M = ", rows.size, " rows; row_offset is ", args.row_offset);
  }
  const HostArray<int32_t> seq_lens(args.seq_lens), lengths(args.lengths);
  for (int64_t b = 0; check.ok() && b < requests.size; ++b) {
    if (seq_lens.readable() && seq_lens[b] < 0) {
      check.Invalid("seq_lens[", b, "] is ", seq_lens[b], "; at least 0");
    } else if (lengths.readable() &&
               (lengths[b] < 0 || (seq_lens.readable() && lengths[b] > seq_lens[b]))) {
      check.Invalid("lengths[", b, "] is ", lengths[b], "; 0 to the length of the request");
    } else if (lengths.readable() && lengths[b] > rows.size - args.row_offset) {
      check.TooSmall("out has M = ", rows.size, " rows; request ", b, " needs ",
                     args.row_offset + lengths[b]);
    } else if (seq_lens.readable() &&
               CheckColumns(check, args.block_table, b, seq_lens[b], cache.block_size()) &&
               lengths.readable()) {
      CheckTableRow(check, args.block_table, b, seq_lens[b] - lengths[b], seq_lens[b],
                    cache.num_blocks(), cache.block_size());
    }
  }
  return check.Finish();
}

absl::Status Check(const ExecContext& context, const SelectHkvdArgs& args) {
  ArgChecker check(context, "SelectHkvd");
  Dim tokens{"n"}, heads{"Hkv"}, value{"D"}, selected{"k + suffix_len"};
  check.In("v_new", args.v_new, kComputeTypes, {&tokens, &heads, &value});
  check.In("v_old", args.v_old, kComputeTypes, {&tokens, &heads, &value});
  check.Out("imp", args.imp, DType::kI32, {&selected});
  if (!check.ok()) return check.status();
  if (!(args.ratio >= 0 && args.ratio <= 1)) {
    check.Invalid("ratio is ", args.ratio, "; 0 to 1");
  }
  check.AtLeast("suffix_len", args.suffix_len, 1);
  if (!check.ok() || tokens.size == 0) return check.Finish();
  if (args.suffix_len > tokens.size) {
    check.Invalid("suffix_len is ", args.suffix_len, "; at most n = ", tokens.size);
    return check.status();
  }
  Dim prefix{"n - suffix_len", tokens.size - args.suffix_len, "v_new"};
  check.OutIf("diffs", args.diffs, DType::kF32, {&prefix});
  const int64_t k =
      static_cast<int64_t>(std::floor(args.ratio * static_cast<double>(prefix.size) + 1e-6));
  if (check.ok() && selected.size < k + args.suffix_len) {
    check.TooSmall("imp has ", selected.size, " elements; ", k, " selected and the suffix of ",
                   args.suffix_len, " take ", k + args.suffix_len);
  }
  return check.Finish();
}

absl::Status Check(const ExecContext& context, const FuseKvArgs& args) {
  ArgChecker check(context, "FuseKv");
  Dim tokens{"n"}, rows{"M"}, heads{"Hkv"}, key{"D"}, value{"Dv"};
  check.In("imp", args.imp, DType::kI32, {&rows});
  check.Out("k_old", args.k_old, kComputeTypes, {&tokens, &heads, &key});
  check.Out("v_old", args.v_old, kComputeTypes, {&tokens, &heads, &value});
  if (!check.ok()) return check.status();
  check.In("k_new", args.k_new, args.k_old.dtype, {&rows, &heads, &key});
  check.In("v_new", args.v_new, args.v_old.dtype, {&rows, &heads, &value});
  if (!check.ok()) return check.status();
  const HostArray<int32_t> imp(args.imp);
  if (!imp.readable()) return check.Finish();
  const auto twice = [&](int32_t row) {
    check.Invalid("imp has ", row, " twice; rows are replaced once");
    return check.status();
  };
  for (int64_t r = 0; r < imp.size(); ++r) {
    if (imp[r] < 0 || imp[r] >= tokens.size) {
      check.OutOfRange("imp[", r, "] is ", imp[r], "; 0 to below n = ", tokens.size);
      return check.status();
    }
    // Found before anything is copied: a broadcast row may be given any number of times.
    if (r > 0 && imp[r] == imp[r - 1]) return twice(imp[r]);
  }
  std::vector<int32_t> sorted(imp.size());
  for (int64_t r = 0; r < imp.size(); ++r) sorted[r] = imp[r];
  std::sort(sorted.begin(), sorted.end());
  const auto same = std::adjacent_find(sorted.begin(), sorted.end());
  if (same != sorted.end()) return twice(*same);
  return check.Finish();
}

absl::Status Check(const ExecContext& context, const GatherRowsArgs& args) {
  ArgChecker check(context, "GatherRows");
  Dim rows{"M"};
  check.View("in", args.in, DTypeSet::All());
  check.In("index", args.index, DType::kI32, {&rows});
  if (!check.ok() || !check.View("out", args.out, args.in.dtype)) return check.status();
  check.Reads("in", args.in);
  check.Writes("out", args.out);
  if (args.in.rank < 1 || args.in.rank > 3 || args.out.rank != args.in.rank) {
    check.Invalid("in is ", args.in.DebugString(), ", out ", args.out.DebugString(),
                  "; both of rank 1, 2 or 3");
    return check.status();
  }
  if (args.out.extent[0] != rows.size) {
    check.Invalid("out has ", args.out.extent[0], " rows; index has M = ", rows.size);
  }
  for (int dim = 1; dim < args.in.rank; ++dim) {
    if (args.out.extent[dim] == args.in.extent[dim]) continue;
    check.Invalid("out is ", args.out.DebugString(), "; its rows must be those of in, ",
                  args.in.DebugString());
  }
  const HostArray<int32_t> index(args.index);
  if (!check.ok() || !index.readable()) return check.Finish();
  for (int64_t r = 0; r < index.size(); ++r) {
    if (index[r] >= 0 && index[r] < args.in.extent[0]) continue;
    check.OutOfRange("index[", r, "] is ", index[r], "; 0 to below n = ", args.in.extent[0]);
    return check.status();
  }
  return check.Finish();
}

absl::Status Check(const ExecContext& context, const RotateKeysArgs& args) {
  ArgChecker check(context, "RotateKeys");
  Dim tokens{"n"}, heads{"Hkv"}, key{"D"};
  constexpr DTypeSet kPositions = {DType::kI32, DType::kI64};
  check.In("in", args.in, kComputeTypes, {&tokens, &heads, &key});
  if (check.ok() && args.out.data == args.in.data && args.out.dtype == args.in.dtype &&
      args.out.stride == args.in.stride) {
    check.AllowOverlapOfLast();  // in place
  }
  check.In("positions", args.positions, kPositions, {&tokens});
  check.InIf("from_positions", args.from_positions, kPositions, {&tokens});
  check.Out("out", args.out, kComputeTypes, {&tokens, &heads, &key});
  check.Positive("theta", args.theta);
  if (static_cast<int>(args.pairs) > static_cast<int>(RotaryPairs::kInterleaved)) {
    check.Invalid("pairs is number ", static_cast<int>(args.pairs));
  }
  if (!check.ok()) return check.status();
  const int64_t columns = args.rotary_dim == 0 ? key.size : args.rotary_dim;
  if (columns < 0 || columns > key.size || columns % 2 != 0) {
    check.Invalid("rotary_dim is ", args.rotary_dim, " of D = ", key.size,
                  " columns; even, at most D, or 0 for an even D");
  }
  check.Aligned("in", args.in);
  check.Aligned("out", args.out);
  return check.Finish();
}

}  // namespace kvblocks::attention
