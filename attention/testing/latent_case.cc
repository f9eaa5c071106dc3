#include "kvblocks/attention/testing/latent_case.h"

#include <algorithm>
#include <cmath>
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

Tensor TableOf(const std::vector<double>& values, std::vector<int64_t> extents) {
  Tensor tensor(DType::kI32, std::move(extents));
  tensor.Set(values);
  return tensor;
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
  table = TableOf(entries, {requests, columns});
  seq_lens = TableOf({lengths.begin(), lengths.end()}, {requests});
  query_start_loc = TableOf(starts, {requests + 1});
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
    scale = Tensor(DType::kF32, {1});
    scale.Set({options.scale});
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

}  // namespace kvblocks::attention
