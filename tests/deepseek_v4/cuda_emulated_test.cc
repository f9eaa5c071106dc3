// The stack suite on CUDA's kernels, emulated on the host.

#include "attention/cuda/host_tensor_ops.h"
#include "attention/testing/ops_suite.h"
#include "kvblocks/attention_cuda.h"

namespace kvblocks::attention {

const AttentionOps& OpsUnderTest() {
  static const auto* const on_device = new auto(
      cuda::HostTensorOps::Create(&Cuda(), {.workspace_bytes = 16 << 20, .arena_bytes = 64 << 20}));
  return ***on_device;
}
Tolerance ToleranceUnderTest(DType out) { return CudaTolerance(out); }
SuiteTraits TraitsUnderTest() { return {.alignment = 16, .host_sees_values = false}; }
Tolerance TileScaledToleranceUnderTest(DType out) { return CudaTileScaledTolerance(out); }

}  // namespace kvblocks::attention
