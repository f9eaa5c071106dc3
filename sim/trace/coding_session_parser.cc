#include "kvblocks/sim/trace/coding_session_parser.h"

#include <algorithm>

#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"

namespace kvblocks::sim {
namespace {

constexpr int kNsDigits = 9;
// Fields that are not read: how many different ones are reported.
constexpr size_t kMostUnknownFields = 50;

// Of the recorder, and of no use here.
constexpr std::array<std::string_view, 16> kIgnoredFields = {
    "models",       "model",          "tool_tokens",   "system_tokens",
    "totals",       "input_types",    "output_types",  "stop",
    "ttft",         "agent_id",       "subagent_type", "duration_ms",
    "total_tokens", "tool_use_count", "status",        "description"};

enum SessionField { kId, kBlockSize, kScope, kRequests, kNumSessionFields };
constexpr std::array<std::string_view, kNumSessionFields> kSessionFields = {
    "id", "block_size", "hash_id_scope", "requests"};

enum EntryField { kT, kType, kIn, kOut, kHashIds, kApiTime, kThinkTime, kNested, kNumEntryFields };
constexpr std::array<std::string_view, kNumEntryFields> kEntryFields = {
    "t", "type", "in", "out", "hash_ids", "api_time", "think_time", "requests"};

bool Has(uint64_t seen, int field) { return (seen >> field & 1) != 0; }

}  // namespace

void CodingSessionParser::Bad(ProblemKind kind, const std::string& text) {
  if (problems_->size() < kMostSessionProblems) problems_->push_back(RowProblem(kind, *at_, text));
}

void CodingSessionParser::Missing(const std::string& where, std::string_view field) {
  Bad(ProblemKind::kMissingField,
      absl::StrCat(where, "field ", View(field), ": got nothing, expected a value"));
}

// A document with that many problems is not worth reading on.
absl::Status CodingSessionParser::GoOn() const {
  return problems_->size() < kMostSessionProblems ? absl::OkStatus()
                                                  : absl::CancelledError("enough problems");
}

// Remembers what is wrong with a value, unless it is not even JSON; that ends the document.
absl::Status CodingSessionParser::Note(const std::string& what, const absl::Status& status) {
  if (status.ok() || status.code() == absl::StatusCode::kCancelled) return status;
  if (status.code() == absl::StatusCode::kDataLoss) return status;
  Bad(ProblemKind::kValue, absl::StrCat(what, ": ", status.message()));
  return GoOn();
}

absl::Status CodingSessionParser::SkipOther(std::string_view key, JsonValue& value) {
  if (log_->listener == nullptr || unknown_.size() >= kMostUnknownFields ||
      std::find(kIgnoredFields.begin(), kIgnoredFields.end(), key) != kIgnoredFields.end()) {
    return value.Skip();
  }
  const std::string name = Shown(key);
  absl::Status status = value.Skip();
  if (status.ok() && unknown_.insert(name).second) {
    log_->Tell(
        RowProblem(ProblemKind::kUnknownField, *at_,
                   absl::StrCat("field: got ", name, ", expected one that is read (it is ignored)"),
                   ProblemSeverity::kNote));
  }
  return status;
}

// Finds the field, or its value is of no use: -1 and the status to go on with.
template <size_t n>
int CodingSessionParser::FieldOf(const std::array<std::string_view, n>& names,
                                 const std::string& where, std::string_view key, JsonValue& value,
                                 uint64_t* seen, absl::Status* status) {
  const size_t index =
      static_cast<size_t>(std::find(names.begin(), names.end(), key) - names.begin());
  if (index == n) {
    *status = SkipOther(key, value);
    return -1;
  }
  absl::StatusOr<bool> null = value.IsNull();
  if (!null.ok()) {
    *status =
        absl::DataLossError(absl::StrCat(where, View(names[index]), ": ", null.status().message()));
  }
  if (!null.ok() || *null) return -1;
  if (Has(*seen, static_cast<int>(index))) {
    Bad(ProblemKind::kRepeatedField,
        absl::StrCat(where, "field ", View(names[index]), ": got it twice, expected once"));
    *status = value.Skip();
    return -1;
  }
  *seen |= uint64_t{1} << index;
  return static_cast<int>(index);
}

void CodingSessionParser::Parse(std::string_view text, TraceRequest* at, CodingSession* session,
                                std::vector<TraceProblem>* problems) {
  seen_ = 0;
  at_ = at;
  session_ = session;
  problems_ = problems;
  *session = CodingSession();
  int64_t column = 0;
  const absl::Status status = json_.ForEachField(
      text, LineReader::kPadding,
      [&](std::string_view key, JsonValue& value) { return OnField(key, value); }, &column);
  if (status.code() == absl::StatusCode::kCancelled) return;
  if (!status.ok()) {
    if (problems_->size() == kMostSessionProblems) problems_->pop_back();
    Bad(ProblemKind::kSyntax, std::string(status.message()));
    problems_->back().column = column;
    return;
  }
  for (const SessionField field : {kId, kRequests}) {
    if (!Has(seen_, field)) Missing("", kSessionFields[field]);
  }
}

absl::Status CodingSessionParser::OnField(std::string_view key, JsonValue& value) {
  absl::Status status;
  JsonId id;
  switch (FieldOf(kSessionFields, "", key, value, &seen_, &status)) {
    case kId:
      status = value.ReadId(&id);
      session_->id = at_->id = id.text;
      return Note("id", status);
    case kBlockSize:
      return Note("block_size", value.ReadInteger(1, kMaxTraceLength, &session_->block_tokens));
    case kScope: {
      std::string scope;
      if (status = Note("hash_id_scope", value.ReadString(&scope)); !status.ok()) return status;
      if (scope == "global") {
        session_->scope = ContentScope::kGlobal;
      } else if (scope != "local") {
        Bad(ProblemKind::kValue,
            absl::StrCat("hash_id_scope: got ", Shown(scope), ", expected local or global"));
      }
      return absl::OkStatus();
    }
    case kRequests:
      return Note("requests", ReadEntries(value, "", 0, &session_->entries));
  }
  return status;
}

absl::Status CodingSessionParser::ReadEntries(JsonValue& list, const std::string& prefix, int depth,
                                              std::vector<CodingEntry>* entries) {
  return list.ReadList([&](JsonValue& element) {
    const std::string path = absl::StrCat(prefix, entries->size());
    entries->emplace_back();
    return ReadEntry(element, path, depth, &entries->back());
  });
}

// Fails only if the document is not worth reading on.
absl::Status CodingSessionParser::ReadEntry(JsonValue& value, const std::string& path, int depth,
                                            CodingEntry* entry) {
  const std::string where = absl::StrCat("request ", path, ": ");
  const size_t before = problems_->size();
  std::string type;
  uint64_t seen = 0;
  absl::Status status = value.ReadObject([&](std::string_view key, JsonValue& field) {
    absl::Status other;
    const int index = FieldOf(kEntryFields, where, key, field, &seen, &other);
    if (index < 0) return other;
    const std::string what = absl::StrCat(where, View(kEntryFields[static_cast<size_t>(index)]));
    switch (index) {
      case kType:
        return Note(what, field.ReadString(&type));
      case kT:
        return Note(what, field.ReadDecimal(kNsDigits, &entry->t_ns));
      case kApiTime:
        return Note(what, field.ReadDecimal(kNsDigits, &entry->api_ns));
      case kThinkTime:
        return Note(what, field.ReadDecimal(kNsDigits, &entry->think_ns));
      case kIn:
        return Note(what, field.ReadInteger(0, kMaxTraceLength, &entry->input));
      case kOut:
        return Note(what, field.ReadInteger(0, kMaxTraceLength, &entry->output));
      case kHashIds:
        return Note(what, field.ReadIntegers(&entry->ids));
      default:
        break;
    }
    if (depth < kMostNestedAgents) {
      return Note(what, ReadEntries(field, path + "/", depth + 1, &entry->nested));
    }
    Bad(ProblemKind::kValue, absl::StrCat(what, ": got sub-agents nested deeper than ",
                                          kMostNestedAgents, ", expected fewer levels"));
    return absl::CancelledError("enough problems");
  });
  if (status.code() == absl::StatusCode::kCancelled) return status;
  if (!status.ok()) return Note(absl::StrCat("request ", path), status);
  if (problems_->size() == before) CheckEntry(where, type, seen, entry);
  return GoOn();
}

// Which fields must be there depends on the type, which may come last.
void CodingSessionParser::CheckEntry(const std::string& where, const std::string& type,
                                     uint64_t seen, CodingEntry* entry) {
  entry->is_agent = type == "subagent";
  if (!Has(seen, kType)) return Missing(where, "type");
  if (!entry->is_agent && type != "n" && type != "s") {
    return Bad(ProblemKind::kValue,
               absl::StrCat(where, "type: got ", Shown(type), ", expected n, s or subagent"));
  }
  if (!Has(seen, kT)) Missing(where, "t");
  if (entry->is_agent) {
    if (!Has(seen, kNested)) Missing(where, "requests");
    return;
  }
  for (const EntryField field : {kIn, kOut, kHashIds}) {
    if (!Has(seen, field)) Missing(where, kEntryFields[field]);
  }
  if (Has(seen, kNested)) {
    Bad(ProblemKind::kValue, absl::StrCat(where, "requests: got a list in a request of type ", type,
                                          ", expected it in one of type subagent"));
  }
  if (entry->input > kMaxTraceLength - entry->output) {
    Bad(ProblemKind::kLength, absl::StrCat(where, "in plus out: got ", entry->input + entry->output,
                                           ", expected at most ", kMaxTraceLength));
  }
}

}  // namespace kvblocks::sim
