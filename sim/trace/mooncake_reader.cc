// Mooncake JSONL and its dialects: one JSON object per line.
//
// Fields (aliases): timestamp (created_time) in ms, input_length (input_tokens), output_length
// (output_tokens), hash_ids, block_size (512 if absent; 0: lengths only, 1: hash_ids are token
// ids), request_id, session_id, delay (delay_ms), tool_wait_ms, wait_for, priority,
// output_token_ids. To carry every request through a conversion we also write and read turn,
// min_tokens, encoder_tokens, abort_after_ms, tenant, slo_class, adapter, cache_salt, accepted_drafts. Other fields
// are checked to be valid JSON and ignored; null means absent.
//
// Rows of one session_id form a closed loop: each waits for the one before it, unless it has its
// own wait_for list, which then stands alone. A row without timestamp must wait for something.
//
// sequence_hash_ids takes the place of hash_ids: the ids of the prompt's blocks and, in the same
// count, those of the output's behind them, so that later prompts can share outputs.
//
// AIPerf's rows without hash_ids are conversations: a turn's input_length is what is new in it, and
// its prompt is all of the session so far, outputs included, and then that. So are its contents.
// Rows without a session share nothing.

#include <algorithm>
#include <limits>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "kvblocks/sim/trace/json_fields.h"
#include "kvblocks/sim/trace/line_rows.h"
#include "kvblocks/sim/trace/trace_formats.h"

namespace kvblocks::sim {
namespace {

constexpr int64_t kMooncakeBlockTokens = 512;

class MooncakeReader : public LineRows {
 public:
  MooncakeReader(std::unique_ptr<ByteSource> source, const TraceReaderOptions& options, RowLog* log,
                 bool is_conversation)
      : LineRows(std::move(source), options, log, is_conversation ? "aiperf" : "mooncake"),
        is_conversation_(is_conversation),
        override_block_size_(is_conversation ? 0 : options.trace_block_size),
        fields_(Names(), log) {
    info_.block_tokens = override_block_size_ > 0 ? override_block_size_ : kMooncakeBlockTokens;
    if (is_conversation_) SetConversationInfo(&info_);
  }

  std::string dialect() const override {
    if (is_conversation_) return "prompts repeat the turns before";
    std::string names;
    for (size_t i = kNumPublishedFields; i < fields_.names().size(); ++i) {
      if ((fields_.used() >> i & 1) == 0) continue;
      absl::StrAppend(&names, names.empty() ? "with " : ", ", View(fields_.names()[i].path));
    }
    return names.empty() ? "fields as published" : names;
  }

 private:
  enum Field {
    kTimestamp,
    kInputLength,
    kOutputLength,
    kHashIds,
    kSequenceIds,
    kBlockSize,
    kRequestId,
    kSessionId,
    kDelay,
    kToolWait,
    kWaitFor,
    kPriority,
    kOutputTokenIds,
    kTurn,
    kMinTokens,
    kEncoderTokens,
    kAbortAfter,
    kTenant,
    kSloClass,
    kAdapter,
    kSalt,
    kAcceptedDrafts,
  };
  static constexpr size_t kNumPublishedFields = 4;
  static constexpr int kMsToNs = 6;

  // The published ones come first.
  static std::vector<JsonFields::Name> Names() {
    return {
        {"timestamp", kTimestamp},
        {"input_length", kInputLength},
        {"output_length", kOutputLength},
        {"hash_ids", kHashIds},
        {"sequence_hash_ids", kSequenceIds},
        {"created_time", kTimestamp},
        {"input_tokens", kInputLength},
        {"output_tokens", kOutputLength},
        {"block_size", kBlockSize},
        {"request_id", kRequestId},
        {"session_id", kSessionId},
        {"delay", kDelay},
        {"delay_ms", kDelay},
        {"tool_wait_ms", kToolWait},
        {"wait_for", kWaitFor},
        {"priority", kPriority},
        {"output_token_ids", kOutputTokenIds},
        {"turn", kTurn},
        {"min_tokens", kMinTokens},
        {"encoder_tokens", kEncoderTokens},
        {"abort_after_ms", kAbortAfter},
        {"tenant", kTenant},
        {"slo_class", kSloClass},
        {"adapter", kAdapter},
        {"cache_salt", kSalt},
        {"accepted_drafts", kAcceptedDrafts},
    };
  }

