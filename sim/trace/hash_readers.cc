// Traces of hashes with sessions: Qwen-Bailian's and Dynamo's.

#include <algorithm>
#include <string>
#include <utility>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "absl/strings/str_cat.h"
#include "sim/trace/json_fields.h"
#include "sim/trace/line_rows.h"
#include "sim/trace/row_source.h"

namespace kvblocks::sim {
namespace {

// Qwen-Bailian's JSONL: chat_id, parent_chat_id (-1 or absent: none), timestamp (s), input_length,
// output_length, type, turn (from 1), hash_ids (16 tokens each). The requests of one conversation
// are a session. As recorded they arrive at their own times; with closed_loop a request waits for
// its parent as well. A parent that is not in the file, as in parts of longer traces, still joins
// its children in one session.

constexpr int64_t kBailianBlockTokens = 16;

class BailianReader : public LineRows {
 public:
  explicit BailianReader(RowInput& input)
      : LineRows(input),
        is_closed_loop_(input.options.closed_loop),
        fields_({{"chat_id", By(&JsonValue::ReadName, &row_.request.id)},
                 {"parent_chat_id", By(&JsonValue::ReadId, &parent_)},
                 {"timestamp", By(&JsonValue::ReadDecimal, 9, &row_.timestamp_ns)},
                 {"input_length", By(&JsonValue::ReadLength, &row_.request.input_length)},
                 {"output_length", By(&JsonValue::ReadLength, &row_.request.output_length)},
                 {"turn", Whole(1, kMaxTraceLength, &turn_)},
                 {"hash_ids", By(&JsonValue::ReadHashes, &row_.request.content_ids)},
                 {"type", By(&JsonValue::ReadString, &row_.request.slo_class)}},
                input.log) {
    const int64_t given = input.options.trace_block_size;
    info_.block_tokens = given > 0 ? given : kBailianBlockTokens;
  }

  std::string dialect() const override { return is_closed_loop_ ? "closed loop" : ""; }

 private:
  // Of a request that later ones may name as their parent.
  struct Chat {
    uint64_t session;
    bool is_in_file;
  };

  void Parse(std::string_view text) override {
    parent_ = JsonId();
    turn_ = 1;
    if (!fields_.ParseLine(text, &row_.request, problems_,
                           {"chat_id", "timestamp", "input_length", "output_length", "hash_ids"})) {
      return;
    }
    if (parent_.is_integer && parent_.integer < 0) parent_.text.clear();
    JoinConversation();
    AddRow();
  }

  void JoinConversation() {
    uint64_t session = 0;
    if (!parent_.text.empty()) {
      const auto [it, inserted] = chats_.try_emplace(parent_.text, Chat{next_session_, false});
      if (inserted) ++next_session_;
      session = it->second.session;
      if (is_closed_loop_ && it->second.is_in_file) row_.wait_names.push_back(parent_.text);
    }
    const auto [it, inserted] =
        chats_.try_emplace(row_.request.id, Chat{session != 0 ? session : next_session_, true});
    if (inserted && session == 0) ++next_session_;
    // Named as a parent before: children of it came first.
    if (!inserted && !it->second.is_in_file) it->second.is_in_file = true;
    row_.request.session = it->second.session;
    row_.request.turn = static_cast<uint32_t>(turn_ - 1);
    row_.has_turn = true;
  }

