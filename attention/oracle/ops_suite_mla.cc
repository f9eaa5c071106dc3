// T-3, T-23, T-26: multi-head latent attention, dense and sparse, over every latent layout.

#include <algorithm>
#include <cmath>
#include <limits>
#include <random>
#include <utility>

#include "absl/strings/str_cat.h"
#include "attention/oracle/latent_cache.h"
#include "attention/oracle/ops_suite.h"

namespace kvblocks::attention {
namespace {

constexpr double kInfinity = std::numeric_limits<double>::infinity();

struct Layout {
  KvLayout layout;
  DType dtype;
};
const Layout kLayouts[] = {
    {KvLayout::kMlaLatent, DType::kF32},    {KvLayout::kMlaLatent, DType::kBF16},
    {KvLayout::kMlaLatent, DType::kF8E4M3}, {KvLayout::kMlaSplit, DType::kBF16},
    {KvLayout::kMlaFp8_656, DType::kU8},    {KvLayout::kMlaFp8_584, DType::kU8},
};

LatentCacheOptions OptionsOf(const Layout& layout) {
  LatentCacheOptions options;
  options.layout = layout.layout;
  options.dtype = layout.dtype;
  if (layout.dtype == DType::kF8E4M3) options.scale = 0.03125;
  return options;
}

void Append(DenseResult one, DenseResult& all) {
  all.out.insert(all.out.end(), one.out.begin(), one.out.end());
  all.lse.insert(all.lse.end(), one.lse.begin(), one.lse.end());
  all.value_range.insert(all.value_range.end(), one.value_range.begin(), one.value_range.end());
}

std::vector<double> Part(const std::vector<double>& all, int64_t begin, int64_t count) {
  return {all.begin() + begin, all.begin() + begin + count};
}

// --- Dense ---

// Requests over shuffled blocks of a latent cache.
struct DenseCase {
  DenseCase(const LatentCacheOptions& cache_options, std::vector<int64_t> lengths_in,
            std::vector<int64_t> q_lens_in, int64_t num_heads, DType q_dtype)
      : cache(WithBlocksFor(cache_options, lengths_in)),
        lengths(std::move(lengths_in)),
        q_lens(std::move(q_lens_in)),
        heads(num_heads),
        block_size(cache_options.block_size) {
    std::mt19937_64 random(9);
    const int64_t R = static_cast<int64_t>(lengths.size());
    int64_t columns = 2, T = 0;
    for (int64_t length : lengths) columns = std::max(columns, length / block_size + 2);
    std::vector<int64_t> ids(cache.view().num_blocks());
    for (size_t i = 0; i < ids.size(); ++i) ids[i] = static_cast<int64_t>(i);
    for (size_t i = ids.size(); i > 1; --i) std::swap(ids[i - 1], ids[IntegerDraw(random, 0, i - 1)]);
    std::vector<double> entries(R * columns, 2147480000), starts = {0};
    std::vector<bool> used(ids.size() * block_size);
    for (int64_t b = 0; b < R; ++b) {
      for (int64_t j = 0; j < lengths[b]; ++j) {
        if (j % block_size == 0) entries[b * columns + j / block_size] = ids.back(), ids.pop_back();
        used[Slot(entries, columns, b, j)] = true;
      }
      T += q_lens[b];
      starts.push_back(static_cast<double>(T));
    }
    for (size_t slot = 0; slot < used.size(); ++slot) {
      if (!used[slot]) cache.Poison(slot);
    }
    table = IntTensor(entries, {R, columns});
    seq_lens = IntTensor({lengths.begin(), lengths.end()}, {R});
    query_start_loc = IntTensor(starts, {R + 1});
    q = Tensor(q_dtype, {T, heads, cache.key_dim()});
    q.Set(NormalDraws(random, T * heads * cache.key_dim()));
    out = Tensor(q_dtype, {T, heads, cache.value_dim()});
    lse = Tensor(DType::kF32, {T, heads});
    params.scale = static_cast<float>(1 / std::sqrt(cache.key_dim()));
    if (cache_options.scale != 1) {
      scale = FloatTensor({cache_options.scale});
      params.scales.k = scale.view;
    }
  }

