#include "kvblocks/sim/cost/non_negative_fit.h"

#include <algorithm>
#include <cmath>
#include <random>
#include <utility>
#include <vector>

#include "gtest/gtest.h"

namespace kvblocks::sim {
namespace {

using Rows = std::vector<std::vector<double>>;  // factors, then the target

std::vector<double> Solve(const Rows& rows) {
  NonNegativeFit fit(rows[0].size() - 1);
  for (const auto& row : rows) fit.Add({row.data(), row.size() - 1}, row.back());
  return fit.Solve();
}

double SquaredError(const Rows& rows, const std::vector<double>& fit) {
  double sum = 0;
  for (const auto& row : rows) {
    double rest = row.back();
    for (size_t i = 0; i < fit.size(); ++i) rest -= row[i] * fit[i];
    sum += rest * rest;
  }
  return sum;
}

// Gauss on the normal equations of the unknowns whose bit is set; empty where they have no solution.
std::vector<double> NaiveOn(const Rows& rows, unsigned chosen) {
  const size_t n = rows[0].size() - 1;
  Rows equations(n, std::vector<double>(n + 1));
  const auto is_chosen = [&](size_t i) { return (chosen >> i & 1) != 0; };
  for (size_t i = 0; i < n; ++i) {
    if (!is_chosen(i)) {
      equations[i][i] = 1;
      continue;
    }
    for (const auto& row : rows) {
      for (size_t j = 0; j <= n; ++j) {
        if (j == n || is_chosen(j)) equations[i][j] += row[i] * row[j];
      }
    }
  }
  for (size_t i = 0; i < n; ++i) {
    const auto pivot =
        std::max_element(equations.begin() + static_cast<int64_t>(i), equations.end(),
                         [&](auto& a, auto& b) { return std::abs(a[i]) < std::abs(b[i]); });
    if (std::abs((*pivot)[i]) < 1e-9) return {};
    std::swap(equations[i], *pivot);
    for (size_t k = 0; k < n; ++k) {
      if (k == i) continue;
      const double factor = equations[k][i] / equations[i][i];
      for (size_t j = i; j <= n; ++j) equations[k][j] -= factor * equations[i][j];
    }
  }
  std::vector<double> fit(n);
  for (size_t i = 0; i < n; ++i) fit[i] = equations[i][n] / equations[i][i];
  return fit;
}

// The best of all sets of unknowns whose least squares are not negative.
double NaiveLeastError(const Rows& rows) {
  const size_t n = rows[0].size() - 1;
  double least = SquaredError(rows, std::vector<double>(n));
  for (unsigned chosen = 1; chosen < 1U << n; ++chosen) {
    const std::vector<double> fit = NaiveOn(rows, chosen);
    if (fit.empty() || *std::min_element(fit.begin(), fit.end()) < 0) continue;
    least = std::min(least, SquaredError(rows, fit));
  }
  return least;
}

TEST(NonNegativeFitTest, NoSetOfUnknownsFitsBetter) {
  std::mt19937_64 random(1);
  for (int round = 0; round < 300; ++round) {
    const size_t n = 1 + random() % 6;
    Rows rows(1 + random() % 12, std::vector<double>(n + 1));
    // Small whole numbers, so that equal columns and columns of zeros come up, too.
    for (auto& row : rows) {
      for (double& value : row) value = static_cast<double>(random() % 7) - 3;
    }
    const std::vector<double> fit = Solve(rows);
    EXPECT_GE(*std::min_element(fit.begin(), fit.end()), 0);
    EXPECT_NEAR(SquaredError(rows, fit), NaiveLeastError(rows), 1e-9) << "round " << round;
  }
}

// Steps of a staircase, each seen through all above it: columns that look much like each other.
TEST(NonNegativeFitTest, FindsTheOnlySolutionOfManyUnknowns) {
  constexpr size_t kUnknowns = 60;
  std::mt19937_64 random(2);
  std::vector<double> truth(kUnknowns);
  for (double& value : truth) {
    value = random() % 3 == 0 ? 0 : static_cast<double>(1 + random() % 1000) / 1e3;
  }
  Rows rows;
  for (int i = 0; i < 2000; ++i) {
    const double at = static_cast<double>(random() % 100'000) / 1e5 * kUnknowns;
    std::vector<double> row;
    double target = 0;
    for (size_t k = 0; k < kUnknowns; ++k) {
      row.push_back(std::clamp(at - static_cast<double>(k), 0.0, 1.0));
      target += row.back() * truth[k];
    }
    row.push_back(target);
    rows.push_back(row);
  }
  const std::vector<double> fit = Solve(rows);
  for (size_t k = 0; k < kUnknowns; ++k) EXPECT_NEAR(fit[k], truth[k], 1e-9) << k;
}

TEST(NonNegativeFitTest, WhatOnlyNegativeUnknownsCouldFitIsZero) {
  EXPECT_EQ(Solve({{1, -2}, {1, -3}}), (std::vector<double>{0}));
  EXPECT_EQ(Solve({{0, 0, 5}}), (std::vector<double>{0, 0}));
}

TEST(NonNegativeFitTest, OfEqualUnknownsTheFirstOneIsTaken) {
  const std::vector<double> fit = Solve({{1, 1, 4}, {2, 2, 8}});
  EXPECT_NEAR(fit[0], 4, 1e-12);
  EXPECT_EQ(fit[1], 0);
}

}  // namespace
}  // namespace kvblocks::sim
