#include "kvblocks/sim/commands/step_limits.h"

#include <string>

#include "absl/strings/ascii.h"

namespace kvblocks::sim {

StepLimits LimitsOf(EngineVersion version, const DeviceFacts& device, bool is_offline) {
  const double gib = device.memory_gb * 1e9 / (1 << 30);
  // Much memory, but not the arithmetic for steps as long.
  const std::string name = absl::AsciiStrToLower(device.name);
  const bool is_slow =
      name.find("a100") != std::string::npos || name.find("gb10") != std::string::npos;
  if (version >= EngineVersion::kVllm033 && gib >= 160 && !is_slow) return {16384, 1024};
  if (gib >= 70 && !is_slow) return {is_offline ? 16384 : 8192, 1024};
  return {is_offline ? 8192 : 2048, 256};
}

}  // namespace kvblocks::sim
