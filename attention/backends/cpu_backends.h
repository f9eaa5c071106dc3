// The backends of the host: CPU (SIMD instructions and threads) and CPU_REFERENCE (float64).
//
// Both write and gather the cache, and blend, by the same code; float64 tensors are for the latter.
// RegisterCpuBackends adds them to a registry; DefaultBackendRegistry has them, and whatever
// registered itself statically.

#ifndef KVBLOCKS_ATTENTION_BACKENDS_CPU_BACKENDS_H_
#define KVBLOCKS_ATTENTION_BACKENDS_CPU_BACKENDS_H_

#include "absl/status/status.h"
#include "kvblocks/attention/backends/attention_backend.h"
#include "kvblocks/attention/backends/backend_registry.h"

namespace kvblocks::attention {

const AttentionBackend& CpuBackend();
const AttentionBackend& CpuReferenceBackend();

absl::Status RegisterCpuBackends(BackendRegistry& registry);

// The global registry, with the host's backends.
BackendRegistry& DefaultBackendRegistry();

}  // namespace kvblocks::attention

#endif  // KVBLOCKS_ATTENTION_BACKENDS_CPU_BACKENDS_H_
