// The one planted fault that is active in this process: the environment variable KVBLOCKS_FAULT, 0
// if unset.

#ifndef KVBLOCKS_TESTS_FAULTS_ACTIVE_FAULT_H_
#define KVBLOCKS_TESTS_FAULTS_ACTIVE_FAULT_H_

#include <cstdlib>

namespace kvblocks::faults {

inline int ActiveFault() {
  static const int number = [] {
    const char* value = std::getenv("KVBLOCKS_FAULT");
    return value == nullptr ? 0 : std::atoi(value);
  }();
  return number;
}

inline bool Active(int number) { return ActiveFault() == number; }

}  // namespace kvblocks::faults

#endif  // KVBLOCKS_TESTS_FAULTS_ACTIVE_FAULT_H_
