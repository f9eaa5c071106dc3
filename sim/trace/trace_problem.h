// TraceProblem: one thing that is wrong with a trace or worth knowing about it, and where it
// stands.
//
// Readers make them: errors become the messages of a failed read, warnings are listed beside it,
// and a TraceListener (TraceReaderOptions::listener) hears of every single one. The text has
// the form of all messages about traces, WHAT: got VALUE, expected EXPECTATION (hint), from which
// SplitProblem takes the parts.

#ifndef KVBLOCKS_SIM_TRACE_TRACE_PROBLEM_H_
#define KVBLOCKS_SIM_TRACE_TRACE_PROBLEM_H_

#include <cstdint>
#include <string>
#include <string_view>

#include "absl/status/status.h"
#include "absl/strings/string_view.h"

namespace kvblocks::sim {

// Text as Abseil's functions take it. Where Abseil was built before C++17, its string_view is a
// type of its own.
inline absl::string_view View(std::string_view text) { return {text.data(), text.size()}; }

// Errors make a row or a file unusable, warnings are probably mistakes, notes are neither.
enum class ProblemSeverity { kError, kWarning, kNote };

// In the order in which they are listed.
enum class ProblemKind {
  kFormat,         // no known format, or a header that does not fit it
  kStream,         // nothing more can be read: truncated or damaged
  kSyntax,         // a line that is not JSON, not as many CSV fields, or too long
  kMissingField,   // a field that must be there
  kRepeatedField,  // one field twice, or under two names
  kValue,          // a value of the wrong type or out of range
  kLength,         // prompt and output length, and their sum
  kContentIds,     // as many content ids as do not fit the prompt
  kOutputIds,      // as many output ids as do not fit the output
  kBlockSize,      // not that of the first row
  kDuplicateId,    // a request id that an earlier row has
  kMixedIds,       // some rows have a request id and some do not
  kDependency,     // on an unknown, later or bad row, or on itself
  kOrder,          // earlier than the row before, or too late
  kIdParents,      // a content id after two different ids
  kIdTokens,       // a content id with two token counts
  kBlankLine,      // before the end of the file
  kUnknownRecord,  // a kind of record that this version does not know
  kUnknownField,   // a field that is not read
  kEmptyPrompt,
  kZeroOutput,
};
inline constexpr int kNumProblemKinds = static_cast<int>(ProblemKind::kZeroOutput) + 1;

std::string_view SeverityName(ProblemSeverity severity);  // "error", "warning", "note"
std::string_view ProblemKindName(ProblemKind kind);       // "missing-field"
std::string_view ProblemKindMeaning(ProblemKind kind);    // a few words for a table

struct TraceProblem {
  ProblemSeverity severity = ProblemSeverity::kError;
  ProblemKind kind = ProblemKind::kValue;
  int64_t line = 0;    // physical line or, in native files, record, from 1; 0: the whole file
  int64_t column = 0;  // from 1; 0: unknown
  int64_t row = -1;    // submission index; -1: not in a row
  std::string id;      // of the request, if the row came that far
  std::string text;    // WHAT: got VALUE, expected EXPECTATION (hint)
};

// FILE:LINE[:COLUMN]: error: TEXT.
std::string ProblemMessage(const std::string& file, const TraceProblem& problem);

// The inverse, for the status with which reading `file` ended: false if its message does not have
// that form, which means that it is not about the content of the file.
bool ParseProblem(const std::string& file, const absl::Status& status, TraceProblem* out);

struct ProblemParts {
  std::string what, got, expected, hint;  // empty if the text has no such part
};
ProblemParts SplitProblem(std::string_view text);

struct TraceRequest;

// Hears of all that a reader finds, in file order.
class TraceListener {
 public:
  virtual ~TraceListener() = default;
  virtual void OnProblem(const TraceProblem& problem) = 0;
  // Whether the text of the next such problem matters. Of notes, which a short file may have by the
  // hundred thousand, it is left empty otherwise.
  virtual bool KeepsText(ProblemSeverity severity, ProblemKind kind) const {
    (void)severity, (void)kind;
    return true;
  }
  // A row that passed all checks.
  virtual void OnGoodRow(const TraceRequest& request) { (void)request; }
};

}  // namespace kvblocks::sim

#endif  // KVBLOCKS_SIM_TRACE_TRACE_PROBLEM_H_
