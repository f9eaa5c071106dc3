// TraceReader: requests of a trace file, in arrival order, from any supported format and
// compression.
//
//   absl::StatusOr<std::unique_ptr<TraceReader>> reader = OpenTrace("trace.jsonl.gz", {});
//   TraceRequest request;
//   while (true) {
//     absl::StatusOr<bool> more = (*reader)->Next(request);
//     if (!more.ok() || !*more) break;
//   }
//
// Always: arrival_ns never decreases; equal arrivals come in file order; what a request waits for
// was yielded before it, or was left out by the selection and is no longer in waits_for. Memory:
// rows may be out of order within TraceReaderOptions::reorder_window requests and reorder_bytes,
// which is also the most that a reader holds (one request, if the file says that it is sorted).
// Beyond that a dozen bytes per request for dependencies and, for files that name their requests or
// sessions, one table entry per name. Nothing else grows with the file. Errors: FILE:LINE[:COLUMN]:
// error: WHAT: got VALUE, expected EXPECTATION (hint). The first bad row ends the trace: Next reads
// on to the end to list up to max_errors of them and to count the rest, and returns all that as one
// InvalidArgument; afterwards it keeps returning it. With skip_bad_rows they are counted and listed
// instead. Single-threaded.

#ifndef KVBLOCKS_SIM_TRACE_TRACE_READER_H_
#define KVBLOCKS_SIM_TRACE_TRACE_READER_H_

#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "checks/status_macros.h"
#include "sim/trace/decimal.h"
#include "sim/trace/trace_problem.h"
#include "sim/trace/trace_request.h"

namespace kvblocks::sim {

// What kvsim convert --sort holds of a trace.
inline constexpr int64_t kMostSortedBytes = int64_t{1} << 30;
// About 100 bytes each.
inline constexpr int64_t kMostCheckedIds = int64_t{1} << 21;

struct TraceReaderOptions {
  std::string format = "auto";  // or one of TraceFormats()

  int64_t reorder_window = 65536;  // requests
  // Requests are handed out early, as if the window were smaller, when those held take more than
  // this: ids copied from other requests cost a file nothing.
  int64_t reorder_bytes = int64_t{1} << 28;
  bool require_sorted = false;     // a timestamp that goes backwards is an error
  bool skip_bad_rows = false;
  int max_errors = 20;
  // Keeps one table entry per content id, up to kMostCheckedIds, to report ids under two parents
  // and ids with two token counts. A warning says if there are more.
  bool check_ids = false;
  bool ids_are_unique = false;  // the same id under two parents is an error; implies check_ids
  // Gets every row and problem as it is found, also of problems beyond max_errors and of notes,
  // which are nowhere else; not of the one that ends the reading, which is a status. Not owned, and
  // must outlive the reader.
  TraceListener* listener = nullptr;

  // --- Of single formats; they have no effect on the others, where they are left as they are ---
  // Fields and the columns or paths they are read from, "input_length=prompt,arrival_s=ts": a CSV
  // or JSONL file of any other shape (field_map.h).
  std::string fields;
  // RAGPulse: components in the order of the prompt, and the folder of the files with their lengths
  // (empty: that of the trace).
  std::string rag_order = "sys_prompt,passages,history,web_search,user_input";
  std::string rag_lengths;
  // Contents of files that belong to a trace, by name, instead of those of the folder. Not owned.
  const std::map<std::string, std::string>* side_files = nullptr;
  // BurstGPT: only rows of this model, or of this log type; empty: all.
  std::string model_filter;
  std::string log_type;
  // Bailian, Dynamo: requests wait for those that the file says came before them.
  bool closed_loop = false;
  // Texts: bytes per pseudo-token, and which requests a ShareGPT conversation makes: its first-turn
  // unless benchmarks leave that out, first-turn-all, or every turn with its history: sessions.
  int64_t bytes_per_token = 4;
  std::string sharegpt = "first-turn";

  int zstd_window_log = 27;
  int64_t max_line_bytes = 64 << 20;  // of a text line or a native record
  int64_t trace_block_size = 0;       // overrides Bt of block-id formats; 0: as the file says

