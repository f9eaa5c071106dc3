// How much host memory this process may take: what the machine has or, where that is less, what its
// control groups allow (containers; version 1 and 2).
//
// For refusing sizes that cannot be had with a message, before the kernel ends the process
// half-way. Swap is not counted.

#ifndef KVBLOCKS_CHECKS_MEMORY_LIMIT_H_
#define KVBLOCKS_CHECKS_MEMORY_LIMIT_H_

#include <cstdint>
#include <string>

namespace kvblocks {

// In bytes; the largest int64_t if nothing is known. Read once per process.
int64_t MemoryLimit();

// The least limit of the control groups in the files below `root`, which is empty but for tests: of
// the group that proc/self/cgroup names and of those around it.
int64_t ControlGroupMemoryLimit(const std::string& root);

}  // namespace kvblocks

#endif  // KVBLOCKS_CHECKS_MEMORY_LIMIT_H_