  static LatentCacheOptions WithBlocksFor(LatentCacheOptions options,
                                          const std::vector<int64_t>& lengths) {
    options.num_blocks = 1;
    for (int64_t length : lengths) {
      options.num_blocks += (length + options.block_size - 1) / options.block_size;
    }
    return options;
  }
  int64_t Slot(const std::vector<double>& entries, int64_t columns, int64_t b, int64_t j) const {
    return static_cast<int64_t>(entries[b * columns + j / block_size]) * block_size +
           j % block_size;
  }
  int64_t Slot(int64_t b, int64_t j) const {
    return Slot(table.Get(), table.view.extent[1], b, j);
  }

  MlaDecodeArgs Args(bool varlen) {
    FillWithPoison(out);
    FillWithPoison(lse);
    MlaDecodeArgs args;
    args.q_lat = q.view;
    args.cache = cache.view();
    args.block_table = table.view;
    args.seq_lens = seq_lens.view;
    args.max_seq_len = *std::max_element(lengths.begin(), lengths.end());
    if (varlen) args.query_start_loc = query_start_loc.view;
    args.params = params;
    args.out = out.view;
    args.lse = lse.view;
    return args;
  }
  DenseResult Expected() const {
    DenseResult all;
    const std::vector<double> queries = q.Get(), entries = table.Get();
    const int64_t row = heads * cache.key_dim();
    int64_t first = 0;
    for (size_t b = 0; b < lengths.size(); ++b) {
      std::vector<const std::vector<double>*> rows;
      for (int64_t j = 0; j < lengths[b]; ++j) {
        rows.push_back(&cache.row(Slot(entries, table.view.extent[1], b, j)));
      }
      Append(DenseAttention(RequestOverRows(rows, Part(queries, first * row, q_lens[b] * row),
                                            q_lens[b], heads, cache.value_dim()),
                            ToDense(params)),
             all);
      first += q_lens[b];
    }
    return all;
  }
  void ExpectExact(const MlaDecodeArgs& args) {
    const absl::Status status = OpsUnderTest().MlaDecode({}, args);
    ASSERT_TRUE(status.ok()) << status;
    EXPECT_EQ(Mismatch(Expected(), out.view, lse.view, ToleranceUnderTest(out.view.dtype)), "");
  }

  LatentCache cache;
  std::vector<int64_t> lengths, q_lens;
  int64_t heads, block_size;
  Tensor table, seq_lens, query_start_loc, q, out, lse, scale;
  AttnParams params;
};

TEST(OpsMlaTest, T3DenseDecodeOfEveryLayout) {
  const std::pair<int64_t, int64_t> kHeadsAndBlocks[] = {{1, 2}, {16, 61}, {64, 64}, {128, 16}};
  for (const Layout& layout : kLayouts) {
    for (const auto& [heads, block_size] : kHeadsAndBlocks) {
      SCOPED_TRACE(absl::StrCat(Name(layout.layout), " of ", Name(layout.dtype), ", ", heads,
                                " heads, BS ", block_size));
      LatentCacheOptions options = OptionsOf(layout);
      options.block_size = block_size;
      const DType type = heads == 16 ? DType::kBF16 : DType::kF32;
      DenseCase decode(options, {1, 0, 16, 65}, {1, 1, 1, 1}, heads, type);
      decode.ExpectExact(decode.Args(/*varlen=*/false));
      DenseCase varlen(options, {3, 0, 17, 7}, {3, 0, 2, 1}, heads, type);
      varlen.ExpectExact(varlen.Args(/*varlen=*/true));
    }
  }
}

TEST(OpsMlaTest, QueriesMayComeInTwoParts) {
  for (const Layout& layout : kLayouts) {
    DenseCase whole(OptionsOf(layout), {1, 40, 33}, {1, 1, 1}, 4, DType::kF32);
    MlaDecodeArgs args = whole.Args(false);
    const int64_t D = whole.cache.key_dim();
    const int64_t rotary = layout.dtype == DType::kU8 ? 64 : 16;
    const ConstTensorView q = args.q_lat;
    args.q_lat = q.Slice(2, 0, D - rotary).value();
    args.q_pe = q.Slice(2, D - rotary, D).value();
    whole.ExpectExact(args);
  }
}

TEST(OpsMlaTest, DenseDecodeTakesFeaturesAndSplits) {
  LatentCacheOptions options = OptionsOf(kLayouts[1]);
  DenseCase decode(options, {1, 0, 40, 130}, {1, 0, 2, 5}, 4, DType::kF32);
  const Tensor sinks = FloatTensor({0.5, -1, 2, -kInfinity});
  decode.params.sinks = sinks.view;
  decode.params.soft_cap = 4;
  decode.ExpectExact(decode.Args(true));
  decode.params.window_left = 20;
  decode.params.split = SplitPolicy::Fixed(32);
  decode.ExpectExact(decode.Args(true));
}

// --- Sparse ---

struct SparseCaseOptions {
  LatentCacheOptions cache;
  int64_t num_entries = 64;
  bool extra = false, lengths = false, sink = false, all_invalid = false;
  int64_t num_heads = 4;
  DType q_dtype = DType::kF32;
};

struct SparseCase {
  static constexpr int64_t kRequests = 2, kQueries = 2;

