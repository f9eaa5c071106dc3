#include "kvblocks/sim/commands/replay_input.h"

#include "absl/strings/str_cat.h"
#include "kvblocks/sim/commands/example_trace.h"
#include "kvblocks/sim/commands/option_table.h"

namespace kvblocks::sim {

using ::kvblocks::config::v1::ReplayConfig;

ReplayInput::ReplayInput(OptionParser* options) : options_(options) {
  options_->Add(
      {.name = "TRACE",
       .help =
           "trace file, compressed or not; - is standard input; without it the example workload"},
      [this](const std::string& path) {
        given_.set_trace(path);
        return std::string();
      });
  options_->Add({.name = "--config",
                 .unit = "FILE",
                 .help = "configuration file, protobuf text; options win"},
                &config_file_);
  options_->Add({.name = "--kv-cache-config",
                 .unit = "FILE",
                 .help = "KV-cache groups instead of the model's, protobuf text (KvCacheGroups)",
                 .group = "Pool and prefix cache"},
                &groups_file_);
}

void ReplayInput::AddOptions() { BindOptions("", options_, &given_); }

absl::StatusOr<ReplayConfig> ReplayInput::Configure() {
  ReplayConfig file;
  if (!config_file_.empty()) {
    if (absl::Status status = ReadTextProto(config_file_, &file); !status.ok()) return status;
  }
  if (!groups_file_.empty()) {
    ::kvblocks::config::v1::KvCacheGroups groups;
    if (absl::Status status = ReadTextProto(groups_file_, &groups); !status.ok()) return status;
    if (groups.group_size() == 0) {
      return absl::InvalidArgumentError(
          absl::StrCat(groups_file_, ": error: no group, expected at least one"));
    }
    *given_.mutable_group() = groups.group();
  }
  return EffectiveConfig(file, given_);
}

absl::StatusOr<std::unique_ptr<TraceReader>> OpenReplayTrace(const ReplayConfig& config,
                                                             const TraceReaderOptions& options) {
  if (config.trace().empty()) return OpenTraceString(ExampleTrace(), "example", options);
  return OpenTrace(config.trace(), options);
}

}  // namespace kvblocks::sim
