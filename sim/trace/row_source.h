// RowSource: the rows of one trace file in file order. Every format implements it; TraceReader puts
// the common checks, the reorder window and the selection on top.
//
// A row that cannot be used is an outcome, not a status: the caller decides whether bad rows end
// the trace. A status means that nothing more can be read (a truncated stream, a record that cannot
// be decoded).

#ifndef KVBLOCKS_SIM_TRACE_ROW_SOURCE_H_
#define KVBLOCKS_SIM_TRACE_ROW_SOURCE_H_

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/statusor.h"
#include "sim/trace/line_reader.h"
#include "sim/trace/trace_problem.h"
#include "sim/trace/trace_reader.h"
#include "sim/trace/trace_request.h"

namespace kvblocks::sim {

struct RawRow {
  // Row is set; id is empty if the file gives none; waits_for may be set (native).
  TraceRequest request;
  bool has_timestamp = true;
  int64_t timestamp_ns = 0;
  std::vector<std::string> wait_names;  // request ids
  bool waits_for_session = false;       // for the row before it in the session, if there is one
  bool has_turn = false;                // otherwise counted within the session
};

enum class RowOutcome { kRow, kBad, kEnd };

class RowSource {
 public:
  virtual ~RowSource() = default;
  // kBad: at least one error is appended to `problems`.
  virtual absl::StatusOr<RowOutcome> Next(RawRow* row, std::vector<TraceProblem>* problems) = 0;
  virtual const TraceInfo& info() const = 0;
  virtual std::string dialect() const { return ""; }
  virtual ReadProgress progress() const = 0;
};

// What a source needs to report, shared with the reader above it.
struct RowLog {
  std::string file;
  int max_warnings = 20;
  TraceListener* listener = nullptr;
  TraceReaderCounters counters;
  std::vector<std::string> warnings;

  // Lists a warning and notifies the listener.
  void Warn(ProblemKind kind, int64_t line, std::string_view text);
  void Warn(const TraceProblem& problem);
  // The same for a listener alone; `text` is called only if it is kept.
  template <typename Text>
  void Note(ProblemSeverity severity, ProblemKind kind, const TraceRequest& request,
            Text text) const;
  // Notifies the listener alone, if there is one.
  void Notify(const TraceProblem& problem) const {
    if (listener != nullptr) listener->OnProblem(problem);
  }
};

// In a row that came as far as `request` says.
TraceProblem RowProblem(ProblemKind kind, const TraceRequest& request, std::string_view text,
                        ProblemSeverity severity = ProblemSeverity::kError);

template <typename Text>
void RowLog::Note(ProblemSeverity severity, ProblemKind kind, const TraceRequest& request,
                  Text text) const {
  if (listener == nullptr) return;
  const bool is_kept = listener->KeepsText(severity, kind);
  listener->OnProblem(RowProblem(kind, request, is_kept ? text() : std::string(), severity));
}

// FILE:LINE: error: TEXT, with TEXT = WHAT: got VALUE, expected EXPECTATION (hint).
std::string RowError(const RowLog& log, int64_t line, std::string_view text);
std::string RowError(const RowLog& log, int64_t line, int64_t column, std::string_view text);
// What a damaged or truncated stream becomes: the same form plus the last good line or record.
absl::Status StreamError(const RowLog& log, const absl::Status& status, std::string_view unit,
                         int64_t last_good);

// The errors of a file as one status: up to `most` messages, and how many more there are.
class ErrorList {
 public:
  explicit ErrorList(int most) : most_(most) {}

  // The first one is listed, whatever `most`, and so is the last of all.
  void Add(std::string message, bool is_last = false);
  bool empty() const { return messages_.empty(); }
  absl::Status status() const;  // of at least one

