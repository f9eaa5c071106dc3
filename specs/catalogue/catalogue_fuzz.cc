// Catalogue files: any text is either refused with its name, and changes nothing, or adds entries
// that are valid and found by their names.

#include <string>

#include "kvblocks/model_facts.h"
#include "tests/fuzz/fuzz_input.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  kvblocks::fuzz::FuzzInput input(data, size);
  kvblocks::Catalogue catalogue;
  const absl::Status status = catalogue.Merge(input.Rest(), "file");
  if (!status.ok()) {
    const std::string message(status.message());
    FUZZ_EXPECT(message.rfind("file:", 0) == 0, message);
    FUZZ_EXPECT(catalogue.models().empty() && catalogue.devices().empty(), message);
    return 0;
  }
  for (const auto& [name, device] : catalogue.devices()) {
    const auto found = catalogue.FindDevice(name);
    FUZZ_EXPECT(found.ok() && found->name == device.name, name);
    FUZZ_EXPECT(Validate(device).ok(), name);
  }
  for (const auto& [name, model] : catalogue.models()) {
    const auto found = catalogue.FindModel(name);
    FUZZ_EXPECT(found.ok() && found->name == model.name, name);
    FUZZ_EXPECT(Validate(model).ok(), name);
    const auto caches = kvblocks::LayerCaches(model, {});
    FUZZ_EXPECT(caches.ok() || !caches.status().message().empty(), name);
  }
  return 0;
}
