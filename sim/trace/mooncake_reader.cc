#include "sim/trace/mooncake_reader.h"

#include <array>
#include <limits>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "sim/trace/decimal.h"
#include "sim/trace/json_values.h"

namespace kvblocks::sim {
namespace {

constexpr int kMsToNs = 6;

enum Field {
  kTimestamp,
  kInputLength,
  kOutputLength,
  kHashIds,
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
  kAbortAfter,
  kTenant,
  kSloClass,
  kAdapter,
  kSalt,
  kAcceptedDrafts,
  kNumFields,
};

struct FieldName {
  std::string_view name;
  Field field;
};

constexpr std::array<FieldName, 24> kFieldNames = {{
    {"timestamp", kTimestamp},
    {"created_time", kTimestamp},
    {"input_length", kInputLength},
    {"input_tokens", kInputLength},
    {"output_length", kOutputLength},
    {"output_tokens", kOutputLength},
    {"hash_ids", kHashIds},
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
    {"abort_after_ms", kAbortAfter},
    {"tenant", kTenant},
    {"slo_class", kSloClass},
    {"adapter", kAdapter},
    {"cache_salt", kSalt},
    {"accepted_drafts", kAcceptedDrafts},
}};

// Session names to numbers. Positive integers are kept if the first session of the file is one;
// names are then numbered from 2^63 on, otherwise from 1.
class Sessions {
 public:
  uint64_t NumberOf(const JsonId& id) {
    constexpr uint64_t kHalf = uint64_t{1} << 63;
    const bool keep = id.is_integer && id.integer > 0;
    if (!decided_) {
      decided_ = true;
      keep_integers_ = keep;
      next_ = keep ? kHalf : 1;
    }
    if (keep && keep_integers_) return static_cast<uint64_t>(id.integer);
    const auto [it, inserted] = numbers_.try_emplace(id.text, next_);
    if (inserted) ++next_;
    return it->second;
  }

 private:
  bool decided_ = false;
  bool keep_integers_ = false;
  uint64_t next_ = 1;
  absl::flat_hash_map<std::string, uint64_t> numbers_;
};

class MooncakeReader : public RowSource {
 public:
  MooncakeReader(std::unique_ptr<ByteSource> source, const TraceReaderOptions& options, RowLog* log)
      : lines_(std::move(source), options, log),
        log_(log),
        override_block_size_(options.trace_block_size) {
    info_.format = "mooncake";
    info_.name = NameOfFile(*log);
  }

  // The first row decides the block size.
  absl::Status Open() {
    info_.block_tokens = override_block_size_ > 0 ? override_block_size_ : -1;
    absl::StatusOr<RowOutcome> first = Parse(&pending_row_, &pending_error_);
    if (!first.ok()) return first.status();
    if (info_.block_tokens < 0) info_.block_tokens = kMooncakeBlockTokens;
    pending_ = *first;
    has_pending_ = true;
    return absl::OkStatus();
  }

  absl::StatusOr<RowOutcome> Next(RawRow* row, std::string* error) override {
    if (!has_pending_) return Parse(row, error);
    has_pending_ = false;
    *row = std::move(pending_row_);
    *error = std::move(pending_error_);
    return pending_;
  }

  const TraceInfo& info() const override { return info_; }
  ReadProgress progress() const override { return lines_.progress(); }

 private:
  absl::StatusOr<RowOutcome> Parse(RawRow* row, std::string* error) {
    Line line;
    absl::StatusOr<RowOutcome> got = lines_.Next(&line, error);
    if (!got.ok() || *got == RowOutcome::kEnd) return got;
    const int64_t number = next_row_++;
    if (*got == RowOutcome::kBad) return got;
    *row = RawRow();
    row->request.row = number;
    row->request.line = line.number;
    int64_t column = 0;
    const absl::Status status = ParseObject(line.text, row, &column);
    if (status.ok()) return RowOutcome::kRow;
    const std::string_view message(status.message().data(), status.message().size());
    *error = column > 0 ? RowError(*log_, line.number, column, message)
                        : RowError(*log_, line.number, message);
    return RowOutcome::kBad;
  }

