// Random good traces have no error; with one fault somewhere, that fault is reported where it is.

#include <string>
#include <vector>

#include "gtest/gtest.h"
#include "rapidcheck/gtest.h"
#include "sim/trace/row_source.h"
#include "sim/trace/validation.h"

namespace kvblocks::sim {
namespace {

TraceValidation Validated(std::string content, const ValidationOptions& options = {}) {
  auto validation = ValidateTraceString(std::move(content), "t", options);
  RC_ASSERT(validation.ok());
  return *std::move(validation);
}

// Line by line: a header (azure) and rows in arrival order, all of them good.
std::vector<std::string> RandomLines(bool is_azure, std::vector<std::string>* ids) {
  std::vector<std::string> lines;
  if (is_azure) lines.push_back("TIMESTAMP,ContextTokens,GeneratedTokens");
  const int count = *rc::gen::inRange(1, 30);
  int64_t time = 0;
  for (int i = 0; i < count; ++i) {
    time += *rc::gen::inRange(0, 500);
    const int64_t input = *rc::gen::inRange(1, 200);
    const int64_t output = *rc::gen::inRange(1, 20);
    if (is_azure) {
      lines.push_back("2023-11-16 10:00:" + std::to_string(10 + time / 1000) + "." +
                      std::to_string(1000 + time % 1000).substr(1) + "," + std::to_string(input) +
                      "," + std::to_string(output));
      continue;
    }
    ids->push_back("r" + std::to_string(i));
    std::string row =
        "{\"request_id\": \"" + ids->back() + "\", \"timestamp\": " + std::to_string(time) +
        ", \"input_length\": " + std::to_string(input) +
        ", \"output_length\": " + std::to_string(output) + ", \"block_size\": 16, \"hash_ids\": [";
    for (int64_t k = 0; k < (input + 15) / 16; ++k) {
      row += (k > 0 ? ", " : "") + std::to_string(1000 * i + k);
    }
    row += "]";
    if (i > 0 && *rc::gen::inRange(0, 3) == 0) {
      row += ", \"wait_for\": [\"r" + std::to_string(*rc::gen::inRange(0, i)) + "\"]";
    }
    lines.push_back(row + "}");
  }
  return lines;
}

std::string Replaced(std::string text, const std::string& from, const std::string& to) {
  const size_t at = text.find(from);
  RC_ASSERT(at != std::string::npos);
  return text.replace(at, from.size(), to);
}

// Damages one row so that it must be an error.
std::string Damaged(const std::string& line, bool is_azure, bool is_first) {
  if (is_azure) {
    const size_t comma = line.rfind(',');
    switch (*rc::gen::inRange(0, 6)) {
      case 0:
        return line.substr(0, comma);
      case 1:
        return line + ",7";
      case 2:
        return line.substr(0, comma) + ",-3";
      case 3:
        return line.substr(0, comma) + ",2147483648";
      case 4:
        return "x" + line;
      default:
        return Replaced(line, "10:00", "24:00");
    }
  }
  switch (*rc::gen::inRange(0, 11)) {
    case 0:
      return line.substr(0, static_cast<size_t>(*rc::gen::inRange<size_t>(1, line.size())));
    case 1:
      return Replaced(line, "\"timestamp\": ", "\"timestamp\": -1");
    case 2:
      return Replaced(line, "\"hash_ids\": [", "\"hash_ids\": [1, 2, ");
    case 3:
      return Replaced(line, "\"input_length\"", "\"inputlength\"");
    case 4:
      return Replaced(line, "\"output_length\": ", "\"output_length\": 2147483647");
    case 5:
      // In the first row it would be the block size of the file.
      return Replaced(line, "\"block_size\": 16",
                      is_first ? "\"block_size\": -1" : "\"block_size\": 32");
    case 6:
      return Replaced(line, "}",
                      ", \"output_token_ids\": [" + std::string("1") + "]" +
                          std::string(", \"output_tokens\": 1}"));
    case 7:
      return Replaced(line, "{\"request_id\": \"",
                      "{\"wait_for\": [\"nobody\"], \"request_id\": \"x");
    case 8:
      return Replaced(line, "{", "{\"priority\": 1.5, ");
    case 9:
      return Replaced(line, "}", "} {}");
    default:
      return line + ",";
  }
}

RC_GTEST_PROP(ValidationProperty, AnInjectedFaultIsReportedAtItsLine, ()) {
  const bool is_azure = *rc::gen::arbitrary<bool>();
  std::vector<std::string> ids;
  std::vector<std::string> lines = RandomLines(is_azure, &ids);
  const auto file = [&] {
    std::string text;
    for (const std::string& line : lines) text += line + "\n";
    return text;
  };
  ValidationOptions options;
  options.reader.format = is_azure ? "azure" : "mooncake";
  RC_ASSERT(Validated(file(), options).num_errors() == 0);

  const size_t first = is_azure ? 1 : 0;
  const size_t at = *rc::gen::inRange<size_t>(first, lines.size());
  lines[at] = Damaged(lines[at], is_azure, at == first);
  const TraceValidation validation = Validated(file(), options);
  const int64_t line = static_cast<int64_t>(at) + 1;
  RC_ASSERT(validation.is_complete);
  bool is_reported = false;
  for (const TraceProblem& problem : validation.problems) {
    if (problem.severity != ProblemSeverity::kError) continue;
    if (problem.line == line) is_reported = true;
    // What waited for the bad row is bad, too, and nothing else is.
    RC_ASSERT(problem.line == line || problem.kind == ProblemKind::kDependency);
  }
  RC_ASSERT(is_reported);
  RC_ASSERT(validation.num_requests + validation.num_bad_rows == validation.num_rows);
}

// Native files end at the first record that cannot be decoded, and never before.
RC_GTEST_PROP(ValidationProperty, ATruncatedNativeFileIsReportedBehindItsLastRecord, ()) {
  const int count = *rc::gen::inRange(1, 20);
  std::string text = "header { version: 1 block_tokens: 0 }\n\n";
  for (int i = 0; i < count; ++i) {
    text += "request { id: " + std::to_string(i) +
            " arrival_delta_ns: 3 input_length: 4 "
            "output_length: 2 }\n\n";
  }
  std::string binary = *NativeTextToBinary(text, "t");
  RC_ASSERT(Validated(binary).num_errors() == 0);
  binary.resize(binary.size() - *rc::gen::inRange<size_t>(1, binary.size() - 12));
  const TraceValidation validation = Validated(binary);
  RC_ASSERT(validation.num_errors() == 1);
  RC_ASSERT(!validation.is_complete);
  const TraceProblem& problem = validation.problems.back();
  RC_ASSERT(problem.kind == ProblemKind::kStream || validation.info.format.empty());
  RC_ASSERT(problem.line >= validation.num_requests + 1);
  RC_ASSERT(problem.line <= validation.num_requests + 3);
}

}  // namespace
}  // namespace kvblocks::sim
