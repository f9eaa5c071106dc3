// What a replay can write for other tools to open: a timeline for Perfetto, and metrics for Prometheus.
//
//   exports.AddOptions(options, "Output");
//   exports.Open(setup, &metrics, &observers);             // before the run
//   exports.Close();                                       // after it

#ifndef KVBLOCKS_SIM_COMMANDS_REPLAY_EXPORTS_H_
#define KVBLOCKS_SIM_COMMANDS_REPLAY_EXPORTS_H_

#include <cstdint>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "kvblocks/sim/commands/option_parser.h"
#include "kvblocks/sim/commands/replay_setup.h"
#include "kvblocks/sim/report/request_row_list.h"
#include "kvblocks/sim/report/server_metrics.h"
#include "kvblocks/sim/report/timeline.h"
#include "kvblocks/sim/trace/byte_sink.h"

namespace kvblocks::sim {

// What a server's metrics say of a set-up.
ServerMetrics::Options ServerMetricsOf(const ReplaySetup& setup);

class ReplayExports {
 public:
  void AddOptions(OptionParser* options, const std::string& group);

  // Option and path of each that is asked for.
  std::vector<std::pair<const char*, std::string>> Outputs() const;
  // Whether the options go together.
  absl::Status Check() const;

  // Opens the files and adds what writes them to the measurements and the observers. This must
  // outlive the run.
  absl::Status Open(const ReplaySetup& setup, ReplayMetricsOptions* metrics,
                    std::vector<EngineObserver*>* observers);
  // Completes the files, and says on standard error what a limit left out.
  absl::Status Close();

 private:
  std::string perfetto_, metrics_, metrics_tick_;
  int64_t perfetto_limit_ = 0;  // MB; 0: not given
  int64_t metrics_epoch_ = -1;  // s; -1: not given

  std::unique_ptr<Timeline> timeline_;
  std::unique_ptr<ServerMetrics> server_;
  std::unique_ptr<ByteSink> metrics_sink_;
  RequestRowList rows_;
};

}  // namespace kvblocks::sim

#endif  // KVBLOCKS_SIM_COMMANDS_REPLAY_EXPORTS_H_
