#include <xxhash.h>

#include <algorithm>
#include <array>
#include <limits>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "absl/container/flat_hash_set.h"
#include "absl/strings/ascii.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "checks/status_macros.h"
#include "sim/trace/decimal.h"
#include "sim/trace/field_map.h"
#include "sim/trace/json_fields.h"
#include "sim/trace/line_rows.h"
#include "sim/trace/row_source.h"

namespace kvblocks::sim {
namespace {

// 0x and hexadecimal digits. Up to 64 bits are the id; longer hashes are hashed again.
absl::StatusOr<int64_t> IdOfHexHash(std::string_view text) {
  std::string_view digits = text;
  if (digits.substr(0, 2) == "0x" || digits.substr(0, 2) == "0X") digits.remove_prefix(2);
  const bool is_hex =
      !digits.empty() &&
      digits.find_first_not_of("0123456789abcdefABCDEF") == std::string_view::npos;
  if (is_hex) digits.remove_prefix(std::min(digits.find_first_not_of('0'), digits.size() - 1));
  uint64_t id = 0;
  if (is_hex && digits.size() > 16) {
    const std::string lower = absl::AsciiStrToLower(View(digits));
    id = XXH64(lower.data(), lower.size(), 0);
  } else if (!is_hex || !absl::SimpleHexAtoi(View(digits), &id)) {
    return absl::InvalidArgumentError(
        absl::StrCat("got ", Shown(text), ", expected hexadecimal digits such as 0x1f"));
  }
  return static_cast<int64_t>(id);
}

// What CSV and JSONL have in common: a row is begun, its values are set one by one as texts, and it
// is finished. Without a preset the map is a user's.
class FieldMapReader : public LineRows {
 public:
  FieldMapReader(RowInput& input, const FieldPreset* preset, std::vector<Mapping> map)
      : LineRows(input),
        preset_(preset),
        map_(std::move(map)),
        block_size_rule_(HasField(map_, MapTo::kIds) || HasField(map_, MapTo::kHexIds)
                             ? input.options.trace_block_size
                             : 0,
                         preset != nullptr ? preset->block_tokens : 0, &info_),
        tokens_(input.options.bytes_per_token) {
    if (preset != nullptr && !preset->zero_output.empty()) {
      info_.notes["zero_output"] = std::string(preset->zero_output);
    }
  }

  std::string dialect() const override {
    if (preset_ == nullptr) return "";
    if (HasField(map_, MapTo::kPrompt)) {
      return info_.pseudo_tokens ? "texts as pseudo-tokens" : "token ids";
    }
    if (!HasField(map_, MapTo::kOutput)) return "look-ups, without outputs";
    const bool has_times = std::any_of(map_.begin(), map_.end(), [](const Mapping& mapping) {
      return IsArrival(mapping.field->to);
    });
    return has_times ? "" : "no arrival times: all at 0";
  }

 protected:
  bool is_preset() const { return preset_ != nullptr; }
  const std::vector<Mapping>& map() const { return map_; }
  void set_map(std::vector<Mapping> map) { map_ = std::move(map); }

  void Begin() {
    row_.has_timestamp = false;
    values_ = 0;
    time_.reset();
    session_.text.clear();
    has_think_ = false;
    total_ = -1;
  }
  // The value number `index` of the map is there, whatever it is.
  void MarkSet(size_t index) { values_ |= uint64_t{1} << index; }

  // `is_csv`: columns of numbers have a value in each row of a preset.
  void Finish(bool is_csv) {
    std::string time_column;
    for (size_t i = 0; i < map_.size(); ++i) {
      const Mapping& mapping = map_[i];
      const MapField& field = *mapping.field;
      if (IsArrival(field.to)) time_column = mapping.column;
      if ((values_ >> i & 1) != 0) {
        if (field.to == MapTo::kBlockTokens) CheckBlockTokens(mapping.column);
      } else if (mapping.is_needed || (is_csv && is_preset() && !field.is_text)) {
        Bad(ProblemKind::kMissingField,
            absl::StrCat("field ", mapping.column, ": got nothing, expected a value"));
      }
    }
    if (HasField(map_, MapTo::kPrompt) && problems_->empty()) CheckPrompt();
    if (!problems_->empty()) return;
    if (time_) {
      const absl::Status status =
          clock_.Since(*time_, time_text_, &info_.notes, &row_.timestamp_ns);
      if (!status.ok()) {
        return Bad(ProblemKind::kValue, absl::StrCat(time_column, ": ", status.message()));
      }
    }
    // Numbered last, so that a bad row does not use up a number.
    bool is_first = true;
    if (!session_.text.empty()) {
      const uint64_t session = row_.request.session = sessions_.NumberOf(session_);
      // The requests of presets have times of their own.
      is_first = is_preset() || session == 0 || seen_.insert(session).second;
    }
    row_.waits_for_session = !is_first && (!row_.has_timestamp || has_think_);
    // What waits for nothing and has no time is there from the start.
    if (!row_.waits_for_session) row_.has_timestamp = true;
    WarnOfTotal();
    AddRow();
  }

