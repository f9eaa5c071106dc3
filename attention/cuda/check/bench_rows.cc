// Benchmarks of what moves, merges or lists rows and blocks: cache writes, scales, states,
// selection, gathers, copies of blocks, slots and lists of slots.

#include <random>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "attention/cuda/block_ops.h"
#include "attention/cuda/check/gpu_bench.h"
#include "attention/cuda/index_ops.h"
#include "kvblocks/attention_cuda.h"

namespace kvblocks::attention::cuda {
namespace {

constexpr int64_t kHeads = 8, kDim = 128, kBlock = 16;

// Bytes of K and V rows of so many tokens, so many bytes a value.
double RowBytes(int64_t tokens, int64_t bytes) {
  return 2.0 * static_cast<double>(tokens * kHeads * kDim * bytes);
}

// --- Cache writes ---

struct WriteCase {
  DeviceTensor k, v, slots, k_cache, v_cache, scale;
  ReshapeAndCacheArgs args;

  WriteCase(int64_t tokens, KvLayout layout, DType dtype, uint32_t seed)
      : k(Normal(DType::kBF16, {tokens, kHeads, kDim}, seed)),
        v(Normal(DType::kBF16, {tokens, kHeads, kDim}, seed + 1)) {
    const int64_t blocks = (tokens + kBlock - 1) / kBlock, x = 16 / ElementBytes(dtype);
    if (layout == KvLayout::kPagedX) {
      k_cache = DeviceTensor(dtype, {blocks, kHeads, kDim / x, kBlock, x});
      v_cache = DeviceTensor(dtype, {blocks, kHeads, kDim, kBlock});
    } else {
      const bool nhd = layout == KvLayout::kNhd;
      for (DeviceTensor* cache : {&k_cache, &v_cache}) {
        *cache = DeviceTensor(dtype, {blocks, nhd ? kBlock : kHeads, nhd ? kHeads : kBlock, kDim});
      }
    }
    // Blocks in random order, tokens in order within them: a prefill.
    const std::vector<int64_t> ids = Shuffled(blocks, seed);
    std::vector<int64_t> where(tokens);
    for (int64_t t = 0; t < tokens; ++t) where[t] = ids[t / kBlock] * kBlock + t % kBlock;
    slots = Ints(DType::kI64, {tokens}, where);
    // No power of two, by which codes would be made in fewer steps.
    scale = Ints(DType::kF32, {1}, {3});
    args.k = k.view;
    args.v = v.view;
    args.slot_mapping = slots.view;
    args.cache = KvCacheView(layout, k_cache.view, v_cache.view);
    if (ElementBytes(dtype) == 1) args.scales = {scale.view, scale.view};
  }
};

void RunWrites(GpuBench& bench, int64_t tokens, KvLayout layout, DType dtype) {
  const double bytes = RowBytes(tokens, 2 + ElementBytes(dtype));
  bench.Run(
      {.name = absl::StrCat("cache write ", tokens, " tokens, bf16 to ", Name(dtype), " ",
                            Name(layout)),
       .bytes = bytes,
       .moves = true,
       .copies = CopiesFor(bytes, 20)},
      [&](int copy) { return WriteCase(tokens, layout, dtype, copy * 3 + 1); },
      [](const ExecContext& context, const WriteCase& one) {
        return Cuda().ReshapeAndCache(context, one.args);
      });
}

// --- Scales ---

// The write reads from L2 what the scales have left there.
void RunScalesAndWrite(GpuBench& bench, int64_t tokens) {
  struct Case : WriteCase {
    using WriteCase::WriteCase;
    DeviceTensor v_scale{DType::kF32, {1}};
  };
  bench.Run(
      {.name = absl::StrCat("scales, then write to f8_e4m3, ", tokens, " tokens"),
       .bytes = RowBytes(tokens, 3),
       .moves = true,
       .copies = CopiesFor(RowBytes(tokens, 3), 20)},
      [&](int copy) { return Case(tokens, KvLayout::kNhd, DType::kF8E4M3, copy * 3 + 1); },
      [](const ExecContext& context, const Case& one) {
        ScaleAndCacheArgs args;
        args.scales.k = one.k.view;
        args.scales.v = one.v.view;
        args.scales.k_scale = one.scale.view;
        args.scales.v_scale = one.v_scale.view;
        args.slot_mapping = one.slots.view;
        args.cache = one.args.cache;
        return Cuda().ScaleAndCache(context, args);
      });
}

// --- Gathers and copies of blocks ---

constexpr int64_t kBlocks = 512;

struct CacheCase {
  DeviceTensor k, v;
  KvCacheView view;

