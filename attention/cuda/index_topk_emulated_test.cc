// IndexTopk's kernels against sums in float64: small integers, whose sums are exact, so that ties
// are many and lists must be the same.

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <limits>
#include <numeric>
#include <random>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "attention/cuda/kernels/indexer.h"
#include "attention/cuda/kernels/indexer_scores.h"
#include "attention/tensor/small_floats.h"
#include "attention/testing/paged_case.h"
#include "gtest/gtest.h"
#include "kvblocks/device_types.h"

namespace kvblocks::attention::cuda {
namespace {

int64_t Draw(std::mt19937_64& random, int64_t low, int64_t high) {
  return low + static_cast<int64_t>(random() % static_cast<uint64_t>(high - low + 1));
}

struct TopkShape {
  std::vector<int64_t> lengths = {300}, q_lens = {1};
  int64_t padding = 0;  // tokens behind those of the requests
  int64_t block_size = 16, heads = 64, dim = 128, width = 40, ratio = 1;
  DType q = DType::kF8E4M3, cache = DType::kU8;  // kU8: planar
  int spread = 4;
  bool as_slots = true;
  int capability = 90, multiprocessors = 132;
  int64_t workspace_bytes = 1 << 20;

  std::string DebugString() const {
    std::string text = absl::StrCat("blocks of ", block_size, ", ", heads, " heads of ", dim,
                                    ", K ", width, ", ratio ", ratio, ", q ", Name(q), ", cache ",
                                    Name(cache), ", spread ", spread, ", ", capability, ", ",
                                    multiprocessors, ", ", workspace_bytes, " bytes; requests");
    for (size_t b = 0; b < lengths.size(); ++b) {
      absl::StrAppend(&text, " ", q_lens[b], "/", lengths[b]);
    }
    return text;
  }
};

class TopkBatch {
 public:
  TopkBatch(const TopkShape& shape, std::mt19937_64& random) : shape_(shape) {
    const auto requests = static_cast<int64_t>(shape.lengths.size());
    longest_ = *std::max_element(shape.lengths.begin(), shape.lengths.end());
    columns_ = longest_ / shape.ratio / shape.block_size + 1;
    starts_ = {0};
    for (const int64_t q_len : shape.q_lens) {
      starts_.push_back(starts_.back() + static_cast<int32_t>(q_len));
    }
    lens_.assign(shape.lengths.begin(), shape.lengths.end());
    table_.resize(requests * columns_);
    std::iota(table_.begin(), table_.end(), 1);
    std::shuffle(table_.begin(), table_.end(), random);
    num_blocks_ = requests * columns_ + 1;
    num_tokens_ = starts_.back() + shape.padding;

    keys_ = Integers(random, num_blocks_ * shape.block_size * shape.dim);
    queries_ = Integers(random, num_tokens_ * shape.heads * shape.dim);
    for (const double value : Integers(random, num_tokens_ * shape.heads)) {
      weights_.push_back(static_cast<float>(value));
    }
    Set(q_, shape.q, queries_);
    if (shape.cache != DType::kU8) {
      Set(rows_, shape.cache, keys_);
      return;
    }
    rows_.assign(num_blocks_ * BlockBytes(), 0x7f);
    for (int64_t slot = 0; slot < num_blocks_ * shape.block_size; ++slot) {
      for (int64_t d = 0; d < shape.dim; ++d) {
        rows_[CodeAt(slot) + d] = DoubleToE4M3(keys_[slot * shape.dim + d]);
      }
      SetScale(slot, std::ldexp(1.0f, static_cast<int>(Draw(random, -1, 1))));
    }
  }

  // A row of planar blocks: its scale, and the code of a value.
  void SetScale(int64_t slot, float scale) {
    std::memcpy(&rows_[ScaleAt(slot)], &scale, sizeof(scale));
  }
  void SetCode(int64_t slot, int64_t d, uint8_t code) {
    rows_[CodeAt(slot) + d] = code;
    keys_[slot * shape_.dim + d] = code == 0x7f ? std::nan("") : E4M3ToDouble(code);
  }
  int64_t SlotOf(int64_t b, int64_t row) const {
    return int64_t{table_[b * columns_ + row / shape_.block_size]} * shape_.block_size +
           row % shape_.block_size;
  }
  int32_t& table(int64_t b, int64_t column) { return table_[b * columns_ + column]; }
  float& weight(int64_t token, int64_t head) { return weights_[token * shape_.heads + head]; }

