// Benchmarks of multi-head latent attention: 512 + 64 values per key.

#include <algorithm>
#include <cstdlib>
#include <optional>
#include <random>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "attention/cuda/check/gpu_bench.h"
#include "kvblocks/attention_cuda.h"

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
    std::vector<int64_t> offsets = UpTo(shape.requests + 1);
    for (int64_t& offset : offsets) offset *= shape.queries;
    cache =
        Normal(shape.dtype, {shape.requests * columns, shape.block_size, kValues + kRotary}, seed);
    q = Normal(DType::kBF16, {tokens, shape.heads, kValues + kRotary}, seed + 1);
    out = DeviceTensor(DType::kBF16, {tokens, shape.heads, kValues});
    lse = DeviceTensor(DType::kF32, {tokens, shape.heads});
    table = Ints(DType::kI32, {shape.requests, columns}, Shuffled(shape.requests * columns, seed));
    seq_lens =
        Ints(DType::kI32, {shape.requests}, std::vector<int64_t>(shape.requests, shape.length));
    starts = Ints(DType::kI32, {shape.requests + 1}, offsets);
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
      scale = Ints(DType::kF32, {1}, {1});
      args.params.scales = {scale.view, scale.view};
    }
    args.out = out.view;
    args.lse = lse.view;
  }
};

void RunDense(GpuBench& bench, const DenseShape& shape) {
  const double keys = static_cast<double>(shape.requests) * shape.length;
  const double rows = static_cast<double>(shape.requests) * shape.queries * shape.heads;
  const double bytes =
      ElementBytes(shape.dtype) * keys * (kValues + kRotary) + 2 * rows * (2 * kValues + kRotary);
  bench.Run(
      {.name = absl::StrCat(
           "mla ", shape.requests, "x", shape.length, " heads ", shape.heads,
           shape.queries > 1 ? absl::StrCat(" queries ", shape.queries) : std::string(), " block ",
           shape.block_size,
           shape.dtype == DType::kBF16 ? "" : absl::StrCat(" ", Name(shape.dtype))),
       .bytes = bytes,
       .flops = 2 * rows * shape.length * (2 * kValues + kRotary),
       .copies = CopiesFor(bytes, 20)},
      [&](int copy) { return DenseBatch(shape, copy * 10 + 7); },
      [](const ExecContext& context, const DenseBatch& batch) {
        return Cuda().MlaDecode(context, batch.args);
      });
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
      memory = Normal(DType::kBF16, {num_blocks, block_size, kValues + kRotary}, 3);
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
    values = Normal(DType::kBF16, {rows, coded}, 4);
    rotary = Normal(DType::kBF16, {rows, kRotary}, 5);
    slots = Ints(DType::kI64, {rows}, UpTo(rows));
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
  const int64_t lists = shape.requests * shape.queries;
  const bool is_584 = shape.layout == KvLayout::kMlaFp8_584;
  const int64_t dim = is_584 ? kValues : kValues + kRotary;
  const int64_t row_bytes = is_584 ? 584 : shape.layout == KvLayout::kMlaFp8_656 ? 656 : 2 * dim;
  const double keys = static_cast<double>(lists) * (shape.entries + shape.extra_entries);
  const double rows = static_cast<double>(lists) * shape.heads;
  const double bytes = keys * row_bytes + rows * 2 * (dim + kValues);
  struct Lists {
    DeviceTensor q, out, lse, main, extra;
    SparseMlaDecodeArgs args;
  };
  std::optional<RandomCache> main, extra;
  std::mt19937 random(5);
  const auto slots = [&](int64_t entries) {
    return Ints(DType::kI32, {shape.requests, shape.queries, entries},
                RandomSlots(lists, entries, 64 << 13, random));
  };
  bench.Run(
      {.name = shape.name,
       .bytes = bytes,
       .flops = 2 * keys * shape.heads * (dim + kValues),
       .copies = CopiesFor(bytes, 10)},
      [&](int copy) {
        for (std::optional<RandomCache>* cache : {&main, &extra}) {
          if (copy > 0) continue;  // all read the same two
          cache->emplace(shape.layout, 1 << 13, 64);
          if (!(*cache)->Fill(bench.context()).ok()) std::abort();
        }
        Lists each;
        each.q = Normal(DType::kBF16, {shape.requests, shape.queries, shape.heads, dim}, random());
        each.out =
            DeviceTensor(DType::kBF16, {shape.requests, shape.queries, shape.heads, kValues});
        each.lse = DeviceTensor(DType::kF32, {shape.requests, shape.queries, shape.heads});
        each.main = slots(shape.entries);
        each.args.q = each.q.view;
        each.args.main = {main->view, each.main.view, {}};
        if (shape.extra_entries > 0) {
          each.extra = slots(shape.extra_entries);
          each.args.extra = {extra->view, each.extra.view, {}};
        }
        each.args.scale = kScale;
        each.args.out = each.out.view;
        each.args.lse = each.lse.view;
        return each;
      },
      [](const ExecContext& context, const Lists& each) {
        return Cuda().SparseMlaDecode(context, each.args);
      });
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
  RunSparse(
      bench,
      {.name = "sparse mla fp8_656 8x1 heads 16 K 2048", .requests = 8, .queries = 1, .heads = 16});
  RunSparse(bench, {.name = "sparse mla bf16 8x1 heads 16 K 2048",
                    .layout = KvLayout::kMlaLatent,
                    .requests = 8,
                    .queries = 1,
                    .heads = 16});
  RunSparse(bench, {.name = "sparse mla fp8_584 128x1 heads 64 K 128+512",
                    .layout = KvLayout::kMlaFp8_584,
                    .queries = 1,
                    .heads = 64,
                    .entries = 128,
                    .extra_entries = 512});
}

}  // namespace kvblocks::attention::cuda
