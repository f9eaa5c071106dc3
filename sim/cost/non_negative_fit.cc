#include "kvblocks/sim/cost/non_negative_fit.h"

#include <algorithm>
#include <cmath>
#include <utility>

namespace kvblocks::sim {
namespace {

// Relative to the sizes of what is compared: below this it is rounding.
constexpr double kRounding = 1e-11;

}  // namespace

void NonNegativeFit::Add(absl::Span<const double> factors, double target) {
  Row row(factors.begin(), factors.end());
  row.push_back(target);
  for (size_t i = 0; i < num_unknowns_; ++i) {
    if (row[i] == 0) continue;
    Row& pivot = rows_[i];
    const double length = std::hypot(pivot[i], row[i]);
    const double cosine = pivot[i] / length, sine = row[i] / length;
    for (size_t j = i; j <= num_unknowns_; ++j) {
      const double above = pivot[j], below = row[j];
      pivot[j] = cosine * above + sine * below;
      row[j] = cosine * below - sine * above;
    }
    row[i] = 0;
  }
}

std::vector<double> NonNegativeFit::SolveOn(const std::vector<size_t>& chosen) const {
  const size_t n = chosen.size();
  NonNegativeFit part(n);
  std::vector<double> lengths(n), factors(n);
  for (const Row& row : rows_) {
    for (size_t i = 0; i < n; ++i) {
      factors[i] = row[chosen[i]];
      lengths[i] = std::hypot(lengths[i], factors[i]);
    }
    part.Add(factors, row.back());
  }
  std::vector<double> fit(n);
  for (size_t i = n; i-- > 0;) {
    const Row& row = part.rows_[i];
    if (std::abs(row[i]) <= kRounding * lengths[i]) return {};
    double rest = row.back();
    for (size_t j = i + 1; j < n; ++j) rest -= row[j] * fit[j];
    fit[i] = rest / row[i];
  }
  return fit;
}

std::vector<double> NonNegativeFit::Solve() const {
  std::vector<double> fit(num_unknowns_), lengths(num_unknowns_);
  double target_length = 0;
  for (const Row& row : rows_) {
    for (size_t i = 0; i < num_unknowns_; ++i) lengths[i] = std::hypot(lengths[i], row[i]);
    target_length = std::hypot(target_length, row.back());
  }
  std::vector<size_t> chosen;
  std::vector<bool> is_out(num_unknowns_, true);
  // Each set of unknowns has a smaller error than the one before, so none comes twice. The bound is
  // for rounding, which could make two of them look like each other.
  for (size_t round = 0; round < 10 * num_unknowns_; ++round) {
    std::vector<double> left;
    for (const Row& row : rows_) {
      double rest = row.back();
      for (const size_t i : chosen) rest -= row[i] * fit[i];
      left.push_back(rest);
    }
    // What each unknown outside would take off the error, best first.
    std::vector<std::pair<double, size_t>> candidates;
    for (size_t i = 0; i < num_unknowns_; ++i) {
      if (!is_out[i] || lengths[i] == 0) continue;
      double slope = 0;
      for (size_t k = 0; k < num_unknowns_; ++k) slope += rows_[k][i] * left[k];
      slope /= lengths[i];
      if (slope > kRounding * target_length) candidates.emplace_back(-slope, i);
    }
    std::sort(candidates.begin(), candidates.end());
    std::vector<double> next;
    for (const auto& [slope, entering] : candidates) {
      chosen.push_back(entering);
      next = SolveOn(chosen);
      // Rounding can let one in that must leave at once.
      if (!next.empty() && next.back() > 0) break;
      chosen.pop_back();
      next.clear();
    }
    if (next.empty()) break;
    is_out[chosen.back()] = false;
    // As far as no unknown becomes negative; those that end at 0 leave.
    while (std::any_of(next.begin(), next.end(), [](double value) { return value <= 0; })) {
      // How far the way to `next` stays above 0.
      const auto reach = [&](size_t i) {
        const double now = fit[chosen[i]];
        return next[i] > 0 ? 1.0 : now <= 0 ? 0.0 : now / (now - next[i]);
      };
      double share = 1;
      for (size_t i = 0; i < chosen.size(); ++i) share = std::min(share, reach(i));
      std::vector<size_t> kept;
      for (size_t i = 0; i < chosen.size(); ++i) {
        double& value = fit[chosen[i]];
        const bool leaves = next[i] <= 0 && reach(i) <= share;
        value = leaves ? 0 : value + share * (next[i] - value);
        is_out[chosen[i]] = leaves;
        if (!leaves) kept.push_back(chosen[i]);
      }
      chosen = std::move(kept);
      next = SolveOn(chosen);
      // Rounding: what is reached so far is a fit, too.
      if (next.size() != chosen.size()) return fit;
    }
    for (size_t i = 0; i < chosen.size(); ++i) fit[chosen[i]] = next[i];
  }
  return fit;
}

}  // namespace kvblocks::sim
