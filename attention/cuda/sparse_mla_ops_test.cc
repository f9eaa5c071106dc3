// Sparse MLA on tensor cores against the dense oracle: sizes that the kernels were made for, which
// suites of all backends avoid for their cost.

#include <algorithm>
#include <cmath>
#include <limits>
#include <random>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "gtest/gtest.h"
#include "kvblocks/attention/cuda/testing/mla_ops_suite.h"
#include "kvblocks/attention/ops/attention_ops.h"
#include "kvblocks/attention/testing/dense_oracle.h"
#include "kvblocks/attention/testing/latent_cache.h"
#include "kvblocks/attention/testing/paged_case.h"
#include "kvblocks/attention/testing/tolerance.h"

namespace kvblocks::attention::cuda {
namespace {

constexpr double kInfinity = std::numeric_limits<double>::infinity();

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
          attention::DenseAttention(
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
      {.layout = KvLayout::kMlaFp8_656, .heads = 33, .queries = 1, .entries = 390},
      {.layout = KvLayout::kMlaFp8_584, .heads = 33, .queries = 1, .entries = 330},
      // Nine tiles: twice as many as producers place at a time, and one.
      {.layout = KvLayout::kMlaFp8_584,
       .heads = 17,
       .queries = 1,
       .entries = 257,
       .extra_entries = 200},
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
      Append(attention::DenseAttention(RequestOverRows(seen, query, 1, heads, 512), dense), expected);
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

// What only the device sees: rows of blocks outside the cache are not chosen before others, lengths
// beyond the table are cut, slots beyond the cache skipped; each sets its bit.
TEST(CudaIndexerTest, BadBlocksSlotsAndLengthsAreFlagged) {
  uint32_t bits = 0;
  DeviceErrorFlags flags{&bits};
  ExecContext context;
  context.error_flags = &flags;
  Tensor q(DType::kF32, {1, 1, 4}), weights(DType::kF32, {1, 1}), rows(DType::kF32, {3, 2, 4});
  q.Set({1, 0, 0, 0}), weights.Set({1}), rows.Set(std::vector<double>(24, 1));
  Tensor starts = Ints({0, 1}, {2}), lens = Ints({6}, {1}), table = Ints({1, 9, 2}, {1, 3});
  Tensor indices(DType::kI32, {1, 4}), counts(DType::kI32, {1});
  IndexTopkArgs args;
  args.q = q.view, args.weights = weights.view, args.cache = IndexCacheView(rows.view);
  args.query_start_loc = starts.view, args.seq_lens = lens.view, args.block_table = table.view;
  args.max_seq_len = 6;
  args.indices = indices.view, args.lens = counts.view;
  ASSERT_EQ(OnDevice().IndexTopk(context, args), absl::OkStatus());
  EXPECT_EQ(indices.Get(), (std::vector<double>{2, 3, 4, 5}));
  EXPECT_EQ(bits, kBadBlock);
  bits = 0;
  lens = Ints({40}, {1}), args.seq_lens = lens.view, args.max_seq_len = 40;
  ASSERT_EQ(OnDevice().IndexTopk(context, args), absl::OkStatus());
  EXPECT_EQ(counts.Get(), (std::vector<double>{4}));
  EXPECT_EQ(bits, kBadBlock | kLengthClamped);

  bits = 0;
  Tensor slots(DType::kI64, {1}), keys(DType::kF32, {1, 4});
  slots.Set({6}), keys.Set({7, 7, 7, 7});
  CacheIndexKeysArgs write;
  write.k = keys.view, write.slot_mapping = slots.view, write.cache = {rows.view};
  ASSERT_EQ(OnDevice().CacheIndexKeys(context, write), absl::OkStatus());
  EXPECT_EQ(rows.Get(), std::vector<double>(24, 1));
  EXPECT_EQ(bits, kBadSlot);
}

}  // namespace
}  // namespace kvblocks::attention::cuda