  const bool is_closed_loop_;
  JsonFields fields_;
  absl::flat_hash_map<std::string, Chat> chats_;
  uint64_t next_session_ = 1;
  JsonId parent_;
  int64_t turn_ = 1;
};

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

constexpr std::string_view kDynamoSchema = "dynamo.request.trace.v1";
constexpr int64_t kDynamoBlockTokens = 64;

class DynamoReader : public LineRows {
 public:
  explicit DynamoReader(RowInput& input)
      : LineRows(input),
        is_closed_loop_(input.options.closed_loop),
        block_size_rule_(input.options.trace_block_size, kDynamoBlockTokens, &info_),
        fields_({{"schema", By(&JsonValue::ReadString, &schema_)},
                 {"event_type", By(&JsonValue::ReadString, &event_type_)},
                 {"event_time_unix_ms", Whole(0, kMostMs, &event_ms_)},
                 {"agent_context.session_id", By(&JsonValue::ReadId, &session_)},
                 {"agent_context.parent_session_id", By(&JsonValue::ReadId, &parent_)},
                 {"request.request_id", By(&JsonValue::ReadName, &row_.request.id)},
                 {"request.request_received_ms", Whole(0, kMostMs, &received_ms_)},
                 {"request.output_tokens", By(&JsonValue::ReadLength, &row_.request.output_length)},
                 {"request.replay.trace_block_size", Whole(1, kMaxTraceLength, &block_size_)},
                 {"request.replay.input_length",
                  By(&JsonValue::ReadLength, &row_.request.input_length)},
                 {"request.replay.input_sequence_hashes",
                  By(&JsonValue::ReadHashes, &row_.request.content_ids)}},
                input.log, {"event_source", "request.model", "request.input_tokens"}) {}

  std::string dialect() const override {
    std::string text = is_closed_loop_ ? "closed loop" : "arrivals as recorded";
    if (num_others_ > 0) absl::StrAppend(&text, ", ", num_others_, " other records left out");
    return text;
  }

 private:
  static constexpr int64_t kMostMs = INT64_MAX / 1000000;
  // The last request of a session that the file has had so far.
  struct Last {
    int64_t row;
    int64_t end_ms;
  };

  void Parse(std::string_view text) override {
    schema_.clear();
    event_type_.clear();
    if (!fields_.ParseLine(text, &row_.request, problems_)) return;
    if (fields_.Seen("event_type") && event_type_ != "request_end") {
      // Events of other kinds have other fields, whatever these hold.
      problems_->clear();
      ++num_others_;
      return;
    }
    fields_.Require({"event_type", "schema"});
    if (fields_.Seen("schema") && schema_ != kDynamoSchema && problems_->empty()) {
      Bad(ProblemKind::kValue,
          absl::StrCat("schema: got ", Shown(schema_), ", expected ", Shown(kDynamoSchema)));
    }
    fields_.Require({"request.request_received_ms", "request.output_tokens",
                     "request.replay.trace_block_size", "request.replay.input_length",
                     "request.replay.input_sequence_hashes"});
    if (fields_.Seen("request.replay.trace_block_size")) {
      const std::string problem = block_size_rule_.Check(
          block_size_, "trace_block_size", problems_->empty(), is_settled(), &info_);
      if (!problem.empty()) Bad(ProblemKind::kBlockSize, problem);
    }
    if (!problems_->empty()) return;
    // The product is one: kMostMs.
    const absl::Status status =
        clock_.Since(absl::FromUnixNanos(received_ms_ * 1000000), absl::StrCat(received_ms_),
                     &info_.notes, &row_.timestamp_ns);
    if (!status.ok()) {
      return Bad(ProblemKind::kValue, absl::StrCat("request_received_ms: ", status.message()));
    }
    if (fields_.Seen("agent_context.session_id")) JoinSession();
    AddRow();
  }

  void JoinSession() {
    const uint64_t session = row_.request.session = sessions_.NumberOf(session_);
    const auto own = last_.find(session);
    if (is_closed_loop_) {
      if (own != last_.end()) {
        WaitFor(own->second);
      } else if (fields_.Seen("agent_context.parent_session_id")) {
        const auto parent = last_.find(sessions_.NumberOf(parent_));
        if (parent != last_.end()) WaitFor(parent->second);
      }
    }
    const int64_t end_ms = fields_.Seen("event_time_unix_ms") ? event_ms_ : received_ms_;
    last_[session] = {row_.request.row, end_ms};
  }

  // Only for what had ended: requests of one session may overlap.
  void WaitFor(const Last& last) {
    if (last.end_ms > received_ms_) return;
    row_.request.waits_for.push_back(last.row);
    row_.request.think_ns = (received_ms_ - last.end_ms) * 1000000;
    row_.has_timestamp = false;
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

OpenedRows MakeBailianReader(RowInput& input) { return OpenLineRows<BailianReader>(input); }

OpenedRows MakeDynamoReader(RowInput& input) { return OpenLineRows<DynamoReader>(input); }

}  // namespace kvblocks::sim
