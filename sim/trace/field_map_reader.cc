#include "kvblocks/sim/trace/field_map_reader.h"

#include <algorithm>
#include <array>
#include <limits>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "absl/container/flat_hash_set.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "kvblocks/sim/trace/civil_time.h"
#include "kvblocks/sim/trace/csv_table.h"
#include "kvblocks/sim/trace/decimal.h"
#include "kvblocks/sim/trace/format_detection.h"
#include "kvblocks/sim/trace/json_fields.h"
#include "kvblocks/sim/trace/line_rows.h"
#include "kvblocks/sim/trace/session_numbers.h"
#include "kvblocks/sim/trace/string_view.h"

namespace kvblocks::sim {
namespace {

enum class MapTo {
  kInput,
  kOutput,
  kArrival,
  kDate,
  kIds,
  kId,
  kSession,
  kTurn,
  kPriority,
  kMinTokens,
  kEncoderTokens,
  kTenant,
  kSloClass,
  kAdapter,
  kSalt,
  kThink,
  kAbortAfter,
};

struct MapField {
  std::string_view name;
  MapTo to;
  int exponent = 0;  // of times: digits behind the point that are nanoseconds
};
constexpr std::array<MapField, 26> kMapFields = {{
    {"input_length", MapTo::kInput},
    {"output_length", MapTo::kOutput},
    {"arrival_s", MapTo::kArrival, 9},
    {"arrival_ms", MapTo::kArrival, 6},
    {"arrival_us", MapTo::kArrival, 3},
    {"arrival_ns", MapTo::kArrival, 0},
    {"arrival", MapTo::kDate},
    {"ids", MapTo::kIds},
    {"id", MapTo::kId},
    {"session", MapTo::kSession},
    {"turn", MapTo::kTurn},
    {"priority", MapTo::kPriority},
    {"min_tokens", MapTo::kMinTokens},
    {"encoder_tokens", MapTo::kEncoderTokens},
    {"tenant", MapTo::kTenant},
    {"slo_class", MapTo::kSloClass},
    {"adapter", MapTo::kAdapter},
    {"salt", MapTo::kSalt},
    {"think_s", MapTo::kThink, 9},
    {"think_ms", MapTo::kThink, 6},
    {"think_us", MapTo::kThink, 3},
    {"think_ns", MapTo::kThink, 0},
    {"abort_after_s", MapTo::kAbortAfter, 9},
    {"abort_after_ms", MapTo::kAbortAfter, 6},
    {"abort_after_us", MapTo::kAbortAfter, 3},
    {"abort_after_ns", MapTo::kAbortAfter, 0},
}};

struct Mapping {
  const MapField* field;
  std::string column;
};

bool HasField(const std::vector<Mapping>& map, MapTo to) {
  return std::any_of(map.begin(), map.end(), [to](const Mapping& m) { return m.field->to == to; });
}

absl::Status BadMap(std::string_view got, const std::string& expected) {
  return absl::InvalidArgumentError(
      absl::StrCat("--fields: got ", Shown(got), ", expected ", expected));
}

absl::StatusOr<std::vector<Mapping>> ParseFieldMap(std::string_view text) {
  std::vector<Mapping> map;
  for (std::string_view rest = text; !rest.empty();) {
    const size_t comma = std::min(rest.find(','), rest.size());
    const std::string_view part = rest.substr(0, comma);
    rest.remove_prefix(std::min(comma + 1, rest.size()));
    const size_t equals = part.find('=');
    if (equals == std::string_view::npos || equals == 0 || equals + 1 == part.size()) {
      return BadMap(part, "FIELD=COLUMN, with commas between several");
    }
    const std::string_view name = part.substr(0, equals);
    const auto field = std::find_if(kMapFields.begin(), kMapFields.end(),
                                    [&](const MapField& f) { return f.name == name; });
    if (field == kMapFields.end()) {
      std::string names;
      for (const MapField& f : kMapFields) {
        absl::StrAppend(&names, names.empty() ? "" : ", ", View(f.name));
      }
      return BadMap(name, absl::StrCat("one of ", names));
    }
    const bool is_arrival = field->to == MapTo::kArrival || field->to == MapTo::kDate;
    for (const Mapping& other : map) {
      const bool is_other_arrival =
          other.field->to == MapTo::kArrival || other.field->to == MapTo::kDate;
      if (other.field->to == field->to || (is_arrival && is_other_arrival)) {
        return BadMap(part, absl::StrCat("it beside no ", View(other.field->name)));
      }
      if (other.column == part.substr(equals + 1)) {
        return BadMap(
            part, absl::StrCat("each column once (", View(other.field->name), " has it already)"));
      }
    }
    map.push_back({&*field, std::string(part.substr(equals + 1))});
  }
  for (const auto& [to, name] :
       {std::pair(MapTo::kInput, "input_length"), std::pair(MapTo::kOutput, "output_length")}) {
    if (!HasField(map, to)) {
      return BadMap(text, absl::StrCat("also ", name, "=COLUMN"));
    }
  }
  return map;
}

// What CSV and JSONL have in common: the values of a row as texts, one per mapping.
class FieldMapReader : public LineRows {
 public:
  FieldMapReader(std::unique_ptr<ByteSource> source, const TraceReaderOptions& options, RowLog* log,
                 std::vector<Mapping> map)
      : LineRows(std::move(source), options, log, "fields"), map_(std::move(map)) {
    values_.resize(map_.size());
    if (HasField(map_, MapTo::kIds)) info_.block_tokens = options.trace_block_size;
  }

