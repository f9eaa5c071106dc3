// Whole-step tables: the clock of steps that were measured on a running engine, whatever is in them.
//
//   auto steps = ParseMeasuredSteps(text, "steps.csv");   // tokens,context,sequences,time_us
//   WholeStepTable table = FitWholeSteps(*steps);
//   auto clock = MakeWholeStepClock(table, "steps.csv", {});
//
// A step takes a base and a part each for its tokens, for the sum of its contexts, and for its
// sequences. Each part is linear between knots (powers of two within what was measured) and never
// falls: the fit is a monotone regression, least squares of relative errors over increments that are
// not negative (non_negative_fit.h), solved exactly. Below the first knot a part holds; above the last
// one its last slope goes on, which is counted. The three parts add up, so what they do to each other
// is only met where the measured steps do it in like proportions.
//
// Cost: O(log knots) per step. Fitting takes O(steps x knots^2), at most 64 knots: 20 us per step.

#ifndef KVBLOCKS_SIM_COST_WHOLE_STEPS_H_
#define KVBLOCKS_SIM_COST_WHOLE_STEPS_H_

#include <array>
#include <cstdint>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/statusor.h"
#include "kvblocks/sim/cost/step_tables.h"
#include "kvblocks/sim/cost/step_time_model.h"

namespace kvblocks::sim {

// What a step did: its tokens, the sum of its sequences' contexts before it, its sequences.
using StepCounts = std::array<int64_t, 3>;

struct MeasuredStep {
  StepCounts counts;
  SimTime time = 0;
};

struct WholeStepTable {
  static constexpr std::array<const char*, 3> kParts = {"tokens", "context", "sequences"};

  SimTime base = 0;
  // Of each part: counts, ascending, and times, which do not fall.
  std::array<std::vector<std::pair<int64_t, SimTime>>, 3> parts;

  // `outside` becomes true where a count is above its last knot.
  SimTime At(const StepCounts& counts, bool* outside) const;
};

// Steps that took no time are errors, like everything else in a row that is not as it should be.
absl::StatusOr<std::vector<MeasuredStep>> ParseMeasuredSteps(const std::string& text,
                                                             const std::string& file);

// REQUIRES: at least one step.
WholeStepTable FitWholeSteps(const std::vector<MeasuredStep>& steps);

// As CSV under part,count,time_us, which Parse reads.
std::string FormatWholeSteps(const WholeStepTable& table);
absl::StatusOr<WholeStepTable> ParseWholeSteps(const std::string& text, const std::string& file);

// Of `options` the constants come on top.
std::unique_ptr<StepTimeModel> MakeWholeStepClock(WholeStepTable table, const std::string& source,
                                                  const StepTableOptions& options);

}  // namespace kvblocks::sim

#endif  // KVBLOCKS_SIM_COST_WHOLE_STEPS_H_
