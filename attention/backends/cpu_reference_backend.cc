// Separate from the SIMD backend, so that a program with this one alone needs no Highway.

#include "attention/backends/host_backend.h"
#include "kvblocks/attention_backend.h"
#include "kvblocks/attention_cpu.h"

namespace kvblocks::attention {

const AttentionBackend& CpuReferenceBackend() {
  static const auto* const backend =
      new HostBackend(CpuReference(), {DType::kF64, DType::kF32, DType::kF16, DType::kBF16});
  return *backend;
}

}  // namespace kvblocks::attention
