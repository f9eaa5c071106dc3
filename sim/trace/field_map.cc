#include "sim/trace/field_map.h"

#include <algorithm>
#include <array>
#include <limits>
#include <utility>

#include "absl/strings/ascii.h"
#include "absl/strings/str_cat.h"
#include "sim/trace/row_source.h"

namespace kvblocks::sim {
namespace {

constexpr size_t kNumUserFields = 26;
constexpr std::array<MapField, kNumUserFields + 7> kMapFields = {{
    {"input_length", MapTo::kInput},
    {"output_length", MapTo::kOutput},
    {"arrival_s", MapTo::kArrival, 9},
    {"arrival_ms", MapTo::kArrival, 6},
    {"arrival_us", MapTo::kArrival, 3},
    {"arrival_ns", MapTo::kArrival, 0},
    {"arrival", MapTo::kDate},
    {"ids", MapTo::kIds},
    {"id", MapTo::kId, 0, true, &TraceRequest::id},
    {"session", MapTo::kSession, 0, true},
    {"turn", MapTo::kTurn},
    {"priority", MapTo::kPriority},
    {"min_tokens", MapTo::kMinTokens},
    {"encoder_tokens", MapTo::kEncoderTokens},
    {"tenant", MapTo::kTenant, 0, true, &TraceRequest::tenant},
    {"slo_class", MapTo::kSloClass, 0, true, &TraceRequest::slo_class},
    {"adapter", MapTo::kAdapter, 0, true, &TraceRequest::adapter},
    {"salt", MapTo::kSalt, 0, true, &TraceRequest::salt},
    {"think_s", MapTo::kThink, 9},
    {"think_ms", MapTo::kThink, 6},
    {"think_us", MapTo::kThink, 3},
    {"think_ns", MapTo::kThink, 0},
    {"abort_after_s", MapTo::kAbortAfter, 9},
    {"abort_after_ms", MapTo::kAbortAfter, 6},
    {"abort_after_us", MapTo::kAbortAfter, 3},
    {"abort_after_ns", MapTo::kAbortAfter, 0},
    {"unix_s", MapTo::kUnix, 9},
    {"total_length", MapTo::kTotal},
    {"model", MapTo::kModel, 0, true},
    {"log_type", MapTo::kLogType, 0, true},
    {"block_tokens", MapTo::kBlockTokens},
    {"hex_ids", MapTo::kHexIds},
    {"prompt", MapTo::kPrompt},
}};

constexpr size_t kMostColumns = 1000;

}  // namespace

absl::Status BadFieldMap(std::string_view got, const std::string& expected) {
  return absl::InvalidArgumentError(
      absl::StrCat("--fields: got ", Shown(got), ", expected ", expected));
}

absl::StatusOr<std::vector<Mapping>> ParseFieldMap(std::string_view text, bool is_preset) {
  const auto fields_end = kMapFields.begin() + (is_preset ? kMapFields.size() : kNumUserFields);
  std::vector<Mapping> map;
  for (std::string_view rest = text; !rest.empty();) {
    const size_t comma = std::min(rest.find(','), rest.size());
    const std::string_view part = rest.substr(0, comma);
    rest.remove_prefix(std::min(comma + 1, rest.size()));
    const size_t equals = part.find('=');
    if (equals == std::string_view::npos || equals == 0 || equals + 1 == part.size()) {
      return BadFieldMap(part, "FIELD=COLUMN, with commas between several");
    }
    const std::string_view name = part.substr(0, equals);
    std::string_view column = part.substr(equals + 1);
    const bool is_optional = is_preset && column.back() == '?';
    if (is_optional) column.remove_suffix(1);
    const auto field = std::find_if(kMapFields.begin(), fields_end,
                                    [&](const MapField& f) { return f.name == name; });
    if (field == fields_end) {
      std::string names;
      for (auto f = kMapFields.begin(); f != fields_end; ++f) {
        absl::StrAppend(&names, names.empty() ? "" : ", ", View(f->name));
      }
      return BadFieldMap(name, absl::StrCat("one of ", names));
    }
    for (const Mapping& other : map) {
      if (other.field->to == field->to || (IsArrival(field->to) && IsArrival(other.field->to))) {
        return BadFieldMap(part, absl::StrCat("it beside no ", View(other.field->name)));
      }
      if (other.column == column) {
        return BadFieldMap(
            part, absl::StrCat("each column once (", View(other.field->name), " has it already)"));
      }
    }
    map.push_back({&*field, std::string(column), !is_optional});
  }
  if (is_preset) return map;
  for (const auto& [to, name] :
       {std::pair(MapTo::kInput, "input_length"), std::pair(MapTo::kOutput, "output_length")}) {
    if (!HasField(map, to)) {
      return BadFieldMap(text, absl::StrCat("also ", name, "=COLUMN"));
    }
  }
  // Without them a row may still say something.
  for (Mapping& mapping : map) {
    mapping.is_needed = mapping.field->to == MapTo::kInput || mapping.field->to == MapTo::kOutput;
  }
  return map;
}

const std::vector<FieldPreset>& FieldPresets() {
  static const auto* const presets = new std::vector<FieldPreset>{
      {.format = "azure",
       .fields = "arrival=TIMESTAMP,input_length=ContextTokens,output_length=GeneratedTokens",
       .csv_begin = "TIMESTAMP,"},
      {.format = "burstgpt",
       .fields = "arrival_s=Timestamp,input_length=Request tokens,output_length=Response tokens,"
                 "total_length=Total tokens?,session=Session ID?,model=Model?,log_type=Log Type?",
       .csv_part = "Request tokens",
       .zero_output = "skip"},  // calls that failed
      {.format = "vidur",
       .fields = "arrival_s=arrived_at?,input_length=num_prefill_tokens,"
                 "output_length=num_decode_tokens",
       .csv_part = "num_prefill_tokens",
       .rounds_times = true},
      {.format = "lmcache",
       .fields = "unix_s=timestamp,id=request_id?,input_length=seq_len,block_tokens=chunk_size,"
                 "hex_ids=chunk_hashes",
       .shapes = {{.all = {"seq_len", "chunk_size"}},
                  {.all = {"chunk_hashes"}, .none = {"seq_len"}}},
       .rounds_times = true,
       .block_tokens = 256,
       .ignored = {"dtypes", "shapes"}},
      {.format = "vllm-custom",
       .fields = "prompt=prompt,output_length=output_tokens?,priority=priority?,"
                 "arrival_ms=timestamp?",
       .shapes = {{.all = {"prompt"}}},
       .block_tokens = 1},
  };
  return *presets;
}

const FieldPreset* FindFieldPreset(std::string_view format) {
  const auto& all = FieldPresets();
  const auto found = std::find_if(all.begin(), all.end(),
                                  [&](const FieldPreset& p) { return p.format == format; });
  return found == all.end() ? nullptr : &*found;
}

// False: a quote where none is allowed.
bool CsvTable::Split(std::string_view line) {
  fields_.clear();
  if (line.find('"') == std::string_view::npos) {
    for (size_t begin = 0; begin <= line.size();) {
      const size_t comma = std::min(line.find(',', begin), line.size());
      fields_.push_back(line.substr(begin, comma - begin));
      begin = comma + 1;
    }
    return true;
  }
  // What is unquoted is never longer than the line, so views into it stay.
  unquoted_.clear();
  unquoted_.reserve(line.size());
  size_t i = 0;
  while (true) {
    const size_t begin = unquoted_.size();
    if (i < line.size() && line[i] == '"') {
      for (++i;; ++i) {
        if (i == line.size()) return false;
        if (line[i] != '"') {
          unquoted_.push_back(line[i]);
        } else if (i + 1 < line.size() && line[i + 1] == '"') {
          unquoted_.push_back(line[++i]);
        } else {
          break;
        }
      }
      ++i;
      if (i < line.size() && line[i] != ',') return false;
    } else {
      for (; i < line.size() && line[i] != ','; ++i) {
        if (line[i] == '"') return false;
        unquoted_.push_back(line[i]);
      }
    }
    fields_.push_back(std::string_view(unquoted_).substr(begin));
    if (i == line.size()) return true;
    ++i;
  }
}

std::string CsvTable::SetHeader(std::string_view line) {
  header_ = std::string(line.substr(0, 200));
  columns_.clear();
  if (!Split(line)) {
    return absl::StrCat("CSV header: got ", Shown(line),
                        ", expected each quoted field to end with a quote");
  }
  if (fields_.size() > kMostColumns) {
    return absl::StrCat("CSV header: got ", fields_.size(), " columns, expected at most ",
                        kMostColumns);
  }
  for (const std::string_view field : fields_) {
    columns_.emplace_back(absl::StripAsciiWhitespace(View(field)));
  }
  for (size_t i = 0; i < columns_.size(); ++i) {
    if (!columns_[i].empty() && ColumnOf(columns_[i]) != i) {
      return absl::StrCat("CSV header: got the column ", Shown(columns_[i]),
                          " twice, expected each once");
    }
  }
  return "";
}

size_t CsvTable::ColumnOf(std::string_view name) const {
  const auto found = std::find(columns_.begin(), columns_.end(), name);
  return found == columns_.end() ? kNoColumn : static_cast<size_t>(found - columns_.begin());
}

std::string CsvTable::SetRow(std::string_view line) {
  if (!Split(line)) {
    return absl::StrCat("CSV row: got ", Shown(line),
                        ", expected each quoted field to end with a quote and a comma");
  }
  if (fields_.size() == columns_.size()) return "";
  return absl::StrCat("CSV row: got ", fields_.size(), " fields, expected ", columns_.size(), " (",
                      header_, ")");
}

}  // namespace kvblocks::sim
