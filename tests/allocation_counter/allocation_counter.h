// Counts calls of operator new, for tests that something allocates nothing.
//
// Linking this replaces all forms of operator new and delete of the test's program.
// Single-threaded.

#ifndef KVBLOCKS_TESTS_ALLOCATION_COUNTER_ALLOCATION_COUNTER_H_
#define KVBLOCKS_TESTS_ALLOCATION_COUNTER_ALLOCATION_COUNTER_H_

#include <cstdint>

namespace kvblocks {

// Allocations while a CountAllocations lived, since the program began.
int64_t NumAllocations();

class CountAllocations {
 public:
  // `on` false: nothing is counted while this lives, within one that counts.
  explicit CountAllocations(bool on = true);
  ~CountAllocations();
  CountAllocations(const CountAllocations&) = delete;
  CountAllocations& operator=(const CountAllocations&) = delete;

 private:
  const bool before_;
};

}  // namespace kvblocks

#endif  // KVBLOCKS_TESTS_ALLOCATION_COUNTER_ALLOCATION_COUNTER_H_
