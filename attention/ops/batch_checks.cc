#include "attention/ops/batch_checks.h"

#include <algorithm>
#include <cmath>
#include <utility>

#include "absl/container/inlined_vector.h"

namespace kvblocks::attention {
namespace {

constexpr DTypeSet kCacheTypes = kComputeTypes | kCodeTypes;

// Element (i, j) of a checked float32 or int32 view on the host.
template <typename T, typename... Index>
T Read(const ConstTensorView& view, Index... index) {
  T value;
  std::memcpy(&value, view.At(index...), sizeof(T));
  return value;
}

// All bytes between the first and the last of a cache's views.
ConstTensorView Hull(absl::Span<const ConstTensorView> views) {
  const std::byte* first = views[0].data;
  const std::byte* last = first;
  for (const ConstTensorView& view : views) {
    first = std::min(first, view.data);
    last = std::max(last, view.data + *view.SpanBytes());
  }
  return ConstTensorView::Contiguous(first, DType::kU8, {last - first}, views[0].device);
}

// Views of a cache that is written: all outputs, but for a v that lies within k. Where blocks may
// share memory, only what lies in one block must not overlap.
void RememberCache(ArgChecker& check, const CacheNames& names, const ConstKvCacheView& cache,
                   bool written, bool has_v) {
  absl::InlinedVector<std::pair<const char*, ConstTensorView>, 4> all = {{names.k, cache.k}};
  if (has_v) all.emplace_back(names.v, cache.v);
  if (!cache.k_scales.absent()) {
    all.emplace_back(names.k_scales, cache.k_scales);
    all.emplace_back(names.v_scales, cache.v_scales);
  }
  if (!written) {
    for (const auto& [name, view] : all) check.Reads(name, view);
    return;
  }
  if (!cache.overlapping_blocks || !check.ok()) {
    for (const auto& [name, view] : all) check.Writes(name, view);
    return;
  }
  absl::InlinedVector<ConstTensorView, 4> views;
  for (const auto& [name, view] : all) views.push_back(view);
  check.Writes(names.cache, Hull(views));
  bool overlap = false;
  for (size_t i = 0; i < views.size(); ++i) {
    views[i].extent[0] = std::min<int64_t>(views[i].extent[0], 1);
    overlap = overlap || MayOverlapItself(views[i]);
    for (size_t j = 0; j < i; ++j) overlap = overlap || MayOverlap(views[i], views[j]);
  }
  if (overlap) {
    check.Invalid(names.cache, " is ", views[0].DebugString(),
                  " per block, whose elements or K and V share memory; an output must not");
  }
}

bool CheckDims(ArgChecker& check, const char* name, const ConstKvCacheView& cache) {
  if (cache.block_size() < 1) {
    return check.Invalid(name, " has blocks of ", cache.block_size(), " tokens; at least 1");
  }
  if (cache.num_kv_heads() < 1 || cache.key_dim() < 1 || cache.value_dim() < 1) {
    return check.Invalid(name, " has ", cache.num_kv_heads(), " KV heads of ", cache.key_dim(),
                         " and ", cache.value_dim(), " values; at least 1 each");
  }
  int64_t slots;
  if (__builtin_mul_overflow(cache.num_blocks(), cache.block_size(), &slots)) {
    return check.Invalid(name, " has ", cache.num_blocks(), " blocks of ", cache.block_size(),
                         " tokens: more than 2^63 slots");
  }
  return true;
}

bool CheckRows(ArgChecker& check, const char* name, const ConstTensorView& k) {
  const int inner = k.rank - 1;
  if (k.extent[inner] > 1 && k.stride[inner] != 1) {
    return check.Invalid(name, " has stride ", k.stride[inner],
                         " between the bytes of a row; it must be 1");
  }
  return true;
}

// The views of kNhd and kHnd, whose second and third dimensions are given, and how many values
// their rows have.
bool CheckHeads(ArgChecker& check, const CacheNames& names, const ConstKvCacheView& cache,
                Dim* blocks, Dim* second, Dim* third, Dim* key, Dim* value) {
  const KvRowFormat format = cache.format;
  const bool own_scales = format != KvRowFormat::kElements;
  const bool packed = ValuesPerElement(format) > 1;
  const DTypeSet types = packed       ? DTypeSet(DType::kU8)
                         : own_scales ? DTypeSet({DType::kF8E4M3, DType::kI8})
                                      : kCacheTypes;
  Dim key_bytes{"D / 2"}, value_bytes{"Dv / 2"};
  const auto rows = [&](const char* name, const ConstTensorView& view, DTypeSet dtypes, Dim* dim) {
    check.Shape(name, view, dtypes, {blocks, second, third, dim});
    if (check.ok() && own_scales) CheckRows(check, name, view);
  };
  rows(names.k, cache.k, types, packed ? &key_bytes : key);
  if (check.ok()) rows(names.v, cache.v, cache.k.dtype, packed ? &value_bytes : value);
  if (!check.ok() || !own_scales) return check.ok();
  if (packed) {
    for (const auto& [bytes, dim] : {std::pair(&key_bytes, key), std::pair(&value_bytes, value)}) {
      if (__builtin_mul_overflow(bytes->size, 2, &dim->size)) {
        return check.Invalid(names.cache, " has rows of more than 2^63 values");
      }
    }
  }
  const auto scales = [&](const char* name, const ConstTensorView& view, int64_t values) {
    if (format == KvRowFormat::kNvfp4) {
      if (values % kNvfp4GroupValues != 0) {
        return check.Invalid(names.cache, " is nvfp4 with rows of ", values,
                             " values; a multiple of ", kNvfp4GroupValues);
      }
      Dim groups{"scales", values / kNvfp4GroupValues, "rows of 16 values per scale"};
      if (!check.Shape(name, view, DType::kF8E4M3, {blocks, second, third, &groups})) return false;
    } else if (!check.Shape(name, view, DType::kF32, {blocks, second, third})) {
      return false;
    }
    return format != KvRowFormat::kNvfp4 || CheckRows(check, name, view);
  };
  return scales(names.k_scales, cache.k_scales, key->size) &&
         scales(names.v_scales, cache.v_scales, value->size);
}

// That a cache without scales of its own has none, and that no other layout has a format.
bool CheckFormat(ArgChecker& check, const CacheNames& names, const ConstKvCacheView& cache) {
  if (static_cast<int>(cache.format) >= kNumKvRowFormats) {
    return check.Invalid(names.cache, " has format number ", static_cast<int>(cache.format));
  }
  if (cache.format == KvRowFormat::kElements || IsMlaRecord(cache.format)) {
    if (IsMlaRecord(cache.format) && cache.layout != KvLayout::kMlaLatent) {
      return check.Invalid(names.cache, " is ", Name(cache.layout), " of format ",
                           Name(cache.format), "; latent records are built for mla_latent");
    }
    return (cache.k_scales.absent() && cache.v_scales.absent()) ||
           check.Invalid(names.k_scales, " and ", names.v_scales,
                         " are for formats with scales beside the codes; set format, or leave them "
                         "absent");
  }
  return IsStrided(cache.layout) ||
         check.Invalid(names.cache, " is ", Name(cache.layout), " of format ", Name(cache.format),
                       "; vectors with scales of their own are built for nhd and hnd");
}

}  // namespace

bool CheckCache(ArgChecker& check, const CacheNames& names, const ConstKvCacheView& cache,
                CacheFamily family, bool written) {
  if (!check.ok()) return false;
  if (static_cast<int>(cache.layout) > static_cast<int>(KvLayout::kMlaFp8_584)) {
    return check.Invalid(names.cache, " has layout number ", static_cast<int>(cache.layout));
  }
  if (family != CacheFamily::kAny && IsMla(cache.layout) != (family == CacheFamily::kMla)) {
    return check.Invalid(names.cache, " has layout ", Name(cache.layout), "; ",
                         family == CacheFamily::kMla ? "an MLA layout" : "one with heads",
                         " is needed");
  }
  if (!CheckFormat(check, names, cache)) return false;
  Dim blocks{"NB"}, tokens{"BS"}, heads{"Hkv"}, key{"D"}, value{"Dv"}, pieces{"D/x"}, x{"x"};
  const ConstTensorView &k = cache.k, &v = cache.v;
  bool has_v = true;
  switch (cache.layout) {
    case KvLayout::kPagedX: {
      if (!check.View(names.k, k, kCacheTypes)) return false;
      x = {"x", 16 / ElementBytes(k.dtype), "16 bytes / element size"};
      if (!check.Shape(names.k, k, kCacheTypes, {&blocks, &heads, &pieces, &tokens, &x}))
        return false;
      if (!check.Shape(names.v, v, k.dtype, {&blocks, &heads, &value, &tokens})) return false;
      break;
    }
    case KvLayout::kNhd:
    case KvLayout::kHnd: {
      Dim* second = cache.layout == KvLayout::kNhd ? &tokens : &heads;
      Dim* third = cache.layout == KvLayout::kNhd ? &heads : &tokens;
      if (!CheckHeads(check, names, cache, &blocks, second, third, &key, &value)) return false;
      break;
    }
    case KvLayout::kMlaLatent:
      if (IsMlaRecord(cache.format)) {
        const MlaRecordShape shape = ShapeOf(cache.format);
        Dim bytes{"bytes of a record", shape.bytes, "the format"};
        if (!check.Shape(names.k, k, DType::kU8, {&blocks, &tokens, &bytes})) return false;
        if (!CheckRows(check, names.k, k)) return false;
        if (!v.absent()) {
          return check.Invalid(names.v, " is given; records of ", Name(cache.format),
                               " hold V, leave it absent");
        }
        has_v = false;
        break;
      }
      if (!check.Shape(names.k, k, kCacheTypes, {&blocks, &tokens, &key})) return false;
      if (!check.Shape(names.v, v, k.dtype, {&blocks, &tokens, &value})) return false;
      if (value.size > key.size) {
        return check.Invalid(names.v, " has rows of ", value.size, " values; at most the ",
                             key.size, " of ", names.k, ", whose first columns they are");
      }
      if (!k.empty() && !v.empty()) {
        bool same = k.data == v.data;
        for (int i = 0; i < 3; ++i) same = same && (v.extent[i] == 1 || v.stride[i] == k.stride[i]);
        if (!same) {
          return check.Invalid(names.v, " is not the first ", value.size, " columns of ", names.k,
                               "; take them by Slice");
        }
      }
      has_v = false;  // within k
      break;
    case KvLayout::kMlaSplit: {
      Dim compressed{"R_kv"}, rotary{"R_pe"};
      if (!check.Shape(names.k, k, kCacheTypes, {&blocks, &tokens, &compressed})) return false;
      if (!check.Shape(names.v, v, k.dtype, {&blocks, &tokens, &rotary})) return false;
      int64_t row;
      if (__builtin_add_overflow(compressed.size, rotary.size, &row)) {
        return check.Invalid(names.cache, " has rows of more than 2^63 values");
      }
      break;
    }
    case KvLayout::kMlaFp8_656: {
      Dim bytes{"656 bytes", 656, "the layout"};
      if (!check.Shape(names.k, k, DType::kU8, {&blocks, &tokens, &bytes})) return false;
      if (!CheckRows(check, names.k, k)) return false;
      has_v = false;
      break;
    }
    case KvLayout::kMlaFp8_584: {
      Dim bytes{"block bytes"};
      if (!check.Shape(names.k, k, DType::kU8, {&blocks, &bytes})) return false;
      if (!CheckRows(check, names.k, k)) return false;
      tokens.size = cache.planar_block_size;
      if (tokens.size < 1 || tokens.size > (INT64_MAX - 575) / 584) {
        return check.Invalid(names.cache, ".planar_block_size is ", tokens.size,
                             "; at least 1, at most ", (INT64_MAX - 575) / 584);
      }
      if (bytes.size < MlaFp8_584BlockBytes(tokens.size)) {
        return check.Invalid(names.k, " has blocks of ", bytes.size, " bytes; ", tokens.size,
                             " tokens take ", MlaFp8_584BlockBytes(tokens.size));
      }
      has_v = false;
      break;
    }
  }
  if (!CheckDims(check, names.cache, cache)) return false;
  RememberCache(check, names, cache, written, has_v);
  // Vectors with their scales beside them lie at multiples of 4 bytes.
  if (cache.format != KvRowFormat::kElements && !IsMlaRecord(cache.format)) return true;
  return check.Aligned(names.k, k) && (!has_v || check.Aligned(names.v, v));
}

bool CheckScale(ArgChecker& check, const char* name, const ConstTensorView& scale,
                DType cache_dtype, int64_t num_kv_heads, int64_t num_requests) {
  if (!check.ok()) return false;
  if (scale.absent()) return true;
  if (!check.View(name, scale, DType::kF32)) return false;
  const bool one = scale.rank <= 1 && scale.num_elements() == 1;
  const bool per_head = scale.rank == 1 && scale.extent[0] == num_kv_heads;
  const bool per_request = num_requests >= 0 && scale.rank == 2 &&
                           scale.extent[0] == num_requests && scale.extent[1] == num_kv_heads;
  if (!one && !per_head && !per_request) {
    return check.Invalid(name, " is ", scale.DebugString(), "; one element, [Hkv = ", num_kv_heads,
                         "]", num_requests < 0 ? "" : ", or [R, Hkv], R = ",
                         num_requests < 0 ? "" : std::to_string(num_requests));
  }
  if (!IsQuantizedCode(cache_dtype)) {
    return check.Invalid(name, " is given, but the cache is ", Name(cache_dtype),
                         ", which takes none; leave it absent");
  }
  check.Reads(name, scale);
  if (!scale.device.on_host()) return true;
  const int64_t rows = scale.rank == 2 ? scale.extent[0] : 1;
  const int64_t columns = scale.rank == 0 ? 1 : scale.extent[scale.rank - 1];
  const int64_t step = scale.rank == 0 ? 0 : scale.stride[scale.rank - 1];
  for (int64_t r = 0; r < rows; ++r) {
    for (int64_t h = 0; h < columns; ++h) {
      const int64_t offset = (scale.rank == 2 ? r * scale.stride[0] : 0) + h * step;
      float value;
      std::memcpy(&value, scale.data + offset * 4, 4);
      if (!(value > 0) || !std::isfinite(value)) {
        return check.Invalid(name, "[", r * columns + h, "] is ", value,
                             "; it must be finite and above 0");
      }
    }
  }
  return true;
}

bool CheckQueryScale(ArgChecker& check, const ConstTensorView& scale, const ConstTensorView& q,
                     int64_t num_kv_heads) {
  if (check.ok() && !scale.absent() && q.dtype != DType::kF8E4M3) {
    return check.Invalid("scales.q is given, but q is ", Name(q.dtype),
                         ", which takes none; leave it absent");
  }
  return CheckScale(check, "scales.q", scale, DType::kF8E4M3, num_kv_heads, /*num_requests=*/-1);
}

bool CheckScales(ArgChecker& check, const KvScales& scales, const ConstKvCacheView& cache,
                 int64_t num_requests, const ConstTensorView& q) {
  if (!CheckQueryScale(check, scales.q, q, cache.num_kv_heads())) return false;
  KvScales of_cache = scales;
  of_cache.q = {};
  return CheckScales(check, of_cache, cache, num_requests);
}

bool CheckScales(ArgChecker& check, const KvScales& scales, const ConstKvCacheView& cache,
                 int64_t num_requests) {
  if (check.ok() && !scales.q.absent()) {
    return check.Invalid(
        "scales.q is given; the operation takes no queries in codes, leave it absent");
  }
  if (check.ok() && cache.format != KvRowFormat::kElements && !cache.takes_scale() &&
      !(scales.k.absent() && scales.v.absent())) {
    return check.Invalid("scales are given, but the vectors of the cache, ", Name(cache.format),
                         ", have their own; leave them absent");
  }
  const DType codes = cache.format == KvRowFormat::kNvfp4 ? DType::kF8E4M3 : cache.k.dtype;
  return CheckScale(check, "scales.k", scales.k, codes, cache.num_kv_heads(), num_requests) &&
         CheckScale(check, "scales.v", scales.v, codes, cache.num_kv_heads(), num_requests);
}

bool CheckSinks(ArgChecker& check, const ConstTensorView& sinks, int64_t num_heads) {
  if (!check.ok() || sinks.absent()) return check.ok();
  Dim length{"H or more"};
  if (!check.In("sinks", sinks, DType::kF32, {&length})) return false;
  if (length.size < num_heads) {
    return check.Invalid("sinks has ", length.size, " elements; at least H = ", num_heads);
  }
  const HostArray<float> values(sinks);
  for (int64_t h = 0; values.readable() && h < num_heads; ++h) {
    if (std::isnan(values[h])) {
      return check.Invalid("sinks[", h, "] is NaN; use -infinity for no sink");
    }
  }
  return true;
}

bool CheckGroups(ArgChecker& check, int64_t num_heads, int64_t num_kv_heads) {
  if (!check.ok()) return false;
  if (num_kv_heads < 1) return check.Invalid("Hkv is ", num_kv_heads, "; at least 1");
  return num_heads % num_kv_heads == 0 ||
         check.Invalid("q has H = ", num_heads, " heads, no multiple of Hkv = ", num_kv_heads);
}

bool CheckOutScale(ArgChecker& check, float out_scale) {
  if (!check.ok()) return false;
  return (out_scale >= 0 && std::isfinite(out_scale)) ||
         check.Invalid("out_scale is ", out_scale, "; finite and above 0, or 0 for none");
}

bool CheckStarts(ArgChecker& check, const char* name, const HostArray<int32_t>& starts,
                 const char* total_name, int64_t total) {
  if (!check.ok()) return false;
  if (!starts.readable()) return true;
  if (starts[0] != 0) return check.Invalid(name, "[0] is ", starts[0], "; it must be 0");
  const int64_t last = starts.size() - 1;
  for (int64_t i = 0; i < last; ++i) {
    if (starts[i + 1] < starts[i]) {
      return check.Invalid(name, "[", i + 1, "] is ", starts[i + 1], ", below ", starts[i],
                           " before it; starts never fall");
    }
  }
  return starts[last] == total || check.Invalid(name, "[", last, "] is ", starts[last],
                                                "; it must be ", total_name, " = ", total);
}

bool CheckLengths(ArgChecker& check, const AttnParams& params, const BatchLengths& batch) {
  if (!check.ok()) return false;
  // With these, rows before position 0 would mean nothing. Without, as in cross attention, queries
  // may outnumber keys.
  const bool positional = params.causal || params.window_left >= 0 || params.chunk > 0 ||
                          params.block_sparse.enabled() ||
                          (params.mask.enabled() && params.mask.rows_are_absolute);
  for (int64_t b = 0; b < batch.num_requests; ++b) {
    const int64_t keys = batch.keys_readable() ? batch.key_len(b) : -1;
    if (batch.seq_lens.readable() && keys < 0) {
      return check.Invalid("seq_lens[", b, "] is ", keys, "; at least 0");
    }
    if (batch.seq_lens.readable() && keys > batch.max_seq_len) {
      return check.Invalid("max_seq_len is ", batch.max_seq_len, ", below seq_lens[", b,
                           "] = ", keys);
    }
    if (!batch.queries_readable() || batch.one_query_each) continue;
    const int64_t queries = batch.query_len(b);
    if (batch.seq_lens.readable() && queries > batch.max_query_len) {
      return check.Invalid("max_query_len is ", batch.max_query_len, ", below the ", queries,
                           " queries of request ", b);
    }
    if (batch.keys_readable() && positional && keys < queries) {
      return check.Invalid(batch.seq_lens.readable() ? "seq_lens[" : "the keys of request [", b,
                           "] is ", keys, ", below its ", queries,
                           " queries; lengths include the new tokens");
    }
  }
  if (!batch.query_positions.readable() || !batch.queries_readable()) return true;
  for (int64_t b = 0; b < batch.num_requests; ++b) {
    for (int64_t i = 0; i < batch.query_len(b); ++i) {
      const int64_t row = batch.query_begin(b) + i;
      const int64_t p = batch.query_positions[row];
      if (p < 0 || (batch.keys_readable() && p >= batch.key_len(b))) {
        return check.Invalid("query_positions[", row, "] is ", p, "; 0 to below the length ",
                             batch.keys_readable() ? std::to_string(batch.key_len(b)) : "",
                             " of request ", b);
      }
    }
  }
  return true;
}

bool CheckColumns(ArgChecker& check, const ConstTensorView& block_table, int64_t b, int64_t length,
                  int64_t block_size) {
  if (!check.ok()) return false;
  const int64_t needed = length / block_size + (length % block_size != 0);
  return needed <= block_table.extent[1] ||
         check.OutOfRange("block_table has ", block_table.extent[1], " columns; request ", b,
                          " of length ", length, " needs ", needed, " of block size ", block_size);
}

bool CheckTableRow(ArgChecker& check, const ConstTensorView& block_table, int64_t b, int64_t begin,
                   int64_t end, int64_t num_blocks, int64_t block_size) {
  if (!block_table.device.on_host() || begin >= end) return check.ok();
  for (int64_t i = begin / block_size, last = (end - 1) / block_size; i <= last; ++i) {
    const int32_t block = Read<int32_t>(block_table, b, i);
    if (block < 0 || block >= num_blocks) {
      return check.OutOfRange("block_table[", b, "][", i, "] is ", block, "; 0 to ",
                              num_blocks - 1);
    }
  }
  return check.ok();
}

bool CheckBlockTable(ArgChecker& check, const AttnParams& params, const BatchLengths& batch,
                     const ConstTensorView& block_table, int64_t num_blocks, int64_t block_size) {
  if (!check.ok()) return false;
  if (!batch.keys_readable()) return true;
  for (int64_t b = 0; b < batch.num_requests; ++b) {
    const int64_t length = batch.key_len(b);
    if (!CheckColumns(check, block_table, b, length, block_size)) return false;
    if (!batch.queries_readable() || length == 0) continue;
    const int64_t queries = batch.query_len(b);
    if (queries == 0) continue;
    // The positions from the first that some query sees to the last.
    int64_t first = std::max<int64_t>(0, length - (batch.one_query_each ? 1 : queries));
    int64_t last = length - 1;
    if (batch.query_positions.readable()) {
      first = length - 1, last = 0;
      for (int64_t i = 0; i < queries; ++i) {
        const int64_t p = batch.query_positions[batch.query_begin(b) + i];
        first = std::min(first, p), last = std::max(last, p);
      }
    }
    int64_t begin = 0, end = length;
    if (params.window_left >= 0) begin = std::max<int64_t>(begin, first - params.window_left);
    if (params.chunk > 0) begin = std::max<int64_t>(begin, first / params.chunk * params.chunk);
    if (params.causal) {
      end = last + 1;
    } else if (params.window_right >= 0 && params.window_right < length - last) {
      end = std::min(end, last + params.window_right + 1);
    }
    if (!CheckTableRow(check, block_table, b, begin, end, num_blocks, block_size)) return false;
  }
  return true;
}

}  // namespace kvblocks::attention
