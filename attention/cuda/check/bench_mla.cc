// Benchmarks of multi-head latent attention: 512 + 64 values per key.

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

constexpr int64_t kValues = 512, kRotary = 64;
constexpr float kScale = 0.0721688f;

struct DenseShape {
  int64_t requests = 128, length = 4096, heads = 16, queries = 1, block_size = 64;
  DType dtype = DType::kBF16;  // of the cache
};

struct DenseBatch {
  DeviceTensor cache, q, out, lse, table, seq_lens, starts, scale;
  MlaDecodeArgs args;

  DenseBatch(const DenseShape& shape, uint32_t seed) {
    const int64_t columns = (shape.length + shape.block_size - 1) / shape.block_size;
    const int64_t tokens = shape.requests * shape.queries;
    std::vector<int64_t> ids(shape.requests * columns), offsets(shape.requests + 1);
    std::iota(ids.begin(), ids.end(), 0);
    std::shuffle(ids.begin(), ids.end(), std::mt19937(seed));
    for (int64_t b = 0; b <= shape.requests; ++b) offsets[b] = b * shape.queries;
    cache =
        DeviceTensor(shape.dtype, {shape.requests * columns, shape.block_size, kValues + kRotary});
    cache.FillNormal(seed);
    q = DeviceTensor(DType::kBF16, {tokens, shape.heads, kValues + kRotary});
    q.FillNormal(seed + 1);
    out = DeviceTensor(DType::kBF16, {tokens, shape.heads, kValues});
    lse = DeviceTensor(DType::kF32, {tokens, shape.heads});
    table = DeviceTensor(DType::kI32, {shape.requests, columns});
    table.SetInts(ids);
    seq_lens = DeviceTensor(DType::kI32, {shape.requests});
    seq_lens.SetInts(std::vector<int64_t>(shape.requests, shape.length));
    starts = DeviceTensor(DType::kI32, {shape.requests + 1});
    starts.SetInts(offsets);
    args.q_lat = q.view;
    args.cache.layout = KvLayout::kMlaLatent;
    args.cache.k = cache.view;
    args.cache.v = cache.view.Slice(2, 0, kValues).value();
    args.block_table = table.view;
    args.seq_lens = seq_lens.view;
    args.max_seq_len = shape.length;
    if (shape.queries > 1) args.query_start_loc = starts.view;
    args.params.scale = kScale;
    if (shape.dtype != DType::kBF16) {
      scale = DeviceTensor(DType::kF32, {1});
      scale.SetInts({1});
      args.params.scales = {scale.view, scale.view};
    }
    args.out = out.view;
    args.lse = lse.view;
  }
};

void RunDense(GpuBench& bench, const DenseShape& shape) {
  const std::string name =
      absl::StrCat("mla ", shape.requests, "x", shape.length, " heads ", shape.heads,
                   shape.queries > 1 ? absl::StrCat(" queries ", shape.queries) : std::string(),
                   " block ", shape.block_size,
                   shape.dtype == DType::kBF16 ? "" : absl::StrCat(" ", Name(shape.dtype)));
  if (!bench.wants(name)) return;
  const double keys = static_cast<double>(shape.requests) * shape.length;
  const double rows = static_cast<double>(shape.requests) * shape.queries * shape.heads;
  BenchCase bench_case;
  bench_case.name = name;
  bench_case.bytes = ElementBytes(shape.dtype) * keys * (kValues + kRotary) +
                     2 * rows * (2 * kValues + kRotary);
  bench_case.flops = 2 * rows * shape.length * (2 * kValues + kRotary);
  bench_case.copies = CopiesFor(bench_case.bytes, 20);
  std::vector<std::unique_ptr<DenseBatch>> batches;
  for (int copy = 0; copy < bench_case.copies; ++copy) {
    batches.push_back(std::make_unique<DenseBatch>(shape, copy * 10 + 7));
  }
  bench_case.enqueue = [&](const ExecContext& context, int copy) {
    return Cuda().MlaDecode(context, batches[copy]->args);
  };
  bench.Run(bench_case);
}

// A cache of random rows in any layout.
struct RandomCache {
  DeviceTensor memory, values, rotary, slots;
  KvCacheView view;

  RandomCache(KvLayout layout, int64_t num_blocks, int64_t block_size) {
    const int64_t rows = num_blocks * block_size;
    const int64_t coded = layout == KvLayout::kMlaFp8_584 ? kValues - kRotary : kValues;
    view.layout = layout;
    if (layout == KvLayout::kMlaLatent) {
      memory = DeviceTensor(DType::kBF16, {num_blocks, block_size, kValues + kRotary});
      memory.FillNormal(3);
      view.k = memory.view;
      view.v = memory.view.Slice(2, 0, kValues).value();
      return;
    }
    if (layout == KvLayout::kMlaFp8_656) {
      memory = DeviceTensor(DType::kU8, {num_blocks, block_size, 656});
    } else {
      memory = DeviceTensor(DType::kU8, {num_blocks, MlaFp8_584BlockBytes(block_size)});
      view.planar_block_size = block_size;
    }
    view.k = memory.view;
    values = DeviceTensor(DType::kBF16, {rows, coded});
    values.FillNormal(4);
    rotary = DeviceTensor(DType::kBF16, {rows, kRotary});
    rotary.FillNormal(5);
    std::vector<int64_t> all(rows);
    std::iota(all.begin(), all.end(), 0);
    slots = DeviceTensor(DType::kI64, {rows});
    slots.SetInts(all);
  }
  // Quantises the rows; the other layout has them already.
  absl::Status Fill(const ExecContext& context) {
    if (view.layout == KvLayout::kMlaLatent) return absl::OkStatus();
    ConcatAndCacheMlaArgs args;
    args.kv_c = values.view;
    args.k_pe = rotary.view;
    args.slot_mapping = slots.view;
    args.cache = view;
    return Cuda().ConcatAndCacheMla(context, args);
  }
};