  explicit SparseCase(const SparseCaseOptions& options)
      : heads(options.num_heads), main(options.cache), extra(ExtraOptions(options.cache)) {
    std::mt19937_64 random(options.cache.seed + 17);
    std::vector<std::vector<const std::vector<double>*>> seen(kRequests * kQueries);
    const auto fill = [&](LatentCache& cache, int64_t count, Tensor& indices, Tensor& lens) {
      const int64_t slots = cache.view().num_slots();
      // A slot that only invalid entries point at holds NaN.
      cache.Poison(slots - 1);
      std::vector<double> entries, used;
      for (int64_t b = 0; b < kRequests; ++b) {
        used.push_back(static_cast<double>(options.lengths ? IntegerDraw(random, 0, count) : count));
        for (int64_t s = 0; s < kQueries; ++s) {
          for (int64_t k = 0; k < count; ++k) {
            const bool counts = k < used.back();
            int64_t slot = counts ? IntegerDraw(random, 0, slots - 2) : slots - 1;
            const int64_t kind = IntegerDraw(random, 0, 9);
            if (options.all_invalid || kind < 2) slot = kind % 2 == 0 ? -1 : slots + kind;
            entries.push_back(static_cast<double>(slot));
            if (counts && slot >= 0 && slot < slots) {
              seen[b * kQueries + s].push_back(&cache.row(slot));
            }
          }
        }
      }
      indices = IntTensor(entries, {kRequests, kQueries, count});
      lens = IntTensor(used, {kRequests});
    };
    fill(main, options.num_entries, main_indices, main_lens);
    args.main.cache = main.view();
    args.main.indices = main_indices.view;
    if (options.lengths) args.main.topk_len = main_lens.view;
    if (options.extra) {
      fill(extra, 65, extra_indices, extra_lens);
      args.extra.cache = extra.view();
      args.extra.indices = extra_indices.view;
      if (options.lengths) args.extra.topk_len = extra_lens.view;
    }
    const int64_t D = main.key_dim(), Dv = main.value_dim();
    q = Tensor(options.q_dtype, {kRequests, kQueries, heads, D});
    q.Set(NormalDraws(random, kRequests * kQueries * heads * D));
    out = Tensor(options.q_dtype, {kRequests, kQueries, heads, Dv});
    lse = Tensor(DType::kF32, {kRequests, kQueries, heads});
    FillWithPoison(out);
    FillWithPoison(lse);
    args.q = q.view;
    args.scale = static_cast<float>(1 / std::sqrt(D));
    DenseParams dense;
    dense.scale = args.scale;
    dense.causal = false;
    if (options.sink) {
      sinks = FloatTensor(NormalDraws(random, heads + 5));
      args.sinks = sinks.view;
      dense.sinks = sinks.Get();
    }
    if (options.cache.scale != 1) {
      kv_scale = FloatTensor({options.cache.scale});
      args.kv_scale = kv_scale.view;
    }
    args.out = out.view;
    args.lse = lse.view;
    const std::vector<double> queries = q.Get();
    for (int64_t n = 0; n < kRequests * kQueries; ++n) {
      Append(DenseAttention(RequestOverRows(seen[n], Part(queries, n * heads * D, heads * D), 1,
                                            heads, Dv),
                            dense),
             expected);
    }
  }