  CacheCase(DType dtype, uint32_t seed)
      : k(Normal(dtype, {kBlocks, kBlock, kHeads, kDim}, seed)),
        v(Normal(dtype, {kBlocks, kBlock, kHeads, kDim}, seed + 1)),
        view(KvLayout::kNhd, k.view, v.view) {}
};

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
  const double bytes = RowBytes(kBlocks * kBlock, 2 + ElementBytes(dtype));
  bench.Run(
      {.name = absl::StrCat("gather 8 x 1024 tokens, ", Name(dtype), " to bf16"),
       .bytes = bytes,
       .moves = true,
       .copies = CopiesFor(bytes, 20)},
      [&](int copy) { return GatherCase(dtype, 8, copy * 3 + 1); },
      [](const ExecContext& context, const GatherCase& one) {
        return Cuda().GatherCache(context, one.args);
      });
}

void RunCopies(GpuBench& bench, int64_t count) {
  struct Case : CacheCase {
    using CacheCase::CacheCase;
    std::vector<BlockPair> pairs;
  };
  bench.Run(
      {.name = absl::StrCat("copy ", count, " blocks of 16 tokens, K and V"),
       .bytes = 2 * RowBytes(count * kBlock, 2),
       .moves = true,
       .copies = 20},
      [&](int copy) {
        Case one(DType::kBF16, copy * 3 + 1);
        const std::vector<int64_t> ids = Shuffled(kBlocks, copy);
        for (int64_t i = 0; i < count; ++i) {
          one.pairs.emplace_back(ids[i], ids[kBlocks / 2 + i]);
        }
        return one;
      },
      [](const ExecContext& context, const Case& one) {
        return CudaCopyBlocks(context, {&one.view, 1}, one.pairs);
      });
}

// --- Slots and lists of slots: a decode batch, a token per request ---

constexpr int64_t kTokens = 256, kColumns = 64, kWidth = 128, kBlockSize = 64;

struct ListCase {
  DeviceTensor starts, lens, positions, table, slots, list, indices, counts;

