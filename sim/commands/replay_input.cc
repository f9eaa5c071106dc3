#include "kvblocks/sim/commands/replay_input.h"

#include "CLI/CLI.hpp"
#include "absl/strings/str_cat.h"
#include "kvblocks/sim/commands/example_trace.h"
#include "kvblocks/sim/commands/option_table.h"

namespace kvblocks::sim {

using ::kvblocks::config::v1::ReplayConfig;

ReplayInput::ReplayInput(CLI::App* app) : app_(app) {
  app_->add_option_function<std::string>(
          "TRACE", [this](const std::string& path) { given_.set_trace(path); },
          "trace file, compressed or not; - is standard input; without it the example workload")
      ->type_name("");
  app_->add_option("--config", config_file_, "configuration file, protobuf text; options win")
      ->type_name("FILE");
  app_->add_option("--kv-cache-config", groups_file_,
                   "KV-cache groups instead of the model's, protobuf text (KvCacheGroups)")
      ->type_name("FILE")
      ->group("Pool and prefix cache");
}

void ReplayInput::AddOptions() { BindOptions("", app_, &given_); }

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