 private:
  int64_t most_;
  int64_t num_ = 0;
  std::vector<std::string> messages_;
};

// The file's name without its folders: what a trace is called if it does not say itself.
std::string NameOfFile(const RowLog& log);

// At most 60 characters of a value, quoted, with unprintable bytes escaped.
std::string Shown(std::string_view value);

// The trace formats that can be read: their names, their readers, and which options are theirs
// alone. What a format means is said where its reader is.

using OpenedRows = absl::StatusOr<std::unique_ptr<RowSource>>;

// What a reader makes rows of; it takes the source. The log must outlive it.
struct RowInput {
  std::unique_ptr<ByteSource> source;
  const TraceReaderOptions& options;
  RowLog* log;
  std::string format = {};  // one of TraceFormats()
};
using MakeReader = OpenedRows(RowInput& input);

// Of any format; another one is an error, and so is an option of a format that this is not.
MakeReader MakeReaderOfFormat;

// Of native traces (trace.proto): the binary form, and its text form for tests and cases written by
// hand: one Record in protobuf text format per block, blocks separated by blank lines. The footer
// may be left out, and the whole text is held.
//
// Whatever the bytes, reading ends with requests, with a message that names the record and its byte
// offset, or both. A file without footer is truncated; a footer that does not fit the records is
// damage. Unknown fields of requests and of the header travel along and are written again.
//
// Memory: one record (at most max_line_bytes) and the copy window (see record_stream.h), which the
// file may ask to be at most 2^20 requests and 2^25 ids.
MakeReader MakeNativeReader, MakeNativeTextReader;
absl::StatusOr<std::string> NativeTextToBinary(std::string_view text, const std::string& file);

// Of block ids or hashes.
MakeReader MakeMooncakeReader, MakeBailianReader, MakeDynamoReader, MakeCodingSessionReader,
    MakeRagPulseReader;
// Of conversations of which lengths are known.
MakeReader MakeLlmServingSimReader, MakeAppliedComputeReader, MakeTraceLabReader;
// Of texts.
MakeReader MakeShareGptReader;
// Of columns that --fields or a preset names (field_map.h).
MakeReader MakeFieldMapReader, MakePresetReader;
// Of measurements, as workloads (measurement.h).
MakeReader MakeMeasurementReader;
// Of a workload in place of a trace: its requests as they are made.
MakeReader MakeWorkloadReader;

// Which of TraceFormats() a file has, from its first record; its name plays no part. `head` is the
// file's begin: at least the whole first line that is not blank, unless that is longer than the
// caller cares to look at or begins with a bracket. Parquet is recognised and refused. `file` is
// for messages.
absl::StatusOr<std::string> DetectFormat(std::string head, const std::string& file);
// Reads the head for DetectFormat (about `max_bytes` at most) and returns it; afterwards *source
// delivers everything from the first byte again.
absl::StatusOr<std::string> PeekHead(std::unique_ptr<ByteSource>* source, size_t max_bytes);
absl::StatusOr<std::string> PeekHead(RowInput& input);

// The records of a text format, one after the other, with LineReader's padding.
class RowRecords {
 public:
  virtual ~RowRecords() = default;
  // kBad: `problem` says why the record cannot be had.
  virtual absl::StatusOr<RowOutcome> Next(Line* line, TraceProblem* problem) = 0;
  virtual ReadProgress progress() const = 0;
};

// The lines of a text format: skips blank lines (a warning unless they end the file) and reports
// lines that are too long.
class RowLines : public RowRecords {
 public:
  explicit RowLines(RowInput& input);

  absl::StatusOr<RowOutcome> Next(Line* line, TraceProblem* problem) override;
  ReadProgress progress() const override;

 private:
  LineReader reader_;
  int64_t max_line_bytes_;
  RowLog* log_;
  int64_t first_blank_ = 0;
  int64_t num_blank_ = 0;
};

// The most tokens that one record may become where every one of them has an id.
inline constexpr int64_t kMostTokenIds = int64_t{1} << 24;

}  // namespace kvblocks::sim

#endif  // KVBLOCKS_SIM_TRACE_ROW_SOURCE_H_
