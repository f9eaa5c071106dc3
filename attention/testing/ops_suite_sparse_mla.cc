// T-3 and Ex-17: sparse latent attention, decode over every latent layout and prefill.

#include <algorithm>
#include <cmath>
#include <limits>
#include <random>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "kvblocks/attention/testing/latent_cache.h"
#include "kvblocks/attention/testing/ops_suite.h"

namespace kvblocks::attention {
namespace {

constexpr double kInfinity = std::numeric_limits<double>::infinity();

struct SparseCaseOptions {
  LatentCacheOptions cache;
  int64_t num_entries = 64;
  KvRowFormat extra_format = KvRowFormat::kElements;  // if it is not that of cache
  bool extra = false, lengths = false, sink = false, all_invalid = false;
  int64_t num_heads = 4;
  DType q_dtype = DType::kF32;
};

struct SparseCase {
  static constexpr int64_t kRequests = 2, kQueries = 2;

  explicit SparseCase(const SparseCaseOptions& options)
      : heads(options.num_heads), main(options.cache), extra(ExtraOptions(options)) {
    std::mt19937_64 random(options.cache.seed + 17);
    std::vector<std::vector<const std::vector<double>*>> seen(kRequests * kQueries);
    const auto fill = [&](LatentCache& cache, int64_t count, Tensor& indices, Tensor& lens) {
      const int64_t slots = cache.view().num_slots();
      // A slot that only invalid entries point at holds NaN.
      cache.Poison(slots - 1);
      std::vector<double> entries, used;
      for (int64_t b = 0; b < kRequests; ++b) {
        used.push_back(
            static_cast<double>(options.lengths ? IntegerDraw(random, 0, count) : count));
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
      Append(DenseAttention(
                 RequestOverRows(seen[n], Part(queries, n * heads * D, heads * D), 1, heads, Dv),
                 dense),
             expected);
    }
  }

  static LatentCacheOptions ExtraOptions(const SparseCaseOptions& of) {
    LatentCacheOptions options = of.cache;
    if (of.extra_format != KvRowFormat::kElements) options.format = of.extra_format;
    options.block_size = options.block_size == 2 ? 3 : 2;
    options.num_blocks = 40;
    options.seed += 1;
    return options;
  }

  // Queries of all requests as rows.
  std::string MismatchNow() const {
    const int64_t rows = kRequests * kQueries;
    return Mismatch(expected, out.view.Reshape({rows, heads, main.value_dim()}).value(),
                    lse.view.Reshape({rows, heads}).value(),
                    main.view().layout == KvLayout::kMlaFp8_656
                        ? TileScaledToleranceUnderTest(out.view.dtype)
                        : ToleranceUnderTest(out.view.dtype));
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
  for (const LatentCacheOptions& layout : EveryLatentLayout()) {
    for (int64_t block_size : kBlockSizes) {
      // Every other combination of the three, the rest with the next block size.
      for (int flags = n / 4 % 2; flags < 8; flags += 2, ++n) {
        SparseCaseOptions options;
        options.cache = layout;
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

// DeepSeek V4.1 keeps its window in 8 bits and its compressed tokens in 4.
TEST(OpsMlaTest, SparseDecodeTakesTwoKindsOfRecords) {
  SparseCaseOptions options;
  options.cache.layout = KvLayout::kMlaLatent;
  options.cache.dtype = DType::kU8;
  options.cache.format = KvRowFormat::kMlaV41;
  options.extra = options.sink = true;
  options.extra_format = KvRowFormat::kMlaV41Fp4;
  SparseCase sparse(options);
  const absl::Status status = OpsUnderTest().SparseMlaDecode({}, sparse.args);
  ASSERT_TRUE(status.ok()) << status;
  EXPECT_EQ(sparse.MismatchNow(), "");
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
          DenseRequest request = RequestOverRows(seen, Part(q.Get(), t * H * D, H * D), 1, H, Dv);
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

}  // namespace
}  // namespace kvblocks::attention