  // A value that is there. Errors lack the column's name.
  absl::Status Set(const MapField& field, std::string_view text) {
    constexpr int64_t kMaxUint32 = std::numeric_limits<uint32_t>::max();
    constexpr int64_t kAnyNumber = std::numeric_limits<int64_t>::max();
    // Numbers that are too large a length are known as such behind the reader.
    const int64_t max_length = is_preset() ? kAnyNumber : kMaxTraceLength;
    TraceRequest& r = row_.request;
    if (field.text != nullptr) return Text(text, &(r.*field.text));
    switch (field.to) {
      case MapTo::kInput:
        return Whole(text, 0, max_length, &r.input_length);
      case MapTo::kOutput:
        return Whole(text, 0, max_length, &r.output_length);
      case MapTo::kArrival:
        row_.has_timestamp = true;
        return Time(text, field.exponent, &row_.timestamp_ns);
      case MapTo::kDate: {
        row_.has_timestamp = true;
        KVBLOCKS_ASSIGN_OR_RETURN(time_, ParseAzureTimestamp(text));
        time_text_ = std::string(text);
        return absl::OkStatus();
      }
      case MapTo::kUnix: {
        row_.has_timestamp = true;
        int64_t ns = 0;
        KVBLOCKS_RETURN_IF_ERROR(Time(text, field.exponent, &ns));
        time_ = absl::FromUnixNanos(ns);
        time_text_ = std::string(text);
        return absl::OkStatus();
      }
      case MapTo::kIds:
        return Ids(text, &r.content_ids);
      case MapTo::kSession:
        session_.text = std::string(text);
        session_.is_integer = absl::SimpleAtoi(View(text), &session_.integer);
        return absl::OkStatus();
      case MapTo::kTurn:
        row_.has_turn = true;
        return Whole(text, 0, kMaxUint32, &r.turn);
      case MapTo::kPriority:
        return Whole(text, std::numeric_limits<int32_t>::min(),
                     std::numeric_limits<int32_t>::max(), &r.priority);
      case MapTo::kMinTokens:
        return Whole(text, 0, kMaxTraceLength, &r.min_tokens);
      case MapTo::kEncoderTokens:
        return Whole(text, 0, kMaxTraceLength, &r.encoder_tokens.emplace());
      case MapTo::kThink:
        has_think_ = true;
        return Time(text, field.exponent, &r.think_ns);
      case MapTo::kAbortAfter:
        return Time(text, field.exponent, &r.abort_after_ns);
      case MapTo::kTotal:
        return Whole(text, 0, kAnyNumber, &total_);
      case MapTo::kBlockTokens:
        return Whole(text, 1, kMaxTraceLength, &block_tokens_);
      case MapTo::kHexIds: {
        KVBLOCKS_ASSIGN_OR_RETURN(r.content_ids.emplace_back(), IdOfHexHash(text));
        return absl::OkStatus();
      }
      case MapTo::kPrompt: {
        std::vector<uint32_t> tokens;
        tokens_.AppendText(text, &tokens);
        r.content_ids.assign(tokens.begin(), tokens.end());
        return absl::OkStatus();
      }
      default:  // texts, and what rows are selected by
        return absl::OkStatus();
    }
  }

  bool is_text_ = false;  // the prompt of the row being read

 private:
  void CheckBlockTokens(const std::string& column) {
    const std::string problem = block_size_rule_.Check(block_tokens_, column, problems_->empty(),
                                                       is_settled(), &info_);
    if (!problem.empty()) Bad(ProblemKind::kBlockSize, problem);
  }

  void CheckPrompt() {
    if (!is_settled() && !is_decided_) info_.pseudo_tokens = is_text_;
    is_decided_ = true;
    if (is_text_ != info_.pseudo_tokens) {
      return Bad(ProblemKind::kValue,
                 absl::StrCat("prompt: got ", is_text_ ? "a text" : "token ids", ", expected ",
                              is_text_ ? "token ids" : "a text", " as in the first good row"));
    }
    row_.request.input_length = static_cast<int64_t>(row_.request.content_ids.size());
  }

  void WarnOfTotal() {
    const TraceRequest& r = row_.request;
    if (total_ < 0 || total_ - r.input_length == r.output_length) return;
    const auto column = std::find_if(map_.begin(), map_.end(), [](const Mapping& m) {
      return m.field->to == MapTo::kTotal;
    });
    log()->Warn(RowProblem(ProblemKind::kLength, r,
                           absl::StrCat(column->column, ": got ", total_, ", expected ",
                                        r.input_length, " + ", r.output_length,
                                        " (the sum is not used)"),
                           ProblemSeverity::kWarning));
  }

