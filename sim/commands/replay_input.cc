#include "sim/commands/replay_input.h"

#include "checks/field_error.h"
#include "checks/status_macros.h"
#include "kvblocks/config_source.h"
#include "sim/commands/example_trace.h"
#include "sim/commands/fleet_input.h"
#include "sim/commands/model_plan.h"
#include "sim/commands/option_table.h"
#include "sim/commands/replay_setup.h"

namespace kvblocks::sim {

namespace {

absl::StatusOr<ConfigSource> ReadMessage(const std::string& file,
                                         google::protobuf::Message& message) {
  KVBLOCKS_ASSIGN_OR_RETURN(const auto text, ReadConfigFile(file));
  return ConfigSource::Parse(text, file, ConfigSyntax::kDetect, message);
}

}  // namespace

ReplayInput::ReplayInput(OptionParser* options, Fleets fleets)
    : options_(options), fleets_(fleets) {
  options_
      ->Add({"TRACE", "",
             "trace file, compressed or not; - is standard input; without it the example workload"},
            [this](const std::string& path) {
              given_.set_trace(path);
              return std::string();
            })
      .file = FileUse::kRead;
  options_
      ->Add({"--config", "FILE", "configuration file, protobuf text or JSON; options win"},
            &config_file_)
      .file = FileUse::kRead;
  OptionText& groups = options_->Add(
      {"--kv-cache-config", "FILE",
       "KV-cache groups instead of the model's, protobuf text or JSON (KvCacheConfig)",
       "Pool and prefix cache"},
      &groups_file_);
  groups.is_common = false;
  groups.file = FileUse::kRead;
}

void ReplayInput::AddOptions(bool is_replay) {
  if (!is_replay) options_->set_more("all options of replay (kvsim replay --help=all)");
  options_->AddLater([this, is_replay] {
    BindOptions("", options_, &given_, is_replay);
    if (fleets_ == Fleets::kTaken) BindOptions(kFleetGroup, options_, &given_, is_replay);
  });
}

absl::Status ReplayInput::Read(ReplayConfig* file) {
  // Groups are checked here, where their place in a file is known.
  if (!config_file_.empty()) {
    KVBLOCKS_ASSIGN_OR_RETURN(const auto source, ReadMessage(config_file_, *file));
    if (fleets_ == Fleets::kRefused) {
      if (absl::Status status = RefuseFleet(*file); !status.ok()) return source.Locate(status);
    }
    if (file->has_kv_cache_config()) {
      const auto groups = MakeKvCacheGroups(file->kv_cache_config(), file->num_blocks());
      if (!groups.ok()) {
        return source.Locate(WithFieldPrefix(groups.status(), "kv_cache_config"));
      }
    }
  }
  if (!groups_file_.empty()) {
    auto& message = *given_.mutable_kv_cache_config();
    KVBLOCKS_ASSIGN_OR_RETURN(const auto source, ReadMessage(groups_file_, message));
    const int64_t num_blocks = given_.has_num_blocks() ? given_.num_blocks() : file->num_blocks();
    const auto groups = MakeKvCacheGroups(message, num_blocks);
    if (!groups.ok()) return source.Locate(groups.status());
  }
  return absl::OkStatus();
}

absl::StatusOr<ReplayConfig> ReplayInput::Configure() {
  ReplayConfig file;
  KVBLOCKS_RETURN_IF_ERROR(Read(&file));
  return EffectiveConfig(file, given_);
}

absl::Status ReplayInput::CheckUses(const ReplayConfig& config) const {
  return CheckOptionUses(config, given_);
}

absl::StatusOr<ReplayConfig> ReplayInput::Asked() {
  ReplayConfig asked;
  KVBLOCKS_RETURN_IF_ERROR(Read(&asked));
  // Groups replace each other; they do not add up.
  if (given_.has_kv_cache_config()) asked.clear_kv_cache_config();
  asked.MergeFrom(given_);
  return asked;
}

absl::StatusOr<TraceReaderOptions> ReaderOptionsOf(const ReplayConfig& given) {
  KVBLOCKS_ASSIGN_OR_RETURN(const auto config, EffectiveConfig({}, given));
  return MakeReaderOptions(config);
}

absl::StatusOr<std::unique_ptr<TraceReader>> OpenReplayTrace(const ReplayConfig& config,
                                                             const TraceReaderOptions& options) {
  if (config.trace().empty()) return OpenTraceString(ExampleTrace(), "example", options);
  return OpenTrace(config.trace(), options);
}

}  // namespace kvblocks::sim
