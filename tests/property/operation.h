// Operation: one random step of a test, a kind and a store of numbers to draw its parameters from.
//
// Parameters are interpreted against the state at hand (a request index modulo the live requests,
// for one), so that every sequence is meaningful and stays so when RapidCheck shrinks it by leaving
// steps out or making numbers smaller.

#ifndef KVBLOCKS_TESTS_PROPERTY_OPERATION_H_
#define KVBLOCKS_TESTS_PROPERTY_OPERATION_H_

#include <rapidcheck.h>

#include <cstdint>
#include <ostream>
#include <utility>
#include <vector>

namespace kvblocks::property {

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

#endif  // KVBLOCKS_TESTS_PROPERTY_OPERATION_H_
