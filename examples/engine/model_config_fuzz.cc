// Configurations of models: any text is refused with its file, or gives numbers that the math can
// take.

#include <unistd.h>

#include <cmath>
#include <filesystem>
#include <fstream>
#include <string>

#include "absl/strings/str_cat.h"
#include "examples/engine/model_config.h"
#include "tests/fuzz/fuzz_input.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace kvblocks::engine;
  static const std::string path =
      (std::filesystem::temp_directory_path() / absl::StrCat("model_config_fuzz.", getpid()))
          .string();
  std::ofstream(path, std::ios::binary).write(reinterpret_cast<const char*>(data), size);
  const auto config = ReadModelConfig(path);
  std::filesystem::remove(path);
  if (!config.ok()) {
    const std::string message(config.status().message());
    FUZZ_EXPECT(message.rfind(path + ": ", 0) == 0, message);
    return 0;
  }
  for (const Rotary& rotary : {config->rotary, config->window_rotary}) {
    for (const float frequency : rotary.frequencies) {
      FUZZ_EXPECT(std::isfinite(frequency) && frequency >= 0, absl::StrCat(frequency));
    }
    FUZZ_EXPECT(std::isfinite(rotary.scale), absl::StrCat(rotary.scale));
  }
  FUZZ_EXPECT(std::isfinite(config->attention_scale) && config->attention_scale >= 0,
              absl::StrCat(config->attention_scale));
  const Routing& routing = config->routing;
  if (config->facts.experts) {
    const int64_t in_reach =
        config->facts.experts->num_experts / routing.num_groups * routing.top_groups;
    FUZZ_EXPECT(routing.per_token >= 1 && routing.per_token <= in_reach, config->facts.family);
  }
  return 0;
}
