// CodingSessionParser: one session of a coding agent, from its JSON document to checked values. The
// format is described in coding_session_reader.cc.
//
// Always: what Parse accepts has all fields that its kind of entry needs, lengths whose sum is one,
// and times that are not negative; whether the number of ids fits is the reader's to say, who knows
// the block size. At most kMostSessionProblems are reported per session. Cost: one pass over the
// text. Memory: what the session holds, at most about four times its text. Single-threaded.

#ifndef KVBLOCKS_SIM_TRACE_CODING_SESSION_PARSER_H_
#define KVBLOCKS_SIM_TRACE_CODING_SESSION_PARSER_H_

#include <cstddef>
#include <cstdint>
#include <deque>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/status.h"
#include "kvblocks/sim/trace/json_fields.h"
#include "kvblocks/sim/trace/row_source.h"

namespace kvblocks::sim {

inline constexpr int64_t kCodingBlockTokens = 64;
// Sub-agents of sub-agents.
inline constexpr int kMostNestedAgents = 8;
// A document of many megabytes could have millions.
inline constexpr size_t kMostSessionProblems = 20;

// An element of `requests`: a request, or a sub-agent with requests of its own.
struct CodingEntry {
  bool is_agent = false;
  int64_t t_ns = 0;  // since the list's start
  int64_t api_ns = 0;
  int64_t think_ns = -1;  // -1: not told
  int64_t input = 0;
  int64_t output = 0;
  std::vector<int64_t> ids;
  std::vector<CodingEntry> nested;
};

struct CodingSession {
  std::string id;
  int64_t block_tokens = kCodingBlockTokens;
  ContentScope scope = ContentScope::kSession;
  std::vector<CodingEntry> entries;
};

class CodingSessionParser {
 public:
  // `log` hears of fields that are not read; it must outlive the parser.
  explicit CodingSessionParser(const RowLog* log);

  // Fills `session` from a line and `at->id` as soon as it is known. What is wrong is appended to
  // `problems`, which are in the row `at`.
  void Parse(std::string_view text, TraceRequest* at, CodingSession* session,
             std::vector<TraceProblem>* problems);

 private:
  absl::Status ReadField(int field, JsonValue& value);
  absl::Status ReadEntries(JsonValue& list, const std::string& prefix, size_t depth,
                           std::vector<CodingEntry>* entries);
  absl::Status ReadEntry(JsonValue& value, const std::string& path, size_t depth,
                         CodingEntry* entry);
  static void CheckEntry(const std::string& type, JsonFields* fields, CodingEntry* entry);

  JsonFields fields_;
  std::deque<JsonFields> entry_fields_;  // by depth

  // Of the session being read.
  TraceRequest* at_ = nullptr;
  CodingSession* session_ = nullptr;
  std::vector<TraceProblem>* problems_ = nullptr;
};

}  // namespace kvblocks::sim

#endif  // KVBLOCKS_SIM_TRACE_CODING_SESSION_PARSER_H_
