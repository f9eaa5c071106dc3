// LineRows: what the readers of all text formats with one record per line share - numbering rows,
// reading ahead to the first good one, and lines that hold several requests or none.
//
// A reader derives from it, says in Parse what a line holds, and calls ReadAhead once when it is
// opened; from then on info() does not change any more. A line is good or bad as a whole: a bad one
// counts as one row. Memory: the requests of one line, and the lines before the first good one.

#ifndef KVBLOCKS_SIM_TRACE_LINE_ROWS_H_
#define KVBLOCKS_SIM_TRACE_LINE_ROWS_H_

#include <cstddef>
#include <cstdint>
#include <deque>
#include <memory>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "kvblocks/sim/trace/json_values.h"
#include "kvblocks/sim/trace/row_source.h"

namespace kvblocks::sim {

class LineRows : public RowSource {
 public:
  LineRows(std::unique_ptr<ByteSource> source, const TraceReaderOptions& options, RowLog* log,
           std::string_view format);
  // For records that are not lines.
  LineRows(std::unique_ptr<RowRecords> records, RowLog* log, std::string_view format);

  // Reads up to the first good row, but not beyond kMostPending bad ones.
  absl::Status ReadAhead();

  absl::StatusOr<RowOutcome> Next(RawRow* row, std::vector<TraceProblem>* problems) final;
  const TraceInfo& info() const final { return info_; }
  ReadProgress progress() const final { return records_->progress(); }

 protected:
  static constexpr size_t kMostPending = 1000;

  // Appends the requests of a line to `rows`, or what is wrong to `problems`; neither means that
  // the line is none of ours, as headers are, and leaves it out. `at` has the line, and the row
  // that the first request will have; the others follow. What is set of row and line in `rows` does
  // not count.
  virtual void Parse(std::string_view text, RawRow&& at, std::vector<RawRow>* rows,
                     std::vector<TraceProblem>* problems) = 0;

  // The first line that is not blank, before any row; false: the file has none. Not to be called
  // later.
  absl::StatusOr<bool> ReadHeader(Line* line);

  // Whether info_ may no longer change.
  bool is_settled() const { return is_settled_; }
  RowLog* log() const { return log_; }

  TraceInfo info_;

 private:
  struct Pending {
    absl::StatusOr<RowOutcome> outcome = RowOutcome::kEnd;
    RawRow row;
    std::vector<TraceProblem> problems;
  };
  absl::StatusOr<RowOutcome> NextParsed(RawRow* row, std::vector<TraceProblem>* problems);
  void Take(RawRow* row);

  std::unique_ptr<RowRecords> records_;
  RowLog* log_;
  bool is_settled_ = false;
  int64_t next_row_ = 0;
  int64_t line_ = 0;
  std::vector<RawRow> rows_;  // of the last line
  size_t next_of_line_ = 0;
  std::deque<Pending> pending_;  // read ahead
};

// The numbers by which sessions go whose names a trace gives.
//
// Positive integers are kept if the first session of the file is one; names are then numbered from
// 2^63 on, otherwise from 1, by first appearance. Memory: one table entry per name.
class SessionNumbers {
 public:
  uint64_t NumberOf(const JsonId& id);

 private:
  bool decided_ = false;
  bool keep_integers_ = false;
  uint64_t next_ = 1;
  absl::flat_hash_map<std::string, uint64_t> numbers_;
};

// The first good row of a file decides how many tokens its content ids stand for, and the others
// must agree, unless the size was given from outside.
class BlockSizeRule {
 public:
  // `given`: from outside; 0: the file decides. `initial` is the size until then.
  BlockSizeRule(int64_t given, int64_t initial, TraceInfo* info);

  // A row that is good so far (`is_good`) says `tokens`. `is_settled`: info may not change any
  // more. Empty, or what is wrong.
  std::string Check(int64_t tokens, std::string_view field, bool is_good, bool is_settled,
                    TraceInfo* info);

 private:
  bool is_fixed_;
  bool is_decided_ = false;
};

// Conversations of which only lengths are known: every turn's prompt begins with the whole of the
// turn before, prompt and output.
//
// Their content needs no ids from the file: block i of a conversation has the id i, and ids hold
// within one session. A prompt that ends within a block shares the block's first tokens with the
// longer prompt of a later turn (see content_keys.h), so what turns share is exact to the token,
// whatever the size of a block: it only decides how many ids there are.
inline constexpr int64_t kConversationBlockTokens = 512;
// What a trace of conversations is.
void SetConversationInfo(TraceInfo* info);
// The content of a turn whose lengths are set. REQUIRES: lengths from 0 to kMaxTraceLength.
void SetConversationContent(TraceRequest* request);

// What most Make...Reader functions do.
template <typename Reader, typename... Args>
absl::StatusOr<std::unique_ptr<RowSource>> OpenLineRows(Args&&... args) {
  auto reader = std::make_unique<Reader>(std::forward<Args>(args)...);
  if (absl::Status status = reader->ReadAhead(); !status.ok()) return status;
  return std::unique_ptr<RowSource>(std::move(reader));
}

}  // namespace kvblocks::sim

#endif  // KVBLOCKS_SIM_TRACE_LINE_ROWS_H_
