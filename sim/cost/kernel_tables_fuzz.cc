// Kernel tables: whatever the file holds, reading it ends in tables or in an error that names the
// file, and tables that were read answer everywhere with times in range.
//
// An input that begins with a zero byte stands for the operations of a sound file: what lies behind
// the compression is then what changes.

#include <zlib.h>

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>

#include "sim/cost/kernel_tables.h"
#include "sim/cost/kernel_tables.pb.h"
#include "tests/fuzz/fuzz_input.h"

namespace {

using kvblocks::sim::KernelGrid;
using kvblocks::sim::ParseKernelTables;

std::string FileOf(std::string_view operations) {
  uLongf size = compressBound(static_cast<uLong>(operations.size()));
  std::string packed(size, '\0');
  compress2(reinterpret_cast<Bytef*>(packed.data()), &size,
            reinterpret_cast<const Bytef*>(operations.data()),
            static_cast<uLong>(operations.size()), 1);
  packed.resize(size);
  kvblocks::cost::v1::KernelTables file;
  file.set_format("kvblocks kernel tables 1");
  auto* device = file.add_device();
  device->set_name("tiny");
  device->set_operations_zlib(packed);
  device->set_operations_bytes(static_cast<int64_t>(operations.size()));
  return file.SerializeAsString();
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  const std::string_view text(reinterpret_cast<const char*>(data), size);
  const auto tables = size > 0 && data[0] == 0
                          ? ParseKernelTables(FileOf(text.substr(1)), "tiny", "FILE")
                          : ParseKernelTables(text, "tiny", "FILE");
  if (!tables.ok()) {
    if (tables.status().message().find("FILE") == std::string_view::npos) __builtin_trap();
    return 0;
  }
  for (const char* operation : {"gemm", "attention_decode", "moe"}) {
    for (const auto& [key, grid] : tables->GridsOf(operation)) {
      for (const int64_t count : {int64_t{1}, int64_t{7}, int64_t{1} << 40}) {
        const int64_t counts[] = {count, 3 * count, count};
        const int64_t time = grid.At(absl::MakeConstSpan(counts, grid.num_axes()));
        if (time < 1 || time > KernelGrid::kMaxTime) __builtin_trap();
      }
    }
  }
  return 0;
}
