// ReplayInput: what replay and explain take alike - the trace, the options of a replay, and the
// files that may hold them.
//
//   ReplayInput input(options);           // adds TRACE, --config, --kv-cache-config
//   ...
//   auto config = input.Configure();      // after the parse
//   auto reader = OpenReplayTrace(*config, setup->reader);

#ifndef KVBLOCKS_SIM_COMMANDS_REPLAY_INPUT_H_
#define KVBLOCKS_SIM_COMMANDS_REPLAY_INPUT_H_

#include <memory>
#include <string>

#include "absl/status/statusor.h"
#include "sim/commands/option_parser.h"
#include "sim/config.pb.h"
#include "sim/trace/trace_reader.h"

namespace kvblocks::sim {

using ::kvblocks::config::v1::ReplayConfig;

class ReplayInput {
 public:
  // Of a command that runs several replicas, or does not: then files must not ask for them.
  enum class Fleets { kRefused, kTaken };

  // Adds the trace and the files to a command; AddOptions, behind the command's own, the rest. Must
  // outlive the parse.
  explicit ReplayInput(OptionParser* options, Fleets fleets = Fleets::kRefused);
  ReplayInput(const ReplayInput&) = delete;
  ReplayInput& operator=(const ReplayInput&) = delete;

  // Of a command other than replay --help lists none of them, and says where they are.
  void AddOptions(bool is_replay = false);

  // Defaults, then the file, then the command line.
  absl::StatusOr<ReplayConfig> Configure();
  // The same without the defaults: what file and command line set, and nothing else.
  absl::StatusOr<ReplayConfig> Asked();
  // See CheckOptionUses; of a configuration that Configure made and a setup took.
  absl::Status CheckUses(const ReplayConfig& config) const;
  // What the command line alone says; after the parse.
  const ReplayConfig& given() const { return given_; }

 private:
  absl::Status Read(ReplayConfig* file);

  OptionParser* options_;
  const Fleets fleets_;
  ReplayConfig given_;
  std::string config_file_, groups_file_;
};

// How a command that only reads a trace reads it. `given`: what the command line says.
absl::StatusOr<TraceReaderOptions> ReaderOptionsOf(const ReplayConfig& given);

// The trace of a configuration; without one the example workload.
absl::StatusOr<std::unique_ptr<TraceReader>> OpenReplayTrace(const ReplayConfig& config,
                                                             const TraceReaderOptions& options);

}  // namespace kvblocks::sim

#endif  // KVBLOCKS_SIM_COMMANDS_REPLAY_INPUT_H_
