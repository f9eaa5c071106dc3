#include "kvblocks/sim/commands/option_table.h"

#include <algorithm>
#include <cmath>

#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_split.h"
#include "absl/strings/strip.h"
#include "kvblocks/sim/commands/replica_kinds.h"
#include "kvblocks/sim/simulation_config.h"

namespace kvblocks::sim {
namespace {

using ::google::protobuf::FieldDescriptor;
using ::google::protobuf::Message;
using ::kvblocks::config::v1::ReplayConfig;

const FieldDescriptor* FieldOf(const OptionRow& row) {
  return ReplayConfig::descriptor()->FindFieldByName(row.field);
}

std::string Number(double value) { return absl::StrCat(value); }

// Empty: done; otherwise what was expected instead.
std::string SetField(const FieldDescriptor* field, const std::string& text, Message* message) {
  const auto* reflection = message->GetReflection();
  switch (field->cpp_type()) {
    case FieldDescriptor::CPPTYPE_INT64: {
      int64_t value;
      if (!absl::SimpleAtoi(text, &value)) return "a whole number";
      reflection->SetInt64(message, field, value);
      return "";
    }
    case FieldDescriptor::CPPTYPE_UINT64: {
      uint64_t value;
      if (!absl::SimpleAtoi(text, &value)) return "a whole number from 0 to 2^64-1";
      reflection->SetUInt64(message, field, value);
      return "";
    }
    case FieldDescriptor::CPPTYPE_DOUBLE: {
      double value;
      if (!absl::SimpleAtod(text, &value)) return "a number";
      reflection->SetDouble(message, field, value);
      return "";
    }
    case FieldDescriptor::CPPTYPE_BOOL:
      if (text != "true" && text != "false") return "true or false";
      reflection->SetBool(message, field, text == "true");
      return "";
    default:
      reflection->SetString(message, field, text);
      return "";
  }
}

std::string HelpOf(const OptionRow& row) {
  const std::string initial = row.initial;
  return initial.empty() ? std::string(row.help) : absl::StrCat(row.help, " [", initial, "]");
}


}  // namespace

std::string FlagName(std::string_view field) {
  std::string flag = "--";
  for (char c : field) flag += c == '_' ? '-' : c;
  return flag;
}

absl::Status BadOption(std::string_view flag, std::string_view got, std::string_view expected) {
  return absl::InvalidArgumentError(
      absl::StrCat(std::string(flag), ": got \"", std::string(got), "\", expected ", std::string(expected)));
}

namespace {

// The name that engines' users type.
std::string_view AliasOf(std::string_view field) {
  return field == "tensor_parallel"     ? "--tp"
         : field == "pipeline_parallel" ? "--pp"
         : field == "data_parallel"     ? "--dp"
                                        : "";
}

void Bind(const OptionRow& row, OptionParser* options, ReplayConfig* given) {
  const FieldDescriptor* field = FieldOf(row);
  OptionText option = {
      .name = FlagName(row.field), .unit = row.unit, .help = HelpOf(row), .group = row.group};
  if (NamesFile(row.field)) option.file = FileUse::kRead;
  if (field->cpp_type() == FieldDescriptor::CPPTYPE_BOOL) {
    options->AddFlag(option, [field, given](bool value) {
      given->GetReflection()->SetBool(given, field, value);
    });
    return;
  }
  if (std::string_view(row.field) == "replica") {
    options->AddRepeated(option, [given](const std::string& text) {
      given->set_replica(
          absl::StrCat(given->replica(), given->replica().empty() ? "" : ";", text));
      return std::string();
    });
    return;
  }
  const std::string_view alias = AliasOf(row.field);
  if (!alias.empty()) absl::StrAppend(&option.name, ",", std::string(alias));
  options->Add(option, [field, given](const std::string& text) -> std::string {
    const std::string expected = SetField(field, text, given);
    return expected.empty() ? "" : absl::StrCat("got \"", text, "\", expected ", expected);
  });
}

// About what a run makes of the workload, not about what is read of a trace.
bool IsOfRun(std::string_view field) {
  return field == "concurrency" || field == "start_jitter" || field == "zero_output" ||
         field == "encoder_tokens";
}

}  // namespace

bool NamesFile(std::string_view field) {
  if (field == "model" || field == "draft_model") return true;
  for (const OptionRow& row : ReplayOptionRows()) {
    const std::string_view unit = row.unit;
    if (row.field == field) return unit == "PATH" || unit == "FILE" || unit == "FOLDER";
  }
  return false;
}

std::vector<RunFile> FilesOf(const ReplayConfig& config) {
  std::vector<ReplayConfig> configs = {config};
  if (const auto kinds = ReplicaKinds(config); kinds.ok()) {  // bad ones are told elsewhere
    for (const ReplicaKind& kind : *kinds) configs.push_back(kind.config);
  }
  std::vector<RunFile> files;
  for (const ReplayConfig& one : configs) {
    for (const OptionRow& row : ReplayOptionRows()) {
      if (!NamesFile(row.field)) continue;
      const std::string path = one.GetReflection()->GetString(one, FieldOf(row));
      if (path.empty()) continue;
      const bool is_trace = std::string_view(row.field) == "trace";
      files.push_back({is_trace ? "TRACE" : FlagName(row.field), path, FileUse::kRead});
    }
  }
  return files;
}

absl::StatusOr<std::string> OptionField(std::string_view name) {
  std::string field(name.substr(0, 2) == "--" ? name.substr(2) : name);
  std::replace(field.begin(), field.end(), '-', '_');
  std::vector<std::string> known;
  for (const OptionRow& row : ReplayOptionRows()) {
    if (field == row.field || AliasOf(row.field) == absl::StrCat("--", field)) {
      return std::string(row.field);
    }
    known.push_back(FlagName(row.field));
  }
  const std::string suggestion = SuggestName(FlagName(field), known);
  return absl::InvalidArgumentError(absl::StrCat(
      FlagName(field), ": no such option of a replay", suggestion.empty() ? "" : "; ", suggestion));
}

absl::Status SetOption(std::string_view name, const std::string& value, ReplayConfig* config) {
  const auto field = OptionField(name);
  if (!field.ok()) return field.status();
  const std::string expected =
      SetField(ReplayConfig::descriptor()->FindFieldByName(*field), value, config);
  if (expected.empty()) return absl::OkStatus();
  return absl::InvalidArgumentError(
      absl::StrCat(FlagName(*field), ": got \"", value, "\", expected ", expected));
}

void BindOptions(std::string_view group, OptionParser* options, ReplayConfig* given) {
  for (const OptionRow& row : ReplayOptionRows()) {
    // The trace is positional.
    const std::string_view of_row = row.group;
    if (of_row.empty() || (group.empty() ? of_row == kFleetGroup : of_row != group)) continue;
    if (group == kWorkloadGroup && IsOfRun(row.field)) continue;
    Bind(row, options, given);
  }
}

void BindOption(std::string_view field, OptionParser* options, ReplayConfig* given) {
  for (const OptionRow& row : ReplayOptionRows()) {
    if (row.field == field) Bind(row, options, given);
  }
}

absl::StatusOr<ReplayConfig> DefaultConfig(std::string_view engine) {
  ReplayConfig config;
  for (const OptionRow& row : ReplayOptionRows()) SetField(FieldOf(row), row.initial, &config);
  SimulationConfig preset;
  if (absl::Status status = ApplyEnginePreset(engine, &preset); !status.ok()) {
    return absl::InvalidArgumentError(absl::StrCat("--", status.message()));
  }
  config.set_engine(std::string(EngineVersionName(preset.engine)));
  config.set_async(preset.scheduler.async);
  config.set_reserve_full_isl(preset.scheduler.reserve_full_isl);
  config.set_watermark(preset.manager.watermark);
  config.set_free_order(preset.manager.free_order == FreeOrder::kUnhashedFirst ? "unhashed_first"
                                                                               : "append_all");
  config.set_retention_interval(preset.manager.semantics.retention_interval.value_or(-1));
  config.set_lookahead_hashes(preset.engine >= EngineVersion::kVllm033);
  return config;
}

absl::Status OfOption(std::string_view flag, std::string_view name, const absl::Status& status) {
  std::string_view text(status.message().data(), status.message().size());
  if (text.substr(0, name.size()) == name) {
    const std::string_view rest = text.substr(name.size());
    if (rest.substr(0, 2) == ": ") text = rest.substr(2);
    if (rest.substr(0, 1) == " ") text = rest.substr(1);
  }
  return absl::Status(status.code(), absl::StrCat(std::string(flag), ": ", std::string(text)));
}

absl::Status InOptionWords(const absl::Status& status) {
  absl::string_view text = status.message();
  for (const absl::string_view part : {"manager.", "scheduler.", "kv_cache."}) {
    absl::ConsumePrefix(&text, part);
  }
  for (const OptionRow& row : ReplayOptionRows()) {
    absl::string_view rest = text;
    if (!absl::ConsumePrefix(&rest, row.field) || !absl::ConsumePrefix(&rest, " is ")) continue;
    return absl::Status(status.code(), absl::StrCat(FlagName(row.field), ": got ", rest));
  }
  return status;
}

absl::Status CheckOptionRanges(const ReplayConfig& config) {
  const auto* reflection = config.GetReflection();
  for (const OptionRow& row : ReplayOptionRows()) {
    const FieldDescriptor* field = FieldOf(row);
    std::string got, expected;
    if (field->cpp_type() == FieldDescriptor::CPPTYPE_INT64) {
      const int64_t value = reflection->GetInt64(config, field);
      if (static_cast<double>(value) >= row.low && static_cast<double>(value) <= row.high) continue;
      got = absl::StrCat(value);
    } else if (field->cpp_type() == FieldDescriptor::CPPTYPE_DOUBLE) {
      const double value = reflection->GetDouble(config, field);
      if (value >= row.low && value <= row.high) continue;
      got = Number(value);
    } else if (field->cpp_type() == FieldDescriptor::CPPTYPE_STRING &&
               absl::StrContains(row.unit, '|')) {
      const std::string value = reflection->GetString(config, field);
      const std::vector<std::string> choices = absl::StrSplit(row.unit, '|');
      if (std::count(choices.begin(), choices.end(), value) > 0) continue;
      return absl::InvalidArgumentError(
          absl::StrCat(FlagName(row.field), ": got \"", value, "\", expected one of ",
                       absl::StrJoin(choices, ", "), " (", row.help, ")"));
    } else {
      continue;
    }
    const auto limit = [&](double value) {
      return value == std::floor(value) && std::abs(value) < 1e15
                 ? absl::StrCat(static_cast<int64_t>(value))
                 : Number(value);
    };
    return absl::InvalidArgumentError(absl::StrCat(FlagName(row.field), ": got ", got,
                                                   ", expected ", limit(row.low), " to ",
                                                   limit(row.high), " (", row.help, ")"));
  }
  return absl::OkStatus();
}

bool HasCrossAttention(const ReplayConfig& config) {
  const auto& groups = config.kv_cache_config().groups();
  return std::any_of(groups.begin(), groups.end(),
                     [](const auto& group) { return group.spec().has_cross_attention(); });
}

absl::StatusOr<ReplayConfig> EffectiveConfig(const ReplayConfig& file, const ReplayConfig& given) {
  std::string engine = "vllm-main";
  if (file.has_engine()) engine = file.engine();
  if (given.has_engine()) engine = given.engine();
  auto config = DefaultConfig(engine);
  if (!config.ok()) return config.status();
  config->MergeFrom(file);
  // Groups replace each other; they do not add up.
  if (given.has_kv_cache_config()) config->clear_kv_cache_config();
  config->MergeFrom(given);
  // Files of before say "eagle: false".
  if (config->eagle()) {
    return absl::InvalidArgumentError(
        "eagle: got true, expected drafter: \"eagle\" and num_draft_tokens, which took its place "
        "(with lookahead_hashes: false the last hit block is dropped as before)");
  }
  config->clear_eagle();
  const EngineVersion version = *ParseEngineVersion(config->engine());
  config->set_engine(std::string(EngineVersionName(version)));
  // Defaults that depend on other options.
  if (!file.has_retention_interval() && !given.has_retention_interval() &&
      config->cache_all_blocks()) {
    config->set_retention_interval(-1);
  }
  const bool drafts_in_turn = config->num_draft_tokens() > 0 && config->drafter() == "ngram";
  if (!file.has_async() && !given.has_async() && version < EngineVersion::kVllm033 &&
      (drafts_in_turn || config->pipeline_parallel() > 1)) {
    config->set_async(false);  // not both at once then (V-78)
  }
  // Engines compute prompts of encoder-decoder models whole, and cache nothing of them.
  if (HasCrossAttention(*config)) {
    if (!file.has_prefix_caching() && !given.has_prefix_caching()) {
      config->set_prefix_caching(false);
    }
    if (!file.has_chunked_prefill() && !given.has_chunked_prefill()) {
      config->set_chunked_prefill(false);
    }
  }
  if (!config->tier().empty()) {
    // With KV from elsewhere engines have none (V-10).
    if (given.lookahead_hashes() || (file.lookahead_hashes() && !given.has_lookahead_hashes())) {
      return absl::InvalidArgumentError(
          "--lookahead-hashes: got true, expected --no-lookahead-hashes: engines with tiers have none");
    }
    config->set_lookahead_hashes(false);
  }
  if (absl::Status status = CheckOptionRanges(*config); !status.ok()) return status;
  return config;
}

}  // namespace kvblocks::sim
