// Traces of agents, whose turns wait for tools: Applied Compute's, LLMServingSim's and TraceLab's.

#include <algorithm>
#include <string>
#include <utility>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "absl/container/flat_hash_set.h"
#include "absl/strings/str_cat.h"
#include "checks/ceil_div.h"
#include "checks/status_macros.h"
#include "sim/trace/json_fields.h"
#include "sim/trace/line_rows.h"
#include "sim/trace/row_source.h"

namespace kvblocks::sim {
namespace {

// Makes the requests one session, each of which waits for the one before. The first is row
// `first_row`, and has a time of its own.
void MakeLoop(int64_t first_row, uint64_t session, std::vector<RawRow>* rows) {
  for (size_t i = 0; i < rows->size(); ++i) {
    RawRow& row = (*rows)[i];
    row.request.session = session;
    row.request.turn = static_cast<uint32_t>(i);
    row.has_turn = true;
    row.has_timestamp = i == 0;
    if (i > 0) row.request.waits_for.push_back(first_row + static_cast<int64_t>(i) - 1);
  }
}

// Applied Compute's agents, a session per line of JSONL: num_turns, input_prompt_length,
// assistant_response_length (one per turn), tool_call_output_length (one less) and
// tool_call_latency (s, as many). A turn's prompt is all of the session before it and the output of
// the tool. All sessions start at 0. A session is good or bad as a whole.

// Content ids of all turns of a session together.
constexpr int64_t kMostSessionIds = int64_t{1} << 24;

class AppliedComputeReader : public LineRows {
 public:
  explicit AppliedComputeReader(RowInput& input)
      : LineRows(input),
        fields_({{"num_turns", Whole(1, kMaxTraceLength, &num_turns_)},
                 {"input_prompt_length", By(&JsonValue::ReadLength, &prompt_)},
                 {"assistant_response_length", By(&JsonValue::ReadLengths, &answers_)},
                 {"tool_call_output_length", By(&JsonValue::ReadLengths, &tool_outputs_)},
                 {"tool_call_latency", By(&JsonValue::ReadRoundedList, 9, &tool_ns_)}},
                input.log) {
    SetConversationInfo(&info_);
    info_.sorted = true;  // all that has a time of its own starts at 0
  }

  std::string dialect() const override { return "prompts repeat the turns before"; }

 private:
  void Parse(std::string_view text) override {
    answers_.clear();
    tool_outputs_.clear();
    tool_ns_.clear();
    if (!fields_.ParseLine(text, &row_.request, problems_,
                           {"num_turns", "input_prompt_length", "assistant_response_length"})) {
      return;
    }
    const int64_t calls = num_turns_ - 1;
    CheckSize("assistant_response_length", answers_.size(), num_turns_);
    if (calls > 0 || fields_.Seen("tool_call_output_length")) {
      CheckSize("tool_call_output_length", tool_outputs_.size(), calls);
    }
    if (fields_.Seen("tool_call_latency")) {
      CheckSize("tool_call_latency", tool_ns_.size(), calls);
    }
    if (problems_->empty() && CheckLength()) AddTurns();
  }

  void CheckSize(const char* name, size_t got, int64_t expected) {
    if (static_cast<int64_t>(got) == expected) return;
    Bad(ProblemKind::kValue, absl::StrCat(name, ": got ", got, " values, expected ",
                                                  expected, " for ", num_turns_, " turns"));
  }

  // Before anything is made of it.
  bool CheckLength() {
    int64_t tokens = prompt_;
    int64_t ids = 0;
    for (size_t i = 0; i < answers_.size(); ++i) {
      tokens += answers_[i] + (i > 0 ? tool_outputs_[i - 1] : 0);
      ids += tokens / kConversationBlockTokens + 1;
      if (tokens > kMaxTraceLength) {
        Bad(
            ProblemKind::kLength,
            absl::StrCat("turn ", i, ": got ", tokens,
                         " tokens of prompt and output, expected at most ", kMaxTraceLength));
        return false;
      }
      if (ids > kMostSessionIds) {
        Bad(
            ProblemKind::kLength,
            absl::StrCat("turn ", i, ": got more than ", kMostSessionIds * kConversationBlockTokens,
                         " tokens in the prompts up to it, expected fewer"));
        return false;
      }
    }
    return true;
  }

