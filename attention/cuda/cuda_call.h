// CudaCall: an operation on its way to the device: its name, where its kernels are launched, and
// the workspace that it has not yet taken. One for all kernels of the operation.
//
// Nothing here allocates, synchronises or reads device memory.

#ifndef KVBLOCKS_ATTENTION_CUDA_CUDA_CALL_H_
#define KVBLOCKS_ATTENTION_CUDA_CUDA_CALL_H_

#include <cstdint>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "kvblocks/attention/backends/workspace.h"
#include "kvblocks/attention/cuda/kernels/params.h"
#include "kvblocks/attention/cuda/kernels/runtime.h"
#include "kvblocks/attention/ops/exec_context.h"

namespace kvblocks::attention::cuda {

// Internal, with the name of the CUDA error; OK for 0.
absl::Status StatusOf(const char* op, Error error);

// Ends the program for a CUDA error: for checks and benchmarks, which cannot go on.
void MustSucceed(Error error, const char* what);

// InvalidArgument for contexts of the host, unless kernels are emulated there.
absl::Status RefuseHost(const char* op, const ExecContext& context);

class CudaCall {
 public:
  // InvalidArgument for contexts of the host, Internal if the device cannot be asked.
  static absl::StatusOr<CudaCall> Begin(const char* op, const ExecContext& context);
  // On a device given by its properties; `launch` has the workspace.
  CudaCall(const char* op, const LaunchContext& launch);

  const char* op() const { return op_; }
  const LaunchContext& launch() const { return launch_; }

  // Enqueues a kernel.
  template <typename Params>
  absl::Status Launch(Error (*kernel)(const LaunchContext&, const Params&),
                      const Params& params) const {
    return StatusOf(op_, kernel(launch_, params));
  }

  // The next `count` numbers of the workspace; ResourceExhausted says how many bytes it needs.
  template <typename T>
  absl::StatusOr<T*> Take(int64_t count) {
    const absl::StatusOr<std::byte*> bytes = TakeBytes(count * static_cast<int64_t>(sizeof(T)));
    if (!bytes.ok()) return bytes.status();
    return reinterpret_cast<T*>(*bytes);
  }
  // For kernels that take theirs from the beginning of the workspace themselves.
  absl::Status RequireWorkspace(int64_t bytes) const;
  // Bytes left for `pieces` more, each of which may begin behind a gap.
  int64_t RoomFor(int pieces) const;

 private:
  absl::StatusOr<std::byte*> TakeBytes(int64_t bytes);

  const char* op_;
  LaunchContext launch_;
  WorkspaceArena arena_;
};

}  // namespace kvblocks::attention::cuda

#endif  // KVBLOCKS_ATTENTION_CUDA_CUDA_CALL_H_
