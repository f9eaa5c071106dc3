// TraceLab's rounds, one per line of JSONL: session_id, prefix_tokens, newly_append_tokens,
// output_tokens, and timing_events. A round's prompt is the first prefix_tokens of the session
// before it, in blocks of 64 tokens unless it is all of it, and new ones. Sessions start at 0; the
// next round follows after the recorded time between the last output and the input that it waited
// for.

#include <algorithm>
#include <string>
#include <utility>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "absl/strings/str_cat.h"
#include "kvblocks/sim/trace/civil_time.h"
#include "kvblocks/sim/trace/json_fields.h"
#include "kvblocks/sim/trace/line_rows.h"
#include "kvblocks/sim/trace/trace_formats.h"

namespace kvblocks::sim {
namespace {

constexpr int64_t kRoundBlockTokens = 64;
constexpr int64_t kMostRoundTokens = kRoundBlockTokens << 20;

class TraceLabReader : public LineRows {
 public:
  TraceLabReader(std::unique_ptr<ByteSource> source, const TraceReaderOptions& options, RowLog* log)
      : LineRows(std::move(source), options, log, "tracelab"),
        fields_({{"session_id", kSession},
                 {"round_id", kRound},
                 {"input_tokens_total", kTotal},
                 {"prefix_tokens", kPrefix},
                 {"newly_append_tokens", kAppended},
                 {"output_tokens", kOutput},
                 {"timing_events", kEvents}},
                log, {"provider", "model", "round_index", "tools", "project", "turn_id"}),
        event_fields_({{"event_type", kEventType}, {"timestamp", kTimestamp}}, log,
                      {"tool_call_id", "content_chars", "result_chars"}) {
    info_.block_tokens = kRoundBlockTokens;
    info_.scope = ContentScope::kSession;
    info_.sorted = true;  // all that has a time of its own starts at 0
  }

  std::string dialect() const override { return "prompts go on from the prefix that was cached"; }

 private:
  enum Field { kSession, kRound, kTotal, kPrefix, kAppended, kOutput, kEvents };
  enum EventField { kEventType, kTimestamp };
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

  void Parse(std::string_view text, RawRow&& at, std::vector<RawRow>* rows,
             std::vector<TraceProblem>* problems) override {
    RawRow row = std::move(at);
    TraceRequest& r = row.request;
    total_ = prefix_ = appended_ = 0;
    input_ns_ = output_ns_ = late_input_ns_ = kNoTime;
    fields_.Begin(&r, problems);
    fields_.ParseLine(text, [&](int field, JsonValue& value) {
      return Read(field, value, r, problems);
    });
    if (!problems->empty() && problems->back().kind == ProblemKind::kSyntax) return;
    fields_.Require({kSession, kPrefix, kAppended, kOutput});
    if (!problems->empty()) return;
    r.input_length = prefix_ + appended_;
    if (fields_.Seen(kTotal) && total_ != r.input_length) {
      fields_.Bad(ProblemKind::kValue,
                  absl::StrCat("input_tokens_total: got ", total_, ", expected ", r.input_length,
                               ", prefix_tokens and newly_append_tokens"));
    }
    if (r.input_length + r.output_length > kMostRoundTokens) {
      fields_.Bad(ProblemKind::kLength,
                  absl::StrCat("prompt and output: got ", r.input_length + r.output_length,
                               " tokens, expected at most ", kMostRoundTokens));
    }
    if (!problems->empty()) return;
    r.session = sessions_.NumberOf(session_);
    JoinSession(&state_[r.session], &row);
    rows->push_back(std::move(row));
  }

  absl::Status Read(int field, JsonValue& value, TraceRequest& r,
                    std::vector<TraceProblem>* problems) {
    switch (field) {
      case kSession:
        return value.ReadId(&session_);
      case kRound: {
        JsonId id;
        const absl::Status status = value.ReadId(&id);
        if (status.ok()) r.id = std::move(id.text);
        return status;
      }
      case kTotal:
        return value.ReadInteger(0, 2 * kMaxTraceLength, &total_);
      case kPrefix:
        return value.ReadInteger(0, kMaxTraceLength, &prefix_);
      case kAppended:
        return value.ReadInteger(0, kMaxTraceLength, &appended_);
      case kOutput:
        return value.ReadInteger(0, kMaxTraceLength, &r.output_length);
      default:
        return value.ReadList([&](JsonValue& event) { return ReadEvent(event, r, problems); });
    }
  }

  // Claude's rounds begin with what came in; Codex's end with the results of their own calls, for
  // which the next round waited.
  absl::Status ReadEvent(JsonValue& value, const TraceRequest& at,
                         std::vector<TraceProblem>* problems) {
    const absl::Time first = absl::UnixEpoch(), end = first + absl::Hours(24 * 100'001);
    std::string type, time;
    event_fields_.Begin(&at, problems, "timing_events: ");
    const absl::Status status = event_fields_.ReadObject(value, [&](int field, JsonValue& of_field) {
      return of_field.ReadString(field == kEventType ? &type : &time);
    });
    if (!status.ok() || !event_fields_.Seen(kTimestamp)) return status;
    const auto parsed = ParseAzureTimestamp(time);
    if (!parsed.ok() || *parsed < first || *parsed >= end) {
      event_fields_.Bad(ProblemKind::kValue,
                        absl::StrCat("timestamp: got ", Shown(time),
                                     ", expected a time like 2026-08-25T00:00:09.010Z"));
      return absl::OkStatus();
    }
    const int64_t ns = absl::ToUnixNanos(*parsed);
    if (type != "user_message" && type != "tool_result") {
      output_ns_ = std::max(output_ns_, ns);
      late_input_ns_ = kNoTime;
    } else if (output_ns_ == kNoTime) {
      input_ns_ = std::max(input_ns_, ns);
    } else {
      late_input_ns_ = std::max(late_input_ns_, ns);
    }
    return absl::OkStatus();
  }

  static int64_t BlocksOf(int64_t tokens) {
    return (tokens + kRoundBlockTokens - 1) / kRoundBlockTokens;
  }

  void JoinSession(Session* session, RawRow* row) {
    TraceRequest& r = row->request;
    row->has_timestamp = session->last_row < 0;  // then it starts at 0
    if (!row->has_timestamp) {
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
  int64_t total_ = 0, prefix_ = 0, appended_ = 0;
  int64_t input_ns_ = kNoTime;  // before its first output
  int64_t output_ns_ = kNoTime, late_input_ns_ = kNoTime;
};

}  // namespace

OpenedRows MakeTraceLabReader(std::unique_ptr<ByteSource> source, const TraceReaderOptions& options,
                              RowLog* log) {
  return OpenLineRows<TraceLabReader>(std::move(source), options, log);
}

}  // namespace kvblocks::sim