  absl::Status ParseObject(std::string_view text, RawRow* row, int64_t* column) {
    row->has_timestamp = false;
    block_size_ = -1;
    has_session_ = false;
    seen_ = 0;
    absl::Status status = json_.ForEachField(
        text, LineReader::kPadding,
        [&](std::string_view key, JsonValue& value) { return OnField(key, value, row); }, column);
    if (!status.ok()) return status;
    constexpr std::array<std::pair<Field, const char*>, 2> kRequired = {
        {{kInputLength, "input_length"}, {kOutputLength, "output_length"}}};
    for (const auto& [field, name] : kRequired) {
      if (!Seen(field)) return Missing(name);
    }
    if (absl::Status s = SettleBlockSize(); !s.ok()) return s;
    if (!Seen(kHashIds) && info_.block_tokens != 0) return Missing("hash_ids");
    row->waits_for_session = has_session_ && !Seen(kWaitFor);
    // Numbered last, so that a bad row does not use up a number.
    if (has_session_) row->request.session = sessions_.NumberOf(session_);
    row->has_turn = Seen(kTurn);
    return absl::OkStatus();
  }

  bool Seen(Field field) const { return (seen_ >> field & 1) != 0; }

  static absl::Status Missing(const char* name) {
    return absl::InvalidArgumentError(
        absl::StrCat("field ", name, ": got nothing, expected a value"));
  }

  absl::Status SettleBlockSize() {
    if (override_block_size_ > 0) return absl::OkStatus();
    const int64_t size = block_size_ >= 0 ? block_size_ : kMooncakeBlockTokens;
    if (info_.block_tokens < 0) info_.block_tokens = size;
    if (size == info_.block_tokens) return absl::OkStatus();
    return absl::InvalidArgumentError(absl::StrCat("block_size: got ", size, ", expected ",
                                                   info_.block_tokens,
                                                   " as in the first row (--trace-block-size)"));
  }

  absl::Status OnField(std::string_view key, JsonValue& value, RawRow* row) {
    const FieldName* found = nullptr;
    for (const FieldName& name : kFieldNames) {
      if (name.name == key) found = &name;
    }
    if (found == nullptr) return value.Skip();
    // `key` points into the parser's buffer for strings, which reading the value may overwrite.
    const std::string_view name = found->name;
    absl::StatusOr<bool> null = value.IsNull();
    if (!null.ok()) return Named(name, null.status());
    if (*null) return absl::OkStatus();
    if (Seen(found->field)) {
      return absl::InvalidArgumentError(
          absl::StrCat("field ", absl::string_view(name.data(), name.size()),
                       ": got it twice (or under two names), expected once"));
    }
    seen_ |= uint64_t{1} << found->field;
    return Named(name, ReadField(found->field, value, row));
  }

  static absl::Status Named(std::string_view name, const absl::Status& status) {
    if (status.ok()) return status;
    return absl::Status(status.code(), absl::StrCat(absl::string_view(name.data(), name.size()),
                                                    ": ", status.message()));
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
      case kNumFields:
        break;
    }
    return absl::OkStatus();
  }

  RowLines lines_;
  RowLog* log_;
  int64_t override_block_size_;
  TraceInfo info_;
  JsonObjectReader json_;
  Sessions sessions_;
  int64_t next_row_ = 0;
  // Of the row being read.
  uint64_t seen_ = 0;
  int64_t block_size_ = -1;
  bool has_session_ = false;
  JsonId session_;

  bool has_pending_ = false;
  RowOutcome pending_ = RowOutcome::kEnd;
  RawRow pending_row_;
  std::string pending_error_;
};

}  // namespace

absl::StatusOr<std::unique_ptr<RowSource>> MakeMooncakeReader(std::unique_ptr<ByteSource> source,
                                                              const TraceReaderOptions& options,
                                                              RowLog* log) {
  auto reader = std::make_unique<MooncakeReader>(std::move(source), options, log);
  if (absl::Status status = reader->Open(); !status.ok()) return status;
  return std::unique_ptr<RowSource>(std::move(reader));
}

}  // namespace kvblocks::sim
