#include <algorithm>
#include <array>
#include <cstring>
#include <set>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "checks/status_macros.h"
#include "sim/gen/workload_spec.h"
#include "sim/trace/field_map.h"
#include "sim/trace/json_fields.h"
#include "sim/trace/record_stream.h"
#include "sim/trace/row_source.h"

namespace kvblocks::sim {
namespace {

bool Contains(std::string_view text, std::string_view part) {
  return text.find(part) != std::string_view::npos;
}

bool IsBlank(char c) { return c == ' ' || c == '\t' || c == '\r'; }

// The first line that is not blank, in a text that grows at its end. No byte is looked at twice,
// in however many parts the text comes.
class FirstLine {
 public:
  static constexpr std::string_view kByteOrderMark = "\xef\xbb\xbf";

  // True: the line and its end are in `head`, which begins with what the calls before had.
  // REQUIRES: the first call has all of the byte-order mark, if there is one.
  bool Find(std::string_view head) {
    if (position_ == 0 && head.substr(0, kByteOrderMark.size()) == kByteOrderMark) {
      position_ = begin_ = kByteOrderMark.size();
    }
    for (; !has_text_ && position_ < head.size(); ++position_) {
      has_text_ = !IsBlank(head[position_]) && head[position_] != '\n';
      if (head[position_] == '\n') ++number_;
      begin_ = has_text_ ? position_ : position_ + 1;
    }
    const size_t end = head.find('\n', position_);
    position_ = std::min(end, head.size());
    return end != std::string_view::npos;
  }

  // From its first character that is no blank; empty if there is no such line.
  std::string_view Text(std::string_view head) const {
    size_t end = position_;
    while (end > begin_ && IsBlank(head[end - 1])) --end;
    return head.substr(begin_, end - begin_);
  }
  // Whether that is `c`, as soon as it is there.
  bool BeginsWith(std::string_view head, char c) const { return has_text_ && head[begin_] == c; }
  int64_t number() const { return number_; }