  explicit ListCase(uint32_t seed) {
    std::mt19937 random(seed);
    std::vector<int64_t> lengths(kTokens), last(kTokens), chosen(kTokens * kWidth);
    for (int64_t t = 0; t < kTokens; ++t) {
      lengths[t] = kWidth + static_cast<int64_t>(random() % (kColumns * kBlockSize - kWidth));
      last[t] = lengths[t] - 1;
    }
    for (int64_t i = 0; i < kTokens * kWidth; ++i) {
      chosen[i] = static_cast<int64_t>(random()) % lengths[i / kWidth];
    }
    starts = Ints(DType::kI32, {kTokens + 1}, UpTo(kTokens + 1));
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
void RunLists(GpuBench& bench, std::string name, double bytes, const Enqueue& enqueue) {
  bench.Run(
      {.name = std::move(name), .bytes = bytes, .copies = 20},
      [](int copy) { return ListCase(copy + 1); }, enqueue);
}

}  // namespace

void BenchCacheWrites(GpuBench& bench) {
  for (const KvLayout layout : {KvLayout::kNhd, KvLayout::kHnd, KvLayout::kPagedX}) {
    for (const DType dtype : {DType::kBF16, DType::kF8E4M3}) RunWrites(bench, 8192, layout, dtype);
  }
  RunWrites(bench, 256, KvLayout::kNhd, DType::kBF16);
}

void BenchStates(GpuBench& bench) {
  constexpr int64_t kRows = 8192, kQueryHeads = 32;
  struct States {
    // Two states of bf16 values in, one out.
    DeviceTensor outs = Normal(DType::kBF16, {2, kRows, kQueryHeads, kDim}, 1);
    DeviceTensor lses = Normal(DType::kF32, {2, kRows, kQueryHeads}, 2);
    DeviceTensor out{DType::kBF16, {kRows, kQueryHeads, kDim}};
    DeviceTensor lse{DType::kF32, {kRows, kQueryHeads}};
  };
  const double state_bytes = static_cast<double>(kRows * kQueryHeads) * (3 * kDim * 2 + 3 * 4);
  bench.Run(
      {.name = "merge states 8192 tokens, 32 heads",
       .bytes = state_bytes,
       .moves = true,
       .copies = CopiesFor(state_bytes, 6)},
      [](int) { return States(); },
      [](const ExecContext& context, const States& one) {
        MergeStatesArgs args;
        args.outs = one.outs.view;
        args.lses = one.lses.view;
        args.out = one.out.view;
        args.lse = one.lse.view;
        return Cuda().MergeStates(context, args);
      });

  struct Rows {
    DeviceTensor k = Normal(DType::kBF16, {kRows, kHeads, kDim}, 3);
    DeviceTensor v = Normal(DType::kBF16, {kRows, kHeads, kDim}, 4);
    DeviceTensor k_scale{DType::kF32, {1}}, v_scale{DType::kF32, {1}}, imp{DType::kI32, {kRows}};
  };
  const auto make_rows = [](int) { return Rows(); };
  BenchCase rows = {.name = "scales of K and V, 8192 tokens",
                    .bytes = RowBytes(kRows, 2),
                    .copies = CopiesFor(RowBytes(kRows, 2), 20)};
  bench.Run(rows, make_rows, [](const ExecContext& context, const Rows& one) {
    ComputeKvScalesArgs args;
    args.k = one.k.view;
    args.v = one.v.view;
    args.k_scale = one.k_scale.view;
    args.v_scale = one.v_scale.view;
    return Cuda().ComputeKvScales(context, args);
  });
  for (const int64_t tokens : {int64_t{256}, int64_t{2048}, kRows}) {
    RunScalesAndWrite(bench, tokens);
  }
  rows.name = "select 16 % of 8192 tokens";
  bench.Run(rows, make_rows, [](const ExecContext& context, const Rows& one) {
    SelectHkvdArgs args;
    args.v_new = one.k.view;
    args.v_old = one.v.view;
    args.imp = one.imp.view;
    return Cuda().SelectHkvd(context, args);
  });
}

void BenchBlocksAndLists(GpuBench& bench) {
  for (const DType dtype : {DType::kBF16, DType::kF8E4M3}) RunGather(bench, dtype);
  for (const int64_t pairs : {8, 64, 256}) RunCopies(bench, pairs);
  RunLists(bench, "slots of 256 tokens", kTokens * 8.0,
           [](const ExecContext& context, const ListCase& of) {
             return CudaComputeSlotMapping(context, {.query_start_loc = of.starts.view,
                                                     .positions = of.positions.view,
                                                     .block_table = of.table.view,
                                                     .block_size = kBlockSize,
                                                     .slot_mapping = of.slots.view});
           });
  RunLists(bench, "window lists of 256 tokens, 128 wide", kTokens * kWidth * 4.0,
           [](const ExecContext& context, const ListCase& of) {
             return CudaBuildSwaIndices(context, {.window = kWidth,
                                                  .query_start_loc = of.starts.view,
                                                  .seq_lens = of.lens.view,
                                                  .block_table = of.table.view,
                                                  .block_size = kBlockSize,
                                                  .indices = of.indices.view,
                                                  .lens = of.counts.view});
           });
  RunLists(bench, "top-k slots of 256 tokens, 128 wide", 2.0 * kTokens * kWidth * 4.0,
           [](const ExecContext& context, const ListCase& of) {
             return CudaBuildTopkSlots(context, {.query_start_loc = of.starts.view,
                                                 .indices = of.list.view,
                                                 .block_table = of.table.view,
                                                 .block_size = kBlockSize,
                                                 .slots = of.indices.view,
                                                 .counts = of.counts.view});
           });
}

}  // namespace kvblocks::attention::cuda