 protected:
  const std::vector<Mapping>& map() const { return map_; }
  std::vector<std::string>& values() { return values_; }

  void TakeValues(RawRow row, std::vector<RawRow>* rows, std::vector<TraceProblem>* problems) {
    row.has_timestamp = false;
    bool has_think = false;
    for (size_t i = 0; i < map_.size(); ++i) {
      const MapField& field = *map_[i].field;
      if (values_[i].empty()) {
        if (field.to == MapTo::kInput || field.to == MapTo::kOutput) {
          problems->push_back(RowProblem(
              ProblemKind::kMissingField, row.request,
              absl::StrCat("field ", map_[i].column, ": got nothing, expected a value")));
        }
        continue;
      }
      has_think = has_think || field.to == MapTo::kThink;
      const absl::Status status = Set(field, values_[i], &row);
      if (status.ok()) continue;
      problems->push_back(RowProblem(ProblemKind::kValue, row.request,
                                     absl::StrCat(map_[i].column, ": ", status.message())));
    }
    if (!problems->empty()) return;
    const uint64_t session = row.request.session;
    const bool is_first = session == 0 || seen_.insert(session).second;
    row.waits_for_session = !is_first && (!row.has_timestamp || has_think);
    // What waits for nothing and has no time is there from the start.
    if (!row.waits_for_session) row.has_timestamp = true;
    rows->push_back(std::move(row));
  }