  template <typename Int>
  absl::Status Whole(std::string_view text, int64_t least, int64_t most, Int* out) const {
    const bool is_negative = text[0] == '-';
    const std::string_view number = text.substr(is_negative ? 1 : 0);
    // For users "512.0" is a whole number, too.
    const bool is_form =
        !is_preset() || number.find_first_not_of("0123456789") == std::string_view::npos;
    absl::StatusOr<int64_t> value = ParseScaledDecimal(number, 0);
    const int64_t whole = !value.ok() ? 0 : is_negative ? -*value : *value;
    if (is_form && value.ok() && whole >= least && whole <= most) {
      *out = static_cast<Int>(whole);
      return absl::OkStatus();
    }
    return absl::InvalidArgumentError(
        absl::StrCat("got ", Shown(text), ", expected a whole number from ", least, " to ",
                     most == std::numeric_limits<int64_t>::max() ? kMaxTraceLength : most));
  }

  // As native files need it.
  static absl::Status Text(std::string_view text, std::string* out) {
    if (!IsUtf8(text)) {
      return absl::InvalidArgumentError(absl::StrCat("got ", Shown(text), ", expected UTF-8"));
    }
    *out = std::string(text);
    return absl::OkStatus();
  }

  absl::Status Time(std::string_view text, int exponent, int64_t* out) const {
    KVBLOCKS_ASSIGN_OR_RETURN(*out, is_preset() && !preset_->rounds_times
                                        ? ParseScaledDecimal(text, exponent)
                                        : ParseRoundedDecimal(text, exponent));
    return absl::OkStatus();
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

  const FieldPreset* const preset_;
  std::vector<Mapping> map_;
  BlockSizeRule block_size_rule_;
  const PseudoTokens tokens_;
  DayClock clock_;
  SessionNumbers sessions_;
  absl::flat_hash_set<uint64_t> seen_;  // sessions
  bool is_decided_ = false;             // whether prompts are texts

  // The row being read.
  uint64_t values_ = 0;  // a bit for each of the map
  std::optional<absl::Time> time_;
  std::string time_text_;
  JsonId session_;
  bool has_think_ = false;
  int64_t total_ = -1;
  int64_t block_tokens_ = 0;
};

class CsvFieldMapReader final : public FieldMapReader {
 public:
  CsvFieldMapReader(RowInput& input, const FieldPreset* preset, std::vector<Mapping> map)
      : FieldMapReader(input, preset, std::move(map)),
        filters_{{{MapTo::kModel, "--model-filter", input.options.model_filter},
                  {MapTo::kLogType, "--log-type", input.options.log_type}}} {}

  // To be called before ReadAhead.
  absl::Status Open() {
    Line line;
    KVBLOCKS_ASSIGN_OR_RETURN(const bool has_header, ReadHeader(&line));
    std::string problem = table_.SetHeader(has_header ? line.text : std::string_view());
    std::vector<Mapping> there;
    for (const Mapping& mapping : map()) {
      const size_t column = table_.ColumnOf(mapping.column);
      if (column != CsvTable::kNoColumn) {
        columns_.push_back(column);
        there.push_back(mapping);
      } else if (problem.empty() && (mapping.is_needed || !is_preset())) {
        problem = absl::StrCat("CSV header: got ", Shown(line.text), ", expected a column ",
                               mapping.column, is_preset() ? "" : " (--fields)");
      }
    }
    set_map(std::move(there));
    for (const Filter& filter : filters_) {
      if (!problem.empty() || filter.value.empty() || HasField(map(), filter.to)) continue;
      problem = absl::StrCat(filter.flag, ": got ", Shown(filter.value),
                             ", expected a trace with a column to select by");
    }
    if (problem.empty()) return absl::OkStatus();
    return absl::InvalidArgumentError(RowError(*log(), has_header ? line.number : 1, problem));
  }

 private:
  // Only rows with this text are read; empty: all.
  struct Filter {
    MapTo to;
    const char* flag;
    std::string value;
  };

  void Parse(std::string_view text) override {
    Begin();
    if (const std::string problem = table_.SetRow(text); !problem.empty()) {
      return Bad(ProblemKind::kSyntax, problem);
    }
    for (size_t i = 0; i < columns_.size(); ++i) {
      const MapTo to = map()[i].field->to;
      const std::string_view value = table_.fields()[columns_[i]];
      for (const Filter& filter : filters_) {
        if (filter.to != to || filter.value.empty() || filter.value == value) continue;
        ++log()->counters.not_selected;
        problems_->clear();
        return;
      }
      if (value.empty()) continue;
      MarkSet(i);
      const absl::Status status = Set(*map()[i].field, value);
      if (status.ok()) continue;
      Bad(ProblemKind::kValue, absl::StrCat(map()[i].column, ": ", status.message()));
    }
    Finish(true);
  }

