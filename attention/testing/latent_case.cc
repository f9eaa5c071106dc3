#include "kvblocks/attention/testing/latent_case.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <random>
#include <utility>

#include "kvblocks/checks/ceil_div.h"

namespace kvblocks::attention {
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
