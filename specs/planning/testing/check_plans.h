// CheckPlans: a property of the plans that the planner makes, of random models.
//
// The property returns whether there was a plan. A planner that refuses (nearly) everything would
// pass any such property, so at least `least_percent` of the cases must have had one.

#ifndef KVBLOCKS_SPECS_PLANNING_TESTING_CHECK_PLANS_H_
#define KVBLOCKS_SPECS_PLANNING_TESTING_CHECK_PLANS_H_

#include "gtest/gtest.h"
#include "rapidcheck/gtest.h"

namespace kvblocks {

template <typename Property>
void CheckPlans(int least_percent, Property property) {
  int num_cases = 0;
  int num_plans = 0;
  rc::detail::checkGTest([&] {
    ++num_cases;
    if (property()) ++num_plans;
  });
  EXPECT_GE(num_plans * 100, least_percent * num_cases)
      << num_plans << " plans in " << num_cases << " cases";
  ::testing::Test::RecordProperty("percent_planned", num_plans * 100 / num_cases);
}

}  // namespace kvblocks

#endif  // KVBLOCKS_SPECS_PLANNING_TESTING_CHECK_PLANS_H_
