// ExecContext: where and with what an operation runs.
//
// Host operations run synchronously on the calling thread, and on the pool if one is given; their
// results do not depend on it. CUDA operations only enqueue work on the stream.

#ifndef KVBLOCKS_ATTENTION_OPS_EXEC_CONTEXT_H_
#define KVBLOCKS_ATTENTION_OPS_EXEC_CONTEXT_H_

#include <cstddef>
#include <cstdint>

#include "absl/types/span.h"
#include "kvblocks/attention/ops/device_error_bits.h"
#include "kvblocks/attention/tensor/tensor_view.h"

namespace kvblocks::attention {

class ThreadPool;

// Scratch memory that the caller owns; one per stream, reused by all layers. Operations never
// allocate on a device: too small is ResourceExhausted with the size needed.
struct Workspace {
  absl::Span<std::byte> device;
  absl::Span<std::byte> pinned;
};

struct DeviceErrorFlags {
  uint32_t* bits = nullptr;  // in the memory of the context's device
};

struct ExecContext {
  DeviceId device;
  void* stream = nullptr;  // a cudaStream_t
  Workspace* workspace = nullptr;
  DeviceErrorFlags* error_flags = nullptr;
  ThreadPool* threads = nullptr;  // host only; null: the calling thread alone
};

}  // namespace kvblocks::attention

#endif  // KVBLOCKS_ATTENTION_OPS_EXEC_CONTEXT_H_