  void Parse(std::string_view text, RawRow&& at, std::vector<RawRow>* rows,
             std::vector<TraceProblem>* problems) override {
    RawRow row = std::move(at);
    row.has_timestamp = false;
    block_size_ = -1;
    has_session_ = false;
    fields_.Begin(&row.request, problems);
    fields_.ParseLine(text, [&](int field, JsonValue& value) {
      return ReadField(static_cast<Field>(field), value, &row);
    });
    if (!problems->empty() && problems->back().kind == ProblemKind::kSyntax) return;
    fields_.Require({kInputLength, kOutputLength});
    if (is_conversation_) {
      CheckNoContent();
    } else {
      CheckContent(problems->empty());
    }
    if (!problems->empty()) return;
    row.waits_for_session = has_session_ && !fields_.Seen(kWaitFor);
    // Numbered last, so that a bad row does not use up a number.
    if (has_session_) row.request.session = sessions_.NumberOf(session_);
    row.has_turn = fields_.Seen(kTurn);
    row.request.ids_cover_output = fields_.Seen(kSequenceIds);
    if (is_conversation_) AddHistory(&row.request);
    rows->push_back(std::move(row));
  }

  void CheckContent(bool is_good) {
    const int64_t block_tokens = SettleBlockSize(is_good);
    if (!fields_.Seen(kSequenceIds) && block_tokens != 0) fields_.Require({kHashIds});
  }

  // The block size that counts for the row. The first good row decides that of the file.
  int64_t SettleBlockSize(bool is_good) {
    if (override_block_size_ > 0) return override_block_size_;
    const int64_t size = block_size_ >= 0 ? block_size_ : kMooncakeBlockTokens;
    if (!is_settled() && !has_block_size_) {
      if (is_good) {
        info_.block_tokens = size;
        has_block_size_ = true;
      }
      return size;
    }
    const bool is_known = block_size_ >= 0 || !fields_.Seen(kBlockSize);
    if (is_known && size != info_.block_tokens) {
      fields_.Bad(ProblemKind::kBlockSize,
                  absl::StrCat("block_size: got ", size, ", expected ", info_.block_tokens,
                               " as in the first good row (--trace-block-size)"));
    }
    return info_.block_tokens;
  }

  void CheckNoContent() {
    for (const auto& [field, name] :
         {std::pair(kHashIds, "hash_ids"), std::pair(kSequenceIds, "sequence_hash_ids"),
          std::pair(kBlockSize, "block_size"), std::pair(kOutputTokenIds, "output_token_ids")}) {
      if (!fields_.Seen(field)) continue;
      fields_.Bad(ProblemKind::kValue,
                  absl::StrCat(name,
                               ": got it in a file whose first row has no hash_ids, expected "
                               "lengths only (--trace-format=mooncake)"));
    }
  }

  // The turns before belong to the prompt.
  void AddHistory(TraceRequest* request) {
    if (request->session == 0) return SetConversationContent(request);
    int64_t& history = history_[request->session];
    // What is too long is an error of this row, and of all that follow.
    request->input_length = std::min(request->input_length + history, kMaxTraceLength + 1);
    if (request->input_length <= kMaxTraceLength) SetConversationContent(request);
    history = std::min(request->input_length + request->output_length, kMaxTraceLength + 1);
  }

