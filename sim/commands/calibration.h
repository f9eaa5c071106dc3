// Calibration: the few constants of a clock that make a replay take as long as a measured run did.
//
// A candidate is judged by a full replay: requests queue and share steps, so that no request can be
// judged alone. Half of the requests are fitted on (those at even positions), the others are held
// out; all of them are replayed. The fit minimises squared logarithms of replayed / measured: of
// the means of TTFT, TPOT and E2E, of the whole duration, and with a tenth of the weight of single
// requests. Nelder-Mead from the clock's own constants: the same input gives the same result.
//
// Cost: at most 80 replays per constant.

#ifndef KVBLOCKS_SIM_COMMANDS_CALIBRATION_H_
#define KVBLOCKS_SIM_COMMANDS_CALIBRATION_H_

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "sim/config.pb.h"
#include "sim/trace/measurement.h"
#include "sim/trace/trace_reader.h"

namespace kvblocks::sim {

using ::kvblocks::config::v1::ReplayConfig;

// Replayed / measured - 1, in per cent, over some of the requests; 0 where nothing was measured.
struct MetricError {
  std::string metric;      // "TTFT", "TPOT", "E2E", "duration"
  double measured_ms = 0;  // mean
  double mean_percent = 0, p50_percent = 0, p90_percent = 0, p99_percent = 0;
};

struct FittedConstant {
  std::string field;  // of ReplayConfig
  std::string before, after;
  // Change of the mean TTFT and TPOT and of the duration, in per cent, for 10 % more of it.
  double ttft_percent = 0, tpot_percent = 0, duration_percent = 0;
  bool is_identified = true;  // false: the run says next to nothing about it
};

struct CalibrationResult {
  ReplayConfig config;  // with the fitted constants
  std::string time_source;
  std::vector<FittedConstant> constants;
  std::vector<MetricError> before, fitted, held_out, all;
  int64_t num_fitted = 0, num_held_out = 0;
  int64_t num_replays = 0;
};

// Called after each replay, with the most that there may be.
using CalibrationProgress = std::function<void(int64_t num_replays, int64_t most)>;

// `fields` are names of constants; empty: those that the clock has. The trace of `config` is the
// workload; its rows are those of the measurement. InvalidArgument for a clock without constants,
// for a field that it does not have, or for rows that do not fit together.
absl::StatusOr<CalibrationResult> Calibrate(const ReplayConfig& config,
                                            const Measurement& measurement,
                                            const std::vector<std::string>& fields,
                                            const CalibrationProgress& progress = nullptr);

// A workload with the arrivals that a server saw: rows of trace and measurement belong together by
// position, and a client's timer is never as exact as its plan.

// Gives `reader` back as it is if the measurement has no starts, other rows, or starts in another
// order. The measurement must outlive the result.
std::unique_ptr<TraceReader> WithMeasuredArrivals(std::unique_ptr<TraceReader> reader,
                                                  const Measurement& measurement);

}  // namespace kvblocks::sim

#endif  // KVBLOCKS_SIM_COMMANDS_CALIBRATION_H_