  static LatentCacheOptions ExtraOptions(LatentCacheOptions options) {
    options.block_size = options.block_size == 2 ? 3 : 2;
    options.num_blocks = 40;
    options.seed += 1;
    return options;
  }

  // Queries of all requests as rows.
  std::string MismatchNow() const {
    const int64_t rows = kRequests * kQueries;
    return Mismatch(expected, out.view.Reshape({rows, heads, main.value_dim()}).value(),
                    lse.view.Reshape({rows, heads}).value(), ToleranceUnderTest(out.view.dtype));
  }

  int64_t heads;
  LatentCache main, extra;
  Tensor main_indices, main_lens, extra_indices, extra_lens, q, out, lse, sinks, kv_scale;
  SparseMlaDecodeArgs args;
  DenseResult expected;
};

TEST(OpsMlaTest, T3SparseDecode) {
  const int64_t kEntries[] = {64, 576, 2048}, kBlockSizes[] = {2, 61, 64, 256};
  int n = 0;
  for (const Layout& layout : kLayouts) {
    for (int64_t block_size : kBlockSizes) {
      // Every other combination of the three, the rest with the next block size.
      for (int flags = n / 4 % 2; flags < 8; flags += 2, ++n) {
        SparseCaseOptions options;
        options.cache = OptionsOf(layout);
        options.cache.block_size = block_size;
        options.cache.num_blocks = 256 / block_size + 2;
        options.cache.seed = n + 1;
        // The long lists each with a few of the combinations.
        options.num_entries = n % 17 == 0 ? 2048 : kEntries[n % 5 == 0];
        options.extra = flags & 1, options.lengths = flags & 2, options.sink = flags & 4;
        options.num_heads = n % 3 == 0 ? 3 : 1;
        options.q_dtype = n % 4 == 0 ? DType::kBF16 : DType::kF32;
        SCOPED_TRACE(absl::StrCat(Name(layout.layout), " of ", Name(layout.dtype), ", BS ",
                                  block_size, ", K ", options.num_entries, ", flags ", flags));
        SparseCase sparse(options);
        uint32_t bits = 0;
        DeviceErrorFlags error_flags = {&bits};
        ExecContext context;
        context.error_flags = &error_flags;
        const absl::Status status = OpsUnderTest().SparseMlaDecode(context, sparse.args);
        ASSERT_TRUE(status.ok()) << status;
        EXPECT_EQ(sparse.MismatchNow(), "");
        EXPECT_EQ(bits & ~static_cast<uint32_t>(kBadIndex), 0);
        // Entries are out of the cache now and then; 64 of which a tenth are bad always have some.
        if (!options.lengths) {
          EXPECT_NE(bits & kBadIndex, 0);
        }
      }
    }
  }
}

TEST(OpsMlaTest, T3AllInvalidIsEmptyWhateverTheSink) {
  for (bool sink : {false, true}) {
    SparseCaseOptions options;
    options.all_invalid = true;
    options.extra = true;
    options.sink = sink;
    SparseCase sparse(options);
    ASSERT_TRUE(OpsUnderTest().SparseMlaDecode({}, sparse.args).ok());
    for (std::byte byte : sparse.out.bytes) ASSERT_EQ(byte, std::byte{0});
    for (double lse : sparse.lse.Get()) EXPECT_EQ(lse, -kInfinity);
  }
}

TEST(OpsMlaTest, T3SparsePrefill) {
  for (const bool sink : {false, true}) {
    for (const bool lengths : {false, true}) {
      for (DType type : {DType::kBF16, DType::kF16, DType::kF32}) {
        constexpr int64_t T = 5, S = 200, H = 3, D = 80, Dv = 64, K = 70;
        std::mt19937_64 random(23);
        Tensor q(type, {T, H, D}), kv(type, {S, 1, D}), out(type, {T, H, Dv});
        Tensor max_logits(DType::kF32, {T, H}), lse(DType::kF32, {T, H});
        q.Set(NormalDraws(random, T * H * D));
        std::vector<double> keys = NormalDraws(random, S * D);
        for (int64_t d = 0; d < D; ++d) keys[(S - 1) * D + d] = NAN;  // of invalid entries only
        kv.Set(keys);
        keys = kv.Get();
        std::vector<std::vector<double>> rows(S);
        for (int64_t s = 0; s < S; ++s) rows[s] = Part(keys, s * D, D);
        std::vector<double> entries, used;
        const Tensor sinks = FloatTensor(NormalDraws(random, H));
        DenseParams dense;
        dense.scale = 0.125f;
        dense.causal = false;
        if (sink) dense.sinks = sinks.Get();
        DenseResult expected;
        std::vector<double> largest;
        for (int64_t t = 0; t < T; ++t) {
          used.push_back(static_cast<double>(lengths ? IntegerDraw(random, 0, K) : K));
          std::vector<const std::vector<double>*> seen;
          for (int64_t k = 0; k < K; ++k) {
            int64_t row = k < used.back() ? IntegerDraw(random, 0, S - 2) : S - 1;
            if (k % 9 == 4) row = k % 2 == 0 ? -1 : S + k;
            entries.push_back(static_cast<double>(row));
            if (row >= 0 && row < S - 1) seen.push_back(&rows[row]);
          }
          DenseRequest request =
              RequestOverRows(seen, Part(q.Get(), t * H * D, H * D), 1, H, Dv);
          Append(DenseAttention(request, dense), expected);
          for (int64_t h = 0; h < H; ++h) {
            double max = -kInfinity;
            for (const std::vector<double>* row : seen) {
              double s = 0;
              for (int64_t d = 0; d < D; ++d) s += request.q[h * D + d] * (*row)[d];
              max = std::max(max, s * 0.125);
            }
            largest.push_back(max);
          }
        }
        const Tensor indices = IntTensor(entries, {T, 1, K}), lens = IntTensor(used, {T});
        SparseMlaPrefillArgs args;
        args.q = q.view;
        args.kv = kv.view;
        args.indices = indices.view;
        if (lengths) args.topk_len = lens.view;
        args.scale = 0.125f;
        if (sink) args.sinks = sinks.view;
        args.out = out.view;
        args.max_logits = max_logits.view;
        args.lse = lse.view;
        const absl::Status status = OpsUnderTest().SparseMlaPrefill({}, args);
        ASSERT_TRUE(status.ok()) << status;
        EXPECT_EQ(Mismatch(expected, out.view, lse.view, ToleranceUnderTest(type)), "");
        ExpectClose(max_logits.Get(), largest, DType::kF32);
      }
    }
  }
}

// Rows with the two numbers of the example on axes 0 and 512, of which V holds only the first.
TEST(OpsMlaTest, Ex17SparseDecodeAndPrefill) {
  constexpr int64_t D = 576;
  LatentCacheOptions options;
  options.dtype = DType::kF32;
  options.latent_dim = 512, options.rotary_dim = 64;
  options.num_blocks = 2, options.block_size = 2;
  LatentCache main(options), extra(options);
  const auto row = [](double a, double b) {
    std::vector<double> values(D);
    values[0] = a, values[512] = b;
    return values;
  };
  const double kRows[][2] = {{0, 0}, {1, 0}, {2, 1}, {NAN, NAN}};
  for (int slot = 0; slot < 4; ++slot) main.SetRow(slot, row(kRows[slot][0], kRows[slot][1]));
  main.Poison(3);
  extra.SetRow(0, row(4, 0));
  extra.SetRow(1, row(5, 1));
  Tensor q(DType::kF32, {1, 1, 1, D}), out(DType::kF32, {1, 1, 1, 512});
  Tensor lse(DType::kF32, {1, 1, 1}), kv(DType::kF32, {4, 1, D});
  q.Set(row(std::log(2), std::log(3)));
  std::vector<double> keys;
  for (const auto& [a, b] : kRows) {
    const std::vector<double> values = row(a, b);
    keys.insert(keys.end(), values.begin(), values.end());
  }
  kv.Set(keys);
  const Tensor three = IntTensor({3}, {1}), one = IntTensor({1}, {1});
  const Tensor extra_indices = IntTensor({0, 1}, {1, 1, 2});
  const auto run = [&](std::vector<double> list, bool with_extra, double sink, double want_out,
                       double want_lse) {
    const Tensor indices = IntTensor(list, {1, 1, 4}), sinks = FloatTensor({sink});
    SparseMlaDecodeArgs args;
    args.q = q.view;
    args.main = {main.view(), indices.view, three.view};
    if (with_extra) args.extra = {extra.view(), extra_indices.view, one.view};
    args.sinks = sinks.view;
    args.out = out.view;
    args.lse = lse.view;
    ASSERT_TRUE(OpsUnderTest().SparseMlaDecode({}, args).ok());
    ExpectExample(out.Get()[0], want_out);
    ExpectExample(lse.Get()[0], want_lse);
    if (with_extra) return;
    SparseMlaPrefillArgs prefill;
    prefill.q = q.view.Select(0, 0).value();
    prefill.kv = kv.view;
    prefill.indices = indices.view;
    prefill.topk_len = three.view;
    prefill.sinks = sinks.view;
    prefill.out = out.view.Select(0, 0).value();
    prefill.lse = lse.view.Select(0, 0).value();
    ASSERT_TRUE(OpsUnderTest().SparseMlaPrefill({}, prefill).ok());
    ExpectExample(out.Get()[0], want_out);
    ExpectExample(lse.Get()[0], want_lse);
  };
  run({2, 0, -1, 3}, false, -kInfinity, 1.8461538, std::log(13));
  run({2, 0, -1, 3}, true, -kInfinity, 3.0344828, std::log(29));
  run({2, 0, -1, 3}, true, std::log(23), 1.6923077, std::log(29));
  run({2, 2, 0, 3}, false, -kInfinity, 1.92, std::log(25));
  run({-1, 4, 9, 0}, false, 0, 0, -kInfinity);
}

// T-23. A window as lists of slots for the sparse operation.
TEST(OpsMlaTest, T23WindowListsEqualTheWindow) {
  constexpr int64_t kWindow = 24, kHeads = 4;
  LatentCacheOptions options;
  options.latent_dim = 512, options.rotary_dim = 64;
  DenseCase dense(options, {1, 40, 24, 130}, {1, 1, 1, 1}, kHeads, DType::kBF16);
  dense.params.window_left = kWindow - 1;
  dense.ExpectExact(dense.Args(false));
  std::vector<double> entries, lens;
  for (int64_t b = 0; b < 4; ++b) {
    const int64_t begin = std::max<int64_t>(0, dense.lengths[b] - kWindow);
    for (int64_t k = 0; k < kWindow; ++k) {
      entries.push_back(begin + k < dense.lengths[b]
                            ? static_cast<double>(dense.Slot(b, begin + k))
                            : -1);
    }
    lens.push_back(static_cast<double>(dense.lengths[b] - begin));
  }
  const Tensor indices = IntTensor(entries, {4, 1, kWindow}), topk_len = IntTensor(lens, {4});
  Tensor out(DType::kBF16, {4, 1, kHeads, 512}), lse(DType::kF32, {4, 1, kHeads});
  SparseMlaDecodeArgs args;
  args.q = dense.q.view.Unsqueeze(1).value();
  args.main = {dense.cache.view(), indices.view, topk_len.view};
  args.scale = dense.params.scale;
  args.out = out.view;
  args.lse = lse.view;
  ASSERT_TRUE(OpsUnderTest().SparseMlaDecode({}, args).ok());
  ExpectClose(out.Get(), dense.out.Get(), DType::kBF16);
  ExpectClose(lse.Get(), dense.lse.Get(), DType::kF32);
}

// --- Absorbed and uncompressed ---

TEST(OpsMlaTest, Ex16Absorption) {
  LatentCacheOptions options;
  options.dtype = DType::kF32;
  options.latent_dim = 512, options.rotary_dim = 64;
  options.block_size = 2;
  DenseCase absorbed(options, {2}, {1}, 1, DType::kF32);
  const auto row = [](double a, double b, double pe) {
    std::vector<double> values(576);
    values[0] = a, values[1] = b, values[512] = pe;
    return values;
  };
  absorbed.cache.SetRow(absorbed.Slot(0, 0), row(1, 2, 0.5));
  absorbed.cache.SetRow(absorbed.Slot(0, 1), row(3, -1, -0.25));
  absorbed.q.Set(row(1, 2, 4));
  absorbed.params.scale = static_cast<float>(1 / std::sqrt(2));
  ASSERT_TRUE(OpsUnderTest().MlaDecode({}, absorbed.Args(false)).ok());
  const std::vector<double> latent = absorbed.out.Get();
  ExpectExample(latent[0], 1.0140707);
  ExpectExample(latent[1], 1.9788939);
  ExpectExample(2 * latent[0] - latent[1], 0.0492475);
  ExpectExample(absorbed.lse.Get()[0], 4.9568077);
}

// y [n][to] = x [n][from] * matrix [from][to].
std::vector<double> Multiply(const std::vector<double>& x, const std::vector<double>& matrix,
                             int64_t from, int64_t to) {
  std::vector<double> y(x.size() / from * to);
  for (size_t n = 0; n < x.size() / from; ++n) {
    for (int64_t i = 0; i < from; ++i) {
      for (int64_t j = 0; j < to; ++j) y[n * to + j] += x[n * from + i] * matrix[i * to + j];
    }
  }
  return y;
}

// Inputs of both forms are products rounded to float32, which moves scores by some 1e-6.
void ExpectSameModuloInputs(const std::vector<double>& a, const std::vector<double>& b) {
  ASSERT_EQ(a.size(), b.size());
  const double limit = 1e-5 + 2 * ToleranceUnderTest(DType::kF32).absolute;
  for (size_t i = 0; i < a.size(); ++i) {
    ASSERT_NEAR(a[i], b[i], limit * std::max(1.0, std::abs(a[i]))) << i;
  }
}

TEST(OpsMlaTest, T26AbsorbedEqualsUncompressedInOneShotAndInChunks) {
  constexpr int64_t H = 3, kLatent = 64, kRotary = 16, kNope = 32, kValue = 24, L = 90, Q = 10;
  std::mt19937_64 random(31);
  LatentCacheOptions options;
  options.dtype = DType::kF32;
  DenseCase absorbed(options, {L}, {Q}, H, DType::kF32);
  absorbed.params.scale = static_cast<float>(1 / std::sqrt(kNope + kRotary));
  // Per head: W_UK [kLatent][kNope], W_UV [kLatent][kValue].
  std::vector<std::vector<double>> w_uk, w_uv;
  for (int64_t h = 0; h < H; ++h) {
    w_uk.push_back(NormalDraws(random, kLatent * kNope));
    w_uv.push_back(NormalDraws(random, kLatent * kValue));
    for (std::vector<double>* w : {&w_uk.back(), &w_uv.back()}) {
      for (double& value : *w) value /= 8;
    }
  }
  constexpr int64_t D = kNope + kRotary;
  Tensor q(DType::kF32, {Q, H, D}), k(DType::kF32, {L, H, D}), v(DType::kF32, {L, H, kValue});
  q.Set(NormalDraws(random, Q * H * D));
  const std::vector<double> queries = q.Get();
  std::vector<double> latent_queries, keys(L * H * D), values(L * H * kValue);
  for (int64_t t = 0; t < Q; ++t) {
    for (int64_t h = 0; h < H; ++h) {
      const double* query = &queries[(t * H + h) * D];
      for (int64_t c = 0; c < kLatent; ++c) {
        double sum = 0;
        for (int64_t n = 0; n < kNope; ++n) sum += w_uk[h][c * kNope + n] * query[n];
        latent_queries.push_back(sum);
      }
      latent_queries.insert(latent_queries.end(), query + kNope, query + D);
    }
  }
  absorbed.q.Set(latent_queries);
  for (int64_t j = 0; j < L; ++j) {
    const std::vector<double>& row = absorbed.cache.row(absorbed.Slot(0, j));
    const std::vector<double> latent = Part(row, 0, kLatent);
    for (int64_t h = 0; h < H; ++h) {
      const std::vector<double> nope = Multiply(latent, w_uk[h], kLatent, kNope);
      const std::vector<double> value = Multiply(latent, w_uv[h], kLatent, kValue);
      std::copy(nope.begin(), nope.end(), &keys[(j * H + h) * D]);
      std::copy(row.begin() + kLatent, row.end(), &keys[(j * H + h) * D + kNope]);
      std::copy(value.begin(), value.end(), &values[(j * H + h) * kValue]);
    }
  }
  k.Set(keys);
  v.Set(values);

  ASSERT_TRUE(OpsUnderTest().MlaDecode({}, absorbed.Args(true)).ok());
  std::vector<double> by_absorption;
  const std::vector<double> latent_out = absorbed.out.Get();
  for (int64_t row = 0; row < Q * H; ++row) {
    const std::vector<double> out =
        Multiply(Part(latent_out, row * kLatent, kLatent), w_uv[row % H], kLatent, kValue);
    by_absorption.insert(by_absorption.end(), out.begin(), out.end());
  }
  // One shot.
  const Tensor q_start = IntTensor({0, Q}, {2}), kv_start = IntTensor({0, L}, {2});
  Tensor out(DType::kF32, {Q, H, kValue}), lse(DType::kF32, {Q, H});
  VarlenSelfAttentionArgs args;
  args.q = q.view;
  args.k = k.view;
  args.v = v.view;
  args.query_start_loc = q_start.view;
  args.kv_start_loc = kv_start.view;
  args.params.scale = absorbed.params.scale;
  args.out = out.view;
  args.lse = lse.view;
  ASSERT_TRUE(OpsUnderTest().VarlenSelfAttention({}, args).ok());
  ExpectSameModuloInputs(by_absorption, out.Get());
  ExpectSameModuloInputs(absorbed.lse.Get(), lse.Get());
  // New tokens among themselves, causally; the context in chunks, all of it visible; merged.
  const int64_t kCuts[] = {0, 33, 64, L - Q, L};
  Tensor outs(DType::kF32, {4, Q, H, kValue}), lses(DType::kF32, {4, Q, H});
  for (int64_t n = 0; n < 4; ++n) {
    const Tensor chunk_start = IntTensor({0, static_cast<double>(kCuts[n + 1] - kCuts[n])}, {2});
    VarlenSelfAttentionArgs chunk = args;
    chunk.k = k.view.Slice(0, kCuts[n], kCuts[n + 1]).value();
    chunk.v = v.view.Slice(0, kCuts[n], kCuts[n + 1]).value();
    chunk.kv_start_loc = chunk_start.view;
    chunk.params.causal = n == 3;
    chunk.out = outs.view.Select(0, n).value();
    chunk.lse = lses.view.Select(0, n).value();
    ASSERT_TRUE(OpsUnderTest().VarlenSelfAttention({}, chunk).ok());
  }
  Tensor merged(DType::kF32, {Q, H, kValue}), merged_lse(DType::kF32, {Q, H});
  MergeStatesArgs merge;
  merge.outs = outs.view;
  merge.lses = lses.view;
  merge.out = merged.view;
  merge.lse = merged_lse.view;
  ASSERT_TRUE(OpsUnderTest().MergeStates({}, merge).ok());
  ExpectSameModuloInputs(merged.Get(), out.Get());
  ExpectSameModuloInputs(merged_lse.Get(), lse.Get());
}

}  // namespace
}  // namespace kvblocks::attention
