// Benchmarks of what finds and moves blocks: gathers, copies of blocks, slots and lists of slots.

#include <algorithm>
#include <memory>
#include <numeric>
#include <random>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "kvblocks/attention/cuda/block_ops.h"
#include "kvblocks/attention/cuda/check/gpu_bench.h"
#include "kvblocks/attention/cuda/cuda_ops.h"
#include "kvblocks/attention/cuda/index_ops.h"

namespace kvblocks::attention::cuda {
namespace {

DeviceTensor Ints(DType dtype, std::vector<int64_t> extents, const std::vector<int64_t>& values) {
  DeviceTensor tensor(dtype, std::move(extents));
  tensor.SetInts(values);
  return tensor;
}

std::vector<int64_t> Shuffled(int64_t count, uint32_t seed) {
  std::vector<int64_t> ids(count);
  std::iota(ids.begin(), ids.end(), 0);
  std::shuffle(ids.begin(), ids.end(), std::mt19937(seed));
  return ids;
}

constexpr int64_t kHeads = 8, kDim = 128, kBlock = 16, kBlocks = 512;

struct CacheCase {
  DeviceTensor k, v;
  KvCacheView view;

  CacheCase(DType dtype, uint32_t seed) {
    k = DeviceTensor(dtype, {kBlocks, kBlock, kHeads, kDim});
    v = DeviceTensor(dtype, {kBlocks, kBlock, kHeads, kDim});
    k.FillNormal(seed);
    v.FillNormal(seed + 1);
    view = KvCacheView(KvLayout::kNhd, k.view, v.view);
  }
};

// --- Gathers ---

struct GatherCase : CacheCase {
  DeviceTensor table, lens, scale, out, out_v;
  GatherCacheArgs args;

  GatherCase(DType dtype, int64_t requests, uint32_t seed) : CacheCase(dtype, seed) {
    const int64_t columns = kBlocks / requests, rows = columns * kBlock;
    table = Ints(DType::kI32, {requests, columns}, Shuffled(kBlocks, seed));
    lens = Ints(DType::kI32, {requests}, std::vector<int64_t>(requests, rows));
    scale = Ints(DType::kF32, {1}, {3});
    out = DeviceTensor(DType::kBF16, {requests, rows, kHeads, kDim});
    out_v = DeviceTensor(DType::kBF16, {requests, rows, kHeads, kDim});
    args.cache = view;
    args.block_table = table.view;
    args.seq_lens = args.lengths = lens.view;
    if (dtype != DType::kBF16) args.scales = {scale.view, scale.view};
    args.out = out.view;
    args.out_v = out_v.view;
  }
};

void RunGather(GpuBench& bench, DType dtype) {
  BenchCase bench_case;
  bench_case.name = absl::StrCat("gather 8 x 1024 tokens, ", Name(dtype), " to bf16");
  if (!bench.wants(bench_case.name)) return;
  bench_case.bytes =
      2.0 * kBlocks * kBlock * kHeads * kDim * static_cast<double>(2 + ElementBytes(dtype));
  bench_case.moves = true;
  bench_case.copies = CopiesFor(bench_case.bytes, 20);
  std::vector<std::unique_ptr<GatherCase>> cases;
  for (int copy = 0; copy < bench_case.copies; ++copy) {
    cases.push_back(std::make_unique<GatherCase>(dtype, 8, copy * 3 + 1));
  }
  bench_case.enqueue = [&](const ExecContext& context, int copy) {
    return Cuda().GatherCache(context, cases[copy]->args);
  };
  bench.Run(bench_case);
}

// --- Copies of blocks ---

void RunCopies(GpuBench& bench, int64_t pairs) {
  BenchCase bench_case;
  bench_case.name = absl::StrCat("copy ", pairs, " blocks of 16 tokens, K and V");
  if (!bench.wants(bench_case.name)) return;
  bench_case.bytes = 2.0 * 2.0 * static_cast<double>(pairs * kBlock * kHeads * kDim * 2);
  bench_case.moves = true;
  bench_case.copies = 20;
  std::vector<std::unique_ptr<CacheCase>> cases;
  std::vector<std::vector<BlockPair>> all_pairs;
  for (int copy = 0; copy < bench_case.copies; ++copy) {
    cases.push_back(std::make_unique<CacheCase>(DType::kBF16, copy * 3 + 1));
    const std::vector<int64_t> ids = Shuffled(kBlocks, copy);
    std::vector<BlockPair>& own = all_pairs.emplace_back();
    for (int64_t i = 0; i < pairs; ++i) own.emplace_back(ids[i], ids[kBlocks / 2 + i]);
  }
  bench_case.enqueue = [&](const ExecContext& context, int copy) {
    const KvCacheView caches[] = {cases[copy]->view};
    return CudaCopyBlocks(context, caches, all_pairs[copy]);
  };
  bench.Run(bench_case);
}

// --- Slots and lists of slots: a decode batch, a token per request ---

constexpr int64_t kTokens = 256, kColumns = 64, kWidth = 128, kBlockSize = 64;

struct ListCase {
  DeviceTensor starts, lens, positions, table, slots, list, indices, counts;

