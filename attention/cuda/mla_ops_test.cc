// MLA decode on tensor cores against the dense oracle: sizes that the kernels were made for, which
// suites of all backends avoid for their cost.

#include <cmath>
#include <cstdint>
#include <limits>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "attention/cuda/testing/on_device.h"
#include "attention/testing/latent_case.h"
#include "attention/testing/paged_case.h"
#include "attention/testing/tolerance.h"
#include "checks/ceil_div.h"
#include "gtest/gtest.h"
#include "kvblocks/attention_ops.h"

namespace kvblocks::attention::cuda {
namespace {

Tolerance ToleranceOf(KvLayout layout, DType type) {
  return layout == KvLayout::kMlaFp8_656 ? CudaTileScaledTolerance(type) : CudaTolerance(type);
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

constexpr double kInfinity = std::numeric_limits<double>::infinity();

struct DecodeCase : LatentCase {
  DecodeCase(const LatentCacheOptions& options, const std::vector<int64_t>& the_lengths,
             const std::vector<int64_t>& the_q_lens, int64_t num_heads,
             DType query = DType::kBF16)
      : LatentCase(options, the_lengths, the_q_lens, num_heads,
                   IsQuantizedCode(options.dtype) ? query : options.dtype) {
    params.scale = 0.0625f;
  }

  void ExpectExact(const MlaDecodeArgs& args) {
    ASSERT_EQ(OnDevice().MlaDecode({}, args), absl::OkStatus());
    EXPECT_EQ(Mismatch(Expected(), out.view, lse.view, CudaTolerance(out.view.dtype)), "");
  }
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
      {33, 64, DType::kBF16, KvLayout::kMlaLatent, {400}, {1}},
      // Rows enough that the bulk copy engine brings the keys: blocks of one box and of two, keys
      // that are a part of a box, and keys that only some of the rows see.
      {128, 64, DType::kBF16, KvLayout::kMlaLatent, {161, 0, 64}, {1, 1, 1}},
      {130, 32, DType::kF16, KvLayout::kMlaLatent, {95}, {1}},
      {64, 32, DType::kBF16, KvLayout::kMlaLatent, {100, 33}, {3, 2}},
  };
  for (const auto& each : kCases) {
    SCOPED_TRACE(absl::StrCat(each.heads, " heads, BS ", each.block_size));
    DecodeCase decode(CacheOptions(each.layout, each.type, each.block_size), each.lengths,
                      each.q_lens, each.heads);
    decode.ExpectExact(decode.Args());
  }
}

// Rows of 8-bit codes with one scale, whose instances have tiles of 16 rows alone.
TEST(CudaMlaTest, T3CodesOfLatentRows) {
  const struct {
    int64_t heads, block_size;
    DType query, type;
    std::vector<int64_t> lengths, q_lens;
  } kCases[] = {
      {16, 64, DType::kBF16, DType::kF8E4M3, {1, 0, 31, 33, 130}, {1, 1, 1, 1, 1}},
      {17, 16, DType::kF16, DType::kF8E4M3, {64, 65}, {1, 1}},
      {16, 32, DType::kBF16, DType::kI8, {97, 40}, {1, 1}},
      {64, 16, DType::kF16, DType::kI8, {70}, {1}},
      {3, 8, DType::kBF16, DType::kF8E4M3, {30, 0, 66, 9}, {7, 0, 12, 1}},
  };
  for (const auto& each : kCases) {
    SCOPED_TRACE(absl::StrCat(each.heads, " heads, ", Name(each.type)));
    LatentCacheOptions options = CacheOptions(KvLayout::kMlaLatent, each.type, each.block_size);
    options.scale = each.type == DType::kI8 ? 0.01 : 0.25;
    for (const int64_t rotary : {64, 0}) {
      options.rotary_dim = rotary;
      DecodeCase decode(options, each.lengths, each.q_lens, each.heads, each.query);
      for (const SplitPolicy split : {SplitPolicy::Auto(), SplitPolicy::Fixed(64)}) {
        decode.params.split = split;
        decode.ExpectExact(decode.Args());
      }
      decode.params.window_left = 20;
      decode.ExpectExact(decode.Args());
    }
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
  for (const auto& [heads, block_size] : {std::pair<int64_t, int64_t>{4, 8}, {48, 8}, {128, 32}}) {
    DecodeCase decode(CacheOptions(KvLayout::kMlaLatent, DType::kBF16, block_size), {150, 3, 0, 90},
                      {3, 1, 0, 2}, heads);
    std::vector<double> sink_values(heads, 0.5);
    sink_values[1] = -kInfinity, sink_values[2] = 3, sink_values[3] = kInfinity;
    const Tensor sinks = FloatTensor(sink_values);
    decode.params.sinks = sinks.view;
    const SplitPolicy fixed = SplitPolicy::Fixed(CeilDiv(int64_t{40}, block_size) * block_size);
    for (const SplitPolicy split :
         {SplitPolicy::None(), fixed, SplitPolicy::Count(3), SplitPolicy::Auto()}) {
      decode.params.split = split;
      decode.ExpectExact(decode.Args());
    }
    decode.params.window_left = 20;
    decode.ExpectExact(decode.Args());
    decode.params.split = fixed;
    decode.ExpectExact(decode.Args());
  }
}

// Scores that differ by hundreds of powers of two: maxima that grow, and grow late.
TEST(CudaMlaTest, SumsFollowMaxima) {
  for (const int64_t heads : {16, 33}) {
    DecodeCase decode(CacheOptions(KvLayout::kMlaLatent, DType::kBF16, 64), {330}, {1}, heads);
    decode.params.scale = 0.5f;
    decode.ExpectExact(decode.Args());
  }
}

// A key that is not finite spoils the rows that see it, all of them and no others.
TEST(CudaMlaTest, NotFiniteValuesReachOnlyRowsThatSeeThem) {
  for (const auto& [heads, block_size] : {std::pair<int64_t, int64_t>{2, 16}, {40, 16}, {40, 32}}) {
    DecodeCase decode(CacheOptions(KvLayout::kMlaLatent, DType::kBF16, block_size), {70}, {5},
                      heads);
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
  for (const auto& [heads, block_size] : {std::pair<int64_t, int64_t>{4, 16}, {128, 32}}) {
    DecodeCase decode(CacheOptions(KvLayout::kMlaLatent, DType::kBF16, block_size), {40, 33},
                      {1, 1}, heads);
    decode.ExpectExact(decode.Args());
    const std::vector<double> clean = decode.out.Get();
    std::vector<double> entries = decode.table.Get();
    entries[1] = 1 << 30;
    decode.table.Set(entries);
    Flagged flagged;
    ASSERT_TRUE(OnDevice().MlaDecode(flagged.context, decode.Args()).ok());
    EXPECT_EQ(flagged.bits, static_cast<uint32_t>(kBadBlock));
    const std::vector<double> out = decode.out.Get();
    const int64_t row = heads * 512;
    EXPECT_NE(Part(out, 0, row), Part(clean, 0, row));
    for (const double value : Part(out, 0, row)) ASSERT_TRUE(std::isfinite(value));
    EXPECT_EQ(Part(out, row, row), Part(clean, row, row));
  }
}

struct ListOptions {
  KvLayout layout = KvLayout::kMlaLatent;
  DType type = DType::kBF16;
  int64_t heads = 16, queries = 2, entries = 70, extra_entries = 0, block_size = 64;
  bool lengths = false, sink = false, all_invalid = false;
};

SparseCaseOptions OptionsOf(const ListOptions& list) {
  SparseCaseOptions options;
  options.cache = CacheOptions(list.layout, list.type, list.block_size);
  options.cache.num_blocks = 130 / list.block_size + 2;
  options.extra_cache = CacheOptions(list.layout, list.type, 2);
  options.extra_cache.num_blocks = 40;
  options.extra_cache.seed = 99;
  options.num_heads = list.heads, options.queries = list.queries;
  options.entries = list.entries, options.extra_entries = list.extra_entries;
  options.q_dtype = list.type;
  options.scale = 0.0625f;
  options.lengths = list.lengths, options.sink = list.sink;
  options.all_invalid = list.all_invalid;
  return options;
}

void ExpectExact(SparseCase& sparse) {
  Flagged flagged;
  ASSERT_EQ(OnDevice().SparseMlaDecode(flagged.context, sparse.args), absl::OkStatus());
  EXPECT_EQ(flagged.bits & ~static_cast<uint32_t>(kBadIndex), 0u);
  EXPECT_EQ(sparse.MismatchNow(ToleranceOf(sparse.options.cache.layout, sparse.options.q_dtype)),
            "");
}

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
    SparseCase lists(OptionsOf(each));
    ExpectExact(lists);
  }
}

TEST(CudaMlaTest, T3SparsePrefill) {
  for (const auto& [heads, dim] : {std::pair<int64_t, int64_t>{16, 576}, {64, 576}, {20, 512}}) {
    const DType type = heads == 16 ? DType::kF16 : DType::kBF16;
    SparsePrefillCase sparse({.type = type,
                              .tokens = 3,
                              .keys = 90,
                              .heads = heads,
                              .dim = dim,
                              .value_dim = 512,
                              .used = {70, 0, 60},
                              .sink = true,
                              .scale = 0.0625f,
                              .seed = static_cast<uint64_t>(heads)});
    ASSERT_EQ(OnDevice().SparseMlaPrefill({}, sparse.args), absl::OkStatus());
    EXPECT_EQ(Mismatch(sparse.expected, sparse.out.view, sparse.lse.view, CudaTolerance(type)), "");
    const std::vector<double> max = sparse.max_logits.Get(), &largest = sparse.largest;
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
  Flagged flagged;
  const ExecContext& context = flagged.context;
  uint32_t& bits = flagged.bits;
  Tensor q(DType::kF32, {1, 1, 4}), weights(DType::kF32, {1, 1}), rows(DType::kF32, {3, 2, 4});
  q.Set({1, 0, 0, 0}), weights.Set({1}), rows.Set(std::vector<double>(24, 1));
  Tensor starts = IntTensor({0, 1}, {2}), lens = IntTensor({6}, {1}),
         table = IntTensor({1, 9, 2}, {1, 3});
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
  lens = IntTensor({40}, {1}), args.seq_lens = lens.view, args.max_seq_len = 40;
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
