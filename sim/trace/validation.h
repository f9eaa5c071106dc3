// ValidateTrace: everything that is wrong with a trace file, found in one pass.
//
// A validation is a read that skips bad rows and listens: all rules are those of the readers and
// RowChecker, so what is clean here replays, and what a replay refuses is listed here. Problems
// that end the reading (a truncated archive, a record that cannot be decoded) are listed last;
// `is_complete` is then false and the facts are those of the rows before.
//
// Memory: that of a reader that checks content ids (one table entry per id), plus max_messages
// problems of each kind. The counts are of all.

#ifndef KVBLOCKS_SIM_TRACE_VALIDATION_H_
#define KVBLOCKS_SIM_TRACE_VALIDATION_H_

#include <array>
#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "sim/trace/trace_problem.h"
#include "sim/trace/trace_reader.h"

namespace kvblocks::sim {

inline constexpr int kNumSeverities = 3;

struct ValidationOptions {
  TraceReaderOptions reader;
  int64_t max_messages = 20;  // of each kind and severity
  // Called now and then with what was found so far.
  std::function<void(const ReadProgress&, int64_t num_rows, int64_t num_errors)> progress;
};

struct ProblemCount {
  ProblemSeverity severity = ProblemSeverity::kError;
  ProblemKind kind = ProblemKind::kValue;
  int64_t count = 0;
  int64_t first_line = 0;
};

struct TraceValidation {
  std::string file;
  bool is_complete = false;  // read to its end
  TraceInfo info;            // format is empty if no reader could be found
  std::string dialect;

  int64_t num_rows = 0;  // bad ones included
  int64_t num_bad_rows = 0;
  int64_t num_requests = 0;  // good ones
  int64_t input_tokens = 0;
  int64_t output_tokens = 0;
  int64_t max_input = 0;
  int64_t max_output = 0;
  int64_t first_arrival_ns = 0;
  int64_t last_arrival_ns = 0;
  int64_t num_backwards = 0;  // good rows with a time before that of the good row before
  int64_t num_sessions = 0;
  int64_t num_waiting = 0;  // requests that wait for others
  int64_t content_ids = 0;  // of all prompts

  std::array<int64_t, kNumSeverities> totals = {};
  std::vector<ProblemCount> counts;    // errors first, then by kind; only those that occur
  std::vector<TraceProblem> problems;  // as they were found; at most max_messages of each count

  int64_t num_errors() const { return totals[static_cast<size_t>(ProblemSeverity::kError)]; }
  int64_t num_warnings() const { return totals[static_cast<size_t>(ProblemSeverity::kWarning)]; }
  int64_t num_notes() const { return totals[static_cast<size_t>(ProblemSeverity::kNote)]; }
};

// A status only if there is no file to look at, or an option makes no sense. "-" is standard input.
absl::StatusOr<TraceValidation> ValidateTrace(const std::string& path,
                                              const ValidationOptions& options);

// The same for content in memory; `name` stands for the file in messages.
absl::StatusOr<TraceValidation> ValidateTraceString(std::string content, const std::string& name,
                                                    const ValidationOptions& options);

}  // namespace kvblocks::sim

#endif  // KVBLOCKS_SIM_TRACE_VALIDATION_H_
