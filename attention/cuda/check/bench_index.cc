// Benchmarks of what sparse attention keeps up: choosing rows, writing an indexer's keys,
// compressing.

#include <algorithm>
#include <cstdlib>
#include <memory>
#include <numeric>
#include <random>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "kvblocks/attention/cuda/check/gpu_bench.h"
#include "kvblocks/attention/cuda/cuda_ops.h"
#include "kvblocks/attention/cuda/kernels/runtime.h"

namespace kvblocks::attention::cuda {
namespace {

// DeepSeek's indexer.
constexpr int64_t kHeads = 64, kDim = 128, kBlock = 64;

DeviceTensor Ints(DType dtype, std::vector<int64_t> extents, const std::vector<int64_t>& values) {
  DeviceTensor tensor(dtype, std::move(extents));
  tensor.SetInts(values);
  return tensor;
}
std::vector<int64_t> UpTo(int64_t count) {
  std::vector<int64_t> ids(count);
  std::iota(ids.begin(), ids.end(), 0);
  return ids;
}

// Requests of `length` tokens, of which the last `queries` are new, in scattered blocks of `rows`.
struct Requests {
  DeviceTensor starts, lens, table;

  Requests(int64_t count, int64_t length, int64_t queries, int64_t rows, uint32_t seed) {
    const int64_t columns = (length + rows - 1) / rows;
    std::vector<int64_t> ids = UpTo(count * columns), offsets = UpTo(count + 1);
    std::shuffle(ids.begin(), ids.end(), std::mt19937(seed));
    for (int64_t& offset : offsets) offset *= queries;
    starts = Ints(DType::kI32, {count + 1}, offsets);
    lens = Ints(DType::kI32, {count}, std::vector<int64_t>(count, length));
    table = Ints(DType::kI32, {count, columns}, ids);
  }
  template <typename Args>
  void Fill(Args& args) const {
    args.query_start_loc = starts.view;
    args.seq_lens = lens.view;
    args.block_table = table.view;
  }
};

// An indexer's cache of random keys in fp8.
struct KeyCase {
  DeviceTensor k, slots, rows;
  CacheIndexKeysArgs args;

  KeyCase(int64_t num_keys, int64_t num_blocks, uint32_t seed)
      : k(DType::kBF16, {num_keys, kDim}),
        rows(DType::kU8, {num_blocks, IndexBlockBytes(kBlock, kDim)}) {
    k.FillNormal(seed);
    slots = Ints(DType::kI64, {num_keys}, UpTo(num_keys));  // waits
    args.k = k.view, args.slot_mapping = slots.view;
    args.cache = IndexCacheView(rows.view, kBlock);
  }
};

struct TopkCase {
  Requests requests;
  DeviceTensor q, weights, rows, indices, lens;
  IndexTopkArgs args;

  TopkCase(GpuBench& bench, int64_t count, int64_t length, int64_t queries, int64_t width,
           uint32_t seed)
      : requests(count, length, queries, kBlock, seed),
        q(DType::kF8E4M3, {count * queries, kHeads, kDim}),
        weights(DType::kF32, {count * queries, kHeads}),
        indices(DType::kI32, {count * queries, width}),
        lens(DType::kI32, {count * queries}) {
    q.FillNormal(seed + 1);
    weights.FillNormal(seed + 2);
    {
      KeyCase keys(count * length, requests.table.view.num_elements(), seed + 3);
      if (!Cuda().CacheIndexKeys(bench.context(), keys.args).ok()) std::abort();
      (void)Synchronize(bench.context().stream);  // before the keys go
      rows = std::move(keys.rows);
    }
    args.q = q.view, args.weights = weights.view;
    args.cache = IndexCacheView(rows.view, kBlock);
    requests.Fill(args);
    args.max_seq_len = length;
    args.indices = indices.view, args.lens = lens.view;
  }
};

void RunTopk(GpuBench& bench, int64_t count, int64_t length, int64_t queries, int64_t width) {
  const std::string name =
      absl::StrCat("index top ", width, ", ", count, "x", queries, " on ", length);
  if (!bench.wants(name)) return;
  // Rows that a token sees, on average.
  const double seen = static_cast<double>(length) - static_cast<double>(queries - 1) / 2;
  const double tokens = static_cast<double>(count) * queries;
  BenchCase bench_case;
  bench_case.name = name;
  bench_case.bytes =
      static_cast<double>(count) * length * (kDim + 4) + tokens * (kHeads * (kDim + 4) + 4 * width);
  bench_case.flops = 2 * tokens * seen * kHeads * kDim;
  bench_case.copies = CopiesFor(bench_case.bytes, 20);
  std::vector<std::unique_ptr<TopkCase>> cases;
  for (int copy = 0; copy < bench_case.copies; ++copy) {
    cases.push_back(
        std::make_unique<TopkCase>(bench, count, length, queries, width, copy * 10 + 7));
  }
  bench_case.enqueue = [&](const ExecContext& context, int copy) {
    return Cuda().IndexTopk(context, cases[copy]->args);
  };
  bench.Run(bench_case);
}

void RunKeys(GpuBench& bench) {
  constexpr int64_t kTokens = 8192;
  const std::string name = absl::StrCat("cache index keys, ", kTokens, " tokens");
  if (!bench.wants(name)) return;
  BenchCase bench_case;
  bench_case.name = name;
  bench_case.bytes = static_cast<double>(kTokens) * (2 * kDim + 8 + kDim + 4);
  bench_case.copies = CopiesFor(bench_case.bytes);
  std::vector<std::unique_ptr<KeyCase>> cases;
  for (int copy = 0; copy < bench_case.copies; ++copy) {
    cases.push_back(std::make_unique<KeyCase>(kTokens, kTokens / kBlock, copy + 3));
  }
  bench_case.enqueue = [&](const ExecContext& context, int copy) {
    return Cuda().CacheIndexKeys(context, cases[copy]->args);
  };
  bench.Run(bench_case);
}

// DeepSeek V4's compressor of rows of 512 values, one request from its beginning.
struct CompressCase {
  Requests requests;
  DeviceTensor kv, score, states, slots, out;
  CompressTokensArgs args;

