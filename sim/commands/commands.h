// The commands of kvsim. Each adds itself to the program and runs after the parse; Run returns the
// exit status. Results go to standard output, messages to standard error; after an error
// nothing has been written to standard output. That a trace is bad or two reports differ is a
// result.

#ifndef KVBLOCKS_SIM_COMMANDS_COMMANDS_H_
#define KVBLOCKS_SIM_COMMANDS_COMMANDS_H_

#include <memory>

#include "absl/status/statusor.h"
#include "sim/commands/option_parser.h"
#include "sim/commands/output.h"

namespace kvblocks::sim {

class Command {
 public:
  // `options`: those of the command, which the program owns.
  explicit Command(OptionParser* options = nullptr) : options_(options) {}
  virtual ~Command() = default;
  virtual const OptionParser& options() const { return *options_; }
  // Says on standard error what failed.
  virtual ExitStatus Run();

 protected:
  virtual absl::StatusOr<ExitStatus> Execute() { return kInternal; }

  OptionParser* const options_;
};

std::unique_ptr<Command> AddReplayCommand(OptionParser* program);
std::unique_ptr<Command> AddCurveCommand(OptionParser* program);
std::unique_ptr<Command> AddPlanCommand(OptionParser* program);
std::unique_ptr<Command> AddExplainCommand(OptionParser* program);
std::unique_ptr<Command> AddVerifyCommand(OptionParser* program);
std::unique_ptr<Command> AddGenCommand(OptionParser* program);
std::unique_ptr<Command> AddStatsCommand(OptionParser* program);
std::unique_ptr<Command> AddConvertCommand(OptionParser* program);
std::unique_ptr<Command> AddValidateCommand(OptionParser* program);
std::unique_ptr<Command> AddCalibrateCommand(OptionParser* program);
std::unique_ptr<Command> AddCompareCommand(OptionParser* program);
std::unique_ptr<Command> AddEventsCommand(OptionParser* program);
std::unique_ptr<Command> AddServeCommand(OptionParser* program);
// Of sim/sweep.
std::unique_ptr<Command> AddSweepCommand(OptionParser* program);
std::unique_ptr<Command> AddPointCommand(OptionParser* program);
std::unique_ptr<Command> AddCapacityCommand(OptionParser* program);
// Of the commands that the program has by the time it runs.
std::unique_ptr<Command> AddCompletionCommand(OptionParser* program);

}  // namespace kvblocks::sim

#endif  // KVBLOCKS_SIM_COMMANDS_COMMANDS_H_