  // Runs the operation and compares lists; returns the flags.
  uint32_t ExpectExact() {
    const int64_t width = shape_.width;
    std::vector<int32_t> indices(num_tokens_ * width, 77), lens(num_tokens_, 77);
    struct alignas(16) Sixteen {
      uint32_t words[4] = {~0u, ~0u, ~0u, ~0u};
    };
    std::vector<Sixteen> memory(shape_.workspace_bytes / 16);
    uint32_t flags = 0;
    LaunchContext context;
    context.error_flags = &flags;
    context.compute_capability = shape_.capability;
    context.num_multiprocessors = shape_.multiprocessors;
    context.workspace = reinterpret_cast<unsigned char*>(memory.data());
    context.workspace_bytes = memory.size() * 16;
    IndexTopkParams params;
    params.q = {q_.data(), shape_.heads * shape_.dim, shape_.dim, shape_.q};
    params.weights = weights_.data();
    params.weight_stride = shape_.heads;
    params.rows.data = rows_.data();
    params.rows.planar = shape_.cache == DType::kU8;
    params.rows.element = params.rows.planar ? DType::kF32 : shape_.cache;
    params.rows.block_stride = params.rows.planar ? BlockBytes() : shape_.block_size * shape_.dim;
    params.rows.row_stride = params.rows.planar ? 0 : shape_.dim;
    params.rows.num_blocks = static_cast<int32_t>(num_blocks_);
    params.rows.block_size = static_cast<int32_t>(shape_.block_size);
    params.rows.dim = static_cast<int32_t>(shape_.dim);
    params.batch.query_start_loc = starts_.data();
    params.batch.seq_lens = lens_.data();
    params.batch.block_table = table_.data();
    params.batch.table_stride = columns_;
    params.batch.num_requests = static_cast<int32_t>(shape_.lengths.size());
    params.batch.columns = static_cast<int32_t>(columns_);
    params.num_tokens = static_cast<int32_t>(num_tokens_);
    params.heads = static_cast<int32_t>(shape_.heads);
    params.ratio = static_cast<int32_t>(shape_.ratio);
    params.most_rows = static_cast<int32_t>(longest_ / shape_.ratio);
    params.as_slots = shape_.as_slots;
    params.indices = indices.data();
    params.index_stride = width;
    params.width = static_cast<int32_t>(width);
    params.lens = lens.data();
    EXPECT_EQ(LaunchIndexTopk(context, params), 0);
    std::vector<int32_t> expected, counts;
    for (int64_t t = 0; t < num_tokens_; ++t) {
      const std::vector<int32_t> list = Expected(t);
      counts.push_back(static_cast<int32_t>(list.size()));
      expected.insert(expected.end(), list.begin(), list.end());
      expected.resize((t + 1) * width, -1);
    }
    EXPECT_EQ(lens, counts);
    EXPECT_EQ(indices, expected);
    return flags;
  }

 private:
  int64_t BlockBytes() const { return (shape_.block_size * (shape_.dim + 4) + 15) / 16 * 16; }
  int64_t CodeAt(int64_t slot) const {
    return slot / shape_.block_size * BlockBytes() + slot % shape_.block_size * shape_.dim;
  }
  int64_t ScaleAt(int64_t slot) const {
    return slot / shape_.block_size * BlockBytes() + shape_.block_size * shape_.dim +
           slot % shape_.block_size * 4;
  }
  std::vector<double> Integers(std::mt19937_64& random, int64_t count) const {
    std::vector<double> values(count);
    for (double& value : values) {
      value = static_cast<double>(Draw(random, -shape_.spread, shape_.spread));
    }
    return values;
  }
  static void Set(std::vector<unsigned char>& bytes, DType dtype,
                  const std::vector<double>& values) {
    Tensor tensor(dtype, {static_cast<int64_t>(values.size())});
    tensor.Set(values);
    bytes.resize(tensor.bytes.size());
    std::memcpy(bytes.data(), tensor.bytes.data(), bytes.size());
  }

