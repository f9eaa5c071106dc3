// kvsim disaggregate; see sim/commands/commands.h.

#ifndef KVBLOCKS_SIM_SPLIT_SPLIT_COMMAND_H_
#define KVBLOCKS_SIM_SPLIT_SPLIT_COMMAND_H_

#include <memory>

#include "kvblocks/sim/commands/commands.h"

namespace kvblocks::sim {

std::unique_ptr<Command> AddDisaggregateCommand(OptionParser* program);

}  // namespace kvblocks::sim

#endif  // KVBLOCKS_SIM_SPLIT_SPLIT_COMMAND_H_
