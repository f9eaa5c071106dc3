// The backend CUDA: Cuda()'s operations on GPUs of compute capability 8.0 and later, as layers and
// selection use it. It is asked before the host's backends, which serve other devices.
//
// Batches of a uniform number of new tokens can be captured into graphs; others have counts of
// decodes and prefills that a graph would freeze. Programs that register it link
// attention/cuda/kernels:all, or :all_emulated.

#ifndef KVBLOCKS_ATTENTION_CUDA_CUDA_BACKEND_H_
#define KVBLOCKS_ATTENTION_CUDA_CUDA_BACKEND_H_

#include "absl/status/status.h"
#include "kvblocks/attention/backends/attention_backend.h"
#include "kvblocks/attention/backends/backend_registry.h"

namespace kvblocks::attention {

const AttentionBackend& CudaBackend();

// AlreadyExists if there is a backend CUDA.
absl::Status RegisterCudaBackend(BackendRegistry& registry);

}  // namespace kvblocks::attention

#endif  // KVBLOCKS_ATTENTION_CUDA_CUDA_BACKEND_H_
