#include "kvblocks/sim/trace/mooncake_reader.h"

#include <algorithm>
#include <array>
#include <deque>
#include <limits>
#include <set>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "kvblocks/sim/trace/decimal.h"
#include "kvblocks/sim/trace/json_values.h"

namespace kvblocks::sim {
namespace {

constexpr int kMsToNs = 6;
// How many bad rows a file may begin with until the block size is taken to be the usual one.
constexpr size_t kMostPendingRows = 1000;
// Fields that are not read: how many different ones are reported.
constexpr size_t kMostUnknownColumns = 50;
constexpr size_t kNumPublishedFields = 4;

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

// The published ones come first.
constexpr std::array<FieldName, 24> kFieldNames = {{
    {"timestamp", kTimestamp},
    {"input_length", kInputLength},
    {"output_length", kOutputLength},
    {"hash_ids", kHashIds},
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

  // The first good row decides the block size.
  absl::Status Open() {
    info_.block_tokens = override_block_size_ > 0 ? override_block_size_ : -1;
    while (pending_.size() < kMostPendingRows) {
      Pending& next = pending_.emplace_back();
      next.outcome = Parse(&next.row, &next.problems);
      if (!next.outcome.ok() && pending_.size() == 1) return next.outcome.status();
      if (!next.outcome.ok() || *next.outcome != RowOutcome::kBad) break;
    }
    if (info_.block_tokens < 0) info_.block_tokens = kMooncakeBlockTokens;
    return absl::OkStatus();
  }

  absl::StatusOr<RowOutcome> Next(RawRow* row, std::vector<TraceProblem>* problems) override {
    if (pending_.empty()) return Parse(row, problems);
    Pending next = std::move(pending_.front());
    pending_.pop_front();
    *row = std::move(next.row);
    *problems = std::move(next.problems);
    return next.outcome;
  }

  std::string dialect() const override {
    std::string names;
    for (size_t i = kNumPublishedFields; i < kFieldNames.size(); ++i) {
      if ((used_ >> i & 1) == 0) continue;
      const std::string_view name = kFieldNames[i].name;
      absl::StrAppend(&names, names.empty() ? "with " : ", ",
                      absl::string_view(name.data(), name.size()));
    }
    return names.empty() ? "fields as published" : names;
  }

  const TraceInfo& info() const override { return info_; }
  ReadProgress progress() const override { return lines_.progress(); }

 private:
  absl::StatusOr<RowOutcome> Parse(RawRow* row, std::vector<TraceProblem>* problems) {
    Line line;
    TraceProblem problem;
    absl::StatusOr<RowOutcome> got = lines_.Next(&line, &problem);
    if (!got.ok() || *got == RowOutcome::kEnd) return got;
    *row = RawRow();
    row->request.row = next_row_++;
    row->request.line = line.number;
    if (*got == RowOutcome::kBad) {
      problem.row = row->request.row;
      problems->push_back(std::move(problem));
      return got;
    }
    problems_ = problems;
    ParseObject(line.text, row);
    return problems->empty() ? RowOutcome::kRow : RowOutcome::kBad;
  }

  void Bad(ProblemKind kind, const RawRow& row, std::string_view text) {
    problems_->push_back(RowProblem(kind, row.request, text));
  }

  void ParseObject(std::string_view text, RawRow* row) {
    row->has_timestamp = false;
    block_size_ = -1;
    has_session_ = false;
    seen_ = 0;
    int64_t column = 0;
    const absl::Status status = json_.ForEachField(
        text, LineReader::kPadding,
        [&](std::string_view key, JsonValue& value) { return OnField(key, value, row); }, &column);
    if (!status.ok()) {
      Bad(ProblemKind::kSyntax, *row,
          std::string_view(status.message().data(), status.message().size()));
      problems_->back().column = column;
      return;
    }
    constexpr std::array<std::pair<Field, const char*>, 2> kRequired = {
        {{kInputLength, "input_length"}, {kOutputLength, "output_length"}}};
    for (const auto& [field, name] : kRequired) {
      if (!Seen(field)) Missing(name, *row);
    }
    const int64_t block_tokens = SettleBlockSize(*row);
    if (!Seen(kHashIds) && block_tokens != 0) Missing("hash_ids", *row);
    if (!problems_->empty()) return;
    row->waits_for_session = has_session_ && !Seen(kWaitFor);
    // Numbered last, so that a bad row does not use up a number.
    if (has_session_) row->request.session = sessions_.NumberOf(session_);
    row->has_turn = Seen(kTurn);
  }

  bool Seen(Field field) const { return (seen_ >> field & 1) != 0; }

  void Missing(const char* name, const RawRow& row) {
    Bad(ProblemKind::kMissingField, row,
        absl::StrCat("field ", name, ": got nothing, expected a value"));
  }

  // The block size that counts for the row.
  int64_t SettleBlockSize(const RawRow& row) {
    if (override_block_size_ > 0) return override_block_size_;
    const int64_t size = block_size_ >= 0 ? block_size_ : kMooncakeBlockTokens;
    if (info_.block_tokens < 0 && problems_->empty()) info_.block_tokens = size;
    if (info_.block_tokens < 0) return size;
    const bool is_known = block_size_ >= 0 || !Seen(kBlockSize);
    if (is_known && size != info_.block_tokens) {
      Bad(ProblemKind::kBlockSize, row,
          absl::StrCat("block_size: got ", size, ", expected ", info_.block_tokens,
                       " as in the first good row (--trace-block-size)"));
    }
    return info_.block_tokens;
  }

  // Fails only if the line is not JSON; a bad value leaves the others to be looked at.
  absl::Status OnField(std::string_view key, JsonValue& value, RawRow* row) {
    size_t index = 0;
    while (index < kFieldNames.size() && kFieldNames[index].name != key) ++index;
    if (index == kFieldNames.size()) return SkipUnknown(key, value, *row);
    // `key` points into the parser's buffer for strings, which reading the value may overwrite.
    const std::string_view name = kFieldNames[index].name;
    const Field field = kFieldNames[index].field;
    absl::StatusOr<bool> null = value.IsNull();
    if (!null.ok()) return Named(name, null.status());
    if (*null) return absl::OkStatus();
    if (Seen(field)) {
      Bad(ProblemKind::kRepeatedField, *row,
          absl::StrCat("field ", absl::string_view(name.data(), name.size()),
                       ": got it twice (or under two names), expected once"));
      return absl::OkStatus();
    }
    seen_ |= uint64_t{1} << field;
    used_ |= uint64_t{1} << index;
    const absl::Status status = Named(name, ReadField(field, value, row));
    if (status.ok() || status.code() == absl::StatusCode::kDataLoss) return status;
    Bad(ProblemKind::kValue, *row,
        std::string_view(status.message().data(), status.message().size()));
    return absl::OkStatus();
  }

  absl::Status SkipUnknown(std::string_view key, JsonValue& value, const RawRow& row) {
    if (log_->listener == nullptr || unknown_.size() >= kMostUnknownColumns) return value.Skip();
    const std::string name = Shown(key);
    absl::Status status = value.Skip();
    if (status.ok() && unknown_.insert(name).second) {
      log_->Tell(RowProblem(
          ProblemKind::kUnknownField, row.request,
          absl::StrCat("field: got ", name, ", expected one that is read (it is ignored)"),
          ProblemSeverity::kNote));
    }
    return status;
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

  struct Pending {
    absl::StatusOr<RowOutcome> outcome = RowOutcome::kEnd;
    RawRow row;
    std::vector<TraceProblem> problems;
  };

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
  std::vector<TraceProblem>* problems_ = nullptr;

  uint64_t used_ = 0;              // names of kFieldNames seen in the file
  std::set<std::string> unknown_;  // fields that were reported
  std::deque<Pending> pending_;    // read ahead by Open
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
