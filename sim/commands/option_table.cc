#include "sim/commands/fleet_input.h"
#include "sim/commands/option_table.h"

#include <algorithm>
#include <cmath>
#include <limits>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_split.h"
#include "absl/strings/strip.h"
#include "checks/status_macros.h"
#include "sim/simulation_config.h"
#include "sim/trace/decimal.h"

namespace kvblocks::sim {
namespace {

using ::google::protobuf::FieldDescriptor;
using ::google::protobuf::Message;
using ::kvblocks::config::v1::ReplayConfig;
using ::kvblocks::config::v1::Setting;

// Empty: done; otherwise what was expected instead.
std::string SetField(const FieldDescriptor* field, const std::string& text, Message* message) {
  const auto* reflection = message->GetReflection();
  switch (field->cpp_type()) {
    case FieldDescriptor::CPPTYPE_INT64: {
      const auto value = ParseCount(text);
      if (!value) return "a whole number, like 131072 or 128K";
      reflection->SetInt64(message, field, *value);
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
      const bool is_gb =
          field->options().GetExtension(::kvblocks::config::v1::setting).unit() == "GB";
      if (const auto bytes = ParseBytes(text); is_gb && bytes) {
        value = static_cast<double>(*bytes) / 1e9;
      } else if (!absl::SimpleAtod(text, &value)) {
        return is_gb ? "a number of GB, or bytes like 64GiB" : "a number";
      }
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

std::vector<ReplayOption> MakeOptions() {
  std::vector<ReplayOption> options;
  std::string section;
  const auto* message = ReplayConfig::descriptor();
  for (int i = 0; i < message->field_count(); ++i) {
    const FieldDescriptor* field = message->field(i);
    if (!field->options().HasExtension(::kvblocks::config::v1::setting)) continue;
    const Setting& setting = field->options().GetExtension(::kvblocks::config::v1::setting);
    if (!setting.section().empty()) section = setting.section();
    options.push_back({field, &setting, section});
  }
  return options;
}

double MostOf(const Setting& setting) {
  return setting.max() == 0 ? std::numeric_limits<int32_t>::max() : setting.max();
}

}  // namespace

const std::vector<ReplayOption>& ReplayOptions() {
  static const auto* const options = new std::vector<ReplayOption>(MakeOptions());
  return *options;
}

std::string ValueText(const Message& message, const FieldDescriptor* field) {
  const auto* reflection = message.GetReflection();
  switch (field->cpp_type()) {
    case FieldDescriptor::CPPTYPE_INT64:
      return absl::StrCat(reflection->GetInt64(message, field));
    case FieldDescriptor::CPPTYPE_UINT64:
      return absl::StrCat(reflection->GetUInt64(message, field));
    case FieldDescriptor::CPPTYPE_DOUBLE:
      return absl::StrFormat("%.15g", reflection->GetDouble(message, field));
    case FieldDescriptor::CPPTYPE_BOOL:
      return reflection->GetBool(message, field) ? "true" : "false";
    case FieldDescriptor::CPPTYPE_STRING:
      return reflection->GetString(message, field);
    default:
      return "";
  }
}

std::string DefaultText(const ReplayOption& option) {
  const std::string& text = option.setting->default_();
  return text.empty() ? ValueText(ReplayConfig::default_instance(), option.field) : text;
}

std::string FlagName(std::string_view field) {
  std::string flag = "--";
  for (char c : field) flag += c == '_' ? '-' : c;
  return flag;
}

absl::Status BadOption(std::string_view flag, std::string_view got, std::string_view expected) {
  return absl::InvalidArgumentError(absl::StrCat(std::string(flag), ": got \"", std::string(got),
                                                 "\", expected ", std::string(expected)));
}

namespace {

void Bind(const ReplayOption& option, OptionParser* options, ReplayConfig* given,
          bool lists_common = true) {
  const FieldDescriptor* field = option.field;
  const Setting& setting = *option.setting;
  OptionText text = {.name = FlagName(option.name()),
                     .unit = setting.unit(),
                     .help = setting.help(),
                     .group = option.section,
                     .is_common = lists_common && setting.common(),
                     .file = setting.file() ? FileUse::kRead : FileUse::kNone};
  const std::string initial = DefaultText(option);
  if (!initial.empty()) absl::StrAppend(&text.help, " [", initial, "]");
  if (field->cpp_type() == FieldDescriptor::CPPTYPE_BOOL) {
    options->AddFlag(
        text, [field, given](bool value) { given->GetReflection()->SetBool(given, field, value); });
    return;
  }
  if (!setting.separator().empty()) {
    options->AddRepeated(
        text, [field, given, between = setting.separator()](const std::string& value) {
          const std::string before = ValueText(*given, field);
          SetField(field, absl::StrCat(before, before.empty() ? "" : between, value), given);
          return std::string();
        });
    return;
  }
  if (!setting.alias().empty()) absl::StrAppend(&text.name, ",--", setting.alias());
  options->Add(text, [field, given](const std::string& value) -> std::string {
    const std::string expected = SetField(field, value, given);
    return expected.empty() ? "" : absl::StrCat("got \"", value, "\", expected ", expected);
  });
}

ReplayConfig MakeDefaults() {
  ReplayConfig config;
  for (const ReplayOption& option : ReplayOptions()) {
    SetField(option.field, DefaultText(option), &config);
  }
  return config;
}

const ReplayOption* Find(std::string_view field) {
  for (const ReplayOption& option : ReplayOptions()) {
    if (option.name() == field) return &option;
  }
  return nullptr;
}

}  // namespace

bool NamesFile(std::string_view field) {
  const ReplayOption* option = Find(field);
  return option != nullptr && option->setting->file();
}

std::vector<RunFile> FilesOf(const ReplayConfig& config) {
  std::vector<ReplayConfig> configs = {config};
  if (const auto kinds = ReplicaKinds(config); kinds.ok()) {  // bad ones are reported elsewhere
    for (const ReplicaKind& kind : *kinds) configs.push_back(kind.config);
  }
  std::vector<RunFile> files;
  for (const ReplayConfig& one : configs) {
    for (const ReplayOption& option : ReplayOptions()) {
      const std::string path = option.setting->file() ? ValueText(one, option.field) : "";
      if (path.empty()) continue;
      const bool is_trace = option.name() == "trace";
      files.push_back({is_trace ? "TRACE" : FlagName(option.name()), path, FileUse::kRead});
    }
  }
  return files;
}

absl::StatusOr<std::string> OptionField(std::string_view name) {
  std::string field(name.substr(0, 2) == "--" ? name.substr(2) : name);
  std::replace(field.begin(), field.end(), '-', '_');
  std::vector<std::string> known;
  for (const ReplayOption& option : ReplayOptions()) {
    const std::string& alias = option.setting->alias();
    if (field == option.name() || (!alias.empty() && field == alias)) return option.name();
    known.push_back(FlagName(option.name()));
  }
  const std::string suggestion = SuggestName(FlagName(field), known);
  return absl::InvalidArgumentError(absl::StrCat(FlagName(field), ": no such option of a replay",
                                                 suggestion.empty() ? "" : "; ", suggestion));
}

absl::Status SetOption(std::string_view name, const std::string& value, ReplayConfig* config) {
  KVBLOCKS_ASSIGN_OR_RETURN(const auto field, OptionField(name));
  const std::string expected = SetField(Find(field)->field, value, config);
  return expected.empty() ? absl::OkStatus() : BadOption(FlagName(field), value, expected);
}

void BindOptions(std::string_view section, OptionParser* options, ReplayConfig* given,
                 bool lists_common) {
  for (const ReplayOption& option : ReplayOptions()) {
    const bool is_wanted =
        section.empty() ? option.section != kFleetGroup : option.section == section;
    if (!is_wanted || option.name() == "trace") continue;  // which is positional
    if (section == kWorkloadGroup && option.setting->of_run()) continue;
    Bind(option, options, given, lists_common);
  }
}

void BindOption(std::string_view name, OptionParser* options, ReplayConfig* given) {
  Bind(*Find(name), options, given);
}

absl::StatusOr<ReplayConfig> DefaultConfig(std::string_view engine) {
  static const auto* const defaults = new ReplayConfig(MakeDefaults());
  ReplayConfig config = *defaults;
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
  for (const ReplayOption& option : ReplayOptions()) {
    absl::string_view rest = text;
    if (!absl::ConsumePrefix(&rest, option.name()) || !absl::ConsumePrefix(&rest, " is ")) continue;
    return absl::Status(status.code(), absl::StrCat(FlagName(option.name()), ": got ", rest));
  }
  return status;
}

absl::Status CheckOptionRanges(const ReplayConfig& config) {
  for (const ReplayOption& option : ReplayOptions()) {
    const Setting& setting = *option.setting;
    const std::string got = ValueText(config, option.field);
    switch (option.field->cpp_type()) {
      case FieldDescriptor::CPPTYPE_INT64:
      case FieldDescriptor::CPPTYPE_DOUBLE: {
        double value = std::nan("");
        if (absl::SimpleAtod(got, &value) && value >= setting.min() && value <= MostOf(setting))
          break;
        return absl::InvalidArgumentError(
            absl::StrFormat("%s: got %s, expected %.15g to %.15g (%s)", FlagName(option.name()),
                            got, setting.min(), MostOf(setting), setting.help()));
      }
      case FieldDescriptor::CPPTYPE_STRING: {
        if (setting.unit().find('|') == std::string::npos) break;
        const std::vector<std::string> choices = absl::StrSplit(setting.unit(), '|');
        if (std::count(choices.begin(), choices.end(), got) > 0) break;
        return BadOption(
            FlagName(option.name()), got,
            absl::StrCat("one of ", absl::StrJoin(choices, ", "), " (", setting.help(), ")"));
      }
      default:
        break;
    }
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
  if (!config->tier().empty() || config->prefill_replicas() > 0) {
    // With KV from elsewhere engines have none (V-10).
    if (given.lookahead_hashes() || (file.lookahead_hashes() && !given.has_lookahead_hashes())) {
      return absl::InvalidArgumentError(
          "--lookahead-hashes: got true, expected --no-lookahead-hashes: engines with tiers, and "
          "those that send or fetch KV, have none");
    }
    config->set_lookahead_hashes(false);
  }
  KVBLOCKS_RETURN_IF_ERROR(CheckOptionRanges(*config));
  return config;
}

}  // namespace kvblocks::sim
