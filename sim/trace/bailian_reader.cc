// Qwen-Bailian's JSONL: chat_id, parent_chat_id (-1 or absent: none), timestamp (s), input_length,
// output_length, type, turn (from 1), hash_ids (16 tokens each). The requests of one conversation
// are a session. As recorded they arrive at their own times; with closed_loop a request waits for
// its parent as well. A parent that is not in the file, as in parts of longer traces, still joins
// its children in one session.

#include <string>
#include <utility>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "kvblocks/sim/trace/json_fields.h"
#include "kvblocks/sim/trace/line_rows.h"
#include "kvblocks/sim/trace/trace_formats.h"

namespace kvblocks::sim {
namespace {

constexpr int64_t kBailianBlockTokens = 16;

class BailianReader : public LineRows {
 public:
  BailianReader(std::unique_ptr<ByteSource> source, const TraceReaderOptions& options, RowLog* log)
      : LineRows(std::move(source), options, log, "bailian"),
        is_closed_loop_(options.closed_loop),
        fields_({{"chat_id", kChat},
                 {"parent_chat_id", kParent},
                 {"timestamp", kTimestamp},
                 {"input_length", kInput},
                 {"output_length", kOutput},
                 {"turn", kTurn},
                 {"hash_ids", kHashIds},
                 {"type", kType}},
                log) {
    info_.block_tokens =
        options.trace_block_size > 0 ? options.trace_block_size : kBailianBlockTokens;
  }

  std::string dialect() const override { return is_closed_loop_ ? "closed loop" : ""; }

 private:
  enum Field { kChat, kParent, kTimestamp, kInput, kOutput, kTurn, kHashIds, kType };
  // Of a request that later ones may name as their parent.
  struct Chat {
    uint64_t session;
    bool is_in_file;
  };

  void Parse(std::string_view text, RawRow&& at, std::vector<RawRow>* rows,
             std::vector<TraceProblem>* problems) override {
    RawRow row = std::move(at);
    parent_.clear();
    turn_ = 1;
    fields_.Begin(&row.request, problems);
    fields_.ParseLine(text, [&](int field, JsonValue& value) { return Read(field, value, &row); });
    if (!problems->empty() && problems->back().kind == ProblemKind::kSyntax) return;
    fields_.Require({kChat, kTimestamp, kInput, kOutput, kHashIds});
    if (!problems->empty()) return;
    JoinConversation(&row);
    rows->push_back(std::move(row));
  }

  absl::Status Read(int field, JsonValue& value, RawRow* row) {
    constexpr int kSecondsToNs = 9;
    TraceRequest& r = row->request;
    JsonId id;
    switch (field) {
      case kChat: {
        const absl::Status status = value.ReadId(&id);
        if (status.ok()) r.id = std::move(id.text);
        return status;
      }
      case kParent: {
        const absl::Status status = value.ReadId(&id);
        if (status.ok() && !(id.is_integer && id.integer < 0)) parent_ = std::move(id.text);
        return status;
      }
      case kTimestamp:
        return value.ReadDecimal(kSecondsToNs, &row->timestamp_ns);
      case kInput:
        return value.ReadInteger(0, kMaxTraceLength, &r.input_length);
      case kOutput:
        return value.ReadInteger(0, kMaxTraceLength, &r.output_length);
      case kTurn:
        return value.ReadInteger(1, kMaxTraceLength, &turn_);
      case kHashIds:
        return value.ReadHashes(&r.content_ids);
      default:
        return value.ReadString(&r.slo_class);
    }
  }

  void JoinConversation(RawRow* row) {
    uint64_t session = 0;
    if (!parent_.empty()) {
      const auto [it, inserted] = chats_.try_emplace(parent_, Chat{next_session_, false});
      if (inserted) ++next_session_;
      session = it->second.session;
      if (is_closed_loop_ && it->second.is_in_file) row->wait_names.push_back(parent_);
    }
    const auto [it, inserted] =
        chats_.try_emplace(row->request.id, Chat{session != 0 ? session : next_session_, true});
    if (inserted && session == 0) ++next_session_;
    // Named as a parent before: children of it came first.
    if (!inserted && !it->second.is_in_file) it->second.is_in_file = true;
    row->request.session = it->second.session;
    row->request.turn = static_cast<uint32_t>(turn_ - 1);
    row->has_turn = true;
  }

  const bool is_closed_loop_;
  JsonFields fields_;
  absl::flat_hash_map<std::string, Chat> chats_;
  uint64_t next_session_ = 1;
  // Of the row being read.
  std::string parent_;
  int64_t turn_ = 1;
};

}  // namespace

OpenedRows MakeBailianReader(std::unique_ptr<ByteSource> source, const TraceReaderOptions& options,
                             RowLog* log) {
  return OpenLineRows<BailianReader>(std::move(source), options, log);
}

}  // namespace kvblocks::sim
