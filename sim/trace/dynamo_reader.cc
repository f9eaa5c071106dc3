// Dynamo's request traces, dynamo.request.trace.v1 as JSONL: records of event_type request_end with
// request.request_received_ms (Unix), request.output_tokens and request.replay (trace_block_size,
// input_length, input_sequence_hashes). Other records are left out and counted. Hashes cover all
// blocks before them, so equal hashes mean equal prompts up to there. Times count from midnight
// (UTC) of the first row's day.
//
// Sessions are agent_context.session_id. With closed_loop a request waits for the one before it in
// its session and, if it is the session's first, for the last one of parent_session_id, as far as
// these had ended when it began; it thinks for the recorded time between, and its own time plays no
// part.

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

constexpr std::string_view kDynamoSchema = "dynamo.request.trace.v1";
constexpr int64_t kDynamoBlockTokens = 64;

class DynamoReader : public LineRows {
 public:
  DynamoReader(std::unique_ptr<ByteSource> source, const TraceReaderOptions& options, RowLog* log)
      : LineRows(std::move(source), options, log, "dynamo"),
        is_closed_loop_(options.closed_loop),
        block_size_rule_(options.trace_block_size, kDynamoBlockTokens, &info_),
        fields_({{"schema", kSchema},
                 {"event_type", kEventType},
                 {"event_time_unix_ms", kEventTime},
                 {"agent_context.session_id", kSession},
                 {"agent_context.parent_session_id", kParent},
                 {"request.request_id", kRequestId},
                 {"request.request_received_ms", kReceived},
                 {"request.output_tokens", kOutput},
                 {"request.replay.trace_block_size", kBlockSize},
                 {"request.replay.input_length", kInput},
                 {"request.replay.input_sequence_hashes", kHashes}},
                log, {"event_source", "request.model", "request.input_tokens"}) {}

  std::string dialect() const override {
    std::string text = is_closed_loop_ ? "closed loop" : "arrivals as recorded";
    if (num_others_ > 0) absl::StrAppend(&text, ", ", num_others_, " other records left out");
    return text;
  }

 private:
  enum Field {
    kSchema,
    kEventType,
    kEventTime,
    kSession,
    kParent,
    kRequestId,
    kReceived,
    kOutput,
    kBlockSize,
    kInput,
    kHashes,
  };
  // The last request of a session that the file has had so far.
  struct Last {
    int64_t row;
    int64_t end_ms;
  };

  void Parse(std::string_view text, RawRow&& at, std::vector<RawRow>* rows,
             std::vector<TraceProblem>* problems) override {
    RawRow row = std::move(at);
    schema_.clear();
    event_type_.clear();
    fields_.Begin(&row.request, problems);
    fields_.ParseLine(text, [&](int field, JsonValue& value) { return Read(field, value, &row); });
    if (!problems->empty() && problems->back().kind == ProblemKind::kSyntax) return;
    if (fields_.Seen(kEventType) && event_type_ != "request_end") {
      // Events of other kinds have other fields, whatever these hold.
      problems->clear();
      ++num_others_;
      return;
    }
    fields_.Require({kEventType, kSchema});
    if (fields_.Seen(kSchema) && schema_ != kDynamoSchema && problems->empty()) {
      fields_.Bad(ProblemKind::kValue, absl::StrCat("schema: got ", Shown(schema_), ", expected ",
                                                    Shown(kDynamoSchema)));
    }
    fields_.Require({kReceived, kOutput, kBlockSize, kInput, kHashes});
    if (fields_.Seen(kBlockSize)) {
      const std::string problem = block_size_rule_.Check(
          block_size_, "trace_block_size", problems->empty(), is_settled(), &info_);
      if (!problem.empty()) fields_.Bad(ProblemKind::kBlockSize, problem);
    }
    if (!problems->empty()) return;
    // ReadInteger has seen to it that the product is one.
    const absl::Status status =
        clock_.Since(absl::FromUnixNanos(received_ms_ * 1000000), absl::StrCat(received_ms_),
                     &info_.notes, &row.timestamp_ns);
    if (!status.ok()) {
      fields_.Bad(ProblemKind::kValue, absl::StrCat("request_received_ms: ", status.message()));
      return;
    }
    if (fields_.Seen(kSession)) JoinSession(&row);
    rows->push_back(std::move(row));
  }

  absl::Status Read(int field, JsonValue& value, RawRow* row) {
    constexpr int64_t kMostMs = INT64_MAX / 1000000;
    TraceRequest& r = row->request;
    switch (field) {
      case kSchema:
        return value.ReadString(&schema_);
      case kEventType:
        return value.ReadString(&event_type_);
      case kEventTime:
        return value.ReadInteger(0, kMostMs, &event_ms_);
      case kSession:
        return value.ReadId(&session_);
      case kParent:
        return value.ReadId(&parent_);
      case kRequestId: {
        JsonId id;
        const absl::Status status = value.ReadId(&id);
        if (status.ok()) r.id = std::move(id.text);
        return status;
      }
      case kReceived:
        return value.ReadInteger(0, kMostMs, &received_ms_);
      case kOutput:
        return value.ReadInteger(0, kMaxTraceLength, &r.output_length);
      case kBlockSize:
        return value.ReadInteger(1, kMaxTraceLength, &block_size_);
      case kInput:
        return value.ReadInteger(0, kMaxTraceLength, &r.input_length);
      default:
        return value.ReadHashes(&r.content_ids);
    }
  }

  void JoinSession(RawRow* row) {
    const uint64_t session = row->request.session = sessions_.NumberOf(session_);
    const auto own = last_.find(session);
    if (is_closed_loop_) {
      if (own != last_.end()) {
        WaitFor(own->second, row);
      } else if (fields_.Seen(kParent)) {
        const auto parent = last_.find(sessions_.NumberOf(parent_));
        if (parent != last_.end()) WaitFor(parent->second, row);
      }
    }
    const int64_t end_ms = fields_.Seen(kEventTime) ? event_ms_ : received_ms_;
    last_[session] = {row->request.row, end_ms};
  }

  // Only for what had ended: requests of one session may overlap.
  void WaitFor(const Last& last, RawRow* row) {
    if (last.end_ms > received_ms_) return;
    row->request.waits_for.push_back(last.row);
    row->request.think_ns = (received_ms_ - last.end_ms) * 1000000;
    row->has_timestamp = false;
  }

  const bool is_closed_loop_;
  BlockSizeRule block_size_rule_;
  JsonFields fields_;
  DayClock clock_;
  SessionNumbers sessions_;
  absl::flat_hash_map<uint64_t, Last> last_;
  int64_t num_others_ = 0;
  // Of the row being read.
  std::string schema_, event_type_;
  JsonId session_, parent_;
  int64_t event_ms_ = 0;
  int64_t received_ms_ = 0;
  int64_t block_size_ = 0;
};

}  // namespace

OpenedRows MakeDynamoReader(std::unique_ptr<ByteSource> source, const TraceReaderOptions& options,
                            RowLog* log) {
  return OpenLineRows<DynamoReader>(std::move(source), options, log);
}

}  // namespace kvblocks::sim