  void AddTurns() {
    ++num_sessions_;
    int64_t history = prompt_;
    for (size_t i = 0; i < answers_.size(); ++i) {
      TraceRequest& r = rows_.emplace_back().request;
      r.input_length = history + (i > 0 ? tool_outputs_[i - 1] : 0);
      r.output_length = answers_[i];
      history = r.input_length + r.output_length;
      SetConversationContent(&r);
      if (i > 0 && !tool_ns_.empty()) r.think_ns = tool_ns_[i - 1];
    }
    MakeLoop(row_.request.row, num_sessions_, &rows_);
  }

  JsonFields fields_;
  uint64_t num_sessions_ = 0;
  // Of the line being read.
  int64_t num_turns_ = 0;
  int64_t prompt_ = 0;
  std::vector<int64_t> answers_, tool_outputs_, tool_ns_;
};

// LLMServingSim's JSONL. Flat rows: input_toks, output_toks, arrival_time_ns, and input_tok_ids and
// output_tok_ids if there. Sessions: session_id, arrival_time_ns and sub_requests, each with
// input_toks, output_toks, token ids if there, and tool_duration_ns, after which the next one
// follows. Both may stand in one file. Either all requests have ids of their prompts or none has;
// without them nothing is shared. A session is good or bad as a whole.

class LlmServingSimReader : public LineRows {
 public:
  explicit LlmServingSimReader(RowInput& input)
      : LineRows(input),
        fields_(
            {{"arrival_time_ns", Whole(0, INT64_MAX, &row_.timestamp_ns)},
             {"session_id", By(&JsonValue::ReadId, &session_)},
             {"sub_requests", Each([this](JsonValue& element) { return ReadSubRequest(element); })},
             {"input_toks", By(&JsonValue::ReadLength, &row_.request.input_length)},
             {"output_toks", By(&JsonValue::ReadLength, &row_.request.output_length)},
             {"input_tok_ids", By(&JsonValue::ReadIntegers, &row_.request.content_ids)},
             {"output_tok_ids", By(&JsonValue::ReadUint32s, &row_.request.output_ids)}},
            input.log),
        request_fields_({{"input_toks", By(&JsonValue::ReadLength, &sub_.input_length)},
                         {"output_toks", By(&JsonValue::ReadLength, &sub_.output_length)},
                         {"input_tok_ids", By(&JsonValue::ReadIntegers, &sub_.content_ids)},
                         {"output_tok_ids", By(&JsonValue::ReadUint32s, &sub_.output_ids)},
                         {"tool_duration_ns", Whole(0, INT64_MAX, &tool_ns_)}},
                        input.log) {}

  std::string dialect() const override {
    return info_.block_tokens == 1 ? "with token ids" : "lengths only";
  }

 private:
  // More are not worth telling.
  static constexpr size_t kMostReported = 20;

  void Parse(std::string_view text) override {
    num_with_ids_ = 0;
    tool_ns_ = 0;
    fields_.ParseLine(text, &row_.request, problems_);
    if (!problems_->empty()) return;
    fields_.Require({"arrival_time_ns"});
    if (fields_.Seen("sub_requests")) {
      FinishSession();
    } else {
      fields_.Require({"input_toks", "output_toks"});
      num_with_ids_ = fields_.Seen("input_tok_ids") ? 1 : 0;
      AddRow();
    }
    if (problems_->empty()) CheckIds();
    if (problems_->empty() && fields_.Seen("sub_requests")) names_.insert(session_.text);
  }

  absl::Status ReadSubRequest(JsonValue& value) {
    sub_ = TraceRequest();
    sub_.think_ns = rows_.empty() ? 0 : tool_ns_;
    tool_ns_ = 0;
    KVBLOCKS_RETURN_IF_ERROR(request_fields_.ReadObject(
        value, &row_.request, problems_, absl::StrCat("sub_requests[", rows_.size(), "]: ")));
    request_fields_.Require({"input_toks", "output_toks"});
    if (request_fields_.Seen("input_tok_ids")) ++num_with_ids_;
    rows_.emplace_back().request = std::move(sub_);
    return problems_->size() < kMostReported ? absl::OkStatus()
                                             : absl::CancelledError("enough problems");
  }

  void FinishSession() {
    for (const char* field : {"input_toks", "output_toks", "input_tok_ids", "output_tok_ids"}) {
      if (!fields_.Seen(field)) continue;
      Bad(ProblemKind::kValue,
          "sub_requests: got them beside lengths or ids of one request, expected either");
      break;
    }
    if (rows_.empty()) {
      Bad(ProblemKind::kValue, "sub_requests: got none, expected at least one");
      return;
    }
    // Sessions without a name are named by their place.
    if (!fields_.Seen("session_id")) session_.text = absl::StrCat("row ", row_.request.row);
    if (names_.contains(session_.text)) {
      Bad(ProblemKind::kDuplicateId,
                  absl::StrCat("session_id: got ", Shown(session_.text),
                               ", that of an earlier session, expected each id once"));
    }
    rows_[0].timestamp_ns = row_.timestamp_ns;
    MakeLoop(row_.request.row, names_.size() + 1, &rows_);
  }

