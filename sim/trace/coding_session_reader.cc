// Sessions of coding agents, as kv-cache-tester records them: one JSON document per session, one
// document per line.
//
// A session has id, block_size (64 if absent), hash_id_scope (local, the default: hash_ids mean
// something within the session only; global: in the whole file) and requests. A request has t
// (seconds), type (n or s, which are the same here), in, out, hash_ids (one per full block of the
// prompt; the rest of the prompt is shared with nobody) and may have api_time and think_time
// (seconds). An entry of type subagent has t and requests of its own, whose t count from it; they
// share the session's scope. What else the recorder writes is checked to be JSON and ignored; null
// means absent.
//
// Every session is a closed loop that starts at 0. A request waits for the one before it in its
// list and, after sub-agents, for all of them as well; the sub-agents between two requests run side
// by side. It then thinks for think_time, or, if the session does not say, for as long as the
// recording shows between the end of what it waits for (t + api_time) and t. A request after
// sub-agents thinks for the shorter of both, as the trace does not say whether think_time has the
// sub-agents' time in it. A sub-agent's first request takes the time that the recording shows.
//
// Always: a session is good or bad as a whole, since a loop without one of its turns is not what
// was recorded; at most kMostSessionProblems are reported of one. Requests are named SESSION/INDEX,
// those of sub-agents SESSION/INDEX/INDEX. Memory: one session at a time, at most about four times
// its text, and one table entry per session name.

#include <algorithm>
#include <array>
#include <limits>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "absl/container/flat_hash_set.h"
#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "checks/status_macros.h"
#include "sim/trace/json_fields.h"
#include "sim/trace/line_rows.h"
#include "sim/trace/row_source.h"

namespace kvblocks::sim {
namespace {

constexpr int64_t kCodingBlockTokens = 64;
// Sub-agents of sub-agents.
constexpr size_t kMostNestedAgents = 8;
// A document of many megabytes could have millions.
constexpr size_t kMostSessionProblems = 20;

constexpr int64_t kMaxInt64 = std::numeric_limits<int64_t>::max();
absl::string_view NameOf(ContentScope scope) {
  return scope == ContentScope::kGlobal ? "global" : "local";
}

// Of two times, neither negative.
int64_t Sum(int64_t a, int64_t b) { return a > kMaxInt64 - b ? kMaxInt64 : a + b; }

// An element of `requests`: a request, or a sub-agent with requests of its own.
struct CodingEntry {
  bool is_agent = false;
  int64_t t_ns = 0;  // since the list's start
  int64_t api_ns = 0;
  int64_t think_ns = -1;  // -1: unknown
  int64_t input = 0;
  int64_t output = 0;
  std::vector<int64_t> ids;
  std::vector<CodingEntry> nested;
};

// Of the recorder, and of no use here.
std::vector<std::string_view> RecordersFields() {
  return {"models",       "model",          "tool_tokens",   "system_tokens",
          "totals",       "input_types",    "output_types",  "stop",
          "ttft",         "agent_id",       "subagent_type", "duration_ms",
          "total_tokens", "tool_use_count", "status",        "description"};
}

// What a later turn may have to wait for.
struct End {
  int64_t row = -1;  // -1: the session's start
  int64_t ns = 0;    // when it ended in the recording
};

class CodingSessionReader : public LineRows {
 public:
  explicit CodingSessionReader(RowInput& input)
      : LineRows(input),
        override_block_size_(input.options.trace_block_size),
        require_sorted_(input.options.require_sorted),
        fields_({{"id", By(&JsonValue::ReadName, &row_.request.id)},
                 {"block_size", Whole(1, kMaxTraceLength, &block_size_)},
                 {"hash_id_scope", [this](JsonValue& value) { return ReadScope(value); }},
                 {"requests", Each([this](JsonValue& entry) { return ReadEntry(entry, 0); })}},
                input.log, RecordersFields()) {
    info_.sorted = true;  // all that has a time of its own starts at 0
    info_.scope = ContentScope::kSession;
    info_.block_tokens = override_block_size_ > 0 ? override_block_size_ : kCodingBlockTokens;
    for (size_t depth = 0; depth < levels_.size(); ++depth) {
      levels_[depth].fields.emplace(EntryFields(depth), input.log, RecordersFields());
    }
  }

  std::string dialect() const override {
    return info_.scope == ContentScope::kSession ? "ids local to their session" : "global ids";
  }

 private:
  // What is being read at one depth of sub-agents.
  struct Level {
    std::optional<JsonFields> fields;
    std::string path, type;
    CodingEntry entry;
    std::vector<CodingEntry> read;  // before it in its list
  };

