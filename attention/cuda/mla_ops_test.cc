// MLA on tensor cores against the dense oracle: sizes that the kernels were made for, which suites
// of all backends avoid for their cost.

#include "attention/cuda/mla_ops.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <random>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "attention/cuda/host_tensor_ops.h"
#include "attention/cuda/mla_ops.h"
#include "attention/ops/attention_ops.h"
#include "attention/oracle/dense_oracle.h"
#include "attention/oracle/latent_cache.h"
#include "attention/oracle/paged_case.h"
#include "attention/oracle/tolerance.h"
#include "gtest/gtest.h"

namespace kvblocks::attention::cuda {
namespace {

constexpr double kInfinity = std::numeric_limits<double>::infinity();

class MlaOps : public AttentionOps {
 public:
  const char* name() const override { return "CUDA"; }
  absl::Status MlaDecode(const ExecContext& context, const MlaDecodeArgs& args) const override {
    return CudaMlaDecode(context, args);
  }
  absl::Status SparseMlaDecode(const ExecContext& context,
                               const SparseMlaDecodeArgs& args) const override {
    return CudaSparseMlaDecode(context, args);
  }
  absl::Status SparseMlaPrefill(const ExecContext& context,
                                const SparseMlaPrefillArgs& args) const override {
    return CudaSparseMlaPrefill(context, args);
  }
};

const AttentionOps& OnDevice() {
  static const MlaOps ops;
  static const auto on_device =
      HostTensorOps::Create(&ops, {.workspace_bytes = 16 << 20, .arena_bytes = 64 << 20});
  return **on_device;
}

Tolerance ToleranceOf(KvLayout layout, DType type) {
  return layout == KvLayout::kMlaFp8_656 ? CudaTileScaledTolerance(type) : CudaTolerance(type);
}

Tensor Ints(const std::vector<double>& values, std::vector<int64_t> extents) {
  Tensor tensor(DType::kI32, std::move(extents));
  tensor.Set(values);
  return tensor;
}
Tensor Floats(const std::vector<double>& values) {
  Tensor tensor(DType::kF32, {static_cast<int64_t>(values.size())});
  tensor.Set(values);
  return tensor;
}
std::vector<double> Part(const std::vector<double>& all, int64_t begin, int64_t count) {
  return {all.begin() + begin, all.begin() + begin + count};
}

LatentCacheOptions CacheOptions(KvLayout layout, DType type, int64_t block_size) {
  LatentCacheOptions options;
  options.layout = layout;
  options.dtype = type;
  options.latent_dim = 512, options.rotary_dim = 64;
  options.block_size = block_size;
  options.seed = block_size + 5;
  return options;
}

// Requests over shuffled blocks; rows that are no key's are NaN, entries past them far out.
struct DecodeCase {
  DecodeCase(LatentCacheOptions options, std::vector<int64_t> the_lengths,
             std::vector<int64_t> the_q_lens, int64_t num_heads)
      : lengths(std::move(the_lengths)),
        q_lens(std::move(the_q_lens)),
        heads(num_heads),
        block_size(options.block_size),
        type(options.dtype),
        cache(WithBlocks(options, lengths)) {
    std::mt19937_64 random(heads);
    const auto requests = static_cast<int64_t>(lengths.size());
    std::vector<int64_t> ids;
    for (int64_t i = 0; i < cache.view().num_blocks(); ++i) ids.push_back(i);
    std::shuffle(ids.begin(), ids.end(), random);
    for (int64_t length : lengths) columns = std::max(columns, length / block_size + 2);
    entries.assign(requests * columns, 2147480000);
    std::vector<double> starts = {0};
    std::vector<bool> used(ids.size() * block_size);
    for (int64_t b = 0; b < requests; ++b) {
      for (int64_t j = 0; j < lengths[b]; ++j) {
        if (j % block_size == 0) {
          entries[b * columns + j / block_size] = static_cast<double>(ids.back());
          ids.pop_back();
        }
        used[Slot(b, j)] = true;
      }
      tokens += q_lens[b];
      starts.push_back(static_cast<double>(tokens));
    }
    for (size_t slot = 0; slot < used.size(); ++slot) {
      if (!used[slot]) cache.Poison(static_cast<int64_t>(slot));
    }
    table = Ints(entries, {requests, columns});
    seq_lens = Ints({lengths.begin(), lengths.end()}, {requests});
    query_start_loc = Ints(starts, {requests + 1});
    q = Tensor(type, {tokens, heads, cache.key_dim()});
    q.Set(NormalDraws(random, tokens * heads * cache.key_dim()));
    out = Tensor(type, {tokens, heads, 512});
    lse = Tensor(DType::kF32, {tokens, heads});
    params.scale = 0.0625f;
  }
  static LatentCacheOptions WithBlocks(LatentCacheOptions options,
                                       const std::vector<int64_t>& lengths) {
    options.num_blocks = 1;
    for (int64_t length : lengths) {
      options.num_blocks += (length + options.block_size - 1) / options.block_size;
    }
    return options;
  }
  int64_t Slot(int64_t b, int64_t j) const {
    return static_cast<int64_t>(entries[b * columns + j / block_size]) * block_size +
           j % block_size;
  }
  MlaDecodeArgs Args() {
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
  DenseResult Expected() const {
    DenseParams dense;
    dense.scale = params.scale;
    dense.window_left = params.window_left;
    if (!params.sinks.absent()) {
      for (int64_t h = 0; h < heads; ++h) dense.sinks.push_back(params.sinks.as<float>()[h]);
    }
    DenseResult all;
    const std::vector<double> queries = q.Get();
    const int64_t row = heads * cache.key_dim();
    int64_t first = 0;
    for (size_t b = 0; b < lengths.size(); ++b) {
      std::vector<const std::vector<double>*> rows;
      for (int64_t j = 0; j < lengths[b]; ++j) {
        rows.push_back(&cache.row(Slot(static_cast<int64_t>(b), j)));
      }
      Append(DenseAttention(RequestOverRows(rows, Part(queries, first * row, q_lens[b] * row),
                                            q_lens[b], heads, 512),
                            dense),
             all);
      first += q_lens[b];
    }
    return all;
  }
  void ExpectExact(const MlaDecodeArgs& args) {
    const absl::Status status = OnDevice().MlaDecode({}, args);
    ASSERT_TRUE(status.ok()) << status;
    EXPECT_EQ(Mismatch(Expected(), out.view, lse.view, CudaTolerance(type)), "");
  }

  std::vector<int64_t> lengths, q_lens;
  int64_t heads, block_size, columns = 2, tokens = 0;
  DType type;
  LatentCache cache;
  std::vector<double> entries;
  Tensor table, seq_lens, query_start_loc, q, out, lse;
  AttnParams params;
};

TEST(CudaMlaTest, T3DenseDecode) {
  const struct {
    int64_t heads, block_size;
    DType type;
    KvLayout layout;
    std::vector<int64_t> lengths, q_lens;
  } kCases[] = {
      {1, 64, DType::kBF16, KvLayout::kMlaLatent, {1, 0, 31, 33, 130}, {1, 1, 1, 1, 1}},
      {16, 16, DType::kBF16, KvLayout::kMlaLatent, {64, 65, 127}, {1, 1, 1}},
      {16, 1, DType::kF16, KvLayout::kMlaSplit, {40, 97}, {1, 1}},
      {17, 61, DType::kBF16, KvLayout::kMlaLatent, {63, 200}, {1, 1}},
      {64, 64, DType::kBF16, KvLayout::kMlaLatent, {64, 0, 129}, {1, 1, 1}},
      {64, 7, DType::kF16, KvLayout::kMlaSplit, {65}, {1}},
      {72, 32, DType::kBF16, KvLayout::kMlaLatent, {100}, {1}},
      {3, 8, DType::kBF16, KvLayout::kMlaLatent, {30, 0, 66, 9}, {7, 0, 12, 1}},
      {16, 4, DType::kF16, KvLayout::kMlaLatent, {6, 70}, {6, 3}},
      {40, 16, DType::kBF16, KvLayout::kMlaLatent, {70, 8}, {4, 2}},
  };
  for (const auto& each : kCases) {
    SCOPED_TRACE(absl::StrCat(each.heads, " heads, BS ", each.block_size));
    DecodeCase decode(CacheOptions(each.layout, each.type, each.block_size), each.lengths,
                      each.q_lens, each.heads);
    decode.ExpectExact(decode.Args());
  }
}

TEST(CudaMlaTest, QueriesMayComeInTwoPartsAndBePadded) {
  DecodeCase decode(CacheOptions(KvLayout::kMlaLatent, DType::kBF16, 16), {50, 20}, {2, 2}, 16);
  MlaDecodeArgs args = decode.Args();
  const ConstTensorView q = args.q_lat;
  args.q_lat = q.Slice(2, 0, 512).value();
  args.q_pe = q.Slice(2, 512, 576).value();
  decode.ExpectExact(args);
}

TEST(CudaMlaTest, WindowsSinksAndSplits) {
  for (const int64_t heads : {4, 48}) {
    DecodeCase decode(CacheOptions(KvLayout::kMlaLatent, DType::kBF16, 8), {150, 3, 0, 90},
                      {3, 1, 0, 2}, heads);
    std::vector<double> sink_values(heads, 0.5);
    sink_values[1] = -kInfinity, sink_values[2] = 3, sink_values[3] = kInfinity;
    const Tensor sinks = Floats(sink_values);
    decode.params.sinks = sinks.view;
    for (const SplitPolicy split : {SplitPolicy::None(), SplitPolicy::Fixed(40),
                                    SplitPolicy::Count(3), SplitPolicy::Auto()}) {
      decode.params.split = split;
      decode.ExpectExact(decode.Args());
    }
    decode.params.window_left = 20;
    decode.ExpectExact(decode.Args());
    decode.params.split = SplitPolicy::Fixed(40);
    decode.ExpectExact(decode.Args());
  }
}

// A key that is not finite spoils the rows that see it, all of them and no others.
TEST(CudaMlaTest, NotFiniteValuesReachOnlyRowsThatSeeThem) {
  for (const int64_t heads : {2, 40}) {
    DecodeCase decode(CacheOptions(KvLayout::kMlaLatent, DType::kBF16, 16), {70}, {5}, heads);
    const MlaDecodeArgs args = decode.Args();
    ASSERT_TRUE(OnDevice().MlaDecode({}, args).ok());
    const std::vector<double> clean = decode.out.Get();
    // Seen by the last two tokens.
    decode.cache.Poison(decode.Slot(0, 68));
    ASSERT_TRUE(OnDevice().MlaDecode({}, decode.Args()).ok());
    const std::vector<double> spoiled = decode.out.Get();
    const int64_t row = heads * 512;
    for (int64_t i = 0; i < 5 * row; ++i) {
      if (i < 3 * row) {
        ASSERT_EQ(spoiled[i], clean[i]) << i;
      } else {
        ASSERT_TRUE(std::isnan(spoiled[i])) << i;
      }
    }
  }
}

TEST(CudaMlaTest, BadBlocksAndLengthsAreSkippedAndFlagged) {
  DecodeCase decode(CacheOptions(KvLayout::kMlaLatent, DType::kBF16, 16), {40, 33}, {1, 1}, 4);
  decode.ExpectExact(decode.Args());
  const std::vector<double> clean = decode.out.Get();
  std::vector<double> entries = decode.entries;
  entries[1] = 1 << 30;
  decode.table.Set(entries);
  uint32_t bits = 0;
  DeviceErrorFlags flags = {&bits};
  ExecContext context;
  context.error_flags = &flags;
  ASSERT_TRUE(OnDevice().MlaDecode(context, decode.Args()).ok());
  EXPECT_EQ(bits, static_cast<uint32_t>(kBadBlock));
  const std::vector<double> out = decode.out.Get();
  EXPECT_NE(Part(out, 0, 2048), Part(clean, 0, 2048));
  EXPECT_EQ(Part(out, 2048, 2048), Part(clean, 2048, 2048));
}

// --- Lists ---

struct ListOptions {
  KvLayout layout = KvLayout::kMlaLatent;
  DType type = DType::kBF16;
  int64_t heads = 16, queries = 2, entries = 70, extra_entries = 0, block_size = 64;
  bool lengths = false, sink = false, all_invalid = false;
};

struct ListCase {
  static constexpr int64_t kRequests = 2;