  CompressCase(int64_t tokens, int64_t ratio, bool overlap, int64_t dim, uint32_t seed)
      : requests(1, tokens, tokens, kBlock, seed),
        kv(DType::kBF16, {tokens, (overlap ? 2 : 1) * dim}),
        score(DType::kBF16, {tokens, (overlap ? 2 : 1) * dim}),
        states(DType::kF32, {tokens / kBlock, kBlock, (overlap ? 4 : 2) * dim}),
        out(DType::kBF16, {tokens, dim}) {
    kv.FillNormal(seed + 1);
    score.FillNormal(seed + 2);
    // As the table that was shuffled with the same seed has them.
    std::vector<int64_t> ids = UpTo(tokens / kBlock), places;
    std::shuffle(ids.begin(), ids.end(), std::mt19937(seed));
    for (int64_t t = 0; t < tokens; ++t) places.push_back(ids[t / kBlock] * kBlock + t % kBlock);
    slots = Ints(DType::kI64, {tokens}, places);
    args.kv = kv.view, args.score = score.view, args.states = states.view;
    args.slot_mapping = slots.view;
    requests.Fill(args);
    args.ratio = ratio, args.overlap = overlap;
    args.out = out.view;
  }
};

void RunCompress(GpuBench& bench, int64_t ratio, bool overlap) {
  constexpr int64_t kTokens = 8192, kValues = 512;
  const std::string name =
      absl::StrCat("compress for the index, ", kTokens, " tokens, ratio ", ratio);
  if (!bench.wants(name)) return;
  const double width = (overlap ? 2 : 1) * kValues;
  BenchCase bench_case;
  bench_case.name = name;
  // Inputs are read and states written; those that rows are made of could be had on the way.
  bench_case.bytes = static_cast<double>(kTokens) *
                     (2 * width * (2 + 4) + 2.0 * kValues / static_cast<double>(ratio));
  bench_case.moves = true;
  bench_case.copies = CopiesFor(bench_case.bytes);
  std::vector<std::unique_ptr<CompressCase>> cases;
  for (int copy = 0; copy < bench_case.copies; ++copy) {
    cases.push_back(std::make_unique<CompressCase>(kTokens, ratio, overlap, kValues, copy + 3));
  }
  bench_case.enqueue = [&](const ExecContext& context, int copy) {
    return Cuda().CompressTokens(context, cases[copy]->args);
  };
  bench.Run(bench_case);
}

}  // namespace

void BenchIndex(GpuBench& bench) {
  RunTopk(bench, 128, 32768, 1, 2048);
  RunTopk(bench, 64, 32768, 2, 2048);
  RunTopk(bench, 1, 131072, 1, 2048);
  RunTopk(bench, 1, 8192, 2048, 2048);
  RunTopk(bench, 1, 8192, 2048, 512);
  RunKeys(bench);
  RunCompress(bench, 4, true);
  RunCompress(bench, 128, false);
}

}  // namespace kvblocks::attention::cuda
