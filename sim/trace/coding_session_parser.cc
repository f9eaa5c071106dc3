#include "kvblocks/sim/trace/coding_session_parser.h"

#include "absl/strings/str_cat.h"

namespace kvblocks::sim {
namespace {

// Of the recorder, and of no use here.
std::vector<std::string_view> IgnoredFields() {
  return {"models",       "model",          "tool_tokens",   "system_tokens",
          "totals",       "input_types",    "output_types",  "stop",
          "ttft",         "agent_id",       "subagent_type", "duration_ms",
          "total_tokens", "tool_use_count", "status",        "description"};
}

enum SessionField { kId, kBlockSize, kScope, kRequests };
enum EntryField { kT, kType, kIn, kOut, kHashIds, kApiTime, kThinkTime, kNested };

}  // namespace

CodingSessionParser::CodingSessionParser(const RowLog* log)
    : fields_({{"id", kId},
               {"block_size", kBlockSize},
               {"hash_id_scope", kScope},
               {"requests", kRequests}},
              log, IgnoredFields()) {
  const std::vector<JsonFields::Name> names = {
      {"t", kT},           {"type", kType},        {"in", kIn},
      {"out", kOut},       {"hash_ids", kHashIds}, {"api_time", kApiTime},
      {"think_time", kThinkTime}, {"requests", kNested}};
  for (int depth = 0; depth <= kMostNestedAgents; ++depth) {
    entry_fields_.emplace_back(names, log, IgnoredFields());
  }
}

void CodingSessionParser::Parse(std::string_view text, TraceRequest* at, CodingSession* session,
                                std::vector<TraceProblem>* problems) {
  at_ = at;
  session_ = session;
  problems_ = problems;
  *session = CodingSession();
  fields_.Begin(at, problems);
  fields_.ParseLine(text,
                    [&](int field, JsonValue& value) { return ReadField(field, value); });
  const bool is_json = problems->empty() || problems->back().kind != ProblemKind::kSyntax;
  if (is_json && problems->size() < kMostSessionProblems) fields_.Require({kId, kRequests});
  // What is no JSON comes last.
  if (problems->size() > kMostSessionProblems) {
    problems->erase(problems->begin() + kMostSessionProblems - 1, problems->end() - 1);
  }
}

absl::Status CodingSessionParser::ReadField(int field, JsonValue& value) {
  switch (field) {
    case kId: {
      JsonId id;
      const absl::Status status = value.ReadId(&id);
      session_->id = at_->id = id.text;
      return status;
    }
    case kBlockSize:
      return value.ReadInteger(1, kMaxTraceLength, &session_->block_tokens);
    case kScope: {
      std::string scope;
      if (absl::Status status = value.ReadString(&scope); !status.ok()) return status;
      if (scope == "global") session_->scope = ContentScope::kGlobal;
      if (scope == "global" || scope == "local") return absl::OkStatus();
      return absl::InvalidArgumentError(
          absl::StrCat("got ", Shown(scope), ", expected local or global"));
    }
    default:
      return ReadEntries(value, "", 0, &session_->entries);
  }
}

absl::Status CodingSessionParser::ReadEntries(JsonValue& list, const std::string& prefix,
                                              size_t depth, std::vector<CodingEntry>* entries) {
  return list.ReadList([&](JsonValue& element) {
    const std::string path = absl::StrCat(prefix, entries->size());
    entries->emplace_back();
    return ReadEntry(element, path, depth, &entries->back());
  });
}

// Fails only if the document is not worth reading on.
absl::Status CodingSessionParser::ReadEntry(JsonValue& value, const std::string& path,
                                            size_t depth, CodingEntry* entry) {
  constexpr int kNsDigits = 9;
  const size_t before = problems_->size();
  std::string type;
  JsonFields& fields = entry_fields_[depth];
  fields.Begin(at_, problems_, absl::StrCat("request ", path, ": "));
  const absl::Status status = fields.ReadObject(value, [&](int field, JsonValue& inner) {
    switch (field) {
      case kType:
        return inner.ReadString(&type);
      case kT:
        return inner.ReadDecimal(kNsDigits, &entry->t_ns);
      case kApiTime:
        return inner.ReadDecimal(kNsDigits, &entry->api_ns);
      case kThinkTime:
        return inner.ReadDecimal(kNsDigits, &entry->think_ns);
      case kIn:
        return inner.ReadInteger(0, kMaxTraceLength, &entry->input);
      case kOut:
        return inner.ReadInteger(0, kMaxTraceLength, &entry->output);
      case kHashIds:
        return inner.ReadIntegers(&entry->ids);
      default:
        break;
    }
    if (depth < kMostNestedAgents) {
      return ReadEntries(inner, path + "/", depth + 1, &entry->nested);
    }
    fields.Bad(ProblemKind::kValue, absl::StrCat("requests: got sub-agents nested deeper than ",
                                                 kMostNestedAgents, ", expected fewer levels"));
    return absl::CancelledError("enough problems");
  });
  if (status.code() == absl::StatusCode::kInvalidArgument) {
    fields.Bad(ProblemKind::kValue, std::string(status.message()));
  } else if (!status.ok()) {
    return status;
  }
  if (problems_->size() == before) CheckEntry(type, &fields, entry);
  return problems_->size() < kMostSessionProblems ? absl::OkStatus()
                                                  : absl::CancelledError("enough problems");
}

// Which fields must be there depends on the type, which may come last.
void CodingSessionParser::CheckEntry(const std::string& type, JsonFields* fields,
                                     CodingEntry* entry) {
  entry->is_agent = type == "subagent";
  if (!fields->Require({kType})) return;
  if (!entry->is_agent && type != "n" && type != "s") {
    return fields->Bad(ProblemKind::kValue,
                       absl::StrCat("type: got ", Shown(type), ", expected n, s or subagent"));
  }
  fields->Require({kT});
  if (entry->is_agent) {
    fields->Require({kNested});
    return;
  }
  fields->Require({kIn, kOut, kHashIds});
  if (fields->Seen(kNested)) {
    fields->Bad(ProblemKind::kValue, absl::StrCat("requests: got a list in a request of type ",
                                                  type, ", expected it in one of type subagent"));
  }
  if (entry->input > kMaxTraceLength - entry->output) {
    fields->Bad(ProblemKind::kLength,
                absl::StrCat("in plus out: got ", entry->input + entry->output,
                             ", expected at most ", kMaxTraceLength));
  }
}

}  // namespace kvblocks::sim
