#include "attention/testing/latent_case.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <random>
#include <utility>

#include "attention/tensor/small_floats.h"
#include "checks/ceil_div.h"

namespace kvblocks::attention {
namespace {

// A finite e4m3 code.
std::byte DrawCode(std::mt19937_64& random) {
  std::byte code;
  do {
    code = static_cast<std::byte>(random());
  } while ((code & std::byte{0x7F}) == std::byte{0x7F});
  return code;
}

}  // namespace

std::vector<LatentCacheOptions> EveryLatentLayout() {
  std::vector<LatentCacheOptions> all = {
      {KvLayout::kMlaLatent, DType::kF32},
      {KvLayout::kMlaLatent, DType::kBF16},
      {.layout = KvLayout::kMlaLatent, .dtype = DType::kF8E4M3, .scale = 0.03125},
      {KvLayout::kMlaSplit, DType::kBF16},
      {KvLayout::kMlaFp8_656, DType::kU8},
      {KvLayout::kMlaFp8_584, DType::kU8}};
  for (const KvRowFormat format :
       {KvRowFormat::kMlaV41, KvRowFormat::kMlaV41Fp4, KvRowFormat::kMlaNvfp4}) {
    all.push_back({.layout = KvLayout::kMlaLatent, .dtype = DType::kU8, .format = format});
  }
  return all;
}

// A record of random codes and scales, and the values that these stand for.
void LatentCache::DrawRecord(std::mt19937_64& random, std::byte* at, std::vector<double>& row) {
  const auto e4m3 = [](std::byte code) { return E4M3ToDouble(static_cast<uint8_t>(code)); };
  for (int d = 0; d < 512; ++d) {
    if (options_.format == KvRowFormat::kMlaV41) {
      std::byte& scale = at[512 + d / 32];
      if (d % 32 == 0) scale = static_cast<std::byte>(IntegerDraw(random, 117, 121));
      at[d] = DrawCode(random);
      row.push_back(e4m3(at[d]) * std::ldexp(1, static_cast<int>(scale) - 127));
      continue;
    }
    const int group = d / 16;
    std::byte& scale = options_.format == KvRowFormat::kMlaV41Fp4
                           ? at[256 + group]
                           : at[320 + 8 * (group & 3) + (group >> 2)];
    if (d % 16 == 0) scale = static_cast<std::byte>(IntegerDraw(random, 0x20, 0x38));
    if (d % 2 == 0) at[d / 2] = static_cast<std::byte>(random());
    static constexpr double kE2M1[] = {0, 0.5, 1, 1.5, 2, 3, 4, 6};
    const int code = static_cast<int>(at[d / 2]) >> (d % 2 == 0 ? 0 : 4) & 15;
    row.push_back((code & 8 ? -1 : 1) * kE2M1[code & 7] * e4m3(scale));
  }
  if (options_.format != KvRowFormat::kMlaNvfp4) return;
  for (int d = 256; d < 320; ++d) {
    StoreElement(DType::kF8E4M3, NormalDraw(random), at + d);
    row.push_back(e4m3(at[d]));
  }
}

LatentCache::LatentCache(const LatentCacheOptions& options) : options_(options) {
  std::mt19937_64 random(options.seed);
  const int64_t NB = options.num_blocks, BS = options.block_size;
  view_.layout = options.layout;
  view_.format = options.format;
  rows_.resize(NB * BS);
  switch (options.layout) {
    case KvLayout::kMlaSplit:
      k_ = Tensor(options.dtype, {NB, BS, options.latent_dim});
      v_ = Tensor(options.dtype, {NB, BS, options.rotary_dim});
      view_.k = k_.view, view_.v = v_.view;
      break;
    case KvLayout::kMlaFp8_656:
      k_ = Tensor(DType::kU8, {NB, BS, 656});
      view_.k = k_.view;
      break;
    case KvLayout::kMlaFp8_584:
      k_ = Tensor(DType::kU8, {NB, MlaFp8_584BlockBytes(BS)});
      view_.k = k_.view;
      view_.planar_block_size = BS;
      break;
    default:
      if (IsMlaRecord(options.format)) {
        k_ = Tensor(DType::kU8, {NB, BS, ShapeOf(options.format).bytes});
        view_.k = k_.view;
        break;
      }
      k_ = Tensor(options.dtype, {NB, BS, options.latent_dim + options.rotary_dim});
      view_.k = k_.view;
      view_.v = k_.view.Slice(2, 0, options.latent_dim).value();
  }
  for (int64_t slot = 0; slot < NB * BS; ++slot) {
    const int64_t block = slot / BS, offset = slot % BS;
    std::vector<double>& row = rows_[slot];
    if (IsMlaRecord(options.format)) {
      DrawRecord(random, k_.view.At(block, offset), row);
    } else if (options.layout == KvLayout::kMlaFp8_656) {
      std::byte* at = k_.view.At(block, offset);
      for (int tile = 0; tile < 4; ++tile) {
        std::byte* scale_at = at + 512 + 4 * tile;
        StoreElement(DType::kF32, 0.002 + 0.01 * UniformDraw(random), scale_at);
        const double scale = LoadElement(DType::kF32, scale_at);
        for (int d = 128 * tile; d < 128 * (tile + 1); ++d) {
          at[d] = DrawCode(random);
          row.push_back(E4M3ToDouble(static_cast<uint8_t>(at[d])) * scale);
        }
      }
      for (int d = 0; d < 64; ++d) {
        StoreElement(DType::kBF16, NormalDraw(random), at + 528 + 2 * d);
        row.push_back(LoadElement(DType::kBF16, at + 528 + 2 * d));
      }
    } else if (options.layout == KvLayout::kMlaFp8_584) {
      std::byte* at = k_.view.At(block) + offset * 576;
      std::byte* scales = k_.view.At(block) + BS * 576 + offset * 8;
      for (int tile = 0; tile < 7; ++tile) {
        scales[tile] = static_cast<std::byte>(IntegerDraw(random, 117, 121));
        for (int d = 64 * tile; d < 64 * (tile + 1); ++d) {
          at[d] = DrawCode(random);
          row.push_back(E4M3ToDouble(static_cast<uint8_t>(at[d])) *
                        std::ldexp(1, static_cast<int>(scales[tile]) - 127));
        }
      }
      for (int d = 0; d < 64; ++d) {
        StoreElement(DType::kBF16, NormalDraw(random), at + 448 + 2 * d);
        row.push_back(LoadElement(DType::kBF16, at + 448 + 2 * d));
      }
    } else {
      SetRow(slot, NormalDraws(random, options.latent_dim + options.rotary_dim));
    }
  }
}

std::byte* LatentCache::ElementOf(int64_t slot, int64_t d) {
  const int64_t block = slot / options_.block_size, offset = slot % options_.block_size;
  if (options_.layout == KvLayout::kMlaSplit && d >= options_.latent_dim) {
    return v_.view.At(block, offset, d - options_.latent_dim);
  }
  return k_.view.At(block, offset, d);
}

void LatentCache::SetRow(int64_t slot, const std::vector<double>& values) {
  rows_[slot].resize(values.size());
  for (size_t d = 0; d < values.size(); ++d) {
    std::byte* at = ElementOf(slot, static_cast<int64_t>(d));
    StoreElement(options_.dtype, values[d] / options_.scale, at);
    rows_[slot][d] = LoadElement(options_.dtype, at) * options_.scale;
  }
}

void LatentCache::Poison(int64_t slot) {
  const int64_t block = slot / options_.block_size, offset = slot % options_.block_size;
  if (options_.layout == KvLayout::kMlaFp8_656 || IsMlaRecord(options_.format)) {
    std::fill_n(k_.view.At(block, offset), k_.view.extent[2], std::byte{0xFF});
  } else if (options_.layout == KvLayout::kMlaFp8_584) {
    std::fill_n(k_.view.At(block) + offset * 576, 576, std::byte{0xFF});
    std::fill_n(k_.view.At(block) + options_.block_size * 576 + offset * 8, 8, std::byte{0xFF});
  } else {
    for (size_t d = 0; d < rows_[slot].size(); ++d) {
      std::fill_n(ElementOf(slot, static_cast<int64_t>(d)), ElementBytes(options_.dtype),
                  std::byte{0xFF});
    }
  }
}

DenseRequest RequestOverRows(const std::vector<const std::vector<double>*>& rows,
                             std::vector<double> q, int64_t q_len, int64_t num_heads,
                             int64_t value_dim) {
  std::vector<double> k, v;
  for (const std::vector<double>* row : rows) {
    k.insert(k.end(), row->begin(), row->end());
    v.insert(v.end(), row->begin(), row->begin() + value_dim);
  }
  const int64_t key_dim = static_cast<int64_t>(q.size()) / std::max<int64_t>(1, q_len * num_heads);
  return RequestOf(q_len, num_heads, 1, std::max<int64_t>(1, key_dim), value_dim, std::move(q),
                   std::move(k), std::move(v));
}

namespace {

LatentCacheOptions WithBlocksFor(LatentCacheOptions options, const std::vector<int64_t>& lengths) {
  options.num_blocks = 1;
  for (const int64_t length : lengths) options.num_blocks += CeilDiv(length, options.block_size);
  return options;
}

}  // namespace

LatentCase::LatentCase(const LatentCacheOptions& options, std::vector<int64_t> the_lengths,
                       std::vector<int64_t> the_q_lens, int64_t num_heads, DType q_dtype)
    : lengths(std::move(the_lengths)),
      q_lens(std::move(the_q_lens)),
      heads(num_heads),
      block_size(options.block_size),
      cache(WithBlocksFor(options, lengths)) {
  std::mt19937_64 random(static_cast<uint64_t>(heads));
  const auto requests = static_cast<int64_t>(lengths.size());
  std::vector<int64_t> ids(static_cast<size_t>(cache.view().num_blocks()));
  for (size_t i = 0; i < ids.size(); ++i) ids[i] = static_cast<int64_t>(i);
  for (size_t i = ids.size(); i > 1; --i) {
    std::swap(ids[i - 1], ids[IntegerDraw(random, 0, static_cast<int64_t>(i) - 1)]);
  }
  int64_t columns = 2, tokens = 0;
  for (const int64_t length : lengths) columns = std::max(columns, length / block_size + 2);
  std::vector<double> entries(requests * columns, 2147480000), starts = {0};
  for (int64_t b = 0; b < requests; ++b) {
    for (int64_t i = 0; i < CeilDiv(lengths[b], block_size); ++i) {
      entries[b * columns + i] = static_cast<double>(ids.back());
      ids.pop_back();
    }
    tokens += q_lens[b];
    starts.push_back(static_cast<double>(tokens));
  }
  table = IntTensor(entries, {requests, columns});
  seq_lens = IntTensor({lengths.begin(), lengths.end()}, {requests});
  query_start_loc = IntTensor(starts, {requests + 1});
  std::vector<bool> used(static_cast<size_t>(cache.view().num_blocks() * block_size));
  for (int64_t b = 0; b < requests; ++b) {
    for (int64_t j = 0; j < lengths[b]; ++j) used[Slot(b, j)] = true;
  }
  for (size_t slot = 0; slot < used.size(); ++slot) {
    if (!used[slot]) cache.Poison(static_cast<int64_t>(slot));
  }

  q = Tensor(q_dtype, {tokens, heads, cache.key_dim()});
  q.Set(NormalDraws(random, tokens * heads * cache.key_dim()));
  out = Tensor(q_dtype, {tokens, heads, cache.value_dim()});
  lse = Tensor(DType::kF32, {tokens, heads});
  params.scale = static_cast<float>(1 / std::sqrt(cache.key_dim()));
  if (options.scale != 1) {
    scale = FloatTensor({options.scale});
    params.scales.k = scale.view;
  }
}

int64_t LatentCase::Slot(int64_t b, int64_t j) const {
  const int32_t* const row = table.view.as<int32_t>() + b * table.view.extent[1];
  return int64_t{row[j / block_size]} * block_size + j % block_size;
}

MlaDecodeArgs LatentCase::Args() {
  FillWithPoison(out);
  FillWithPoison(lse);
  MlaDecodeArgs args;
  args.q_lat = q.view;
  args.cache = cache.view();
  args.block_table = table.view;
  args.seq_lens = seq_lens.view;
  args.max_seq_len = *std::max_element(lengths.begin(), lengths.end());
  if (*std::max_element(q_lens.begin(), q_lens.end()) > 1) {
    args.query_start_loc = query_start_loc.view;
  }
  args.params = params;
  args.out = out.view;
  args.lse = lse.view;
  return args;
}

DenseResult LatentCase::Expected() const {
  DenseResult all;
  const std::vector<double> queries = q.Get();
  auto query = queries.begin();
  for (size_t b = 0; b < lengths.size(); ++b) {
    std::vector<const std::vector<double>*> rows;
    for (int64_t j = 0; j < lengths[b]; ++j) {
      rows.push_back(&cache.row(Slot(static_cast<int64_t>(b), j)));
    }
    const auto end = query + q_lens[b] * heads * cache.key_dim();
    Append(DenseAttention(RequestOverRows(rows, {query, end}, q_lens[b], heads, cache.value_dim()),
                          ToDense(params)),
           all);
    query = end;
  }
  return all;
}

SparseCase::SparseCase(const SparseCaseOptions& the_options)
    : options(the_options), main(options.cache), extra(options.extra_cache) {
  std::mt19937_64 random(options.cache.seed + 17);
  const int64_t rows = kRequests * options.queries, heads = options.num_heads;
  seen.resize(rows);
  Fill(main, options.entries, random, main_indices, main_lens, args.main);
  if (options.extra_entries > 0) {
    Fill(extra, options.extra_entries, random, extra_indices, extra_lens, args.extra);
  }
  const int64_t dim = main.key_dim();
  q = Tensor(options.q_dtype, {kRequests, options.queries, heads, dim});
  q.Set(NormalDraws(random, rows * heads * dim));
  out = Tensor(options.q_dtype, {kRequests, options.queries, heads, main.value_dim()});
  lse = Tensor(DType::kF32, {kRequests, options.queries, heads});
  FillWithPoison(out);
  FillWithPoison(lse);
  args.q = q.view;
  args.scale = options.scale > 0 ? options.scale : static_cast<float>(1 / std::sqrt(dim));
  if (options.sink) {
    sinks = FloatTensor(NormalDraws(random, heads + 5));
    args.sinks = sinks.view;
  }
  if (options.cache.scale != 1) {
    kv_scale = FloatTensor({options.cache.scale});
    args.kv_scale = kv_scale.view;
  }
  args.out = out.view;
  args.lse = lse.view;
}

void SparseCase::Fill(LatentCache& cache, int64_t count, std::mt19937_64& random, Tensor& indices,
                      Tensor& lens, SparseKeys& keys) {
  const int64_t slots = cache.view().num_slots();
  cache.Poison(slots - 1);  // only of entries that do not count
  std::vector<double> entries, used;
  for (int64_t b = 0; b < kRequests; ++b) {
    used.push_back(static_cast<double>(options.lengths ? IntegerDraw(random, 0, count) : count));
    for (int64_t s = 0; s < options.queries; ++s) {
      for (int64_t k = 0; k < count; ++k) {
        const bool counts = k < used.back();
        int64_t slot = counts ? IntegerDraw(random, 0, slots - 2) : slots - 1;
        const int64_t kind = IntegerDraw(random, 0, 9);
        if (options.all_invalid || kind < 2) slot = kind % 2 == 0 ? -1 : slots + kind;
        entries.push_back(static_cast<double>(slot));
        if (counts && slot >= 0 && slot < slots) {
          seen[b * options.queries + s].push_back(&cache.row(slot));
        }
      }
    }
  }
  indices = IntTensor(entries, {kRequests, options.queries, count});
  lens = IntTensor(used, {kRequests});
  keys.cache = cache.view();
  keys.indices = indices.view;
  if (options.lengths) keys.topk_len = lens.view;
}

std::string SparseCase::MismatchNow(const Tolerance& tolerance) const {
  DenseParams dense;
  dense.scale = args.scale;
  dense.causal = false;
  if (options.sink) dense.sinks = sinks.Get();
  DenseResult expected;
  const std::vector<double> queries = q.Get();
  const auto rows = static_cast<int64_t>(seen.size());
  const int64_t heads = options.num_heads, row = heads * main.key_dim(), values = main.value_dim();
  for (int64_t n = 0; n < rows; ++n) {
    Append(DenseAttention(RequestOverRows(seen[n], Part(queries, n * row, row), 1, heads, values),
                          dense),
           expected);
  }
  return Mismatch(expected, out.view.Reshape({rows, heads, values}).value(),
                  lse.view.Reshape({rows, heads}).value(), tolerance);
}

SparsePrefillCase::SparsePrefillCase(const SparsePrefillOptions& options) {
  std::mt19937_64 random(options.seed);
  const int64_t tokens = options.tokens, heads = options.heads, dim = options.dim;
  q = Tensor(options.type, {tokens, heads, dim});
  q.Set(NormalDraws(random, tokens * heads * dim));
  kv = Tensor(options.type, {options.keys, 1, dim});
  std::vector<double> keys = NormalDraws(random, options.keys * dim);
  // The last row is of invalid entries only.
  std::fill(keys.end() - dim, keys.end(), std::numeric_limits<double>::quiet_NaN());
  kv.Set(keys);
  keys = kv.Get();
  std::vector<std::vector<double>> rows;
  for (int64_t s = 0; s < options.keys; ++s) rows.push_back(Part(keys, s * dim, dim));
  DenseParams dense;
  dense.scale = args.scale = options.scale;
  dense.causal = false;
  if (options.sink) {
    sinks = FloatTensor(NormalDraws(random, heads));
    args.sinks = sinks.view;
    dense.sinks = sinks.Get();
  }
  std::vector<double> entries;
  const std::vector<double> queries = q.Get();
  for (int64_t t = 0; t < tokens; ++t) {
    const double used = options.used.empty() ? options.entries : options.used[t];
    std::vector<const std::vector<double>*> seen;
    for (int64_t k = 0; k < options.entries; ++k) {
      int64_t row = k < used ? IntegerDraw(random, 0, options.keys - 2) : options.keys - 1;
      if (k % 9 == 4) row = k % 2 == 0 ? -1 : options.keys + k;
      entries.push_back(static_cast<double>(row));
      if (row >= 0 && row < options.keys - 1) seen.push_back(&rows[row]);
    }
    const std::vector<double> query = Part(queries, t * heads * dim, heads * dim);
    Append(DenseAttention(RequestOverRows(seen, query, 1, heads, options.value_dim), dense),
           expected);
    for (int64_t h = 0; h < heads; ++h) {
      double max = -std::numeric_limits<double>::infinity();
      for (const std::vector<double>* row : seen) {
        double score = 0;
        for (int64_t d = 0; d < dim; ++d) score += query[h * dim + d] * (*row)[d];
        max = std::max(max, score * options.scale);
      }
      largest.push_back(max);
    }
  }
  indices = IntTensor(entries, {tokens, 1, options.entries});
  if (!options.used.empty()) {
    lens = IntTensor(options.used, {tokens});
    args.topk_len = lens.view;
  }
  out = Tensor(options.type, {tokens, heads, options.value_dim});
  max_logits = Tensor(DType::kF32, {tokens, heads});
  lse = Tensor(DType::kF32, {tokens, heads});
  args.q = q.view;
  args.kv = kv.view;
  args.indices = indices.view;
  args.out = out.view;
  args.max_logits = max_logits.view;
  args.lse = lse.view;
}

}  // namespace kvblocks::attention
