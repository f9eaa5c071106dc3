// Benchmarks of paged decode and prefill.

#include <algorithm>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "attention/cuda/check/gpu_bench.h"
#include "kvblocks/attention_cuda.h"

namespace kvblocks::attention::cuda {
namespace {

struct Shape {
  std::vector<int64_t> lengths, q_lens;
  int64_t heads = 32, kv_heads = 8, dim = 128, block_size = 16;
  DType cache_dtype = DType::kBF16;
  DType q_dtype = DType::kBF16;
  KvLayout layout = KvLayout::kNhd;
  int64_t shared_prefix = 0;  // keys that all requests have in the same blocks
  int64_t chunk = 0;          // of local attention
  bool is_sparse = false;  // blocks of 64 keys as Phi-3-small sees them: 16 local ones, each eighth
  bool has_mask = false;   // one byte per query and key, none of which hides

  // Keys that the last query sees, in one head.
  int64_t SeenOf(int64_t length) const {
    if (chunk > 0) return (length - 1) % chunk + 1;
    const int64_t local = kLocalBlocks * kSparseBlock;
    return is_sparse && length > local ? local + (length - local) / kSparseStride : length;
  }
  static constexpr int64_t kLocalBlocks = 16, kSparseBlock = 64, kSparseStride = 8;
};

// A batch over a paged cache whose blocks are in random order; K and V in one allocation, as
// engines have them.
struct Batch {
  Shape shape;
  DeviceTensor cache, q, out, block_table, seq_lens, query_start_loc, k_scale, v_scale, mask;
  PagedPrefillArgs prefill;
  PagedDecodeArgs decode;

