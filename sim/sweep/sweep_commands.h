// The commands of kvsim that run many replays; see sim/commands/commands.h.

#ifndef KVBLOCKS_SIM_SWEEP_SWEEP_COMMANDS_H_
#define KVBLOCKS_SIM_SWEEP_SWEEP_COMMANDS_H_

#include <memory>

#include "kvblocks/sim/commands/commands.h"

namespace kvblocks::sim {

std::unique_ptr<Command> AddSweepCommand(OptionParser* program);
std::unique_ptr<Command> AddPointCommand(OptionParser* program);
std::unique_ptr<Command> AddCapacityCommand(OptionParser* program);

}  // namespace kvblocks::sim

#endif  // KVBLOCKS_SIM_SWEEP_SWEEP_COMMANDS_H_
