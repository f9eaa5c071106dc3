#include "kvblocks/sim/trace/field_map.h"

#include <array>
#include <limits>
#include <utility>

#include "absl/strings/str_cat.h"
#include "kvblocks/sim/trace/row_source.h"

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
    {"id", MapTo::kId, 0, true},
    {"session", MapTo::kSession, 0, true},
    {"turn", MapTo::kTurn},
    {"priority", MapTo::kPriority},
    {"min_tokens", MapTo::kMinTokens},
    {"encoder_tokens", MapTo::kEncoderTokens},
    {"tenant", MapTo::kTenant, 0, true},
    {"slo_class", MapTo::kSloClass, 0, true},
    {"adapter", MapTo::kAdapter, 0, true},
    {"salt", MapTo::kSalt, 0, true},
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

}  // namespace kvblocks::sim
