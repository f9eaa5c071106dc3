// Benchmarks of what sparse attention keeps up: choosing rows, writing an indexer's keys,
// compressing.

#include <cstdlib>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "attention/cuda/check/gpu_bench.h"
#include "attention/cuda/kernels/runtime.h"
#include "kvblocks/attention_cuda.h"

namespace kvblocks::attention::cuda {
namespace {

// DeepSeek's indexer.
constexpr int64_t kHeads = 64, kDim = 128, kBlock = 64;

// Requests of `length` tokens, of which the last `queries` are new, in scattered blocks of `rows`.
struct Requests {
  DeviceTensor starts, lens, table;

  Requests(int64_t count, int64_t length, int64_t queries, int64_t rows, uint32_t seed) {
    const int64_t columns = (length + rows - 1) / rows;
    std::vector<int64_t> offsets = UpTo(count + 1);
    for (int64_t& offset : offsets) offset *= queries;
    starts = Ints(DType::kI32, {count + 1}, offsets);
    lens = Ints(DType::kI32, {count}, std::vector<int64_t>(count, length));
    table = Ints(DType::kI32, {count, columns}, Shuffled(count * columns, seed));
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
      : k(Normal(DType::kBF16, {num_keys, kDim}, seed)),
        rows(DType::kU8, {num_blocks, IndexBlockBytes(kBlock, kDim)}) {
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
        q(Normal(DType::kF8E4M3, {count * queries, kHeads, kDim}, seed + 1)),
        weights(Normal(DType::kF32, {count * queries, kHeads}, seed + 2)),
        indices(DType::kI32, {count * queries, width}),
        lens(DType::kI32, {count * queries}) {
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
  // Rows that a token sees, on average.
  const double seen = static_cast<double>(length) - static_cast<double>(queries - 1) / 2;
  const double tokens = static_cast<double>(count) * queries;
  const double bytes =
      static_cast<double>(count) * length * (kDim + 4) + tokens * (kHeads * (kDim + 4) + 4 * width);
  bench.Run(
      {.name = absl::StrCat("index top ", width, ", ", count, "x", queries, " on ", length),
       .bytes = bytes,
       .flops = 2 * tokens * seen * kHeads * kDim,
       .copies = CopiesFor(bytes, 20)},
      [&](int copy) { return TopkCase(bench, count, length, queries, width, copy * 10 + 7); },
      [](const ExecContext& context, const TopkCase& one) {
        return Cuda().IndexTopk(context, one.args);
      });
}

void RunKeys(GpuBench& bench) {
  constexpr int64_t kTokens = 8192;
  constexpr double kBytes = static_cast<double>(kTokens) * (2 * kDim + 8 + kDim + 4);
  bench.Run(
      {.name = absl::StrCat("cache index keys, ", kTokens, " tokens"),
       .bytes = kBytes,
       .copies = CopiesFor(kBytes)},
      [](int copy) { return KeyCase(kTokens, kTokens / kBlock, copy + 3); },
      [](const ExecContext& context, const KeyCase& one) {
        return Cuda().CacheIndexKeys(context, one.args);
      });
}

// DeepSeek V4's compressor of rows of 512 values, one request from its beginning.
struct CompressCase {
  Requests requests;
  DeviceTensor kv, score, states, slots, out;
  CompressTokensArgs args;

  CompressCase(int64_t tokens, int64_t ratio, bool overlap, int64_t dim, uint32_t seed)
      : requests(1, tokens, tokens, kBlock, seed),
        kv(Normal(DType::kBF16, {tokens, (overlap ? 2 : 1) * dim}, seed + 1)),
        score(Normal(DType::kBF16, {tokens, (overlap ? 2 : 1) * dim}, seed + 2)),
        states(DType::kF32, {tokens / kBlock, kBlock, (overlap ? 4 : 2) * dim}),
        out(DType::kBF16, {tokens, dim}) {
    // As the table that was shuffled with the same seed has them.
    const std::vector<int64_t> ids = Shuffled(tokens / kBlock, seed);
    std::vector<int64_t> places;
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
  const double width = (overlap ? 2 : 1) * kValues;
  // Inputs are read and states written; those that rows are made of could be had on the way.
  const double bytes = static_cast<double>(kTokens) *
                       (2 * width * (2 + 4) + 2.0 * kValues / static_cast<double>(ratio));
  bench.Run(
      {.name = absl::StrCat("compress for the index, ", kTokens, " tokens, ratio ", ratio),
       .bytes = bytes,
       .moves = true,
       .copies = CopiesFor(bytes)},
      [&](int copy) { return CompressCase(kTokens, ratio, overlap, kValues, copy + 3); },
      [](const ExecContext& context, const CompressCase& one) {
        return Cuda().CompressTokens(context, one.args);
      });
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
