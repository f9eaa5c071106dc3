// Attention on the CPU beside what the machine's memory and arithmetic give.
//
//   bazel run -c opt //bench:attention
//   bazel run -c opt //bench:attention -- --rounds 15 --processor_time
//
// A paged cache of blocks of 16 tokens in random order. Decode counts the bytes of the keys and
// values that are read, against the bandwidth of summing up a large buffer; prefill counts two
// multiply-adds per visible query-key pair, head and dimension, against the rate of a small matrix
// product that stays in the first-level cache. Peak and operation are measured in turns, and the
// median of their ratios is what counts, because other work on the machine slows both. With
// --processor_time, what other processes take is not counted. --smoke runs tiny shapes once, so
// that nothing here rots. The last rows say what a layer's call adds to its operations
// (layer_call.h); --only layer prints just these.

#include <algorithm>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <random>
#include <string>
#include <vector>

#include "attention/tensor/small_floats.h"
#include "bench/layer_call.h"
#include "bench/machine_peaks.h"
#include "kvblocks/attention_cpu.h"
#include "kvblocks/kv_cache_view.h"

namespace kvblocks::bench {
namespace {

using attention::ConstKvCacheView;
using attention::DType;
using attention::KvLayout;
using attention::TensorView;

constexpr int64_t kBlockSize = 16;

struct Shape {
  const char* name;
  DType dtype;
  KvLayout layout;
  int64_t requests, length, q_len;
  int64_t heads, kv_heads, dim, value_dim;
  bool decode;
};

double Median(std::vector<double> values) {
  std::sort(values.begin(), values.end());
  return values[values.size() / 2];
}

struct Memory {
  HugeBuffer bytes;
  TensorView view;

