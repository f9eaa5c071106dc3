// CheckProperty: runs a RapidCheck property inside a Google Test, reproducibly.
//
// The seed is fixed unless RC_PARAMS gives one, so that a build server sees the same cases on every
// run. The environment variable KVBLOCKS_PROPERTY_SCALE multiplies the number of cases (100 for a
// long soak, 0.1 for a quick look); what the cases must have come to then is asked for likewise.

#ifndef KVBLOCKS_TESTS_PROPERTY_CHECK_PROPERTY_H_
#define KVBLOCKS_TESTS_PROPERTY_CHECK_PROPERTY_H_

#include <gtest/gtest.h>
#include <rapidcheck.h>

#include <algorithm>
#include <cstdlib>
#include <sstream>
#include <string_view>
#include <utility>

namespace kvblocks::property {

// The share of its cases that each test runs.
inline double PropertyScale() {
  const char* scale = std::getenv("KVBLOCKS_PROPERTY_SCALE");
  return scale == nullptr ? 1.0 : std::strtod(scale, nullptr);
}

// That the cases of a test came to something, which all of them do about `usual` times or more. Fewer
// or other cases are asked only if they can be expected to: since such things come in bursts, less
// than some times may as well be none.
inline void ExpectOccurred(std::string_view what, int64_t count, int64_t usual) {
  constexpr double kSome = 20;
  const double scale = PropertyScale();
  const bool are_usual = scale >= 1.0 && std::getenv("RC_PARAMS") == nullptr;
  if (!are_usual && scale * static_cast<double>(usual) < kSome) return;
  EXPECT_GT(count, 0) << what;
}

template <typename Property>
void CheckProperty(int num_cases, Property&& property) {
  rc::detail::TestParams params = rc::detail::configuration().testParams;
  if (std::getenv("RC_PARAMS") == nullptr) params.seed = 20260520;
  params.maxSuccess = std::max(1, static_cast<int>(num_cases * PropertyScale()));
  const auto result = rc::detail::checkTestable(std::forward<Property>(property),
                                                rc::detail::TestMetadata(), params);
  std::ostringstream message;
  rc::detail::printResultMessage(result, message);
  EXPECT_TRUE(result.template is<rc::detail::SuccessResult>()) << message.str();
}

}  // namespace kvblocks::property

#endif  // KVBLOCKS_TESTS_PROPERTY_CHECK_PROPERTY_H_
