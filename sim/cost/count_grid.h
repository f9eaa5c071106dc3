// CountGrid, Curve, Surface: functions of one or two counts, tabulated once and read in a few
// nanoseconds.
//
// Small counts are grid points themselves; above, each octave is cut into equal parts, between which
// a value lies on a straight line. Whole numbers throughout. Beyond the last point the last part's
// line goes on.

#ifndef KVBLOCKS_SIM_COST_COUNT_GRID_H_
#define KVBLOCKS_SIM_COST_COUNT_GRID_H_

#include <algorithm>
#include <bit>
#include <cstdint>
#include <vector>

#include "kvblocks/sim/cost/sim_time.h"

namespace kvblocks::sim {

// Where a count lies: value = (1 - rest / 2^shift) x point `index` + rest / 2^shift x the next.
struct Place {
  size_t index = 0;
  int shift = 0;
  int64_t rest = 0;

  int64_t Between(int64_t a, int64_t b) const {
    return a + static_cast<int64_t>(Wide{b - a} * rest >> shift);
  }
};

class CountGrid {
 public:
  // Counts up to 2^bits are points, and 2^(bits - 1) in each octave above, at least up to `most`.
  CountGrid(int bits, int64_t most)
      : bits_(bits), last_(Find(std::max<int64_t>(most, 1)).index + 1) {}

  size_t size() const { return last_ + 1; }

  int64_t At(size_t index) const {
    const auto i = static_cast<int64_t>(index);
    const int64_t half = int64_t{1} << (bits_ - 1);
    if (i < 2 * half) return i;
    const int shift = static_cast<int>(i / half) - 1;
    return (i - shift * half) << shift;
  }

  // REQUIRES: count >= 0.
  Place Of(int64_t count) const {
    Place place = Find(count);
    if (place.index < last_) return place;
    const int64_t before = At(last_ - 1), last = At(last_);
    return {.index = last_ - 1,
            .shift = static_cast<int>(std::bit_width(static_cast<uint64_t>(last - before))) - 1,
            .rest = count - before};
  }

 private:
  Place Find(int64_t count) const {
    const int width = static_cast<int>(std::bit_width(static_cast<uint64_t>(count)));
    if (width <= bits_) return {.index = static_cast<size_t>(count)};
    const int shift = width - bits_;
    return {.index = static_cast<size_t>((count >> shift) + (int64_t{shift} << (bits_ - 1))),
            .shift = shift,
            .rest = count & ((int64_t{1} << shift) - 1)};
  }

  int bits_;
  size_t last_ = 0;
};

class Curve {
 public:
  // f(count) at each point.
  template <typename F>
  Curve(CountGrid grid, F&& f) : grid_(grid) {
    values_.reserve(grid.size());
    for (size_t i = 0; i < grid.size(); ++i) values_.push_back(f(grid.At(i)));
  }

  int64_t At(int64_t count) const {
    const Place place = grid_.Of(count);
    return place.Between(values_[place.index], values_[place.index + 1]);
  }

 private:
  CountGrid grid_;
  std::vector<int64_t> values_;
};

class Surface {
 public:
  template <typename F>
  Surface(CountGrid x, CountGrid y, F&& f) : x_(x), y_(y) {
    values_.reserve(x.size() * y.size());
    for (size_t i = 0; i < x.size(); ++i) {
      for (size_t j = 0; j < y.size(); ++j) values_.push_back(f(x.At(i), y.At(j)));
    }
  }

  int64_t At(int64_t x, int64_t y) const {
    const Place at_x = x_.Of(x), at_y = y_.Of(y);
    const int64_t* low = &values_[at_x.index * y_.size() + at_y.index];
    const int64_t* high = low + y_.size();
    return at_x.Between(at_y.Between(low[0], low[1]), at_y.Between(high[0], high[1]));
  }

 private:
  CountGrid x_, y_;
  std::vector<int64_t> values_;
};

}  // namespace kvblocks::sim

#endif  // KVBLOCKS_SIM_COST_COUNT_GRID_H_
