#include "attention/cpu/simd_rows.h"

#include <algorithm>
#include <cmath>
#include <limits>

namespace kvblocks::attention::simd {
namespace {

// Rows whose scores are made and used before the next ones': they stay in the first-level cache.
constexpr int64_t kChunkRows = 32;

}  // namespace

void RowBlock::Begin(int64_t num_groups, int64_t rows_per_group, int64_t key_dim,
                     int64_t value_dim) {
  groups_ = num_groups;
  rows_ = rows_per_group;
  key_dim_ = Padded(key_dim);
  value_dim_ = Padded(value_dim);
  values_ = value_dim;
  const int64_t all = num_groups * rows_per_group;
  queries_.Reserve(all * key_dim_);
  sums_.Reserve(all * value_dim_);
  scores_.Reserve(kChunkRows * kTileKeys);
  probabilities_.Reserve(kChunkRows * kTileKeys);
  factors_.assign(static_cast<size_t>(all), 1.0);
  rescale_.resize(kChunkRows);
  weighed_.resize(kChunkRows);
  states_.resize(static_cast<size_t>(all));
  Restart();
}

void RowBlock::Restart() {
  std::fill(states_.begin(), states_.end(),
            RowState{-std::numeric_limits<double>::infinity(), 0.0});
  std::fill_n(sums_.data(), groups_ * rows_ * value_dim_, 0.0);
}

bool RowBlock::AllFiniteAt(const TileRows& tile, uint64_t keys) const {
  for (uint64_t left = keys; left != 0; left &= left - 1) {
    if (!AllFinite(tile.values[__builtin_ctzll(left)], tile.value_type, value_dim_)) return false;
  }
  return true;
}

void RowBlock::AddTile(int64_t group, const TileRows& tile, const uint64_t* seen,
                       const ScoreRules* rules, const TileSources* next) {
  for (int64_t row = 0; row < rows_; row += kChunkRows) {
    AddTileToChunk(group, row, std::min(row + kChunkRows, rows_), tile, seen, rules,
                   row == 0 ? next : nullptr);
  }
}

void RowBlock::AddTileToChunk(int64_t group, int64_t begin, int64_t end, const TileRows& tile,
                              const uint64_t* seen, const ScoreRules* rules,
                              const TileSources* next) {
  while (begin < end && seen[begin] == 0) ++begin;
  while (end > begin && seen[end - 1] == 0) --end;
  if (begin == end) return;
  uint64_t scored = 0;
  for (int64_t row = begin; row < end; ++row) scored |= seen[row];
  const int num_rows = static_cast<int>(end - begin);
  const int64_t first = group * rows_ + begin;

  ScoreTileArgs score;
  score.q = queries_.data() + first * key_dim_;
  score.num_rows = num_rows;
  score.keys = tile.keys.data();
  score.type = tile.key_type;
  score.dim = key_dim_;
  score.keys_seen = scored;
  score.factor = factors_.data() + first;
  score.scores = scores_.data();
  if (next != nullptr) score.upcoming = {next->keys.data(), next->key_bytes};
  ScoreTile(score);
  uint64_t some = 0, all = ~uint64_t{0};  // of the keys that weigh anything
  for (int row = 0; row < num_rows; ++row) {
    uint64_t& weighed = weighed_[row] = seen[begin + row];
    rescale_[row] =
        SoftmaxTile(scores_.data() + row * kTileKeys, &weighed, rules[begin + row],
                    &states_[first + row], probabilities_.data() + row * kTileKeys);
    some |= weighed;
    all &= weighed;
  }
  if (some == 0) return;

  AccumulateTileArgs values;
  values.probabilities = probabilities_.data();
  values.num_rows = num_rows;
  values.values = tile.values.data();
  values.type = tile.value_type;
  values.dim = value_dim_;
  values.begin = __builtin_ctzll(some);
  values.end = kTileKeys - __builtin_clzll(some);
  values.rescale = rescale_.data();
  values.acc = sums_.data() + first * value_dim_;
  if (next != nullptr) values.upcoming = {next->values.data(), next->value_bytes};
  // Keys between are added with weight 0 where a row does not see them.
  const uint64_t range = ~uint64_t{0} >> (kTileKeys - values.end) & ~uint64_t{0} << values.begin;
  if (range == all || AllFiniteAt(tile, range & ~all)) return AccumulateTile(values);

  // 0 * NaN would carry a value into rows that do not see it: each row gets its own keys alone.
  values.num_rows = 1;
  values.upcoming = {};
  for (int row = 0; row < num_rows; ++row) {
    const void* rows[kTileKeys];
    float probabilities[kTileKeys];
    int count = 0;
    for (uint64_t left = weighed_[row]; left != 0; left &= left - 1) {
      const int key = __builtin_ctzll(left);
      rows[count] = tile.values[key];
      probabilities[count++] = probabilities_.data()[row * kTileKeys + key];
    }
    values.probabilities = probabilities;
    values.values = rows;
    values.begin = 0;
    values.end = count;
    values.rescale = &rescale_[row];
    values.acc = sums_.data() + (first + row) * value_dim_;
    AccumulateTile(values);
  }
}

void RowBlock::Finish(int64_t group, int64_t row, double value_scale, float* max, float* sum,
                      float* out) {
  const int64_t index = group * rows_ + row;
  const RowState& state = states_[index];
  if (state.sum == 0) {
    *max = -std::numeric_limits<float>::infinity();
    *sum = 0;
    std::fill(out, out + values_, 0.0f);
    return;
  }
  *max = std::isnan(state.sum) ? NAN : static_cast<float>(state.max);
  *sum = static_cast<float>(state.sum);
  const double factor = value_scale / state.sum;
  const double* sums = sums_.data() + index * value_dim_;
  for (int64_t d = 0; d < values_; ++d) out[d] = static_cast<float>(sums[d] * factor);
}

}  // namespace kvblocks::attention::simd