  Memory(DType dtype, const std::vector<int64_t>& extents) : bytes(BytesOf(dtype, extents)) {
    view = TensorView::Contiguous(bytes.data(), dtype, extents);
  }
  static int64_t BytesOf(DType dtype, const std::vector<int64_t>& extents) {
    int64_t elements = 1;
    for (const int64_t extent : extents) elements *= extent;
    return elements * attention::ElementBytes(dtype);
  }
  // Numbers around 0, the same few thousand again and again.
  void Fill(std::mt19937& random) {
    const int64_t element = attention::ElementBytes(view.dtype);
    std::normal_distribution<double> normal;
    const int64_t count = view.num_elements(), distinct = std::min<int64_t>(count, 4093);
    for (int64_t i = 0; i < distinct; ++i) {
      attention::StoreElement(view.dtype, normal(random), bytes.data() + i * element);
    }
    for (int64_t i = distinct; i < count; i += distinct) {
      std::memcpy(bytes.data() + i * element, bytes.data(),
                  static_cast<size_t>(std::min(distinct, count - i) * element));
    }
  }
  void SetInts(const std::vector<int64_t>& values) {
    for (size_t i = 0; i < values.size(); ++i) {
      const int32_t value = static_cast<int32_t>(values[i]);
      std::memcpy(bytes.data() + i * 4, &value, 4);
    }
  }
};

// What is counted of one call: bytes read or float operations.
double WorkOf(const Shape& shape) {
  if (shape.decode) {
    const int64_t values = shape.layout == KvLayout::kMlaLatent ? 0 : shape.value_dim;
    return static_cast<double>(shape.requests * shape.length * shape.kv_heads *
                               (shape.dim + values) * attention::ElementBytes(shape.dtype));
  }
  const double pairs =
      static_cast<double>(shape.q_len) * static_cast<double>(shape.length) -
      0.5 * static_cast<double>(shape.q_len) * static_cast<double>(shape.q_len - 1);
  return 2 * static_cast<double>(shape.requests * shape.heads) * pairs *
         static_cast<double>(shape.dim + shape.value_dim);
}

bool RunShape(const Shape& shape, int rounds, bool processor_time, MachinePeaks* peaks,
              attention::ThreadPool* threads) {
  const auto seconds = [&] { return Seconds(processor_time, threads->num_threads()); };
  std::mt19937 random(1);
  const int64_t columns = (shape.length + kBlockSize - 1) / kBlockSize;
  const int64_t blocks = shape.requests * columns;
  const bool mla = shape.layout == KvLayout::kMlaLatent;
  const attention::KvCacheGeometry geometry = {.layout = shape.layout,
                                               .dtype = shape.dtype,
                                               .num_blocks = blocks,
                                               .block_size = kBlockSize,
                                               .num_kv_heads = shape.kv_heads,
                                               .key_dim = shape.dim,
                                               .value_dim = shape.value_dim};
  Memory kv(shape.dtype,
            {attention::KvCacheBytes(geometry).value() / attention::ElementBytes(shape.dtype)});
  const DType q_dtype = attention::IsQuantizedCode(shape.dtype) ? DType::kBF16 : shape.dtype;
  const int64_t tokens = shape.requests * shape.q_len;
  Memory q(q_dtype, {tokens, shape.heads, shape.dim});
  Memory out(q_dtype, {tokens, shape.heads, shape.value_dim});
  Memory lse(DType::kF32, {tokens, shape.heads});
  kv.Fill(random);
  q.Fill(random);
  std::vector<int64_t> ids(static_cast<size_t>(blocks));
  for (int64_t i = 0; i < blocks; ++i) ids[i] = i;
  std::shuffle(ids.begin(), ids.end(), random);
  Memory table(DType::kI32, {shape.requests, columns});
  table.SetInts(ids);
  Memory lengths(DType::kI32, {shape.requests});
  lengths.SetInts(std::vector<int64_t>(static_cast<size_t>(shape.requests), shape.length));
  Memory starts(DType::kI32, {shape.requests + 1});
  std::vector<int64_t> start_values;
  for (int64_t b = 0; b <= shape.requests; ++b) start_values.push_back(b * shape.q_len);
  starts.SetInts(start_values);

  const ConstKvCacheView cache = attention::MakeKvCacheView(geometry, kv.view).value();
  attention::ExecContext context;
  context.threads = threads;
  attention::AttnParams params;
  params.scale = 0.08f;
  const auto fill = [&](auto& args) {
    args.cache = cache;
    args.block_table = table.view;
    args.seq_lens = lengths.view;
    args.max_seq_len = shape.length;
    args.params = params;
    args.out = out.view;
    args.lse = lse.view;
  };
  const auto call = [&]() -> absl::Status {
    if (mla) {
      attention::MlaDecodeArgs args;
      fill(args);
      args.q_lat = q.view;
      return attention::Cpu().MlaDecode(context, args);
    }
    attention::PagedPrefillArgs args;
    fill(args);
    args.q = q.view;
    args.query_start_loc = starts.view;
    args.max_query_len = shape.q_len;
    return attention::Cpu().PagedPrefill(context, args);
  };

  std::vector<double> times, rates, ceilings, ratios;
  for (int round = -1; round < rounds; ++round) {
    const double ceiling = shape.decode ? peaks->MeasureReads() : peaks->MeasureMatrixFlops();
    const double start = seconds();
    int calls = 0;
    do {
      if (absl::Status status = call(); !status.ok()) {
        std::fprintf(stderr, "%s: %s\n", shape.name, status.ToString().c_str());
        return false;
      }
      ++calls;
    } while (rounds > 1 && seconds() - start < 0.02);
    const double time = (seconds() - start) / calls;
    if (round < 0) continue;  // caches, page tables and scratch are cold
    times.push_back(time);
    rates.push_back(WorkOf(shape) / time);
    ceilings.push_back(ceiling);
    ratios.push_back(rates.back() / ceiling);
  }
  const bool bytes = shape.decode;
  std::printf("%-34s %9.3f ms %8.1f %8.1f %s %6.0f %%\n", shape.name, Median(times) * 1e3,
              Median(rates) / 1e9, Median(ceilings) / 1e9, bytes ? "GB/s   " : "GFLOP/s",
              Median(ratios) * 100);
  std::fflush(stdout);
  return true;
}

int Run(int argc, char** argv) {
  bool smoke = false, processor_time = false;
  int rounds = 9, num_threads = 0;
  const char* only = nullptr;
  for (int i = 1; i < argc; ++i) {
    if (std::strcmp(argv[i], "--smoke") == 0) smoke = true;
    if (std::strcmp(argv[i], "--processor_time") == 0) processor_time = true;
    if (std::strcmp(argv[i], "--rounds") == 0 && i + 1 < argc) rounds = std::atoi(argv[++i]);
    if (std::strcmp(argv[i], "--threads") == 0 && i + 1 < argc) num_threads = std::atoi(argv[++i]);
    if (std::strcmp(argv[i], "--only") == 0 && i + 1 < argc) only = argv[++i];
  }
  attention::ThreadPool threads(num_threads);
  MachinePeaks peaks(&threads, processor_time, smoke);
  constexpr KvLayout kNhd = KvLayout::kNhd, kHnd = KvLayout::kHnd, kPagedX = KvLayout::kPagedX;
  std::vector<Shape> shapes = {
      {"decode bf16 nhd R=8 L=4096", DType::kBF16, kNhd, 8, 4096, 1, 32, 8, 128, 128, true},
      {"decode f32 nhd R=8 L=4096", DType::kF32, kNhd, 8, 4096, 1, 32, 8, 128, 128, true},
      {"decode bf16 hnd R=8 L=4096", DType::kBF16, kHnd, 8, 4096, 1, 32, 8, 128, 128, true},
      {"decode f32 hnd R=8 L=4096", DType::kF32, kHnd, 8, 4096, 1, 32, 8, 128, 128, true},
      {"decode bf16 nhd R=1 L=32768", DType::kBF16, kNhd, 1, 32768, 1, 32, 8, 128, 128, true},
      {"decode bf16 nhd R=64 L=512", DType::kBF16, kNhd, 64, 512, 1, 32, 8, 128, 128, true},
      {"decode f16 nhd R=8 L=4096", DType::kF16, kNhd, 8, 4096, 1, 32, 8, 128, 128, true},
      {"decode e4m3 nhd R=8 L=8192", DType::kF8E4M3, kNhd, 8, 8192, 1, 32, 8, 128, 128, true},
      {"decode int8 nhd R=8 L=8192", DType::kI8, kNhd, 8, 8192, 1, 32, 8, 128, 128, true},
      {"decode bf16 paged_x R=8 L=4096", DType::kBF16, kPagedX, 8, 4096, 1, 32, 8, 128, 128, true},
      {"decode bf16 nhd 8/8 heads", DType::kBF16, kNhd, 8, 4096, 1, 8, 8, 128, 128, true},
      {"prefill f32 T=1024", DType::kF32, kNhd, 1, 1024, 1024, 32, 8, 128, 128, false},
      {"prefill bf16 T=1024", DType::kBF16, kNhd, 1, 1024, 1024, 32, 8, 128, 128, false},
      {"prefill bf16 T=512 L=4096", DType::kBF16, kNhd, 1, 4096, 512, 32, 8, 128, 128, false},
      {"mla decode bf16 R=4 L=4096 H=16", DType::kBF16, KvLayout::kMlaLatent, 4, 4096, 1, 16, 1,
       576, 512, false},
      {"mla decode bf16 R=4 L=4096 H=128", DType::kBF16, KvLayout::kMlaLatent, 4, 4096, 1, 128, 1,
       576, 512, false},
  };
  std::printf("%-34s %12s %8s %8s %16s   (%d threads)\n", "shape", "time", "rate", "peak", "ratio",
              threads.num_threads());
  for (Shape& shape : shapes) {
    if (only != nullptr && std::strstr(shape.name, only) == nullptr) continue;
    if (smoke) {
      shape.length = std::min<int64_t>(shape.length, 40);
      shape.q_len = std::min<int64_t>(shape.q_len, shape.length);
      shape.requests = std::min<int64_t>(shape.requests, 2);
    }
    if (!RunShape(shape, smoke ? 1 : std::max(3, rounds), processor_time, &peaks, &threads))
      return 1;
  }
  const bool wants_layers = only == nullptr || std::strstr("layer adds", only) != nullptr;
  return wants_layers && !RunLayerCalls(smoke ? 1 : 10 * rounds, processor_time) ? 1 : 0;
}

}  // namespace
}  // namespace kvblocks::bench

int main(int argc, char** argv) { return kvblocks::bench::Run(argc, argv); }