  double ScoreOf(int64_t token, int64_t slot) const {
    float scale = 1;
    if (shape_.cache == DType::kU8) std::memcpy(&scale, &rows_[ScaleAt(slot)], sizeof(scale));
    double score = 0;
    for (int64_t h = 0; h < shape_.heads; ++h) {
      double product = 0;
      for (int64_t d = 0; d < shape_.dim; ++d) {
        product +=
            queries_[(token * shape_.heads + h) * shape_.dim + d] * keys_[slot * shape_.dim + d];
      }
      product *= scale;
      score += weights_[token * shape_.heads + h] * (product < 0 ? 0 : product);
    }
    return std::isnan(score) ? -std::numeric_limits<double>::infinity() : score;
  }
  std::vector<int32_t> Expected(int64_t token) const {
    if (token >= starts_.back()) return {};
    const int64_t b = std::upper_bound(starts_.begin(), starts_.end(), token) - starts_.begin() - 1;
    const int64_t num_rows = (lens_[b] - (starts_[b + 1] - token) + 1) / shape_.ratio;
    std::vector<std::pair<double, int32_t>> scored;
    for (int64_t row = 0; row < num_rows; ++row) {
      const int32_t block = table_[b * columns_ + row / shape_.block_size];
      const double score = block < 0 || block >= num_blocks_
                               ? -std::numeric_limits<double>::infinity()
                               : ScoreOf(token, SlotOf(b, row));
      scored.emplace_back(-score, static_cast<int32_t>(row));
    }
    std::sort(scored.begin(), scored.end());
    scored.resize(std::min<size_t>(scored.size(), shape_.width));
    std::vector<int32_t> list;
    for (const auto& [score, row] : scored) list.push_back(row);
    std::sort(list.begin(), list.end());
    for (int32_t& row : list) {
      const int32_t block = table_[b * columns_ + row / shape_.block_size];
      if (!shape_.as_slots) continue;
      row = block < 0 || block >= num_blocks_ ? -1 : static_cast<int32_t>(SlotOf(b, row));
    }
    return list;
  }