  // Requests with one common timestamp are spread evenly up to the next timestamp (the last ones
  // stay). All of them are held, up to reorder_bytes: more is an error.
  bool spread = false;
  // Selection, by the times in the file: start <= arrival < end, sessions whose hash falls under
  // `sample` (requests without a session: by row), then the first `limit` of these. Dependencies on
  // requests that are left out are dropped.
  std::optional<int64_t> start_ns;
  std::optional<int64_t> end_ns;
  Rational sample = {1, 1};
  std::optional<int64_t> limit;
  // Of what is then left: outputs get the content that a later prompt has in their place, where
  // that goes on from them by a guess (WithTurnLinks). Standard input and pipes cannot be
  // linked.
  bool link_turns = false;
  // Then the first arrival is shifted to 0, and arrivals are divided by the speed-up (rounded down
  // to 1 ns).
  bool rebase = false;
  Rational speedup = {1, 1};
};

struct TraceReaderCounters {
  int64_t rows = 0;                       // read, bad ones included
  int64_t bad_rows = 0;                   // skipped with skip_bad_rows
  int64_t not_selected = 0;               // left out by start, end, sample or limit
  int64_t backwards = 0;                  // timestamps smaller than that of the row before
  int64_t blank_lines = 0;                // other than at the end
  int64_t ids_with_two_parents = 0;       // with check_ids
  int64_t ids_with_two_token_counts = 0;  // with check_ids
  int64_t peak_held_requests = 0;         // in the reorder window
  int64_t peak_held_bytes = 0;            // of these, about
};

struct ReadProgress {
  int64_t bytes_read = 0;   // of the file as stored, compressed or not
  int64_t bytes_total = 0;  // 0: unknown (a pipe)
};

class TraceReader {
 public:
  virtual ~TraceReader() = default;

  // Fills `out` with the next request and returns true, or returns false at the end.
  virtual absl::StatusOr<bool> Next(TraceRequest& out) = 0;

  // Valid from the start; block_tokens never changes afterwards.
  virtual const TraceInfo& info() const = 0;
  virtual ReadProgress progress() const = 0;
  // Begins again at the first request. Standard input, pipes and devices cannot be restarted.
  virtual absl::Status Restart() = 0;

  virtual const TraceReaderCounters& counters() const = 0;
  // Complete messages, at most max_errors of them.
  virtual const std::vector<std::string>& warnings() const = 0;
  // Which variety of the format the rows read so far are of, in words; may be empty.
  virtual std::string dialect() const { return ""; }
};

// A reader that hands on what another one reads; what changes or watches requests derives from it.
class ForwardingReader : public TraceReader {
 public:
  explicit ForwardingReader(std::unique_ptr<TraceReader> reader) : reader_(std::move(reader)) {}

  absl::StatusOr<bool> Next(TraceRequest& out) override { return reader_->Next(out); }
  const TraceInfo& info() const override { return reader_->info(); }
  ReadProgress progress() const override { return reader_->progress(); }
  absl::Status Restart() override { return reader_->Restart(); }
  const TraceReaderCounters& counters() const override { return reader_->counters(); }
  const std::vector<std::string>& warnings() const override { return reader_->warnings(); }
  std::string dialect() const override { return reader_->dialect(); }

 private:
  const std::unique_ptr<TraceReader> reader_;
};

// Calls on_request(request), whose error ends the reading, for each request up to the end.
template <typename OnRequest>
absl::Status ForEachRequest(TraceReader& reader, OnRequest on_request) {
  TraceRequest request;
  while (true) {
    KVBLOCKS_ASSIGN_OR_RETURN(const bool more, reader.Next(request));
    if (!more) return absl::OkStatus();
    KVBLOCKS_RETURN_IF_ERROR(on_request(request));
  }
}

// Turn links (SM-47): a guess at which prompts go on from an earlier prompt and its output, for
// traces that have block ids and no sessions.
//
// A request goes on from an earlier one if its ids begin with all ids of full blocks of the other
// one's prompt, one at least, and it is at least as long as the other one's prompt and output. Of
// several earlier ones the longest such path counts, then the longest text; each goes on at most
// once. Then the earlier one's output, and the end of its prompt behind the last full block, are
// what the later prompt has at their place. Nothing is linked where somebody else shares that end
// of a prompt, since that would then be lost.
//
// Memory: about 100 bytes per request, and the ids of outputs. The trace is read three times.

// The note of a trace (TraceInfo) that says what linking did: how many were linked, and what an
// infinite cache hits with and without it.
inline constexpr const char* kTurnLinksNote = "turns_linked";

// Reads the trace, begins it anew, and gives it out linked. InvalidArgument for a trace without
// block ids, with sessions, or with contents of outputs.
absl::StatusOr<std::unique_ptr<TraceReader>> WithTurnLinks(std::unique_ptr<TraceReader> reader);

// About what a request takes in memory.
int64_t BytesOf(const TraceRequest& request);
// For those that hold many requests of a trace. ResourceExhausted if they take more than
// kMostSortedBytes and a multiple of what was read of the file: copied ids cost a file nothing.
absl::Status CheckHeldBytes(int64_t bytes, const TraceReader& reader);

// The names that TraceReaderOptions::format may have beside "auto", in the order of documentation.
const std::vector<std::string>& TraceFormats();

// Opens a trace; "-" is standard input. The first record decides the format, whatever the file's
// name.
absl::StatusOr<std::unique_ptr<TraceReader>> OpenTrace(const std::string& path,
                                                       const TraceReaderOptions& options);

// The same for content in memory; `name` stands for the file in messages.
absl::StatusOr<std::unique_ptr<TraceReader>> OpenTraceString(std::string content,
                                                             const std::string& name,
                                                             const TraceReaderOptions& options);

}  // namespace kvblocks::sim

#endif  // KVBLOCKS_SIM_TRACE_TRACE_READER_H_
