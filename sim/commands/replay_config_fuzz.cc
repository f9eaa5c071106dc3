// Configuration files of kvsim replay: any text is either refused with its place or with the
// option, or is one that reads back the same when it is printed, and is set up or refused in words.

#include <string>

#include "absl/strings/match.h"
#include "checks/field_error.h"
#include "google/protobuf/text_format.h"
#include "kvblocks/config_source.h"
#include "sim/commands/model_plan.h"
#include "sim/commands/option_table.h"
#include "sim/commands/replay_setup.h"
#include "sim/config.pb.h"
#include "tests/fuzz/fuzz_input.h"

namespace {

using ::kvblocks::ConfigSource;
using ::kvblocks::ConfigSyntax;
using namespace kvblocks::sim;

std::string Message(const absl::Status& status) { return std::string(status.message()); }

void ExpectPlace(const absl::Status& status) {
  FUZZ_EXPECT(Message(status).rfind("file:", 0) == 0, Message(status));
}

void ExpectOption(const absl::Status& status) {
  FUZZ_EXPECT(Message(status).rfind("--", 0) == 0, Message(status));
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  kvblocks::fuzz::FuzzInput input(data, size);
  ReplayConfig file;
  const auto source = ConfigSource::Parse(input.Rest(), "file", ConfigSyntax::kDetect, file);
  if (!source.ok()) {
    ExpectPlace(source.status());
    return 0;
  }
  if (file.has_kv_cache_config()) {
    const auto groups = MakeKvCacheGroups(file.kv_cache_config(), file.num_blocks());
    if (!groups.ok()) {
      ExpectPlace(
          source->Locate(kvblocks::WithFieldPrefix(groups.status(), "kv_cache_config")));
      return 0;
    }
  }
  auto config = EffectiveConfig(file, {});
  if (!config.ok()) {
    ExpectOption(config.status());
    return 0;
  }
  std::string printed;
  google::protobuf::TextFormat::PrintToString(*config, &printed);
  ReplayConfig again;
  FUZZ_EXPECT(
      ConfigSource::Parse(printed, "file", ConfigSyntax::kText, again).ok(), printed);
  FUZZ_EXPECT(again.SerializeAsString() == config->SerializeAsString(), printed);
  // What is in other files is not this one's.
  config->clear_catalogue();
  if (absl::EndsWith(config->model(), ".json")) config->set_model("llama-3.1-8b");
  const auto setup = MakeReplaySetup(*config);
  if (!setup.ok()) FUZZ_EXPECT(!setup.status().message().empty(), printed);
  return 0;
}
