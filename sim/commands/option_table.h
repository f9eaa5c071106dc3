// The options of the replay command, one row each: name, unit, group, limits, default and help.
//
// Each row stands for the field of ReplayConfig with the same name (--num-blocks is num_blocks), so
// command line, configuration file and help cannot drift apart. Limits are checked on the effective
// configuration, wherever a value came from.

#ifndef KVBLOCKS_SIM_COMMANDS_OPTION_TABLE_H_
#define KVBLOCKS_SIM_COMMANDS_OPTION_TABLE_H_

#include <string>
#include <string_view>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "kvblocks/sim/commands/option_parser.h"
#include "kvblocks/sim/commands/run_files.h"
#include "kvblocks/sim/config.pb.h"

namespace kvblocks::sim {

inline constexpr const char* kWorkloadGroup = "Workload";
inline constexpr const char* kReportGroup = "Measurements";
inline constexpr const char* kFleetGroup = "Several replicas";

struct OptionRow {
  const char* field;
  const char* unit;  // shown after the name; for texts with few values: "a|b|c"
  const char* group;
  const char* initial;  // default, as text
  double low;           // of numbers
  double high;
  const char* help;
};

const std::vector<OptionRow>& ReplayOptionRows();

// "--num-blocks".
std::string FlagName(std::string_view field);

// InvalidArgument: the option, what it was given, and what is expected.
absl::Status BadOption(std::string_view flag, std::string_view got, std::string_view expected);

// Sets the option of this name, "num_blocks", "num-blocks" or "--num-blocks", from text.
// InvalidArgument names an option that there is not, or a value that is none.
absl::Status SetOption(std::string_view name, const std::string& value,
                       ::kvblocks::config::v1::ReplayConfig* config);
// Whether values of this field are paths that a replay reads. A model may be one of its config.json.
bool NamesFile(std::string_view field);
// What a replay with these options reads: the trace, tables, and a model's configuration. Of all kinds of
// replicas.
std::vector<RunFile> FilesOf(const ::kvblocks::config::v1::ReplayConfig& config);

// The field that this name stands for; InvalidArgument if it is no option of a replay.
absl::StatusOr<std::string> OptionField(std::string_view name);

// Adds the rows of one group to a command; values given land in `given`, which must outlive the
// parse. Of an empty group: all but those of several replicas. Of the workload alone: what is read.
void BindOptions(std::string_view group, OptionParser* options,
                 ::kvblocks::config::v1::ReplayConfig* given);
// The same for the row of one field.
void BindOption(std::string_view field, OptionParser* options,
                ::kvblocks::config::v1::ReplayConfig* given);

// All fields at their defaults, those of an engine preset included.
absl::StatusOr<::kvblocks::config::v1::ReplayConfig> DefaultConfig(std::string_view engine);

// `status` as one about an option: "--model: ...". The name that the library has for it, with which
// its messages may begin, is left out.
absl::Status OfOption(std::string_view flag, std::string_view name, const absl::Status& status);

// A status of the library, "retention_interval is 7, expected ...", in the words of the option whose
// field it begins with: "--retention-interval: got 7, expected ...".
absl::Status InOptionWords(const absl::Status& status);

// Ranges of numbers and values of choices. InvalidArgument names option, value and limit.
absl::Status CheckOptionRanges(const ::kvblocks::config::v1::ReplayConfig& config);

// What would be ignored is refused: an option that is given, or that a file changes, beside others without
// which it does nothing. InvalidArgument names it and what it needs. REQUIRES: an effective configuration
// whose values are good; `given` is what the command line says of it.
absl::Status CheckOptionUses(const ::kvblocks::config::v1::ReplayConfig& config,
                             const ::kvblocks::config::v1::ReplayConfig& given);
// The same for a search: what `asked` changes must be of use to one of the effective `configs` that it tries.
absl::Status CheckOptionUses(const std::vector<const ::kvblocks::config::v1::ReplayConfig*>& configs,
                             const ::kvblocks::config::v1::ReplayConfig& asked);
// Sets options that do nothing to their defaults, for points of a sweep: an option may be for some of them.
void DropUselessOptions(::kvblocks::config::v1::ReplayConfig* config);

// Whether the groups that a configuration lists attend to an encoder.
bool HasCrossAttention(const ::kvblocks::config::v1::ReplayConfig& config);

// Defaults, then the file, then the command line.
absl::StatusOr<::kvblocks::config::v1::ReplayConfig> EffectiveConfig(
    const ::kvblocks::config::v1::ReplayConfig& file,
    const ::kvblocks::config::v1::ReplayConfig& given);

}  // namespace kvblocks::sim

#endif  // KVBLOCKS_SIM_COMMANDS_OPTION_TABLE_H_
