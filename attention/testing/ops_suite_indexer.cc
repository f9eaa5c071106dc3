// AT-66 and what an indexer does: writing its keys, choosing rows (ties to the lower one), and
// DeepSeek V4's compressor against code that knows no blocks.

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>
#include <random>
#include <vector>

#include "attention/tensor/small_floats.h"
#include "attention/testing/ops_suite.h"
#include "attention/testing/topk_case.h"

namespace kvblocks::attention {
namespace {

constexpr double kInfinity = std::numeric_limits<double>::infinity();

// --- Requests in scattered blocks ---

// Requests of these lengths, of which the last q_lens are new, in blocks of `block_size` rows. Ids
// are assigned backwards from the last block.
struct Batch {
  Batch(std::vector<int64_t> lengths, std::vector<int64_t> q_lens, int64_t rows_per_block,
        int64_t num_columns)
      : block_size(rows_per_block), columns(num_columns) {
    const auto count = static_cast<int64_t>(lengths.size());
    std::vector<double> starts = {0}, table, lens;
    num_blocks = count * columns + 2;
    for (int64_t b = 0; b < count; ++b) {
      starts.push_back(starts.back() + static_cast<double>(q_lens[b]));
      lens.push_back(static_cast<double>(lengths[b]));
      for (int64_t i = 0; i < columns; ++i) {
        table.push_back(static_cast<double>(num_blocks - 1 - b - i * count));
      }
    }
    blocks = table;
    num_tokens = static_cast<int64_t>(starts.back());
    query_start_loc = IntTensor(starts, {count + 1});
    seq_lens = IntTensor(lens, {count});
    block_table = IntTensor(table, {count, columns});
  }
  int64_t SlotOf(int64_t b, int64_t row) const {
    return static_cast<int64_t>(blocks[b * columns + row / block_size]) * block_size +
           row % block_size;
  }
  template <typename Args>
  void Fill(Args& args) const {
    args.query_start_loc = query_start_loc.view;
    args.seq_lens = seq_lens.view;
    args.block_table = block_table.view;
  }
  int64_t num_blocks = 0, num_tokens = 0, block_size = 0, columns = 0;
  std::vector<double> blocks;
  Tensor query_start_loc, seq_lens, block_table;
};

void ExpectOk(const absl::Status& status) { ASSERT_TRUE(status.ok()) << status; }

// --- Keys ---

TEST(IndexerSuite, PlanarKeysAreCodesAndAScale) {
  constexpr int64_t kDim = 16, kBlock = 4;
  const int64_t bytes = IndexBlockBytes(kBlock, kDim) + 16;  // padded
  for (const bool power_of_two : {true, false}) {
    Tensor k(DType::kF32, {4, kDim}), rows(DType::kU8, {3, bytes});
    std::vector<double> values;
    for (int64_t t = 0; t < 4; ++t) {
      for (int64_t d = 0; d < kDim; ++d) {
        values.push_back(
            t == 3 ? 0 : std::ldexp(static_cast<double>(d * d - 90 + t), -static_cast<int>(t)));
      }
    }
    values[5] = kInfinity;  // saturates, and does not decide the scale
    k.Set(values);
    std::fill(rows.bytes.begin(), rows.bytes.end(), std::byte{0x5A});
    Tensor slots = SlotTensor({6, -1, 11, 0});
    CacheIndexKeysArgs args;
    args.k = k.view, args.slot_mapping = slots.view;
    args.cache = {rows.view, kBlock};
    args.power_of_two_scales = power_of_two;
    std::vector<std::byte> expected = rows.bytes;
    ExpectOk(OpsUnderTest().CacheIndexKeys({}, args));
    for (const auto& [token, slot] : {std::pair<int64_t, int64_t>{0, 6}, {2, 11}, {3, 0}}) {
      float amax = 1e-4f;
      for (int64_t d = 0; d < kDim; ++d) {
        const double magnitude = std::abs(values[token * kDim + d]);
        if (magnitude < kInfinity) amax = std::max(amax, static_cast<float>(magnitude));
      }
      float scale = amax / 448.0f;
      if (power_of_two) {
        float power = 0x1p-60f;
        while (power * 448.0f < amax) power *= 2;
        scale = power;
      }
      const int64_t block = slot / kBlock * bytes, row = slot % kBlock;
      for (int64_t d = 0; d < kDim; ++d) {
        expected[block + row * kDim + d] =
            std::byte{DoubleToE4M3(values[token * kDim + d] / scale)};
      }
      std::memcpy(&expected[block + kBlock * kDim + row * 4], &scale, 4);
    }
    EXPECT_EQ(rows.bytes, expected) << power_of_two;
  }
}

TEST(IndexerSuite, PlainKeysAreRounded) {
  Tensor k(DType::kF32, {2, 8}), rows(DType::kBF16, {2, 2, 8});
  k.Set({1, 2, 3, 4, 5, 6, 7, 1.001, 9, 10, 11, 12, 13, 14, 15, 16});
  rows.Set(std::vector<double>(32, 0.5));
  Tensor slots = SlotTensor({3, 0});
  CacheIndexKeysArgs args;
  args.k = k.view, args.slot_mapping = slots.view, args.cache = {rows.view};
  ExpectOk(OpsUnderTest().CacheIndexKeys({}, args));
  std::vector<double> expected(32, 0.5);
  for (int i = 0; i < 8; ++i) expected[i] = 9 + i, expected[24 + i] = 1 + i;
  expected[31] = 1;
  EXPECT_EQ(rows.Get(), expected);
}

// --- Choosing ---

void ExpectTopk(const TopkOptions& options) {
  SCOPED_TRACE(options.DebugString());
  TopkCase topk(options);
  // A token whose scores are all NaN or zero.
  for (int64_t h = 0; h < options.heads; ++h) {
    topk.weight(1, h) = h == 0 ? std::numeric_limits<float>::quiet_NaN() : 0;
  }
  ExpectOk(OpsUnderTest().IndexTopk({}, topk.Args()));
  topk.ExpectChosen();
}

// Prefills, a decode and some tokens of a request; `type` of queries and keys.
TopkOptions SmallTopk(int64_t width, int spread = 3, DType type = DType::kF32) {
  return {.lengths = {70, 1, 33},
          .q_lens = {5, 1, 33},
          .block_size = 4,
          .heads = 3,
          .dim = 16,
          .width = width,
          .q = type,
          .cache = type,
          .spread = spread};
}

TEST(IndexerSuite, TheBestRowsAreChosenAndTiesGoToTheLower) {
  const auto with = [](TopkOptions options, auto change) {
    change(options);
    ExpectTopk(options);
  };
  ExpectTopk(SmallTopk(8));
  ExpectTopk(SmallTopk(1, 1));
  with(SmallTopk(5, 1), [](auto& o) { o.ratio = 4; });
  ExpectTopk(SmallTopk(100));  // all
  with(SmallTopk(20, 3, DType::kBF16), [](auto& o) { o.heads = 11; });
  with(SmallTopk(20), [](auto& o) { o.q = DType::kF8E4M3, o.cache = DType::kU8; });
  with(SmallTopk(6),
       [](auto& o) { o.ratio = 4, o.block_size = 1, o.cache = DType::kU8, o.as_slots = false; });
  // DeepSeek's heads.
  const auto v32 = [](auto& o) {
    o.heads = 64, o.dim = 128, o.q = DType::kF8E4M3, o.cache = DType::kU8;
  };
  with(SmallTopk(20), v32);
  with(SmallTopk(6), [&](auto& o) { v32(o), o.ratio = 4, o.as_slots = false; });
  with(SmallTopk(20, 3, DType::kBF16), [](auto& o) { o.heads = 11, o.dim = 128; });
  // More rows than a block of threads takes at a time.
  for (const bool as_slots : {true, false}) {
    with(SmallTopk(130), [&](auto& o) {
      o.block_size = 16, o.heads = 1, o.dim = 4, o.as_slots = as_slots;
      o.lengths = {700}, o.q_lens = {2};
    });
  }
}

// --- Compressing ---

// Two requests, a few tokens at a time; what is not stored by the operation is NaN.
TEST(IndexerSuite, RowsAreCompressedAcrossStepsAndBlocks) {
  for (const bool overlap : {true, false}) {
    const int64_t ratio = overlap ? 4 : 8, parts = overlap ? 2 : 1, dim = 12, width = parts * dim;
    constexpr int64_t kLength = 41, kRequests = 2, kBlock = 3, kRotary = 4;
    std::mt19937_64 random(3);
    const int64_t count = kRequests * kLength * width;
    const std::vector<double> kv_all = NormalDraws(random, count);
    const std::vector<double> score_all = NormalDraws(random, count);
    Tensor bias(DType::kF32, {ratio, width}), norm = FloatTensor(NormalDraws(random, dim));
    bias.Set(NormalDraws(random, ratio * width));
    Tensor cos_sin(DType::kF32, {kLength, kRotary});
    std::vector<double> angles;
    for (int64_t p = 0; p < kLength; ++p) {
      const auto at = static_cast<double>(p);
      angles.insert(angles.end(),
                    {std::cos(at), std::cos(0.3 * at), std::sin(at), std::sin(0.3 * at)});
    }
    cos_sin.Set(angles);
    const std::vector<double> biases = bias.Get(), norms = norm.Get();
    // The row of request b that token p completes.
    const auto expected_row = [&](int64_t b, int64_t p) {
      std::vector<double> row(dim);
      for (int64_t d = 0; d < dim; ++d) {
        double sum = 0, weighted = 0;
        for (int64_t j = std::max<int64_t>(0, p + 1 - parts * ratio); j <= p; ++j) {
          const int64_t column = overlap && j > p - ratio ? dim + d : d;
          const int64_t at = (b * kLength + j) * width + column;
          const double weight = std::exp(score_all[at] + biases[j % ratio * width + column]);
          sum += weight, weighted += weight * kv_all[at];
        }
        row[d] = weighted / sum;
      }
      double squares = 0;
      for (const double value : row) squares += value * value;
      for (int64_t d = 0; d < dim; ++d) {
        row[d] *= norms[d] / std::sqrt(squares / static_cast<double>(dim) + 1e-6);
      }
      for (int64_t i = 0; i < 2; ++i) {
        const double angle = (i == 0 ? 1.0 : 0.3) * static_cast<double>(p + 1 - ratio);
        const double x = row[dim - 4 + 2 * i], y = row[dim - 3 + 2 * i];
        row[dim - 4 + 2 * i] = x * std::cos(angle) - y * std::sin(angle);
        row[dim - 3 + 2 * i] = x * std::sin(angle) + y * std::cos(angle);
      }
      return row;
    };
    const int64_t columns = kLength / kBlock + 1;
    Tensor states(DType::kF32, {kRequests * columns + 2, kBlock, 2 * width});
    FillWithPoison(states);
    std::vector<int64_t> done = {0, 0};
    int64_t num_rows = 0;
    for (int step = 0; done[0] < kLength || done[1] < kLength; ++step) {
      std::vector<int64_t> lengths, q_lens;
      for (int64_t b = 0; b < kRequests; ++b) {
        q_lens.push_back(std::min(kLength - done[b], IntegerDraw(random, 0, step < 4 ? 9 : 3)));
        lengths.push_back(done[b] + q_lens[b]);
      }
      const Batch batch(lengths, q_lens, kBlock, columns);
      std::vector<double> kv_now, score_now, slots;
      for (int64_t b = 0; b < kRequests; ++b) {
        for (int64_t p = done[b]; p < lengths[b]; ++p) {
          const auto at = (b * kLength + p) * width;
          kv_now.insert(kv_now.end(), &kv_all[at], &kv_all[at] + width);
          score_now.insert(score_now.end(), &score_all[at], &score_all[at] + width);
          slots.push_back(static_cast<double>(batch.SlotOf(b, p)));
        }
      }
      Tensor kv(DType::kF32, {batch.num_tokens, width}),
          score(DType::kF32, {batch.num_tokens, width});
      Tensor out(DType::kF32, {batch.num_tokens, dim});
      kv.Set(kv_now), score.Set(score_now),
          out.Set(std::vector<double>(batch.num_tokens * dim, -7));
      Tensor mapping = SlotTensor(slots);
      CompressTokensArgs args;
      args.kv = kv.view, args.score = score.view, args.bias = bias.view;
      args.states = states.view, args.slot_mapping = mapping.view;
      batch.Fill(args);
      args.ratio = ratio, args.overlap = overlap;
      args.norm_weight = norm.view, args.cos_sin = cos_sin.view;
      args.out = out.view;
      ExpectOk(OpsUnderTest().CompressTokens({}, args));
      const std::vector<double> rows = out.Get();
      int64_t t = 0;
      for (int64_t b = 0; b < kRequests; ++b) {
        for (int64_t p = done[b]; p < lengths[b]; ++p, ++t) {
          if ((p + 1) % ratio != 0) {
            EXPECT_EQ(rows[t * dim], -7) << b << " " << p;
            continue;
          }
          const std::vector<double> expected = expected_row(b, p);
          for (int64_t d = 0; d < dim; ++d) {
            EXPECT_NEAR(rows[t * dim + d], expected[d], 5e-6) << b << " " << p << " " << d;
          }
          ++num_rows;
        }
        done[b] = lengths[b];
      }
    }
    EXPECT_EQ(num_rows, kRequests * (kLength / ratio));
  }
}

// Outputs [tokens, columns] of a request whose tokens become rows of `ratio` each, by default one.
std::vector<double> Compressed(int64_t tokens, const std::vector<double>& values,
                               const std::vector<double>& scores, int64_t ratio = 0,
                               bool overlap = false) {
  const int64_t dim = static_cast<int64_t>(values.size()) / tokens;
  const Batch batch({tokens}, {tokens}, 7, tokens / 7 + 1);
  std::vector<double> slots;
  for (int64_t t = 0; t < tokens; ++t) slots.push_back(static_cast<double>(batch.SlotOf(0, t)));
  Tensor kv(DType::kF32, {tokens, dim}), score(DType::kF32, {tokens, dim});
  Tensor states(DType::kF32, {batch.num_blocks, 7, 2 * dim});
  Tensor out(DType::kF32, {tokens, overlap ? dim / 2 : dim});
  kv.Set(values), score.Set(scores), FillWithPoison(states), FillWithPoison(out);
  Tensor mapping = SlotTensor(slots);
  CompressTokensArgs args;
  args.kv = kv.view, args.score = score.view, args.states = states.view;
  args.slot_mapping = mapping.view;
  batch.Fill(args);
  args.ratio = ratio == 0 ? tokens : ratio, args.overlap = overlap, args.out = out.view;
  ExpectOk(OpsUnderTest().CompressTokens({}, args));
  return out.Get();
}

TEST(IndexerSuite, CompressorExample) {  // EX-19
  std::vector<double> halves;
  for (int t = 1; t <= 8; ++t) halves.insert(halves.end(), {1.0 * t, 10.0 * t});
  const std::vector<double> out = Compressed(8, halves, std::vector<double>(16), 4, true);
  for (const int t : {0, 1, 2, 4, 5, 6}) EXPECT_TRUE(std::isnan(out[t])) << t;
  EXPECT_EQ(out[3], 25);
  EXPECT_EQ(out[7], 33.75);
}

// One row of all of a request's tokens, scores growing or shrinking by `slope`.
void ExpectCompressed(int64_t tokens, int64_t dim, double slope) {
  SCOPED_TRACE(testing::Message() << tokens << " tokens of " << dim << ", slope " << slope);
  std::mt19937_64 random(4);
  const std::vector<double> values = NormalDraws(random, tokens * dim);
  std::vector<double> scores = NormalDraws(random, tokens * dim);
  for (int64_t t = 0; t < tokens; ++t) {
    for (int64_t d = 0; d < dim; ++d) scores[t * dim + d] += slope * static_cast<double>(t);
  }
  const std::vector<double> rows = Compressed(tokens, values, scores);
  for (int64_t t = 0; t + 1 < tokens; ++t) ASSERT_TRUE(std::isnan(rows[t * dim])) << t;
  for (int64_t d = 0; d < dim; ++d) {
    double sum = 0, weighted = 0;
    for (int64_t t = 0; t < tokens; ++t) {
      const double weight = std::exp(scores[t * dim + d]);
      sum += weight, weighted += weight * values[t * dim + d];
    }
    ASSERT_NEAR(rows[(tokens - 1) * dim + d], weighted / sum, 2e-5) << d;
  }
}

// More states than a block of threads takes at a time, the largest scores among the last or the
// first; more columns than it has threads, and fewer, by one value and by four.
TEST(IndexerSuite, ARowOfManyTokensIsCompressed) {
  for (const double slope : {0.2, -0.2}) {
    ExpectCompressed(600, 5, slope);
    ExpectCompressed(1300, 8, slope);
  }
  ExpectCompressed(300, 261, 0.1);
  ExpectCompressed(6, 1300, 0);
  ExpectCompressed(40, 4100, 0);
}

// A score of -infinity weighs nothing; what is no number in a column makes that column NaN.
TEST(IndexerSuite, ScoresThatAreNotFiniteAreCompressed) {
  constexpr double kNan = std::numeric_limits<double>::quiet_NaN();
  for (const int64_t tokens : {8, 80}) {
    constexpr int64_t kDim = 8;
    std::vector<double> values(tokens * kDim, 1), scores(tokens * kDim, 0);
    for (int64_t t = 0; t < tokens; ++t) {
      scores[t * kDim] = t == 3 ? 2 : -kInfinity;
      values[t * kDim] = t == 3 ? 5 : 1;
      scores[t * kDim + 1] = -kInfinity;
      scores[t * kDim + 2] = t == 5 ? kNan : 0;
      values[t * kDim + 3] = t == 1 ? kInfinity : 1;
      scores[t * kDim + 4] = t == 2 ? kInfinity : 0;
    }
    const std::vector<double> all = Compressed(tokens, values, scores);
    const std::vector<double> row(all.end() - kDim, all.end());
    EXPECT_EQ(row[0], 5);
    EXPECT_TRUE(std::isnan(row[1])) << row[1];
    EXPECT_TRUE(std::isnan(row[2])) << row[2];
    EXPECT_EQ(row[3], kInfinity);
    EXPECT_TRUE(std::isnan(row[4])) << row[4];
    for (int64_t d = 5; d < kDim; ++d) EXPECT_EQ(row[d], 1);
  }
}

}  // namespace
}  // namespace kvblocks::attention
