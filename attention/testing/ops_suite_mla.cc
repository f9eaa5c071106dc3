// T-3, Ex-16, Ex-17: multi-head latent attention over every latent layout, dense and by lists of
// slots.

#include <cmath>
#include <limits>
#include <random>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "attention/testing/latent_case.h"
#include "attention/testing/ops_suite.h"

namespace kvblocks::attention {
namespace {

constexpr double kInfinity = std::numeric_limits<double>::infinity();

struct DenseCase : LatentCase {
  using LatentCase::LatentCase;

  void ExpectExact(const MlaDecodeArgs& args) {
    ASSERT_EQ(OpsUnderTest().MlaDecode({}, args), absl::OkStatus());
    EXPECT_EQ(Mismatch(Expected(), out.view, lse.view, ToleranceUnderTest(out.view.dtype)), "");
  }
};

TEST(OpsMlaTest, T3DenseDecodeOfEveryLayout) {
  const std::pair<int64_t, int64_t> kHeadsAndBlocks[] = {{1, 2}, {16, 61}, {64, 64}, {128, 16}};
  for (const LatentCacheOptions& layout : EveryLatentLayout()) {
    for (const auto& [heads, block_size] : kHeadsAndBlocks) {
      SCOPED_TRACE(absl::StrCat(Name(layout.layout), " of ", Name(layout.dtype), ", ", heads,
                                " heads, BS ", block_size));
      LatentCacheOptions options = layout;
      options.block_size = block_size;
      const DType type = heads == 16 ? DType::kBF16 : DType::kF32;
      DenseCase decode(options, {1, 0, 16, 65}, {1, 1, 1, 1}, heads, type);
      decode.ExpectExact(decode.Args());
      DenseCase varlen(options, {3, 0, 17, 7}, {3, 0, 2, 1}, heads, type);
      varlen.ExpectExact(varlen.Args());
    }
  }
}

TEST(OpsMlaTest, QueriesMayComeInTwoParts) {
  for (const LatentCacheOptions& layout : EveryLatentLayout()) {
    DenseCase whole(layout, {1, 40, 33}, {1, 1, 1}, 4, DType::kF32);
    MlaDecodeArgs args = whole.Args();
    const int64_t D = whole.cache.key_dim();
    const int64_t rotary = layout.dtype == DType::kU8 ? 64 : 16;
    const ConstTensorView q = args.q_lat;
    args.q_lat = q.Slice(2, 0, D - rotary).value();
    args.q_pe = q.Slice(2, D - rotary, D).value();
    whole.ExpectExact(args);
  }
}

TEST(OpsMlaTest, DenseDecodeTakesFeaturesAndSplits) {
  DenseCase decode(LatentCacheOptions(), {1, 0, 40, 130}, {1, 0, 2, 5}, 4, DType::kF32);
  const Tensor sinks = FloatTensor({0.5, -1, 2, -kInfinity});
  decode.params.sinks = sinks.view;
  decode.params.soft_cap = 4;
  decode.ExpectExact(decode.Args());
  decode.params.window_left = 20;
  decode.params.split = SplitPolicy::Fixed(32);
  decode.ExpectExact(decode.Args());
}

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
  ASSERT_TRUE(OpsUnderTest().MlaDecode({}, absorbed.Args()).ok());
  const std::vector<double> latent = absorbed.out.Get();
  ExpectExample(latent[0], 1.0140707);
  ExpectExample(latent[1], 1.9788939);
  ExpectExample(2 * latent[0] - latent[1], 0.0492475);
  ExpectExample(absorbed.lse.Get()[0], 4.9568077);
}

// --- Lists of slots ---

LatentCacheOptions ExtraOptions(LatentCacheOptions options) {
  options.block_size = options.block_size == 2 ? 3 : 2;
  options.num_blocks = 40;
  options.seed += 1;
  return options;
}

// Runs it; returns what it flags.
uint32_t ExpectExact(SparseCase& sparse) {
  Flagged flagged;
  EXPECT_EQ(OpsUnderTest().SparseMlaDecode(flagged.context, sparse.args), absl::OkStatus());
  const DType type = sparse.out.view.dtype;
  EXPECT_EQ(sparse.MismatchNow(sparse.options.cache.layout == KvLayout::kMlaFp8_656
                                   ? TileScaledToleranceUnderTest(type)
                                   : ToleranceUnderTest(type)),
            "");
  return flagged.bits;
}

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
        options.entries = n % 17 == 0 ? 2048 : kEntries[n % 5 == 0];
        options.extra_cache = ExtraOptions(options.cache);
        options.extra_entries = flags & 1 ? 65 : 0;
        options.lengths = flags & 2, options.sink = flags & 4;
        options.num_heads = n % 3 == 0 ? 3 : 1;
        options.q_dtype = n % 4 == 0 ? DType::kBF16 : DType::kF32;
        SCOPED_TRACE(absl::StrCat(Name(layout.layout), " of ", Name(layout.dtype), ", BS ",
                                  block_size, ", K ", options.entries, ", flags ", flags));
        SparseCase sparse(options);
        const uint32_t bits = ExpectExact(sparse);
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
  options.extra_cache = ExtraOptions(options.cache);
  options.extra_cache.format = KvRowFormat::kMlaV41Fp4;
  options.extra_entries = 65, options.sink = true;
  SparseCase sparse(options);
  ExpectExact(sparse);
}

TEST(OpsMlaTest, T3AllInvalidIsEmptyWhateverTheSink) {
  for (bool sink : {false, true}) {
    SparseCaseOptions options;
    options.all_invalid = true;
    options.extra_cache = ExtraOptions({});
    options.extra_entries = 65, options.sink = sink;
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
        SparsePrefillOptions options{.type = type, .sink = sink};
        std::mt19937_64 random(23);
        for (int64_t t = 0; lengths && t < options.tokens; ++t) {
          options.used.push_back(static_cast<double>(IntegerDraw(random, 0, options.entries)));
        }
        SparsePrefillCase sparse(options);
        ASSERT_EQ(OpsUnderTest().SparseMlaPrefill({}, sparse.args), absl::OkStatus());
        EXPECT_EQ(
            Mismatch(sparse.expected, sparse.out.view, sparse.lse.view, ToleranceUnderTest(type)),
            "");
        ExpectClose(sparse.max_logits.Get(), sparse.largest, DType::kF32);
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