  explicit ListCase(const ListOptions& the_options)
      : options(the_options), main(Main(options)), extra(Extra(options)) {
    std::mt19937_64 random(options.entries);
    seen.resize(kRequests * options.queries);
    Fill(main, options.entries, random, main_slots, main_lens);
    args.main = {main.view(), main_slots.view, {}};
    if (options.lengths) args.main.topk_len = main_lens.view;
    if (options.extra_entries > 0) {
      Fill(extra, options.extra_entries, random, extra_slots, extra_lens);
      args.extra = {extra.view(), extra_slots.view, {}};
      if (options.lengths) args.extra.topk_len = extra_lens.view;
    }
    const int64_t rows = kRequests * options.queries, dim = main.key_dim();
    q = Tensor(options.type, {kRequests, options.queries, options.heads, dim});
    q.Set(NormalDraws(random, rows * options.heads * dim));
    out = Tensor(options.type, {kRequests, options.queries, options.heads, 512});
    lse = Tensor(DType::kF32, {kRequests, options.queries, options.heads});
    FillWithPoison(out);
    FillWithPoison(lse);
    args.q = q.view;
    args.scale = 0.0625f;
    if (options.sink) {
      sinks = Floats(NormalDraws(random, options.heads));
      args.sinks = sinks.view;
    }
    args.out = out.view;
    args.lse = lse.view;
  }
  static LatentCacheOptions Main(const ListOptions& options) {
    LatentCacheOptions cache = CacheOptions(options.layout, options.type, options.block_size);
    cache.num_blocks = 130 / options.block_size + 2;
    return cache;
  }
  static LatentCacheOptions Extra(const ListOptions& options) {
    LatentCacheOptions cache = CacheOptions(options.layout, options.type, 2);
    cache.num_blocks = 40;
    cache.seed = 99;
    return cache;
  }
  void Fill(LatentCache& cache, int64_t count, std::mt19937_64& random, Tensor& slots,
            Tensor& lens) {
    const int64_t capacity = cache.view().num_slots();
    cache.Poison(capacity - 1);  // only of entries that do not count
    std::vector<double> entries, used;
    for (int64_t b = 0; b < kRequests; ++b) {
      used.push_back(static_cast<double>(options.lengths ? IntegerDraw(random, 0, count) : count));
      for (int64_t s = 0; s < options.queries; ++s) {
        for (int64_t k = 0; k < count; ++k) {
          const bool counts = k < used.back();
          int64_t slot = counts ? IntegerDraw(random, 0, capacity - 2) : capacity - 1;
          const int64_t kind = IntegerDraw(random, 0, 9);
          if (options.all_invalid || kind < 2) slot = kind % 2 == 0 ? -1 : capacity + kind;
          entries.push_back(static_cast<double>(slot));
          if (counts && slot >= 0 && slot < capacity) {
            seen[b * options.queries + s].push_back(&cache.row(slot));
          }
        }
      }
    }
    slots = Ints(entries, {kRequests, options.queries, count});
    lens = Ints(used, {kRequests});
  }
  void ExpectExact() {
    uint32_t bits = 0;
    DeviceErrorFlags flags = {&bits};
    ExecContext context;
    context.error_flags = &flags;
    const absl::Status status = OnDevice().SparseMlaDecode(context, args);
    ASSERT_TRUE(status.ok()) << status;
    EXPECT_EQ(bits & ~static_cast<uint32_t>(kBadIndex), 0u);
    DenseParams dense;
    dense.scale = args.scale;
    dense.causal = false;
    if (options.sink) dense.sinks = sinks.Get();
    DenseResult expected;
    const int64_t row = options.heads * main.key_dim();
    const auto rows = static_cast<int64_t>(seen.size());
    for (int64_t n = 0; n < rows; ++n) {
      Append(
          DenseAttention(
              RequestOverRows(seen[n], Part(q.Get(), n * row, row), 1, options.heads, 512), dense),
          expected);
    }
    EXPECT_EQ(Mismatch(expected, out.view.Reshape({rows, options.heads, 512}).value(),
                       lse.view.Reshape({rows, options.heads}).value(),
                       ToleranceOf(options.layout, options.type)),
              "");
  }