 private:
  absl::Status Set(const MapField& field, const std::string& text, RawRow* row) {
    constexpr int64_t kMaxUint32 = std::numeric_limits<uint32_t>::max();
    TraceRequest& r = row->request;
    switch (field.to) {
      case MapTo::kInput:
        return Whole(text, 0, kMaxTraceLength, &r.input_length);
      case MapTo::kOutput:
        return Whole(text, 0, kMaxTraceLength, &r.output_length);
      case MapTo::kArrival:
        row->has_timestamp = true;
        return Time(text, field.exponent, &row->timestamp_ns);
      case MapTo::kDate: {
        row->has_timestamp = true;
        absl::StatusOr<CivilTime> time = ParseAzureTimestamp(text);
        if (!time.ok()) return time.status();
        return clock_.Since(*time, text, &info_.notes, &row->timestamp_ns);
      }
      case MapTo::kIds:
        return Ids(text, &r.content_ids);
      case MapTo::kId:
        return Text(text, &r.id);
      case MapTo::kSession: {
        JsonId id;
        id.text = text;
        id.is_integer = absl::SimpleAtoi(text, &id.integer);
        r.session = sessions_.NumberOf(id);
        return absl::OkStatus();
      }
      case MapTo::kTurn: {
        int64_t turn = 0;
        absl::Status status = Whole(text, 0, kMaxUint32, &turn);
        r.turn = static_cast<uint32_t>(turn);
        row->has_turn = true;
        return status;
      }
      case MapTo::kPriority: {
        int64_t priority = 0;
        absl::Status status = Whole(text, std::numeric_limits<int32_t>::min(),
                                    std::numeric_limits<int32_t>::max(), &priority);
        r.priority = static_cast<int32_t>(priority);
        return status;
      }
      case MapTo::kMinTokens:
        return Whole(text, 0, kMaxTraceLength, &r.min_tokens);
      case MapTo::kEncoderTokens:
        return Whole(text, 0, kMaxTraceLength, &r.encoder_tokens.emplace());
      case MapTo::kTenant:
        return Text(text, &r.tenant);
      case MapTo::kSloClass:
        return Text(text, &r.slo_class);
      case MapTo::kAdapter:
        return Text(text, &r.adapter);
      case MapTo::kSalt:
        return Text(text, &r.salt);
      case MapTo::kThink:
        return Time(text, field.exponent, &r.think_ns);
      case MapTo::kAbortAfter:
        return Time(text, field.exponent, &r.abort_after_ns);
    }
    return absl::OkStatus();
  }

  static absl::Status Whole(const std::string& text, int64_t least, int64_t most, int64_t* out) {
    // "512.0" is a whole number, too.
    const bool is_negative = text[0] == '-';
    absl::StatusOr<int64_t> value =
        ParseScaledDecimal(std::string_view(text).substr(is_negative ? 1 : 0), 0);
    if (value.ok()) *out = is_negative ? -*value : *value;
    if (value.ok() && *out >= least && *out <= most) return absl::OkStatus();
    *out = 0;
    return absl::InvalidArgumentError(
        absl::StrCat("got ", Shown(text), ", expected a whole number from ", least, " to ", most));
  }

  // As native files need it.
  static absl::Status Text(const std::string& text, std::string* out) {
    if (!IsUtf8(text)) {
      return absl::InvalidArgumentError(absl::StrCat("got ", Shown(text), ", expected UTF-8"));
    }
    *out = text;
    return absl::OkStatus();
  }

  static absl::Status Time(const std::string& text, int exponent, int64_t* out) {
    absl::StatusOr<int64_t> ns = ParseRoundedDecimal(text, exponent);
    if (ns.ok()) *out = *ns;
    return ns.status();
  }

  static absl::Status Ids(std::string_view text, std::vector<int64_t>* ids) {
    constexpr std::string_view kBetween = " ,;|[]\t";
    for (size_t begin = text.find_first_not_of(kBetween); begin != std::string_view::npos;) {
      const size_t end = std::min(text.find_first_of(kBetween, begin), text.size());
      const std::string_view number = text.substr(begin, end - begin);
      uint64_t id = 0;
      int64_t negative = 0;
      if (absl::SimpleAtoi(View(number), &id)) {
        ids->push_back(static_cast<int64_t>(id));
      } else if (absl::SimpleAtoi(View(number), &negative)) {
        ids->push_back(negative);
      } else {
        return absl::InvalidArgumentError(
            absl::StrCat("got ", Shown(number), ", expected whole numbers from 0 to 2^64-1"));
      }
      begin = text.find_first_not_of(kBetween, end);
    }
    return absl::OkStatus();
  }

  const std::vector<Mapping> map_;
  std::vector<std::string> values_;  // of the row being read
  DayClock clock_;
  SessionNumbers sessions_;
  absl::flat_hash_set<uint64_t> seen_;  // sessions
};

class CsvFieldMapReader final : public FieldMapReader {
 public:
  using FieldMapReader::FieldMapReader;