struct SparseShape {
  std::string name;
  KvLayout layout = KvLayout::kMlaFp8_656;
  int64_t requests = 128, queries = 2, heads = 128, entries = 2048, extra_entries = 0;
};

// Lists of slots without order, none twice in a list.
std::vector<int64_t> RandomSlots(int64_t lists, int64_t entries, int64_t rows,
                                 std::mt19937& random) {
  std::vector<int64_t> slots;
  for (int64_t n = 0; n < lists; ++n) {
    // Steps of varied length through the cache, then shuffled.
    const int64_t step = rows / entries;
    const auto begin = static_cast<int64_t>(slots.size());
    for (int64_t k = 0; k < entries; ++k) {
      slots.push_back(k * step + static_cast<int64_t>(random() % step));
    }
    std::shuffle(slots.begin() + begin, slots.end(), random);
  }
  return slots;
}

void RunSparse(GpuBench& bench, const SparseShape& shape) {
  if (!bench.wants(shape.name)) return;
  const int64_t lists = shape.requests * shape.queries;
  const bool is_584 = shape.layout == KvLayout::kMlaFp8_584;
  const int64_t dim = is_584 ? kValues : kValues + kRotary;
  const int64_t row_bytes = is_584 ? 584 : shape.layout == KvLayout::kMlaFp8_656 ? 656 : 2 * dim;
  RandomCache main(shape.layout, 1 << 13, 64), extra(shape.layout, 1 << 13, 64);
  if (!main.Fill(bench.context()).ok() || !extra.Fill(bench.context()).ok()) std::abort();
  BenchCase bench_case;
  bench_case.name = shape.name;
  const double keys = static_cast<double>(lists) * (shape.entries + shape.extra_entries);
  const double rows = static_cast<double>(lists) * shape.heads;
  bench_case.bytes = keys * row_bytes + rows * 2 * (dim + kValues);
  bench_case.flops = 2 * keys * shape.heads * (dim + kValues);
  bench_case.copies = CopiesFor(bench_case.bytes, 10);
  struct Lists {
    DeviceTensor q, out, lse, main, extra;
    SparseMlaDecodeArgs args;
  };
  std::vector<Lists> all(bench_case.copies);
  std::mt19937 random(5);
  for (Lists& each : all) {
    each.q = DeviceTensor(DType::kBF16, {shape.requests, shape.queries, shape.heads, dim});
    each.q.FillNormal(random());
    each.out = DeviceTensor(DType::kBF16, {shape.requests, shape.queries, shape.heads, kValues});
    each.lse = DeviceTensor(DType::kF32, {shape.requests, shape.queries, shape.heads});
    each.main = DeviceTensor(DType::kI32, {shape.requests, shape.queries, shape.entries});
    each.main.SetInts(RandomSlots(lists, shape.entries, 64 << 13, random));
    each.args.q = each.q.view;
    each.args.main = {main.view, each.main.view, {}};
    if (shape.extra_entries > 0) {
      each.extra = DeviceTensor(DType::kI32, {shape.requests, shape.queries, shape.extra_entries});
      each.extra.SetInts(RandomSlots(lists, shape.extra_entries, 64 << 13, random));
      each.args.extra = {extra.view, each.extra.view, {}};
    }
    each.args.scale = kScale;
    each.args.out = each.out.view;
    each.args.lse = each.lse.view;
  }
  bench_case.enqueue = [&](const ExecContext& context, int copy) {
    return Cuda().SparseMlaDecode(context, all[copy].args);
  };
  bench.Run(bench_case);
}

}  // namespace

void BenchMla(GpuBench& bench) {
  for (const int64_t heads : {16, 32, 64, 128}) {
    RunDense(bench, {.heads = heads});
  }
  RunDense(bench, {.heads = 16, .dtype = DType::kF8E4M3});
  RunDense(bench, {.heads = 16, .queries = 4});
  RunDense(bench, {.heads = 16, .block_size = 16});
  RunDense(bench, {.requests = 16, .length = 8192, .heads = 16});
  RunDense(bench, {.requests = 16, .length = 8192, .heads = 128});
  RunDense(bench, {.requests = 1, .length = 32768, .heads = 16});
  RunDense(bench, {.requests = 1, .length = 32768, .heads = 128});
  RunSparse(bench, {.name = "sparse mla fp8_656 128x2 heads 128 K 2048"});
  RunSparse(bench,
            {.name = "sparse mla bf16 128x2 heads 128 K 2048", .layout = KvLayout::kMlaLatent});
  RunSparse(bench, {.name = "sparse mla fp8_656 128x1 heads 16 K 2048", .queries = 1, .heads = 16});
  RunSparse(bench, {.name = "sparse mla fp8_584 128x1 heads 64 K 128+512",
                    .layout = KvLayout::kMlaFp8_584,
                    .queries = 1,
                    .heads = 64,
                    .entries = 128,
                    .extra_entries = 512});
}

}  // namespace kvblocks::attention::cuda
