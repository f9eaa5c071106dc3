// ReplayInput: what replay and explain take alike - the trace, the options of a replay, and the
// files that may hold them.
//
//   ReplayInput input(app);   // adds TRACE, --config and --kv-cache-config
//   ... the command's own options ...
//   input.AddOptions();
//   ... the parse ...
//   auto config = input.Configure();
//   auto reader = OpenReplayTrace(*config, options);

#ifndef KVBLOCKS_SIM_COMMANDS_REPLAY_INPUT_H_
#define KVBLOCKS_SIM_COMMANDS_REPLAY_INPUT_H_

#include <memory>
#include <string>

#include "absl/status/statusor.h"
#include "kvblocks/sim/config.pb.h"
#include "kvblocks/sim/trace/trace_reader.h"

namespace CLI {
class App;
}

namespace kvblocks::sim {

class ReplayInput {
 public:
  // Adds the trace and the files to a command; AddOptions, behind the command's own, the rest. Must
  // outlive the parse.
  explicit ReplayInput(CLI::App* app);
  ReplayInput(const ReplayInput&) = delete;
  ReplayInput& operator=(const ReplayInput&) = delete;

  void AddOptions();

  // Defaults, then the file, then the command line.
  absl::StatusOr<::kvblocks::config::v1::ReplayConfig> Configure();

 private:
  CLI::App* app_;
  ::kvblocks::config::v1::ReplayConfig given_;
  std::string config_file_, groups_file_;
};

// The trace of a configuration; without one the example workload.
absl::StatusOr<std::unique_ptr<TraceReader>> OpenReplayTrace(
    const ::kvblocks::config::v1::ReplayConfig& config, const TraceReaderOptions& options);

}  // namespace kvblocks::sim

#endif  // KVBLOCKS_SIM_COMMANDS_REPLAY_INPUT_H_