  explicit ListCase(uint32_t seed) {
    std::mt19937 random(seed);
    std::vector<int64_t> one_each(kTokens + 1), lengths(kTokens), last(kTokens);
    std::iota(one_each.begin(), one_each.end(), 0);
    for (int64_t t = 0; t < kTokens; ++t) {
      lengths[t] = kWidth + static_cast<int64_t>(random() % (kColumns * kBlockSize - kWidth));
      last[t] = lengths[t] - 1;
    }
    std::vector<int64_t> chosen(kTokens * kWidth);
    for (int64_t i = 0; i < kTokens * kWidth; ++i) {
      chosen[i] = static_cast<int64_t>(random()) % lengths[i / kWidth];
    }
    starts = Ints(DType::kI32, {kTokens + 1}, one_each);
    lens = Ints(DType::kI32, {kTokens}, lengths);
    positions = Ints(DType::kI32, {kTokens}, last);
    table = Ints(DType::kI32, {kTokens, kColumns}, Shuffled(kTokens * kColumns, seed));
    list = Ints(DType::kI32, {kTokens, kWidth}, chosen);
    slots = DeviceTensor(DType::kI64, {kTokens});
    indices = DeviceTensor(DType::kI32, {kTokens, kWidth});
    counts = DeviceTensor(DType::kI32, {kTokens});
  }
};

template <typename Enqueue>
void RunLists(GpuBench& bench, std::string name, double bytes, Enqueue enqueue) {
  BenchCase bench_case;
  bench_case.name = std::move(name);
  if (!bench.wants(bench_case.name)) return;
  bench_case.bytes = bytes;
  bench_case.copies = 20;
  std::vector<std::unique_ptr<ListCase>> cases;
  for (int copy = 0; copy < bench_case.copies; ++copy) {
    cases.push_back(std::make_unique<ListCase>(copy + 1));
  }
  bench_case.enqueue = [&](const ExecContext& context, int copy) {
    return enqueue(context, *cases[copy]);
  };
  bench.Run(bench_case);
}

}  // namespace

void BenchBlocksAndLists(GpuBench& bench) {
  for (const DType dtype : {DType::kBF16, DType::kF8E4M3}) RunGather(bench, dtype);
  for (const int64_t pairs : {8, 64, 256}) RunCopies(bench, pairs);
  RunLists(bench, "slots of 256 tokens", kTokens * 8.0,
           [](const ExecContext& context, ListCase& of) {
             return CudaComputeSlotMapping(context, {.query_start_loc = of.starts.view,
                                                     .positions = of.positions.view,
                                                     .block_table = of.table.view,
                                                     .block_size = kBlockSize,
                                                     .slot_mapping = of.slots.view});
           });
  RunLists(bench, "window lists of 256 tokens, 128 wide", kTokens * kWidth * 4.0,
           [](const ExecContext& context, ListCase& of) {
             return CudaBuildSwaIndices(context, {.window = kWidth,
                                                  .query_start_loc = of.starts.view,
                                                  .seq_lens = of.lens.view,
                                                  .block_table = of.table.view,
                                                  .block_size = kBlockSize,
                                                  .indices = of.indices.view,
                                                  .lens = of.counts.view});
           });
  RunLists(bench, "top-k slots of 256 tokens, 128 wide", 2.0 * kTokens * kWidth * 4.0,
           [](const ExecContext& context, ListCase& of) {
             return CudaBuildTopkSlots(context, {.query_start_loc = of.starts.view,
                                                 .indices = of.list.view,
                                                 .block_table = of.table.view,
                                                 .block_size = kBlockSize,
                                                 .slots = of.indices.view,
                                                 .counts = of.counts.view});
           });
}

}  // namespace kvblocks::attention::cuda
