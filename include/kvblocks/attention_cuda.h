// Attention on GPUs.

#ifndef KVBLOCKS_ATTENTION_CUDA_H_
#define KVBLOCKS_ATTENTION_CUDA_H_

#include "absl/status/status.h"
#include "kvblocks/attention_backend.h"
#include "kvblocks/attention_masks.h"
#include "kvblocks/attention_ops.h"

// The backend CUDA: Cuda()'s operations on GPUs of compute capability 8.0 and later, as layers and
// selection use it. It is asked before the host's backends, which serve other devices.
//
// Batches of a uniform number of new tokens can be captured into graphs; others have counts of
// decodes and prefills that a graph would freeze. Programs that register it link
// attention/cuda/kernels:all, or :all_emulated.

namespace kvblocks::attention {

const AttentionBackend& CudaBackend();

// AlreadyExists if there is a backend CUDA.
absl::Status RegisterCudaBackend(BackendRegistry& registry);

// For mask builders whose device is a GPU, which must be the current one: copies a mask into memory
// of its own there and waits. Not during a capture. Freed with the mask's last holder.
MaskUpload CudaMaskUpload();

// CUDA: attention on NVIDIA GPUs of compute capability 8.0 and later.
//
// Operations enqueue kernels on the context's stream and return: they neither allocate nor
// synchronise, ask no device, and read no device memory, so that all of them can be captured in a
// graph. Scratch memory is the context's workspace. What lies in device memory is checked there:
// bad indices are skipped and flagged in the context's error flags.
//
// Where no faster kernel was built for a combination of types, layouts, sizes and features, a
// portable one serves it. Tensors are f32, f16 and bf16, caches those and e4m3, e5m2, int8, heads
// up to 576 values; float64 is refused.

// The operations that move rows, which need no kernels that attend.
class CudaRowOps : public AttentionOps {
 public:
  const char* name() const override { return "CUDA"; }
  KVBLOCKS_KV_ROW_OPS(KVBLOCKS_OVERRIDE_RUN)

 protected:
  KVBLOCKS_KV_ROW_OPS(KVBLOCKS_OVERRIDE_REFUSE)
};

class CudaOps : public CudaRowOps {
 public:
  KVBLOCKS_ATTENDING_OPS(KVBLOCKS_OVERRIDE_RUN)

 protected:
  KVBLOCKS_ATTENDING_OPS(KVBLOCKS_OVERRIDE_REFUSE)
};

// The one instance; it has no state.
const AttentionOps& Cuda();

}  // namespace kvblocks::attention

#endif  // KVBLOCKS_ATTENTION_CUDA_H_
