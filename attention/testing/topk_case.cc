#include "attention/testing/topk_case.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>
#include <numeric>
#include <random>
#include <utility>

#include "absl/strings/str_cat.h"
#include "attention/tensor/small_floats.h"
#include "checks/ceil_div.h"
#include "gtest/gtest.h"
#include "kvblocks/kv_cache_view.h"

namespace kvblocks::attention {

std::string TopkOptions::DebugString() const {
  std::string text = absl::StrCat("blocks of ", block_size, ", ", heads, " heads of ", dim, ", K ",
                                  width, ", ratio ", ratio, ", q ", Name(q), ", cache ",
                                  Name(cache), ", spread ", spread, "; requests");
  for (size_t b = 0; b < lengths.size(); ++b) {
    absl::StrAppend(&text, " ", q_lens[b], "/", lengths[b]);
  }
  return text;
}

TopkCase::TopkCase(const TopkOptions& options) : options_(options) {
  std::mt19937_64 random(options.seed);
  const auto requests = static_cast<int64_t>(options.lengths.size());
  const int64_t longest = *std::max_element(options.lengths.begin(), options.lengths.end());
  columns_ = longest / options.ratio / options.block_size + 1;
  num_blocks_ = requests * columns_ + 1;
  std::vector<double> starts = {0}, blocks(requests * columns_);
  for (const int64_t q_len : options.q_lens) {
    starts.push_back(starts.back() + static_cast<double>(q_len));
  }
  std::iota(blocks.begin(), blocks.end(), 1);
  for (size_t i = blocks.size(); i > 1; --i) {
    std::swap(blocks[i - 1], blocks[IntegerDraw(random, 0, static_cast<int64_t>(i) - 1)]);
  }
  query_start_loc_ = IntTensor(starts, {requests + 1});
  seq_lens_ = IntTensor({options.lengths.begin(), options.lengths.end()}, {requests});
  block_table_ = IntTensor(blocks, {requests, columns_});

  const int64_t tokens = static_cast<int64_t>(starts.back()) + options.padding;
  const int64_t slots = num_blocks_ * options.block_size, dim = options.dim;
  const auto integers = [&](int64_t count) {
    std::vector<double> values(count);
    for (double& value : values) {
      value = static_cast<double>(IntegerDraw(random, -options.spread, options.spread));
    }
    return values;
  };
  keys_ = integers(slots * dim);
  queries_ = integers(tokens * options.heads * dim);
  q_ = Tensor(options.q, {tokens, options.heads, dim});
  q_.Set(queries_);
  weights_ = Tensor(DType::kF32, {tokens, options.heads});
  weights_.Set(integers(tokens * options.heads));
  indices_ = Tensor(DType::kI32, {tokens, options.width});
  lens_ = Tensor(DType::kI32, {tokens});
  if (options.cache != DType::kU8) {
    rows_ = Tensor(options.cache, {num_blocks_, options.block_size, dim});
    rows_.Set(keys_);
    return;
  }
  const int64_t bytes = RoundUp(IndexBlockBytes(options.block_size, dim), int64_t{16});
  rows_ = Tensor(DType::kU8, {num_blocks_, bytes});
  std::fill(rows_.bytes.begin(), rows_.bytes.end(), std::byte{0x7f});
  for (int64_t slot = 0; slot < slots; ++slot) {
    for (int64_t d = 0; d < dim; ++d) SetCode(slot, d, DoubleToE4M3(keys_[slot * dim + d]));
    SetScale(slot, std::ldexp(1.0f, static_cast<int>(IntegerDraw(random, -1, 1))));
  }
}

std::byte* TopkCase::ScaleAt(int64_t slot) const {
  const int64_t block = slot / options_.block_size, offset = slot % options_.block_size;
  return rows_.view.At(block, options_.block_size * options_.dim + offset * 4);
}

void TopkCase::SetScale(int64_t slot, float scale) {
  std::memcpy(ScaleAt(slot), &scale, sizeof(scale));
}

void TopkCase::SetCode(int64_t slot, int64_t d, uint8_t code) {
  const int64_t block = slot / options_.block_size, offset = slot % options_.block_size;
  *rows_.view.At(block, offset * options_.dim + d) = std::byte{code};
  keys_[slot * options_.dim + d] = E4M3ToDouble(code);
}

int64_t TopkCase::SlotOf(int64_t b, int64_t row) const {
  const int64_t block = block_table_.view.as<int32_t>()[b * columns_ + row / options_.block_size];
  return block * options_.block_size + row % options_.block_size;
}

int64_t TopkCase::ValidSlotOf(int64_t b, int64_t row) const {
  const int64_t slot = SlotOf(b, row);
  return slot < num_blocks_ * options_.block_size ? std::max<int64_t>(slot, -1) : -1;
}

IndexTopkArgs TopkCase::Args() {
  for (Tensor* output : {&indices_, &lens_}) {
    output->Set(std::vector<double>(output->view.num_elements(), 77));
  }
  IndexTopkArgs args;
  args.q = q_.view, args.weights = weights_.view;
  args.cache = IndexCacheView(rows_.view, options_.cache == DType::kU8 ? options_.block_size : 0);
  args.query_start_loc = query_start_loc_.view, args.seq_lens = seq_lens_.view;
  args.block_table = block_table_.view;
  args.max_seq_len = *std::max_element(options_.lengths.begin(), options_.lengths.end());
  args.ratio = options_.ratio, args.as_slots = options_.as_slots;
  args.indices = indices_.view, args.lens = lens_.view;
  return args;
}

double TopkCase::ScoreOf(int64_t token, int64_t slot) const {
  constexpr double kLowest = -std::numeric_limits<double>::infinity();
  if (slot < 0) return kLowest;
  float scale = 1;
  if (options_.cache == DType::kU8) std::memcpy(&scale, ScaleAt(slot), sizeof(scale));
  double score = 0;
  for (int64_t h = 0; h < options_.heads; ++h) {
    const double* query = &queries_[(token * options_.heads + h) * options_.dim];
    double product = 0;
    for (int64_t d = 0; d < options_.dim; ++d) product += query[d] * keys_[slot * options_.dim + d];
    product *= scale;
    score += weights_.view.as<float>()[token * options_.heads + h] * (product < 0 ? 0 : product);
  }
  return std::isnan(score) ? kLowest : score;
}

std::vector<double> TopkCase::ListOf(int64_t b, int64_t token, int64_t num_rows) const {
  std::vector<std::pair<double, int64_t>> scored;
  for (int64_t row = 0; row < num_rows; ++row) {
    scored.emplace_back(-ScoreOf(token, ValidSlotOf(b, row)), row);
  }
  std::sort(scored.begin(), scored.end());
  scored.resize(std::min<size_t>(scored.size(), options_.width));
  std::vector<int64_t> rows;
  for (const auto& [score, row] : scored) rows.push_back(row);
  std::sort(rows.begin(), rows.end());
  std::vector<double> list;
  for (const int64_t row : rows) {
    list.push_back(static_cast<double>(options_.as_slots ? ValidSlotOf(b, row) : row));
  }
  return list;
}

void TopkCase::ExpectChosen() const {
  std::vector<double> expected, counts;
  const auto add = [&](const std::vector<double>& list) {
    counts.push_back(static_cast<double>(list.size()));
    expected.insert(expected.end(), list.begin(), list.end());
    expected.resize(counts.size() * options_.width, -1);
  };
  int64_t token = 0;
  for (size_t b = 0; b < options_.lengths.size(); ++b) {
    for (int64_t i = options_.q_lens[b]; i > 0; --i, ++token) {
      add(ListOf(static_cast<int64_t>(b), token, (options_.lengths[b] - i + 1) / options_.ratio));
    }
  }
  for (int64_t i = 0; i < options_.padding; ++i) add({});
  EXPECT_EQ(lens_.Get(), counts);
  EXPECT_TRUE(indices_.Get() == expected);  // not by EXPECT_EQ, which would print megabytes
}

}  // namespace kvblocks::attention