  void CheckIds() {
    const bool has_ids = num_with_ids_ > 0;
    if (num_with_ids_ != 0 && num_with_ids_ != rows_.size()) {
      Bad(ProblemKind::kContentIds,
                  absl::StrCat("input_tok_ids: got them in ", num_with_ids_, " of ", rows_.size(),
                               " requests of the session, expected them in all or none"));
      return;
    }
    if (!is_settled() && !is_decided_) info_.block_tokens = has_ids ? 1 : 0;
    is_decided_ = true;
    if (has_ids == (info_.block_tokens == 1)) return;
    Bad(ProblemKind::kContentIds,
                absl::StrCat("input_tok_ids: got ", has_ids ? "a list" : "nothing", ", expected ",
                             has_ids ? "none" : "a list", " as in the first good row"));
  }

  TraceRequest sub_;  // of the sub-requests the one being read
  JsonFields fields_;
  JsonFields request_fields_;
  bool is_decided_ = false;
  absl::flat_hash_set<std::string> names_;  // of good sessions
  // Of the line being read.
  JsonId session_;
  int64_t tool_ns_ = 0;  // after the last request
  size_t num_with_ids_ = 0;
};

// TraceLab's rounds, one per line of JSONL: session_id, prefix_tokens, newly_append_tokens,
// output_tokens, and timing_events. A round's prompt is the first prefix_tokens of the session
// before it, in blocks of 64 tokens unless it is all of it, and new ones. Sessions start at 0; the
// next round follows after the recorded time between the last output and the input that it waited
// for.

constexpr int64_t kRoundBlockTokens = 64;
constexpr int64_t kMostRoundTokens = kRoundBlockTokens << 20;

class TraceLabReader : public LineRows {
 public:
  explicit TraceLabReader(RowInput& input)
      : LineRows(input),
        fields_({{"session_id", By(&JsonValue::ReadId, &session_)},
                 {"round_id", By(&JsonValue::ReadName, &row_.request.id)},
                 {"input_tokens_total", Whole(0, 2 * kMaxTraceLength, &total_)},
                 {"prefix_tokens", By(&JsonValue::ReadLength, &prefix_)},
                 {"newly_append_tokens", By(&JsonValue::ReadLength, &appended_)},
                 {"output_tokens", By(&JsonValue::ReadLength, &row_.request.output_length)},
                 {"timing_events", Each([this](JsonValue& event) { return ReadEvent(event); })}},
                input.log, {"provider", "model", "round_index", "tools", "project", "turn_id"}),
        event_fields_({{"event_type", By(&JsonValue::ReadString, &event_type_)},
                       {"timestamp", By(&JsonValue::ReadString, &event_time_)}},
                      input.log, {"tool_call_id", "content_chars", "result_chars"}) {
    info_.block_tokens = kRoundBlockTokens;
    info_.scope = ContentScope::kSession;
    info_.sorted = true;  // all that has a time of its own starts at 0
  }

  std::string dialect() const override { return "prompts go on from the prefix that was cached"; }

 private:
  static constexpr int64_t kNoTime = INT64_MIN;
  struct Run {
    int64_t first, size;
  };
  struct Session {
    std::vector<Run> runs;   // its last prompt and output: a short row may stand for a million ids
    int64_t num_tokens = 0;  // that they stand for
    int64_t next_id = 0;
    int64_t last_row = -1;
    int64_t output_ns = kNoTime;      // when its last output came
    int64_t late_input_ns = kNoTime;  // when the last input behind it came
  };

  void Parse(std::string_view text) override {
    TraceRequest& r = row_.request;
    total_ = prefix_ = appended_ = 0;
    input_ns_ = output_ns_ = late_input_ns_ = kNoTime;
    if (!fields_.ParseLine(
            text, &r, problems_,
            {"session_id", "prefix_tokens", "newly_append_tokens", "output_tokens"})) {
      return;
    }
    r.input_length = prefix_ + appended_;
    if (fields_.Seen("input_tokens_total") && total_ != r.input_length) {
      Bad(ProblemKind::kValue,
          absl::StrCat("input_tokens_total: got ", total_, ", expected ", r.input_length,
                       ", prefix_tokens and newly_append_tokens"));
    }
    if (r.input_length + r.output_length > kMostRoundTokens) {
      Bad(ProblemKind::kLength,
          absl::StrCat("prompt and output: got ", r.input_length + r.output_length,
                       " tokens, expected at most ", kMostRoundTokens));
    }
    if (!problems_->empty()) return;
    r.session = sessions_.NumberOf(session_);
    JoinSession(&state_[r.session]);
    AddRow();
  }