  void Parse(std::string_view text) override {
    num_backwards_ = 0;
    block_size_ = kCodingBlockTokens;
    scope_ = ContentScope::kSession;
    levels_[0].read.clear();
    const bool is_json = fields_.ParseLine(text, &row_.request, problems_);
    if (is_json && problems_->size() < kMostSessionProblems) fields_.Require({"id", "requests"});
    // What is no JSON comes last.
    if (problems_->size() > kMostSessionProblems) {
      problems_->erase(problems_->begin() + kMostSessionProblems - 1, problems_->end() - 1);
    }
    if (problems_->empty()) CheckSession();
    if (!problems_->empty()) return;
    if (!is_settled()) {
      info_.block_tokens = block_tokens_;
      info_.scope = scope_;
    }
    names_.insert(row_.request.id);
    log()->counters.backwards += num_backwards_;
  }

  absl::Status ReadScope(JsonValue& value) {
    std::string scope;
    KVBLOCKS_RETURN_IF_ERROR(value.ReadString(&scope));
    if (scope == "global") scope_ = ContentScope::kGlobal;
    if (scope == "global" || scope == "local") return absl::OkStatus();
    return absl::InvalidArgumentError(
        absl::StrCat("got ", Shown(scope), ", expected local or global"));
  }

  std::vector<JsonFields::Field> EntryFields(size_t depth) {
    Level& level = levels_[depth];
    CodingEntry& entry = level.entry;
    constexpr int kNsDigits = 9;
    return {{"t", By(&JsonValue::ReadDecimal, kNsDigits, &entry.t_ns)},
            {"type", By(&JsonValue::ReadString, &level.type)},
            {"in", By(&JsonValue::ReadLength, &entry.input)},
            {"out", By(&JsonValue::ReadLength, &entry.output)},
            {"hash_ids", By(&JsonValue::ReadIntegers, &entry.ids)},
            {"api_time", By(&JsonValue::ReadDecimal, kNsDigits, &entry.api_ns)},
            {"think_time", By(&JsonValue::ReadDecimal, kNsDigits, &entry.think_ns)},
            {"requests", [this, depth](JsonValue& list) { return ReadNested(list, depth); }}};
  }

  absl::Status ReadNested(JsonValue& list, size_t depth) {
    if (depth == kMostNestedAgents) {
      levels_[depth].fields->Bad(ProblemKind::kValue,
                                 absl::StrCat("requests: got sub-agents nested deeper than ",
                                              kMostNestedAgents, ", expected fewer levels"));
      return absl::CancelledError("enough problems");
    }
    Level& below = levels_[depth + 1];
    below.read.clear();
    absl::Status status =
        list.ReadList([&](JsonValue& entry) { return ReadEntry(entry, depth + 1); });
    levels_[depth].entry.nested = std::move(below.read);
    return status;
  }

  // Fails only if the document is not worth reading on.
  absl::Status ReadEntry(JsonValue& value, size_t depth) {
    const size_t before = problems_->size();
    Level& level = levels_[depth];
    level.path = absl::StrCat(depth == 0 ? "" : absl::StrCat(levels_[depth - 1].path, "/"),
                              level.read.size());
    level.type.clear();
    level.entry = CodingEntry();
    const absl::Status status = level.fields->ReadObject(
        value, &row_.request, problems_, absl::StrCat("request ", level.path, ": "));
    if (status.code() == absl::StatusCode::kInvalidArgument) {
      level.fields->Bad(ProblemKind::kValue, std::string(status.message()));
    } else if (!status.ok()) {
      return status;
    }
    if (problems_->size() == before) CheckEntry(level.type, &*level.fields, &level.entry);
    level.read.push_back(std::move(level.entry));
    return problems_->size() < kMostSessionProblems ? absl::OkStatus()
                                                    : absl::CancelledError("enough problems");
  }

  // Which fields must be there depends on the type, which may come last.
  static void CheckEntry(const std::string& type, JsonFields* fields, CodingEntry* entry) {
    entry->is_agent = type == "subagent";
    if (!fields->Require({"type"})) return;
    if (!entry->is_agent && type != "n" && type != "s") {
      return fields->Bad(ProblemKind::kValue,
                         absl::StrCat("type: got ", Shown(type), ", expected n, s or subagent"));
    }
    fields->Require({"t"});
    if (entry->is_agent) {
      fields->Require({"requests"});
      return;
    }
    fields->Require({"in", "out", "hash_ids"});
    if (fields->Seen("requests")) {
      fields->Bad(ProblemKind::kValue, absl::StrCat("requests: got a list in a request of type ",
                                                    type, ", expected it in one of type subagent"));
    }
    if (entry->input > kMaxTraceLength - entry->output) {
      fields->Bad(ProblemKind::kLength,
                  absl::StrCat("in plus out: got ", entry->input + entry->output,
                               ", expected at most ", kMaxTraceLength));
    }
  }

  void BadOfSession(ProblemKind kind, const std::string& text) {
    if (problems_->size() < kMostSessionProblems) Bad(kind, text);
  }

