// ProgressLine: one line on standard error that says how far a command has come, at most ten times
// a second, and nothing at all unless standard error is a terminal.
//
// Programs that start kvsim set KVSIM_PROGRESS=json in its environment, and get a line of JSON each
// time instead: {"progress": "12 % read, ..."}. The environment, because it is about who listens
// and must not change what a configuration says.

#ifndef KVBLOCKS_SIM_COMMANDS_PROGRESS_LINE_H_
#define KVBLOCKS_SIM_COMMANDS_PROGRESS_LINE_H_

#include <chrono>
#include <cstdint>
#include <memory>
#include <string>

#include "sim/simulation.h"
#include "sim/trace/trace_reader.h"

namespace kvblocks::sim {

class ProgressLine {
 public:
  // `quiet`: never anything.
  explicit ProgressLine(bool quiet);
  ~ProgressLine();
  ProgressLine(const ProgressLine&) = delete;
  ProgressLine& operator=(const ProgressLine&) = delete;

  bool is_shown() const { return is_shown_; }
  void Update(const SimulationProgress& progress, int64_t hit_tokens, int64_t queried_tokens);
  void UpdateReading(const ReadProgress& read, int64_t num_rows, int64_t num_errors,
                     const std::string& noun = "rows");
  // "12 of 40 replays, 3.1/s, ETA 9 s"; with `all` 0, where no end is known, "12 batches, 3.1/s".
  void UpdateCount(int64_t done, int64_t all, const std::string& noun);
  // Of points of a sweep; `share` of the work is done.
  void UpdatePoints(int64_t num_done, int64_t num_points, int64_t num_problems, double share);
  // Wipes the line. REQUIRES: of all calls, one at a time.
  void Clear();

 private:
  using Clock = std::chrono::steady_clock;

  // Whether it is time for another line; then elapsed() is that of now.
  bool IsDue();
  double elapsed() const { return elapsed_; }
  void Show(const std::string& text);

  const bool is_json_;
  const bool is_shown_;
  bool is_dirty_ = false;
  Clock::time_point start_;
  Clock::time_point next_;
  double elapsed_ = 0;  // seconds
};

// `reader`, which shows how far it was read whenever it gives a request, and wipes the line at its
// end. `line` must outlive it.
std::unique_ptr<TraceReader> WithProgress(std::unique_ptr<TraceReader> reader, ProgressLine* line);

}  // namespace kvblocks::sim

#endif  // KVBLOCKS_SIM_COMMANDS_PROGRESS_LINE_H_