  Batch(const Shape& the_shape, uint32_t seed) : shape(the_shape) {
    const auto requests = static_cast<int64_t>(shape.lengths.size());
    std::vector<int64_t> starts = {0};
    const int64_t shared = shape.shared_prefix / shape.block_size;
    int64_t num_blocks = 0, columns = 1, longest = 0, longest_q = 0;
    for (int64_t b = 0; b < requests; ++b) {
      const int64_t blocks = (shape.lengths[b] + shape.block_size - 1) / shape.block_size;
      num_blocks += blocks - (b == 0 ? 0 : shared);
      columns = std::max(columns, blocks);
      longest = std::max(longest, shape.lengths[b]);
      longest_q = std::max(longest_q, shape.q_lens[b]);
      starts.push_back(starts.back() + shape.q_lens[b]);
    }
    const std::vector<int64_t> ids = Shuffled(num_blocks, seed);
    std::vector<int64_t> table(requests * columns, 0);
    int64_t next = 0;
    for (int64_t b = 0; b < requests; ++b) {
      const int64_t blocks = (shape.lengths[b] + shape.block_size - 1) / shape.block_size;
      for (int64_t c = 0; c < blocks; ++c) {
        table[b * columns + c] = b > 0 && c < shared ? table[c] : ids[next++] + 1;
      }
    }
    const bool nhd = shape.layout == KvLayout::kNhd;
    cache = Normal(
        shape.cache_dtype,
        nhd ? std::vector<int64_t>{num_blocks + 1, 2, shape.block_size, shape.kv_heads, shape.dim}
            : std::vector<int64_t>{num_blocks + 1, 2, shape.kv_heads, shape.block_size, shape.dim},
        seed);
    const int64_t tokens = starts.back();
    q = Normal(shape.q_dtype, {tokens, shape.heads, shape.dim}, seed + 1);
    out = DeviceTensor(DType::kBF16, {tokens, shape.heads, shape.dim});
    block_table = Ints(DType::kI32, {requests, columns}, table);
    seq_lens = Ints(DType::kI32, {requests}, shape.lengths);
    query_start_loc = Ints(DType::kI32, {requests + 1}, starts);

    AttnParams params;
    params.scale = 0.08838835f;
    TensorView k = cache.view.Select(1, 0).value(), v = cache.view.Select(1, 1).value();
    if (shape.layout == KvLayout::kPagedX) {
      // The same bytes: [.., D / x, BS, x] and [.., D, BS].
      const int64_t x = 16 / ElementBytes(shape.cache_dtype);
      k.rank = 5;
      k.extent[2] = shape.dim / x, k.extent[3] = shape.block_size, k.extent[4] = x;
      k.stride[2] = shape.block_size * x, k.stride[3] = x, k.stride[4] = 1;
      v.extent[2] = shape.dim, v.extent[3] = shape.block_size;
      v.stride[2] = shape.block_size;
    }
    const ConstKvCacheView view(shape.layout, k, v);
    params.chunk = shape.chunk;
    if (shape.is_sparse) {
      params.block_sparse.local_blocks = Shape::kLocalBlocks;
      params.block_sparse.vert_stride = Shape::kSparseStride;
      params.block_sparse.block_size = Shape::kSparseBlock;
    }
    if (shape.has_mask) {
      mask = DeviceTensor(DType::kBool, {longest_q, longest});
      mask.FillByte(0);
      params.mask.tensor = mask.view;
      params.mask.form = MaskForm::kShared;
    }
    if (ElementBytes(shape.cache_dtype) == 1) {
      k_scale = Ints(DType::kF32, {1}, {1});
      v_scale = Ints(DType::kF32, {1}, {1});
      params.scales = {k_scale.view, v_scale.view};
    }
    prefill.q = q.view;
    prefill.cache = view;
    prefill.query_start_loc = query_start_loc.view;
    prefill.seq_lens = seq_lens.view;
    prefill.block_table = block_table.view;
    prefill.max_query_len = longest_q;
    prefill.max_seq_len = longest;
    prefill.params = params;
    prefill.out = out.view;
    decode.q = q.view;
    decode.cache = view;
    decode.block_table = block_table.view;
    decode.seq_lens = seq_lens.view;
    decode.max_seq_len = longest;
    decode.params = params;
    decode.out = out.view;
  }
};

std::string Tokens(int64_t count) {
  return count % 1024 == 0 ? absl::StrCat(count / 1024, "k") : absl::StrCat(count);
}

std::string NameOf(const char* what, const Shape& shape, const std::string& lengths) {
  const std::string queries =
      shape.q_dtype == DType::kBF16 ? "" : absl::StrCat("q ", Name(shape.q_dtype), " ");
  return absl::StrCat(what, " ", queries, Name(shape.cache_dtype), " ", Name(shape.layout), " ",
                      lengths, " heads ", shape.heads, "/", shape.kv_heads, " block ",
                      shape.block_size,
                      shape.dim == 128 ? std::string() : absl::StrCat(" D=", shape.dim),
                      shape.chunk > 0 ? absl::StrCat(" chunk ", shape.chunk) : std::string(),
                      shape.is_sparse ? " sparse" : "", shape.has_mask ? " mask" : "");
}

// What the operation at least reads and computes. A cascade reads shared keys once.
BenchCase CaseOf(std::string name, const Shape& shape) {
  BenchCase bench_case;
  bench_case.name = std::move(name);
  double tokens = 0;
  for (size_t b = 0; b < shape.lengths.size(); ++b) {
    const auto queries = static_cast<double>(shape.q_lens[b]);
    const auto length = static_cast<double>(shape.SeenOf(shape.lengths[b]));
    const double seen = length * (1 - (queries - 1) / 2.0 / shape.lengths[b]);
    bench_case.bytes += 2.0 * (length - (b == 0 ? 0 : shape.shared_prefix)) * shape.kv_heads *
                        shape.dim * ElementBytes(shape.cache_dtype);
    bench_case.flops += 4.0 * seen * queries * shape.heads * shape.dim;
    tokens += queries;
  }
  bench_case.bytes += 2.0 * tokens * shape.heads * shape.dim * ElementBytes(shape.q_dtype);
  return bench_case;
}

absl::Status Decode(const ExecContext& context, const Batch& batch) {
  return Cuda().PagedDecode(context, batch.decode);
}

void RunDecode(GpuBench& bench, const Shape& shape, const std::string& lengths, int most_copies) {
  BenchCase bench_case = CaseOf(NameOf("decode", shape, lengths), shape);
  bench_case.copies = CopiesFor(bench_case.bytes, most_copies);
  bench.Run(
      bench_case, [&](int copy) { return Batch(shape, copy * 10 + 7); }, Decode);
}

void RunPrefill(GpuBench& bench, const Shape& shape, const std::string& lengths) {
  BenchCase bench_case = CaseOf(NameOf("prefill", shape, lengths), shape);
  bench_case.copies = 1;
  bench.Run(
      bench_case, [&](int) { return Batch(shape, 5); },
      [](const ExecContext& context, const Batch& batch) {
        return Cuda().PagedPrefill(context, batch.prefill);
      });
}

// The same batch by a cascade and by decode, which reads the shared keys once per request.
void RunCascade(GpuBench& bench, const Shape& shape, const std::string& lengths) {
  const auto make = [&](int copy) { return Batch(shape, copy * 10 + 9); };
  BenchCase bench_case = CaseOf(NameOf("cascade", shape, lengths), shape);
  bench_case.copies = 6;
  bench.Run(bench_case, make, [](const ExecContext& context, const Batch& batch) {
    return Cuda().Cascade(context, {batch.prefill, batch.shape.shared_prefix});
  });
  bench_case.name = NameOf("decode, no cascade", shape, lengths);
  bench.Run(bench_case, make, Decode);
}

Shape DecodeShape(int64_t requests, int64_t length) {
  Shape shape;
  shape.lengths.assign(requests, length);
  shape.q_lens.assign(requests, 1);
  return shape;
}

}  // namespace

void BenchDecode(GpuBench& bench) {
  for (const auto& [heads, kv_heads] : {std::pair<int64_t, int64_t>{32, 8}, {64, 8}, {32, 32}}) {
    for (const auto& [requests, length] :
         {std::pair<int64_t, int64_t>{128, 1024}, {64, 4096}, {32, 8192}, {8, 32768}}) {
      for (const int64_t block_size : {16, 64}) {
        Shape shape = DecodeShape(requests, length);
        shape.heads = heads;
        shape.kv_heads = kv_heads;
        shape.block_size = block_size;
        RunDecode(bench, shape, absl::StrCat(requests, "x", Tokens(length)), 8);
      }
    }
  }
  for (const KvLayout layout : {KvLayout::kNhd, KvLayout::kHnd}) {
    for (const DType dtype : {DType::kBF16, DType::kF8E4M3, DType::kF8E5M2, DType::kI8}) {
      Shape shape = DecodeShape(64, 4096);
      shape.cache_dtype = dtype;
      shape.layout = layout;
      if (dtype != DType::kBF16 || layout != KvLayout::kNhd) RunDecode(bench, shape, "64x4k", 8);
    }
  }
  Shape codes = DecodeShape(64, 4096);
  codes.cache_dtype = codes.q_dtype = DType::kF8E4M3;
  RunDecode(bench, codes, "64x4k", 8);
  for (const auto& [requests, length] :
       {std::pair<int64_t, int64_t>{1, 1024}, {1, 8192}, {8, 1024}, {1, 131072}}) {
    RunDecode(bench, DecodeShape(requests, length), absl::StrCat(requests, "x", Tokens(length)),
              80);
  }
  Shape skewed = DecodeShape(64, 512);
  skewed.lengths[20] = 32768;
  RunDecode(bench, skewed, "63x512+1x32k", 20);
  // Shapes that other instances take, or that leave keys out.
  for (const auto& [requests, length] : {std::pair<int64_t, int64_t>{64, 4096}, {8, 32768}}) {
    Shape chunked = DecodeShape(requests, length);
    chunked.chunk = 8192;
    RunDecode(bench, chunked, absl::StrCat(requests, "x", Tokens(length)), 8);
  }
  for (const DType dtype : {DType::kBF16, DType::kF8E4M3}) {
    Shape paged_x = DecodeShape(64, 4096);
    paged_x.layout = KvLayout::kPagedX;
    paged_x.cache_dtype = dtype;
    RunDecode(bench, paged_x, "64x4k", 8);
  }
  Shape sparse = DecodeShape(8, 32768);
  sparse.is_sparse = true;
  RunDecode(bench, sparse, "8x32k", 8);
  Shape masked = DecodeShape(64, 4096);
  masked.has_mask = true;
  RunDecode(bench, masked, "64x4k", 8);
}

void BenchCascade(GpuBench& bench) {
  Shape shape = DecodeShape(64, 8192 + 256);
  shape.shared_prefix = 8192;
  RunCascade(bench, shape, "64x(8k shared + 256)");
}

void BenchPrefill(GpuBench& bench) {
  for (const auto& [requests, length] :
       {std::pair<int64_t, int64_t>{8, 2048}, {1, 8192}, {2, 8192}, {1, 32768}}) {
    Shape shape = DecodeShape(requests, length);
    shape.q_lens = shape.lengths;
    RunPrefill(bench, shape, absl::StrCat(requests, "x", Tokens(length)));
  }
  for (const DType query : {DType::kBF16, DType::kF8E4M3}) {
    for (const auto& [requests, length] :
         {std::pair<int64_t, int64_t>{8, 2048}, {1, 8192}, {1, 32768}}) {
      Shape codes = DecodeShape(requests, length);
      codes.q_lens = codes.lengths;
      codes.cache_dtype = DType::kF8E4M3;
      codes.q_dtype = query;
      RunPrefill(bench, codes, absl::StrCat(requests, "x", Tokens(length)));
    }
    Shape chunk = DecodeShape(1, 32768);
    chunk.q_lens = {512};
    chunk.cache_dtype = DType::kF8E4M3;
    chunk.q_dtype = query;
    RunPrefill(bench, chunk, "512 on 32k");
  }
  // New tokens on a long context: fewer row tiles than multiprocessors, but for 512.
  for (const auto& [queries, length] : {std::pair<int64_t, int64_t>{512, 32768},
                                        {160, 32768},
                                        {64, 32768},
                                        {64, 8192},
                                        {20, 131072}}) {
    Shape chunk = DecodeShape(1, length);
    chunk.q_lens = {queries};
    RunPrefill(bench, chunk, absl::StrCat(queries, " on ", Tokens(length)));
  }
  Shape whole = DecodeShape(1, 8192);
  whole.q_lens = whole.lengths;
  Shape chunked = whole, sparse = whole, masked = whole, paged_x = whole;
  chunked.chunk = 2048;
  sparse.is_sparse = true;
  masked.has_mask = true;
  paged_x.layout = KvLayout::kPagedX;
  for (const Shape& shape : {chunked, sparse, masked, paged_x}) RunPrefill(bench, shape, "1x8k");
}

}  // namespace kvblocks::attention::cuda
