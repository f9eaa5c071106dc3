#include "sim/trace/trace_problem.h"

#include <algorithm>
#include <array>
#include <utility>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"

namespace kvblocks::sim {
namespace {

struct KindText {
  std::string_view name;
  std::string_view meaning;
};

constexpr std::array<KindText, kNumProblemKinds> kKinds = {{
    {"format", "no known format, or a header that does not fit it"},
    {"stream", "nothing more can be read from there on"},
    {"syntax", "a line that is not JSON, not CSV, or too long"},
    {"missing-field", "a field that must be there is not"},
    {"repeated-field", "one field twice, or under two names"},
    {"value", "a value of the wrong type or out of range"},
    {"length", "prompt or output length out of range"},
    {"content-ids", "too many or too few content ids for the prompt"},
    {"output-ids", "too many or too few output ids for the output"},
    {"block-size", "not the block size of the first row"},
    {"duplicate-id", "a request id that an earlier row has"},
    {"mixed-ids", "some rows have a request id, some do not"},
    {"dependency", "waits for an unknown, later or bad row, or for itself"},
    {"order", "a time before that of an earlier row"},
    {"id-parents", "a content id after two different ids"},
    {"id-tokens", "a content id with two token counts"},
    {"blank-line", "blank lines before the end of the file"},
    {"unknown-record", "records of a kind that this version does not know"},
    {"unknown-field", "fields that are not read"},
    {"empty-prompt", "prompts of no token, which engines reject"},
    {"zero-output", "requests without output (--zero-output)"},
}};

// Reads a number and the colon behind it off the front.
bool TakeNumber(std::string_view* text, int64_t* out) {
  const size_t colon = text->find(':');
  if (colon == std::string_view::npos || colon == 0 || colon > 18) return false;
  if (text->substr(0, colon).find_first_not_of("0123456789") != std::string_view::npos ||
      !absl::SimpleAtoi(View(text->substr(0, colon)), out)) {
    return false;
  }
  text->remove_prefix(colon + 1);
  return true;
}

bool TakePrefix(std::string_view* text, std::string_view prefix) {
  if (text->substr(0, prefix.size()) != prefix) return false;
  text->remove_prefix(prefix.size());
  return true;
}

// Where the last parenthesis that closes the text opens, or npos.
size_t HintBegin(std::string_view text) {
  if (text.empty() || text.back() != ')') return std::string_view::npos;
  int depth = 0;
  for (size_t i = text.size(); i-- > 0;) {
    if (text[i] == ')') ++depth;
    if (text[i] == '(' && --depth == 0) return i;
  }
  return std::string_view::npos;
}

}  // namespace

std::string_view SeverityName(ProblemSeverity severity) {
  constexpr std::array<std::string_view, 3> kNames = {"error", "warning", "note"};
  return kNames[static_cast<size_t>(severity)];
}

std::string_view ProblemKindName(ProblemKind kind) {
  return kKinds[static_cast<size_t>(kind)].name;
}

std::string_view ProblemKindMeaning(ProblemKind kind) {
  return kKinds[static_cast<size_t>(kind)].meaning;
}

std::string ProblemMessage(const std::string& file, const TraceProblem& problem) {
  return absl::StrCat(file, ":", problem.line,
                      problem.column > 0 ? absl::StrCat(":", problem.column) : "", ": ",
                      View(SeverityName(problem.severity)), ": ", problem.text);
}

bool ParseProblem(const std::string& file, const absl::Status& status, TraceProblem* out) {
  const absl::string_view message = status.message();
  std::string_view rest(message.data(), message.size());
  TraceProblem problem;
  if (!TakePrefix(&rest, file) || !TakePrefix(&rest, ":") || !TakeNumber(&rest, &problem.line)) {
    return false;
  }
  TakeNumber(&rest, &problem.column);
  if (!TakePrefix(&rest, " error: ")) return false;
  problem.text = std::string(rest);
  // Files of no known format are refused before anything is read.
  const bool is_format = status.code() == absl::StatusCode::kInvalidArgument ||
                         status.code() == absl::StatusCode::kUnimplemented;
  problem.kind = is_format ? ProblemKind::kFormat : ProblemKind::kStream;
  *out = std::move(problem);
  return true;
}

ProblemParts SplitProblem(std::string_view text) {
  constexpr std::string_view kGot = ": got ";
  constexpr std::string_view kExpected = ", expected ";
  ProblemParts parts;
  // The value may hold anything, also these words; the text around it is ours.
  const size_t got = text.find(kGot);
  const size_t expected = text.rfind(kExpected);
  if (got == std::string_view::npos || expected == std::string_view::npos || expected < got) {
    parts.what = std::string(text);
    return parts;
  }
  parts.what = std::string(text.substr(0, got));
  const size_t value = got + kGot.size();
  parts.got = std::string(text.substr(value, expected - std::min(value, expected)));
  std::string_view rest = text.substr(expected + kExpected.size());
  const size_t hint = HintBegin(rest);
  if (hint != std::string_view::npos && hint > 0) {
    parts.hint = std::string(rest.substr(hint + 1, rest.size() - hint - 2));
    rest = rest.substr(0, hint - 1);
  }
  parts.expected = std::string(rest);
  return parts;
}

}  // namespace kvblocks::sim
