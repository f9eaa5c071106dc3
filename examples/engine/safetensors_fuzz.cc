// Safetensors files: any bytes are refused with the file's name, or give tensors that are inside of
// the file and can be read.

#include <unistd.h>

#include <filesystem>
#include <fstream>
#include <string>

#include "absl/strings/str_cat.h"
#include "examples/engine/safetensors.h"
#include "tests/fuzz/fuzz_input.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  static const std::string path =
      (std::filesystem::temp_directory_path() / absl::StrCat("safetensors_fuzz.", getpid()))
          .string();
  std::ofstream(path, std::ios::binary).write(reinterpret_cast<const char*>(data), size);
  const auto file = kvblocks::engine::Safetensors::Open({path});
  if (!file.ok()) {
    const std::string message(file.status().message());
    FUZZ_EXPECT(message.rfind(path + ": ", 0) == 0, message);
  } else {
    for (const std::string& name : file->Names()) {
      const auto shape = file->ShapeOf(name);
      size_t bytes = 2;
      for (const int64_t extent : *shape) bytes *= static_cast<size_t>(extent);
      const auto values = file->Floats(name, *shape);
      if (values.ok()) FUZZ_EXPECT(bytes <= size && values->size() * 2 == bytes, name);
    }
  }
  std::filesystem::remove(path);
  return 0;
}
