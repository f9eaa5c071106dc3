// Checks of the operations that write the cache or read it row by row.

#include <algorithm>
#include <vector>

#include "kvblocks/attention/ops/batch_checks.h"
#include "kvblocks/attention/ops/checks.h"

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
  CacheGeometry cache;
  if (!CheckCache(check, {}, args.cache, CacheFamily::kHeads, /*written=*/true, &cache)) {
    return false;
  }
  Dim tokens{"T"}, heads{"Hkv", cache.num_kv_heads, "the cache"}, slots{"n"};
  Dim key{"D", cache.key_dim, "the cache"}, value{"Dv", cache.value_dim, "the cache"};
  check.In("k", args.k, kSourceTypes, {&tokens, &heads, &key});
  check.In("v", args.v, kSourceTypes, {&tokens, &heads, &value});
  check.In("slot_mapping", args.slot_mapping, DType::kI64, {&slots});
  if (!check.ok()) return false;
  if (slots.size > tokens.size) {
    check.Invalid("slot_mapping has ", slots.size, " slots for the T = ", tokens.size,
                  " tokens of k");
  }
  // Formats with scales of their own make codes and scales from values.
  const bool values_only = cache.format != KvRowFormat::kElements;
  CheckConversion(check, "k", args.k, values_only ? DType::kU8 : cache.dtype);
  CheckConversion(check, "v", args.v, values_only ? DType::kU8 : cache.dtype);
  CheckScales(check, args.scales, cache, /*num_requests=*/-1);
  check.Aligned("k", args.k);
  check.Aligned("v", args.v);
  return CheckSlots(check, args.slot_mapping, cache);
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

bool CheckSlots(ArgChecker& check, const ConstTensorView& slot_mapping,
                const CacheGeometry& cache) {
  if (!check.ok()) return false;
  const HostArray<int64_t> slots(slot_mapping);
  if (!slots.readable()) return true;
  const int64_t num_slots = cache.num_blocks * cache.block_size;
  const auto twice = [&](int64_t slot) {
    return check.Invalid("slot_mapping has ", slot, " twice; tokens need slots of their own");
  };
  bool ascending = true;
  int64_t last = -1;
  for (int64_t i = 0; i < slots.size(); ++i) {
    const int64_t slot = slots[i];
    if (slot >= num_slots) {
      return check.OutOfRange("slot_mapping[", i, "] is ", slot, "; below ", num_slots, " = ",
                              cache.num_blocks, " blocks of ", cache.block_size);
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
  CacheGeometry cache;
  if (!CheckCache(check, {}, args.cache, CacheFamily::kMla, /*written=*/true, &cache)) {
    return check.status();
  }
  const bool planar = args.cache.layout == KvLayout::kMlaFp8_584;
  const bool record = IsMlaRecord(args.cache.format);
  const bool tiled = planar || args.cache.layout == KvLayout::kMlaFp8_656 || record;
  Dim tokens{"T"}, slots{"n"};
  Dim compressed{"R_kv", CompressedValues(args.cache), "the cache"};
  Dim rotary{"R_pe", cache.key_dim - compressed.size, "the cache"};
  const DTypeSet types = tiled ? kComputeTypes : kSourceTypes;
  check.In("kv_c", args.kv_c, types, {&tokens, &compressed});
  check.In("k_pe", args.k_pe, types, {&tokens, &rotary});
  check.In("slot_mapping", args.slot_mapping, DType::kI64, {&slots});
  if (!check.ok()) return check.status();
  if (slots.size > tokens.size) {
    check.Invalid("slot_mapping has ", slots.size, " slots for the T = ", tokens.size,
                  " tokens of kv_c");
  }
  if (!tiled) {
    CheckConversion(check, "kv_c", args.kv_c, cache.dtype);
    CheckConversion(check, "k_pe", args.k_pe, cache.dtype);
  }
  CheckScale(check, "scale", args.scale, cache.dtype, /*num_kv_heads=*/1, /*num_requests=*/-1);
  check.Aligned("kv_c", args.kv_c);
  check.Aligned("k_pe", args.k_pe);
  CheckSlots(check, args.slot_mapping, cache);
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
  CacheGeometry cache;
  if (!CheckCache(check, {}, args.cache, CacheFamily::kAny, /*written=*/false, &cache)) {
    return check.status();
  }
  Dim requests{"R"}, columns{"columns"}, rows{"M"};
  Dim heads{"Hkv", cache.num_kv_heads, "the cache"};
  Dim key{"D", cache.key_dim, "the cache"}, value{"Dv", cache.value_dim, "the cache"};
  check.In("block_table", args.block_table, DType::kI32, {&requests, &columns});
  check.In("seq_lens", args.seq_lens, DType::kI32, {&requests});
  check.In("lengths", args.lengths, DType::kI32, {&requests});
  if (cache.mla) {
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
               CheckColumns(check, args.block_table, b, seq_lens[b], cache.block_size) &&
               lengths.readable()) {
      CheckTableRow(check, args.block_table, b, seq_lens[b] - lengths[b], seq_lens[b],
                    cache.num_blocks, cache.block_size);
    }
  }
  return check.Finish();
}

}  // namespace kvblocks::attention