  const std::array<Filter, 2> filters_;
  CsvTable table_;
  std::vector<size_t> columns_;  // of the map
};

class JsonFieldMapReader final : public FieldMapReader {
 public:
  JsonFieldMapReader(RowInput& input, const FieldPreset* preset, std::vector<Mapping> map_of_fields)
      : FieldMapReader(input, preset, std::move(map_of_fields)),
        fields_(Fields(), input.log,
                preset != nullptr ? preset->ignored : std::vector<std::string_view>()) {}

 private:
  std::vector<JsonFields::Field> Fields() {
    std::vector<JsonFields::Field> fields;
    for (size_t i = 0; i < map().size(); ++i) {
      fields.emplace_back(map()[i].column, [this, i](JsonValue& value) { return Read(i, value); });
    }
    return fields;
  }

  void Parse(std::string_view text) override {
    Begin();
    if (fields_.ParseLine(text, &row_.request, problems_)) Finish(false);
  }

  absl::Status Read(size_t index, JsonValue& value) {
    const MapField& field = *map()[index].field;
    std::string text;
    const absl::Status status =
        is_preset() ? ReadForPreset(field, value, &text) : ReadForUser(value, &text);
    if (is_preset() || !status.ok() || !text.empty()) MarkSet(index);
    return !status.ok() || text.empty() ? status : Set(field, text);
  }

  static absl::Status ReadForUser(JsonValue& value, std::string* text) {
    if (value.kind() != JsonValue::Kind::kList) return value.ReadText(text);
    return value.ReadList([&](JsonValue& element) {
      std::string number;
      absl::Status status = element.ReadText(&number);
      absl::StrAppend(text, text->empty() ? "" : " ", number);
      return status;
    });
  }

  // Numbers are numbers there and texts are texts. `text` is what is then to be set.
  absl::Status ReadForPreset(const MapField& field, JsonValue& value, std::string* text) {
    int64_t number = 0;
    switch (field.to) {
      case MapTo::kHexIds:
        return value.ReadList([&](JsonValue& element) {
          std::string hash;
          absl::Status status = element.ReadString(&hash);
          return status.ok() ? Set(field, hash) : status;
        });
      case MapTo::kPrompt:
        is_text_ = value.kind() == JsonValue::Kind::kString;
        return is_text_ ? value.ReadString(text) : value.ReadIntegers(&row_.request.content_ids);
      case MapTo::kId:
        return value.ReadName(text);
      default:
        if (const auto kind = value.kind();
            !field.is_text &&
            (kind == JsonValue::Kind::kString || kind == JsonValue::Kind::kList)) {
          return value.ReadDecimal(0, &number);  // says that it is no number
        }
        return value.ReadText(text);
    }
  }

  JsonFields fields_;
};

OpenedRows OpenFieldMap(bool is_json, RowInput& input, const FieldPreset* preset,
                        std::vector<Mapping> map) {
  if (is_json) {
    return OpenLineRows<JsonFieldMapReader>(input, preset, std::move(map));
  }
  auto reader = std::make_unique<CsvFieldMapReader>(input, preset, std::move(map));
  KVBLOCKS_RETURN_IF_ERROR(reader->Open());
  KVBLOCKS_RETURN_IF_ERROR(reader->ReadAhead());
  return reader;
}

}  // namespace

OpenedRows MakePresetReader(RowInput& input) {
  const FieldPreset& preset = *FindFieldPreset(input.format);
  KVBLOCKS_ASSIGN_OR_RETURN(auto map, ParseFieldMap(preset.fields, true));
  return OpenFieldMap(!preset.shapes.empty(), input, &preset, std::move(map));
}

OpenedRows MakeFieldMapReader(RowInput& input) {
  const std::string& fields = input.options.fields;
  KVBLOCKS_ASSIGN_OR_RETURN(auto map, ParseFieldMap(fields, false));
  if (HasField(map, MapTo::kIds) && input.options.trace_block_size <= 0) {
    return BadFieldMap(fields, "--trace-block-size with ids: tokens per id");
  }
  KVBLOCKS_ASSIGN_OR_RETURN(const std::string head, PeekHead(input));
  const size_t first = head.find_first_not_of(" \t\r\n\xef\xbb\xbf");
  const bool is_json = first != std::string::npos && head[first] == '{';
  return OpenFieldMap(is_json, input, nullptr, std::move(map));
}

}  // namespace kvblocks::sim
