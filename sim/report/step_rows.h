// StepRows: the observer that writes one CSV row per step, from which `kvsim compare` finds the
// first step at which two schedules part.
//
// Columns, in this order (times are exact milliseconds of simulated time):
//   step             from 0; steps that computed nothing have no row
//   start_ms         when it was scheduled
//   end_ms
//   tokens           = prefill_tokens + decode_tokens
//   prefill_tokens, decode_tokens
//   scheduled        requests
//   running, waiting, free_blocks
//                    when the step had been scheduled
//   preempted        since the row before, those of empty steps included
//   new_blocks       taken, over all groups
//   hit_tokens       that the requests which entered in it found in the prefix cache
//   replica          only of several
//   requests         only if asked for: ROW:TOKENS+BLOCK+BLOCK@GROUP of each scheduled request, in
//                    order (group 0 is not named), after -ROW of each preempted one
//   digest           64 bits of everything scheduled up to this step: rows, tokens, ids of new
//                    blocks, preempted rows. Times play no part.
// Two runs with equal digests at a step had equal schedules up to it. Rows of several replicas
// stand in the order in which the run came to them; steps, their order and digests are those of
// each replica alone.
//
// Cost: about 10 ns per scheduled request and 1 us per row, more if compressed. Memory: the
// steps in flight and one buffer.

#ifndef KVBLOCKS_SIM_REPORT_STEP_ROWS_H_
#define KVBLOCKS_SIM_REPORT_STEP_ROWS_H_

#include <cstdint>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "sim/engine/engine_observer.h"
#include "sim/report/comparison.pb.h"
#include "sim/report/request_rows.h"
#include "sim/trace/byte_source.h"
#include "sim/trace/line_reader.h"

namespace kvblocks::sim {

// The file of one replica's rows, or of several.
class StepFile : public BufferedSink {
 public:
  StepFile(std::unique_ptr<ByteSink> sink, bool with_requests, bool has_replicas = false)
      : BufferedSink(std::move(sink), Header(with_requests, has_replicas)),
        with_requests_(with_requests),
        has_replicas_(has_replicas) {}

  bool with_requests() const { return with_requests_; }
  bool has_replicas() const { return has_replicas_; }

  // With the line end.
  static std::string Header(bool with_requests, bool has_replicas = false);

 private:
  const bool with_requests_, has_replicas_;
};

class StepRows final : public EngineObserver {
 public:
  // `file` must outlive this. `replica`: its name in the column, if there is one.
  explicit StepRows(StepFile* file, std::string replica = "")
      : file_(*file), replica_(std::move(replica)) {}

  void OnPreemption(const PreemptionRecord& record, SimTime now) override;
  void OnStepScheduled(const StepRecord& step) override;
  void OnStepFinished(const StepRecord& step) override;

  uint64_t digest() const { return digest_; }

 private:
  // A step that has been scheduled and has no end yet.
  struct Row {
    int64_t step = 0;
    int64_t num_waiting = 0, num_running = 0, num_free = 0, num_preempted = 0, num_new_blocks = 0,
            num_hit_tokens = 0;
    uint64_t digest = 0;
    std::string requests;
  };

  void Describe(const ScheduledRecord& record, std::string* out) const;

  StepFile& file_;
  const std::string replica_;
  uint64_t digest_ = 0;
  std::vector<int64_t> preempted_;  // rows, since the last step that computed something
  std::vector<int64_t> words_;      // scratch: what goes into the digest
  std::deque<Row> in_flight_;
};

// StepReader: the rows of a step file (step_rows.h), read as a stream and as hostile input.
//
// Columns are found by name, so that a file with more of them can be read: `step` must come first
// and `digest` must be there. Always: every row has as many fields as the header, steps increase,
// digests are 16 hexadecimal digits. Everything else is text. Compression is unpacked on the way.
// Memory: one line, at most 16 MiB.
struct StepRow {
  int64_t line = 0;
  int64_t step = 0;
  uint64_t digest = 0;
  std::string_view replica;  // empty: the file is of one
  std::vector<std::string_view> fields;  // as in columns(); valid until the next call
};

class StepReader {
 public:
  // Whether a file that begins with `head` is one.
  static bool Recognises(std::string_view head);

  // Reads the header. `file` is for messages.
  static absl::StatusOr<std::unique_ptr<StepReader>> Create(std::unique_ptr<ByteSource> source,
                                                            const std::string& file);

  // False at the end. Errors: FILE:LINE: error: WHAT: got VALUE, expected EXPECTATION.
  absl::StatusOr<bool> Next(StepRow* row);

  const ByteSource& source() const { return lines_.source(); }
  const std::string& file() const { return file_; }
  const std::vector<std::string>& columns() const { return columns_; }

 private:
  StepReader(std::unique_ptr<ByteSource> source, const std::string& file);
  absl::Status ReadHeader();
  absl::StatusOr<bool> NextLine(Line* line);
  absl::Status Error(int64_t line, const std::string& text) const;

  const std::string file_;
  LineReader lines_;
  std::vector<std::string> columns_;
  size_t digest_column_ = 0;
  std::optional<size_t> replica_column_;
  std::map<std::string, int64_t, std::less<>> last_steps_;  // by replica
};

// CompareSteps: where two schedules part.
//
// Reads both files row by row and side by side. The schedules part at the first row whose digests
// differ, or at which one file has ended; everything before was scheduled alike, to the block. Rows
// may differ before that in other columns: in times, if the time models differ, and in what waits.
// Columns that only one file has are left out. Memory: one row of each file.

// Reads on from where the readers are: at their first rows. `progress` is called for every 256th
// step.
absl::StatusOr<::kvblocks::report::v1::ScheduleComparison> CompareSteps(
    StepReader& a, StepReader& b,
    const std::function<void(int64_t equal_steps)>& progress = nullptr);

}  // namespace kvblocks::sim

#endif  // KVBLOCKS_SIM_REPORT_STEP_ROWS_H_