  const TopkShape shape_;
  int64_t longest_ = 0, columns_ = 0, num_blocks_ = 0, num_tokens_ = 0;
  std::vector<int32_t> starts_, lens_, table_;
  std::vector<double> keys_, queries_;
  std::vector<float> weights_;
  std::vector<unsigned char> q_, rows_;
};

void ExpectExact(const TopkShape& shape) {
  SCOPED_TRACE(shape.DebugString());
  std::mt19937_64 random(shape.width);
  EXPECT_EQ(TopkBatch(shape, random).ExpectExact(), 0u);
}

// Once with mma.sync, once with wgmma.
void ExpectExactByBoth(TopkShape shape) {
  for (const int capability : {80, 90}) {
    shape.capability = capability;
    ExpectExact(shape);
  }
}

TEST(IndexTopkEmulatedTest, TensorCoresScoreEveryTypeAndShape) {
  ExpectExactByBoth({});
  ExpectExactByBoth({.lengths = {517, 3, 130}, .q_lens = {1, 1, 1}, .block_size = 64, .heads = 5});
  ExpectExactByBoth({.q = DType::kBF16, .spread = 1});
  ExpectExactByBoth({.q = DType::kF16});
  ExpectExactByBoth({.q = DType::kF16, .cache = DType::kF16});
  ExpectExactByBoth({.block_size = 3, .q = DType::kBF16, .cache = DType::kBF16});
  ExpectExactByBoth({.q = DType::kF8E4M3, .cache = DType::kBF16});
  ExpectExactByBoth({.lengths = {1300}, .width = 5, .ratio = 4, .as_slots = false});
  ExpectExactByBoth({.lengths = {300}, .width = 300});  // all
  ExpectExactByBoth({.lengths = {300}, .width = 299});
}

// Tokens of a block share keys; blocks hold tokens of several requests, and padding.
TEST(IndexTopkEmulatedTest, TokensOfARequestShareKeys) {
  ExpectExactByBoth({.lengths = {290}, .q_lens = {8}, .width = 20});
  ExpectExactByBoth({.lengths = {290}, .q_lens = {2}, .width = 20});
  // The last row that some see is the first of a warpgroup's.
  ExpectExactByBoth({.lengths = {262}, .q_lens = {8}, .width = 20});
  ExpectExactByBoth({.lengths = {131, 521}, .q_lens = {4, 7}, .width = 20, .ratio = 4});
  ExpectExactByBoth({.lengths = {150, 60, 200}, .q_lens = {4, 3, 6}, .padding = 3, .heads = 9});
  ExpectExactByBoth({.lengths = {140, 7, 0, 160},
                     .q_lens = {5, 7, 0, 11},
                     .padding = 9,
                     .width = 3,
                     .ratio = 4,
                     .multiprocessors = 1});
}

TEST(IndexTopkEmulatedTest, OtherShapesAreScoredPortably) {
  ExpectExact({.lengths = {200}, .heads = 65});
  ExpectExact({.lengths = {200, 40}, .q_lens = {3, 2}, .heads = 3, .dim = 64});
  ExpectExact({.lengths = {600}, .heads = 2, .q = DType::kF32, .multiprocessors = 1});
  ExpectExact({.lengths = {100}, .heads = 2, .cache = DType::kF32});
}

// Which kernel takes rows; those of tensor cores tell them by 32 bits in units of 16 bytes.
TEST(IndexTopkEmulatedTest, CachesOf64GiBAreScoredPortably) {
  alignas(16) unsigned char data[16] = {};
  IndexTopkParams good;
  good.q = {data, 64 * 128, 128, DType::kF8E4M3};
  good.heads = 64;
  good.rows.data = data, good.rows.dim = 128;
  good.rows.planar = true, good.rows.block_size = 64, good.rows.block_stride = 64 * 132;
  good.rows.num_blocks = (int64_t{1} << 36) / (64 * 132);
  EXPECT_TRUE(TakesIndexScores(good));
  const auto takes = [&](const auto& change) {
    IndexTopkParams params = good;
    change(params);
    return TakesIndexScores(params);
  };
  EXPECT_FALSE(takes([](auto& p) { ++p.rows.num_blocks; }));
  EXPECT_FALSE(takes([](auto& p) { p.rows.block_stride = -64 * 132; }));
  EXPECT_FALSE(takes([](auto& p) { p.rows.block_stride += 4; }));
  EXPECT_FALSE(takes([](auto& p) { p.rows.dim = 64; }));
  EXPECT_FALSE(takes([](auto& p) { p.heads = 65; }));
  EXPECT_FALSE(takes([](auto& p) { p.q.element = DType::kF32; }));
  const auto plain = [](auto& p) {
    p.rows.planar = false, p.rows.element = p.q.element = DType::kBF16;
    p.rows.row_stride = 128, p.rows.block_stride = 64 * 128, p.rows.num_blocks = 1000;
  };
  EXPECT_TRUE(takes([&](auto& p) { plain(p); }));
  EXPECT_FALSE(takes([&](auto& p) {
    plain(p);
    p.rows.row_stride = int64_t{1} << 30;  // rows of 64 blocks in turn
  }));
}

// As many tokens at a time as there is room for.
TEST(IndexTopkEmulatedTest, ASmallWorkspaceTakesMoreLaunches) {
  ExpectExact({.lengths = {150, 130}, .q_lens = {7, 6}, .heads = 8, .workspace_bytes = 152 * 4});
  ExpectExact({.lengths = {150, 130}, .q_lens = {7, 6}, .heads = 8, .workspace_bytes = 152 * 12});
  ExpectExactByBoth(
      {.lengths = {150}, .q_lens = {20}, .heads = 8, .workspace_bytes = 152 * 4 * 11});
}

// Blocks of a cluster select together, and without clusters one does.
TEST(IndexTopkEmulatedTest, LongListsAreSelectedByClusters) {
  for (const int capability : {80, 90}) {
    for (const int64_t width : {1, 2048}) {
      for (const int spread : {1, 4}) {
        ExpectExact({.lengths = {33'003},
                     .block_size = 64,
                     .heads = 1,
                     .dim = 4,
                     .width = width,
                     .spread = spread,
                     .capability = capability});
      }
    }
  }
  ExpectExact({.lengths = {16'400, 70, 16'390},
               .q_lens = {1, 1, 1},
               .block_size = 64,
               .heads = 1,
               .dim = 4,
               .width = 512});
}

// Blocks of few threads where tokens are many, up to the rows that their warps hold, and beyond.
TEST(IndexTopkEmulatedTest, ManyTokensAreSelectedByBlocksOfFewThreads) {
  for (const int64_t length : {1'025, 8'192, 8'193}) {
    for (const int spread : {1, 4}) {
      ExpectExact({.lengths = {length, 600},
                   .q_lens = {2, 1},
                   .block_size = 64,
                   .heads = 3,
                   .dim = 4,
                   .width = 512,
                   .spread = spread,
                   .multiprocessors = 2});
    }
  }
}

// Warps hold some of their keys, and load the others again in every pass.
TEST(IndexTopkEmulatedTest, MoreRowsThanWarpsHoldAreSelected) {
  ExpectExact({.lengths = {67'001},
               .block_size = 64,
               .heads = 3,
               .dim = 4,
               .width = 2048,
               .spread = 9,
               .multiprocessors = 1});
}

TEST(IndexTopkEmulatedTest, WhatIsNotANumberAndBadBlocksComeLast) {
  std::mt19937_64 random(3);
  const std::pair<int64_t, int> cases[] = {{64, 80}, {64, 90}, {65, 90}};
  for (const auto& [heads, capability] : cases) {
    TopkShape shape;
    shape.heads = heads;
    shape.capability = capability;
    shape.lengths = {200, 90}, shape.q_lens = {2, 1};
    shape.width = heads == 64 ? 60 : 180;
    TopkBatch batch(shape, random);
    batch.SetCode(batch.SlotOf(0, 5), 77, 0x7f);
    batch.SetScale(batch.SlotOf(0, 6), std::numeric_limits<float>::quiet_NaN());
    for (int64_t row = 20; row < 40; ++row) batch.SetScale(batch.SlotOf(0, row), -8);
    batch.weight(2, 3) = std::numeric_limits<float>::quiet_NaN();
    EXPECT_EQ(batch.ExpectExact(), 0u);
    batch.table(0, 3) = 1000;
    batch.table(0, 4) = std::numeric_limits<int32_t>::min();
    EXPECT_EQ(batch.ExpectExact(), uint32_t{kBadBlock});
  }
}

// Where keys of other tiles were before.
TEST(IndexTopkEmulatedTest, BadBlocksBehindManyTilesComeLast) {
  std::mt19937_64 random(5);
  for (const int capability : {80, 90}) {
    for (const int64_t block_size : {5, 16}) {
      TopkShape shape;
      shape.capability = capability, shape.block_size = block_size;
      shape.lengths = {1'200}, shape.q_lens = {2}, shape.heads = 9;
      shape.width = 1'170, shape.multiprocessors = 1;
      SCOPED_TRACE(shape.DebugString());
      TopkBatch batch(shape, random);
      for (const int64_t row : {0, 300, 790, 1'100}) batch.table(0, row / block_size) = -1;
      EXPECT_EQ(batch.ExpectExact(), uint32_t{kBadBlock});
    }
  }
}

// Where a warp's keys of a tile are of one block, 32 tiles of 384 rows are looked up at a time.
TEST(IndexTopkEmulatedTest, PiecesOfManyTilesAreLookedUpAgain) {
  std::mt19937_64 random(7);
  TopkShape shape;
  shape.lengths = {13'000}, shape.block_size = 64, shape.heads = 2;
  shape.width = 12'900, shape.multiprocessors = 1;
  TopkBatch batch(shape, random);
  EXPECT_EQ(batch.ExpectExact(), 0u);
  for (const int64_t row : {12'287, 12'800}) batch.table(0, row / shape.block_size) = -1;
  EXPECT_EQ(batch.ExpectExact(), uint32_t{kBadBlock});
}

TEST(IndexTopkEmulatedTest, RandomBatches) {
  std::mt19937_64 random(11);
  for (int i = 0; i < 40; ++i) {
    TopkShape shape;
    shape.lengths = shape.q_lens = {};
    const int64_t most_queries = Draw(random, 1, 9);
    for (int64_t b = Draw(random, 1, 4); b > 0; --b) {
      shape.lengths.push_back(Draw(random, 0, 280));
      shape.q_lens.push_back(Draw(random, 0, std::min(most_queries, shape.lengths.back())));
    }
    shape.padding = Draw(random, 0, 2);
    shape.block_size = Draw(random, 1, 40);
    shape.heads = Draw(random, 1, 66);
    shape.width = Draw(random, 1, 100);
    shape.ratio = Draw(random, 0, 1) == 0 ? 1 : 4;
    const DType types[] = {DType::kF8E4M3, DType::kF16, DType::kBF16};
    shape.q = types[Draw(random, 0, 2)];
    shape.cache = Draw(random, 0, 2) > 0 ? DType::kU8 : types[Draw(random, 1, 2)];
    shape.spread = static_cast<int>(Draw(random, 1, 5));
    shape.capability = Draw(random, 0, 1) == 0 ? 80 : 90;
    shape.multiprocessors = static_cast<int>(Draw(random, 1, 8));
    shape.workspace_bytes = 1200 * Draw(random, 1, 20);
    SCOPED_TRACE(shape.DebugString());
    EXPECT_EQ(TopkBatch(shape, random).ExpectExact(), 0u);
    if (HasFailure()) return;
  }
}

}  // namespace
}  // namespace kvblocks::attention::cuda
