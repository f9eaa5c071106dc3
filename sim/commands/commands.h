// The commands of kvsim. Each adds itself to the application and runs after the parse; Run returns
// the exit status. Results go to standard output, messages to standard error; after an error
// nothing has been written to standard output. That a trace is bad or two reports differ is a
// result.

#ifndef KVBLOCKS_SIM_COMMANDS_COMMANDS_H_
#define KVBLOCKS_SIM_COMMANDS_COMMANDS_H_

#include <memory>

#include "kvblocks/sim/commands/exit_status.h"

namespace CLI {
class App;
}

namespace kvblocks::sim {

class Command {
 public:
  virtual ~Command() = default;
  virtual CLI::App* app() const = 0;
  virtual ExitStatus Run() = 0;
};

std::unique_ptr<Command> AddReplayCommand(CLI::App* parent);
std::unique_ptr<Command> AddPlanCommand(CLI::App* parent);
std::unique_ptr<Command> AddExplainCommand(CLI::App* parent);
std::unique_ptr<Command> AddVerifyCommand(CLI::App* parent);
std::unique_ptr<Command> AddStatsCommand(CLI::App* parent);
std::unique_ptr<Command> AddConvertCommand(CLI::App* parent);
std::unique_ptr<Command> AddValidateCommand(CLI::App* parent);
std::unique_ptr<Command> AddCompareCommand(CLI::App* parent);

}  // namespace kvblocks::sim

#endif  // KVBLOCKS_SIM_COMMANDS_COMMANDS_H_
