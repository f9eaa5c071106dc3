// LLMServingSim's JSONL. Flat rows: input_toks, output_toks, arrival_time_ns, and input_tok_ids and
// output_tok_ids if there. Sessions: session_id, arrival_time_ns and sub_requests, each with
// input_toks, output_toks, token ids if there, and tool_duration_ns, after which the next one
// follows. Both may stand in one file. Either all requests have ids of their prompts or none has;
// without them nothing is shared. A session is good or bad as a whole.

#include <string>
#include <utility>
#include <vector>

#include "absl/container/flat_hash_set.h"
#include "absl/strings/str_cat.h"
#include "kvblocks/sim/trace/json_fields.h"
#include "kvblocks/sim/trace/line_rows.h"
#include "kvblocks/sim/trace/trace_formats.h"

namespace kvblocks::sim {
namespace {

class LlmServingSimReader : public LineRows {
 public:
  LlmServingSimReader(std::unique_ptr<ByteSource> source, const TraceReaderOptions& options,
                      RowLog* log)
      : LineRows(std::move(source), options, log, "llmservingsim"),
        fields_({{"arrival_time_ns", kArrival},
                 {"session_id", kSession},
                 {"sub_requests", kRequests},
                 {"input_toks", kInput},
                 {"output_toks", kOutput},
                 {"input_tok_ids", kInputIds},
                 {"output_tok_ids", kOutputIds}},
                log),
        request_fields_({{"input_toks", kInput},
                         {"output_toks", kOutput},
                         {"input_tok_ids", kInputIds},
                         {"output_tok_ids", kOutputIds},
                         {"tool_duration_ns", kTool}},
                        log) {}

  std::string dialect() const override {
    return info_.block_tokens == 1 ? "with token ids" : "lengths only";
  }

 private:
  enum Field { kArrival, kSession, kRequests, kInput, kOutput, kInputIds, kOutputIds, kTool };
  // More are not worth telling.
  static constexpr size_t kMostTold = 20;

  void Parse(std::string_view text, RawRow&& at, std::vector<RawRow>* rows,
             std::vector<TraceProblem>* problems) override {
    RawRow row = std::move(at);
    const TraceRequest place = row.request;
    num_with_ids_ = 0;
    tool_ns_ = 0;
    fields_.Begin(&place, problems);
    fields_.ParseLine(text, [&](int field, JsonValue& value) {
      switch (field) {
        case kArrival:
          return value.ReadInteger(0, INT64_MAX, &row.timestamp_ns);
        case kSession:
          return value.ReadId(&session_);
        case kRequests:
          return value.ReadList(
              [&](JsonValue& element) { return ReadSubRequest(element, place, rows, problems); });
        default:
          return Read(field, value, &row.request);
      }
    });
    if (!problems->empty()) return;
    fields_.Require({kArrival});
    if (fields_.Seen(kRequests)) {
      FinishSession(row, place.row, rows);
    } else {
      fields_.Require({kInput, kOutput});
      num_with_ids_ = fields_.Seen(kInputIds) ? 1 : 0;
      rows->push_back(std::move(row));
    }
    if (problems->empty()) CheckIds(rows);
    if (problems->empty() && fields_.Seen(kRequests)) names_.insert(session_.text);
  }

  absl::Status Read(int field, JsonValue& value, TraceRequest* r) {
    switch (field) {
      case kInput:
        return value.ReadInteger(0, kMaxTraceLength, &r->input_length);
      case kOutput:
        return value.ReadInteger(0, kMaxTraceLength, &r->output_length);
      case kInputIds:
        return value.ReadIntegers(&r->content_ids);
      case kOutputIds:
        return value.ReadUint32s(&r->output_ids);
      default:
        return value.ReadInteger(0, INT64_MAX, &tool_ns_);
    }
  }

  absl::Status ReadSubRequest(JsonValue& value, const TraceRequest& place,
                              std::vector<RawRow>* rows, std::vector<TraceProblem>* problems) {
    RawRow& row = rows->emplace_back();
    row.request.think_ns = rows->size() == 1 ? 0 : tool_ns_;
    tool_ns_ = 0;
    request_fields_.Begin(&place, problems, absl::StrCat("sub_requests[", rows->size() - 1, "]: "));
    const absl::Status status = request_fields_.ReadObject(
        value, [&](int field, JsonValue& inner) { return Read(field, inner, &row.request); });
    if (!status.ok()) return status;
    request_fields_.Require({kInput, kOutput});
    if (request_fields_.Seen(kInputIds)) ++num_with_ids_;
    return problems->size() < kMostTold ? absl::OkStatus()
                                        : absl::CancelledError("enough problems");
  }

  void FinishSession(const RawRow& first, int64_t first_row, std::vector<RawRow>* rows) {
    for (const Field field : {kInput, kOutput, kInputIds, kOutputIds}) {
      if (!fields_.Seen(field)) continue;
      fields_.Bad(ProblemKind::kValue,
                  "sub_requests: got them beside lengths or ids of one request, expected either");
      break;
    }
    if (rows->empty()) {
      fields_.Bad(ProblemKind::kValue, "sub_requests: got none, expected at least one");
      return;
    }
    // Sessions without a name are named by their place.
    if (!fields_.Seen(kSession)) session_.text = absl::StrCat("row ", first_row);
    if (names_.contains(session_.text)) {
      fields_.Bad(ProblemKind::kDuplicateId,
                  absl::StrCat("session_id: got ", Shown(session_.text),
                               ", that of an earlier session, expected each id once"));
    }
    const uint64_t session = names_.size() + 1;
    for (size_t i = 0; i < rows->size(); ++i) {
      RawRow& row = (*rows)[i];
      row.request.session = session;
      row.has_turn = true;
      row.request.turn = static_cast<uint32_t>(i);
      row.has_timestamp = i == 0;
      row.timestamp_ns = i == 0 ? first.timestamp_ns : 0;
      if (i > 0) row.request.waits_for.push_back(first_row + static_cast<int64_t>(i) - 1);
    }
  }

  void CheckIds(std::vector<RawRow>* rows) {
    const bool has_ids = num_with_ids_ > 0;
    if (num_with_ids_ != 0 && num_with_ids_ != rows->size()) {
      fields_.Bad(ProblemKind::kContentIds,
                  absl::StrCat("input_tok_ids: got them in ", num_with_ids_, " of ", rows->size(),
                               " requests of the session, expected them in all or none"));
      return;
    }
    if (!is_settled() && !is_decided_) info_.block_tokens = has_ids ? 1 : 0;
    is_decided_ = true;
    if (has_ids == (info_.block_tokens == 1)) return;
    fields_.Bad(ProblemKind::kContentIds,
                absl::StrCat("input_tok_ids: got ", has_ids ? "a list" : "nothing", ", expected ",
                             has_ids ? "none" : "a list", " as in the first good row"));
  }

  JsonFields fields_;
  JsonFields request_fields_;
  bool is_decided_ = false;
  absl::flat_hash_set<std::string> names_;  // of good sessions
  // Of the line being read.
  JsonId session_;
  int64_t tool_ns_ = 0;  // after the last request
  size_t num_with_ids_ = 0;
};

}  // namespace

OpenedRows MakeLlmServingSimReader(std::unique_ptr<ByteSource> source,
                                   const TraceReaderOptions& options, RowLog* log) {
  return OpenLineRows<LlmServingSimReader>(std::move(source), options, log);
}

}  // namespace kvblocks::sim
