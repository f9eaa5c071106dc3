// Published configurations: any text is either refused with its source and a field, or gives facts
// that are valid and whose layers store something or are refused, too.

#include <string>

#include "kvblocks/model_facts.h"
#include "tests/fuzz/fuzz_input.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  kvblocks::fuzz::FuzzInput input(data, size);
  const auto facts = kvblocks::ModelFromHfConfig(input.Rest(), "config.json");
  if (!facts.ok()) {
    const std::string message(facts.status().message());
    FUZZ_EXPECT(facts.status().code() == absl::StatusCode::kInvalidArgument, message);
    FUZZ_EXPECT(message.rfind("config.json: ", 0) == 0, message);
    return 0;
  }
  FUZZ_EXPECT(Validate(*facts).ok(), Validate(*facts).ToString());
  for (const char* dtype : {"auto", "fp8", "int4_per_token_head"}) {
    const auto caches = kvblocks::LayerCaches(*facts, {.cache_dtype = dtype});
    if (!caches.ok()) {
      FUZZ_EXPECT(caches.status().code() == absl::StatusCode::kInvalidArgument,
                  caches.status().ToString());
      continue;
    }
    FUZZ_EXPECT(!caches->empty(), facts->layer_pattern);
    for (const auto& cache : *caches) FUZZ_EXPECT(cache.spec.page_bytes() > 0, cache.name);
  }
  return 0;
}
