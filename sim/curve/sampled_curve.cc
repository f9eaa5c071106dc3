#include "sim/curve/sampled_curve.h"

#include <algorithm>
#include <cmath>

namespace kvblocks::sim {
namespace {

// SplitMix64's finisher: every bit of the key decides.
uint64_t Mix(uint64_t value) {
  value ^= value >> 30;
  value *= 0xbf58476d1ce4e5b9u;
  value ^= value >> 27;
  value *= 0x94d049bb133111ebu;
  return value ^ (value >> 31);
}

constexpr size_t kFirstPlaces = 1024;

}  // namespace

void HotPaths::GiveUpHalf() {
  std::vector<int64_t> counts;
  counts.reserve(counts_.size());
  for (const auto& [key, count] : counts_) counts.push_back(count);
  const auto middle = counts.begin() + static_cast<std::ptrdiff_t>(counts.size() / 2);
  std::nth_element(counts.begin(), middle, counts.end());
  const int64_t off = *middle;
  absl::erase_if(counts_, [&](auto& entry) { return (entry.second -= off) <= 0; });
}

absl::flat_hash_set<uint64_t> HotPaths::Take() const {
  std::vector<std::pair<int64_t, uint64_t>> by_count;
  for (const auto& [key, count] : counts_) by_count.push_back({-count, key});
  std::sort(by_count.begin(), by_count.end());
  absl::flat_hash_set<uint64_t> hot;
  for (size_t i = 0; i < std::min(wanted_, by_count.size()); ++i) hot.insert(by_count[i].second);
  return hot;
}

SampledCurve::SampledCurve(double rate, uint64_t seed, const absl::flat_hash_set<uint64_t>* hot)
    : rate_(rate),
      seed_(Mix(seed + 0x9e3779b97f4a7c15u)),
      threshold_(rate >= 1 ? ~uint64_t{0} : static_cast<uint64_t>(std::ldexp(rate, 64))),
      hot_(hot),
      tree_(kFirstPlaces + 1) {}

void SampledCurve::CountAt(size_t place, int sign, bool is_hot) {
  (is_hot ? total_.hot : total_.cold) += sign;
  for (size_t i = place + 1; i < tree_.size(); i += i & (~i + 1)) {
    (is_hot ? tree_[i].hot : tree_[i].cold) += sign;
  }
}

SampledCurve::Counts SampledCurve::CountUpTo(size_t place) const {
  Counts counts;
  for (size_t i = place + 1; i > 0; i &= i - 1) {
    counts.hot += tree_[i].hot;
    counts.cold += tree_[i].cold;
  }
  return counts;
}

// Closes the gaps that used places left, with room for as many again.
void SampledCurve::Compact() {
  std::erase_if(entries_, [](const Entry& entry) { return entry.key == 0; });
  tree_.assign(std::max(kFirstPlaces, 2 * entries_.size()) + 1, {});
  total_ = {};
  for (size_t place = 0; place < entries_.size(); ++place) {
    places_[entries_[place].key] = static_cast<uint32_t>(place);
    CountAt(place, 1, entries_[place].is_hot);
  }
}

void SampledCurve::Add(const CurveRequest& request) {
  sampled_.clear();
  for (size_t i = 0; i < request.keys.size(); ++i) {
    // 0 marks a gap.
    const uint64_t key = std::max<uint64_t>(request.keys[i], 1);
    const bool is_hot = hot_->contains(request.keys[i]);
    num_cold_ += is_hot ? 0 : 1;
    if (!is_hot && Mix(key ^ seed_) > threshold_) continue;
    num_sampled_cold_ += is_hot ? 0 : 1;
    sampled_.push_back({key, is_hot});
    ++num_sampled_;
    if (static_cast<int64_t>(i) >= request.num_eligible) continue;
    const auto found = places_.find(key);
    if (found == places_.end()) continue;
    const Counts older = CountUpTo(found->second);
    const double newer = static_cast<double>(total_.hot - older.hot) +
                         static_cast<double>(total_.cold - older.cold) / rate_;
    (is_hot ? hot_hits_ : cold_hits_).AddAt(std::llround(newer) + 1, 1);
  }
  // The deepest is released first.
  for (size_t i = sampled_.size(); i > 0; --i) {
    const Entry& entry = sampled_[i - 1];
    if (entries_.size() + 1 >= tree_.size()) Compact();
    const auto [at, is_new] = places_.try_emplace(entry.key, 0);
    if (!is_new) {
      CountAt(at->second, -1, entry.is_hot);
      entries_[at->second].key = 0;
    }
    at->second = static_cast<uint32_t>(entries_.size());
    CountAt(entries_.size(), 1, entry.is_hot);
    entries_.push_back(entry);
  }
}

void SampledCurve::Finish() {
  hot_hits_.Finish();
  cold_hits_.Finish();
}

int64_t SampledCurve::largest_size() const {
  return std::max(hot_hits_.SmallestPool(hot_hits_.max_hits()),
                  cold_hits_.SmallestPool(cold_hits_.max_hits()));
}

}  // namespace kvblocks::sim
