// The options of a replay: the fields of ReplayConfig that have a setting (sim/settings.proto). The
// command line, configuration files, defaults, checks and the help are made from the settings, so
// an option is one field of sim/config.proto and its use. Values are checked on the effective
// configuration, wherever they came from.

#ifndef KVBLOCKS_SIM_COMMANDS_OPTION_TABLE_H_
#define KVBLOCKS_SIM_COMMANDS_OPTION_TABLE_H_

#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "sim/commands/option_parser.h"
#include "sim/commands/run_files.h"
#include "sim/config.pb.h"
#include "sim/settings.pb.h"

namespace kvblocks::sim {

using ::kvblocks::config::v1::ReplayConfig;

inline constexpr const char* kWorkloadGroup = "Workload";
inline constexpr const char* kReportGroup = "Measurements";
inline constexpr const char* kFleetGroup = "Several replicas";

struct ReplayOption {
  const google::protobuf::FieldDescriptor* field;
  const ::kvblocks::config::v1::Setting* setting;
  std::string section;  // heading in the help

  const std::string& name() const { return field->name(); }  // "num_blocks"
};

// In the order of the fields.
const std::vector<ReplayOption>& ReplayOptions();

// "--num-blocks".
std::string FlagName(std::string_view field);

// A value, as SetOption takes it. Of messages nothing.
std::string ValueText(const google::protobuf::Message& message,
                      const google::protobuf::FieldDescriptor* field);
// The default, but for what an engine has otherwise.
std::string DefaultText(const ReplayOption& option);

// InvalidArgument: the option, what it was given, and what is expected.
absl::Status BadOption(std::string_view flag, std::string_view got, std::string_view expected);
// The first that is bad; OK: none.
struct OptionRule {
  bool is_bad;
  std::string_view flag;
  std::string got, expected;
};
absl::Status CheckRules(std::initializer_list<OptionRule> rules);
// A message of the library that begins with the name of an option, "warmup is ...": "--warmup is
// ...".
template <typename T>
absl::StatusOr<T> AsFlag(absl::StatusOr<T> value) {
  if (value.ok()) return value;
  return absl::InvalidArgumentError(absl::StrCat("--", value.status().message()));
}

// Sets the option of this name, "num_blocks", "num-blocks" or "--num-blocks", from text.
// InvalidArgument names an option that there is not, or a value that is none.
absl::Status SetOption(std::string_view name, const std::string& value, ReplayConfig* config);
// Whether values of this field are paths that a replay reads. A model may be one of its
// config.json.
bool NamesFile(std::string_view field);
// What a replay with these options reads: the trace, tables, and a model's configuration. Of all
// kinds of replicas.
std::vector<RunFile> FilesOf(const ReplayConfig& config);

// The field that this name stands for; InvalidArgument if it is no option of a replay.
absl::StatusOr<std::string> OptionField(std::string_view name);

// Adds options to a command; values given land in `given`, which must outlive the parse. Of an
// empty section: all except those of several replicas. Of the workload alone: what is read. --help
// lists the common ones, or none.
void BindOptions(std::string_view section, OptionParser* options, ReplayConfig* given,
                 bool lists_common = true);
// The same for one.
void BindOption(std::string_view name, OptionParser* options, ReplayConfig* given);

// All fields at their defaults, those of an engine preset included.
absl::StatusOr<ReplayConfig> DefaultConfig(std::string_view engine);

// `status` as one about an option: "--model: ...". The name that the library has for it, with which
// its messages may begin, is left out.
absl::Status OfOption(std::string_view flag, std::string_view name, const absl::Status& status);

template <typename T>
absl::StatusOr<T> OfOption(std::string_view flag, std::string_view name, absl::StatusOr<T> value) {
  if (value.ok()) return value;
  return OfOption(flag, name, value.status());
}
template <typename T>
absl::StatusOr<T> OfOption(std::string_view flag, absl::StatusOr<T> value) {
  return OfOption(flag, "", std::move(value));
}

// A status of the library, "retention_interval is 7, expected ...", in the words of the option
// whose field it begins with: "--retention-interval: got 7, expected ...".
absl::Status InOptionWords(const absl::Status& status);

// Ranges of numbers and values of choices. InvalidArgument names option, value and limit.
absl::Status CheckOptionRanges(const ReplayConfig& config);

// What would be ignored is refused: an option that is given, or that a file changes, without what
// its setting needs. InvalidArgument names both. REQUIRES: an effective configuration whose values
// are good; `given` is what the command line says of it.
absl::Status CheckOptionUses(const ReplayConfig& config, const ReplayConfig& given);
// The same for a search: what `asked` changes must be of use to one of the effective `configs` that
// it tries.
absl::Status CheckOptionUses(const std::vector<const ReplayConfig*>& configs,
                             const ReplayConfig& asked);
// Sets options that do nothing to their defaults, for points of a sweep: an option may be for some
// of them.
void DropUselessOptions(ReplayConfig* config);

// Whether the groups that a configuration lists attend to an encoder.
bool HasCrossAttention(const ReplayConfig& config);

// Defaults, then the file, then the command line.
absl::StatusOr<ReplayConfig> EffectiveConfig(const ReplayConfig& file, const ReplayConfig& given);

}  // namespace kvblocks::sim

#endif  // KVBLOCKS_SIM_COMMANDS_OPTION_TABLE_H_
