#include "sim/sweep/sweep_points.h"

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <filesystem>
#include <memory>
#include <optional>
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_split.h"
#include "checks/status_macros.h"
#include "google/protobuf/io/coded_stream.h"
#include "google/protobuf/io/zero_copy_stream_impl_lite.h"
#include "kvblocks/check.h"
#include "kvblocks/config_source.h"
#include "kvblocks/version.h"
#include "sim/commands/example_trace.h"
#include "sim/commands/fleet_input.h"
#include "sim/commands/option_table.h"
#include "sim/cost/kernel_tables.h"
#include "sim/report/metric_list.h"

#define XXH_INLINE_ALL
#include "xxhash.h"

namespace kvblocks::sim {

namespace pb = ::kvblocks::sweep::v1;
using ::kvblocks::config::v1::ReplayConfig;

namespace {

constexpr int64_t kMostValues = 100'000;  // of one axis

std::string HashText(XXH128_hash_t hash) {
  return absl::StrFormat("%016x%016x", hash.high64, hash.low64);
}

// The same bytes for the same message, from this program.
std::string CanonicalBytes(const google::protobuf::Message& message) {
  std::string bytes;
  google::protobuf::io::StringOutputStream stream(&bytes);
  google::protobuf::io::CodedOutputStream coded(&stream);
  coded.SetSerializationDeterministic(true);
  message.SerializeToCodedStream(&coded);
  coded.Trim();
  return bytes;
}

absl::Status BadAxis(std::string_view option, std::string_view value, std::string_view expected) {
  return InvalidArgument(FlagName(option), ": got \"", std::string(value), "\", expected ",
                         std::string(expected));
}

// First, last and step of "64:512:*2"; empty: the text is a plain value.
struct ValueRange {
  std::string first, last, step;
  bool is_factor = false;
};
std::optional<ValueRange> SplitRange(const std::string& text) {
  const std::vector<std::string> parts = absl::StrSplit(text, ':');
  double ignored;
  if (parts.size() != 3 || parts[2].size() < 2 || (parts[2][0] != '*' && parts[2][0] != '+') ||
      !absl::SimpleAtod(parts[0], &ignored) || !absl::SimpleAtod(parts[1], &ignored)) {
    return std::nullopt;
  }
  return ValueRange{parts[0], parts[1], parts[2].substr(1), parts[2][0] == '*'};
}

absl::Status AddRange(std::string_view option, const std::string& text, const ValueRange& range,
                      std::vector<std::string>* values) {
  constexpr const char* kExpected =
      "FIRST:LAST:*FACTOR or FIRST:LAST:+STEP, which grow from FIRST to LAST, like 64:512:*2";
  int64_t whole_first, whole_last, whole_step;
  if (absl::SimpleAtoi(range.first, &whole_first) && absl::SimpleAtoi(range.last, &whole_last) &&
      absl::SimpleAtoi(range.step, &whole_step)) {
    if (whole_last < whole_first || whole_step < (range.is_factor ? 2 : 1) ||
        (range.is_factor && whole_first < 1)) {
      return BadAxis(option, text, kExpected);
    }
    __int128 value = whole_first;
    for (int64_t count = 0; value <= whole_last; ++count) {
      if (count == kMostValues) return BadAxis(option, text, "at most 100,000 values");
      values->push_back(absl::StrCat(static_cast<int64_t>(value)));
      value = range.is_factor ? value * whole_step : value + whole_step;
    }
    return absl::OkStatus();
  }
  double first, last, step;
  if (!absl::SimpleAtod(range.first, &first) || !absl::SimpleAtod(range.last, &last) ||
      !absl::SimpleAtod(range.step, &step) || !std::isfinite(first) || !std::isfinite(last) ||
      !std::isfinite(step) || last < first || (range.is_factor && (first <= 0 || step <= 1)) ||
      (!range.is_factor && step <= 0)) {
    return BadAxis(option, text, kExpected);
  }
  // What rounding leaves must not cost the last value.
  const double end = last + 1e-9 * std::abs(last);
  for (int64_t count = 0;; ++count) {
    const double steps = static_cast<double>(count);
    const double value = range.is_factor ? first * std::pow(step, steps) : first + step * steps;
    if (value > end) return absl::OkStatus();
    if (count == kMostValues) return BadAxis(option, text, "at most 100,000 values");
    values->push_back(absl::StrFormat("%.12g", value));
  }
}

// Contents that options name, and the trace's.
absl::Status AddInputs(const ReplayConfig& config, ContentHashes* hashes, pb::SweepPoint* point) {
  const auto add = [&](const char* option, const absl::StatusOr<std::string>& hash) {
    KVBLOCKS_RETURN_IF_ERROR(hash.status());
    pb::InputHash* input = point->add_inputs();
    input->set_option(option);
    input->set_hash(*hash);
    return absl::OkStatus();
  };
  const auto add_file = [&](const char* option, const std::string& path) {
    return path.empty() ? absl::OkStatus() : add(option, hashes->OfFile(path));
  };
  const auto add_folder = [&](const char* option, const std::string& path) {
    return path.empty() ? absl::OkStatus() : add(option, hashes->OfFolder(path));
  };
  const auto json_only = [](const std::string& name) {
    return absl::EndsWith(name, ".json") ? name : std::string();
  };
  if (config.trace() == "-") {
    return absl::InvalidArgumentError(
        "TRACE: standard input can be read once, and a sweep names it by its content; name a file");
  }
  KVBLOCKS_RETURN_IF_ERROR(config.trace().empty()
                               ? add("trace", ContentHashes::OfText(ExampleTrace()))
                               : add_file("trace", config.trace()));
  // RAGPulse has lengths in files beside the trace.
  if (!config.trace().empty() && config.rag_lengths().empty()) {
    const auto folder = std::filesystem::path(config.trace()).parent_path();
    for (const char* name :
         {"1_sys_prompt", "2_passages", "3_history", "4_user_input", "5_web_search"}) {
      for (const char* ending : {".jsonl", ".jsonl.gz", ".jsonl.zst"}) {
        const std::string path = (folder / absl::StrCat(name, ending)).string();
        std::error_code error;
        if (!std::filesystem::is_regular_file(path, error)) continue;
        KVBLOCKS_RETURN_IF_ERROR(add_file(name, path));
      }
    }
  }
  const bool has_tables = config.time() == "auto" || config.time() == "table";
  const std::string tables = config.kernel_tables().empty() && has_tables ? FindKernelTablesFile()
                                                                          : config.kernel_tables();
  for (const auto& [option, path] : {std::pair{"catalogue", config.catalogue()},
                                     {"kernel_tables", tables},
                                     {"step_times", config.step_times()},
                                     {"model", json_only(config.model())},
                                     {"draft_model", json_only(config.draft_model())}}) {
    KVBLOCKS_RETURN_IF_ERROR(add_file(option, path));
  }
  return add_folder("rag_lengths", config.rag_lengths());
}

}  // namespace

std::string ContentHashes::OfText(std::string_view text) {
  return HashText(XXH3_128bits(text.data(), text.size()));
}

absl::StatusOr<std::string> ContentHashes::OfFile(const std::string& path) {
  if (const auto known = files_.find(path); known != files_.end()) return known->second;
  std::error_code error;
  if (!std::filesystem::exists(path, error)) {
    return absl::NotFoundError(absl::StrCat(path, ": no such file"));
  }
  if (!std::filesystem::is_regular_file(path, error)) {
    return InvalidArgument(path, ": no regular file, which can be read again");
  }
  std::unique_ptr<std::FILE, int (*)(std::FILE*)> file(std::fopen(path.c_str(), "rb"), std::fclose);
  if (file == nullptr) {
    return absl::PermissionDeniedError(absl::StrCat(path, ": cannot be read"));
  }
  const std::unique_ptr<XXH3_state_t, XXH_errorcode (*)(XXH3_state_t*)> state(XXH3_createState(),
                                                                              XXH3_freeState);
  XXH3_128bits_reset(state.get());
  std::vector<char> buffer(1 << 20);
  while (const size_t size = std::fread(buffer.data(), 1, buffer.size(), file.get())) {
    XXH3_128bits_update(state.get(), buffer.data(), size);
  }
  if (std::ferror(file.get()) != 0) {
    return absl::DataLossError(absl::StrCat(path, ": cannot be read to its end"));
  }
  return files_[path] = HashText(XXH3_128bits_digest(state.get()));
}

absl::StatusOr<std::string> ContentHashes::OfFolder(const std::string& path) {
  if (const auto known = files_.find(path); known != files_.end()) return known->second;
  std::error_code error;
  std::vector<std::string> names;
  for (std::filesystem::directory_iterator it(path, error), end; !error && it != end;
       it.increment(error)) {
    if (it->is_regular_file(error)) names.push_back(it->path().filename().string());
  }
  if (error) return absl::NotFoundError(absl::StrCat(path, ": ", error.message()));
  std::sort(names.begin(), names.end());
  std::string text;
  for (const std::string& name : names) {
    KVBLOCKS_ASSIGN_OR_RETURN(const auto hash,
                              OfFile((std::filesystem::path(path) / name).string()));
    absl::StrAppend(&text, name, "\n", hash, "\n");
  }
  return files_[path] = OfText(text);
}

absl::StatusOr<pb::SweepSpec> ReadSweepSpec(const std::string& path) {
  KVBLOCKS_ASSIGN_OR_RETURN(const auto text, ReadConfigFile(path));
  pb::SweepSpec spec;
  KVBLOCKS_ASSIGN_OR_RETURN(const auto source,
                            ConfigSource::Parse(text, path, ConfigSyntax::kDetect, spec));
  return spec;
}

absl::StatusOr<pb::Axis> ParseAxis(std::string_view text) {
  const size_t equals = text.find('=');
  if (equals == std::string_view::npos || equals == 0) {
    return InvalidArgument("got \"", std::string(text),
                           "\", expected OPTION=VALUE,VALUE,... or OPTION=FIRST:LAST:*FACTOR");
  }
  KVBLOCKS_ASSIGN_OR_RETURN(const auto field, OptionField(text.substr(0, equals)));
  const std::string values(text.substr(equals + 1));
  pb::Axis axis;
  axis.set_option(field);
  const auto option = std::find_if(ReplayOptions().begin(), ReplayOptions().end(),
                                   [&](const ReplayOption& one) { return one.name() == field; });
  // Of texts that are empty by default, like --tier, an empty value means none.
  const bool may_be_empty = DefaultText(*option).empty() && !option->setting->file();
  for (std::string& value : std::vector<std::string>(
           absl::StrSplit(values, absl::StrContains(values, '|') ? '|' : ','))) {
    if (value.empty() && !may_be_empty) {
      return BadAxis(field, values, "no empty value in it");
    }
    axis.add_values(std::move(value));
  }
  // Checks ranges now, so that a mistake is reported before anything is read.
  KVBLOCKS_RETURN_IF_ERROR(AxisValues(axis).status());
  return axis;
}

absl::StatusOr<std::vector<std::string>> AxisValues(const pb::Axis& axis) {
  KVBLOCKS_ASSIGN_OR_RETURN(const auto field, OptionField(axis.option()));
  std::vector<std::string> values;
  for (const std::string& text : axis.values()) {
    const auto range = SplitRange(text);
    if (!range) {
      values.push_back(text);
    } else
      KVBLOCKS_RETURN_IF_ERROR(AddRange(field, text, *range, &values));
  }
  if (values.empty()) return BadAxis(field, "", "one value or more");
  ReplayConfig scratch;
  for (const std::string& value : values) {
    KVBLOCKS_RETURN_IF_ERROR(SetOption(field, value, &scratch));
  }
  return values;
}

pb::Setting MakeSetting(std::string option, std::string value) {
  pb::Setting setting;
  setting.set_option(std::move(option));
  setting.set_value(std::move(value));
  return setting;
}

absl::StatusOr<PlannedPoint> PlanPoint(const ReplayConfig& asked,
                                       const std::vector<pb::Setting>& settings,
                                       ContentHashes* hashes) {
  PlannedPoint planned;
  planned.settings = settings;
  ReplayConfig given;
  for (const pb::Setting& setting : settings) {
    KVBLOCKS_RETURN_IF_ERROR(SetOption(setting.option(), setting.value(), &given));
  }
  auto effective = EffectiveConfig(asked, given);
  if (effective.ok()) {
    planned.config = *std::move(effective);
    // So that points that differ in these only are one.
    DropUselessOptions(&planned.config);
  } else {
    planned.status = effective.status();
    planned.config = asked;
    planned.config.MergeFrom(given);
  }
  pb::SweepPoint& point = planned.point;
  point.set_program_version(KVBLOCKS_VERSION);
  KVBLOCKS_RETURN_IF_ERROR(AddInputs(planned.config, hashes, &point));
  *point.mutable_config() = planned.config;
  // Their content is among the inputs.
  for (std::string* path :
       {point.mutable_config()->mutable_trace(), point.mutable_config()->mutable_catalogue(),
        point.mutable_config()->mutable_kernel_tables(),
        point.mutable_config()->mutable_step_times(),
        point.mutable_config()->mutable_rag_lengths()}) {
    path->clear();
  }
  planned.name = ContentHashes::OfText(CanonicalBytes(point));
  return planned;
}

std::vector<RunFile> FilesOf(const ReplayConfig& asked, const std::vector<pb::Axis>& axes) {
  std::vector<RunFile> files;
  const auto add = [&](const std::string& option, const std::string& value) {
    ReplayConfig given;
    if (!option.empty() && !SetOption(option, value, &given).ok()) return;  // reported elsewhere
    const auto config = EffectiveConfig(asked, given);
    const std::vector<RunFile> more = FilesOf(config.ok() ? *config : given);
    files.insert(files.end(), more.begin(), more.end());
  };
  add("", "");
  for (const pb::Axis& axis : axes) {
    const auto field = OptionField(axis.option());
    if (!field.ok() || (!NamesFile(*field) && *field != "replica")) continue;
    const auto values = AxisValues(axis);
    if (!values.ok()) continue;
    for (const std::string& value : *values) add(axis.option(), value);
  }
  return files;
}

std::vector<RunFile> FilesOf(const pb::SweepSpec& spec) {
  std::vector<pb::Axis> axes(spec.grid().begin(), spec.grid().end());
  pb::Axis traces;
  traces.set_option("trace");
  for (const std::string& trace : spec.traces()) traces.add_values(trace);
  if (spec.traces_size() > 0) axes.push_back(traces);
  for (const auto& entry : spec.list()) {
    for (const pb::Setting& setting : entry.settings()) {
      pb::Axis& axis = axes.emplace_back();
      axis.set_option(setting.option());
      axis.add_values(setting.value());
    }
  }
  return FilesOf(spec.config(), axes);
}

absl::Status CheckSearchUses(const ReplayConfig& asked, const std::vector<pb::Axis>& axes) {
  std::vector<ReplayConfig> configs;
  const auto add = [&](const ReplayConfig& given) {
    auto config = EffectiveConfig(asked, given);
    configs.push_back(config.ok() ? *std::move(config) : asked);  // reported elsewhere if bad
  };
  add({});
  for (const pb::Axis& axis : axes) {
    KVBLOCKS_ASSIGN_OR_RETURN(const auto values, AxisValues(axis));
    for (const std::string& value : values) {
      ReplayConfig given;
      KVBLOCKS_RETURN_IF_ERROR(SetOption(axis.option(), value, &given));
      add(given);
    }
  }
  std::vector<const ReplayConfig*> tried;
  for (const ReplayConfig& config : configs) tried.push_back(&config);
  return CheckOptionUses(tried, asked);
}

absl::StatusOr<std::vector<PlannedPoint>> ExpandSweep(const pb::SweepSpec& spec,
                                                      ContentHashes* hashes) {
  struct Values {
    std::string option;
    std::vector<std::string> values;
  };
  std::vector<Values> axes;
  ReplayConfig asked = spec.config();
  if (spec.traces_size() == 1) asked.set_trace(spec.traces(0));
  if (spec.traces_size() > 1) {
    axes.push_back({"trace", {spec.traces().begin(), spec.traces().end()}});
  }
  for (const pb::Axis& axis : spec.grid()) {
    KVBLOCKS_ASSIGN_OR_RETURN(auto values, AxisValues(axis));
    const std::string field = *OptionField(axis.option());
    const bool is_twice = std::any_of(axes.begin(), axes.end(),
                                      [&](const Values& other) { return other.option == field; });
    if (is_twice) {
      return InvalidArgument(FlagName(field), ": two axes, expected one with all values");
    }
    axes.push_back({field, std::move(values)});
  }
  const int64_t num_entries = std::max(spec.list_size(), 1);
  int64_t count = num_entries;
  for (const Values& axis : axes) {
    count *= static_cast<int64_t>(axis.values.size());
    if (count > kMostSweepPoints) {
      return InvalidArgument("the sweep has more than ", kMostSweepPoints,
                             " points; leave out values");
    }
  }
  std::vector<PlannedPoint> points;
  points.reserve(static_cast<size_t>(count));
  for (int64_t i = 0; i < count; ++i) {
    int64_t rest = i;
    std::vector<pb::Setting> settings;
    for (auto axis = axes.rbegin(); axis != axes.rend(); ++axis) {
      const auto size = static_cast<int64_t>(axis->values.size());
      pb::Setting& setting = settings.emplace_back();
      setting.set_option(axis->option);
      setting.set_value(axis->values[static_cast<size_t>(rest % size)]);
      rest /= size;
    }
    if (spec.list_size() > 0) {
      const pb::Settings& entry = spec.list(static_cast<int>(rest));
      for (int s = entry.settings_size() - 1; s >= 0; --s) {
        KVBLOCKS_ASSIGN_OR_RETURN(const auto field, OptionField(entry.settings(s).option()));
        const bool is_overruled =
            std::any_of(settings.begin(), settings.end(),
                        [&](const pb::Setting& other) { return other.option() == field; });
        if (is_overruled) continue;
        settings.push_back(entry.settings(s));
        settings.back().set_option(field);
      }
    }
    std::reverse(settings.begin(), settings.end());
    KVBLOCKS_ASSIGN_OR_RETURN(auto point, PlanPoint(asked, settings, hashes));
    points.push_back(std::move(point));
  }
  return points;
}

}  // namespace kvblocks::sim
