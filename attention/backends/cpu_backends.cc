#include "kvblocks/attention_backend.h"

#include "attention/backends/host_backend.h"
#include "kvblocks/attention_cpu.h"

namespace kvblocks::attention {

const AttentionBackend& CpuBackend() {
  static const auto* const backend =
      new HostBackend(Cpu(), {DType::kF32, DType::kF16, DType::kBF16});
  return *backend;
}

absl::Status RegisterCpuBackends(BackendRegistry& registry) {
  absl::Status status = registry.Register(&CpuBackend(), kCpuPriority);
  status.Update(registry.Register(&CpuReferenceBackend(), kCpuReferencePriority));
  return status;
}

BackendRegistry& DefaultBackendRegistry() {
  static const absl::Status registered = RegisterCpuBackends(GlobalBackendRegistry());
  (void)registered;  // fails only if somebody took the name, whose backend is then used
  return GlobalBackendRegistry();
}

}  // namespace kvblocks::attention
