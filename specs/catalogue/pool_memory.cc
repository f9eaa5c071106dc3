#include "kvblocks/specs/catalogue/pool_memory.h"

#include <cmath>

#include "absl/strings/str_cat.h"

namespace kvblocks {

absl::StatusOr<int64_t> CacheBytesInMemory(const PoolMemory& memory) {
  if (absl::Status status = Validate(memory.device); !status.ok()) return status;
  if (absl::Status status = Validate(memory.model); !status.ok()) return status;
  if (memory.tensor_parallel < 1 || memory.tensor_parallel > 1024) {
    return absl::InvalidArgumentError(
        absl::StrCat("pool.tensor_parallel is ", memory.tensor_parallel, ", expected 1 to 1024"));
  }
  struct {
    absl::string_view field;
    double value, low, high;
  } const fields[] = {
      {"pool.utilization", memory.utilization, 0.01, 1.0},
      {"pool.activation_gb", memory.activation_gb, 0.0, memory.device.memory_gb},
      {"pool.graph_gb", memory.graph_gb, 0.0, memory.device.memory_gb},
  };
  for (const auto& f : fields) {
    if (f.value >= f.low && f.value <= f.high) continue;
    return absl::InvalidArgumentError(
        absl::StrCat(f.field, " is ", f.value, ", expected ", f.low, " to ", f.high));
  }
  const double weights_gb =
      memory.model.weight_bytes() / 1e9 / static_cast<double>(memory.tensor_parallel);
  const double left_gb = memory.device.memory_gb * memory.utilization - weights_gb -
                         memory.activation_gb - memory.graph_gb;
  if (!(left_gb > 0)) {
    return absl::ResourceExhaustedError(absl::StrCat(
        "no room for the KV cache: ", memory.device.memory_gb, " GB of ", memory.device.name,
        " x utilization ", memory.utilization, " - weights ", weights_gb, " GB - activations ",
        memory.activation_gb, " GB - graphs ", memory.graph_gb, " GB leaves ", left_gb,
        " GB; use more tensor parallel ranks, a larger device or a higher utilization"));
  }
  // Devices have less than 2^53 bytes.
  return static_cast<int64_t>(std::floor(left_gb * 1e9));
}

}  // namespace kvblocks
