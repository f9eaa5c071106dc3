// What sweep, tune and capacity have in common: the options of the search beside those of a replay,
// where results are kept, and who runs the points.

#ifndef KVBLOCKS_SIM_SWEEP_SEARCH_COMMAND_H_
#define KVBLOCKS_SIM_SWEEP_SEARCH_COMMAND_H_

#include <cstdint>
#include <memory>
#include <string>

#include "absl/status/status.h"
#include "google/protobuf/message.h"
#include "kvblocks/sim/commands/exit_status.h"
#include "kvblocks/sim/commands/option_parser.h"
#include "kvblocks/sim/commands/progress_line.h"
#include "kvblocks/sim/sweep/point_runner.h"

namespace kvblocks::sim {

class SearchOptions {
 public:
  // `options` and this must outlive the parse.
  void AddRunOptions(OptionParser* options);
  void AddOutputOptions(OptionParser* options);

  // Opens the results, of `default_file` if none is named; empty: results are not kept. Says on
  // standard error what was found there.
  absl::Status Open(const std::string& command, const std::string& default_file);
  PointRunner& runner() { return *runner_; }
  DecodedTraces& traces() { return traces_; }
  ContentHashes& hashes() { return hashes_; }

  // Outputs that contradict each other, or would overwrite an input.
  absl::Status CheckOutputs(const std::string& trace, const std::string& csv,
                            const std::string& html) const;
  // Warnings of traces, then JSON where asked for, and the table where nothing else has standard
  // output. Then `done`, or that it could not be written.
  ExitStatus Print(const std::string& command, const google::protobuf::Message& report,
                   const std::string& table, bool is_taken, ExitStatus done);

  bool quiet() const { return quiet_; }
  bool color() const;

 private:
  std::string results_, json_file_;
  std::string color_ = "auto";
  int64_t threads_ = 0;
  bool retry_ = false, json_ = false, quiet_ = false;

  ContentHashes hashes_;
  DecodedTraces traces_;
  std::unique_ptr<ResultLog> log_;
  std::unique_ptr<ProgressLine> progress_;
  std::unique_ptr<PointRunner> runner_;
};

}  // namespace kvblocks::sim

#endif  // KVBLOCKS_SIM_SWEEP_SEARCH_COMMAND_H_
