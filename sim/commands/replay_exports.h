// What a replay of one engine or of several can write for other tools to open: its steps for kvsim
// compare, a timeline for Perfetto, and metrics for Prometheus.
//
//   exports.AddOptions(options);
//   exports.Open({"0", "1"});                           // before the run: names of the replicas
//   exports.Attach(0, setup, &metrics, &observers);     // for each of them
//   exports.Close();                                    // after the run
//
// Replicas that write into one file run in one thread.

#ifndef KVBLOCKS_SIM_COMMANDS_REPLAY_EXPORTS_H_
#define KVBLOCKS_SIM_COMMANDS_REPLAY_EXPORTS_H_

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "sim/commands/option_parser.h"
#include "sim/commands/replay_setup.h"
#include "sim/report/request_rows.h"
#include "sim/report/server_metrics.h"
#include "sim/report/step_rows.h"
#include "sim/report/timeline.h"
#include "sim/trace/byte_sink.h"

namespace kvblocks::sim {

// What a server's metrics say of a set-up.
ServerMetrics::Options ServerMetricsOf(const ReplaySetup& setup);

class ReplayExports {
 public:
  void AddOptions(OptionParser* options);
  bool is_asked_for() const;
  // Whether the options go together.
  absl::Status Check() const;

  // Opens the files. This must outlive the run. One replica is not named in them.
  absl::Status Open(const std::vector<std::string>& replicas = {"0"});
  // Adds what writes them to a replica's measurements and observers. REQUIRES: open.
  void Attach(size_t replica, const ReplaySetup& setup, ReplayMetricsOptions* metrics,
              std::vector<EngineObserver*>* observers);
  // Completes the files, and says on standard error what a limit left out.
  absl::Status Close();

 private:
  std::string steps_, perfetto_, metrics_, metrics_tick_;
  bool step_requests_ = false;
  int64_t perfetto_limit_ = 0;  // MB; 0: not given
  int64_t metrics_epoch_ = -1;  // s; -1: not given

  // What writes of one replica; null: not asked for.
  struct Writers {
    std::string name;
    std::unique_ptr<StepRows> steps;
    std::unique_ptr<Timeline> timeline;
    std::unique_ptr<ServerMetrics> server;
    RequestRowList rows;
  };
  std::unique_ptr<StepFile> step_file_;
  std::unique_ptr<TimelineFile> timeline_file_;
  std::unique_ptr<ByteSink> metrics_sink_;
  std::vector<Writers> replicas_;
};

}  // namespace kvblocks::sim

#endif  // KVBLOCKS_SIM_COMMANDS_REPLAY_EXPORTS_H_