  // Claude's rounds begin with what came in; Codex's end with the results of their own calls, for
  // which the next round waited.
  absl::Status ReadEvent(JsonValue& value) {
    const absl::Time first = absl::UnixEpoch(), end = first + absl::Hours(24 * 100'001);
    event_type_.clear();
    KVBLOCKS_RETURN_IF_ERROR(
        event_fields_.ReadObject(value, &row_.request, problems_, "timing_events: "));
    if (!event_fields_.Seen("timestamp")) return absl::OkStatus();
    const auto parsed = ParseAzureTimestamp(event_time_);
    if (!parsed.ok() || *parsed < first || *parsed >= end) {
      event_fields_.Bad(ProblemKind::kValue,
                        absl::StrCat("timestamp: got ", Shown(event_time_),
                                     ", expected a time like 2026-08-25T00:00:09.010Z"));
      return absl::OkStatus();
    }
    const int64_t ns = absl::ToUnixNanos(*parsed);
    if (event_type_ != "user_message" && event_type_ != "tool_result") {
      output_ns_ = std::max(output_ns_, ns);
      late_input_ns_ = kNoTime;
    } else if (output_ns_ == kNoTime) {
      input_ns_ = std::max(input_ns_, ns);
    } else {
      late_input_ns_ = std::max(late_input_ns_, ns);
    }
    return absl::OkStatus();
  }

  static int64_t BlocksOf(int64_t tokens) { return CeilDiv(tokens, kRoundBlockTokens); }

  void JoinSession(Session* session) {
    TraceRequest& r = row_.request;
    row_.has_timestamp = session->last_row < 0;  // then it starts at 0
    if (!row_.has_timestamp) {
      r.waits_for.push_back(session->last_row);
      const int64_t start_ns = input_ns_ != kNoTime ? input_ns_ : session->late_input_ns;
      if (start_ns != kNoTime && session->output_ns != kNoTime) {
        r.think_ns = std::max<int64_t>(0, start_ns - session->output_ns);
      }
    }
    // The prefix is what the session had; a block that ends inside another text is another block.
    const bool goes_on = prefix_ >= session->num_tokens;
    const int64_t had = BlocksOf(session->num_tokens);
    const int64_t kept = goes_on ? had : prefix_ / kRoundBlockTokens;
    for (int64_t left = had - kept; left > 0;) {
      Run& last = session->runs.back();
      const int64_t size = std::min(left, last.size);
      left -= size;
      last.size -= size;
      if (last.size == 0) session->runs.pop_back();
    }
    session->num_tokens = r.input_length + r.output_length;
    const int64_t size = BlocksOf(session->num_tokens);
    if (size > kept) session->runs.push_back({session->next_id, size - kept});
    session->next_id += size - kept;
    r.content_ids.reserve(static_cast<size_t>(size));
    for (const Run& run : session->runs) {
      for (int64_t i = 0; i < run.size; ++i) r.content_ids.push_back(run.first + i);
    }
    r.ids_cover_output = true;
    session->last_row = r.row;
    session->output_ns = output_ns_;
    session->late_input_ns = late_input_ns_;
  }

  JsonFields fields_, event_fields_;
  SessionNumbers sessions_;
  absl::flat_hash_map<uint64_t, Session> state_;
  // Of the row being read.
  JsonId session_;
  std::string event_type_, event_time_;
  int64_t total_ = 0, prefix_ = 0, appended_ = 0;
  int64_t input_ns_ = kNoTime;  // before its first output
  int64_t output_ns_ = kNoTime, late_input_ns_ = kNoTime;
};

}  // namespace

OpenedRows MakeAppliedComputeReader(RowInput& input) {
  return OpenLineRows<AppliedComputeReader>(input);
}

OpenedRows MakeLlmServingSimReader(RowInput& input) {
  return OpenLineRows<LlmServingSimReader>(input);
}

OpenedRows MakeTraceLabReader(RowInput& input) { return OpenLineRows<TraceLabReader>(input); }

}  // namespace kvblocks::sim
