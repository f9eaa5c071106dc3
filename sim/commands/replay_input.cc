#include "kvblocks/sim/commands/replay_input.h"

#include "CLI/CLI.hpp"
#include "kvblocks/checks/field_error.h"
#include "kvblocks/sim/commands/example_trace.h"
#include "kvblocks/sim/commands/kv_cache_groups.h"
#include "kvblocks/sim/commands/option_table.h"
#include "kvblocks/specs/config_source.h"

namespace kvblocks::sim {

using ::kvblocks::config::v1::ReplayConfig;

namespace {

absl::StatusOr<ConfigSource> Read(const std::string& file, google::protobuf::Message& message) {
  const auto text = ReadConfigFile(file);
  if (!text.ok()) return text.status();
  return ConfigSource::Parse(*text, file, ConfigSyntax::kDetect, message);
}

}  // namespace

ReplayInput::ReplayInput(CLI::App* app) : app_(app) {
  app_->add_option_function<std::string>(
          "TRACE", [this](const std::string& path) { given_.set_trace(path); },
          "trace file, compressed or not; - is standard input; without it the example workload")
      ->type_name("");
  app_->add_option("--config", config_file_,
                   "configuration file, protobuf text or JSON; options win")
      ->type_name("FILE");
  app_->add_option("--kv-cache-config", groups_file_,
                   "KV-cache groups instead of the model's, protobuf text or JSON (KvCacheConfig)")
      ->type_name("FILE")
      ->group("Pool and prefix cache");
}

void ReplayInput::AddOptions() { BindOptions("", app_, &given_); }

absl::StatusOr<ReplayConfig> ReplayInput::Configure() {
  // Groups are checked here, where their place in a file is known.
  ReplayConfig file;
  if (!config_file_.empty()) {
    const auto source = Read(config_file_, file);
    if (!source.ok()) return source.status();
    if (file.has_kv_cache_config()) {
      const auto groups = MakeKvCacheGroups(file.kv_cache_config(), file.num_blocks());
      if (!groups.ok()) {
        return source->Locate(WithFieldPrefix(groups.status(), "kv_cache_config"));
      }
    }
  }
  if (!groups_file_.empty()) {
    auto& message = *given_.mutable_kv_cache_config();
    const auto source = Read(groups_file_, message);
    if (!source.ok()) return source.status();
    const int64_t num_blocks = given_.has_num_blocks() ? given_.num_blocks() : file.num_blocks();
    const auto groups = MakeKvCacheGroups(message, num_blocks);
    if (!groups.ok()) return source->Locate(groups.status());
  }
  return EffectiveConfig(file, given_);
}

absl::StatusOr<std::unique_ptr<TraceReader>> OpenReplayTrace(const ReplayConfig& config,
                                                             const TraceReaderOptions& options) {
  if (config.trace().empty()) return OpenTraceString(ExampleTrace(), "example", options);
  return OpenTrace(config.trace(), options);
}

}  // namespace kvblocks::sim