  absl::Status ReadField(Field field, JsonValue& value, RawRow* row) {
    constexpr int64_t kMaxUint32 = std::numeric_limits<uint32_t>::max();
    TraceRequest& r = row->request;
    switch (field) {
      case kTimestamp:
        row->has_timestamp = true;
        return value.ReadDecimal(kMsToNs, &row->timestamp_ns);
      case kInputLength:
        return value.ReadInteger(0, kMaxTraceLength, &r.input_length);
      case kOutputLength:
        return value.ReadInteger(0, kMaxTraceLength, &r.output_length);
      case kHashIds:
        // What is known of the whole sequence says more.
        if (fields_.Seen(kSequenceIds)) return ReadUnused(value);
        return value.ReadIntegers(&r.content_ids);
      case kSequenceIds:
        r.content_ids.clear();
        return value.ReadIntegers(&r.content_ids);
      case kBlockSize:
        return value.ReadInteger(0, kMaxTraceLength, &block_size_);
      case kRequestId: {
        JsonId id;
        absl::Status status = value.ReadId(&id);
        if (status.ok()) r.id = std::move(id.text);
        return status;
      }
      case kSessionId:
        has_session_ = true;
        return value.ReadId(&session_);
      case kDelay:
      case kToolWait: {
        int64_t ns = 0;
        if (absl::Status status = value.ReadDecimal(kMsToNs, &ns); !status.ok()) return status;
        if (ns > std::numeric_limits<int64_t>::max() - r.think_ns) {
          return absl::InvalidArgumentError("got a sum of delays above 2^63 ns, expected less");
        }
        r.think_ns += ns;
        return absl::OkStatus();
      }
      case kWaitFor: {
        std::vector<JsonId> ids;
        if (absl::Status status = value.ReadIds(&ids); !status.ok()) return status;
        for (JsonId& id : ids) row->wait_names.push_back(std::move(id.text));
        return absl::OkStatus();
      }
      case kPriority: {
        int64_t priority = 0;
        absl::Status status = value.ReadInteger(std::numeric_limits<int32_t>::min(),
                                                std::numeric_limits<int32_t>::max(), &priority);
        r.priority = static_cast<int32_t>(priority);
        return status;
      }
      case kOutputTokenIds:
        return value.ReadUint32s(&r.output_ids);
      case kTurn: {
        int64_t turn = 0;
        absl::Status status = value.ReadInteger(0, kMaxUint32, &turn);
        r.turn = static_cast<uint32_t>(turn);
        return status;
      }
      case kMinTokens:
        return value.ReadInteger(0, kMaxTraceLength, &r.min_tokens);
      case kEncoderTokens:
        return value.ReadInteger(0, kMaxTraceLength, &r.encoder_tokens.emplace());
      case kAbortAfter:
        return value.ReadDecimal(kMsToNs, &r.abort_after_ns);
      case kTenant:
        return value.ReadString(&r.tenant);
      case kSloClass:
        return value.ReadString(&r.slo_class);
      case kAdapter:
        return value.ReadString(&r.adapter);
      case kSalt:
        return value.ReadString(&r.salt);
      case kAcceptedDrafts:
        return value.ReadUint32s(&r.accepted_drafts);
    }
    return absl::OkStatus();
  }

  static absl::Status ReadUnused(JsonValue& value) {
    std::vector<int64_t> ids;
    return value.ReadIntegers(&ids);
  }

  const bool is_conversation_;
  const int64_t override_block_size_;
  JsonFields fields_;
  SessionNumbers sessions_;
  bool has_block_size_ = false;
  absl::flat_hash_map<uint64_t, int64_t> history_;  // tokens of each conversation so far
  // Of the row being read.
  int64_t block_size_ = -1;
  bool has_session_ = false;
  JsonId session_;
};

}  // namespace

OpenedRows MakeMooncakeReader(std::unique_ptr<ByteSource> source, const TraceReaderOptions& options,
                              RowLog* log) {
  return OpenLineRows<MooncakeReader>(std::move(source), options, log, false);
}

OpenedRows MakeAiperfReader(std::unique_ptr<ByteSource> source, const TraceReaderOptions& options,
                            RowLog* log) {
  return OpenLineRows<MooncakeReader>(std::move(source), options, log, true);
}

}  // namespace kvblocks::sim
