// LineRows: what the readers of all text formats with one record per line share - numbering rows,
// reading up to the first good one, and lines that hold several requests or none.
//
// A reader derives from it, says in Parse what a line holds, and calls ReadAhead once when it is
// opened; from then on info() does not change any more. A line is good or bad as a whole: a bad one
// counts as one row. Memory: the requests of one line, and the lines before the first good one.

#ifndef KVBLOCKS_SIM_TRACE_LINE_ROWS_H_
#define KVBLOCKS_SIM_TRACE_LINE_ROWS_H_

#include <cstddef>
#include <cstdint>
#include <deque>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "checks/status_macros.h"
#include "sim/trace/json_fields.h"
#include "sim/trace/row_source.h"

namespace kvblocks::sim {

class LineRows : public RowSource {
 public:
  // `records`: other ones than the lines of the input.
  explicit LineRows(RowInput& input, std::unique_ptr<RowRecords> records = nullptr);

  // Reads up to the first good row, but not beyond kMostPending bad ones.
  absl::Status ReadAhead();

  absl::StatusOr<RowOutcome> Next(RawRow* row, std::vector<TraceProblem>* problems) final;
  const TraceInfo& info() const final { return info_; }
  ReadProgress progress() const final { return records_->progress(); }

 protected:
  static constexpr size_t kMostPending = 1000;

  // Appends the requests of a line to rows_, or what is wrong to problems_; neither means that the
  // line is none of ours, as headers are, and leaves it out. row_ has the line, and the row that
  // the first request will have; the others follow. What is set of row and line in rows_ does not
  // count.
  virtual void Parse(std::string_view text) = 0;

  // The first line that is not blank, before any row; false: the file has none. Not to be called
  // later.
  absl::StatusOr<bool> ReadHeader(Line* line);

  // Whether info_ may no longer change.
  bool is_settled() const { return is_settled_; }
  RowLog* log() const { return log_; }
  // In row_.
  void Bad(ProblemKind kind, std::string_view text) {
    problems_->push_back(RowProblem(kind, row_.request, text));
  }
  void AddRow() { rows_.push_back(std::move(row_)); }

  TraceInfo info_;
  // Of the line being read.
  RawRow row_;
  std::vector<RawRow> rows_;
  std::vector<TraceProblem>* problems_ = nullptr;

 private:
  struct Pending {
    absl::StatusOr<RowOutcome> outcome = RowOutcome::kEnd;
    RawRow row;
    std::vector<TraceProblem> problems;
  };
  absl::StatusOr<RowOutcome> NextParsed(RawRow* row, std::vector<TraceProblem>* problems);

  std::unique_ptr<RowRecords> records_;
  RowLog* log_;
  bool is_settled_ = false;
  int64_t next_row_ = 0;
  int64_t line_ = 0;
  size_t next_of_line_ = 0;
  std::deque<Pending> pending_;  // read, not returned
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

// Pseudo-tokens: token ids made of a text's bytes, where no tokenizer is at hand.
//
// Every run of `bytes_per_token` bytes is one token, the last one perhaps of fewer; a role and the
// end of a turn are one token each. So equal beginnings of texts give equal beginnings of tokens,
// and lengths are about those of a tokenizer. The ids are hashes of 32 bits, the same on every
// machine: two different runs have one id with a chance of 2^-32, and that matters only where two
// texts part.
class PseudoTokens {
 public:
  // REQUIRES: bytes_per_token >= 1.
  explicit PseudoTokens(int64_t bytes_per_token) : bytes_per_token_(bytes_per_token) {}

  int64_t NumberOf(std::string_view text) const;
  void AppendText(std::string_view text, std::vector<uint32_t>* tokens) const;
  static void AppendRole(std::string_view role, std::vector<uint32_t>* tokens);
  static void AppendEndOfTurn(std::vector<uint32_t>* tokens);

 private:
  int64_t bytes_per_token_;
};

// Dates and times of day: as texts, and as nanoseconds since midnight (UTC) of a trace's first day.
//
// absl::Time has quarters of a nanosecond, so all that formats write, at most 9 digits, is exact.

// YYYY-MM-DD hh:mm:ss with 0 to 9 fractional digits, an optional T, and an optional Z or +hh:mm.
absl::StatusOr<absl::Time> ParseAzureTimestamp(std::string_view text);
// The inverse, with 7 fractional digits, or 9 if they are needed.
std::string FormatAzureTimestamp(absl::Time time);
// Its day, "2023-11-16", as in the note "day_one".
std::string FormatDay(absl::Time time);

// The clock of a trace whose times are dates: they count from midnight of the first time's day,
// which is kept as the note "day_one" of the trace.
class DayClock {
 public:
  // Errors, without the field's name: a day before the first one, or 2^63 ns and more after it.
  // `text` is how the time stands in the file.
  absl::Status Since(absl::Time time, std::string_view text,
                     std::map<std::string, std::string>* notes, int64_t* ns);

 private:
  std::optional<absl::Time> day_one_;
};

// What most Make...Reader functions do.
template <typename Reader, typename... Args>
OpenedRows OpenLineRows(RowInput& input, Args&&... args) {
  auto reader = std::make_unique<Reader>(input, std::forward<Args>(args)...);
  KVBLOCKS_RETURN_IF_ERROR(reader->ReadAhead());
  return reader;
}

}  // namespace kvblocks::sim

#endif  // KVBLOCKS_SIM_TRACE_LINE_ROWS_H_
