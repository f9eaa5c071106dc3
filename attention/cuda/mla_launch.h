// Which kernel serves multi-head latent attention, and how it cuts keys.

#ifndef KVBLOCKS_ATTENTION_CUDA_MLA_LAUNCH_H_
#define KVBLOCKS_ATTENTION_CUDA_MLA_LAUNCH_H_

#include <cstdint>

#include "absl/status/status.h"
#include "kvblocks/attention/cuda/attend_launch.h"
#include "kvblocks/attention/cuda/kernels/attend_rows.h"
#include "kvblocks/attention/ops/params.h"

namespace kvblocks::attention::cuda {

enum class MlaKernel : uint8_t { kRows, kRows16, kRows64 };

// kRows: AttendRows, where types, sizes, strides or features are others than tensor cores were
// programmed for. Depends on nothing of the batch but, under Auto, the queries per request.
MlaKernel MlaKernelFor(const LaunchContext& context, const AttendRowsParams& params,
                       const SplitPolicy& split);

// Chooses kernel and pieces and launches; max_keys is an upper bound of the keys of a row. Outputs
// that have no partial form (max_logits) are not cut.
absl::Status LaunchMla(CudaCall& call, const SplitPolicy& split, int64_t max_keys,
                       AttendRowsParams params);

}  // namespace kvblocks::attention::cuda

#endif  // KVBLOCKS_ATTENTION_CUDA_MLA_LAUNCH_H_
