#include "sim/report/distribution.h"

#include <algorithm>
#include <bit>

namespace kvblocks::sim {

// Below 2 * 2^kSubBits every value has its own bucket; above, the leading kSubBits + 1 bits decide.
size_t Distribution::BucketOf(int64_t value) {
  const auto v = static_cast<uint64_t>(value);
  const int width = std::bit_width(v);
  if (width <= kSubBits + 1) return static_cast<size_t>(v);
  const int shift = width - (kSubBits + 1);
  return (static_cast<size_t>(shift) << kSubBits) + static_cast<size_t>(v >> shift);
}

int64_t Distribution::MiddleOf(size_t bucket) {
  if (bucket < (size_t{2} << kSubBits)) return static_cast<int64_t>(bucket);
  const size_t shift = (bucket >> kSubBits) - 1;
  const uint64_t leading = bucket - (shift << kSubBits);
  return static_cast<int64_t>((leading << shift) + (uint64_t{1} << (shift - 1)));
}

void Distribution::AddRun(int64_t value, int64_t count) {
  runs_.push_back({value, count});
  if (runs_.size() <= max_runs_) return;
  buckets_.assign(size_t{64} << kSubBits, 0);
  for (const Run& run : runs_) buckets_[BucketOf(run.value)] += run.count;
  runs_ = {};
}

void Distribution::Sort() {
  const auto less = [](const Run& a, const Run& b) { return a.value < b.value; };
  if (std::ranges::is_sorted(runs_, less)) return;
  std::ranges::sort(runs_, less);
  size_t kept = 0;
  for (size_t i = 1; i < runs_.size(); ++i) {
    if (runs_[i].value == runs_[kept].value) {
      runs_[kept].count += runs_[i].count;
    } else {
      runs_[++kept] = runs_[i];
    }
  }
  runs_.resize(kept + 1);
}

int64_t Distribution::Percentile(int64_t hundredths) {
  if (count_ == 0) return 0;
  const auto rank =
      static_cast<int64_t>((static_cast<__int128>(count_) * hundredths + 9999) / 10000);
  int64_t seen = 0;
  if (is_exact()) {
    Sort();
    for (const Run& run : runs_) {
      seen += run.count;
      if (seen >= rank) return run.value;
    }
  } else {
    for (size_t b = 0; b < buckets_.size(); ++b) {
      seen += buckets_[b];
      if (seen >= rank) return std::clamp(MiddleOf(b), min_, max_);
    }
  }
  return max_;
}

std::vector<int64_t> Distribution::Percentiles() {
  constexpr int64_t kLast = 100;
  std::vector<int64_t> values;
  if (count_ == 0) return values;
  values.push_back(min_);
  int64_t seen = 0;
  const auto add = [&](int64_t value, int64_t count) {
    seen += count;
    for (int64_t next = static_cast<int64_t>(values.size()); next <= kLast; ++next) {
      const auto rank =
          static_cast<int64_t>((static_cast<__int128>(count_) * next + kLast - 1) / kLast);
      if (rank > seen) return;
      values.push_back(value);
    }
  };
  if (is_exact()) {
    Sort();
    for (const Run& run : runs_) add(run.value, run.count);
  } else {
    for (size_t b = 0; b < buckets_.size(); ++b) {
      if (buckets_[b] > 0) add(std::clamp(MiddleOf(b), min_, max_), buckets_[b]);
    }
  }
  return values;
}

int64_t Distribution::CountAbove(int64_t limit) {
  int64_t sum = 0;
  for (const Run& run : runs_) sum += run.value > limit ? run.count : 0;
  for (size_t b = 0; b < buckets_.size(); ++b) sum += MiddleOf(b) > limit ? buckets_[b] : 0;
  return sum;
}

}  // namespace kvblocks::sim
