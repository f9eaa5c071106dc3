// NonNegativeFit: least squares over unknowns none of which is negative, solved exactly.
//
//   NonNegativeFit fit(2);
//   fit.Add({1, 10}, 32);  // 1 x + 10 y should be 32
//   fit.Add({1, 20}, 62);
//   std::vector<double> xy = fit.Solve();  // {2, 3}
//
// Equations go into a triangle by rotations, so none of them is kept and nothing is squared. Solve is
// the active-set method of Lawson and Hanson (Solving Least Squares Problems, chapter 23): unknowns
// are let in one by one, the one that reduces the error most first, and leave where they would be
// negative. Of unknowns that the equations cannot tell apart the first one is taken, the others are 0.
//
// Cost: Add O(n^2) for n unknowns; Solve O(n^3) per unknown that is let in.

#ifndef KVBLOCKS_SIM_COST_NON_NEGATIVE_FIT_H_
#define KVBLOCKS_SIM_COST_NON_NEGATIVE_FIT_H_

#include <cstddef>
#include <vector>

#include "absl/types/span.h"

namespace kvblocks::sim {

class NonNegativeFit {
 public:
  // REQUIRES: at least one unknown.
  explicit NonNegativeFit(size_t num_unknowns)
      : num_unknowns_(num_unknowns), rows_(num_unknowns, std::vector<double>(num_unknowns + 1)) {}

  // REQUIRES: one factor per unknown; everything finite.
  void Add(absl::Span<const double> factors, double target);

  std::vector<double> Solve() const;

 private:
  using Row = std::vector<double>;  // factors, then the target

  // The least squares over the unknowns of `chosen` alone, in its order; empty if the equations do
  // not tell these apart.
  std::vector<double> SolveOn(const std::vector<size_t>& chosen) const;

  const size_t num_unknowns_;
  std::vector<Row> rows_;  // an upper triangle
};

}  // namespace kvblocks::sim

#endif  // KVBLOCKS_SIM_COST_NON_NEGATIVE_FIT_H_
