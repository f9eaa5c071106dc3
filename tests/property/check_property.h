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
#include <cstdint>
#include <cstdlib>
#include <ostream>
#include <sstream>
#include <string_view>
#include <utility>
#include <vector>

namespace kvblocks::property {

// The share of its cases that each test runs.
inline double PropertyScale() {
  const char* scale = std::getenv("KVBLOCKS_PROPERTY_SCALE");
  return scale == nullptr ? 1.0 : std::strtod(scale, nullptr);
}

// That the cases of a test came to something, which all of them do about `usual` times or more.
// Fewer or other cases are asked only if they can be expected to: since such things come in bursts,
// less than some times may as well be none.
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

// --- Drawn steps ---
//
// Parameters are interpreted against the state at hand (a request index modulo the live requests,
// for one), so that every sequence is meaningful and stays so when RapidCheck shrinks it by leaving
// steps out or making numbers smaller.

// One random step: a kind and a store of numbers to draw its parameters from.
struct Operation {
  int kind = 0;  // 0..99
  uint64_t numbers = 0;
};

inline std::ostream& operator<<(std::ostream& out, const Operation& op) {
  return out << op.kind << ":" << op.numbers;
}

// Small numbers one after the other; zeros when used up.
class Numbers {
 public:
  explicit Numbers(uint64_t store) : store_(store) {}

  // 0 .. bound - 1; 0 if bound < 1.
  int64_t Below(int64_t bound) {
    if (bound < 1) return 0;
    const uint64_t value = store_ % static_cast<uint64_t>(bound);
    store_ /= static_cast<uint64_t>(bound);
    return static_cast<int64_t>(value);
  }
  // True once in `n`; the simplest case is false.
  bool OneIn(int64_t n) { return Below(n) == n - 1; }

 private:
  uint64_t store_;
};

// Sequences of up to `length` operations.
inline rc::Gen<std::vector<Operation>> Operations(int length) {
  const auto operation =
      rc::gen::map(rc::gen::pair(rc::gen::inRange<int>(0, 100),
                                 rc::gen::inRange<uint64_t>(0, uint64_t{1} << 62)),
                   [](const std::pair<int, uint64_t>& parts) {
                     return Operation{parts.first, parts.second};
                   });
  // Element ranges do not depend on the size, the number of elements does.
  return rc::gen::resize(
      length, rc::gen::container<std::vector<Operation>>(rc::gen::resize(100, operation)));
}

}  // namespace kvblocks::property

#endif  // KVBLOCKS_TESTS_PROPERTY_CHECK_PROPERTY_H_
