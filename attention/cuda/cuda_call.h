// CudaCall: an operation on its way to the device: its name, where its kernels are launched, and
// the workspace that it has not yet taken. One for all kernels of the operation.
//
// Nothing here allocates, synchronises or reads device memory.

#ifndef KVBLOCKS_ATTENTION_CUDA_CUDA_CALL_H_
#define KVBLOCKS_ATTENTION_CUDA_CUDA_CALL_H_

#include <cstdint>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "attention/backends/workspace.h"
#include "attention/cuda/kernels/params.h"
#include "attention/cuda/kernels/runtime.h"
#include "kvblocks/attention_args.h"
#include "kvblocks/attention_ops.h"
#include "kvblocks/kv_cache_view.h"
#include "kvblocks/tensor_view.h"

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

// CudaChecker: what CUDA's operations refuse beyond the checks of all backends.
//
// Keeps the first finding and checks nothing more: InvalidArgument for views that no kernel
// addresses and for contexts of the host, Unimplemented for what is not built.

class CudaChecker {
 public:
  // With the checks of all backends.
  template <typename Args>
  CudaChecker(const char* op, const ExecContext& context, const Args& args)
      : op_(op), status_(Check(context, args)) {
    Take(RefuseHost(op, context));
  }
  const absl::Status& status() const { return status_; }

  // Rows of values: not float64, innermost stride 1, fewer than 2^31 rows.
  CudaChecker& Values(const char* name, const ConstTensorView& view);
  // Index arrays, sinks, slopes: the innermost stride is 1.
  CudaChecker& Dense(const char* name, const ConstTensorView& view);
  CudaChecker& KvCache(const char* name, const ConstKvCacheView& cache);
  CudaChecker& Params(const AttnParams& params);
  CudaChecker& HeadDims(int64_t key_dim, int64_t value_dim);
  // What attends through block tables.
  template <typename Args>
  CudaChecker& Paged(const Args& args) {
    return KvCache("cache", args.cache)
        .Dense("block_table", args.block_table)
        .Dense("seq_lens", args.seq_lens)
        .Params(args.params);
  }
  // Rows that are moved, quantised or turned: not float64.
  CudaChecker& Moved(const char* name, const ConstTensorView& view);
  // The finding of another check.
  CudaChecker& Take(const absl::Status& status) {
    if (status_.ok()) status_ = status;
    return *this;
  }

 private:
  template <typename... Text>
  void Invalid(const Text&... text);
  template <typename... Text>
  void NotBuilt(const Text&... text);
  void Stride(const char* name, const ConstTensorView& view, int dim, int64_t wanted);

  const char* op_;
  absl::Status status_;
};

}  // namespace kvblocks::attention::cuda

#endif  // KVBLOCKS_ATTENTION_CUDA_CUDA_CALL_H_