  absl::Status Open() {
    Line line;
    absl::StatusOr<bool> has_header = ReadHeader(&line);
    if (!has_header.ok()) return has_header.status();
    std::string problem = table_.SetHeader(*has_header ? line.text : std::string_view());
    for (const Mapping& mapping : map()) {
      columns_.push_back(table_.ColumnOf(mapping.column));
      if (!problem.empty() || columns_.back() != CsvTable::kNoColumn) continue;
      problem = absl::StrCat("CSV header: got ", Shown(line.text), ", expected a column ",
                             mapping.column, " (--fields)");
    }
    if (problem.empty()) return absl::OkStatus();
    return absl::InvalidArgumentError(RowError(*log(), *has_header ? line.number : 1, problem));
  }

 private:
  void Parse(std::string_view text, RawRow&& at, std::vector<RawRow>* rows,
             std::vector<TraceProblem>* problems) override {
    if (const std::string problem = table_.SetRow(text); !problem.empty()) {
      problems->push_back(RowProblem(ProblemKind::kSyntax, at.request, problem));
      return;
    }
    for (size_t i = 0; i < columns_.size(); ++i) {
      values()[i] = std::string(table_.fields()[columns_[i]]);
    }
    TakeValues(std::move(at), rows, problems);
  }

  CsvTable table_;
  std::vector<size_t> columns_;
};

class JsonFieldMapReader final : public FieldMapReader {
 public:
  JsonFieldMapReader(std::unique_ptr<ByteSource> source, const TraceReaderOptions& options,
                     RowLog* log, std::vector<Mapping> map_of_fields)
      : FieldMapReader(std::move(source), options, log, std::move(map_of_fields)),
        fields_(Names(map()), log) {}

 private:
  static std::vector<JsonFields::Name> Names(const std::vector<Mapping>& map) {
    std::vector<JsonFields::Name> names;
    for (size_t i = 0; i < map.size(); ++i) names.push_back({map[i].column, static_cast<int>(i)});
    return names;
  }

  void Parse(std::string_view text, RawRow&& at, std::vector<RawRow>* rows,
             std::vector<TraceProblem>* problems) override {
    RawRow row = std::move(at);
    for (std::string& value : values()) value.clear();
    fields_.Begin(&row.request, problems);
    fields_.ParseLine(text, [&](int field, JsonValue& value) {
      std::string& out = values()[static_cast<size_t>(field)];
      if (!value.IsList()) return value.ReadText(&out);
      return value.ReadList([&](JsonValue& element) {
        std::string number;
        absl::Status status = element.ReadText(&number);
        absl::StrAppend(&out, out.empty() ? "" : " ", number);
        return status;
      });
    });
    if (problems->empty()) TakeValues(std::move(row), rows, problems);
  }

  JsonFields fields_;
};

}  // namespace

absl::StatusOr<std::unique_ptr<RowSource>> MakeFieldMapReader(std::unique_ptr<ByteSource> source,
                                                              const TraceReaderOptions& options,
                                                              RowLog* log) {
  absl::StatusOr<std::vector<Mapping>> map = ParseFieldMap(options.fields);
  if (!map.ok()) return map.status();
  if (HasField(*map, MapTo::kIds) && options.trace_block_size <= 0) {
    return BadMap(options.fields, "--trace-block-size with ids: tokens per id");
  }
  absl::StatusOr<std::string> head =
      PeekHead(&source, static_cast<size_t>(std::max<int64_t>(options.max_line_bytes, 64)));
  if (!head.ok()) return StreamError(*log, head.status(), "line", 0);
  const size_t first = head->find_first_not_of(" \t\r\n\xef\xbb\xbf");
  if (first != std::string::npos && (*head)[first] == '{') {
    return OpenLineRows<JsonFieldMapReader>(std::move(source), options, log, *std::move(map));
  }
  auto reader =
      std::make_unique<CsvFieldMapReader>(std::move(source), options, log, *std::move(map));
  if (absl::Status status = reader->Open(); !status.ok()) return status;
  if (absl::Status status = reader->ReadAhead(); !status.ok()) return status;
  return std::unique_ptr<RowSource>(std::move(reader));
}

}  // namespace kvblocks::sim
