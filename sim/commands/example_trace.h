// The shipped example workload, as part of the binary.

#ifndef KVBLOCKS_SIM_COMMANDS_EXAMPLE_TRACE_H_
#define KVBLOCKS_SIM_COMMANDS_EXAMPLE_TRACE_H_

#include <string>

namespace kvblocks::sim {

// The bytes of the file, compressed as it is.
std::string ExampleTrace();

}  // namespace kvblocks::sim

#endif  // KVBLOCKS_SIM_COMMANDS_EXAMPLE_TRACE_H_
