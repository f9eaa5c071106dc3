// What sweep and capacity have in common: the options of the search beside those of a replay,
// where results are kept, and who runs the points.

#ifndef KVBLOCKS_SIM_SWEEP_SEARCH_COMMAND_H_
#define KVBLOCKS_SIM_SWEEP_SEARCH_COMMAND_H_

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "google/protobuf/message.h"
#include "sim/commands/commands.h"
#include "sim/commands/progress_line.h"
#include "sim/commands/report_output.h"
#include "sim/sweep/point_runner.h"

namespace kvblocks::sim {

class SearchOptions {
 public:
  // `options` and this must outlive the parse.
  void AddRunOptions(OptionParser* options);
  void AddOutputOptions(OptionParser* options, const ReportOutput::Files& files);

  // Opens the results, of `default_file` if none is named; empty: results are not kept. Says on
  // standard error what was found there.
  absl::Status Open(const std::string& command, const std::string& default_file);
  PointRunner& runner() { return *runner_; }
  DecodedTraces& traces() { return traces_; }
  ContentHashes& hashes() { return hashes_; }

  // Outputs that contradict each other, or would overwrite an input: see ReportOutput::Check.
  // Before Open.
  absl::Status CheckOutputs(const std::vector<RunFile>& others);
  // Warnings of traces, then the report. Then `done`, or that it could not be written.
  ExitStatus Print(const std::string& command, const google::protobuf::Message& report,
                   const ReportOutput::Texts& texts, ExitStatus done);

  bool quiet() const { return output_.quiet(); }
  bool keeps_results() const { return !results_.empty() || retry_; }
  const std::string& csv() const { return output_.csv(); }

 private:
  ReportOutput output_;
  std::string results_;
  int64_t threads_ = 0;
  bool retry_ = false;

  ContentHashes hashes_;
  DecodedTraces traces_;
  std::unique_ptr<ResultLog> log_;
  std::unique_ptr<ProgressLine> progress_;
  std::unique_ptr<PointRunner> runner_;
};

}  // namespace kvblocks::sim

#endif  // KVBLOCKS_SIM_SWEEP_SEARCH_COMMAND_H_
