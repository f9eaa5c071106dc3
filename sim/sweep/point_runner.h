// ResultLog: finished points, in memory and in a file that grows by one line of JSON per point.
//
// A line is written by one system call as soon as its point is finished, so that whatever ends the
// program, finished points stay. A last line without its end, as a machine that stops leaves it, is
// cut off when the file is opened. While a log is open, no other program opens it.
// Any thread may call Append; Find is for one thread at a time with it.

#ifndef KVBLOCKS_SIM_SWEEP_POINT_RUNNER_H_
#define KVBLOCKS_SIM_SWEEP_POINT_RUNNER_H_

#include <cstdint>
#include <memory>
#include <mutex>
#include <string>
#include <string_view>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "sim/commands/progress_line.h"
#include "sim/sweep/decoded_trace.h"
#include "sim/sweep/sweep.pb.h"
#include "sim/sweep/sweep_points.h"

namespace kvblocks::sim {

class ResultLog {
 public:
  // An empty path keeps results in memory only. `retry`: points that have a problem do not count as
  // finished. InvalidArgument names the line of a file that is no log.
  static absl::StatusOr<std::unique_ptr<ResultLog>> Open(const std::string& path, bool retry);
  ~ResultLog();
  ResultLog(const ResultLog&) = delete;
  ResultLog& operator=(const ResultLog&) = delete;

  // Null: not finished.
  const ::kvblocks::sweep::v1::PointResult* Find(const std::string& name) const;
  absl::Status Append(const ::kvblocks::sweep::v1::PointResult& result);

  int64_t num_read() const { return num_read_; }              // points that the file had
  int64_t num_torn_bytes() const { return num_torn_bytes_; }  // cut off at its end

 private:
  ResultLog() = default;
  absl::Status Read(const std::string& path, bool retry);

  int file_ = -1;
  std::string path_;
  mutable std::mutex mutex_;
  absl::flat_hash_map<std::string, std::unique_ptr<::kvblocks::sweep::v1::PointResult>> results_;
  int64_t num_read_ = 0;
  int64_t num_torn_bytes_ = 0;
};

// The results of a file, in its order. The last one of a name counts.
struct ResultLines {
  std::vector<std::unique_ptr<::kvblocks::sweep::v1::PointResult>> results;
  size_t whole_bytes = 0;  // behind them is an incomplete line
};
// Whatever the text. InvalidArgument names the line of `file` that is no result.
absl::StatusOr<ResultLines> ParseResultLines(std::string_view text, const std::string& file);

// The line of a point, with its line end.
absl::StatusOr<std::string> ResultLine(const ::kvblocks::sweep::v1::PointResult& result);

// PointRunner: replays points on several threads over shared traces, and never one that is
// finished.
//
// Always: a point's result is what `kvsim replay` reports with the same options, whatever the
// number of threads. A point without figures (options that contradict each other, a pool that
// admits nobody, a trace that cannot be read that way) says why and stops no other.

// One replay. Any number of threads may run points of the same traces.
::kvblocks::sweep::v1::PointResult RunPoint(const PlannedPoint& point, DecodedTraces* traces);

class PointRunner {
 public:
  // Nothing is owned. `num_threads` 0: as many as the machine has.
  PointRunner(DecodedTraces* traces, ResultLog* log, int num_threads, ProgressLine* progress);

  // The results of the points, in their order, of those that the log has from there. Longest first.
  // An error is that of writing results.
  absl::StatusOr<std::vector<::kvblocks::sweep::v1::PointResult>> Run(
      const std::vector<PlannedPoint>& points);

  int64_t num_run() const { return num_run_; }        // points replayed so far

 private:
  DecodedTraces* traces_;
  ResultLog* log_;
  int num_threads_;
  ProgressLine* progress_;
  int64_t num_run_ = 0;
};

}  // namespace kvblocks::sim

#endif  // KVBLOCKS_SIM_SWEEP_POINT_RUNNER_H_
