// Benchmarks of what moves or merges rows: cache writes, scales, states, selection.

#include <algorithm>
#include <memory>
#include <numeric>
#include <random>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "kvblocks/attention/cuda/check/gpu_bench.h"
#include "kvblocks/attention/cuda/cuda_ops.h"

namespace kvblocks::attention::cuda {
namespace {

std::vector<int64_t> Shuffled(int64_t count, int64_t first, uint32_t seed) {
  std::vector<int64_t> ids(count);
  std::iota(ids.begin(), ids.end(), first);
  std::shuffle(ids.begin(), ids.end(), std::mt19937(seed));
  return ids;
}

// --- Cache writes ---

struct WriteCase {
  DeviceTensor k, v, slots, k_cache, v_cache, scale;
  ReshapeAndCacheArgs args;

  WriteCase(int64_t tokens, KvLayout layout, DType dtype, uint32_t seed) {
    constexpr int64_t kHeads = 8, kDim = 128, kBlock = 16;
    const int64_t blocks = (tokens + kBlock - 1) / kBlock;
    const int64_t x = 16 / ElementBytes(dtype);
    k = DeviceTensor(DType::kBF16, {tokens, kHeads, kDim});
    v = DeviceTensor(DType::kBF16, {tokens, kHeads, kDim});
    k.FillNormal(seed);
    v.FillNormal(seed + 1);
    const bool paged_x = layout == KvLayout::kPagedX;
    const std::vector<int64_t> nhd = {blocks, kBlock, kHeads, kDim};
    const std::vector<int64_t> hnd = {blocks, kHeads, kBlock, kDim};
    k_cache =
        DeviceTensor(dtype, paged_x ? std::vector<int64_t>{blocks, kHeads, kDim / x, kBlock, x}
                            : layout == KvLayout::kNhd ? nhd
                                                       : hnd);
    v_cache = DeviceTensor(dtype, paged_x ? std::vector<int64_t>{blocks, kHeads, kDim, kBlock}
                                  : layout == KvLayout::kNhd ? nhd
                                                             : hnd);
    // Blocks in random order, tokens in order within them: a prefill.
    const std::vector<int64_t> ids = Shuffled(blocks, 0, seed);
    std::vector<int64_t> where(tokens);
    for (int64_t t = 0; t < tokens; ++t) where[t] = ids[t / kBlock] * kBlock + t % kBlock;
    slots = DeviceTensor(DType::kI64, {tokens});
    slots.SetInts(where);
    // No power of two, by which codes would be made in fewer steps.
    scale = DeviceTensor(DType::kF32, {1});
    scale.SetInts({3});
    args.k = k.view;
    args.v = v.view;
    args.slot_mapping = slots.view;
    args.cache = KvCacheView(layout, k_cache.view, v_cache.view);
    if (ElementBytes(dtype) == 1) args.scales = {scale.view, scale.view};
  }
};

void RunWrites(GpuBench& bench, int64_t tokens, KvLayout layout, DType dtype) {
  BenchCase bench_case;
  bench_case.name =
      absl::StrCat("cache write ", tokens, " tokens, bf16 to ", Name(dtype), " ", Name(layout));
  if (!bench.wants(bench_case.name)) return;
  bench_case.bytes =
      2.0 * static_cast<double>(tokens) * 8 * 128 * static_cast<double>(2 + ElementBytes(dtype));
  bench_case.moves = true;
  bench_case.copies = CopiesFor(bench_case.bytes, 20);
  std::vector<std::unique_ptr<WriteCase>> cases;
  for (int copy = 0; copy < bench_case.copies; ++copy) {
    cases.push_back(std::make_unique<WriteCase>(tokens, layout, dtype, copy * 3 + 1));
  }
  bench_case.enqueue = [&](const ExecContext& context, int copy) {
    return Cuda().ReshapeAndCache(context, cases[copy]->args);
  };
  bench.Run(bench_case);
}

// The write reads from L2 what the scales have left there.
void RunScalesAndWrite(GpuBench& bench, int64_t tokens) {
  BenchCase both;
  both.name = absl::StrCat("scales, then write to f8_e4m3, ", tokens, " tokens");
  if (!bench.wants(both.name)) return;
  both.bytes = 2.0 * static_cast<double>(tokens * 8 * 128) * 3;  // heads of 128 values
  both.moves = true;
  both.copies = CopiesFor(both.bytes, 20);
  std::vector<std::unique_ptr<WriteCase>> cases;
  std::vector<DeviceTensor> v_scales(both.copies);
  for (int copy = 0; copy < both.copies; ++copy) {
    cases.push_back(
        std::make_unique<WriteCase>(tokens, KvLayout::kNhd, DType::kF8E4M3, copy * 3 + 1));
    v_scales[copy] = DeviceTensor(DType::kF32, {1});
  }
  both.enqueue = [&](const ExecContext& context, int copy) {
    WriteCase& one = *cases[copy];
    ScaleAndCacheArgs args;
    args.scales.k = one.k.view;
    args.scales.v = one.v.view;
    args.scales.k_scale = one.scale.view;
    args.scales.v_scale = v_scales[copy].view;
    args.slot_mapping = one.slots.view;
    args.cache = one.args.cache;
    return Cuda().ScaleAndCache(context, args);
  };
  bench.Run(both);
}

}  // namespace

void BenchCacheWrites(GpuBench& bench) {
  for (const KvLayout layout : {KvLayout::kNhd, KvLayout::kHnd, KvLayout::kPagedX}) {
    for (const DType dtype : {DType::kBF16, DType::kF8E4M3}) RunWrites(bench, 8192, layout, dtype);
  }
  RunWrites(bench, 256, KvLayout::kNhd, DType::kBF16);
}

void BenchStates(GpuBench& bench) {
  constexpr int64_t kTokens = 8192, kHeads = 32, kDim = 128;
  BenchCase merge;
  merge.name = "merge states 8192 tokens, 32 heads";
  if (bench.wants(merge.name)) {
    // Two states of bf16 values in, one out.
    merge.bytes = static_cast<double>(kTokens * kHeads) * (3 * kDim * 2 + 3 * 4);
    merge.moves = true;
    merge.copies = CopiesFor(merge.bytes, 6);
    struct Case {
      DeviceTensor outs, lses, out, lse;
    };
    std::vector<Case> cases(merge.copies);
    for (Case& one : cases) {
      one.outs = DeviceTensor(DType::kBF16, {2, kTokens, kHeads, kDim});
      one.outs.FillNormal(1);
      one.lses = DeviceTensor(DType::kF32, {2, kTokens, kHeads});
      one.lses.FillNormal(2);
      one.out = DeviceTensor(DType::kBF16, {kTokens, kHeads, kDim});
      one.lse = DeviceTensor(DType::kF32, {kTokens, kHeads});
    }
    merge.enqueue = [&](const ExecContext& context, int copy) {
      MergeStatesArgs args;
      args.outs = cases[copy].outs.view;
      args.lses = cases[copy].lses.view;
      args.out = cases[copy].out.view;
      args.lse = cases[copy].lse.view;
      return Cuda().MergeStates(context, args);
    };
    bench.Run(merge);
  }
  struct Rows {
    DeviceTensor k, v, k_scale, v_scale, imp;
  };
  const auto make_rows = [&](int copies) {
    std::vector<Rows> rows(copies);
    for (Rows& one : rows) {
      one.k = DeviceTensor(DType::kBF16, {kTokens, 8, kDim});
      one.v = DeviceTensor(DType::kBF16, {kTokens, 8, kDim});
      one.k.FillNormal(3);
      one.v.FillNormal(4);
      one.k_scale = DeviceTensor(DType::kF32, {1});
      one.v_scale = DeviceTensor(DType::kF32, {1});
      one.imp = DeviceTensor(DType::kI32, {kTokens});
    }
    return rows;
  };
  BenchCase scales;
  scales.name = "scales of K and V, 8192 tokens";
  scales.bytes = 2.0 * static_cast<double>(kTokens * 8 * kDim) * 2;
  scales.copies = CopiesFor(scales.bytes, 20);
  if (bench.wants(scales.name)) {
    std::vector<Rows> rows = make_rows(scales.copies);
    scales.enqueue = [&](const ExecContext& context, int copy) {
      ComputeKvScalesArgs args;
      args.k = rows[copy].k.view;
      args.v = rows[copy].v.view;
      args.k_scale = rows[copy].k_scale.view;
      args.v_scale = rows[copy].v_scale.view;
      return Cuda().ComputeKvScales(context, args);
    };
    bench.Run(scales);
  }
  for (const int64_t tokens : {int64_t{256}, int64_t{2048}, kTokens}) {
    RunScalesAndWrite(bench, tokens);
  }
  BenchCase select = scales;
  select.name = "select 16 % of 8192 tokens";
  if (bench.wants(select.name)) {
    std::vector<Rows> rows = make_rows(select.copies);
    select.enqueue = [&](const ExecContext& context, int copy) {
      SelectHkvdArgs args;
      args.v_new = rows[copy].k.view;
      args.v_old = rows[copy].v.view;
      args.imp = rows[copy].imp.view;
      return Cuda().SelectHkvd(context, args);
    };
    bench.Run(select);
  }
}

}  // namespace kvblocks::attention::cuda
