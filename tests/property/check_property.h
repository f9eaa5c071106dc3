// CheckProperty: runs a RapidCheck property inside a Google Test, reproducibly.
//
// The seed is fixed unless RC_PARAMS gives one, so that a build server sees the same cases on every
// run. The environment variable KVBLOCKS_PROPERTY_SCALE multiplies the number of cases (100 for a
// long soak, 0.1 for a quick look).

#ifndef KVBLOCKS_TESTS_PROPERTY_CHECK_PROPERTY_H_
#define KVBLOCKS_TESTS_PROPERTY_CHECK_PROPERTY_H_

#include <gtest/gtest.h>
#include <rapidcheck.h>

#include <algorithm>
#include <cstdlib>
#include <sstream>
#include <utility>

namespace kvblocks::property {

template <typename Property>
void CheckProperty(int num_cases, Property&& property) {
  rc::detail::TestParams params = rc::detail::configuration().testParams;
  if (std::getenv("RC_PARAMS") == nullptr) params.seed = 20260520;
  const char* scale = std::getenv("KVBLOCKS_PROPERTY_SCALE");
  const double factor = scale == nullptr ? 1.0 : std::strtod(scale, nullptr);
  params.maxSuccess = std::max(1, static_cast<int>(num_cases * factor));
  const auto result = rc::detail::checkTestable(std::forward<Property>(property),
                                                rc::detail::TestMetadata(), params);
  std::ostringstream message;
  rc::detail::printResultMessage(result, message);
  EXPECT_TRUE(result.template is<rc::detail::SuccessResult>()) << message.str();
}

}  // namespace kvblocks::property

#endif  // KVBLOCKS_TESTS_PROPERTY_CHECK_PROPERTY_H_