  ListOptions options;
  LatentCache main, extra;
  std::vector<std::vector<const std::vector<double>*>> seen;
  Tensor main_slots, main_lens, extra_slots, extra_lens, q, out, lse, sinks;
  SparseMlaDecodeArgs args;
};

TEST(CudaMlaTest, T3SparseDecode) {
  const ListOptions kCases[] = {
      {.heads = 16, .entries = 70, .extra_entries = 33},
      {.type = DType::kF16, .heads = 1, .entries = 64, .block_size = 1, .lengths = true},
      {.heads = 64, .entries = 100, .extra_entries = 65, .lengths = true, .sink = true},
      {.heads = 64, .entries = 192, .block_size = 61},
      {.layout = KvLayout::kMlaFp8_656, .heads = 16, .entries = 70, .extra_entries = 33},
      {.layout = KvLayout::kMlaFp8_656, .heads = 17, .entries = 64, .block_size = 2, .sink = true},
      {.layout = KvLayout::kMlaFp8_656, .heads = 64, .entries = 130, .lengths = true},
      {.layout = KvLayout::kMlaFp8_584, .heads = 16, .entries = 70, .extra_entries = 33},
      {.layout = KvLayout::kMlaFp8_584, .heads = 5, .entries = 97, .block_size = 3, .sink = true},
      {.layout = KvLayout::kMlaFp8_584,
       .heads = 64,
       .queries = 1,
       .entries = 128,
       .extra_entries = 90,
       .lengths = true},
      {.heads = 16, .entries = 40, .extra_entries = 3, .all_invalid = true},
      {.layout = KvLayout::kMlaFp8_656, .heads = 64, .entries = 40, .all_invalid = true},
  };
  for (const ListOptions& each : kCases) {
    SCOPED_TRACE(absl::StrCat(Name(each.layout), ", ", each.heads, " heads, K ", each.entries));
    ListCase lists(each);
    lists.ExpectExact();
  }
}

TEST(CudaMlaTest, ASlotListedTwiceCountsTwice) {
  for (const int64_t heads : {16, 64}) {
    ListCase lists({.heads = heads, .entries = 66});
    std::vector<double> entries = lists.main_slots.Get();
    for (size_t k = 1; k < entries.size(); k += 2) entries[k] = entries[k - 1];
    lists.main_slots.Set(entries);
    for (auto& rows : lists.seen) rows.clear();
    for (size_t k = 0; k < entries.size(); ++k) {
      const auto slot = static_cast<int64_t>(entries[k]);
      if (slot < 0 || slot >= lists.main.view().num_slots()) continue;
      lists.seen[k / 66].push_back(&lists.main.row(slot));
    }
    lists.ExpectExact();
  }
}

TEST(CudaMlaTest, T3SparsePrefill) {
  for (const auto& [heads, dim] : {std::pair<int64_t, int64_t>{16, 576}, {64, 576}, {20, 512}}) {
    constexpr int64_t kTokens = 3, kKeys = 90, kEntries = 70;
    const DType type = heads == 16 ? DType::kF16 : DType::kBF16;
    std::mt19937_64 random(heads);
    Tensor q(type, {kTokens, heads, dim}), kv(type, {kKeys, 1, dim});
    Tensor out(type, {kTokens, heads, 512}), lse(DType::kF32, {kTokens, heads});
    Tensor max_logits(DType::kF32, {kTokens, heads});
    q.Set(NormalDraws(random, kTokens * heads * dim));
    std::vector<double> keys = NormalDraws(random, kKeys * dim);
    for (int64_t d = 0; d < dim; ++d) keys[(kKeys - 1) * dim + d] = NAN;
    kv.Set(keys);
    keys = kv.Get();
    std::vector<std::vector<double>> rows;
    for (int64_t s = 0; s < kKeys; ++s) rows.push_back(Part(keys, s * dim, dim));
    const Tensor sinks = Floats(NormalDraws(random, heads));
    DenseParams dense;
    dense.scale = 0.0625f;
    dense.causal = false;
    dense.sinks = sinks.Get();
    DenseResult expected;
    std::vector<double> entries, used, largest;
    for (int64_t t = 0; t < kTokens; ++t) {
      used.push_back(static_cast<double>(t == 1 ? 0 : kEntries - 5 * t));
      std::vector<const std::vector<double>*> seen;
      for (int64_t k = 0; k < kEntries; ++k) {
        int64_t row = k < used.back() ? IntegerDraw(random, 0, kKeys - 2) : kKeys - 1;
        if (k % 9 == 4) row = k % 2 == 0 ? -1 : kKeys + k;
        entries.push_back(static_cast<double>(row));
        if (row >= 0 && row < kKeys - 1) seen.push_back(&rows[row]);
      }
      const std::vector<double> query = Part(q.Get(), t * heads * dim, heads * dim);
      Append(DenseAttention(RequestOverRows(seen, query, 1, heads, 512), dense), expected);
      for (int64_t h = 0; h < heads; ++h) {
        double max = -kInfinity;
        for (const std::vector<double>* row : seen) {
          double s = 0;
          for (int64_t d = 0; d < dim; ++d) s += query[h * dim + d] * (*row)[d];
          max = std::max(max, s * 0.0625);
        }
        largest.push_back(max);
      }
    }
    const Tensor indices = Ints(entries, {kTokens, 1, kEntries}), lens = Ints(used, {kTokens});
    SparseMlaPrefillArgs args;
    args.q = q.view;
    args.kv = kv.view;
    args.indices = indices.view;
    args.topk_len = lens.view;
    args.scale = 0.0625f;
    args.sinks = sinks.view;
    args.out = out.view;
    args.max_logits = max_logits.view;
    args.lse = lse.view;
    const absl::Status status = OnDevice().SparseMlaPrefill({}, args);
    ASSERT_TRUE(status.ok()) << status;
    EXPECT_EQ(Mismatch(expected, out.view, lse.view, CudaTolerance(type)), "");
    const std::vector<double> max = max_logits.Get();
    for (size_t i = 0; i < max.size(); ++i) {
      if (largest[i] == -kInfinity) {
        EXPECT_EQ(max[i], -kInfinity);
      } else {
        EXPECT_NEAR(max[i], largest[i], 2e-5 + 1e-5 * std::abs(largest[i]));
      }
    }
  }
}

}  // namespace
}  // namespace kvblocks::attention::cuda