 private:
  bool has_text_ = false;
  size_t begin_ = 0;
  size_t position_ = 0;  // how far it was looked at
  int64_t number_ = 1;
};

struct ShapeOfFormat {
  const char* format;
  RecordShape shape;
};

const std::vector<ShapeOfFormat>& RecordShapes() {
  static const auto* const shapes = new std::vector<ShapeOfFormat>{
      {"bailian", {{"hash_ids", "chat_id"}}},
      {"mooncake", {{"hash_ids"}, {}, {"chat_id", "hash_ids is an object"}}},
      {"mooncake", {{"sequence_hash_ids"}, {}, {"hash_ids"}}},
      {"ragpulse", {{"hash_ids", "hash_ids is an object"}, {}, {"chat_id"}}},
      {"coding", {{"requests", "hash_id_scope"}}},
      {"llmservingsim", {{}, {"sub_requests", "arrival_time_ns"}}},
      {"dynamo", {{"event_type"}, {"schema", "request", "request_id", "tool"}}},
      {"aiperf",
       {{},
        {"input_length", "input_tokens"},
        {"hash_ids", "sequence_hash_ids", "prompt", "chat_id"}}},
      {"applied-compute", {{"input_prompt_length"}}},
      {"tracelab", {{"newly_append_tokens"}}},
      {"aiperf-profile", {{"metadata", "metrics"}}},
      {"aiperf-profile", {{"metadata", "error"}, {}, {"metrics"}}},
      {"vllm-bench", {{"input_lens"}}},
      {"vllm-bench", {{"total_input_tokens", "completed"}, {}, {"input_lens"}}},
      {"request-log", {{"first_token_ts"}}},
      {"otel-genai", {{"resourceSpans"}}},
  };
  return *shapes;
}

absl::StatusOr<std::string> DetectObject(std::string_view text, const RowLog& log, int64_t line) {
  std::set<std::string, std::less<>> keys;
  int64_t column = 0;
  JsonObjectReader reader;
  const absl::Status status = reader.ForEachField(
      text, LineReader::kPadding,
      [&](std::string_view key, JsonValue& value) {
        if (key == "hash_ids" && value.kind() == JsonValue::Kind::kObject) {
          keys.emplace("hash_ids is an object");
        }
        keys.emplace(key);
        return value.Skip();
      },
      &column);
  if (!status.ok()) {
    // A damaged first row of a trace is its reader's to report, like any other row.
    if (Contains(text, "\"hash_id_scope\"")) return std::string("coding");
    if (Contains(text, "\"chat_id\"")) return std::string("bailian");
    if (Contains(text, "\"hash_ids\"")) return std::string("mooncake");
    const std::string message(status.message());
    return absl::InvalidArgumentError(column > 0 ? RowError(log, line, column, message)
                                                 : RowError(log, line, message));
  }
  const auto has = [&](std::string_view key) { return keys.contains(key); };
  std::vector<std::string> candidates;
  const auto try_shape = [&](std::string_view format, const RecordShape& shape) {
    if (std::all_of(shape.all.begin(), shape.all.end(), has) &&
        (shape.any.empty() || std::any_of(shape.any.begin(), shape.any.end(), has)) &&
        std::none_of(shape.none.begin(), shape.none.end(), has)) {
      candidates.emplace_back(format);
    }
  };
  for (const auto& [format, shape] : RecordShapes()) try_shape(format, shape);
  for (const FieldPreset& preset : FieldPresets()) {
    for (const RecordShape& shape : preset.shapes) try_shape(preset.format, shape);
  }
  if (candidates.size() == 1) return candidates[0];
  if (candidates.size() > 1) {
    return absl::InvalidArgumentError(
        RowError(log, line,
                 absl::StrCat("format: got a record that fits ", absl::StrJoin(candidates, " and "),
                              ", expected exactly one (--trace-format)")));
  }
  return absl::InvalidArgumentError(
      RowError(log, line,
               "format: got a JSON object whose fields are of no known format, expected a known "
               "trace record (--trace-format, or --fields to name the fields to read)"));
}

// `head` from a line on that may be a comment; its end may be cut off.
bool IsWorkload(std::string_view head) {
  while (!head.empty() && (IsBlank(head[0]) || head[0] == '\n' || head[0] == '#')) {
    const size_t end = head[0] == '#' ? head.find('\n') : 0;
    // What follows a long comment is its reader's to look at; nothing else begins with one.
    if (end == std::string_view::npos) return true;
    head.remove_prefix(end + 1);
  }
  return head.empty() || LooksLikeWorkload(head);
}

// Of a CSV file, by the columns that its header names; empty: unknown.
std::string_view DetectCsv(std::string_view text) {
  for (const FieldPreset& preset : FieldPresets()) {
    const std::string_view begin = preset.csv_begin, part = preset.csv_part;
    if (!begin.empty() && text.substr(0, begin.size()) == begin) return preset.format;
    if (!part.empty() && Contains(text, part)) return preset.format;
  }
  return "";
}

struct FormatRow {
  const char* name;
  MakeReader* make;
};
constexpr std::array<FormatRow, 23> kFormatRows = {{
    {"mooncake", MakeMooncakeReader},
    {"azure", MakePresetReader},
    {"coding", MakeCodingSessionReader},
    {"native", MakeNativeReader},
    {"native-text", MakeNativeTextReader},
    {"workload", MakeWorkloadReader},
    {"ragpulse", MakeRagPulseReader},
    {"bailian", MakeBailianReader},
    {"burstgpt", MakePresetReader},
    {"vidur", MakePresetReader},
    {"llmservingsim", MakeLlmServingSimReader},
    {"dynamo", MakeDynamoReader},
    {"lmcache", MakePresetReader},
    {"aiperf", MakeMooncakeReader},
    {"applied-compute", MakeAppliedComputeReader},
    {"tracelab", MakeTraceLabReader},
    {"sharegpt", MakeShareGptReader},
    {"vllm-custom", MakePresetReader},
    {"aiperf-profile", MakeMeasurementReader},
    {"vllm-bench", MakeMeasurementReader},
    {"request-log", MakeMeasurementReader},
    {"otel-genai", MakeMeasurementReader},
    {"fields", MakeFieldMapReader},
}};

// An option that only some formats have, and whether it says something.
struct FormatOption {
  const char* flag;
  bool is_set;
  std::string value;
  std::vector<std::string> formats;
};

absl::Status CheckOptionsOfFormats(const std::string& format, const TraceReaderOptions& options) {
  const TraceReaderOptions initial;
  const FormatOption all[] = {
      {"--fields", !options.fields.empty(), options.fields, {"fields"}},
      {"--rag-order", options.rag_order != initial.rag_order, options.rag_order, {"ragpulse"}},
      {"--rag-lengths", !options.rag_lengths.empty(), options.rag_lengths, {"ragpulse"}},
      {"--model-filter", !options.model_filter.empty(), options.model_filter, {"burstgpt"}},
      {"--log-type", !options.log_type.empty(), options.log_type, {"burstgpt"}},
      {"--closed-loop", options.closed_loop, "true", {"bailian", "dynamo"}},
      {"--bytes-per-token",
       options.bytes_per_token != initial.bytes_per_token,
       absl::StrCat(options.bytes_per_token),
       {"sharegpt", "vllm-custom"}},
      {"--sharegpt", options.sharegpt != initial.sharegpt, options.sharegpt, {"sharegpt"}},
  };
  for (const FormatOption& option : all) {
    const auto& formats = option.formats;
    if (!option.is_set || std::find(formats.begin(), formats.end(), format) != formats.end()) {
      continue;
    }
    return absl::InvalidArgumentError(
        absl::StrCat(option.flag, ": got ", Shown(option.value), " for a trace of the format ",
                     format, ", expected one of the format ", absl::StrJoin(formats, " or ")));
  }
  return absl::OkStatus();
}

}  // namespace

absl::StatusOr<std::string> DetectFormat(std::string head, const std::string& file) {
  RowLog log;
  log.file = file;
  if (head.substr(0, kNativeMagic.size()) == kNativeMagic) return std::string("native");
  const size_t size = head.size();
  head.resize(size + LineReader::kPadding, ' ');
  FirstLine line;
  line.Find(std::string_view(head).substr(0, size));
  const std::string_view text = line.Text(head);
  if (text.empty()) {
    return absl::InvalidArgumentError(RowError(
        log, line.number(),
        size == 0 ? "format: got an empty file, expected a first record"
                  : absl::StrCat("format: got an empty file, with nothing but blanks in its first ",
                                 size, " bytes, expected a first record")));
  }
  if (text[0] == '{') return DetectObject(text, log, line.number());
  if (text[0] == '[') return std::string("sharegpt");
  if (text.substr(0, 4) == "PAR1") {
    return absl::UnimplementedError(RowError(
        log, line.number(),
        "format: got Parquet, which kvsim does not read, expected CSV or JSONL of it (the Python "
        "package reads it: kvblocks.Trace.read(FILE).convert(OUT))"));
  }
  if (const std::string_view csv = DetectCsv(text); !csv.empty()) return std::string(csv);
  const auto begin = static_cast<size_t>(text.data() - head.data());
  if (IsWorkload(std::string_view(head).substr(begin, size - begin))) {
    return std::string("workload");
  }
  if (text.substr(0, 6) == "header") return std::string("native-text");
  return absl::InvalidArgumentError(RowError(
      log, line.number(),
      absl::StrCat("format: got ", Shown(text), ", expected a JSON object, a known CSV header or ",
                   Shown(kNativeMagic), " (--trace-format, or --fields to name columns)")));
}

absl::StatusOr<std::string> PeekHead(std::unique_ptr<ByteSource>* source, size_t max_bytes) {
  auto buffered = std::make_unique<BufferedSource>(std::move(*source));
  FirstLine line;
  for (bool more = true; more && buffered->bytes().size() < max_bytes;) {
    const std::string_view head = buffered->bytes();
    // A native file is recognised by its first bytes and may have no line end for long, and an
    // array may be the whole file in one line.
    if (head.starts_with(kNativeMagic)) break;
    if (head.size() >= FirstLine::kByteOrderMark.size() &&
        (line.Find(head) || line.BeginsWith(head, '['))) {
      break;
    }
    KVBLOCKS_ASSIGN_OR_RETURN(more, buffered->ReadMore());
  }
  std::string head(buffered->bytes());
  *source = std::move(buffered);
  return head;
}

absl::StatusOr<std::string> PeekHead(RowInput& input) {
  const auto most = static_cast<size_t>(std::max<int64_t>(input.options.max_line_bytes, 64));
  auto head = PeekHead(&input.source, most);
  if (!head.ok()) return StreamError(*input.log, head.status(), "line", 0);
  return head;
}

const std::vector<std::string>& TraceFormats() {
  static const std::vector<std::string>* const names = [] {
    auto* list = new std::vector<std::string>;
    for (const FormatRow& row : kFormatRows) list->push_back(row.name);
    return list;
  }();
  return *names;
}

OpenedRows MakeReaderOfFormat(RowInput& input) {
  const auto row = std::find_if(kFormatRows.begin(), kFormatRows.end(),
                                [&](const FormatRow& r) { return r.name == input.format; });
  if (row == kFormatRows.end()) {
    return absl::InvalidArgumentError(absl::StrCat("--trace-format: got ", Shown(input.format),
                                                   ", expected auto, ",
                                                   absl::StrJoin(TraceFormats(), ", ")));
  }
  KVBLOCKS_RETURN_IF_ERROR(CheckOptionsOfFormats(input.format, input.options));
  return row->make(input);
}

}  // namespace kvblocks::sim
