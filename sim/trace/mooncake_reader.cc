// Mooncake JSONL and its dialects: one JSON object per line.
//
// Fields (aliases): timestamp (created_time) in ms, input_length (input_tokens), output_length
// (output_tokens), hash_ids, block_size (512 if absent; 0: lengths only, 1: hash_ids are token
// ids), request_id, session_id, delay (delay_ms), tool_wait_ms, wait_for, priority,
// output_token_ids. To carry every request through a conversion we also write and read turn,
// min_tokens, encoder_tokens, abort_after_ms, tenant, slo_class, adapter, cache_salt,
// accepted_drafts. Other fields are checked to be valid JSON and ignored; null means absent.
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
#include "checks/status_macros.h"
#include "sim/trace/json_fields.h"
#include "sim/trace/line_rows.h"
#include "sim/trace/row_source.h"

namespace kvblocks::sim {
namespace {

constexpr int64_t kMooncakeBlockTokens = 512;

class MooncakeReader : public LineRows {
 public:
  explicit MooncakeReader(RowInput& input)
      : LineRows(input),
        is_conversation_(input.format == "aiperf"),
        override_block_size_(is_conversation_ ? 0 : input.options.trace_block_size),
        fields_(Fields(), input.log) {
    info_.block_tokens = override_block_size_ > 0 ? override_block_size_ : kMooncakeBlockTokens;
    if (is_conversation_) SetConversationInfo(&info_);
  }

  std::string dialect() const override {
    if (is_conversation_) return "prompts repeat the turns before";
    std::string names;
    for (size_t i = kNumPublishedFields; i < fields_.fields().size(); ++i) {
      if ((fields_.used() >> i & 1) == 0) continue;
      absl::StrAppend(&names, names.empty() ? "with " : ", ", View(fields_.fields()[i].path));
    }
    return names.empty() ? "fields as published" : names;
  }

 private:
  static constexpr size_t kNumPublishedFields = 4;
  static constexpr int kMsToNs = 6;

  // The published ones come first.
  std::vector<JsonFields::Field> Fields() {
    TraceRequest& r = row_.request;
    constexpr int64_t kMaxUint32 = std::numeric_limits<uint32_t>::max();
    using Priority = std::numeric_limits<int32_t>;
    const auto delay = [this](JsonValue& value) { return ReadDelay(value); };
    return {
        {"timestamp", By(&JsonValue::ReadDecimal, kMsToNs, &row_.timestamp_ns)},
        {"input_length", By(&JsonValue::ReadLength, &r.input_length)},
        {"output_length", By(&JsonValue::ReadLength, &r.output_length)},
        {"hash_ids", By(&JsonValue::ReadIntegers, &hash_ids_)},
        {"sequence_hash_ids", By(&JsonValue::ReadIntegers, &r.content_ids)},
        {"created_time", "timestamp"},
        {"input_tokens", "input_length"},
        {"output_tokens", "output_length"},
        {"block_size", Whole(0, kMaxTraceLength, &block_size_)},
        {"request_id", By(&JsonValue::ReadName, &r.id)},
        {"session_id", By(&JsonValue::ReadId, &session_)},
        {"delay", delay},
        {"delay_ms", "delay"},
        {"tool_wait_ms", delay},
        {"wait_for", By(&JsonValue::ReadNames, &row_.wait_names)},
        {"priority", Whole(Priority::min(), Priority::max(), &r.priority)},
        {"output_token_ids", By(&JsonValue::ReadUint32s, &r.output_ids)},
        {"turn", Whole(0, kMaxUint32, &r.turn)},
        {"min_tokens", By(&JsonValue::ReadLength, &r.min_tokens)},
        {"encoder_tokens",
         [&r](JsonValue& value) { return value.ReadLength(&r.encoder_tokens.emplace()); }},
        {"abort_after_ms", By(&JsonValue::ReadDecimal, kMsToNs, &r.abort_after_ns)},
        {"tenant", By(&JsonValue::ReadString, &r.tenant)},
        {"slo_class", By(&JsonValue::ReadString, &r.slo_class)},
        {"adapter", By(&JsonValue::ReadString, &r.adapter)},
        {"cache_salt", By(&JsonValue::ReadString, &r.salt)},
        {"accepted_drafts", By(&JsonValue::ReadUint32s, &r.accepted_drafts)},
    };
  }

  void Parse(std::string_view text) override {
    block_size_ = -1;
    hash_ids_.clear();
    if (!fields_.ParseLine(text, &row_.request, problems_)) return;
    fields_.Require({"input_length", "output_length"});
    if (is_conversation_) {
      CheckNoContent();
    } else {
      CheckContent(problems_->empty());
    }
    if (!problems_->empty()) return;
    row_.has_timestamp = fields_.Seen("timestamp");
    const bool has_session = fields_.Seen("session_id");
    row_.waits_for_session = has_session && !fields_.Seen("wait_for");
    // Numbered last, so that a bad row does not use up a number.
    if (has_session) row_.request.session = sessions_.NumberOf(session_);
    row_.has_turn = fields_.Seen("turn");
    // What is known of the whole sequence says more.
    row_.request.ids_cover_output = fields_.Seen("sequence_hash_ids");
    if (!row_.request.ids_cover_output) row_.request.content_ids.swap(hash_ids_);
    if (is_conversation_) AddHistory(&row_.request);
    AddRow();
  }

  void CheckContent(bool is_good) {
    const int64_t block_tokens = SettleBlockSize(is_good);
    if (!fields_.Seen("sequence_hash_ids") && block_tokens != 0) fields_.Require({"hash_ids"});
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
    const bool is_known = block_size_ >= 0 || !fields_.Seen("block_size");
    if (is_known && size != info_.block_tokens) {
      Bad(ProblemKind::kBlockSize,
                  absl::StrCat("block_size: got ", size, ", expected ", info_.block_tokens,
                               " as in the first good row (--trace-block-size)"));
    }
    return info_.block_tokens;
  }

  void CheckNoContent() {
    for (const absl::string_view name :
         {"hash_ids", "sequence_hash_ids", "block_size", "output_token_ids"}) {
      if (!fields_.Seen({name.data(), name.size()})) continue;
      Bad(ProblemKind::kValue,
          absl::StrCat(name,
                       ": got it in a file whose first row has no hash_ids, expected lengths only "
                       "(--trace-format=mooncake)"));
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

  absl::Status ReadDelay(JsonValue& value) {
    int64_t ns = 0;
    KVBLOCKS_RETURN_IF_ERROR(value.ReadDecimal(kMsToNs, &ns));
    int64_t& sum = row_.request.think_ns;
    if (__builtin_add_overflow(sum, ns, &sum)) {
      return absl::InvalidArgumentError("got a sum of delays above 2^63 ns, expected less");
    }
    return absl::OkStatus();
  }

  const bool is_conversation_;
  const int64_t override_block_size_;
  JsonFields fields_;
  SessionNumbers sessions_;
  bool has_block_size_ = false;
  absl::flat_hash_map<uint64_t, int64_t> history_;  // tokens of each conversation so far
  // Of the row being read.
  int64_t block_size_ = -1;
  std::vector<int64_t> hash_ids_;
  JsonId session_;
};

}  // namespace

OpenedRows MakeMooncakeReader(RowInput& input) { return OpenLineRows<MooncakeReader>(input); }

}  // namespace kvblocks::sim
