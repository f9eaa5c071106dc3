#include "kvblocks/specs/catalogue/default_scheduler_limits.h"

#include <string>

#include "absl/strings/ascii.h"

namespace kvblocks {
namespace {

constexpr int64_t kGib = int64_t{1} << 30;

// Devices that have the memory of a large one but lose throughput with large steps.
bool IsSlowForItsMemory(std::string_view device_name) {
  const std::string name = absl::AsciiStrToLower(std::string(device_name));
  return name.find("a100") != std::string::npos || name.find("gb10") != std::string::npos;
}

SchedulerLimits OfDevice(const ServerDevice& server) {
  const bool offline = server.entry_point == EntryPoint::kOffline;
  // 0.25 knows two sizes of devices.
  if (server.version == EngineVersion::kVllm033 && server.device_memory_bytes >= 160 * kGib) {
    return {16384, 1024};
  }
  if (server.device_memory_bytes >= 70 * kGib && !IsSlowForItsMemory(server.device_name)) {
    return {offline ? 16384 : 8192, 1024};
  }
  return {offline ? 8192 : 2048, 256};
}

}  // namespace

SchedulerLimits DefaultSchedulerLimits(const ServerDevice& server) {
  SchedulerLimits limits = OfDevice(server);
  if (server.throughput_mode) {
    limits.max_num_batched_tokens *= 2;
    limits.max_num_seqs *= 2;
  }
  return limits;
}

}  // namespace kvblocks