  void CheckSession() {
    if (names_.contains(row_.request.id)) {
      BadOfSession(ProblemKind::kDuplicateId,
          absl::StrCat("id: got ", Shown(row_.request.id),
                       ", that of an earlier session, expected each id once"));
    }
    if (block_size_ != info_.block_tokens && override_block_size_ == 0 && is_settled()) {
      BadOfSession(ProblemKind::kBlockSize,
          absl::StrCat("block_size: got ", block_size_, ", expected ", info_.block_tokens,
                       " as in the first good session (--trace-block-size)"));
    }
    if (scope_ != info_.scope && is_settled()) {
      BadOfSession(ProblemKind::kValue,
          absl::StrCat("hash_id_scope: got ", NameOf(scope_), ", expected ",
                       NameOf(info_.scope), " as in the first good session"));
    }
    if (!problems_->empty()) return;
    block_tokens_ = override_block_size_ > 0 ? override_block_size_ : block_size_;
    Flatten(&levels_[0].read, 0, "", {});
    if (problems_->empty() && rows_.empty()) {
      BadOfSession(ProblemKind::kValue, "requests: got none, expected at least one");
    }
  }

  // --- The loop ---

  // Appends the requests of one list, which starts at `base_ns` after `before`. Returns what was
  // not waited for within the list.
  std::vector<End> Flatten(std::vector<CodingEntry>* entries, int64_t base_ns,
                           const std::string& prefix, const End before) {
    End last = before;
    std::vector<End> agents;  // since `last`
    int64_t last_t = 0;
    for (size_t i = 0; i < entries->size(); ++i) {
      CodingEntry& entry = (*entries)[i];
      const std::string path = absl::StrCat(prefix, i);
      CheckTime(path, entry.t_ns, last_t);
      last_t = entry.t_ns;
      const int64_t start = Sum(base_ns, entry.t_ns);
      if (entry.is_agent) {
        const std::vector<End> ends = Flatten(&entry.nested, start, path + "/", last);
        agents.insert(agents.end(), ends.begin(), ends.end());
        continue;
      }
      CheckNumberOfIds(path, entry);
      RawRow& row = rows_.emplace_back();
      TraceRequest& r = row.request;
      int64_t latest = last.ns;
      if (last.row >= 0) r.waits_for.push_back(last.row);
      for (const End& agent : agents) {
        r.waits_for.push_back(agent.row);
        latest = std::max(latest, agent.ns);
      }
      if (!r.waits_for.empty()) {
        const int64_t shown = std::max<int64_t>(start - latest, 0);
        const bool is_first_of_agent = last.row == before.row && !prefix.empty();
        const bool is_told = entry.think_ns >= 0 && !is_first_of_agent;
        r.think_ns = !is_told         ? shown
                     : agents.empty() ? entry.think_ns
                                      : std::min(entry.think_ns, shown);
      }
      r.id = absl::StrCat(row_.request.id, "/", path);
      r.input_length = entry.input;
      r.output_length = entry.output;
      r.content_ids = std::move(entry.ids);
      r.session = names_.size() + 1;
      r.turn = static_cast<uint32_t>(rows_.size() - 1);
      row.has_turn = true;
      row.has_timestamp = r.waits_for.empty();
      last = {row_.request.row + static_cast<int64_t>(rows_.size()) - 1, Sum(start, entry.api_ns)};
      agents.clear();
    }
    if (last.row != before.row) agents.push_back(last);
    return agents;
  }

  void CheckTime(const std::string& path, int64_t t_ns, int64_t last_t_ns) {
    if (t_ns >= last_t_ns) return;
    const std::string text =
        absl::StrCat("request ", path, ": t: got ", t_ns, " ns, expected at least ", last_t_ns,
                     " ns as in the entry before");
    if (require_sorted_) {
      BadOfSession(ProblemKind::kOrder, text);
      return;
    }
    ++num_backwards_;
    log()->Notify(RowProblem(ProblemKind::kOrder, row_.request,
                             text + " (--require-sorted forbids it)", ProblemSeverity::kNote));
  }

  void CheckNumberOfIds(const std::string& path, const CodingEntry& entry) {
    const int64_t got = static_cast<int64_t>(entry.ids.size());
    const int64_t full = entry.input / block_tokens_;
    if (got == full) return;
    BadOfSession(ProblemKind::kContentIds,
        absl::StrCat("request ", path, ": number of block ids: got ", got, ", expected ", full,
                     " for the full blocks of ", entry.input, " tokens in blocks of ",
                     block_tokens_, " (--trace-block-size)"));
  }

  const int64_t override_block_size_;
  const bool require_sorted_;
  JsonFields fields_;
  std::array<Level, kMostNestedAgents + 1> levels_;  // by depth
  absl::flat_hash_set<std::string> names_;           // of good sessions

  // Of the session being read.
  int64_t block_size_ = 0;    // as it says
  int64_t block_tokens_ = 0;  // as it counts
  ContentScope scope_ = ContentScope::kSession;
  int64_t num_backwards_ = 0;
};

}  // namespace

OpenedRows MakeCodingSessionReader(RowInput& input) {
  return OpenLineRows<CodingSessionReader>(input);
}

}  // namespace kvblocks::sim
